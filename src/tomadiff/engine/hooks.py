"""Put a function innermost on a module, and take it off again.

Other tools wrap ``module.forward`` from the outside: accelerate keeps the wrapped one in ``_old_forward``, diffusers
in a hook registry. This goes below them all, where the module's own ``forward`` was, so that caches, offloading and
adapters see the module as it always was, whichever came first and whichever leaves first.

Every private name of torch, accelerate and diffusers that we rely on is in this file and in
:mod:`tomadiff.engine.outer_hooks`.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

DATA = "_tomadiff"  # attribute that holds what the injected function needs to know about its module

_PICKLED, _COPIED = "__reduce_ex__", "__deepcopy__"  # what pickle and copy look for on an object
_GRAPHS = 32  # that torch may compile of one piece of code, where its own limit is 8; see allow_more_graphs
_ACCELERATE_FORWARD = "_old_forward"
_DIFFUSERS_REGISTRY = "_diffusers_hook"
CALL = "_compiled_call_impl"  # what torch runs, if it is there, when a module is called: hooks and forward are inside
_END_OF_CALL = "_reset_stateful_cache"  # pipelines call this on their models when an image is done
_TO_TOKENS = "_operate_on_continuous_inputs"  # where a UNet's transformer makes tokens of an image,
_FROM_TOKENS = "_get_output_for_continuous_inputs"  # and an image of tokens


def inject(module: nn.Module, function: Callable[..., Any], data: Any) -> None:
    """Make ``function(module, *args, **kwargs)`` the innermost forward of ``module``.

    ``data`` is found as ``module._tomadiff`` and gets the attribute ``inner``: the forward that was there before, as
    a function of the module. That is the class's own function unless somebody put another one on this module, so
    compiled code shares one graph over all modules of a class.
    """
    holder, name = _innermost(module)
    old = getattr(holder, name)
    plain = _is_own_forward(module, old)
    data.inner = type(module).forward if plain else _Foreign(old)
    data.restored_by_deletion = plain and holder is module and name not in module.__dict__
    module.__dict__[DATA] = data
    setattr(holder, name, types.MethodType(function, module))
    make_picklable(module)


def eject(module: nn.Module) -> None:
    """Undo :func:`inject`, wherever the function has moved since."""
    data = module.__dict__.pop(DATA, None)
    if data is None:
        return
    undo_picklable(module)
    old = data.inner.forward if isinstance(data.inner, _Foreign) else types.MethodType(data.inner, module)
    for holder, name in _holders(module):
        if _is_injected(getattr(holder, name, None)):
            if holder is module and name == "forward" and data.restored_by_deletion:
                del module.forward
            else:
                setattr(holder, name, old)


class _Foreign:
    """A forward that somebody else put on a single module, as a function of the module."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, _: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


def _holders(module: nn.Module) -> list[tuple[Any, str]]:
    """Every place that may hold a forward of ``module``, innermost first as far as that can be told."""
    holders: list[tuple[Any, str]] = []
    registry = getattr(module, _DIFFUSERS_REGISTRY, None)
    for reference in getattr(registry, "_fn_refs", ()):  # removing a hook below another moves things to its "forward"
        holders += [(reference, "original_forward"), (reference, "forward")]
    holders += [(module, _ACCELERATE_FORWARD), (module, "forward")]
    return [(holder, name) for holder, name in holders if getattr(holder, name, None) is not None]


def _innermost(module: nn.Module) -> tuple[Any, str]:
    """The holder of the module's own forward: wrappers of other tools are partials, the real one is not."""
    holders = _holders(module)
    for holder, name in holders:
        if not isinstance(getattr(holder, name), functools.partial):
            return holder, name
    return holders[0]


def _is_own_forward(module: nn.Module, forward: Any) -> bool:
    return isinstance(forward, types.MethodType) and forward.__func__ is type(module).forward


def _is_injected(forward: Any) -> bool:
    return isinstance(forward, types.MethodType) and forward.__func__.__module__.startswith("tomadiff.")


