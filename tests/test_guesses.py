"""Names that people guess: those of the command line work in Python, and others say what to call."""

from typing import Any

import pytest

import tomadiff
from tests import tiny
from tomadiff import ToDo, ToMA, ToMeSD
from tomadiff.errors import NameGuessError, PatchError, SettingError
from tomadiff.methods.registry import CATALOGUE, named


@pytest.fixture(scope="module")
def unet() -> Any:
    return tiny.build("sdxl").model


# ---------------------------------------------------------------------------------------------- methods by name
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_name_of_the_command_line_works_in_python(unet: Any, name: str) -> None:
    method, schedule = named(name, 0.5)
    ratio = None if isinstance(method, ToDo) else 0.5
    with tomadiff.apply(unet, name, ratio=ratio) as patch:
        assert (patch.method, patch.schedule) == (method, schedule.completed_by(method.schedule))


def test_what_is_recommended_has_a_name(unet: Any) -> None:
    with tomadiff.apply(unet, "recommended") as patch, tomadiff.apply(tiny.build("sdxl").model) as alone:
        assert repr(patch) == repr(alone)


def test_a_name_takes_a_ratio_and_settings(unet: Any) -> None:
    with tomadiff.apply(unet, "tomesd", ratio=0.25, levels=(0, 1)) as patch:
        assert patch.method == ToMeSD(0.25, levels=(0, 1))
    with tomadiff.apply(unet, "toma") as patch:
        assert patch.method == ToMA(0.5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"method": "tomasd"}, "method='tomasd' is not known (did you mean 'tomesd'?); choose one of 'toma', "),
        ({"method": "ToMeSD"}, "(did you mean 'tomesd'?)"),
        ({"method": "full"}, "tomadiff.remove(pipe)"),
        ({"method": "baseline"}, "'bound', 'recommended', 'full'."),
        ({"method": "recommended", "ratio": 0.5}, "What is recommended merges nothing: leave ratio out"),
        ({"method": "sdxl"}, "call tomadiff.apply(pipe, preset='sdxl')"),
        ({"method": "todo", "ratio": 0.5}, "ToDo has a ratio of its own, 0.75, so 0.5 is not possible"),
        ({"method": ToDo(), "ratio": 0.5}, "leave the ratio out"),
        ({"rato": 0.5}, "ToMA has no setting 'rato' (did you mean 'ratio'?)"),
        ({"start": 4}, "(did you mean schedule=Schedule(start=…)?)"),
        ({"tolerance": 0.1}, "(did you mean forecast=Forecast(tolerance=…)?)"),
        ({"merge_mlp": True}, "(did you mean 'merge_feed_forward'?)"),
        ({"speed_up": 2}, "(did you mean 'speedup'?)"),
    ],
)
def test_a_wrong_guess_says_what_to_write(unet: Any, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError) as problem:
        tomadiff.apply(unet, **arguments)
    assert told in str(problem.value)


# ---------------------------------------------------------------------------------------------- names of the package
def test_dir_shows_the_public_names_alone() -> None:
    assert dir(tomadiff) == sorted([*tomadiff.__all__, "embedded", "presets"])
    assert all(getattr(tomadiff, name) is not None for name in dir(tomadiff))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("apply_patch", "call tomadiff.apply(pipe, ratio=0.5)."),
        ("remove_patch", "call tomadiff.remove(pipe)."),
        ("aply", "(did you mean 'apply'?)"),
        ("ToMe", "(did you mean 'ToMeSD'?)"),
        ("nonsense", "there are Bound, Clock"),
    ],
)
def test_a_name_that_is_not_there_says_which_is(name: str, told: str) -> None:
    assert not hasattr(tomadiff, name)
    with pytest.raises(NameGuessError) as problem:
        getattr(tomadiff, name)
    assert told in str(problem.value)


# ---------------------------------------------------------------------------------------------- patches
def test_a_patch_says_what_to_call_instead(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5) as patch:
        for name, told in (("disable", "patch.remove()"), ("ratio", "patch.method.ratio"), ("sumary", "'summary'")):
            with pytest.raises(NameGuessError) as problem:
                getattr(patch, name)
            assert told in str(problem.value)
        for name, value, told in (
            ("ratio", 0.25, "Patch.ratio = 0.25 would change nothing; call patch.set(ratio=0.25)."),
            ("method", "tomesd", "call tomadiff.apply(pipe, 'tomesd')"),
            ("active", False, "call patch.remove()"),
        ):
            with pytest.raises(NameGuessError) as problem:
                setattr(patch, name, value)
            assert told in str(problem.value)
        assert patch.method == ToMA(0.5)


@pytest.mark.parametrize("forecasts", [False, True])
def test_a_replaced_patch_says_so(unet: Any, forecasts: bool) -> None:
    first = tomadiff.apply(unet, forecast=0.1) if forecasts else tomadiff.apply(unet, 0.5)
    with tomadiff.apply(unet, 0.25):
        assert "replaced by a later one" in repr(first)
        assert first.summary().endswith("This patch was replaced by a later one.")
        with pytest.raises(PatchError, match="replaced by a later one; call tomadiff"):
            first.set(ratio=0.5)
    second = tomadiff.apply(unet, 0.5)
    tomadiff.remove(unet)
    assert "Patch(removed" in repr(second)
