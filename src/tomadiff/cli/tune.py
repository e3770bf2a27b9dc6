"""``tomadiff tune``: find settings for a model within a budget of FLOPs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tomadiff.cli import options
from tomadiff.cli.tables import print_table
from tomadiff.errors import SettingError
from tomadiff.utils.writing import require_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomadiff.evaluation.tune.search import Finding

Flops = Annotated[float, typer.Option(help="Share of the full FLOPs to keep: 0.6 saves 40 %.")]
Images = Annotated[int, typer.Option(min=2, help="At most this many images per setting; the best see all of them.")]
Preset = Annotated[Path, typer.Option("--out", "-o", help="Where the preset goes.")]


def tune(
    model: options.Model,
    flops: Flops = 0.6,
    prompts: options.PromptFile = None,
    images: Images = 8,
    steps: options.Steps = None,
    size: options.Size = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    allow_pickle: options.AllowPickle = False,
    out: Preset = Path("preset.json"),
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Try merging, forecasts of steps by tolerance and in fixed patterns, and both; write the best as a preset.

    \b
    tomadiff tune -m emoji-sdxl --flops 0.6
    tomadiff tune -m ./my-pipeline --flops 0.5 --prompts prompts.txt --steps 20 --out mine.json

    Then: tomadiff.apply(pipe, preset="mine.json"). mine.png shows what was tried: FLOPs against distance.
    It may be killed at any moment: the same command goes on where it was.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.generate import call_of
    from tomadiff.evaluation.runs.images import save_image
    from tomadiff.evaluation.runs.journal import Journal
    from tomadiff.evaluation.runs.prompts import load_prompts
    from tomadiff.evaluation.tune.search import chart, preset_of, search

    console, figure = Console(stderr=as_json, soft_wrap=True), out.with_suffix(".png")
    if figure == out:
        raise SettingError(f"--out {out}: the chart is written there; give the preset a name such as preset.json.")
    for path in (out, figure):
        require_output(path, "--out")
    pairs = [(prompt, 0) for prompt in load_prompts(prompts or "emoji", limit=images)]
    pipe = models.load(model, device, dtype, allow_pickle)
    call = call_of(model, pipe, steps=steps, size=options.read_size(size))
    with console.status("Counting FLOPs") as status:
        journal = Journal(out, models.describe(model, pipe))
        found = search(pipe, call, pairs, flops, lambda doing: status.update(f"Generating: {doing}"), journal)
    preset_of(found[0], model, flops, call.get("num_inference_steps", 0)).save(out)
    save_image(chart(found, model), figure)
    journal.close()
    _tell(found, out, figure, as_json, wide)


def _tell(found: Sequence[Finding], out: Path, figure: Path, as_json: bool, wide: bool) -> None:
    if as_json:
        tried = [_plain(one) for one in found]
        typer.echo(json.dumps({"preset": str(out), "figure": str(figure), "tried": tried}, indent=2))
        return
    console = Console(soft_wrap=True)
    _show(console, found, wide)
    console.print(f"Wrote {out}; use it with tomadiff.apply(pipe, preset={str(out)!r}).", markup=False)
    console.print(f"What was tried: {figure}", markup=False)


def _plain(one: Finding) -> dict[str, float | str]:
    return {"settings": one.candidate.name, "cost": one.cost, "psnr": one.psnr, "images": one.images}


def _show(console: Console, found: Sequence[Finding], wide: bool, most: int = 12) -> None:
    rows = [(one.candidate.name, f"{one.cost:.1%}", f"{one.psnr:.1f} dB", str(one.images)) for one in found[:most]]
    headings = ("settings", "FLOPs", "PSNR", "images")
    print_table(console, headings, rows, "Nearest to the full images first", wide=wide)
