"""Settings that are measured on a model instead of guessed: how linearly its blocks answer, for ToFu's rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from torch import Tensor, nn

from tomadiff.adapters.family import Block
from tomadiff.adapters.registry import family_of
from tomadiff.errors import PatchError
from tomadiff.methods.tofu import linearity


def block_linearity(model: nn.Module, run: Callable[[], Any]) -> list[float]:
    """How linearly each block of ``model`` answers, in the order they run; see :func:`tomadiff.methods.tofu.linearity`.

    Args:
        model: a supported UNet or transformer, unpatched.
        run: draws a picture with it; every call of every block counts.

    A block adds to its input, so what is compared is what it adds: the input itself would always look linear.
    """
    family = family_of(model)
    blocks = [block for stack in family.stacks(model) for block in stack.blocks]
    found: dict[nn.Module, list[float]] = {block: [] for block in blocks}
    hooks = [
        block.register_forward_pre_hook(_Probe(described, found[block]), with_kwargs=True)
        for block in blocks
        if (described := family.block(block)) is not None
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    if not any(found.values()):
        raise PatchError("run() never called the model, so there is nothing to measure; let it draw a picture.")
    return [fmean(values) for values in found.values() if values]


class _Probe:
    """Measures a block on the tokens it is about to see."""

    def __init__(self, described: Block, values: list[float]) -> None:
        self.described, self.values = described, values

    def __call__(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rest = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        tokens: Tensor = args[0] if args else kwargs["hidden_states"]

        def added(image: Tensor) -> Tensor:
            result = type(block).forward(block, image, *args[1:], **rest)
            answer: Tensor = result if isinstance(result, Tensor) else result[self.described.outputs[0]]
            return answer - image

        self.values.append(linearity(added, tokens))


def share_to_prune(linearities: Sequence[float], threshold: float = 0.9) -> float:
    """Share of first blocks that answer less linearly than ``threshold``, for ``ToFu(prune=…)``."""
    first = next((place for place, value in enumerate(linearities) if value >= threshold), len(linearities))
    return first / len(linearities)
