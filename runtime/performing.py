"""Performs one effect and gives the input facts that it came to: a request, what it shows, a summary, a call of a tool, a question to a tool about a call in doubt.

Apart from the driver, which only knows that effects end in facts; everything that touches model and tools is here.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from refold.events import facts as f, money
from refold.events.storage import StoreUnavailable
from refold.events.words import Reason
from refold.fsm import limits
from refold.fsm.effects import AskModel, ChooseContext, Effect, Reconcile, RunTool, Summarise
from refold.projections.evidence import cited
from refold.projections.excerpts import READ_RESULT
from refold.projections.run import Run
from refold.runtime import compacting, handlers, ports as p, rereading, selecting
from refold.runtime.asking import Allowance, Answered, ask
from refold.runtime.checkpoints import Append, Checkpoints
from refold.runtime.consults import Consults
from refold.runtime.journal import Journal, LostOwnership
from refold.runtime.metering import Purse
from refold.runtime.redaction import Redaction, Shown
from refold.runtime.requests import request_of
from refold.runtime.tools import Tool, ToolContext


@dataclass(frozen=True)
class Cast:
    """Who plays in a run: the model, the agent's code, a clock, and somebody to show parts to."""

    model: p.Model
    consults: Consults
    clock: p.Clock
    show: Callable[[p.Part], None]
    switched: f.ModelSetup | None = None
    """The model, where it is another than the run had."""


