"""Options that several commands have in common, and how their values are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tomadiff.errors import SettingError
from tomadiff.utils.settings import Ratio, check

if TYPE_CHECKING:
    from tomadiff.cost.budget import Budget

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="emoji-sdxl, emoji-sdxl-4step, emoji-flux, a folder saved by diffusers, a .safetensors file, or a hub id.",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="The run's folder; the same command goes on in it.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Denoising steps; default: the model's own.")]
Size = Annotated[str | None, typer.Option(help="In pixels: 1024, or 1024x768 (width x height); default: the model's.")]
Guidance = Annotated[float | None, typer.Option(help="Guidance scale; default: the model's own.")]
BatchSize = Annotated[int, typer.Option("--batch", min=1, help="Images that are generated together.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps; default: the GPU if there is one.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16; default: half precision on a GPU.")]
Depth = Annotated[int | None, typer.Option(min=1, help="With --arch: at most this many blocks per stack.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Open weights that can run code; only from people you trust.")
]
Networks = Annotated[
    str | None,
    typer.Option(help="Which look at the images, and from where: judge,clip=/models/clip; or none. Default: all."),
]
Reference = Annotated[Path | None, typer.Option(help="A folder of images for FID and KID; default: the full images.")]
Flops = Annotated[
    float | None,
    typer.Option(help="Instead of --ratio: the share of the full FLOPs an image may cost, as 0.6."),
]
Speedup = Annotated[
    float | None,
    typer.Option(help="Instead of --ratio: how many times as fast, as predicted for this kind of device: 1.4."),
]
Forecast = Annotated[
    float | None,
    typer.Option(help="Tolerance of forecast denoising steps, which are not computed: 0.05. Not part of the paper."),
]
Methods = Annotated[str | None, typer.Option(help="With commas between: toma,tomesd. A wrong name lists all.")]
PromptFile = Annotated[
    str | None, typer.Option("--prompts", help="A .txt, .csv, .tsv or .json file; default: 16 of the embedded list.")
]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write the numbers to this file as well.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print one table, however wide the terminal is.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]


def read_size(text: str | None) -> tuple[int, int] | None:
    """``"1024"`` → (1024, 1024); ``"1024x768"`` → (1024, 768)."""
    if text is None:
        return None
    width, _, height = text.lower().replace("×", "x").partition("x")
    if not width.strip().isdecimal() or not (height or width).strip().isdecimal():
        raise SettingError(f"size={text!r} is not a size; give pixels such as 1024, or 1024x768.")
    size = int(width), int(height or width)
    if min(size) < 8:
        raise SettingError(f"size={text!r} is too small; give pixels such as 1024, or 1024x768.")
    return size


def read_names(text: str) -> list[str]:
    """``"toma,tomesd"`` → its parts; none at all is refused."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise SettingError(f"{text!r} names nothing; give names with commas between them.")
    return names


def read_ratios(text: str) -> list[float]:
    """``"0.25,0.5"`` → numbers, each a share of tokens from 0 up to (not including) 1."""
    return [check("ratio", ratio, Ratio) for ratio in _numbers("ratio", text, "0.25,0.5,0.75")]


def _numbers(name: str, text: str, example: str) -> list[float]:
    numbers = []
    for part in read_names(text):
        try:
            numbers.append(float(part))
        except ValueError as problem:
            raise SettingError(f"{name}={part!r} is not a number; give shares such as {example}.") from problem
    return numbers


def require_ratio(methods: Sequence[str], ratio: float | None) -> None:
    """Raise if a ratio was asked for that no method takes: some merge nothing, and ToDo has its own."""
    from tomadiff.methods.registry import FULL, RECOMMENDED, asked, named

    merging = [name for name in methods if name not in (FULL, RECOMMENDED)]
    if ratio and not merging:
        what = "In full, nothing merges" if FULL in methods else "What is recommended merges nothing"
        raise SettingError(f"{what}: leave the ratio {ratio:g} out, or name a method.")
    if ratio is not None and not any(named(name, ratio)[0].ratio == ratio for name in merging):
        asked(merging[0], ratio)


def read_budget(flops: float | None, speedup: float | None, ratio: float | None) -> Budget | None:
    """The budget, if one is given; it chooses the ratio, so both together are refused."""
    from tomadiff.cost.budget import Budget

    budget = Budget.of(flops, speedup)
    if budget is not None and ratio is not None:
        raise SettingError(f"Both --ratio {ratio:g} and {budget} were given; a budget chooses the ratio, so give one.")
    return budget


def read_forecast(tolerance: float | None) -> float:
    """A tolerance that is possible; 0 without one."""
    from tomadiff.steps.forecast import Forecast

    return 0.0 if tolerance is None else Forecast(tolerance).tolerance


def read_forecasts(text: str) -> tuple[float, ...]:
    """``"0,0.05"`` → tolerances; 0 forecasts nothing."""
    return tuple(map(read_forecast, _numbers("forecast", text, "0,0.05,0.1")))


def read_places(text: str) -> tuple[list[str], dict[str, str]]:
    """``"judge,clip=/models/clip"`` → the names, and where to take some of them from."""
    pairs = [name.partition("=") for name in read_names(text)]
    return [name for name, _, _ in pairs], {name: place for name, given, place in pairs if given}


def require_images(reference: Path | None) -> None:
    """Raise for a folder of reference images that is none."""
    if reference is not None and not reference.is_dir():
        raise SettingError(f"reference={str(reference)!r} is not a folder; give a folder of images.")


def read_networks(text: str | None) -> dict[str, Any] | None:
    """``"judge,clip=/models/clip"`` → how to open each; ``"none"`` → no network, ``None`` → all that can be had."""
    if text is None or text == "none":
        return None if text is None else {}
    from tomadiff.evaluation.metrics.networks import openers

    names, places = read_places(text)
    return dict(openers(names, places))
