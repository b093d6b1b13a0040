"""The loop: ask what is pending, perform it, append what came of it.

It decides nothing. Starting, resuming, recovering from a crash and taking over are the same lines: attach, then go on while something is pending.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from refold.events import facts as f
from refold.events.storage import StoreUnavailable
from refold.events.words import Reason
from refold.fsm import limits
from refold.fsm.effects import AskModel, RunTool, pending
from refold.projections.evidence import cited
from refold.projections.run import Run
from refold.runtime import handlers, ports as p
from refold.runtime.asking import Allowance, ask
from refold.runtime.consults import Consults
from refold.runtime.journal import Journal, LostOwnership
from refold.runtime.requests import request_of
from refold.runtime.store import attach
from refold.runtime.tools import ToolContext

WATCH_S: Final = 0.1
"""How often the log is asked whether somebody else appended while an effect runs."""


@dataclass(frozen=True)
class Cast:
    """Who plays in a run: the model, the agent's code, a clock, and somebody to show parts to."""

    model: p.Model
    consults: Consults
    clock: p.Clock
    show: Callable[[p.Part], None]


class RunExists(Exception):
    """A run of that id is already in the store."""


class Driver:
    """Drives one run until nothing is pending: it has ended, or only a human can move it."""

    def __init__(self, journal: Journal, cast: Cast) -> None:
        self.journal, self.cast = journal, cast
        self.lost = False
        """Whether somebody else took over."""
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[None] = self._loop.create_future()
        self._seen = -1
        self._watch: asyncio.TimerHandle | None = None

    async def drive(self, begin: Sequence[f.Input] = ()) -> Run:
        """Attach (with the facts that begin a new run, if it is one) and go on. Raises RunExists, StoreUnavailable, and what a log that is none raises."""
        await self.journal.command(lambda run: self._attach(run, begin))
        epoch = self.journal.run.epoch
        try:
            while True:
                while effects := pending(self.journal.run):
                    facts = await self._perform(effects[0])
                    await self.journal.command(lambda _run, facts=facts: facts, epoch=epoch)  # type: ignore[misc]
                await self._detach(epoch, "waiting for a human")
                if self.journal.run.waits or self.journal.run.state == "done":
                    break
                # The human answered in the moment in which we let go.
                await self.journal.command(_take_up)
                epoch = self.journal.run.epoch
        except LostOwnership:
            self.lost = self.journal.run.state != "done"
        except asyncio.CancelledError:
            with suppress(LostOwnership):  # who took over meanwhile drives on; this task is cancelled all the same
                await self._detach(epoch, "parked")
            raise
        return self.journal.run

    def _attach(self, run: Run, begin: Sequence[f.Input]) -> Sequence[f.Input]:
        if begin and run.position:
            raise RunExists(f"there is already a run {run.id}; choose another id, or resume it")
        return *begin, attach(run)

    def cancel(self) -> None:
        """Let the effect that runs come to its end: a cancellation is in the log, or about to be."""
        if not self._stop.done():
            self._stop.set_result(None)

    async def _detach(self, epoch: int, why: str) -> None:
        """Let go of a run that has not ended."""
        if self.journal.run.state != "done":
            await self.journal.command(lambda run: (f.DriverDetached(epoch=epoch, why=why),) if run.driver is not None else (), epoch=epoch)

    async def _perform(self, effect: AskModel | RunTool) -> Sequence[f.Input]:
        """Perform one effect while watching the log for news."""
        self._watch = self._loop.call_later(WATCH_S, self._look)
        try:
            await self._wait(effect.delay_us)
            return await (self._ask(effect) if isinstance(effect, AskModel) else self._run_tool(effect))
        finally:
            self._watch.cancel()

    async def _wait(self, delay_us: int) -> None:
        """The delay before another attempt, cut short when the run is to end."""
        if delay_us:
            await asyncio.wait({self._stop}, timeout=delay_us / 1_000_000)

    def _look(self) -> None:
        """Notice what others appended while an effect runs; a cancellation, or another driver, ends it. A store that fails now is reported by the next append."""
        self._watch = self._loop.call_later(WATCH_S, self._look)
        run = self.journal.run
        with suppress(StoreUnavailable):
            if (seen := self.journal.log.changed()) != self._seen:
                self._seen = seen
                self.journal.catch_up()
        if self.journal.run.cancel is not None or self.journal.run.epoch != run.epoch or self.journal.run.state == "done":
            self.cancel()

    # -- the model

    async def _ask(self, effect: AskModel) -> Sequence[f.Input]:
        run = self.journal.run
        request = request_of(run, self.journal.messages)
        seconds, limit = time_left(run, self.cast.clock)
        tokens = run.budgets.max_tokens
        allowance = Allowance(seconds, limit, run.policy.model_idle_timeout_s, None if tokens is None else tokens - run.spent.tokens)
        answered = await ask(self.cast.model, request, effect.estimated_input_tokens, allowance, self.cast.clock, self.cast.show, self._stop)
        if isinstance(answered, f.ToolCallsRequested):
            return answered, self.cast.consults.calls(answered)
        if isinstance(answered, f.FinalProposed):
            return answered, self.cast.consults.answer(self.journal.run, answered, cited(self.journal.run, answered))
        return (answered,)

    # -- tools

    async def _run_tool(self, effect: RunTool) -> Sequence[f.Input]:
        run, clock = self.journal.run, self.cast.clock
        tool = self.cast.consults.tools.get(effect.name)
        if tool is None:
            return (_missing(effect),)
        left_s, _limit = time_left(run, clock)
        timeout_s = min((seconds for seconds in (effect.timeout_s, left_s) if seconds is not None), default=None)
        ctx = ToolContext(run_id=run.id, turn=run.turn, call_id=effect.call, attempt=effect.attempt, idempotency_key=effect.key)
        late = _Late(self.journal, effect)
        began = clock.monotonic_us()
        performing = self._loop.create_task(
            handlers.perform(
                tool,
                effect.arguments,
                ctx,
                timeout_s=timeout_s,
                max_result_bytes=run.policy.max_result_bytes,
                max_stuck_threads=run.policy.max_stuck_threads,
                on_late=late.hear,
            )
        )
        either: set[asyncio.Future[Any]] = {performing, self._stop}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not performing.done():
                performing.cancel()
                await asyncio.wait({performing})
        elapsed_us = clock.monotonic_us() - began
        outcome = late.when_cancelled() if performing.cancelled() else performing.result()
        late.note()
        if isinstance(outcome, handlers.Failed) and outcome.kind == "timeout" and timeout_s is not None:
            elapsed_us = max(elapsed_us, round(timeout_s * 1_000_000))
        return (_outcome(effect, outcome, elapsed_us),)


