"""Errors that are the user's to solve: one red line, an exit code, a traceback only on request."""

import errno

import pytest
import typer
from typer.testing import CliRunner

from tomadiff.cli.errors import Commands
from tomadiff.errors import SettingError, TomaError


def failing(problem: BaseException) -> typer.Typer:
    app = typer.Typer(cls=Commands)

    @app.callback()
    def options(debug: bool = typer.Option(False, "--debug", envvar="TOMADIFF_DEBUG")) -> None: ...

    @app.command()
    def fail() -> None:
        raise problem

    return app


@pytest.mark.parametrize(
    ("problem", "code", "line"),
    [
        (TomaError("It [broke],\n  at length."), 1, "It [broke], at length."),
        (SettingError("No such thing."), 2, "No such thing."),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "The disk is full. What was finished is kept"),
        (PermissionError(errno.EACCES, "Permission denied", "/there"), 1, "/there: Permission denied."),
        (MemoryError(), 1, "Out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20 GiB"), 1, "Out of memory; try a smaller --batch"),
        (KeyboardInterrupt(), 130, "Stopped. What was finished is kept"),
    ],
)
def test_a_foreseen_error_is_one_line(problem: BaseException, code: int, line: str) -> None:
    result = CliRunner().invoke(failing(problem), ["fail"])
    assert result.exit_code == code
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(("arguments", "environment"), [(["--debug"], {}), ([], {"TOMADIFF_DEBUG": "1"})])
def test_on_request_the_traceback_is_shown(arguments: list[str], environment: dict[str, str]) -> None:
    problem = TomaError("It broke.")
    result = CliRunner().invoke(failing(problem), [*arguments, "fail"], env=environment)
    assert result.exception is problem


def test_an_error_that_nobody_foresaw_is_not_hidden() -> None:
    problem = RuntimeError("shapes do not fit")
    assert CliRunner().invoke(failing(problem), ["fail"]).exception is problem
