"""A cache of the latest results.

``functools.lru_cache`` would cache by all arguments of a call, among them the callbacks that report progress.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """The ``most`` results that were looked at last; safe to share between threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[Key, Value] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        """The result, which counts as looked at; ``None`` if it is not here (any more)."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Keep a result, and let go of the one that was not looked at for longest if there are too many."""
        with self._lock:
            self._held[key] = value
            self._held.move_to_end(key)
            if len(self._held) > self.most:
                self._held.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._held)
