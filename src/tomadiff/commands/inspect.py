"""``tomadiff inspect``: draws which tokens go where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def inspect(
    method: Annotated[
        list[str] | None, typer.Option(help="A method by name, or several; default: one of each kind.")
    ] = None,
    ratio: Annotated[float, typer.Option(help="Share of tokens removed.")] = 0.5,
    out: Annotated[Path, typer.Option(help="Folder the pictures are written to.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Which landscape to draw.")] = 7,
) -> None:
    """Draw what a method does to the tokens of a landscape: which stay, who joins whom, and what comes back.

    \b
    tomadiff inspect --method tomesd
    tomadiff inspect --method toma --method toma-stripe --ratio 0.75 --out pictures
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluate.landscape import landscape
    from tomadiff.evaluate.portraits import PORTRAYED, portrait
    from tomadiff.methods.catalogue import named

    names = method or PORTRAYED
    for name in names:
        named(name, ratio)  # a wrong name or ratio is told before anything is drawn
    picture = landscape(seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    for name in names:
        path = out / f"{name}.png"
        portrait(name, picture, ratio).quantize(colors=128).save(path, optimize=True)
        console.print(f"{name} is in [bold]{path}[/bold]", soft_wrap=True)
