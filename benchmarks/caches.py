"""Caches of others, to be put around a pipeline while it generates: what merging is compared and combined with.

Each is a frozen setting that gives a context: ``with DeepCache(3)(pipe): …``. A context begins with an empty cache and
leaves the pipeline as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DeepCache:
    """The package of that name, for UNets: the deeper levels are computed every so many steps.

    Attributes:
        interval: steps from one full computation to the next.
        branch: which skip connection bounds the part that is kept; 0 leaves only the last layer to every step.
    """

    interval: int = 3
    branch: int = 0

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts."""
        return self._on(pipe)

    @contextmanager
    def _on(self, pipe: Any) -> Iterator[None]:
        from DeepCache import DeepCacheSDHelper

        helper = DeepCacheSDHelper(pipe)
        helper.set_params(cache_interval=self.interval, cache_branch_id=self.branch)
        helper.enable()
        try:
            yield
        finally:
            helper.disable()
            for module in pipe.unet.modules():  # it puts methods back as attributes, which nobody needs
                if getattr(module.__dict__.get("forward"), "__func__", None) is type(module).forward:
                    del module.forward


@dataclass(frozen=True)
class FirstBlockCache:
    """Diffusers' own, for transformers: what follows the first block is computed if that block's residual changed.

    Attributes:
        threshold: by how much, relative to its size. The images themselves decide how often that is.
    """

    threshold: float = 0.1

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts."""
        from diffusers import FirstBlockCacheConfig

        return _enabled(pipe, FirstBlockCacheConfig(threshold=self.threshold))


@dataclass(frozen=True)
class TaylorSeer:
    """Diffusers' own, for transformers: between full steps, outputs are extrapolated from how they changed.

    Attributes:
        interval: steps from one full computation to the next.
        before: steps computed in full first.
        lite: extrapolate the output of the whole model (diffusers' "lite mode"), not that of every attention.
    """

    interval: int = 3
    before: int = 3
    lite: bool = True

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts."""
        from diffusers import TaylorSeerCacheConfig

        config = TaylorSeerCacheConfig(
            cache_interval=self.interval,
            disable_cache_before_step=self.before,
            taylor_factors_dtype=torch.float32,
            use_lite_mode=self.lite,
        )
        return _enabled(pipe, config)


@contextmanager
def _enabled(pipe: Any, config: Any) -> Iterator[None]:
    pipe.transformer.enable_cache(config)
    try:
        yield
    finally:
        pipe.transformer.disable_cache()
