"""Every error that is the user's to solve is one red line on stderr and an exit code, in one place for all commands.

=====  ==========================================================
 code  meaning
=====  ==========================================================
    0  done
    1  something went wrong on the way; what was finished is kept
    2  what was asked is not possible
  130  stopped with Ctrl-C
=====  ==========================================================
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from tomadiff.errors import SettingError, TomaError

if TYPE_CHECKING:
    from tomadiff.evaluation.runs.failures import Failures

_AGAIN = "What was finished is kept: the same command goes on from there."


class Commands(TyperGroup):
    """A group of commands whose errors are told in one line, and whose flags are shown without a type."""

    def get_params(self, ctx: Any) -> Any:
        """Options before a command."""
        return _plain_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _plain_flags(command.get_params(ctx))
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command; see the table above for what comes out of its errors."""
        try:
            return super().invoke(ctx)
        except (TomaError, OSError, MemoryError, RuntimeError, KeyboardInterrupt) as problem:
            told = line_of(problem)
            if told is None or _debugging(ctx):
                raise
            complain(told)
            raise typer.Exit(code_of(problem)) from problem


def _plain_flags(options: list[Any]) -> list[Any]:
    """``--json <bool>`` would look as if a value came behind it."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


def complain(line: str) -> None:
    """One red line on stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(line, style="red", markup=False)


def warn(line: str) -> None:
    """One yellow line on stderr, if there is something to say; the command goes on."""
    if line:
        Console(stderr=True, soft_wrap=True, highlight=False).print(line, style="yellow", markup=False)


def exit_if_failed(failures: Failures) -> None:
    """After everything else was written: say that some rows are incomplete."""
    if failures:
        complain(f"Failed: {len(failures.lines)}, the first: {failures.lines[0]}. The same command tries them again.")
        raise typer.Exit(1)


def line_of(problem: BaseException) -> str | None:
    """What to tell the user; ``None`` for an error that nobody foresaw, whose traceback we want to see."""
    if isinstance(problem, KeyboardInterrupt):
        return f"Stopped. {_AGAIN}"
    if isinstance(problem, TomaError):
        return " ".join(str(problem).split())
    if isinstance(problem, OSError):
        return _of_system(problem)
    if isinstance(problem, MemoryError) or "out of memory" in str(problem).lower():
        return f"Out of memory; try a smaller --batch or --size, or --dtype float16 on a GPU. {_AGAIN}"
    return None


def _of_system(problem: OSError) -> str | None:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full. {_AGAIN}"
    if problem.errno == errno.EPIPE or problem.filename is None:  # click closes broken pipes silently
        return None
    return f"{problem.filename}: {problem.strerror or problem}."


def code_of(problem: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(problem, KeyboardInterrupt):
        return 130
    return 2 if isinstance(problem, SettingError) else 1


def _debugging(ctx: Any) -> bool:
    return bool(ctx.params.get("debug"))
