"""Pages are written in short sentences: code, tables, headings and images aside."""

import re
from itertools import groupby
from pathlib import Path
from statistics import median, quantiles

import pytest

from tests.test_words import PAGES, ROOT, files

MEDIAN, P90 = 18, 32  # words of a sentence, at most

_ASIDE = re.compile(r"\s*(\||#|!\[|<)")  # tables, headings, images, HTML
_ITEM = re.compile(r"^\s*([-*]|\d+\.) ")
_END = re.compile(r"[.!?]['\"”)*_]*\s+(?=[^a-z\s])")


def paragraphs(page: str) -> list[str]:
    """Paragraphs and items of lists, each on one line."""
    text = re.sub(r"^\s*```.*?^\s*```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines = ["" if _ASIDE.match(line) else _ITEM.sub("\n", line) for line in text.splitlines()]
    parts = groupby("\n".join(lines).splitlines(), key=lambda line: bool(line.strip()))
    return [" ".join(group) for full, group in parts if full]


def sentences(page: str) -> list[str]:
    """The sentences of a page; a piece of code counts as one word, a link as its text."""
    found = []
    for paragraph in paragraphs(page):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "Code", paragraph))
        found += [sentence.strip() for sentence in _END.split(plain) if sentence.strip()]
    return found


def words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


@pytest.mark.parametrize("path", files(PAGES, ".md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_are_short(path: Path) -> None:
    found = sentences(path.read_text(encoding="utf-8"))
    counts = [words(sentence) for sentence in found]
    longest = max(found, key=words)
    assert median(counts) <= MEDIAN, longest
    assert quantiles(counts, n=10, method="inclusive")[-1] <= P90, longest


def test_what_a_sentence_is() -> None:
    page = """# A heading. Of two.

One, `a b c` and [a link](b.md) two
three. Four!

| a table. | of. |

```sh
no sentence. at all.
```

- First 1.5 × item.
  It goes on - to 200. And
- **Second.** Item.
"""
    expected = [
        "One, Code and a link two three",
        "Four!",
        "First 1.5 × item",
        "It goes on - to 200",
        "And",
        "**Second",
        "Item.",
    ]
    assert sentences(page) == expected
    assert [words(sentence) for sentence in expected] == [7, 1, 3, 5, 1, 1, 1]
