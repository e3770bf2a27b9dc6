"""Who drives a model: the pipeline whose code is calling it at this moment.

One model may serve many pipelines: made by ``from_pipe``, copied, each with a scheduler of its own. So no pipeline is
remembered. A look at the call stack finds the nearest caller that has a scheduler, whichever pipeline was patched. It
takes some microseconds for each call of the model and reads nothing from a GPU.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import CodeType, FrameType
from typing import Any

from tomadiff.engine.guidance import guidance_of
from tomadiff.errors import PatchError
from tomadiff.steps.clock import is_in_use

_NAMES = ("self", "components")  # what pipelines, and the blocks of modular ones, call the pipeline in their code
_LOOP_STATE = "block_state"  # what blocks of modular pipelines call the state of their loop
_NUMBERS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of pipelines
_COUNT = count(1)
_BETWEEN = (  # modules whose code lies between a loop and the model that it calls
    "torch.",
    "accelerate.",
    "peft.",
    "diffusers.models.",
    "diffusers.hooks.",
    "tomadiff.engine.",
    "tomadiff.steps.",
    "tomadiff.patch",
)


@dataclass(frozen=True, eq=False)
class Driver:
    """Who made one call of a model; not kept, since it would keep the pipeline alive.

    Attributes:
        scheduler: of the pipeline at work, at this moment (it may be exchanged); ``None`` in a loop of one's own.
        loop_state: what lives as long as the denoising loop of a modular pipeline.
        pipeline: number of the pipeline at work; 0 in a loop of one's own.
        frame: the function that made the call, and the number of its frame; once that is over, a number may be that
            of another frame, but hardly of the same function's.
        guidance: scale of classifier-free guidance; 1 without, or if nobody knows.
    """

    scheduler: Any = None
    loop_state: Any = None
    pipeline: int = 0
    frame: tuple[CodeType, int] | None = None
    guidance: float = 1.0


def find_driver() -> Driver:
    """Who is calling now."""
    caller = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(_BETWEEN):
            caller = caller or (frame.f_code, id(frame))
            pipeline = _pipeline_of(frame)
            if pipeline is not None:
                loop_state = frame.f_locals.get(_LOOP_STATE)
                guidance = guidance_of(pipeline, frame)
                return Driver(_scheduler_of(pipeline), loop_state, number_of(pipeline), caller, guidance)
        frame = frame.f_back
    return Driver(frame=caller)


def number_of(pipeline: Any) -> int:
    """A number that no other pipeline ever has: an id is another object's once the first one is gone."""
    try:
        return _NUMBERS.setdefault(pipeline, next(_COUNT))
    except TypeError:  # nothing can refer to it weakly, or tell it from others
        return id(pipeline)


def _pipeline_of(frame: FrameType) -> Any:
    """The pipeline that this frame runs a method of, or a block for."""
    code = frame.f_code
    named = [name for name in _NAMES if name in code.co_varnames[: code.co_argcount]]
    owners = [frame.f_locals.get(name) for name in named]
    return next((owner for owner in owners if _scheduler_of(owner) is not None), None)


def _scheduler_of(owner: Any) -> Any:
    """The scheduler that an object is working with, if any; those of learning rates have no timesteps."""
    scheduler = getattr(owner, "__dict__", {}).get("scheduler")
    return scheduler if is_in_use(scheduler) else None


class OneAtATime:
    """Keeps images of several threads apart: what a patch keeps between steps belongs to one image.

    Nothing is locked while an image is generated, so nothing stays locked after an exception or an interrupt. Whether
    the last caller is still at work is read off the stack of its thread, and only when another thread calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._last = Driver()

    def enter(self, driver: Driver) -> None:
        """Register a call of this thread; raise if another one is in the middle of an image."""
        if not self.admit(driver):
            raise PatchError(
                "This model is generating an image on another thread, and a patched model generates one image at a "
                "time. Let one thread wait for the other, or give each a model of its own: copy.deepcopy(pipe) "
                "copies the patch too."
            )

    def admit(self, driver: Driver) -> bool:
        """Register a call of this thread, unless another one is in the middle of an image."""
        me = threading.get_ident()
        with self._lock:
            if self._thread not in (None, me) and self._is_at_work():
                return False
            self._thread, self._last = me, Driver(pipeline=driver.pipeline, frame=driver.frame)
            return True

    def is_mine(self) -> bool:
        """Whether the last call came from this thread."""
        return self._thread in (None, threading.get_ident())

    def _is_at_work(self) -> bool:
        """Whether the last call, or the pipeline that made it, is still on the stack of its thread."""
        frame = sys._current_frames().get(self._thread or 0)
        while frame is not None:
            if (frame.f_code, id(frame)) == self._last.frame:
                return True
            pipeline = _pipeline_of(frame) if self._last.pipeline else None
            if pipeline is not None and number_of(pipeline) == self._last.pipeline:
                return True
            frame = frame.f_back
        return False

    def __deepcopy__(self, _: dict[int, Any]) -> OneAtATime:
        """A copied model is free."""
        return OneAtATime()


class ImageEnd:
    """Calls ``function()`` when an image is done, however the pipeline says so."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self._loop: weakref.ref[Any] | None = None

    def follow(self, driver: Driver) -> None:
        """Modular pipelines do not say that an image is done; the state of their loop is dropped then."""
        self._loop = None
        if driver.loop_state is not None:
            own = weakref.WeakMethod(self.end)
            self._loop = weakref.ref(driver.loop_state, lambda _: (own() or _do_nothing)())

    def end(self) -> None:
        """The image is done."""
        self._loop = None
        self.function()


def _do_nothing() -> None:
    """For a patch that is gone."""