class _Late:
    """What a handler that was told to stop still gives: its outcome while that is open, a note in the log after."""

    def __init__(self, journal: Journal, effect: RunTool) -> None:
        self._journal, self._effect = journal, effect
        self._heard: handlers.Succeeded | handlers.Failed | None = None
        self._noting = False

    def hear(self, outcome: handlers.Succeeded | handlers.Failed) -> None:
        """Called once at most, by the event loop or by the handler's thread."""
        self._heard = outcome
        if self._noting:
            self._append(outcome)

    def when_cancelled(self) -> handlers.Succeeded | handlers.Failed:
        """The outcome of a call that was cancelled: what it returned all the same, else that it was cancelled, and whether it knows that nothing happened."""
        if isinstance(self._heard, handlers.Succeeded):
            return self._heard
        performed = self._heard.performed if self._heard is not None else "unknown"
        return handlers.Failed(kind="cancelled", message="the run was cancelled while this call ran", performed=performed)

    def note(self) -> None:
        """From here on what comes is a note."""
        self._noting = True

    def _append(self, outcome: handlers.Succeeded | handlers.Failed) -> None:
        text = "it returned a result" if isinstance(outcome, handlers.Succeeded) else f"it ended as {outcome.kind}: {outcome.message}"
        fact = f.LateOutcome(call=self._effect.call, outcome=text[:2_000], attempt=self._effect.attempt)
        Journal(self._journal.log, self._journal.run.id, clock=self._journal.clock).load().command_sync(lambda _run: (fact,))


def _take_up(run: Run) -> Sequence[f.Input]:
    """Attach to a run that nobody drives. Raises LostOwnership where somebody does by now."""
    if run.driver is not None or run.state == "done":
        raise LostOwnership(f"run {run.id} is driven by somebody else, or has ended")
    return (attach(run),)


def time_left(run: Run, clock: p.Clock) -> tuple[float | None, Reason]:
    """Seconds until the first limit of time, and its name."""
    ends: list[tuple[int, Reason]] = []
    if run.budgets.timeout_s is not None:
        ends.append((limits.micros(run.budgets.timeout_s) - run.spent.active_us, "timeout_s"))
    if run.budgets.deadline is not None:
        ends.append((limits.instant(run.budgets.deadline) - clock.now_us(), "deadline"))
    if not ends:
        return None, "timeout_s"
    left_us, limit = min(ends)
    return max(0, left_us) / 1_000_000, limit


def _outcome(effect: RunTool, outcome: handlers.Succeeded | handlers.Failed, elapsed_us: int) -> f.ToolSucceeded | f.ToolFailed:
    if isinstance(outcome, handlers.Succeeded):
        notes = tuple(f.Note(text=note.text, source_ids=tuple(note.source_ids)) for note in outcome.notes)
        result = msgspec.json.decode(outcome.data)
        return f.ToolSucceeded(call=effect.call, result=result, source_ids=outcome.source_ids, notes=notes, attempt=effect.attempt, elapsed_us=elapsed_us)
    return f.ToolFailed(
        call=effect.call,
        kind=outcome.kind,
        message=outcome.message,
        error=outcome.error_type,
        retryable=outcome.retryable,
        performed=outcome.performed,
        attempt=effect.attempt,
        elapsed_us=elapsed_us,
    )


def _missing(effect: RunTool) -> f.ToolFailed:
    """The agent that resumes the run has no such tool any more."""
    message = f"the tool {effect.name} was there when the run began, and this agent does not have it"
    return f.ToolFailed(call=effect.call, kind="execution_failed", message=message, error="MissingTool", performed="no", attempt=effect.attempt)
