"""Presets: what is saved is what is loaded, and a file that is no preset says so."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

import tomadiff
from tests import tiny
from tomadiff import Forecast, Schedule, Stripes, Tiles, ToDo, ToMA, ToMeSD, Whole
from tomadiff.errors import SettingError
from tomadiff.methods import Method
from tomadiff.presets import Preset, available

EXAMPLES = (
    Preset(ToMA(0.5), Schedule()),
    Preset(
        ToMA(0.75, regions=Tiles(8), attention_regions=Whole(), scope="block", unmerge="least-squares", levels=(0, 1)),
        Schedule(1, 1, start=0.2, ratio_at_level={0: 0.25, 1: 0.75}),
        made_for="SDXL",
        why="measured, „here“",
    ),
    Preset(ToMA(0.25, regions=Stripes(count=8)), Schedule(start=10)),
    Preset(ToMeSD(0.5), Schedule()),
    Preset(ToMA(0.25), Schedule(), forecast=Forecast(0.1)),
    Preset(ToMA(0.0), Schedule(), forecast=Forecast(steps=(0, 1, 2, 5))),
    Preset(ToDo(factor=3), ToDo(factor=3).schedule),
)


@pytest.mark.parametrize("preset", EXAMPLES, ids=lambda preset: type(preset.method).__name__)
def test_what_is_saved_is_what_is_loaded(preset: Preset, tmp_path: Path) -> None:
    preset.save(tmp_path / "mine.json")
    assert Preset.load(tmp_path / "mine.json") == preset


def test_every_setting_is_written() -> None:
    """So a preset means the same when defaults change."""
    stored = json.loads(EXAMPLES[0].as_json())
    for part, made in (("method", EXAMPLES[0].method), ("schedule", EXAMPLES[0].schedule)):
        assert stored[part].keys() == {"kind"} | {field.name for field in fields(made) if field.init}


def test_what_a_file_leaves_out_has_its_default(tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    path.write_text('{"method": {"kind": "ToMA", "ratio": 0.3}}', encoding="utf-8")
    assert Preset.load(path).method == ToMA(0.3)


def test_those_that_ship_can_be_loaded() -> None:
    for name in available():
        preset = Preset.load(name)
        assert isinstance(preset.method, Method)
        assert preset.made_for
        assert preset.why


def test_a_function_cannot_be_stored() -> None:
    with pytest.raises(SettingError, match="name a selector"):
        Preset(ToMA(0.5, selector=lambda *_: None), Schedule()).as_json()  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ("no json", "is not a preset"),
        (json.dumps([1]), 'it needs "method"'),
        (json.dumps({"method": {"kind": "os.system"}}), "kind='os.system' is not known"),
        (json.dumps({"method": {"kind": "ToMA", "ratio": 2}}), "ratio=2 is not possible"),
        (json.dumps({"method": {"kind": "ToMA", "speed": 2}}), "unexpected keyword"),
        (json.dumps({"method": {"kind": "Tiles", "side": 4}}), '"method" must be a method'),
        (json.dumps({"method": {"kind": "ToMA"}, "schedule": {"kind": "ToMA"}}), '"schedule" a Schedule'),
    ],
)
def test_a_file_that_is_no_preset_says_so(stored: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(stored)
    with pytest.raises(SettingError, match=message):
        Preset.load(path)


def test_a_preset_can_be_applied_and_changed(tmp_path: Path) -> None:
    unet, preset = tiny.model("sd15"), EXAMPLES[1]
    preset.save(tmp_path / "mine.json")
    with tomadiff.apply(unet, preset=tmp_path / "mine.json", levels=None, ratio=0.5) as patch:
        assert patch.method == replace(preset.method, levels=None, ratio=0.5)
        assert patch.schedule == preset.schedule
    with tomadiff.apply(unet, preset=EXAMPLES[0], schedule=Schedule(start=1)) as patch:
        assert patch.schedule == Schedule(1, 1, start=1)
    with pytest.raises(SettingError, match="Both a preset and method="):
        tomadiff.apply(unet, 0.5, preset=preset)


def test_a_preset_brings_its_forecast_and_no_other_does(tmp_path: Path) -> None:
    unet = tiny.model("sd15")
    with tomadiff.apply(unet, preset=EXAMPLES[4]) as patch:
        assert patch.forecast == Forecast(0.1)
    with tomadiff.apply(unet, preset=EXAMPLES[4], forecast=0.3) as patch:
        assert patch.forecast == Forecast(0.3)
    with tomadiff.apply(unet, preset=EXAMPLES[0]) as patch:
        assert patch.forecast is None
    (tmp_path / "wrong.json").write_text('{"method": {"kind": "ToMA"}, "forecast": {"kind": "Schedule"}}', "utf-8")
    with pytest.raises(SettingError, match='"forecast" must be a Forecast'):
        Preset.load(tmp_path / "wrong.json")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match="There is no preset 'fast'"):
        Preset.load("fast")
