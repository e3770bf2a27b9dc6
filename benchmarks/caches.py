"""Caches of others, to be put around a pipeline while it generates: what merging is compared and combined with.

Each is a frozen setting that gives a context: ``with DeepCache(3)(pipe): …``. A context begins with an empty cache and
leaves the pipeline as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tomadiff.evaluation.runs.models import denoiser
from tomadiff.steps.forecast import Forecast


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


# How much residuals grow from step to step, the mean over the first three tuning pairs of emoji-flux at 20 steps. It
# depends on the model, and MagCache asks for it; made by python -m benchmarks.magnitudes.
MAGNITUDES: tuple[float, ...] = (
    1.0,
    1.0293,
    1.1158,
    1.0473,
    0.9982,
    0.9657,
    1.044,
    0.9796,
    1.0294,
    0.9986,
    1.02,
    0.9676,
    1.0232,
    1.0119,
    1.0013,
    1.0042,
    0.985,
    0.997,
    1.0018,
    0.9718,
)


@dataclass(frozen=True)
class MagCache:
    """Diffusers' own, for transformers: steps reuse the residual while growth that was measured before is small.

    Attributes:
        steps: of the image.
        threshold: of the summed error.
        retained: share of the run that is computed first.
        most: steps in a row that are not computed.
        ratios: how much residuals grow from step to step.
    """

    steps: int
    threshold: float = 0.06
    retained: float = 0.2
    most: int = 3
    ratios: tuple[float, ...] = MAGNITUDES

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts."""
        from diffusers import MagCacheConfig

        ratios = torch.tensor(self.ratios)
        return _enabled(pipe, MagCacheConfig(self.threshold, self.most, self.retained, self.steps, ratios))


@dataclass(frozen=True)
class SeaCache:
    """Diffusers' own, for transformers: the residual is reused while a filtered input has changed little.

    Diffusers tells it steps and noise levels in pipelines of Wan and Cosmos 3 alone; here that is done for Flux too.

    Attributes:
        threshold: of the change that was summed since the last computed step.
        most: steps in a row that are not computed.
    """

    threshold: float = 0.25
    most: int = 2

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts."""
        return self._on(pipe)

    @contextmanager
    def _on(self, pipe: Any) -> Iterator[None]:
        from diffusers import SeaCacheConfig

        model, plain = pipe.transformer, pipe.transformer.cache_context
        config = SeaCacheConfig(self.threshold, max_consecutive_cached=self.most, raw_vision_callback=_latents)

        def told(name: str, **known: Any) -> Any:
            place, steps = pipe.scheduler.step_index or 0, len(pipe.scheduler.timesteps)
            where = {"step_index": place, "sigma": float(pipe.scheduler.sigmas[place]), "num_inference_steps": steps}
            return plain(name, **where, **known)

        with _enabled(pipe, config):
            model.cache_context = told
            try:
                yield
            finally:
                del model.cache_context


def _latents(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Flux's packed tokens of a square image as (channels, frames, height, width)."""
    tokens = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    side = round(tokens.shape[1] ** 0.5)
    return [one.T.reshape(-1, 1, side, side) for one in tokens]


@dataclass(frozen=True)
class PyramidAttention:
    """Diffusers' Pyramid Attention Broadcast: attention is computed every so many steps, all else at every step.

    Attributes:
        interval: steps from one computation to the next.
        first: timestep that it begins below.
        last: timestep that it ends at.
    """

    interval: int = 2
    first: int = 800
    last: int = 100

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts."""
        return self._on(pipe)

    @contextmanager
    def _on(self, pipe: Any) -> Iterator[None]:
        from diffusers import PyramidAttentionBroadcastConfig
        from diffusers.hooks import HookRegistry, apply_pyramid_attention_broadcast

        model, span = denoiser(pipe), (self.last, self.first)
        config = PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=self.interval,
            cross_attention_block_skip_range=self.interval,
            spatial_attention_timestep_skip_range=span,
            cross_attention_timestep_skip_range=span,
            current_timestep_callback=partial(_time, pipe),
        )
        apply_pyramid_attention_broadcast(model, config)
        try:
            yield
        finally:
            HookRegistry.check_if_exists_or_initialize(model).remove_hook("pyramid_attention_broadcast", recurse=True)


def _time(pipe: Any) -> float:
    """The timestep of this call, from 1000 to 0."""
    return float(pipe.scheduler.timesteps[pipe.scheduler.step_index or 0])


@dataclass(frozen=True)
class DualBlockCache:
    """DBCache of the package cache-dit (``pip install cache-dit``), for transformers.

    Attributes:
        threshold: how much the residual of the first blocks may have changed.
        first: of those blocks.
        before: steps computed in full first.
        order: of the Taylor series that extrapolates; 0 reuses.
    """

    threshold: float = 0.08
    first: int = 1
    before: int = 4
    order: int = 0

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts."""
        return self._on(pipe)

    @contextmanager
    def _on(self, pipe: Any) -> Iterator[None]:
        import cache_dit  # type: ignore[import-not-found]

        config = cache_dit.DBCacheConfig(
            Fn_compute_blocks=self.first,
            Bn_compute_blocks=0,
            max_warmup_steps=self.before,
            residual_diff_threshold=self.threshold,
        )
        series = cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=self.order) if self.order else None
        cache_dit.enable_cache(pipe, cache_config=config, calibrator_config=series)
        try:
            yield
        finally:
            cache_dit.disable_cache(pipe)


@dataclass(frozen=True)
class Repeat:
    """Nobody's: steps are left out in a fixed pattern, and the last output of the denoiser stands in (order 0).

    The pattern is that of ``Forecast(every=interval, start=start)``.
    """

    interval: int = 2
    start: float = 0.2

    def __call__(self, pipe: Any) -> AbstractContextManager[None]:
        """On ``pipe`` while the context lasts, for one image or batch, with one call for each step."""
        return self._on(pipe)

    @contextmanager
    def _on(self, pipe: Any) -> Iterator[None]:
        model, pattern, calls = denoiser(pipe), Forecast(every=self.interval, start=self.start), 0
        plain, last = model.forward, None

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls, last
            step, calls = calls, calls + 1
            if last is None or pattern.computes(step, len(pipe.scheduler.timesteps)):
                last = plain(*args, **kwargs)
            return tuple(part.clone() for part in last)

        with calling(model, forward):
            yield


@contextmanager
def calling(model: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """While it lasts, ``forward`` is called in place of the model's own."""
    before = model.__dict__.get("forward")
    model.forward = forward
    try:
        yield
    finally:
        del model.forward
        if before is not None:
            model.forward = before
