"""Delays between attempts: exact arithmetic from the recorded seed, so that replay waits for nothing and derives the same."""

from hashlib import sha256
from typing import Final

from refold.fsm.limits import micros
from refold.projections.run import Run

FIRST_DELAY_US: Final = 500_000
LONGEST_DELAY_US: Final = 30_000_000
FIRST_TOOL_DELAY_US: Final = 50_000


def retry_delay(run: Run, attempt: int, retry_after_s: float | None) -> int:
    """Microseconds before attempt `attempt + 1` of a request: what the provider asked for, else doubling with jitter."""
    if retry_after_s is not None:
        return micros(retry_after_s)
    return _doubling(FIRST_DELAY_US, attempt, f"{run.begun.seed}|{run.turn}|{attempt}")


def tool_delay(run: Run, call: str, attempt: int) -> int:
    """Microseconds before attempt `attempt + 1` of a call."""
    return _doubling(FIRST_TOOL_DELAY_US, attempt, f"{run.begun.seed}|{call}|{attempt}")


def _doubling(first_us: int, attempt: int, word: str) -> int:
    """Between half and all of `first_us` doubled for every attempt so far."""
    most = min(LONGEST_DELAY_US, first_us << min(attempt - 1, 16))
    jitter = int.from_bytes(sha256(word.encode("utf-8")).digest()[:4], "big")
    return most // 2 + jitter % (most // 2 + 1)
