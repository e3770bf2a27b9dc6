"""The paper's tables and figures as they are committed; ``python -m benchmarks.paper --prompts 15 --seeds 2``.

Does what ``tomadiff paper`` does, with both embedded pipelines, in `build/paper`; a killed run goes on. Then it writes
``docs/paper``: the page, its figures, and `paper.json` with the verdicts and the settings of every row and claim, so
that a test can say whether the code has changed since. ``--stored`` generates nothing: it writes the pages again, such
as after other networks have looked at the images.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from hashlib import sha1
from pathlib import Path

import typer
from PIL import Image

from benchmarks.candidates import digest
from tomadiff.cli.paper import paper
from tomadiff.evaluation.paper.claims import Check, Claim
from tomadiff.evaluation.paper.experiment import Experiment
from tomadiff.evaluation.paper.experiments import EXPERIMENTS, MERGE_SPEED
from tomadiff.evaluation.paper.outcomes import merging_claims
from tomadiff.evaluation.runs.images import read_image, save_image
from tomadiff.evaluation.runs.record import Run, note_of
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.timing import merge_speed

ROOT = Path(__file__).parents[1]
OUT, PAGE = ROOT / "build" / "paper", ROOT / "docs" / "paper"
COMMAND = "python -m benchmarks.paper --prompts 15 --seeds 2"
WIDEST = 1100  # of a figure, so that all of them together stay below 2 MB

Settings = dict[str, dict[str, str]]
"""By the number of a table: a digest of the settings of every row, and one of what every claim stands on."""


# ---------------------------------------------------------------------------------------------- settings
def settings() -> Settings:
    """What the code compares and claims now."""
    found = {str(one.table): dict(_of_images(one)) for one in EXPERIMENTS}
    return {**found, **{str(table): _merging(table) for table in MERGE_SPEED}}


def _of_images(experiment: Experiment) -> Iterator[tuple[str, str]]:
    yield "steps", str(experiment.steps or "the model's own")
    yield from ((f"row {one.label}", digest(one)) for one in experiment.variants)
    yield from ((f"claim: {one.text}", digest_of(one)) for one in experiment.claims)


def _merging(table: int) -> dict[str, str]:
    own = [Variant.named(name, ratio) for name in merge_speed.METHODS for ratio in merge_speed.RATIOS]
    claims = {f"claim: {words}": _hash(about) for words, about in merging_claims(table).items()}
    return {**{f"row {one.label}": digest(one) for one in own}, **claims}


def digest_of(claim: Claim) -> str:
    """Changes with the methods that a claim compares, and with its bounds."""
    return _hash([_plain(check) for check in claim.checks])


def _plain(check: Check) -> tuple[str, list[object]]:
    values = (getattr(check, field.name) for field in fields(check))  # type: ignore[arg-type]
    return type(check).__name__, [one.group if isinstance(one, Variant) else one for one in values]


def _hash(what: object) -> str:
    return sha1(repr(what).encode()).hexdigest()[:8]


def differences(held: Mapping[str, Mapping[str, str]], now: Settings | None = None) -> list[str]:
    """What the code has otherwise than committed tables have, one line each; empty where they are current."""
    current = settings() if now is None else now
    return [
        f"table {table}, {name}: {_change(held.get(table, {}).get(name), current.get(table, {}).get(name))}"
        for table in sorted({*held, *current}, key=int)
        for name in dict.fromkeys((*held.get(table, {}), *current.get(table, {})))
        if held.get(table, {}).get(name) != current.get(table, {}).get(name)
    ]


def _change(before: str | None, now: str | None) -> str:
    return "is new" if before is None else "is no more" if now is None else "has other settings"


# ---------------------------------------------------------------------------------------------- images of older code
def older(folder: Path) -> list[str]:
    """Runs with images whose settings, as the image itself says them, are not those that the code has now."""
    found = []
    for path in sorted(folder.glob("*/run.json")):
        run, wrong = Run(path.parent), dict[str, None]()
        for sample in run.samples().values():
            known = _known().get((sample.method, sample.ratio))
            note = note_of(run.image_path(sample.key))
            if known is not None and (note.get("settings"), note.get("schedule")) != known:
                wrong[f"{sample.method} {sample.ratio:.0%}"] = None
        found += [f"{run.folder}: {', '.join(wrong)}"] if wrong else []
    return found


@cache
def _known() -> dict[tuple[str, float], tuple[str, str]]:
    every = (one for experiment in EXPERIMENTS for one in experiment.variants if one.method is not None)
    return {one.group: (repr(one.method), repr(one.schedule)) for one in every}


# ---------------------------------------------------------------------------------------------- pages
def write(results: Path, page: Path, command: str, note: str = "") -> None:
    """``docs/paper`` out of the folder of ``tomadiff paper``."""
    held = json.loads((results / "paper.json").read_text(encoding="utf-8"))
    page.mkdir(parents=True, exist_ok=True)
    for old in page.glob("figure-*.png"):
        old.unlink()
    for path in sorted(results.glob("figure-*.png")):
        save_image(_reduced(read_image(path)), page / path.name, optimize=True)
    text = (results / "paper.md").read_text(encoding="utf-8")
    made_by = f"Everything on this page is made again, in hours, by `{command}`."
    (page / "index.md").write_text(f"{text}\n{' '.join(filter(None, (made_by, note)))}\n", encoding="utf-8")
    whole = json.dumps({"command": command, "settings": settings(), **held}, indent=1, ensure_ascii=False)
    (page / "paper.json").write_text(f"{whole}\n", encoding="utf-8")


def command_of(wanted: argparse.Namespace) -> str:
    """What makes the same again; where networks and images of reference are is a matter of the machine."""
    command = f"python -m benchmarks.paper --prompts {wanted.prompts} --seeds {wanted.seeds}"
    given = {name: getattr(wanted, name) for name in ("tables", "steps", "rounds", "model")}
    command += "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
    return command + (" --reference FOLDER" if wanted.reference else "")


def _reduced(image: Image.Image) -> Image.Image:
    image.thumbnail((WIDEST, WIDEST * 2), Image.Resampling.LANCZOS)
    # No more than 256 colours; k-means keeps those of gradients and of thin lines.
    return image.convert("RGB").quantize(method=Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=2, help="images of each prompt and row; 30 or more in all")
    parser.add_argument("--tables", help="numbers with commas between; default: all")
    parser.add_argument("--steps", type=int, help="of all tables; default: the model's own, in table 7 50")
    parser.add_argument("--rounds", type=int, help="of tables 4 and 5; default: 30")
    parser.add_argument("--networks", help="as in tomadiff paper; default: all that can be had")
    parser.add_argument("--reference", type=Path, help="a folder of images for FID")
    parser.add_argument("--model", "-m", help="instead of both embedded pipelines")
    parser.add_argument("--stored", action="store_true", help="generate nothing: write the pages again")
    parser.add_argument("--note", default="", help="what else readers must know, such as how busy the machine was")
    parser.add_argument("--out", type=Path, default=OUT, help="where images and times are kept")
    parser.add_argument("--page", type=Path, default=PAGE, help="folder of the pages")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Generate, measure and write; 1 if the folder holds images of other settings."""
    wanted = arguments(given)
    asked = {name: value for name, value in vars(wanted).items() if name not in ("page", "note")}
    if wrong := older(wanted.out):
        print("Images of other settings than the code has now; delete these runs:", *wrong, sep="\n")
        return 1
    try:
        paper(**asked)
    except typer.Exit as left:  # something failed, and the same command tries it again
        return left.exit_code
    write(wanted.out, wanted.page, command_of(wanted), wanted.note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
