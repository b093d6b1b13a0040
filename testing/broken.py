"""Runtimes that are broken on purpose, one for each way of losing or repeating something.

Apart from the engine, which has no switch for any of this: each takes the place of a function, a driver, a journal or a store in the process that it is ordered for.
Each public function changes this process for good, and gives the log to use where that is another; `controls.py` says what it must be noticed as.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from refold.events import facts as f, sqlite, storage
from refold.events.codec import Stamp
from refold.events.storage import Conflict, Submission
from refold.events.words import Digest
from refold.fsm import calls, decide
from refold.fsm.effects import Reconcile, RunTool
from refold.projections.run import Call, Run, Spent
from refold.projections.transcript import Transcript
from refold.runtime import agent as agents, consults, performing, ports as p, requests
from refold.runtime.driver import Driver
from refold.runtime.journal import Inputs, Journal, LostOwnership
from refold.testing.witness import WitnessedLog

Logs = type[WitnessedLog] | None


# -- the order of intent, effect and outcome


class _IntentAfterEffect(WitnessedLog):
    """The intent to run a call is stored together with what came of it."""

    _held: Submission | None = None

    def _append(self, submission: Submission) -> None:
        held, self._held = self._held, None
        if held is not None:
            rows, payloads = (*held.rows, *submission.rows), {**held.payloads, **submission.payloads}
            submission = Submission(held.run_id, held.expected, rows, payloads, held.create)
        if submission.rows[-1].type == "tool_started":
            self._held = submission
        else:
            super()._append(submission)


def intent_after_effect() -> Logs:
    return _IntentAfterEffect


def outcome_before_effect() -> Logs:
    """The outcome is stored first, and the handler is called when there is time for it."""
    good = performing.Performer._run_tool

    async def run_tool(self: performing.Performer, effect: RunTool) -> f.ToolSucceeded | f.ToolFailed:
        task = asyncio.get_running_loop().create_task(good(self, effect))
        LATER.add(task)
        return f.ToolSucceeded(call=effect.call, result="done", attempt=effect.attempt)

    return _put(performing.Performer, _run_tool=run_tool)


LATER: Final[set["asyncio.Task[Any]"]] = set()


def key_per_process() -> Logs:
    """The idempotency key is made anew for every attempt."""
    good = performing._context

    def context(run: Run, effect: RunTool) -> Any:
        made = good(run, effect)
        return type(made)(run_id=made.run_id, turn=made.turn, call_id=made.call_id, attempt=made.attempt, idempotency_key=f"{effect.key}-{os.getpid()}")

    return _put(performing, _context=context)


# -- what is done on resume


def started_calls_again() -> Logs:
    """Whatever was started and has no outcome is run again, side effects too."""
    return _put(calls, _lost=lambda _call: None)


def doubt_told_as_failure() -> Logs:
    """A call that was lost with its process counts as one that did not happen."""

    def lost(call: Call) -> f.Derived | None:
        acts = call.check is not None and call.check.effect == "side_effect"
        return f.ToolClosed(call=call.id, kind="cancelled", message="its process is gone") if acts else None

    return _put(calls, _lost=lost)


class _Recovering(Journal):
    """Knows whether the driver before it died."""

    dead = False

    def load(self, upto: int | None = None) -> "Journal":
        super().load(upto)
        _Recovering.dead = self.run.driver is not None
        return self


class _WholeBatchAgain(Driver):
    """After a death every call of the open turn is run, those too whose outcome is known."""

    async def _go_on(self) -> None:
        if _Recovering.dead:
            for call in self.journal.run.calls:
                if call.started is not None and call.check is not None and call.phase == "closed":
                    started = call.started
                    again = RunTool(
                        call=call.id, name=call.name, arguments=call.check.arguments, attempt=started.attempt, key=started.key, timeout_s=None, delay_us=0
                    )
                    await self._performer.perform(again)
        await super()._go_on()


def whole_batch_again() -> Logs:
    return _put(agents, Driver=_WholeBatchAgain, Journal=_Recovering)


def script_restarts() -> Logs:
    """After a death requests are numbered from one again, so that a model that answers by number begins anew."""
    good, made = requests.request_of, [0]

    def request_of(run: Run, transcript: Transcript) -> p.Request:
        made[0] += 1
        return replace(good(run, transcript), number=made[0]) if _Recovering.dead else good(run, transcript)

    _put(agents, Journal=_Recovering)
    return _put(performing, request_of=request_of)


class _ForgetsItsCounters(Journal):
    """What was spent is counted from the last resume on."""

    def load(self, upto: int | None = None) -> "Journal":
        super().load(upto)
        self.run = replace(self.run, spent=Spent())
        return self


def counters_reset() -> Logs:
    return _put(agents, Journal=_ForgetsItsCounters)


def results_not_sent() -> Logs:
    """After a death requests leave out the results of the last calls."""
    good = requests.request_of

    def request_of(run: Run, transcript: Transcript) -> p.Request:
        request = good(run, transcript)
        last = max((n for n, message in enumerate(request.messages) if message.calls), default=0)
        return replace(request, messages=request.messages[: last + 1]) if _Recovering.dead else request

    _put(agents, Journal=_Recovering)
    return _put(performing, request_of=request_of)


def reconciling_is_skipped() -> Logs:
    """A tool that could say what became of a call is not asked: surely nothing did."""

    async def reconcile(_self: performing.Performer, effect: Reconcile) -> f.DoubtResolved:
        return f.DoubtResolved(call=effect.call, verdict="did_not_happen", by="reconcile", who=effect.name)

    return _put(performing.Performer, _reconcile=reconcile)


def failed_side_effects_again() -> Logs:
    """A side effect that failed is tried again, whether or not it happened."""
    good = calls._failed

    def failed(run: Run, call: Call, stamp: Stamp) -> f.Derived | None:
        if call.failed is not None and call.failed.retryable and call.check is not None and call.attempt <= call.check.retries:
            return f.RetryScheduled(call=call.id, attempt=call.attempt + 1, delay_us=0, because=call.failed.message)
        return good(run, call, stamp)

    return _put(calls, _failed=failed)


# -- the store


class _EarlyWord(WitnessedLog):
    """Says that it has stored what it will store with the next batch."""

    _held: Submission | None = None

    def _append(self, submission: Submission) -> None:
        held, self._held = self._held, None
        if held is not None:
            self.log.append(*held[:-1], create=held.create)
        if submission.rows[-1].type in ("tool_started", "tool_succeeded", "model_requested"):
            self._strike_before(submission)
            self._held = submission
            self._strike_behind(submission)
        else:
            super()._append(submission)


def acknowledged_too_early() -> Logs:
    return _EarlyWord


class _PayloadsLater(WitnessedLog):
    """Large values are stored with the batch after the one that names them."""

    _late: Mapping[Digest, bytes] = {}

    def _append(self, submission: Submission) -> None:
        late, self._late = self._late, submission.payloads
        super()._append(submission._replace(payloads=late))


def payloads_later() -> Logs:
    return _PayloadsLater


class _RecordByRecord(WitnessedLog):
    """A batch is stored record by record."""

    def _append(self, submission: Submission) -> None:
        self._strike_before(submission)
        payloads, create = submission.payloads, submission.create
        for row in submission.rows:
            self.log.append(submission.run_id, row.position - 1, [row], payloads, create=create)
            payloads, create = {}, False
            self.fate.meets("append")
        self._strike_behind(submission)


def record_by_record() -> Logs:
    return _RecordByRecord


class _ConflictIsSuccess(WitnessedLog):
    """That somebody else was faster is not noticed."""

    def _append(self, submission: Submission) -> None:
        try:
            super()._append(submission)
        except Conflict:
            return


def conflict_is_success() -> Logs:
    return _ConflictIsSuccess


def no_head_check() -> Logs:
    """A batch is stored wherever its writer believes the end to be."""
    good = sqlite._Recorder.__init__

    def made(self: Any, datastore: Any) -> None:
        good(self, datastore)
        self.insert_events_statement = self.insert_events_statement.replace("INSERT INTO", "INSERT OR REPLACE INTO")

    _put(sqlite._Recorder, __init__=made)
    return _put(storage, check_head=lambda _submission, _head: None)


# -- humans, cancellation, drivers


def approval_by_name() -> Logs:
    """An approval is kept under the name of its tool, with the arguments of the first call that asked for one."""
    good = performing.Performer._run_tool

    async def run_tool(self: performing.Performer, effect: RunTool) -> f.ToolSucceeded | f.ToolFailed:
        asked = [call.check for call in self.journal.run.calls if call.name == effect.name and call.approval is not None and call.check is not None]
        return await good(self, replace(effect, arguments=asked[0].arguments) if asked else effect)

    return _put(performing.Performer, _run_tool=run_tool)


def nobody_is_asked() -> Logs:
    """No call needs the word of a human."""
    good = consults.Consults.check

    def check(self: consults.Consults, call: f.ProposedCall) -> f.Check:
        return replace(good(self, call), approval=False, approval_reason="", digest=None)

    return _put(consults.Consults, check=check)


def unjudged_answers() -> Logs:
    """An answer is accepted as it comes."""
    return _put(consults.Consults, answer=lambda _self, _run, _claim, _citations: f.AnswerChecked())


class _LeavesOnCancel(Driver):
    """Goes away when the run is cancelled, and does not come back to it."""

    async def drive(self, begin: Sequence[f.Input] = ()) -> Run:
        return self.journal.run if self.journal.run.cancel is not None else await super().drive(begin)

    async def _go_on(self) -> None:
        await super()._go_on()
        if self.journal.run.cancel is not None:
            raise LostOwnership("it was cancelled")


def orphans_on_cancel() -> Logs:
    """A run that is cancelled is left where it is."""
    good = decide.follow

    def follow(run: Run, stamp: Stamp) -> f.Derived | None:
        return None if run.cancel is not None else good(run, stamp)

    _put(decide, follow=follow)
    return _put(agents, Driver=_LeavesOnCancel)


class _Obstinate(Journal):
    """Appends for a driver whatever another one says."""

    def _prepare(self, inputs: Inputs, epoch: int | None, *, beside: bool) -> Any:  # noqa: ARG002 - that is what is wrong with it
        return super()._prepare(inputs, None, beside=beside)


def lost_ownership_ignored() -> Logs:
    return _put(agents, Journal=_Obstinate)


def _put(owner: Any, **instead: Any) -> Logs:
    """Put something in the place of what is there, for good: the process is there for nothing else. Its log stays the usual one."""
    for name, broken in instead.items():
        assert hasattr(owner, name), f"{owner} has no {name} any more; the broken runtime that replaces it must be mended"
        setattr(owner, name, broken)
    return None
