"""Every setting with every kind of wrong value: one clear error, before any work."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tomadiff
from tests import tiny
from tomadiff import Schedule, Stripes, Tiles, ToMA, Whole
from tomadiff.cost.budget import Budget
from tomadiff.errors import SettingError
from tomadiff.methods import Bound, Method, ToDo, ToFu, ToMeSD
from tomadiff.presets import Preset
from tomadiff.steps.forecast import Forecast
from tomadiff.utils.settings import Settings

for found in pkgutil.iter_modules(tomadiff.__path__, "tomadiff."):
    if not found.ispkg and not found.name.endswith(("__main__", "cli")):
        importlib.import_module(found.name)


def below(kind: type[Any]) -> set[type[Any]]:
    """A class and all that derive from it."""
    return {kind, *(deeper for one in kind.__subclasses__() for deeper in below(one))}


OURS = {kind for kind in below(Settings) if kind.__module__.startswith("tomadiff.")} - {Settings, Method}
KINDS: list[type[Any]] = sorted(OURS, key=lambda kind: kind.__name__)
SETTINGS = [(kind, field.name) for kind in KINDS for field in fields(kind)]
NEEDED: dict[type[Any], dict[str, Any]] = {Preset: {"method": ToMA(), "schedule": Schedule()}}
NOWHERE = {  # values that no setting takes
    "NaN": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "bytes": b"1",
    "complex": 1j,
    "negative": -1,
    "text": "off",
    "huge": 10**400,
    "unprintable": -(10**5000),
    "object": object(),
    "a class": Tiles,
    "in a list": [math.nan],
    "in a mapping": {0: "half"},
    "tensor": torch.tensor(0.5),
    "array": np.array([0.5, 0.5]),
    "NaN of NumPy": np.float32("nan"),
    "set": {0},
}
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([Tiles(2), Whole()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
"""Numbers, texts, regions, and lists and mappings of them."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_cannot_be_is_refused_by_name(kind: type[Any]) -> None:
    for name in (field.name for field in fields(kind)):
        for what, value in NOWHERE.items():
            if name == "selector" and value is Tiles:
                continue  # anything that can be called
            if (kind is Preset or name == "asked") and isinstance(value, str):
                continue  # remarks, and a budget in the user's words, are any text
            with pytest.raises(SettingError) as caught:
                kind(**{**NEEDED.get(kind, {}), name: value})
            assert re.match(rf"{name}.* is not possible; (choose|give|use|it is|it says) ", str(caught.value)), what
            assert len(str(caught.value)) < 400


@settings(max_examples=300)
@given(setting=st.sampled_from(SETTINGS), value=ANYTHING)
def test_whatever_is_given_works_or_raises_a_setting_error(setting: tuple[type[Any], str], value: Any) -> None:
    kind, name = setting
    with suppress(SettingError):
        given = {**NEEDED.get(kind, {}), name: value}
        assert hash(kind(**given)) == hash(kind(**given))


