"""``tomadiff web``: a local page to look at merging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tomadiff.cli import options

if TYPE_CHECKING:
    from tomadiff.web.session import Session


def web(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A folder saved by diffusers or a hub id, to offer before what is embedded."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Where to serve; default: the first free one from 7860.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Another address of this machine to serve at, for all who reach it.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Show the page in the browser.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: 1 for embedded models.")] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    allow_pickle: options.AllowPickle = False,
) -> None:
    """Open a local page: a prompt, a ratio, and the same image before and after merging.

    \b
    tomadiff web
    tomadiff web --port 8000 --no-browser
    tomadiff web --model ./my-pipeline
    tomadiff web --model owner/name --device cuda

    Only this machine can open the page, unless --host says otherwise, and it asks nobody for anything. Ctrl-C ends it.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.web.page import allowed_hosts, gradio, is_private, serve

    console = Console(soft_wrap=True)
    gradio()  # before models take their time to load
    allowed_hosts(host)
    if not is_private(host):
        warning = f"Whoever reaches {host} can open this page and use this machine; it has no password."
        console.print(warning, style="yellow", markup=False)
    session = _session(model or [], threads, (device, dtype, allow_pickle), console)
    blocks, address = serve(session, port, host, browser)
    console.print(f"The page is at [bold]{address}[/bold]; Ctrl-C ends it.")
    blocks.block_thread()


def _session(
    given: list[str], threads: int | None, how: tuple[str | None, str | None, bool], console: Console
) -> Session:
    import torch

    from tomadiff import embedded
    from tomadiff.evaluation.runs import models
    from tomadiff.web.session import Model, Session

    names = list(dict.fromkeys([*given, *(name for name in models.EMBEDDED if name in embedded.available())]))
    for name in names:
        models.require_model(name, how[2])
    if threads or not given:  # the embedded ones multiply small matrices, which threads slow down on a busy machine
        torch.set_num_threads(threads or 1)
    loaded = []
    for name in names:
        with console.status(f"Loading {name} …"):
            loaded.append(Model(name, models.load(name, *how)))
    return Session(loaded)
