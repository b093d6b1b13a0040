"""The right of a driver to drive: taken before it attaches, refreshed by a timer of its event loop, and let go when it stops.

Apart from the driver, because the right can end while any effect runs, and the driver should be told and not have to ask.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from refold.events.holds import Held, Hold, Holder
from refold.events.storage import Log, StoreUnavailable

REFRESHES: Final = 3
"""Refreshes in that time: so many may fail before the run is lost."""


class DrivenElsewhere(Exception):
    """Another driver has the run: another process that lives, or another task of this one. Times are microseconds since the epoch, by the store's clock."""

    def __init__(self, run_id: str, who: str, since_us: int, until_us: int) -> None:
        super().__init__(f"run {run_id} is {driven_by(Holder(who, since_us, until_us))}; wait for it, or cancel it")
        self.run_id, self.who, self.since_us, self.until_us = run_id, who, since_us, until_us


def driven_by(holder: Holder) -> str:
    """Who drives a run, and since when, in words."""
    return f"driven by {holder.who} since {_instant(holder.since_us, holder.until_us)} UTC"


def taken(log: Log, run_id: str, who: str, ttl_s: float | None = None) -> Hold:
    """The run for `ttl_s` (the `driver_ttl_s` of the store by default), for what is done in one go: `with taken(...):`. Raises DrivenElsewhere, StoreUnavailable."""
    try:
        return log.hold(run_id, who, log.driver_ttl_s if ttl_s is None else ttl_s)
    except Held as held:
        raise DrivenElsewhere(held.run_id, held.who, held.since_us, held.until_us) from None


class Ownership:
    """One driver's right to one run. `on_lost` is called at most once for each `acquire`, by the event loop and never after `release`.

    It keeps neither the process nor its driver alive: one that is forgotten is refreshed no more, and lapses.
    """

    def __init__(self, on_lost: Callable[[], object]) -> None:
        self._on_lost = on_lost
        self._hold: Hold | None = None
        self._sure_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> bool:
        """Whether the run was acquired, and neither let go nor lost as far as is known."""
        return self._hold is not None

    def acquire(self, log: Log, run_id: str, who: str, ttl_s: float | None = None) -> None:
        """Takes the run and keeps it, inside a running event loop. Raises DrivenElsewhere, StoreUnavailable."""
        assert self._hold is None, f"run {run_id} is acquired twice"
        loop = asyncio.get_running_loop()
        began = _now_s()
        self._hold = taken(log, run_id, who, ttl_s)
        self._sure_until = began + self._hold.ttl_s
        self._watch(loop)

    def check(self) -> bool:
        """Whether the run is held now, for the moment before an effect: asks the store only where the time has passed, as after the process was stopped.

        Calls `on_lost` where it finds that the run is lost.
        """
        if self._hold is not None and _now_s() >= self._sure_until:
            self._refresh(self._hold)
        return self._hold is not None

    def release(self) -> None:
        """Anybody may drive the run; may be called again, also where the event loop is closed. Where the store fails now, the hold lapses by itself."""
        hold = self._end()
        if hold is not None:
            with suppress(StoreUnavailable):
                hold.release()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._hold is not None
        self._timer = loop.call_later(self._hold.ttl_s / REFRESHES, _tick, weakref.ref(self), loop)

    def _refresh(self, hold: Hold) -> None:
        """A store that fails takes nothing away before the time has passed: the next tick asks again."""
        began = _now_s()
        try:
            refreshed = hold.refresh()
        except StoreUnavailable:
            refreshed = began < self._sure_until
        else:
            self._sure_until = began + hold.ttl_s
        if not refreshed:
            self._end()
            self._on_lost()

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer's: a third of the time has passed."""
        if self._hold is not None:
            self._refresh(self._hold)
        if self._hold is not None:
            self._watch(loop)

    def _end(self) -> Hold | None:
        hold, self._hold = self._hold, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return hold


def _tick(ownership: "weakref.ref[Ownership]", loop: asyncio.AbstractEventLoop) -> None:
    if (found := ownership()) is not None:
        found.tick(loop)


def _now_s() -> float:
    """Time that nobody sets, and that goes on while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _instant(since_us: int, until_us: int) -> str:
    """The time of the day; with the day where that is not the present one (a driver that lives has a time that has just begun)."""
    since, until = (datetime.fromtimestamp(us / 1_000_000, UTC) for us in (since_us, until_us))
    return since.strftime("%H:%M:%S" if since.date() == until.date() else "%Y-%m-%d %H:%M:%S")
