"""Low-rank additions to frozen weights: trained as one matrix product per weight, written as a diffusers LoRA file.

W + B A is formed once per step and the layers run as they are, which at these widths is cheaper than running A and B
on every token, and lets convolutions and linear layers be treated alike.
"""

import math

import torch
from torch import nn
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """weight -> weight + B A, B zero at first.  A convolution's kernel (out, in, h, w) counts as (out, in * h * w)."""

    def __init__(self, weight: torch.Tensor, rank: int):
        super().__init__()
        rows, columns = weight.flatten(1).shape
        rank = min(rank, rows, columns)
        self.lora_A = nn.Parameter(torch.empty(rank, columns))
        self.lora_B = nn.Parameter(torch.zeros(rows, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (self.lora_B @ self.lora_A).view_as(weight)


def attach(denoiser: nn.Module, rank: int) -> nn.Module:
    """Freeze `denoiser` and give every linear layer and convolution a low-rank addition, in place."""
    torch.manual_seed(23)
    denoiser.requires_grad_(False)
    for module in list(denoiser.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            # The sum has the weight's shape and type: unsafe only means that this is not checked once more.
            parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank), unsafe=True)
    return denoiser


def on_grid(factor: torch.Tensor) -> torch.Tensor:
    """Multiples of 2^-11, as halves: B A then holds multiples of 2^-22.

    Added to weights that are stored as halves and smaller than 4, such numbers lose nothing in float32: fusing and
    unfusing gives the very weights of before.
    """
    return ((factor * 2**11).round() / 2**11).half()


def lora_state(denoiser: nn.Module) -> dict[str, torch.Tensor]:
    """The additions under the names that peft gives them and `load_lora_weights` reads."""
    state = {}
    for name, module in denoiser.named_modules():
        if not parametrize.is_parametrized(module, "weight"):
            continue
        addition = module.parametrizations.weight[0]
        a, b = addition.lora_A.detach(), addition.lora_B.detach()
        if isinstance(module, nn.Conv2d):
            a, b = a.view(-1, module.in_channels, *module.kernel_size), b[:, :, None, None]
        state[f"{name}.lora_A.weight"] = on_grid(a).contiguous()
        state[f"{name}.lora_B.weight"] = on_grid(b).contiguous()
    return state
