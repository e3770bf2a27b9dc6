"""Triton equals of functions in :mod:`tomadiff.merging`.

Every function here has a definition in plain torch elsewhere, which tests hold it to; it does the same in one launch.
Triton itself is imported by the first launch, never before.

:func:`fused` says what a setting ``kernels="auto"``, ``"triton"`` or ``"torch"`` means: ``"auto"`` takes kernels
on a GPU that they are compiled for and plain torch everywhere else, ``"triton"`` works or raises.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch

from tomadiff.errors import SettingError, require_choice
from tomadiff.kernels.operators import local_choice, local_plan, merge, unmerge_add

__all__ = [
    "LONGEST",
    "LONGEST_PLANNED",
    "Choice",
    "assumed",
    "available",
    "fused",
    "local_choice",
    "local_plan",
    "merge",
    "unmerge_add",
]

Choice = Literal["auto", "triton", "torch"]

LONGEST = 256
"""Tokens per region that the kernels are made for; longer products are better left to torch's own."""

LONGEST_PLANNED = 64
"""The same for local_plan, which holds several matrices over a region in registers."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_OLDEST = (8, 0)  # compute capability: the tests compile for nothing older
_ASSUMED = ContextVar("_ASSUMED", default=False)


@contextmanager
def assumed(there: bool = True) -> Iterator[None]:
    """While it lasts, the meta device stands for one with kernels (if they are ``there``), to trace what they cost."""
    before = _ASSUMED.set(there)
    try:
        yield
    finally:
        _ASSUMED.reset(before)


def available(device: torch.device | str) -> bool:
    """Whether kernels run on ``device``: a GPU that they are compiled for, with Triton installed."""
    return _obstacle(torch.device(device)) is None


def fused(choice: Choice, device: torch.device, dtype: torch.dtype, length: int, *, missing: str | None = None) -> bool:
    """Whether to use a kernel on regions of ``length`` tokens.

    Args:
        choice: the setting. ``"triton"`` raises where there is no kernel.
        device: of the tensors.
        dtype: of the tokens.
        length: places per region.
        missing: a setting for which there is no kernel, in words.
    """
    require_choice("kernels", choice, ("auto", "triton", "torch"))
    if choice == "torch" or (choice == "auto" and device.type != "cuda" and not _stands_for_gpu(device)):
        return False
    obstacle = _obstacle(device) or _misfit(dtype, length) or (missing and f"there is no kernel for {missing}")
    if obstacle and choice == "triton":
        raise SettingError(
            f"kernels='triton' is not possible: {obstacle}. With kernels='auto', plain torch takes over."
        )
    return obstacle is None


def _obstacle(device: torch.device) -> str | None:
    """Why kernels cannot run on ``device``, and what to do about it."""
    if _stands_for_gpu(device):
        return None
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; on Linux, pip install 'tomadiff[triton]' brings it"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None  # Triton's own switch: kernels run anywhere, slowly, to be tested
    if device.type != "cuda":
        return f"the tensors are on '{device}'; kernels run on a GPU, so move the model there, e.g. with .to('cuda')"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _OLDEST:
        return f"this GPU is older than compute capability {_OLDEST[0]}.{_OLDEST[1]} (Ampere)"
    return None


def _stands_for_gpu(device: torch.device) -> bool:
    return device.type == "meta" and _ASSUMED.get()


def _misfit(dtype: torch.dtype, length: int) -> str | None:
    """Why these tensors do not suit the kernels."""
    if dtype not in _DTYPES:
        return f"tokens are {dtype}; kernels take float32, float16 and bfloat16"
    if length > LONGEST:
        return f"regions have {length} tokens and kernels take at most {LONGEST}; use smaller regions, e.g. Tiles(8)"
    return None
