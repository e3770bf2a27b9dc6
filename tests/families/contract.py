"""What every model family keeps, whoever describes it.

Derive a test class from :class:`FamilyContract`, say how to build a small model and its inputs, and pytest runs every
promise on it; ``docs/adding/a_model.md`` shows one. Nothing here calls the code it checks: merging is done anew with
dense matrices, rows of rotary tables are picked by the family's own test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tomadiff import Grid, MergePlan, Method, ToMA
from tomadiff.engine.hooks import DATA
from tomadiff.engine.site import Site
from tomadiff.merging.select import Selection

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
BY_REGION: dict[str, Any] = {"quota": "equal", "proportional": False}  # what is recomputed here, on every family
SIZES = ((8, 8), (9, 16), (16, 9), (7, 13), (5, 31))
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class FamilyContract:
    """The promises. ``model`` and ``inputs`` are all that a family must say; the rest has defaults that fit most."""

    sizes: tuple[tuple[int, int], ...] = SIZES
    more_sizes: tuple[tuple[int, int], ...] = ()  # whose every batch is tried by the slow suite alone
    shares_batch = False  # rotary tables without a batch axis: all samples have the same destinations

    def model(self) -> nn.Module:
        """A small model, the same at every call."""
        raise NotImplementedError

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Arguments of a call whose finest grid is about ``height`` × ``width``; one sample per seed."""
        raise NotImplementedError

    def run(self, model: nn.Module, **inputs: Any) -> Tensor:
        with torch.no_grad():
            result = model(**inputs)
        return result[0] if isinstance(result, tuple) else result

    def head(self, module: nn.Module) -> int:
        """Tokens before the grid in calls of ``module``."""
        return 0

    def pick_rows(self, arguments: Arguments, rows: Tensor, tokens: int) -> Arguments:
        """``arguments`` of a site with rotary rows of the ``(B, K)`` kept tokens; ``tokens`` is its full length."""
        return arguments

    def merged_again(self, arguments: dict[str, Any], merge: Tensor) -> dict[str, Any]:
        """Arguments of a site with those merged that hold the same tokens once more."""
        return arguments

    # ------------------------------------------------------------------------------------------ 1. nothing to merge
    def test_ratio_zero_is_bit_exact(self) -> None:
        model, inputs = self.model(), self.inputs(*self.sizes[0])
        plain = self.run(model, **inputs)
        with tomadiff.apply(model, 0.0):
            assert torch.equal(self.run(model, **inputs), plain)

    @pytest.mark.parametrize("span", ["op", "block"])
    def test_identity_plan_changes_nothing(self, span: Any) -> None:
        model, inputs = self.model(), self.inputs(*self.sizes[0], seeds=(0, 1))
        plain = self.run(model, **inputs)
        with tomadiff.apply(model, Identity(span=span), skip=0) as patch:
            same = self.run(model, **inputs)
            whole_blocks = any(site.kind == "block" for _, site in sites(model))
            assert patch.report().models[0].merged
        assert torch.allclose(same, plain, **CLOSE) if whole_blocks else torch.equal(same, plain)

    # ------------------------------------------------------------------------------------------ 1. removal
    def test_removal_is_bit_exact_and_leaves_nothing(self) -> None:
        model, inputs = self.model(), self.inputs(*self.sizes[0])
        plain, before = self.run(model, **inputs), traces(model)
        patch = tomadiff.apply(model, 0.5, skip=0)
        merged = self.run(model, **inputs)
        assert not torch.equal(merged, plain), "a patch that changes nothing proves nothing"
        assert traces(model) != before
        patch.remove()
        assert traces(model) == before
        assert torch.equal(self.run(model, **inputs), plain)

    def test_exception_in_a_forward_leaves_nothing(self) -> None:
        model, inputs = self.model(), self.inputs(*self.sizes[0])
        plain, before = self.run(model, **inputs), traces(model)
        with pytest.raises(BrokenError), tomadiff.apply(model, 0.5, skip=0), breaking(sites(model)[-1][0]):
            self.run(model, **inputs)
        assert traces(model) == before
        assert torch.equal(self.run(model, **inputs), plain)

    def test_exception_in_a_forward_does_no_harm_to_the_next(self) -> None:
        model, inputs = self.model(), self.inputs(*self.sizes[0])
        with tomadiff.apply(model, 0.5, skip=0) as patch:
            first = self.run(model, **inputs)
            with pytest.raises(BrokenError), breaking(sites(model)[0][0]):
                self.run(model, **inputs)
            patch.begin()
            assert torch.equal(self.run(model, **inputs), first)

    # ------------------------------------------------------------------------------------------ 2. what a site computes
    @pytest.mark.parametrize("span", ["op", "block"])
    def test_sites_compute_what_the_plan_says(self, span: Any) -> None:
        """Batches and grids of all shapes, one after the other through one patch."""
        self._check_sites(span, [(size, 1 + place % 3) for place, size in enumerate(self.sizes)])

    @pytest.mark.slow
    @pytest.mark.parametrize("span", ["op", "block"])
    def test_sites_compute_what_the_plan_says_at_every_size(self, span: Any) -> None:
        self._check_sites(span, [(size, batch) for size in self.more_sizes for batch in (1, 2, 3)])

    def _check_sites(self, span: Any, cases: list[tuple[tuple[int, int], int]]) -> None:
        model = self.model()
        with tomadiff.apply(model, 0.5, span=span, skip=0, **BY_REGION) as patch:
            for size, batch in cases:
                patch.begin()
                seeds = tuple(range(batch))
                calls = recorded(model, lambda size=size, seeds=seeds: self.run(model, **self.inputs(*size, seeds)))
                assert len(calls) == len(sites(model))
                for call in calls:
                    self.check_call(call)
                assert not patch.report().models[0].bypassed

    def check_call(self, call: SiteCall) -> None:
        assert call.plan.kept < call.plan.tokens
        expected = self.recomputed(call)
        assert len(expected) == len(call.outputs)
        for got, wanted in zip(call.outputs, expected, strict=True):
            torch.testing.assert_close(got, wanted, **CLOSE)

    def recomputed(self, call: SiteCall) -> tuple[Tensor, ...]:
        """``unmerge(op(merge(x)))``, or ``x + unmerge(block(m) − m)`` for a whole block."""
        merge, unmerge = dense(call.plan, call.tokens, self.head(call.module))
        merged = merge @ call.tokens
        args, kwargs = self.pick_rows(call.arguments, kept_rows(call.plan), call.tokens.shape[1])
        kwargs = self.merged_again(kwargs, merge)
        with torch.no_grad():
            outputs = as_tuple(type(call.module).forward(call.module, merged, *args, **kwargs))
        if call.kind == "block":
            return tuple(
                call.tokens + unmerge @ (out - merged) if out.shape[1] == merged.shape[1] else out for out in outputs
            )
        return tuple(unmerge @ out if out.shape[1] == merged.shape[1] else out for out in outputs)

    # ------------------------------------------------------------------------------------------ 3. what stays untouched
    def test_everything_around_the_sites_is_untouched(self) -> None:
        """The unpatched model with merging around its ops by plain hooks gives the patched one's result."""
        model, inputs = self.model(), self.inputs(*self.sizes[1], seeds=(0, 1))
        results: list[Tensor] = []
        with tomadiff.apply(model, 0.5, skip=0, **BY_REGION):
            calls = recorded(model, lambda: results.append(self.run(model, **inputs)))
        with self.merging_by_hooks(calls):
            torch.testing.assert_close(self.run(model, **inputs), results[0], rtol=1e-4, atol=1e-4)

    @contextmanager
    def merging_by_hooks(self, calls: list[SiteCall]) -> Iterator[None]:
        handles = []
        for call in calls:
            before, after = self._hooks(call)
            handles.append(call.module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(call.module.register_forward_hook(after))
        yield
        for handle in handles:
            handle.remove()

    def _hooks(self, call: SiteCall) -> tuple[Callable[..., Any], Callable[..., Any]]:
        merge, unmerge = dense(call.raster_plan, call.tokens, self.head(call.module))
        seen: dict[str, Tensor] = {}

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            given, rest = first_argument(args, kwargs)
            seen["x"] = samples_first(call.site, given)
            if seen["x"].shape != call.tokens.shape:  # the text, in a module that serves both
                return args, kwargs
            seen["m"] = merge @ seen["x"]
            args, kwargs = self.pick_rows(rest, kept_rows(call.raster_plan), seen["x"].shape[1])
            return (seen["m"], *args), self.merged_again(kwargs, merge)

        def change(out: Tensor | None) -> Tensor | None:
            if out is None or seen["x"].shape != call.tokens.shape or out.shape[1] != seen["m"].shape[1]:
                return out
            if call.kind == "block":
                return seen["x"] + unmerge @ (out - seen["m"])
            return samples_first(call.site, unmerge @ out)

        def after(_: nn.Module, __: Any, output: Any) -> Any:
            return change(output) if isinstance(output, Tensor) else tuple(map(change, output))

        return before, after

    def test_samples_do_not_see_each_other(self) -> None:
        """Destinations that do not look at tokens leave nothing that samples could share."""
        self._check_independence(ToMA(0.5, selector=first_ones, skip=0))

    def test_samples_have_destinations_of_their_own_if_asked_to(self) -> None:
        self._check_independence(ToMA(0.5, share="sample", skip=0))

    def test_a_batch_shares_destinations_where_it_must(self) -> None:
        model = self.model()
        with tomadiff.apply(model, 0.5, skip=0, **BY_REGION):
            calls = recorded(model, lambda: self.run(model, **self.inputs(*self.sizes[0], seeds=(0, 1))))
        assert all(call.plan.shared == self.shares_batch for call in calls)
        for call in calls:
            assert not torch.equal(*call.plan.unmerge_matrix), "weights are each sample's own"

    def _check_independence(self, method: Method) -> None:
        model = self.model()
        with tomadiff.apply(model, method) as patch:
            one = self.run(model, **self.inputs(*self.sizes[0], seeds=(0, 1)))
            patch.begin()
            other = self.run(model, **self.inputs(*self.sizes[0], seeds=(0, 2)))
        torch.testing.assert_close(one[0], other[0], **CLOSE)
        assert not torch.allclose(one[1], other[1], **CLOSE)

    # ------------------------------------------------------------------------------------------ 4. grids
    def test_grids_are_the_ones_that_sites_see(self) -> None:
        model = self.model()
        with tomadiff.apply(model, 0.5, skip=0) as patch:
            for size in self.sizes:
                inputs = self.inputs(*size)
                calls = recorded(model, lambda inputs=inputs: self.run(model, **inputs))
                assert calls
                assert not patch.report().models[0].bypassed
            assert all(level.tokens_after < level.tokens_before for level in patch.report().models[0].levels)

    # ------------------------------------------------------------------------------------------ copies
    def test_a_copy_is_patched_on_its_own(self) -> None:
        model, inputs = self.model(), self.inputs(*self.sizes[0])
        plain, before = self.run(model, **inputs), traces(model)
        patch = tomadiff.apply(model, 0.5, skip=0)
        merged = self.run(model, **inputs)
        twin = copy.deepcopy(model)
        patch.remove()
        assert torch.equal(self.run(model, **inputs), plain)
        assert torch.equal(self.run(twin, **inputs), merged)
        assert traces(model) == before, "the copy must not write into the original"
        tomadiff.remove(twin)
        assert traces(twin) == before
        assert torch.equal(self.run(twin, **inputs), plain)


# ---------------------------------------------------------------------------------------------- methods of the tests
class Identity(Method):
    """Merges, but nothing into anything."""

    def plan(self, tokens: Tensor, grid: Grid, **_: Any) -> MergePlan:
        return MergePlan.identity(grid, dtype=tokens.dtype, device=tokens.device)


def first_ones(similarity: Tensor, count: int, mask: Tensor | None = None) -> Selection:
    """A selector that does not look."""
    return Selection(torch.arange(count).expand(len(similarity), -1).contiguous(), torch.zeros(len(similarity), count))


# ---------------------------------------------------------------------------------------------- seeing what happens
@dataclass
class SiteCall:
    """What went into a wrapped module and came out of it, seen from outside, and the plan in use.

    Inside some models tokens lie in an order that spares copies; ``raster_plan`` is the plan for the usual one.
    """

    module: nn.Module
    site: Site
    plan: MergePlan
    raster_plan: MergePlan
    tokens: Tensor
    arguments: Arguments
    outputs: tuple[Tensor, ...]

    @property
    def kind(self) -> str:
        """What the module computes."""
        return self.site.kind


def samples_first(site: Site, tokens: Tensor) -> Tensor:
    """Tokens of a call as ``(B, N, C)``, and back."""
    return tokens.transpose(0, 1) if site.facts.tokens_first else tokens


def sites(model: nn.Module) -> list[tuple[nn.Module, Site]]:
    """Every wrapped module with its site."""
    return [(module, module.__dict__[DATA]) for module in model.modules() if DATA in module.__dict__]


def recorded(model: nn.Module, call: Callable[[], Any]) -> list[SiteCall]:
    """Run ``call`` and record every site."""
    calls: list[SiteCall] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        site = module.__dict__[DATA]
        tokens, rest = first_argument(args, kwargs)
        outputs = tuple(samples_first(site, out).clone() for out in as_tuple(output))
        plan, raster_plan = copy.copy(site.group.plan), site.group.last
        tokens = samples_first(site, tokens).clone()
        if not site.facts.serves_text or site.fits(tokens.shape):
            calls.append(SiteCall(module, site, plan, raster_plan, tokens, rest, outputs))

    handles = [module.register_forward_hook(record, with_kwargs=True) for module, _ in sites(model)]
    call()
    for handle in handles:
        handle.remove()
    return calls


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Arguments]:
    """The image tokens of a call, and its other arguments."""
    if args:
        return args[0], (args[1:], kwargs)
    return kwargs["hidden_states"], ((), {name: value for name, value in kwargs.items() if name != "hidden_states"})


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    """The tensors of a result; some blocks return nothing in the place of their text."""
    return (result,) if isinstance(result, Tensor) else tuple(item for item in result if item is not None)


