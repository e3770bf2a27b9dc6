"""Go around whole calls of a model, outside of compiled code, hooks and offloading; and what models say of themselves.

:mod:`tomadiff.engine.hooks` goes to the innermost place of a module, this to the outermost. All private names of other
libraries are in these two files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tomadiff.engine.hooks import CALL, disabled

_COMPILE = "compile"
_PASS_NAME = "cache_context"  # pipelines name guidance passes with this method of their models
_CACHES = "_cache_config"  # of diffusers, on a model
_PARALLEL = "_parallel_config"  # of diffusers, on a model


class Around:
    """Runs ``function(call, args, kwargs)`` in place of every call of a model; see :meth:`stop`.

    It is outside of everything: compiled code, hooks, offloading. ``call(*args, **kwargs)`` is the call itself.
    """

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        self.function, self._model = function, model
        self.inner = model.__dict__.get(CALL)
        model.__dict__[CALL] = self
        model.__dict__[_COMPILE] = self._compile

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the call."""
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(
                msg="tomadiff forecasts steps outside of compiled code: "
                "call torch.compile(model) first and tomadiff.apply(…) after it."
            )
            return disabled()(self.function, self._call, args, kwargs)
        return self.function(self._call, args, kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return (self.inner or self._model._call_impl)(*args, **kwargs)

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        """``model.compile()`` compiles what is inside."""
        type(self._model).compile(self._model, *args, **kwargs)
        self.inner, self._model.__dict__[CALL] = self._model.__dict__[CALL], self

    def stop(self) -> None:
        """Take it off again."""
        self._model.__dict__.pop(_COMPILE, None)
        if self._model.__dict__.get(CALL) is self:
            del self._model.__dict__[CALL]
            if self.inner is not None:
                self._model.__dict__[CALL] = self.inner

    def __deepcopy__(self, memo: dict[int, Any]) -> Around:
        """Copies of modules leave out what was compiled, and us with it, so this goes onto the copy by itself."""
        memo[id(self)] = copied = object.__new__(type(self))
        copied.function, copied._model = copy.deepcopy((self.function, self._model), memo)
        copied.inner, copied._model.__dict__[CALL] = None, copied
        return copied


class PassName:
    """Knows the name that a pipeline gave to the guidance pass at work, if it gave one; see :meth:`stop`."""

    def __init__(self, model: nn.Module) -> None:
        self.name: str | None = None
        self._model = model
        if hasattr(type(model), _PASS_NAME):
            model.__dict__[_PASS_NAME] = self

    @contextmanager
    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Stand in for the model's own context, and enter that too."""
        self.name = name
        try:
            with getattr(type(self._model), _PASS_NAME)(self._model, name, *args, **kwargs):
                yield
        finally:
            self.name = None

    def stop(self) -> None:
        """Take it off again."""
        if self._model.__dict__.get(_PASS_NAME) is self:
            del self._model.__dict__[_PASS_NAME]


def other_cache(model: nn.Module) -> str | None:
    """The name of a cache of diffusers or of DeepCache that is on a model."""
    config = getattr(model, _CACHES, None)
    if config is not None:
        return type(config).__name__.removesuffix("Config")
    module = getattr(model.__dict__.get("forward"), "__module__", None) or ""
    return "DeepCache" if module.startswith("DeepCache") else None


def attention_backend(model: nn.Module) -> str:
    """The backend that attention of ``model`` runs on, as diffusers names it."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    processors = (getattr(module, "processor", None) for module in model.modules())
    first = next((one for one in processors if one is not None), None)
    name = getattr(first, "_attention_backend", None) or Registry.get_active_backend()[0]
    return str(getattr(name, "value", name))


def version_of(tensor: torch.Tensor) -> int | None:
    """Counts writes to a tensor; those of inference mode are not counted."""
    return None if tensor.is_inference() else tensor._version


def context_parallel(model: Any) -> Any:
    """How diffusers splits the tokens of one image over processes, if it does."""
    return getattr(getattr(model, _PARALLEL, None), "context_parallel_config", None)


def processes_of(model: nn.Module) -> Any:
    """The group of processes that compute each call of a model together, as diffusers shards them, if they do."""
    config = getattr(model, _PARALLEL, None)
    for part in ("context_parallel_config", "tensor_parallel_config"):
        own = getattr(config, part, None)
        mesh = getattr(own, "_flattened_mesh", None) or getattr(own, "_mesh", None)
        if mesh is not None:
            return mesh.get_group()
    return None
