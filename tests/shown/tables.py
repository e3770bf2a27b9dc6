"""How commands of the pages are run here: what stands in for what, what is made smaller, and what is not run and why.

Patterns are those of a shell. The first that fits a command counts, so the special ones come first.
"""

from __future__ import annotations

import shlex
from fnmatch import fnmatchcase
from typing import NamedTuple

# Words of a command, and what stands for them. {tiny} is a folder with a tiny pipeline, {folder} one for files.
STAND_INS = {
    "owner/name": "{tiny}",
    "your-model": "{tiny}",
    "./my-pipeline": "{tiny}",
    "{MODEL}": "emoji-sdxl",
    "{DEVICE}": "cpu",
    "cuda": "cpu",
    "float16": "float32",
    "NAME": "tomesd",
    "your-name": "toma",
    "192.168.1.5": "127.0.0.2",
}

# What a command lacks where a page shows a part of it.
COMPLETED = {
    "tomadiff generate": {"-m": "emoji-sdxl", "-p": "a fox"},
    "tomadiff eval": {"-m": "emoji-sdxl"},
    "tomadiff tune": {"-m": "emoji-sdxl"},
}

SMALL = "--steps 2 --size 64"
# Options that come behind a command's own and make it smaller: of two equal options the last one counts.
SMALLER = {
    "tomadiff * --help *": "",
    "tomadiff generate *--forecast*": "--steps 8 --size 64",
    "tomadiff generate *--flops*": "-m {tiny} --steps 8 --size 64",
    "tomadiff generate *": SMALL,
    "tomadiff demo *": "--prompt 'a fox' --steps 2",
    "tomadiff bench *--arch*": "--size 64 --depth 1 --ratios 0.5 --rounds 1",
    "tomadiff bench *": f"-m {{tiny}} {SMALL} --ratios 0.5 --rounds 1",
    "tomadiff eval *": f"{SMALL} --ratios 0.5 --limit 1 --seeds 1 --networks none",
    "tomadiff inspect *--landscape*": "",
    "tomadiff inspect *": f"-m {{tiny}} {SMALL}",
    "tomadiff tune *": "--images 2 --steps 4 --size 64",
    "tomadiff report *--networks*": "--networks judge",
    "tomadiff paper *--stored*": "--tables 6 --networks none",
    "tomadiff paper *--tables 4,5*": "--rounds 1",
    "tomadiff paper *": f"-m {{tiny}} {SMALL} --tables 6 --prompts 1 --seeds 1 --networks none",
    "tomadiff *": "",
    "python -m benchmarks.speed *": "--cases sdxl:64:1 --methods toma --rounds 1",
    "python -m benchmarks.speed_counted *": "--cases sdxl:64:1 --processes 1 --out {folder}/counted.csv",
    "python -m benchmarks.pseudo_inverse *": "--plans 1",
    "python -m benchmarks.kernels *": "--dtypes fp16 --architectures 80",
    "python -m benchmarks.fidelity emoji*": "--pairs 1 --steps 2 --only '^toma' --results {folder}",
    "python -m benchmarks.fidelity *": "emoji-sdxl defaults --pairs 1 --steps 2 --results {folder}",
    "python -m benchmarks.paper *": "-m {tiny} --tables 6 --prompts 1 --seeds 1 --steps 2 --networks none "
    "--reference docs/images --out {folder}/out --page {folder}/page",
    "python -m benchmarks.forecasts *": "--pairs 1 --steps 4 --results {folder}",
    "python -m benchmarks.sizes *": "emoji-sdxl --sizes 64 --pairs 1 --steps 2 --results {folder}",
    "python -m benchmarks.guidance *": "--pairs 2 --steps 2 --scales 3 --results {folder}",
    "python -m tests.fuzz *": "--runs 1 --log {folder}/fuzz.jsonl",
    "python -m tests.web.hostile *": "--requests 15",
    "python *": "",
    "make results *": "",
    "make format *": "",
    "export TOMADIFF_CALIBRATION=mine.json *": "",
}


class Elsewhere(NamedTuple):
    """Where a command is run, if not here."""

    reason: str
    proof: str = ""  # a test "file::name", or a file that runs the command


GPU = "needs a GPU"
HUB = "needs the hub"
LONG = "takes long, and runs once a week"
HOURS = "takes many hours"
INSTALLS = "changes the environment"
CI = "is what CI runs"
WEEKLY = ".github/workflows/weekly.yml"

