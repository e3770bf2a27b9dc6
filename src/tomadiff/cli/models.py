"""``tomadiff models``: what tokens can merge in, for people and for machines."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Annotated, Any

import typer


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")] = False,
) -> None:
    """List the supported models and pipelines: what merges, what stays unmerged, and what cannot profit and why."""
    typer.echo(json.dumps(listed(), indent=2, ensure_ascii=False) if as_json else text())


def listed() -> dict[str, Any]:
    """Every family, and every model that is known and cannot merge."""
    from tomadiff.families.registry import CANNOT_PROFIT, NEVER_MERGED, supported

    return {
        "supported": [
            {
                "family": family.title,
                "classes": list(family.models),
                "pipelines": list(family.pipelines),
                "merges": family.merges,
                "stays": family.note,
            }
            for family in supported()
        ],
        "never_merged": NEVER_MERGED,
        "cannot_profit": CANNOT_PROFIT,
    }


def text() -> str:
    """The list as paragraphs."""
    found = listed()
    lines = []
    for family in found["supported"]:
        lines += [family["family"], f"  classes    {', '.join(family['classes'])}"]
        lines += [f"  pipelines  {', '.join(family['pipelines'])}", f"  merges     {family['merges']}"]
        lines += [f"  unmerged   {family['stays']}", ""] if family["stays"] else [""]
    lines += [found["never_merged"], ""]
    return "\n".join([*lines, "Cannot profit", *(f"  {name}: {why}" for name, why in found["cannot_profit"].items())])


def markdown() -> str:
    """The tables of the guide: what merges, and what cannot profit."""
    found = listed()
    lines = ["| family | classes and pipelines | what merges | what does not |", "| --- | --- | --- | --- |"]
    for family in found["supported"]:
        classes, pipelines = (", ".join(f"`{name}`" for name in family[key]) for key in ("classes", "pipelines"))
        about = family["merges"], family["stays"] or "–"
        lines.append(f"| {family['family']} | {classes}: {pipelines} | {about[0]} | {about[1]} |")
    lines += ["", found["never_merged"], "", "| raises | why |", "| --- | --- |"]
    for why, refused in groupby(found["cannot_profit"].items(), key=lambda one: one[1]):
        lines.append(f"| {', '.join(f'`{name}`' for name, _ in refused)} | {why} |")
    return "\n".join(lines)
