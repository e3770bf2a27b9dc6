"""The measure of time along which outputs of a denoiser move most evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence

_INSIDE = 0.02  # how far the ends of the noise level are moved inside


def evened(times: Sequence[float]) -> tuple[float, ...]:
    """Times as log-odds of the noise level, along which outputs move most evenly.

    Timesteps from 0 to 1000, or noise levels from 0 to 1, are meant; any others stay as they are. The ends are a little
    inside, so that they are not infinitely far.
    """
    top = 1.0 if max(times) <= 1 else 1000.0
    if min(times) < 0 or max(times) > top:
        return tuple(times)
    levels = [_INSIDE + (1 - 2 * _INSIDE) * time / top for time in times]
    return tuple(math.log(level / (1 - level)) for level in levels)