NOT_HERE = {
    "tomadiff doctor --gpu *": Elsewhere(GPU, "tests/test_doctor.py::test_a_gpu_is_measured_as_one_block_of_markdown"),
    "tomadiff paper --arch *": Elsewhere(
        "is a test", "tests/cli/test_paper.py::test_an_architecture_is_timed_and_its_images_are_not"
    ),
    "python -m examples.own_loop *": Elsewhere("is a test", "tests/test_examples.py::test_examples_run"),
    "python -m examples.* --tiny *": Elsewhere("is a test", "tests/test_examples.py::test_examples_run"),
    "python -m examples.* *": Elsewhere(GPU),
    "accelerate launch *": Elsewhere("is a test", "tests/cli/test_commands.py::test_two_processes_give_what_one_gives"),
    "TRITON_INTERPRET=1 python -m pytest tests/kernels/interpreted *": Elsewhere(
        "is a test", "tests/kernels/test_interpreted.py::test_kernels_equal_their_definitions"
    ),
    "TOMADIFF_SCREENSHOT=* python -m pytest tests/browser/test_web.py -k screenshot *": Elsewhere(
        "is a test", "tests/browser/test_web.py::test_the_page_sits_for_its_screenshot"
    ),
    "HYPOTHESIS_PROFILE=explore make test *": Elsewhere(LONG, WEEKLY),
    "make demo *": Elsewhere(
        "is `tomadiff demo`", "tests/browser/test_demo.py::test_it_opens_quietly_and_all_images_load"
    ),
    "make bench *": Elsewhere(LONG, WEEKLY),
    "make bench-full *": Elsewhere(HOURS),
    "python -m benchmarks.compiled *": Elsewhere(LONG, WEEKLY),
    "python -m benchmarks.speed_guard *": Elsewhere(LONG, WEEKLY),
    "python -m benchmarks.choices *": Elsewhere(LONG, WEEKLY),
    "python -m benchmarks.flops *": Elsewhere(LONG, WEEKLY),
    "python -m benchmarks.predictions *": Elsewhere(LONG, WEEKLY),
    "python -m benchmarks.speed_report *": Elsewhere(
        "is a test", "tests/benchmarks/test_speed.py::test_the_report_is_written_where_it_belongs"
    ),
    "python -m training.reference *": Elsewhere("fetches the emoji with npm, once a week", WEEKLY),
    "make test *": Elsewhere(CI, ".ci/run"),
    "make lint *": Elsewhere(CI, ".ci/run"),
    ".ci/run *": Elsewhere(CI, ".github/workflows/ci.yml"),
    "make everything *": Elsewhere(CI, ".github/workflows/ci.yml"),
    "make oldest *": Elsewhere(CI, ".github/workflows/ci.yml"),
    "make newest *": Elsewhere(CI, ".github/workflows/ci.yml"),
    "make comfy *": Elsewhere(CI, ".github/workflows/ci.yml"),
    "make docs *": Elsewhere(CI, ".github/workflows/docs.yml"),
    "pip install *": Elsewhere(INSTALLS, ".github/workflows/release.yml"),
    "python -m pre_commit install *": Elsewhere(INSTALLS),
    "cd ComfyUI/custom_nodes *": Elsewhere(INSTALLS),
    "git clone *": Elsewhere(INSTALLS),
    "ln -s *": Elsewhere(INSTALLS),
    "ssh *": Elsewhere("needs another machine"),
}


def matching(command: str, table: dict[str, object]) -> str | None:
    """The first pattern of a table that fits; a space at the end stands for whatever follows."""
    return next((pattern for pattern in table if fnmatchcase(f"{command} ", pattern)), None)


def here(words: list[str], places: dict[str, str]) -> list[str] | None:
    """The words of a command as it is run here, or ``None`` where no table says how."""
    command = shlex.join(words).replace("'", "")
    fitting = matching(command, dict(SMALLER))
    if fitting is None:
        return None
    swapped = [STAND_INS.get(word, word) for word in [*words, *_lacking(words), *shlex.split(SMALLER[fitting])]]
    for name, path in places.items():
        swapped = [word.replace(f"{{{name}}}", path) for word in swapped]
    return swapped


def _lacking(words: list[str]) -> list[str]:
    own = COMPLETED.get(" ".join(words[:2]), {}) if "--help" not in words else {}
    return [part for option, value in own.items() if option not in words for part in (option, value)]