class Performer:
    """Performs the effects of one run; once `stop` is done each comes to its end.

    `look` takes notice of what others appended meanwhile, `append` writes down what is known of an effect before it ends.
    """

    def __init__(self, journal: Journal, cast: Cast, stop: "asyncio.Future[None]", look: Callable[[], None], append: Append) -> None:
        self.journal, self.cast, self._stop, self._look, self._append = journal, cast, stop, look, append
        self._redaction = cast.consults.redaction

    async def perform(self, effect: Effect) -> Sequence[f.Input]:
        """The facts that an effect came to. Raises the cancellation of its own task, and what `append` raises."""
        if effect.delay_us:
            await asyncio.wait({self._stop}, timeout=effect.delay_us / 1_000_000)
            self._look()
        if self._stop.done():
            return (_not_begun(effect),)
        match effect:
            case AskModel():
                return await self._ask(effect)
            case ChooseContext():
                return (self._choose(effect),)
            case Summarise():
                return (await self._summarise(effect.asked),)
            case RunTool():
                return (await self._run_tool(effect),)
            case Reconcile():
                return (await self._reconcile(effect),)
            case _:
                assert_never(effect)

    async def _ask(self, effect: AskModel) -> Sequence[f.Input]:
        request = request_of(self.journal.run, self.journal.transcript)
        consults = self.cast.consults
        answered = self._redaction.output(await self._streamed(request, effect.estimated_input_tokens, self._allowance()))
        if isinstance(answered, f.ToolCallsRequested):
            return answered, self._redaction.verdict(consults.calls(answered))
        if isinstance(answered, f.FinalProposed):
            return answered, self._redaction.verdict(consults.answer(self.journal.run, answered, cited(self.journal.run, answered)))
        return (answered,)

    async def _streamed(self, request: p.Request, estimated_input: int, allowance: Allowance) -> Answered:
        """Ask, showing what comes and writing it down beside; everything that was handed over is stored behind this. Raises what the store raises."""
        checkpoints = Checkpoints(request.turn, self._append)

        def hear(part: p.Part) -> None:
            self.cast.show(part)
            checkpoints.take(part)

        shown = Shown(self._redaction, hear)
        try:
            answered = await ask(self.cast.model, request, estimated_input, allowance, self.cast.clock, shown.take, self._stop, checkpoints.broken)
        except asyncio.CancelledError:  # the run is parked, and there will be no response
            shown.end()
            with suppress(LostOwnership):  # who took over meanwhile drives on; this task is cancelled all the same
                await checkpoints.close(rest=True)
            raise
        finally:
            checkpoints.stop()
        shown.end()
        await checkpoints.close()
        return answered

    def _allowance(self) -> Allowance:
        """What a request may take now."""
        run = self.journal.run
        seconds, limit = time_left(run, self.cast.clock)
        return Allowance(seconds, limit, run.policy.model_idle_timeout_s, purse_of(run))

    def _choose(self, effect: ChooseContext) -> f.ContextChosen:
        name, builder = self.cast.consults.context_builder
        return selecting.choice(self.journal.run, self.journal.transcript, effect.choosable, name, builder)

    async def _summarise(self, asked: f.SummaryRequested) -> f.ContextCompacted:
        run, transcript = self.journal.run, self.journal.transcript
        if asked.author == "extractive":
            return compacting.extracted(asked, run, transcript)
        request = compacting.request_of(asked, run, transcript)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        said = await ask(self.cast.model, request, asked.estimated_input_tokens, self._allowance(), self.cast.clock, _nobody, self._stop, never)
        return compacting.summarised(asked, transcript, request, self._redaction.output(said))

    async def _run_tool(self, effect: RunTool) -> f.ToolSucceeded | f.ToolFailed:
        run, clock = self.journal.run, self.cast.clock
        tool = self.cast.consults.tools.get(effect.name)
        if tool is None:
            return _missing(effect)
        if effect.name == READ_RESULT and rereading.offered(run.context):
            tool = rereading.reader(self.journal)
        left_s, _ = time_left(run, clock)
        timeout_s = min((seconds for seconds in (effect.timeout_s, left_s) if seconds is not None), default=None)
        late = _Late(self.journal, effect, self._redaction)
        began = clock.monotonic_us()
        outcome = await self._handled(tool, effect.arguments, _context(run, effect), timeout_s, late)
        elapsed_us = clock.monotonic_us() - began
        if isinstance(outcome, handlers.Failed) and outcome.kind == "timeout" and timeout_s is not None:
            elapsed_us = max(elapsed_us, round(timeout_s * 1_000_000))
        return _outcome(effect, outcome, elapsed_us)

    async def _handled(self, tool: Tool, arguments: str, ctx: ToolContext, timeout_s: float | None, late: "_Late") -> handlers.Succeeded | handlers.Failed:
        """Run a handler until it ends or the run is to end."""
        policy = self.journal.run.policy
        performing = asyncio.get_running_loop().create_task(
            handlers.perform(
                tool,
                arguments,
                ctx,
                timeout_s=timeout_s,
                max_result_bytes=policy.max_result_bytes,
                max_stuck_threads=policy.max_stuck_threads,
                on_late=late.hear,
            )
        )
        either: set[asyncio.Future[Any]] = {performing, self._stop}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the run is parked: what the handler gives all the same is its outcome
            await _ended(performing)
            known = late.when_parked() if performing.cancelled() else performing.result()
            if known is None:
                raise
            return self._redaction.outcome(known)
        await _ended(performing)
        outcome = late.when_cancelled() if performing.cancelled() else performing.result()
        late.note(heard=performing.cancelled())
        return self._redaction.outcome(outcome)

    async def _reconcile(self, effect: Reconcile) -> f.DoubtResolved:
        """Ask the tool what became of a call: a value is the result it had, NotPerformed says that nothing happened, None or any error that it cannot tell."""
        run = self.journal.run
        tool = self.cast.consults.tools.get(effect.name)
        if tool is None or tool.reconcile is None:
            return f.DoubtResolved(call=effect.call, verdict="unknown", by="reconcile", who=effect.name)
        reconcile = tool.reconcile
        asking = Tool(name=tool.name, description="", schema={"type": "object"}, handler=lambda _arguments, _ctx: reconcile(effect.key), effect="read")
        ctx = ToolContext(run_id=run.id, turn=run.turn, call_id=effect.call, attempt=1, idempotency_key=effect.key)
        timeout_s = tool.timeout_s if tool.timeout_s is not None else run.policy.tool_timeout_s
        outcome = await self._handled(asking, "{}", ctx, timeout_s, _Late(self.journal, None, self._redaction))
        if isinstance(outcome, handlers.Succeeded) and outcome.data != b"null":
            return f.DoubtResolved(call=effect.call, verdict="happened", result=msgspec.json.decode(outcome.data), by="reconcile", who=effect.name)
        happened_not = isinstance(outcome, handlers.Failed) and outcome.performed == "no" and outcome.error_type == "NotPerformed"
        return f.DoubtResolved(call=effect.call, verdict="did_not_happen" if happened_not else "unknown", by="reconcile", who=effect.name)


async def _ended(performing: "asyncio.Task[Any]") -> None:
    """Tell a handler to stop where it has not, and wait until it has or is given up."""
    if not performing.done():
        performing.cancel()
        await asyncio.wait({performing})


def _nobody(_: p.Part) -> None:
    """A summary is no part of what the model says to the user."""


