"""What one run of the fuzzer tries: a model, how it is called, how it is patched, and what happens in between."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import diffusers
import torch
from hypothesis import strategies as st

from tests import tiny
from tests.tiny import Tiny
from tomadiff.methods.registry import CATALOGUE

SIZES = (64, 32, 48, 80, 96)
STEPS = (3, 1, 2, 4, 5)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
METHODS = tuple(CATALOGUE)
RATIOS = (0.5, 0.0, 0.1, 0.25, 0.75, 0.9)
SCHEDULES = ("default", "every step", "every 2 and 1", "from half", "last steps", "per level")
FORECASTS = ("none", "every 2", "tolerance", "alone")
FLOW = ("flux", "sd3", "wan")  # families whose pipelines need a flow scheduler
UNKNOWN_TO = {  # families that diffusers itself cannot use a tool on
    "LoRA": ("pixart",),
    "compiled blocks": ("sd3", "pixart"),
    "attention slicing": ("flux", "sd3", "pixart", "wan"),
}
CACHED = ("flux", "wan")  # families that diffusers' caches know
SCHEDULERS = (
    "own",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "DDIMScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "LCMScheduler",
    "UniPCMultistepScheduler",
)
TOOLS = ("none", "LoRA", "offloading", "first block cache", "TaylorSeer", "attention slicing", "compiled blocks")
EVENTS = (
    "nothing",
    "another image",
    "exception",
    "interrupt",
    "other settings and back",
    "unfinished loop",
    "copy",
    "pickle",
    "second pipeline",
    "own scheduler",
    "later pipeline",
    "threads",
)
ALONE = ("exception", "copy", "pickle", "threads")  # caches and hooks of others do not survive these even without us
HARMLESS = ("none", "LoRA", "attention slicing")


@dataclass(frozen=True)
class Case:
    """One run. The first choice of every field is the plainest, towards which a failure is shrunk."""

    family: str = "flux"
    height: int = 64
    width: int = 64
    images: int = 1
    steps: int = 3
    guided: bool = False
    dtype: str = "float32"
    scheduler: str = "own"
    method: str = "toma"
    ratio: float = 0.5
    schedule: str = "default"
    guard: bool = False
    forecast: str = "none"
    tool: str = "none"
    tool_first: bool = True
    event: str = "nothing"

    def __str__(self) -> str:
        """Only what is not plain."""
        said = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Case({', '.join(said)})"

    @property
    def possible(self) -> bool:
        """Whether diffusers itself can do this without us."""
        if self.scheduler != "own" and self.family in FLOW:
            return False
        if self.tool in ("first block cache", "TaylorSeer") and self.family not in CACHED:
            return False
        if self.tool in ("first block cache", "TaylorSeer") and self.forecast != "none":
            return False  # refused with an error, which a test of its own looks at
        if self.family in UNKNOWN_TO.get(self.tool, ()):
            return False
        if self.event in ALONE and self.tool not in HARMLESS:
            return False
        return not (self.event == "interrupt" and self.family == "pixart")  # its pipeline has no way to interrupt

    def build(self) -> Tiny:
        """The small pipeline, set up as the case says but not patched."""
        built = tiny.build(self.family)
        built.pipe.set_progress_bar_config(disable=True)
        if self.scheduler != "own":
            built.pipe.scheduler = getattr(diffusers, self.scheduler).from_config(built.pipe.scheduler.config)
        built.pipe.to(DTYPES[self.dtype])
        built.settings |= {"height": self.height, "width": self.width, "output_type": "latent"}
        built.settings |= {"num_inference_steps": self.steps, "prompt": ["a fox", "two owls"][: self.images]}
        if not self.guided:
            built.settings["guidance_scale"] = 1.0
        return built


def cases(tools: tuple[str, ...] = TOOLS, **fixed: Any) -> st.SearchStrategy[Case]:
    """All cases with one of ``tools``, or none as often as any; ``fixed`` fields have the values given."""
    choices: dict[str, st.SearchStrategy[Any]] = {
        "family": st.sampled_from(sorted(tiny.FAMILIES, key=lambda name: name != "flux")),
        "height": st.sampled_from(SIZES),
        "width": st.sampled_from(SIZES),
        "images": st.sampled_from((1, 2)),
        "steps": st.sampled_from(STEPS),
        "guided": st.booleans(),
        "dtype": st.sampled_from(tuple(DTYPES)),
        "scheduler": st.sampled_from(SCHEDULERS),
        "method": st.sampled_from(METHODS),
        "ratio": st.sampled_from(RATIOS),
        "schedule": st.sampled_from(SCHEDULES),
        "guard": st.booleans(),
        "forecast": st.sampled_from(FORECASTS),
        "tool": st.just("none") | st.sampled_from(tools),
        "tool_first": st.booleans(),
        "event": st.sampled_from(EVENTS),
    }
    known = {name: st.just(value) for name, value in fixed.items()}
    return st.builds(Case, **(choices | known)).map(_made_possible)


def _made_possible(case: Case) -> Case:
    """The nearest case that diffusers can run: throwing impossible ones away would waste half of the runs."""
    if case.scheduler != "own" and case.family in FLOW:
        case = replace(case, scheduler="own")
    if not replace(case, event="nothing").possible:
        case = replace(case, tool="none")
    return case if case.possible else replace(case, event="nothing")
