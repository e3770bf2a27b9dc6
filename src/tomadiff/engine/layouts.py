"""Token layouts of a model's calls, read again only where tensors that they are read from are others."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from tomadiff.engine.outer_hooks import version_of
from tomadiff.families.base import Family, ModelCall, TokenLayout


class LayoutReader:
    """Reads layouts, and keeps them as long as what they were read from: reading waits for the GPU."""

    def __init__(self) -> None:
        self._read_from: list[Any] = []  # see Family.reads
        self._known: dict[Any, TokenLayout | None] = {}  # by the shapes of a call: passes may differ in their text

    def read(self, family: Family, model: nn.Module, call: ModelCall) -> TokenLayout | None:
        """The layout of a call."""
        read = [call[name] for name in family.reads]
        tensors = [tensor for tensor in read if isinstance(tensor, Tensor)]
        if not tensors:
            return family.token_layout(model, call)
        if not self._is_known(tensors):
            self._known = {}
            self._read_from = [(weakref.ref(tensor), version_of(tensor)) for tensor in tensors]
        if call.shapes not in self._known:
            self._known[call.shapes] = family.token_layout(model, call)
        return self._known[call.shapes]

    def _is_known(self, tensors: list[Tensor]) -> bool:
        if len(self._read_from) != len(tensors):
            return False
        pairs = zip(self._read_from, tensors, strict=True)
        return all(old() is tensor and version == version_of(tensor) for (old, version), tensor in pairs)