# ---------------------------------------------------------------------------------------------- merging anew
def kept_rows(plan: MergePlan) -> Tensor:
    """``(B, K)`` raster index of every kept token, region by region."""
    return torch.tensor(
        [
            [int(plan.layout.index[region, place]) for region, row in enumerate(sample) for place in row]
            for sample in plan.local_index.tolist()
        ]
    )


def dense(plan: MergePlan, tokens: Tensor, head: int = 0) -> tuple[Tensor, Tensor]:
    """The plan as full matrices ``(B, head + K + tail, head + N + tail)`` and back; others map to themselves."""
    batch, per_region = plan.local_index.shape[0], plan.local_index.shape[2]
    length, fewer = tokens.shape[1], tokens.shape[1] - plan.tokens + plan.kept
    merge, unmerge = torch.zeros(batch, fewer, length), torch.zeros(batch, length, fewer)
    for region, (index, real) in enumerate(zip(plan.layout.index, plan.layout.mask, strict=True)):
        kept, members = slice(head + region * per_region, head + (region + 1) * per_region), head + index[real]
        merge[:, kept, members] = plan.merge_matrix[:, region][:, :, real]
        unmerge[:, members, kept] = plan.unmerge_matrix[:, region][:, real]
    others = [*range(head), *range(head + plan.tokens, length)]
    left = [*range(head), *range(head + plan.kept, fewer)]
    merge[:, left, others] = unmerge[:, others, left] = 1.0
    return merge, unmerge


# ---------------------------------------------------------------------------------------------- what is left behind
def traces(model: nn.Module) -> dict[str, Any]:
    """Names of all attributes of all modules, and what is in their hooks."""
    return {
        f"{name}.{attribute}": list(value) if "hooks" in attribute else type(value)
        for name, module in model.named_modules()
        for attribute, value in module.__dict__.items()
    }


class BrokenError(Exception):
    pass


@contextmanager
def breaking(module: nn.Module) -> Iterator[None]:
    """``module`` raises in the middle of whatever calls it."""

    def fail(*_: Any) -> None:
        raise BrokenError

    handle = next(child for child in module.modules() if isinstance(child, nn.Linear)).register_forward_hook(fail)
    try:
        yield
    finally:
        handle.remove()
