"""What one run of the fuzzer tries: a model, how it is called, how it is patched, and what happens in between."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.models import DTYPES, FAMILIES, FURTHER, MODULAR, ONE_IMAGE
from tomadiff.methods.registry import CATALOGUE

SIZES = (64, 32, 48, 80, 96)
STEPS = (3, 1, 2, 4, 5)
METHODS = tuple(CATALOGUE)
RATIOS = (0.5, 0.0, 0.1, 0.25, 0.75, 0.9)
SCHEDULES = ("default", "every step", "every 2 and 1", "from half", "last steps", "per level")
SETTINGS: dict[str, dict[str, Any]] = {  # beside a ratio, of ToMA alone
    "none": {},
    "samples apart": {"share": "sample"},
    "batch together": {"share": "batch"},
    "blocks": {"span": "block"},
    "levels": {"scope": "level"},
    "shared quota": {"quota": "shared"},
    "pseudo-inverse": {"unmerge": "pseudo-inverse"},
    "budget": {"flops": 0.9},
}
FORECASTS = ("none", "every 2", "tolerance", "alone")
DIFFUSION = ("sd15", "sdxl", "pixart", "sdxl with ControlNet")  # all other families need a flow scheduler
KNOWN_TO = {  # families that diffusers itself can use a tool on, where those are few
    "attention slicing": ("sd15", "sdxl", "sdxl with ControlNet"),
    "first block cache": ("flux", "wan"),
    "TaylorSeer": ("flux", "wan", "flux2_klein", "qwen_image21", "qwen_image21_without_cache"),
}
UNKNOWN_TO = {"LoRA": ("pixart", "krea2"), "compiled blocks": ("sd3", "pixart", "anima")}
CACHES = ("first block cache", "TaylorSeer")
NO_INTERRUPT = ("pixart", *MODULAR, *FURTHER)  # their pipelines have no way to interrupt
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
    setting: str = "none"
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
        if self.scheduler != "own" and self.family not in DIFFUSION:
            return False
        if self.tool in CACHES and self.forecast != "none":
            return False  # refused with an error, which a test of its own looks at
        if self.family not in KNOWN_TO.get(self.tool, FAMILIES) or self.family in UNKNOWN_TO.get(self.tool, ()):
            return False
        if self.event in ALONE and self.tool not in HARMLESS:
            return False
        if self.family in FURTHER and (self.tool not in ("none", "offloading") or self.dtype != "float32"):
            return False
        if self.images > 1 and self.family in ONE_IMAGE:
            return False
        return not (self.event == "interrupt" and self.family in NO_INTERRUPT)


def cases(
    tools: tuple[str, ...] = TOOLS, families: tuple[str, ...] = FAMILIES, **fixed: Any
) -> st.SearchStrategy[Case]:
    """All cases with one of ``tools``, or none as often as any; ``fixed`` fields have the values given."""
    choices: dict[str, st.SearchStrategy[Any]] = {
        "family": st.sampled_from(families),
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
        "setting": st.sampled_from(tuple(SETTINGS)),
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
    if case.scheduler != "own" and case.family not in DIFFUSION:
        case = replace(case, scheduler="own")
    if case.family in ONE_IMAGE:
        case = replace(case, images=1)
    if case.family in FURTHER:
        case = replace(case, dtype="float32")
    if not case.method.startswith("toma"):
        case = replace(case, setting="none")
    if not replace(case, event="nothing").possible:
        case = replace(case, tool="none")
    return case if case.possible else replace(case, event="nothing")
