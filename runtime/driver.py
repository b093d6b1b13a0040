"""The loop: perform what is pending, append what came of it, until nothing is pending.

It decides nothing. Starting, resuming, recovering from a crash and taking over are the same lines: attach, then go on.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Final

from refold.events import facts as f
from refold.events.parts import CallFact
from refold.events.storage import StoreUnavailable
from refold.fsm.effects import AskModel, ChooseContext, Effect, Summarise, pending
from refold.projections.run import Run, replace
from refold.runtime.journal import Journal, LostOwnership, this_process
from refold.runtime.ownership import DrivenElsewhere, Ownership
from refold.runtime.performing import Cast, Performer, note_late
from refold.runtime.store import attach

WATCH_S: Final = 0.1
"""How often the log is asked whether somebody else appended while effects run."""


STOPPING: Final[ContextVar[Callable[[], bool]]] = ContextVar("stopping", default=lambda: False)
"""Whether whoever drives was told to stop, and is about to cancel the run or its task: nothing is begun from then on. Of everything that is driven in this context."""


class RunExists(Exception):
    """A run of that id is already in the store."""


class Driver:
    """Drives one run until nothing is pending: it has ended, or only a human can move it."""

    def __init__(self, journal: Journal, cast: Cast) -> None:
        self.journal = journal
        self.lost = False
        """Whether somebody else took over."""
        self._stopping = STOPPING.get()
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[None] = self._loop.create_future()
        self._ownership = Ownership(self.cancel)
        self._performer = Performer(journal, cast, self._stop, self._notice, self._append_beside)
        self._running: dict[str, asyncio.Task[Sequence[f.Input]]] = {}
        self._parked = Parked()
        self._epoch = 0
        self._seen = -1
        self._appending = False
        self._watch: asyncio.TimerHandle | None = None

    async def drive(self, begin: Sequence[f.Input] = ()) -> Run:
        """Attach (with the facts that begin a new run, if it is one) and go on.

        Raises RunExists, DrivenElsewhere, StoreUnavailable, and what a log that is none raises.
        """
        self._own(begin)
        try:
            await self.journal.command(lambda run: self._attach(run, begin))
            self._epoch = self.journal.run.epoch
            self._watch = self._loop.call_later(WATCH_S, self._look)
            while True:
                await self._go_on()
                await self._detach("waiting for a human")
                # Let go before the last look: who answers and resumes before that is refused, and seen here.
                self._ownership.release()
                self.journal.catch_up()
                if self.journal.run.state == "done" or (self.journal.run.waits and not self._in_vain(self.journal.run)):
                    break
                # The human answered in the moment in which we let go, or is asked about what could not run.
                self._own(())
                await self.journal.command(lambda run: (*self._in_vain(run), *_take_up(run)))
                self._epoch = self.journal.run.epoch
        except LostOwnership:
            self.lost = self.journal.run.state != "done"
        except asyncio.CancelledError:
            known = await self._end_effects()
            with suppress(LostOwnership):  # who took over meanwhile drives on; this task is cancelled all the same
                await self._detach("parked", known)
            raise
        finally:
            if self._watch is not None:
                self._watch.cancel()
            await self._end_effects()
            self._ownership.release()
        return self.journal.run

    def _in_vain(self, run: Run) -> Sequence[f.Input]:
        return self._performer.cast.consults.in_vain(run)

    def _own(self, begin: Sequence[f.Input]) -> None:
        """Raises RunExists, DrivenElsewhere."""
        try:
            self._ownership.acquire(self.journal.log, self.journal.run.id, this_process())
        except DrivenElsewhere:
            if begin and self.journal.log.head(self.journal.run.id) is not None:  # else there is no run yet that whoever is told so could resume
                raise RunExists(f"there is already a run {self.journal.run.id}; choose another id, or resume it") from None
            raise

    def cancel(self) -> None:
        """Let the effects that run come to their end: a cancellation is in the log, or about to be."""
        if not self._stop.done():
            self._stop.set_result(None)

    def _attach(self, run: Run, begin: Sequence[f.Input]) -> Sequence[f.Input]:
        if begin and run.position:
            raise RunExists(f"there is already a run {run.id}; choose another id, or resume it")
        if run.state == "done":
            raise LostOwnership(f"run {run.id} has ended")
        cast = self._performer.cast
        return *begin, *cast.consults.void(run), replace(attach(run), switched=cast.switched)

    async def _detach(self, why: str, known: Sequence[f.Input] = ()) -> None:
        """Let go of a run that has not ended; what effects came to meanwhile is in the same batch, so that nothing is begun any more."""
        if self.journal.run.state != "done":
            await self._append((*known, f.DriverDetached(epoch=self._epoch, why=why)))

    async def _go_on(self) -> None:
        """Perform everything that is pending; each outcome is appended when it happens."""
        while effects := pending(self.journal.run):
            if not self._ownership.check():
                raise _elsewhere(self.journal.run)
            if self._stopping():  # whoever was told so is about to cancel this task, or the run
                await asyncio.wait({self._stop}, timeout=WATCH_S)
                self._notice()
                if not self._stop.done():
                    continue
            if len(effects) == 1 and not self._running:
                await self._append(self._parked.unless(await self._performer.perform(effects[0])))
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
            if not self._ownership.held:
                raise _elsewhere(self.journal.run)
            await self.journal.command(lambda run: [_in_time(run, fact) for fact in facts], epoch=self._epoch)
        except LostOwnership:
            for fact in facts:
                if isinstance(fact, f.ToolSucceeded):
                    note_late(
                        self.journal, f.LateOutcome(call=fact.call, outcome="it returned a result after another driver had taken over", attempt=fact.attempt)
                    )
            raise
        finally:
            self._appending = False

    async def _append_beside(self, facts: Sequence[f.Input]) -> None:
        """Append what is known of an effect that goes on; meanwhile nothing else is appended or read."""
        if not self._ownership.held:
            raise _elsewhere(self.journal.run)
        self._appending = True
        try:
            await self.journal.command(lambda _run: facts, epoch=self._epoch, beside=True)
        finally:
            self._appending = False

    async def _end_effects(self) -> list[f.Input]:
        """Nothing is left running; gives what the effects came to all the same."""
        running = list(self._running.values())
        self._running.clear()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        ended = [task.result() for task in running if not task.cancelled() and task.exception() is None]
        return [*self._parked.known, *(fact for facts in ended for fact in facts)]

    def _look(self) -> None:
        """Notice what others appended, again and again."""
        self._watch = self._loop.call_later(WATCH_S, self._look)
        self._notice()

    def _notice(self) -> None:
        """Notice what others appended while effects run; a cancellation, or another driver, ends them. A store that fails now is reported by the next append."""
        if self._appending:
            return
        with suppress(StoreUnavailable):
            if (seen := self.journal.log.changed()) != self._seen:
                self._seen = seen
                self.journal.catch_up()
        run = self.journal.run
        if run.cancel is not None or run.epoch != self._epoch or run.state == "done":
            self.cancel()


class Parked:
    """What the call came to in whose midst this task was cancelled; `known` is nothing otherwise."""

    def __init__(self) -> None:
        self.known: Sequence[f.Input] = ()
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0

    def unless(self, facts: Sequence[f.Input]) -> Sequence[f.Input]:
        """`facts`, unless the task was cancelled meanwhile: then those of a call are kept; a model is asked again. Raises CancelledError."""
        if self._task is not None and self._task.cancelling() > self._before:
            self.known = [fact for fact in facts if isinstance(fact, CallFact)]
            raise asyncio.CancelledError
        return facts


def _elsewhere(run: Run) -> LostOwnership:
    return LostOwnership(f"run {run.id} may be driven by somebody else by now")


def _in_time(run: Run, fact: f.Input) -> f.Input:
    """What a tool says of a call in doubt that a human has settled meanwhile comes too late."""
    call = run.call(fact.call) if isinstance(fact, f.DoubtResolved) else None
    if not isinstance(fact, f.DoubtResolved) or (call is not None and call.phase == "doubt"):
        return fact
    return f.LateOutcome(call=fact.call, outcome=f"asked what became of it, the tool said: {fact.verdict}", by="reconcile")


def _name(effect: Effect) -> str:
    """What an effect is known by while it runs."""
    if isinstance(effect, AskModel):
        return f"request {effect.number}"
    if isinstance(effect, ChooseContext | Summarise):
        return "context"
    return f"{type(effect).__name__} {effect.call} {getattr(effect, 'attempt', 0)}"


def _take_up(run: Run) -> Sequence[f.Input]:
    """Attach again, unless somebody else drives by now."""
    if run.driver is not None:
        raise LostOwnership(f"run {run.id} is driven by {run.driver.who}")
    return (attach(run),)