def test_every_kind_of_setting_is_tested_here() -> None:
    assert {ToMA, ToMeSD, ToFu, ToDo, Bound, Schedule, Stripes, Tiles, Budget, Preset, Forecast} <= OURS


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (ToMA, {"merge_attention": "off"}, "merge_attention='off' is not possible; give True or False."),
        (ToMA, {"merge_feed_forward": 0}, "merge_feed_forward=0 is not possible; give True or False."),
        (ToMA, {"seed": 10**40}, "give a whole number from 0 to 18446744073709551615."),
        (ToMA, {"seed": 1.0}, "seed=1.0 is not possible"),
        (ToMA, {"ratio": True}, "ratio=True is not possible; it is the share of tokens removed"),
        (ToMA, {"ratio": "0.5"}, "ratio='0.5' is not possible"),
        (ToMA, {"ratio": math.nan}, "ratio=nan is not possible"),
        (ToMA, {"regions": Tiles}, "is not possible; use Tiles(4), Stripes(64) or Whole()."),
        (ToMA, {"levels": (0, "1")}, "levels[1]='1' is not possible"),
        (ToMA, {"selector": 3}, "selector=3 is not possible; choose one of 'facility_location'"),
        (ToMA, {"levels": "01"}, "levels='01' is not possible; give numbers such as (0, 1)"),
        (ToMeSD, {"stride": 2}, "stride=2 is not possible; give a tuple."),
        (ToMeSD, {"stride": (2, 2, 2)}, "stride=(2, 2, 2) is not possible"),
        (ToMeSD, {"random": "no"}, "random='no' is not possible; give True or False."),
        (ToFu, {"fuse": "sum"}, "fuse='sum' is not possible; choose one of 'mean', 'mlerp', 'prune'."),
        (ToDo, {"factor": 10**20}, "give a whole number from 2 to 1024."),
        (Schedule, {"start": True}, "start=True is not possible; give a step as a whole number (4)"),
        (Schedule, {"start": 1.5}, "start=1.5 is not possible"),
        (Schedule, {"ratio_at_level": {0: 2.0}}, "ratio_at_level[0]=2.0 is not possible; it is the share"),
        (Schedule, {"ratio_at_level": {"0": 0.5}}, "ratio_at_level's key='0' is not possible"),
        (Schedule, {"ratio_at_level": 0.5}, "ratio_at_level=0.5 is not possible; give a mapping or a tuple."),
        (Preset, {"method": 0.5, "schedule": Schedule()}, "method=0.5 is not possible; give a Method."),
        (Stripes, {"count": 10**40}, "give a whole number of at least 1, below 2**63."),
        (Budget, {"speedup": math.inf}, "speedup=inf is not possible"),
    ],
)
def test_the_error_says_what_to_do(kind: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        kind(**given)
    assert words in str(caught.value)


def test_scalars_of_numpy_are_numbers_and_kept_as_such() -> None:
    method = ToMA(np.float32(0.25), seed=np.int64(3), merge_attention=np.bool_(True), levels=[np.int32(1)])
    assert method == ToMA(0.25, seed=3, levels=(1,))
    kept: list[Any] = [method.ratio, method.seed, method.merge_attention, *(method.levels or ())]
    assert [type(value) for value in kept] == [float, int, bool, int]
    assert Schedule(start=np.float64(0.5), ratio_at_level={np.int64(2): np.float64(0.5)}) == Schedule(
        start=0.5, ratio_at_level=((2, 0.5),)
    )
    assert ToMA(0).ratio == 0  # a whole number will do for a share


def test_settings_of_a_method_from_outside_are_checked_as_far_as_they_are_known() -> None:
    class Local: ...

    @dataclass(frozen=True)
    class Own(Method):
        depth: float = 0.5
        friend: Local | None = None

    assert Own(friend=Local()).depth == 0.5
    with pytest.raises(SettingError, match="ratio='half'"):
        Own(ratio="half")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        (
            (True,),
            {},
            "method=True is not possible; give a ratio such as 0.5, a method such as ToMA(ratio=0.5), or a name",
        ),
        (("0.5",), {}, "method='0.5' is not known; choose one of"),
        ((ToMA,), {}, "method=<class 'tomadiff.methods.toma.ToMA'> is not possible"),
        ((math.nan,), {}, "method=nan is not possible"),
        ((), {"ratio": math.nan}, "ratio=nan is not possible"),
        ((), {"schedule": 5}, "schedule=5 is not possible; give a Schedule or None."),
        ((), {"guard": "off"}, "guard='off' is not possible; give True or False or None."),
        ((), {"preset": 3}, "preset=3 is not possible; give text or a Path or a Preset or None."),
        ((), {"flops": "0.6"}, "flops='0.6' is not possible"),
        ((), {"speedup": math.inf}, "speedup=inf is not possible"),
        ((), {"merge_attention": "off"}, "merge_attention='off' is not possible; give True or False."),
    ],
)
def test_apply_refuses_before_it_touches_the_model(args: Any, named: Any, words: str) -> None:
    unet = tiny.model("sd15")
    with pytest.raises(SettingError) as caught:
        tomadiff.apply(unet, *args, **named)
    assert words in str(caught.value)
    assert not any("tomadiff" in name for name in unet.__dict__)


def test_a_patch_refuses_and_stays_as_it_was() -> None:
    with tomadiff.apply(tiny.model("sd15"), 0.5) as patch:
        before = patch.method, patch.schedule, patch.guard
        wrong: tuple[tuple[Any, dict[str, Any]], ...] = (
            (patch.set, {"merge_attention": "off"}), (patch.set, {"guard": 1}), (patch.set, {"schedule": "late"}),
            (patch.set, {"seed": 10**40}), (patch.set, {"flops": math.nan}), (patch.begin, {"steps": 2.5}),
            (patch.begin, {"steps": True}), (patch.begin, {"steps": 10**40}), (patch.step, {"step": "1"}),
            (patch.step, {"step": -1}), (patch.step, {"step": math.nan}),
        )  # fmt: skip
        for function, named in wrong:
            with pytest.raises(SettingError, match=next(iter(named))):
                function(**named)
        assert (patch.method, patch.schedule, patch.guard) == before
