"""The ``tomadiff`` command."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

import tomadiff
from tomadiff.evaluate.figures import MergeSample, merge_map, merge_sample
from tomadiff.evaluate.landscape import landscape

app = typer.Typer(help="Token merging for diffusion models.", no_args_is_help=True, add_completion=False)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tomadiff {tomadiff.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Token merging for diffusion models."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")] = False,
) -> None:
    """Print versions, devices and supported models, and test merging on a small UNet; exit code 1 if that fails."""
    from tomadiff.doctor import examine

    findings = examine()
    typer.echo(json.dumps(findings.as_json(), indent=2, ensure_ascii=False) if as_json else str(findings))
    if not findings.healthy:
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder the picture is written to.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Which landscape to draw.")] = 7,
    tile: Annotated[int, typer.Option(min=1, help="Side of the square regions, in tokens.")] = 4,
) -> None:
    """Merge the tokens of a landscape at three ratios and draw where they went."""
    torch.set_num_threads(1)  # a plan's products are small: threads gain little, and lose much on a busy machine
    picture = landscape(seed=seed)
    regions = tomadiff.Tiles(tile)
    samples = [merge_sample(picture, tomadiff.ToMA(ratio=ratio, regions=regions)) for ratio in (0.25, 0.5, 0.75)]
    path = out / "merge_map.png"
    out.mkdir(parents=True, exist_ok=True)
    merge_map(picture, samples).save(path, optimize=True)
    console = Console()
    console.print(_table(samples))
    console.print(f"The merge map is in [bold]{path}[/bold]")


def _table(samples: list[MergeSample]) -> Table:
    """What each ratio did to the tokens and to the picture."""
    table = Table(title=f"ToMA on a picture of {samples[0].grid} tokens", title_justify="left")
    for heading in ("merged", "tokens before", "after", "coverage", "picture", "plan, 1 thread"):
        table.add_column(heading, justify="right")
    for sample in samples:
        coverage = f"{sample.plan.coverage.mean().item():.4f}"
        sizes = (str(sample.grid.tokens), str(sample.kept))
        table.add_row(
            f"{sample.plan.realised_ratio:.0%}",
            *sizes,
            coverage,
            f"{sample.psnr:.1f} dB",
            f"{sample.milliseconds:.1f} ms",
        )
    return table


if __name__ == "__main__":
    main()
