"""tomadiff for ComfyUI: one node that accelerates a model, and one that shows what it did."""

from __future__ import annotations

from typing import Any


async def comfy_entrypoint() -> Any:
    """What ComfyUI calls."""
    from .nodes import Tomadiff  # so that the package can be looked at without ComfyUI

    return Tomadiff()
