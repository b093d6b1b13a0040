"""The loop: perform what is pending, append what came of it, until nothing is pending.

It decides nothing. Starting, resuming, recovering from a crash and taking over are the same lines: attach, then go on.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from refold.events import facts as f
from refold.events.storage import StoreUnavailable
from refold.fsm.effects import AskModel, Effect, pending
from refold.projections.run import Run
from refold.runtime.journal import Journal, LostOwnership
from refold.runtime.performing import Cast, Performer, note_late
from refold.runtime.store import attach

WATCH_S: Final = 0.1
"""How often the log is asked whether somebody else appended while effects run."""


class RunExists(Exception):
    """A run of that id is already in the store."""


class Driver:
    """Drives one run until nothing is pending: it has ended, or only a human can move it."""

    def __init__(self, journal: Journal, cast: Cast) -> None:
        self.journal = journal
        self.lost = False
        """Whether somebody else took over."""
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[None] = self._loop.create_future()
        self._performer = Performer(journal, cast, self._stop)
        self._running: dict[str, asyncio.Task[Sequence[f.Input]]] = {}
        self._epoch = 0
        self._seen = -1
        self._appending = False
        self._watch: asyncio.TimerHandle | None = None

    async def drive(self, begin: Sequence[f.Input] = ()) -> Run:
        """Attach (with the facts that begin a new run, if it is one) and go on. Raises RunExists, StoreUnavailable, and what a log that is none raises."""
        await self.journal.command(lambda run: self._attach(run, begin))
        self._epoch = self.journal.run.epoch
        self._watch = self._loop.call_later(WATCH_S, self._look)
        try:
            while True:
                await self._go_on()
                await self._detach("waiting for a human")
                if self.journal.run.waits or self.journal.run.state == "done":
                    break
                # The human answered in the moment in which we let go.
                await self.journal.command(_take_up)
                self._epoch = self.journal.run.epoch
        except LostOwnership:
            self.lost = self.journal.run.state != "done"
        except asyncio.CancelledError:
            await self._end_effects()
            with suppress(LostOwnership):  # who took over meanwhile drives on; this task is cancelled all the same
                await self._detach("parked")
            raise
        finally:
            self._watch.cancel()
            await self._end_effects()
        return self.journal.run

    def cancel(self) -> None:
        """Let the effects that run come to their end: a cancellation is in the log, or about to be."""
        if not self._stop.done():
            self._stop.set_result(None)

    def _attach(self, run: Run, begin: Sequence[f.Input]) -> Sequence[f.Input]:
        if begin and run.position:
            raise RunExists(f"there is already a run {run.id}; choose another id, or resume it")
        return *begin, attach(run)

    async def _detach(self, why: str) -> None:
        """Let go of a run that has not ended."""
        if self.journal.run.state != "done":
            epoch = self._epoch
            await self.journal.command(lambda run: (f.DriverDetached(epoch=epoch, why=why),) if run.driver is not None else (), epoch=epoch)

    async def _go_on(self) -> None:
        """Perform everything that is pending; each outcome is appended when it happens."""
        while effects := pending(self.journal.run):
            if len(effects) == 1 and not self._running:
                await self._append(await self._performer.perform(effects[0]))
                continue
            for effect in effects:
                if _name(effect) not in self._running:
                    self._running[_name(effect)] = self._loop.create_task(self._performer.perform(effect))
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            for name in [name for name, task in self._running.items() if task.done()]:
                await self._append(self._running.pop(name).result())

    async def _append(self, facts: Sequence[f.Input]) -> None:
        """Append what an effect came to; of a run that is lost, what its handler did is noted."""
        self._appending = True
        try:
            await self.journal.command(lambda _run: facts, epoch=self._epoch)
        except LostOwnership:
            for fact in facts:
                if isinstance(fact, f.ToolSucceeded):
                    note_late(
                        self.journal, f.LateOutcome(call=fact.call, outcome="it returned a result after another driver had taken over", attempt=fact.attempt)
                    )
            raise
        finally:
            self._appending = False

    async def _end_effects(self) -> None:
        """Nothing is left running."""
        running = [task for task in self._running.values() if not task.done()]
        self._running.clear()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _look(self) -> None:
        """Notice what others appended while effects run; a cancellation, or another driver, ends them. A store that fails now is reported by the next append."""
        self._watch = self._loop.call_later(WATCH_S, self._look)
        if self._appending:
            return
        with suppress(StoreUnavailable):
            if (seen := self.journal.log.changed()) != self._seen:
                self._seen = seen
                self.journal.catch_up()
        run = self.journal.run
        if run.cancel is not None or run.epoch != self._epoch or run.state == "done":
            self.cancel()


def _name(effect: Effect) -> str:
    """What an effect is known by while it runs."""
    if isinstance(effect, AskModel):
        return f"request {effect.number}"
    return f"{type(effect).__name__} {effect.call} {getattr(effect, 'attempt', 0)}"


def _take_up(run: Run) -> Sequence[f.Input]:
    """Attach again, unless somebody else drives by now."""
    if run.driver is not None:
        raise LostOwnership(f"run {run.id} is driven by {run.driver.who}")
    return (attach(run),)
