"""``tomadiff report``: one page and one table out of run folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tomadiff.cli import options
from tomadiff.errors import SettingError
from tomadiff.utils.writing import require_output, write_whole

if TYPE_CHECKING:
    from tomadiff.evaluation.report.report import Figure, LoadedRun


Networks = Annotated[
    str | None,
    typer.Option(help="Let these look at the stored images first: lpips,dino,clip=/models/clip; default: nothing new."),
]


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs; the first is what the others are compared with.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; default: report.html in the first run's folder.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Token merging, before and after",
    images: Annotated[int, typer.Option(min=0, help="At most this many prompts of each run are shown.")] = 12,
    side: Annotated[int, typer.Option(min=16, help="Images are shown at most this many pixels wide and high.")] = 512,
    networks: Networks = None,
    reference: options.Reference = None,
    as_json: options.Json = False,
) -> None:
    """Make one page to look at (sliders, curves, tables) and one Markdown table out of runs.

    \b
    tomadiff report run
    tomadiff report monday tuesday --out compared.html
    tomadiff report run --images 40 --side 1024
    tomadiff report run --networks lpips,dino,clip

    The page is a single file that loads nothing: mail it, or open it anywhere. Nothing is generated.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.report.report import load_runs

    if out is not None:
        if out.suffix == ".md":
            raise SettingError(f"--out {out}: the table is written there; give the page a name such as report.html.")
        require_output(out, "--out", make_folder=True)
    _measure(runs, networks, reference)
    loaded = load_runs(runs)
    path = out or runs[0] / "report.html"
    table = write(loaded, path, title, images, side)
    if as_json:
        typer.echo(json.dumps(_as_json(loaded, path, table), indent=2))
        return
    Console(soft_wrap=True).print(f"The page is [bold]{path}[/bold], the table [bold]{table}[/bold]")


def _measure(folders: Sequence[Path], networks: str | None, reference: Path | None) -> None:
    """Let networks look at what runs have stored, where some were named."""
    from tomadiff.evaluation.metrics.measure import measure
    from tomadiff.evaluation.runs.record import Run

    options.require_images(reference)
    if networks is None:
        if reference is not None:
            raise SettingError("--reference alone measures nothing; name the networks as well: --networks inception.")
        return
    looks = options.read_networks(networks)
    for folder in folders:
        measure(Run(folder), networks=looks, reference_images=reference)


def write(
    loaded: Sequence[LoadedRun],
    path: Path,
    title: str,
    images: int = 12,
    side: int = 512,
    figures: Sequence[Figure] = (),
    remarks: Sequence[str] = (),
) -> Path:
    """Write the page, and the Markdown table next to it; the table's path."""
    from tomadiff.evaluation.report.page import page
    from tomadiff.evaluation.report.report import markdown

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(loaded, title, images, figures, side, remarks))
    table = path.with_suffix(".md")
    write_whole(table, markdown(loaded))
    return table


def _as_json(loaded: Sequence[LoadedRun], path: Path, table: Path) -> dict[str, Any]:
    runs = {one.name: json.loads(one.results.as_json()) for one in loaded}
    return {"page": str(path), "table": str(table), "runs": runs}
