"""One word per thing: those on the left below are not used, in code, comments, messages or pages.

Words of the list that ordinary sentences need as well (known, last, places, turn, tail) are renamed as identifiers, and
cannot be tested as words.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, PAGES = ("src/tomadiff",), ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")  # folders, or files

# Regular expressions, and what to say instead. "_" ends a word; capitals count where a word has some.
WORDS = {
    "pictur(e|es|ed)": "image",
    "draw(s|n|ing|ings|able)?|drew": "generate",
    "operations": "FLOPs",
    "peers?": "baselines",
    "ours": "default, or the method's name",
    "answer(s|ed|ing)?": "output",
    "carry|carries|carried|carrying|caught up": "cache",
    "pivoted": "pivoted_cholesky",
    "cautious": "proportional attention, damping",
    "spared|lenient|suited": "ratio_offset, start_without_total, for_num_steps",
    "Slots?|Planners?": "PlanGroup",
    "Moment|Tick|Dice|Sight|Kept": "StepContext, StepInfo, rng, inline, PlanRecord",
    "Scene|Home|Gates|Passage|Watch": "TokenLayout, PipelineRef, TokenReorder, RootHook",
    "pays|weighs|receipts": "profitable, uses_key_bias, keepalive",
    "survey|ledger|twin|rungs?|allotment": "discover, budget_search, meta_copy, RatioChoice, quota",
    "portraits?|portrayed": "method_figures",
    "rehears(e|es|ed|al|als)": "dry_run",
    "stamp(s|ed)?": "environment",
    "stopwatch": "timer",
    "crew|Told|Questions?": "ProcessGroup, LoadedRun, Task",
    "landscapes?": "synthetic_image",
    "studio|troubles?": "session, errors",
    "rooms?|houses?|doors?|voices?": "module, package, API",
    "own mind|hears at once|behind the back": "a plain sentence",
}

PILLOW = "ImageDraw of Pillow"
OPTION = "what --landscape shows; the option keeps its name"
# File and words in it, with the reason.
EXCEPTIONS = {
    "docs/adding/a_method.md": {"landscape": OPTION},
    "docs/guide/inspect.md": {"landscape": OPTION},
    "docs/method.md": {"carrying": "the name of a file of old results"},
    "docs/methods.md": {"landscape": OPTION},
    "src/tomadiff/cli/inspect.py": {"landscape": OPTION},
    "src/tomadiff/evaluation/inspect/method_figures.py": {"Draw": PILLOW},
    "src/tomadiff/evaluation/report/figures.py": {"Draw": PILLOW},
    "src/tomadiff/evaluation/report/plots.py": {"Draw": PILLOW},
    "src/tomadiff/evaluation/runs/flops.py": {"operations": "says once what FLOPs are"},
    "src/tomadiff/web/static/page.js": {"Home": "a key of keyboards"},
}


def pattern(word: str) -> re.Pattern[str]:
    """``word`` between characters that are no letters; capitals count if it has some."""
    return re.compile(rf"(?<![A-Za-z])({word})(?![A-Za-z])", 0 if word != word.lower() else re.IGNORECASE)


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word, and what to say instead."""
    for word, instead in WORDS.items():
        for match in pattern(word).finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0], instead


def files(parts: tuple[str, ...], *endings: str) -> list[Path]:
    paths = (path for part in parts for path in (ROOT / part, *sorted((ROOT / part).rglob("*"))))
    return [path for path in paths if path.suffix in endings]


FILES = files(PACKAGE, ".css", ".js", ".md", ".py") + files(PAGES, ".md")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_of_the_field(path: Path) -> None:
    allowed = EXCEPTIONS.get(str(path.relative_to(ROOT)), {})
    wrong = [
        f"line {line}: '{word}'; say {instead}"
        for line, word, instead in found(path.read_text(encoding="utf-8"))
        if word not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize(("name", "words"), EXCEPTIONS.items())
def test_exceptions_are_still_needed(name: str, words: dict[str, str]) -> None:
    there = {word for _, word, _ in found((ROOT / name).read_text(encoding="utf-8"))}
    assert set(words) <= there


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A picture is drawn.", ["picture", "drawn"]),
        ("def draw_curve(): _drawn", ["draw", "drawn"]),
        ("Two seconds of ours; hours of yours.", ["ours"]),
        ("a slot of a machine, a Slot of ours", ["Slot", "ours"]),
        ("An image is generated from the drawer.", []),
    ],
)
def test_the_checker(text: str, words: list[str]) -> None:
    assert sorted(word for _, word, _ in found(text)) == sorted(words)
