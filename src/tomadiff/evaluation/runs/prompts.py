"""Prompts from files as people publish them, or from the list that ships with the package.

====================  =========================================================================================
``emoji``             the embedded list: "a fox on a blue background", for the embedded pipelines
``*.txt``             one prompt per line; ImageNet lists ("n01440764 tench, Tinca tinca") become "a photo of a tench"
``*.csv``, ``*.tsv``  a heading with a column named prompt (PartiPrompts, GEMRec); other columns are read where known
``*.json``            a list of prompts or of records with a prompt, or ImageNet's ``{"0": ["n01440764", "tench"]}``
====================  =========================================================================================

A list of bare class names, one per line, looks like a list of prompts: give ``template="a photo of a {}"`` with it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

from tomadiff import embedded
from tomadiff.errors import SettingError, TomaError
from tomadiff.utils.reading import TEXT, parse_json, read_text

PHOTO = "a photo of a {}"
ABOUT = ("category", "challenge", "tag")  # columns worth keeping: results can be split by them

# What the embedded pipelines have learnt to generate (training/objects.py).
OBJECTS = (
    "fox", "strawberry", "panda", "hamburger", "frog", "donut", "owl", "watermelon", "pig", "avocado", "penguin",
    "mushroom",
)  # fmt: skip
COLOURS = ("blue", "yellow", "green", "red", "purple", "orange", "pink", "white")


class PromptError(TomaError, ValueError):
    """A file of prompts cannot be read; the message names the file and the line."""


@dataclass(frozen=True)
class Prompt:
    """What to generate.

    Attributes:
        text: the prompt.
        negative: what to keep out, where the file says so.
        about: other columns of the file, such as ``{"category": "Animals"}``.
    """

    text: str
    negative: str = ""
    about: Mapping[str, str] = field(default_factory=dict)


def load_prompts(source: str | Path, limit: int | None = None, template: str | None = None) -> list[Prompt]:
    """The prompts of a file, or of the embedded list ("emoji"), each once and in order.

    Args:
        source: "emoji", or the path of a .txt, .csv, .tsv or .json file.
        limit: at most this many, the first ones.
        template: put each entry into this text, such as "a photo of a {}" for a list of class names.
    """
    if template is not None and "{}" not in template:
        raise SettingError(f"template={template!r} has no place for the prompt; write {{}} there: {PHOTO!r}.")
    found = emoji_prompts() if str(source) == "emoji" else read_prompts(Path(source))
    if template is not None:
        found = [replace(prompt, text=template.replace("{}", _bare(prompt.text))) for prompt in found]
    unique: dict[tuple[str, str], Prompt] = {}
    for prompt in found:  # a sample is known by what was asked: a second one would overwrite it
        unique.setdefault((prompt.text, prompt.negative), prompt)
    return list(unique.values())[:limit]


def emoji_prompts() -> list[Prompt]:
    """Every object on every colour, neighbours on different colours."""
    return [
        Prompt(emoji_prompt(name, COLOURS[(place + turn) % len(COLOURS)]), about={"tag": name})
        for turn in range(len(COLOURS))
        for place, name in enumerate(OBJECTS)
    ]


def unknown_objects(model: str, texts: Iterable[str]) -> str:
    """What to say where an embedded pipeline is asked for what it never saw; empty where all is well."""
    if embedded.base(model) not in embedded.NAMES:
        return ""
    strange = [text for text in texts if not any(name in text.lower() for name in OBJECTS)]
    if not strange:
        return ""
    return f"{model} knows twelve objects, and {strange[0]!r} names none of them: {', '.join(OBJECTS)}."


def emoji_prompt(name: str, colour: str) -> str:
    """'a fox on a blue background'."""
    return f"{_article(name)} {name} on {_article(colour)} {colour} background"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" and not word.startswith("uni") else "a"


# ---------------------------------------------------------------------------------------------- files
def read_prompts(path: Path) -> list[Prompt]:
    """Every prompt of a file, by its ending; raises :class:`PromptError` with the line that is wrong."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise PromptError(f"{path}: prompts are read from {', '.join(READERS)} files; rename it if it is one of these.")
    found = list(reader(read_text(path, PromptError), path))
    if not found:
        raise PromptError(f"{path}: holds no prompt; write one on each line.")
    return found


def _from_lines(text: str, path: Path) -> Iterator[Prompt]:
    del path
    for line in text.split("\n"):  # not splitlines(): a prompt may hold other separators
        if line.strip():
            name = _class_name(line.strip())
            yield Prompt(PHOTO.format(name) if name else line.strip())


