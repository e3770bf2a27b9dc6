"""The ``tomadiff`` command."""

import json
from typing import Annotated

import typer

import tomadiff
from tomadiff.cli.bench import bench
from tomadiff.cli.calibrate import calibrate
from tomadiff.cli.demo import demo
from tomadiff.cli.errors import Commands
from tomadiff.cli.eval import evaluate
from tomadiff.cli.generate import generate
from tomadiff.cli.inspect import inspect
from tomadiff.cli.models import models
from tomadiff.cli.options import Device
from tomadiff.cli.paper import paper
from tomadiff.cli.report import report
from tomadiff.cli.tune import tune
from tomadiff.cli.web import web
from tomadiff.utils.memory import keep_memory

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)
app.command("demo")(demo)
app.command("generate")(generate)
app.command("bench")(bench)
app.command("eval")(evaluate)
app.command("report")(report)
app.command("inspect")(inspect)
app.command("tune")(tune)
app.command("web")(web)
app.command("paper")(paper)
app.command("calibrate")(calibrate)
app.command("models")(models)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    keep_memory()
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
    debug: Annotated[
        bool, typer.Option("--debug", envvar="TOMADIFF_DEBUG", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Diffusion pipelines generate the same image sooner: forecast steps, merged tokens."""
    del version, debug  # read by the callback, and where errors are told


@app.command()
def doctor(
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Measure the GPU too, in about three minutes: a block to paste into an issue.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="With --gpu: time images of this model, not steps of SDXL."),
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")] = False,
) -> None:
    """Print versions, devices and supported models, and test merging on a small UNet; exit code 1 if that fails."""
    from tomadiff.cli.doctor import examine

    if gpu:
        _measure_gpu(model, device)
        return
    findings = examine()
    typer.echo(json.dumps(findings.as_json(), indent=2, ensure_ascii=False) if as_json else str(findings))
    if not findings.healthy:
        raise typer.Exit(1)


def _measure_gpu(model: str | None, device: str | None) -> None:
    from tomadiff.cli.doctor import examine
    from tomadiff.evaluation.timing.gpu import measured, place_of

    place = place_of(device)  # before the self-test takes its time
    findings = examine()
    failed = "; ".join(str(check) for check in findings.checks if not check.passed)
    typer.echo(measured(findings.rows() | {"self-test": failed or "all passed"}, model, place))


if __name__ == "__main__":
    main()
