"""Tests of this folder run inside Triton's interpreter, which is switched on before Triton is imported or never.

``tests/kernels/test_interpreted.py`` runs them in a process of their own; by hand:
``TRITON_INTERPRET=1 python -m pytest tests/kernels/interpreted``.
"""

import os
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def _products_of_bfloat16() -> None:
    """The interpreter keeps bfloat16 as 16 raw bits and multiplies those (triton issue 11584); convert them first."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    original = builder.create_dot

    def as_float32(operand: Any) -> Any:
        if operand.dtype != tl.bfloat16:
            return operand
        data = interpreter._convert_float(operand.data, tl.bfloat16, tl.float32, None).view("float32")
        return interpreter.TensorHandle(data, tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return original(self, as_float32(a), as_float32(b), *rest)

    builder.create_dot = create_dot