def _context(run: Run, effect: RunTool) -> ToolContext:
    return ToolContext(run_id=run.id, turn=run.turn, call_id=effect.call, attempt=effect.attempt, idempotency_key=effect.key)


class _Late:
    """What a handler that was told to stop still gives: its outcome while that is open, a note in the log after."""

    def __init__(self, journal: Journal, effect: RunTool | None, redaction: Redaction) -> None:
        self._journal, self._effect, self._redaction = journal, effect, redaction
        self._heard: handlers.Succeeded | handlers.Failed | None = None
        self._noting = False

    def hear(self, outcome: handlers.Succeeded | handlers.Failed) -> None:
        """Called once at most, by the event loop or by the handler's thread."""
        self._heard = outcome
        if self._noting and self._effect is not None:
            append_late(self._journal, self._effect, self._redaction.outcome(outcome))

    def when_cancelled(self) -> handlers.Succeeded | handlers.Failed:
        """The outcome of a call that was cancelled: what it returned all the same, else that it was cancelled, and whether it knows that nothing happened."""
        if isinstance(self._heard, handlers.Succeeded):
            return self._heard
        performed = self._heard.performed if self._heard is not None else "unknown"
        return handlers.Failed(kind="cancelled", message="the run was cancelled while this call ran", performed=performed)

    def when_parked(self) -> handlers.Succeeded | handlers.Failed | None:
        """The outcome of a call whose run was parked, where the handler knew it: its result, or that nothing happened, so that it may be begun again."""
        if isinstance(self._heard, handlers.Failed) and self._heard.performed == "no":
            message = "the run was parked while this call ran, and nothing was performed"
            return handlers.Failed(kind="cancelled", message=message, performed="no", retryable=True)
        return self._heard if isinstance(self._heard, handlers.Succeeded) else None

    def note(self, *, heard: bool) -> None:
        """From here on what comes is a note, and so is what came already, unless it was `heard` as the outcome."""
        self._noting = True
        if self._heard is not None and not heard:
            asyncio.get_running_loop().call_soon(self.hear, self._heard)  # behind the outcome


def append_late(journal: Journal, effect: RunTool, outcome: handlers.Succeeded | handlers.Failed) -> None:
    """Note what a handler gave after it had been given up; it changes nothing."""
    text = "it returned a result" if isinstance(outcome, handlers.Succeeded) else f"it ended as {outcome.kind}: {outcome.message}"
    note_late(journal, f.LateOutcome(call=effect.call, outcome=text[:2_000], attempt=effect.attempt))


def note_late(journal: Journal, fact: f.LateOutcome) -> None:
    """Append a late outcome from outside the driver."""
    with suppress(StoreUnavailable):  # a store that is closed by then takes no more notes, and the note changes nothing
        Journal(journal.log, journal.run.id, clock=journal.clock).load().command_sync(lambda _run: (fact,))


def purse_of(run: Run) -> Purse:
    """Tokens and money that the next response may take."""
    tokens, usd = run.budgets.max_tokens, run.budgets.max_cost_usd
    return Purse(
        tokens=None if tokens is None else tokens - run.spent.tokens,
        usd=None if usd is None else money.subtract(usd, run.spent.cost_usd),
        price=run.begun.price,
    )


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


def _not_begun(effect: Effect) -> f.Input:
    """What an effect came to that the end of the run found before it began: nothing was asked, and nothing was done."""
    match effect:
        case ChooseContext():
            return f.ContextChosen(builder="", error="the run was cancelled before it was asked")
        case Summarise():
            return compacting.not_begun(effect.asked)
        case AskModel():
            return f.ModelInterrupted(cause="cancelled", detail="the run was cancelled before the model was asked", usage=f.Usage())
        case RunTool():
            message = "the run was cancelled before this attempt began"
            return f.ToolFailed(call=effect.call, kind="cancelled", message=message, performed="no", attempt=effect.attempt)
        case Reconcile():
            return f.DoubtResolved(call=effect.call, verdict="unknown", by="reconcile", who=effect.name)
        case _:
            assert_never(effect)


def _missing(effect: RunTool) -> f.ToolFailed:
    """The agent that resumes the run has no such tool any more."""
    message = f"the tool {effect.name} was there when the run began, and this agent does not have it"
    return f.ToolFailed(call=effect.call, kind="execution_failed", message=message, error="MissingTool", performed="no", attempt=effect.attempt)
