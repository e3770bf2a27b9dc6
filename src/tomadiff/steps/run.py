"""What is known of a run of denoising steps when it begins, and which of its steps were computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """What is known of a run when it begins.

    Attributes:
        total: steps of the scheduler; ``None`` if nobody knows.
        first: step that it begins with (image-to-image begins further on).
        noisy: whether the sampler adds noise at every step.
        guidance: scale of classifier-free guidance; 1 without, or if nobody knows.
    """

    total: int | None = None
    first: int = 0
    noisy: bool = False
    guidance: float = 1.0

    @property
    def length(self) -> int | None:
        """Steps from the first on."""
        return None if self.total is None else self.total - self.first


@dataclass(frozen=True)
class Pattern:
    """Which steps of an image were computed and which were forecast.

    Attributes:
        computed: their numbers.
        forecast: their numbers.
        errors: the estimated relative error of each forecast output; none with a fixed pattern.
    """

    computed: tuple[int, ...] = ()
    forecast: tuple[int, ...] = ()
    errors: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        """Of the steps that was computed; 1 before the first."""
        return len(self.computed) / count if (count := len(self.computed) + len(self.forecast)) else 1.0

    def __str__(self) -> str:
        count = len(self.computed) + len(self.forecast)
        text = f"{len(self.computed)} of {count} steps computed"
        return f"{text}, estimated error {sum(self.errors) / count:.1%} a step" if self.errors else text
