"""The lines of Python are Python, and say what was generated."""

import pytest

import tomadiff
from tomadiff.methods.registry import CATALOGUE, named
from tomadiff.web.snippet import origin, three_lines, written

ON_CPU = {"device": "cpu", "dtype": "float32"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_method_and_its_schedule_read_back_as_they_were(name: str) -> None:
    for setting in named(name, 0.35):
        assert eval(written(setting), {"tomadiff": tomadiff}) == setting


def test_only_what_differs_is_written() -> None:
    assert written(tomadiff.ToMA(0.5)) == "tomadiff.ToMA(ratio=0.5)"
    assert written(tomadiff.ToMA(0.5, span="block")) == 'tomadiff.ToMA(ratio=0.5, span="block")'


def test_an_ordinary_schedule_goes_without_saying() -> None:
    source = origin("emoji-sdxl", ON_CPU, embedded=True)
    plain, rare = (three_lines(source, *named(name, 0.5), "a fox", 0, {}) for name in ("toma", "toma-every-1"))
    assert "schedule" not in plain
    assert "schedule=tomadiff.Schedule(destinations_every=1, weights_every=1)" in rare


def test_without_a_method_nothing_is_said_of_one() -> None:
    source, usual = origin("emoji-sdxl", ON_CPU, embedded=True), named("toma")[1]
    recommended, forecast = (three_lines(source, None, usual, "a fox", 0, {}, tolerance) for tolerance in (0, 0.1))
    assert "tomadiff.apply(pipe)\n" in recommended
    assert "tomadiff.apply(pipe, forecast=0.1)\n" in forecast


@pytest.mark.parametrize("prompt", ['a "fox"', "it's\nhere", "\\", "🦊 {x} %s", '"""; import os #'])
def test_any_prompt_stays_a_prompt(prompt: str) -> None:
    lines = three_lines(
        origin("owner/name", {"device": "cuda", "dtype": "float16"}, False), *named("toma"), prompt, 3, {}
    )
    *_, load, _, generate = lines.splitlines()
    assert (
        load == 'pipe = diffusers.DiffusionPipeline.from_pretrained("owner/name", torch_dtype=torch.float16).to("cuda")'
    )
    call = generate.removeprefix("image = pipe(").partition(", generator=")[0]
    assert eval(call) == prompt
