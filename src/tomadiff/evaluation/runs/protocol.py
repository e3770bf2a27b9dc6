"""What an evaluation asks for: a plain one, or what the paper did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tomadiff.errors import SettingError, require_choice


@dataclass(frozen=True)
class Protocol:
    """Settings of an evaluation; ``None`` leaves them to the model.

    Attributes:
        methods: names in the catalogue; the full image is always generated as well.
        ratios: shares of tokens removed.
        seeds: how many images of each prompt.
        limit: at most this many prompts, the first ones.
        size: width and height in pixels.
        steps: of denoising.
        flux_steps: the same for Flux, where it differs.
        own_prompts: whether it makes sense only with a given file of prompts, and which.
    """

    methods: tuple[str, ...] = ("toma",)
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75)
    seeds: int = 3
    limit: int | None = None
    size: tuple[int, int] | None = None
    steps: int | None = None
    flux_steps: int | None = None
    own_prompts: str = ""

    def changed(self, **given: Any) -> Protocol:
        """The same with other settings, where some are given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def steps_for(self, pipeline: str) -> int | None:
        """Steps for a pipeline class by its name."""
        return self.flux_steps or self.steps if pipeline.startswith("Flux") else self.steps


EMBEDDED_LIMIT = 16  # prompts of the embedded list by default: minutes, not hours

# "toma-paper" keeps destinations 10 steps and weights 5, as the paper does; its latency is `tomadiff bench`'s matter.
PROTOCOLS = {
    "plain": Protocol(),
    "paper": Protocol(("toma-paper",), limit=50, size=(1024, 1024), steps=50, flux_steps=35, own_prompts="GEMRec"),
    "paper-fid": Protocol(
        ("toma-paper",), limit=1000, size=(1024, 1024), steps=50, flux_steps=35, own_prompts="ImageNet-1k classes"
    ),
}


def protocol(name: str, prompts: str | None) -> Protocol:
    """A protocol by name; the paper's refuse to run on other prompts than were asked for."""
    require_choice("protocol", name, tuple(PROTOCOLS))
    chosen = PROTOCOLS[name]
    if chosen.own_prompts and prompts is None:
        raise SettingError(f"protocol={name!r} needs the prompts of {chosen.own_prompts}; give --prompts FILE.")
    return chosen