# ---------------------------------------------------------------------------------------------- copies and pickles
def make_picklable(module: nn.Module) -> None:
    """Pickle ``module`` as it was before we touched it; deep copies keep what we put on it.

    Methods put on a single module cannot be pickled. A part with a method ``packed()``, which returns a function and
    its arguments, is put on again when the pickle is loaded.
    """
    module.__dict__[_PICKLED] = types.MethodType(_reduced, module)
    module.__dict__[_COPIED] = types.MethodType(_copied, module)


def undo_picklable(module: nn.Module) -> None:
    """Undo :func:`make_picklable`, once nothing of tomadiff is left."""
    if not any(name.startswith(DATA) for name in module.__dict__):
        module.__dict__.pop(_PICKLED, None)
        module.__dict__.pop(_COPIED, None)


def _reduced(module: nn.Module, protocol: Any) -> Any:
    """What ``module`` is pickled as: itself, without anything of tomadiff, and what is to be put on again."""
    usual: Any = type(module).__reduce_ex__(module, protocol)
    make, args, state, *others = usual
    own = [value for name, value in state.items() if name.startswith(DATA) and hasattr(value, "packed")]
    if not own:
        return make, args, _original(dict(state)), *others
    return make, args, (_original(dict(state)), [one.packed() for one in own]), None, None, _unpack


def _unpack(
    module: nn.Module, packed: tuple[dict[str, Any], list[tuple[Callable[..., None], tuple[Any, ...]]]]
) -> None:
    state, own = packed
    module.__setstate__(state)
    for put_on, args in own:
        put_on(module, *args)


