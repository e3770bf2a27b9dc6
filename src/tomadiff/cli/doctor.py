"""What ``tomadiff doctor`` finds out: which versions are here, which devices, and whether merging works on them."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

import tomadiff
from tomadiff.cost import Hardware
from tomadiff.errors import SettingError
from tomadiff.families.registry import supported

PACKAGES = ("torch", "diffusers", "transformers", "accelerate", "safetensors", "peft", "torchao", "triton")


@dataclass(frozen=True)
class Check:
    """One part of the self-test; ``problem`` is empty if it went well."""

    name: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether it went well."""
        return not self.problem

    def __str__(self) -> str:
        return f"✓ {self.name}" if self.passed else f"✗ {self.name}: {self.problem}"


@dataclass(frozen=True)
class Findings:
    """Everything that ``tomadiff doctor`` prints.

    Attributes:
        versions: of this package and those around it; ``None`` where one is not installed.
        devices: what torch can compute on, in words.
        machines: the constants that stand for each device where merging is decided, and where they are from.
        kernels: whether Triton kernels can run, or why they cannot.
        families: the models that tokens can merge in.
        checks: the self-test.
    """

    versions: dict[str, str | None]
    devices: tuple[str, ...]
    machines: tuple[str, ...]
    kernels: str
    families: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def rows(self) -> dict[str, str]:
        """Versions and devices, in words."""
        rows = {name: version or "not installed" for name, version in self.versions.items()}
        return rows | {"devices": "; ".join(self.devices), "machine": "; ".join(self.machines), "kernels": self.kernels}

    def __str__(self) -> str:
        lines = [f"{name:<13}{text}" for name, text in self.rows().items()]
        lines += ["", "Tokens can merge in", *(f"  {family}" for family in self.families), "", "Self-test"]
        return "\n".join([*lines, *(f"  {check}" for check in self.checks)])

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "healthy": self.healthy}


def examine() -> Findings:
    """Look around, and run the self-test on every kind of device there is."""
    families = tuple(f"{family.title}: {', '.join(family.models)}" for family in supported())
    return Findings(versions(), devices(), machines(), kernels(), families, self_test())


# ---------------------------------------------------------------------------------------------- facts
def versions() -> dict[str, str | None]:
    """Read from the installed packages, so that nothing slow is imported."""
    found: dict[str, str | None] = {"tomadiff": tomadiff.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def devices() -> tuple[str, ...]:
    """What torch can compute on."""
    found = [f"cpu: {platform.machine()}, {torch.get_num_threads()} threads"]
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        found.append(f"cuda:{number}: {about.name}, {about.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        found.append("mps: Apple GPU")
    return tuple(found)


def machines() -> tuple[str, ...]:
    """The constants in force for each device: the guard and ``speedup=`` decide by them."""
    kinds = [torch.device("cpu"), *(torch.device("cuda", number) for number in range(torch.cuda.device_count()))]
    kinds += [torch.device("mps")] if torch.backends.mps.is_available() else []
    return tuple(f"{device}: {_machine(device)}" for device in kinds)


def _machine(device: torch.device) -> str:
    try:
        return str(Hardware.of(device))
    except SettingError as problem:  # a broken calibration
        return str(problem)


def kernels() -> str:
    """Whether Triton kernels can run here."""
    if importlib.util.find_spec("triton") is None:
        return "no: Triton is not installed; plain torch does the work"
    if not torch.cuda.is_available():
        return "no: there is no GPU; plain torch does the work"
    return "yes"


# ---------------------------------------------------------------------------------------------- self-test
def self_test() -> tuple[Check, ...]:
    """Plan, merge in a small UNet, and take everything off again, on every kind of device."""
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kinds = [kind for kind, is_there in present.items() if is_there]
    return tuple(
        _checked(f"{name} on {kind}", check, torch.device(kind)) for kind in kinds for name, check in CHECKS.items()
    )


def _checked(name: str, check: Callable[[torch.device], None], device: torch.device) -> Check:
    try:
        check(device)
    except Exception as problem:  # whatever it is, it is what the doctor is asked for
        return Check(name, f"{type(problem).__name__}: {problem}")
    return Check(name)


def _check_plan(device: torch.device) -> None:
    """Tokens that come in equal pairs lose nothing when half of them merge."""
    half = torch.randn(1, 8, 16, 32, generator=torch.Generator().manual_seed(0))
    tokens = half.repeat_interleave(2, dim=1).reshape(1, 256, 32).to(device)
    plan = tomadiff.ToMA.paper(0.5).plan(tokens, tomadiff.Grid(16, 16))
    error = (plan.unmerge(plan.merge(tokens)) - tokens).abs().max().item()
    if plan.kept != 128 or error > 1e-3:
        raise AssertionError(f"{plan.kept} of 256 tokens kept, error {error:.1e}")


def _check_apply(device: torch.device) -> None:
    unet, run = _small_unet(device)
    before = run()
    with tomadiff.apply(unet, 0.5, guard=False) as patch:
        merged = run()
        (model,) = patch.report().models
    if not model.merged or model.bypassed or torch.equal(merged, before):
        raise AssertionError(f"nothing merged: {patch.summary()}")
    if not merged.isfinite().all():
        raise AssertionError("the merged result is not finite")


def _check_removal(device: torch.device) -> None:
    unet, run = _small_unet(device)
    attributes, before = _attributes(unet), run()
    with tomadiff.apply(unet, 0.5, guard=False):
        run()
    if not torch.equal(run(), before):
        raise AssertionError("the result after removal is another")
    if _attributes(unet) != attributes:
        raise AssertionError("attributes stay behind after removal")


CHECKS: dict[str, Callable[[torch.device], None]] = {
    "plan, merge and unmerge": _check_plan,
    "merge in a small UNet": _check_apply,
    "remove bit-exactly": _check_removal,
}


def _small_unet(device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A diffusers UNet with random weights, made in memory, and a call of it."""
    from diffusers import UNet2DConditionModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unet: Any = UNet2DConditionModel(
            sample_size=16,
            block_out_channels=(8, 16),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            layers_per_block=1,
            norm_num_groups=2,
            attention_head_dim=2,
            cross_attention_dim=16,
        )
        image, text = torch.randn(1, 4, 16, 16), torch.randn(1, 4, 16)
    unet.to(device).eval()

    @torch.no_grad()
    def run() -> Tensor:
        result: Tensor = unet(image.to(device), 500, text.to(device)).sample
        return result

    return unet, run


def _attributes(model: nn.Module) -> list[tuple[str, ...]]:
    return [tuple(vars(module)) for module in model.modules()]
