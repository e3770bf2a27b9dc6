"""AdamW, or Muon for the weight matrices and AdamW for the rest."""

import torch
from torch import nn

from training import workers


def make_optimizers(model: nn.Module, learning_rate: float, muon: bool) -> list[torch.optim.Optimizer]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not muon:
        return [torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)]
    matrices = [p for name, p in model.named_parameters() if p.requires_grad and is_matrix(name, p)]
    chosen = {id(p) for p in matrices}
    rest = [p for p in parameters if id(p) not in chosen]
    adam = torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    return [Muon(matrices, lr=learning_rate * 10), adam]


def is_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Hidden weights: linear or convolution kernels, not embeddings and not the first and last layers.

    Nor what modulates a transformer's blocks: it sees one vector per picture, so its gradient has few directions.
    """
    outer = ("embed", "shared", "conv_in", "conv_out", "transformer.proj_out", "relative")
    modulation = ("norm.linear", "norm1.linear", "norm1_context.linear", "norm_out.linear")
    return parameter.ndim >= 2 and not any(word in name for word in outer + modulation)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by Newton-Schulz (K. Jordan, 2024); kernels count as matrices."""

    def __init__(self, parameters: list[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(parameters, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            directions = [self.direction(p, group["momentum"]) for p in parameters]
            updates = workers.share_out(directions, orthogonal)
            for parameter, update in zip(parameters, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                tallness = max(1.0, update.shape[0] / update.shape[1]) ** 0.5
                parameter.add_(update.view_as(parameter), alpha=-group["lr"] * tallness)

    def direction(self, parameter: torch.Tensor, momentum: float) -> torch.Tensor:
        """Nesterov momentum of a weight, as a matrix (rows, columns)."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        buffer = state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum).flatten(1)


def orthogonal(matrix: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """Nearest (roughly) orthogonal matrix (rows, columns), by the quintic Newton-Schulz iteration.

    Each round multiplies by a polynomial of x x^T; all rounds are gathered on that small square matrix first,
    which for wide matrices (convolutions) is less than half the work.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    gram = x @ x.T
    unit = torch.eye(len(gram))
    total = unit
    for _ in range(rounds):
        factor = 3.4445 * unit - 4.7750 * gram + 2.0315 * gram @ gram
        total = factor @ total
        gram = factor @ gram @ factor
    x = total @ x
    return x.T if tall else x
