"""What writes the committed tables of the paper, and what tells that they are older than the code."""

import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.paper import differences, digest_of, main, older, settings, write
from tests.evaluation.synthetic_runs import painted_run
from tomadiff.evaluation.paper.claims import Better, Claim
from tomadiff.evaluation.runs.record import Sample
from tomadiff.evaluation.runs.variants import Variant


def test_settings_that_changed_are_told_by_table_and_row() -> None:
    held = settings()
    assert differences(held) == []
    row = next(name for name in held["7"] if "paper-every-10" in name)
    changed = {**held, "7": {**held["7"], row: "00000000", "row gone": "1"}}
    del changed["4"]
    told = differences(changed)
    assert f"table 7, {row}: has other settings" in told
    assert "table 7, row gone: is no more" in told
    assert any(line.startswith("table 4, row paper-tile 50%: is new") for line in told)
    assert len(told) == 2 + len(held["4"])


def test_a_claim_changes_with_what_it_stands_on() -> None:
    one, other = Variant.named("toma", 0.5), Variant.named("toma", 0.75)
    assert digest_of(Claim("so", (Better(one, other, "mse"),))) != digest_of(Claim("so", (Better(other, one, "mse"),)))
    assert digest_of(Claim("so", (Better(one, other, "mse"),))) == digest_of(Claim("or", (Better(one, other, "mse"),)))


def test_images_of_other_settings_are_told(tmp_path: Path) -> None:
    run, variant = painted_run(tmp_path / "run", ["a lake"], size=24), Variant.named("paper-whole", 0.5)
    assert older(tmp_path) == []  # whatever it is, no row of the paper
    notes = {"settings": repr(variant.method), "schedule": repr(variant.schedule)}
    run.add(Sample(*variant.group, "a lake", 0), Image.new("RGB", (24, 24)), notes)
    assert older(tmp_path) == []
    run.add(Sample(*variant.group, "a sea", 0), Image.new("RGB", (24, 24)), {**notes, "schedule": "another"})
    assert older(tmp_path) == [f"{run.folder}: paper-whole 50%"]
    assert main(["--out", str(tmp_path), "--page", str(tmp_path / "page")]) == 1
    assert not (tmp_path / "page").exists()


def test_the_pages_are_written(tmp_path: Path) -> None:
    out, page = tmp_path / "results", tmp_path / "page"
    asked = ["--tables", "5", "--rounds", "1", "--out", str(out), "--page", str(page)]
    assert main(asked) == 0
    held = json.loads((page / "paper.json").read_text(encoding="utf-8"))
    assert differences(held["settings"]) == []
    assert [table["table"] for table in held["tables"]] == [5]
    assert held["command"] in (page / "index.md").read_text(encoding="utf-8")
    assert "as fast as ToMeSD" in (page / "index.md").read_text(encoding="utf-8")
    before = (page / "index.md").read_text(encoding="utf-8")
    assert main([*asked, "--stored"]) == 0  # of the times that are there
    assert (page / "index.md").read_text(encoding="utf-8") == before


def test_figures_are_small_and_old_ones_go(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page"
    for folder in (results, page):
        folder.mkdir()
    noise = Image.effect_noise((3000, 2000), 80).convert("RGB")
    noise.save(results / "figure-1.png")
    noise.save(page / "figure-9.png")
    (results / "paper.md").write_text("# A page\n", encoding="utf-8")
    (results / "paper.json").write_text('{"tables": []}', encoding="utf-8")
    write(results, page, "a command")
    assert [path.name for path in page.glob("*.png")] == ["figure-1.png"]
    with Image.open(page / "figure-1.png") as image:
        assert image.width <= 1100
        assert image.mode == "P"


@pytest.mark.parametrize("table", [str(number) for number in range(1, 11)])
def test_every_table_has_settings(table: str) -> None:
    assert any(name.startswith("row ") for name in settings()[table])
    assert any(name.startswith("claim: ") for name in settings()[table])