def _original(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a module as they were before we touched it."""
    data = state.get(DATA)
    if data is not None and _is_injected(state.get("forward")):
        state.pop("forward")
        if isinstance(data.inner, _Foreign):
            state["forward"] = data.inner.forward
    for name in (_TO_TOKENS, _FROM_TOKENS):
        reorder = getattr(state.get(name), "__self__", None)
        if isinstance(reorder, TokenReorder):
            state.pop(name)
            state.update(reorder.own)
    hooks = state["_forward_pre_hooks"]
    own = {number for number, hook in hooks.items() if isinstance(hook, RootHook)}
    for name in ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"):
        state[name] = type(hooks)((number, hook) for number, hook in state[name].items() if number not in own)
    added = (_PICKLED, _COPIED)
    return {name: value for name, value in state.items() if not (name in added or _is_mark(name, value))}


def _is_mark(name: str, value: Any) -> bool:
    return name.startswith(DATA) or type(getattr(value, "__self__", value)).__module__.startswith("tomadiff.")


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy, as if :func:`_reduced` were not there."""
    kind = type(module)
    if hasattr(kind, _COPIED):
        return kind.__deepcopy__(module, memo)  # type: ignore[attr-defined,no-any-return]
    memo[id(module)] = copied = kind.__new__(kind)
    copied.__setstate__(copy.deepcopy(module.__getstate__(), memo))
    return copied


# ---------------------------------------------------------------------------------------------- the root
def unwrap(model: nn.Module) -> nn.Module:
    """The model behind ``torch.compile(model)``; any other model as it is."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def allow_more_graphs(model: nn.Module) -> None:
    """Let torch compile more graphs of one piece of code, if blocks of ``model`` are compiled one by one.

    They share theirs, and each kind of block needs one graph unpatched, one at steps that do not merge and one at steps
    that do: with three kinds, more than torch allows unless told.
    """
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
        from torch._dynamo import config

        config.recompile_limit = max(config.recompile_limit, _GRAPHS)


class RootHook:
    """Calls ``function(args, kwargs)`` before every call of a model, outside of compiled code; see :meth:`stop`."""

    def __init__(self, model: nn.Module, function: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        self.function = function
        self._model = model
        holder, name = _call_holder(model)
        self._compiled = getattr(holder, name)
        if self._compiled is not None:  # model.compile(): hooks would be traced, so go around the compiled call
            setattr(holder, name, self._around_compiled)
            self._handle = None
        else:
            self._handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The hook itself."""
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(
                msg="tomadiff watches the model from outside of compiled code: "
                "call torch.compile(model, fullgraph=True) first and tomadiff.apply(…) after it."
            )
        _untraced(self.function, args, kwargs)

    def _around_compiled(self, *args: Any, **kwargs: Any) -> Any:
        self.function(args, kwargs)
        assert self._compiled is not None
        return self._compiled(*args, **kwargs)

    def stop(self) -> None:
        """Take the hook off."""
        holder, name = _call_holder(self._model)
        if self._handle is not None:
            self._handle.remove()
        elif getattr(holder, name) == self._around_compiled:
            setattr(holder, name, self._compiled)


def _call_holder(model: nn.Module) -> tuple[Any, str]:
    """Where the compiled call of a model is: inside of whatever goes around all of it."""
    outermost = getattr(model, CALL, None)
    return (outermost, "inner") if hasattr(outermost, "inner") else (model, CALL)


def _untraced(function: Callable[..., Any], *args: Any) -> None:
    """Call outside of the compiler: behind a graph break it would trace ``function`` as well."""
    disabled()(function, *args)


@functools.cache
def disabled() -> Callable[..., Any]:
    """Calls a function untraced; made at first use, because the decorator imports the compiler, which is slow."""

    def call(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    return torch.compiler.disable(call)  # type: ignore[no-any-return]


class EndOfImage:
    """Calls ``function()`` when a pipeline has finished an image with ``model``; see :meth:`stop`.

    Pipelines reset stateful caches then, on every component that has the method, so we give it one.
    """

    def __init__(self, model: nn.Module, function: Callable[[], None]) -> None:
        self.function = function
        self._model = model
        self._earlier = model.__dict__.get(_END_OF_CALL)
        model.__dict__[_END_OF_CALL] = self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Stand in for the model's own method, and run that too."""
        self.function()
        own = getattr(type(self._model), _END_OF_CALL, None)
        if self._earlier is not None:
            self._earlier(*args, **kwargs)
        elif own is not None:
            own(self._model, *args, **kwargs)

    def stop(self) -> None:
        """Take it off again."""
        later = self._model.__dict__.get(_END_OF_CALL)
        while isinstance(later, EndOfImage) and later is not self and later._earlier is not self:
            later = later._earlier
        if later is self:
            del self._model.__dict__[_END_OF_CALL]
            if self._earlier is not None:
                self._model.__dict__[_END_OF_CALL] = self._earlier
        elif isinstance(later, EndOfImage):
            later._earlier = self._earlier


class TokenReorder:
    """Puts tokens in another order where they enter a UNet's transformer, and back where they leave; see :meth:`stop`.

    Whatever wraps, skips or replaces layers inside, both places are passed. ``order()`` says which order, if any.
    """

    def __init__(self, module: nn.Module, order: Callable[[], Any]) -> None:
        self.order, self._module = order, module
        self._to_tokens, self._from_tokens = getattr(module, _TO_TOKENS), getattr(module, _FROM_TOKENS)
        self.own = {name: module.__dict__[name] for name in (_TO_TOKENS, _FROM_TOKENS) if name in module.__dict__}
        module.__dict__.update({_TO_TOKENS: self._enter, _FROM_TOKENS: self._leave})
        make_picklable(module)

    @staticmethod
    def fits(module: nn.Module | None) -> bool:
        """Whether ``module`` is of a kind that has such places."""
        return hasattr(module, _TO_TOKENS) and hasattr(module, _FROM_TOKENS)

    def _enter(self, image: torch.Tensor) -> Any:
        tokens, *others = self._to_tokens(image)
        order = self.order()
        return (tokens if order is None else order.arrange(tokens), *others)

    def _leave(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        order = self.order()
        tokens = hidden_states if order is None else order.restore(hidden_states)
        return self._from_tokens(tokens, *args, **kwargs)

    def stop(self) -> None:
        """Take both off again."""
        for name, own in ((_TO_TOKENS, self._enter), (_FROM_TOKENS, self._leave)):
            if self._module.__dict__.get(name) == own:
                del self._module.__dict__[name]
        self._module.__dict__.update(self.own)
        undo_picklable(self._module)
