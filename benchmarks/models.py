"""The table of supported models in ``docs/guide/pipelines.md``; ``python -m benchmarks.models`` writes it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.flops import put_between_marks
from tomadiff.cli.models import markdown

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "pipelines.md"
BEGIN, END = "<!-- models: written by python -m benchmarks.models -->", "<!-- models: end -->"


def main() -> None:
    """Write the table."""
    put_between_marks(PAGE, markdown(), BEGIN, END)


if __name__ == "__main__":
    main()
