"""Injection below other tools' wrappers, on modules small enough to see through."""

import copy
from itertools import permutations
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook as AccelerateHook
from accelerate.hooks import add_hook_to_module, remove_hook_from_module
from diffusers.hooks import HookRegistry, ModelHook
from torch import Tensor, nn

from tomadiff.engine.hooks import DATA, EndOfImage, RootHook, eject, inject, unwrap

X = torch.tensor(1.0)


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def plus_one(self: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = getattr(self, DATA).inner(self, x) + 1
    return out


plus_one.__module__ = "tomadiff.engine.forward"  # what is injected is known by where it comes from


class PlusTen(AccelerateHook):
    def post_forward(self, module: nn.Module, output: Tensor) -> Tensor:
        return output + 10


class PlusHundred(ModelHook):
    """A diffusers hook around the forward."""

    def post_forward(self, module: nn.Module, output: Tensor) -> Tensor:
        return output + 100


class PlusThousand(ModelHook):
    """A diffusers hook in place of the forward, as caches are."""

    def new_forward(self, module: nn.Module, *args: Any) -> Tensor:
        out: Tensor = self.fn_ref.original_forward(*args) + 1000
        return out


TOOLS: dict[str, tuple[Any, Any, int]] = {
    "ours": (lambda m: inject(m, plus_one, SimpleNamespace()), eject, 1),
    "accelerate": (lambda m: add_hook_to_module(m, PlusTen()), remove_hook_from_module, 10),
    "around": (lambda m: _registry(m).register_hook(PlusHundred(), "h"), lambda m: _registry(m).remove_hook("h"), 100),
    "instead": (
        lambda m: _registry(m).register_hook(PlusThousand(), "t"),
        lambda m: _registry(m).remove_hook("t"),
        1000,
    ),
}


def _registry(module: nn.Module) -> HookRegistry:
    return HookRegistry.check_if_exists_or_initialize(module)


def _orders() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Coming and going. The others must leave last come, first gone: they drop each other otherwise, without us too."""
    found = []
    for others in [(), *((tool,) for tool in ("accelerate", "around", "instead")), ("accelerate", "around", "instead")]:
        for coming in permutations(("ours", *others)):
            foreign = [tool for tool in reversed(coming) if tool != "ours"]
            found += [(coming, (*foreign[:place], "ours", *foreign[place:])) for place in range(len(foreign) + 1)]
    return found


@pytest.mark.parametrize(("coming", "going"), _orders(), ids=lambda order: "-".join(order))
def test_ours_lives_with_others_in_every_order(coming: tuple[str, ...], going: tuple[str, ...]) -> None:
    module, value = Double(), 2
    for tool in coming:
        TOOLS[tool][0](module)
        value += TOOLS[tool][2]
        assert module(X) == value
    for tool in going:
        TOOLS[tool][1](module)
        value -= TOOLS[tool][2]
        assert module(X) == value
    assert DATA not in vars(module)
    assert getattr(module.forward, "__func__", None) is Double.forward


def test_nothing_stays() -> None:
    module = Double()
    before = dict(vars(module))
    inject(module, plus_one, SimpleNamespace())
    eject(module)
    assert vars(module) == before
    eject(module)
    assert vars(module) == before


def test_ours_is_innermost() -> None:
    module = Double()
    TOOLS["accelerate"][0](module)
    TOOLS["instead"][0](module)
    TOOLS["ours"][0](module)
    assert module._old_forward.__func__ is plus_one


def test_ours_is_found_where_a_removed_hook_has_put_it() -> None:
    """Removing the lower of two diffusers hooks moves what lay below it, and loses the upper one, without us too."""
    module = Double()
    TOOLS["ours"][0](module)
    _registry(module).register_hook(PlusThousand(), "lower")
    _registry(module).register_hook(PlusThousand(), "upper")
    _registry(module).remove_hook("lower")
    lost = module(X) - 1
    eject(module)
    assert module(X) == lost


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_forward_that_somebody_else_put_there_is_kept(wrapped: bool) -> None:
    module = Double()
    module.forward = lambda x: 5 * x
    if wrapped:
        TOOLS["accelerate"][0](module)
        TOOLS["around"][0](module)
    bare, others = module.forward, 110 if wrapped else 0
    TOOLS["ours"][0](module)
    assert module(X) == 5 + 1 + others
    eject(module)
    assert module(X) == 5 + others
    assert module.forward is bare


def test_methods_of_the_class_are_shared() -> None:
    """One function for all modules of a class: compiled code keeps one graph for them."""
    modules = [Double(), Double()]
    for module in modules:
        TOOLS["ours"][0](module)
    assert all(getattr(module, DATA).inner is Double.forward for module in modules)


def test_a_copy_is_its_own() -> None:
    module = Double()
    TOOLS["ours"][0](module)
    twin = copy.deepcopy(module)
    assert isinstance(twin.forward, MethodType)
    assert twin.forward.__self__ is twin
    eject(module)
    assert (module(X), twin(X)) == (2, 3)
    eject(twin)
    assert twin(X) == 2
    assert vars(twin).keys() == vars(module).keys()


# ---------------------------------------------------------------------------------------------- the root
def test_watching_sees_every_call_until_it_stops() -> None:
    module, seen = Double(), []
    watch = RootHook(module, lambda args, kwargs: seen.append((args, kwargs)))
    module(X)
    module(x=X)
    watch.stop()
    module(X)
    assert seen == [((X,), {}), ((), {"x": X})]
    assert not module._forward_pre_hooks


@pytest.mark.parametrize("in_place", [False, True])
def test_watching_a_compiled_model(in_place: bool) -> None:
    torch.compiler.reset()
    module, seen = Double(), []
    model: Any = module if in_place else torch.compile(module, fullgraph=True, backend="eager")
    if in_place:
        module.compile(fullgraph=True, backend="eager")
    call = module._compiled_call_impl
    watch = RootHook(model, lambda args, kwargs: seen.append(args))
    assert model(X) == 2
    watch.stop()
    assert model(X) == 2
    assert len(seen) == 1
    assert module._compiled_call_impl is call


def test_unwrap() -> None:
    module = Double()
    assert unwrap(module) is module
    assert unwrap(torch.compile(module)) is module  # type: ignore[arg-type]


class Cached(Double):
    resets = 0

    def _reset_stateful_cache(self, recurse: bool = True) -> None:
        self.resets += 1


@pytest.mark.parametrize("kind", [Double, Cached])
def test_the_end_of_a_picture(kind: type[Any]) -> None:
    module, ends = kind(), []
    watch = EndOfImage(module, lambda: ends.append(1))
    module._reset_stateful_cache()
    watch.stop()
    assert len(ends) == 1
    assert getattr(module, "resets", 1) == 1
    assert "_reset_stateful_cache" not in vars(module)