def _class_name(line: str) -> str | None:
    """The class on a line of a published ImageNet list, its first synonym; None for an ordinary prompt."""
    # "n01440764 tench, Tinca tinca", "n02119789 1 kit_fox", and "0: 'tench, Tinca tinca'," of a printed dict
    found = re.fullmatch(r"n\d{8}\s+(?:\d+\s+)?(\S.*)", line) or re.fullmatch(r"\{?\s*\d+:\s*['\"](.+)['\"][,}]*", line)
    return found[1].split(",")[0].replace("_", " ").strip() if found else None


def _from_commas(text: str, path: Path) -> Iterator[Prompt]:
    return _from_table(csv.reader(StringIO(text, newline=""), strict=True), path)


def _from_tabs(text: str, path: Path) -> Iterator[Prompt]:
    # PartiPrompts' quotation marks are part of its prompts, not of the format.
    return _from_table(csv.reader(StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE), path)


def _from_table(rows: Any, path: Path) -> Iterator[Prompt]:
    """Prompts of a ``csv.reader`` whose first row names the columns."""
    heading: list[str] = []
    for row in _rows(rows, path):
        if not any(cell.strip() for cell in row):
            continue
        if heading:
            yield _from_row(heading, row, f"{path}, line {rows.line_num}")
        else:
            heading = _heading(row, path)


def _rows(rows: Any, path: Path) -> Iterator[list[str]]:
    try:
        yield from rows
    except csv.Error as problem:
        raise PromptError(f"{path}, line {rows.line_num}: is not a row of a table: {problem}.") from problem


def _heading(row: list[str], path: Path) -> list[str]:
    names = [re.sub(r"[^a-z]", "", cell.lower()) for cell in row]
    if "prompt" not in names:
        given = ", ".join(repr(cell) for cell in row[:8])
        raise PromptError(f"{path}, line 1: no column is named prompt; the columns are {given}.")
    return names


def _from_row(heading: list[str], row: list[str], where: str) -> Prompt:
    if len(row) != len(heading):
        raise PromptError(f"{where}: has {len(row)} columns where the heading has {len(heading)}.")
    return _record(dict(zip(heading, row, strict=True)), where)


def _record(cells: Mapping[str, Any], where: str) -> Prompt:
    text = cells.get("prompt")
    if not isinstance(text, str) or not TEXT.fits(text) or not text.strip():
        raise PromptError(f"{where}: the prompt is {'missing' if text is None else 'empty or not text'}.")
    negative = cells.get("negativeprompt") or cells.get("negative") or ""
    if not TEXT.fits(negative):
        raise PromptError(f"{where}: the negative prompt is not text.")
    about = {name: str(cells[name]).strip() for name in ABOUT if cells.get(name)}
    return Prompt(text.strip(), str(negative).strip(), about)


def _from_json(text: str, path: Path) -> Iterator[Prompt]:
    held = parse_json(text, path, PromptError) if text.strip() else []
    if isinstance(held, dict):
        return _from_index(held, path)
    if isinstance(held, list):
        return _from_entries(held, path)
    raise PromptError(f"{path}, line 1: holds neither a list of prompts nor ImageNet's index of classes.")


def _from_index(held: Mapping[str, Any], path: Path) -> Iterator[Prompt]:
    """ImageNet's ``{"0": ["n01440764", "tench"]}``, or ``{"0": "tench"}``."""
    for number, entry in held.items():
        name = entry[-1] if isinstance(entry, list) and entry else entry
        if not isinstance(name, str) or not TEXT.fits(name) or not name.strip():
            raise PromptError(f'{path}, entry {number!r}: is not a class such as ["n01440764", "tench"].')
        yield Prompt(PHOTO.format(name.split(",")[0].replace("_", " ").strip()))


def _from_entries(held: Iterable[Any], path: Path) -> Iterator[Prompt]:
    for number, entry in enumerate(held, start=1):
        cells = {"prompt": entry} if isinstance(entry, str) else entry
        if not isinstance(cells, dict):
            raise PromptError(f"{path}, entry {number}: is neither a prompt nor a record with one.")
        names = {re.sub(r"[^a-z]", "", str(name).lower()): value for name, value in cells.items()}
        yield _record(names, f"{path}, entry {number}")


def _bare(text: str) -> str:
    """The class name again, where a published list was recognised and someone wants another template."""
    return text.removeprefix(PHOTO.format(""))


READERS: Mapping[str, Callable[[str, Path], Iterator[Prompt]]] = {
    ".txt": _from_lines,
    ".csv": _from_commas,
    ".tsv": _from_tabs,
    ".json": _from_json,
}
