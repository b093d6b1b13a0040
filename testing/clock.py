"""A clock that stands still until it is told to move, so that a test about time takes none.

Apart from the other doubles, because whoever wants only time should load nothing else.
"""

from typing import Final

SOME_DAY_US: Final = 1_767_225_600_000_000
"""1 January 2026, 00:00 UTC."""


class ManualClock:
    """A `Clock` in a test's hands: `advance` moves both times, `step_back` only the one of the day, as a machine whose clock is set does."""

    def __init__(self, now_us: int = SOME_DAY_US) -> None:
        self._now_us = now_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time passes forwards; step_back sets the clock")
        self._now_us += round(seconds * 1_000_000)
        self._monotonic_us += round(seconds * 1_000_000)

    def step_back(self, seconds: float) -> None:
        """Set the clock of the day back."""
        self._now_us -= round(seconds * 1_000_000)
