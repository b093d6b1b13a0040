"""Runtimes that are broken on purpose, one for each way of losing or repeating something: whatever certifies a good runtime must notice every one of them.

Apart from the engine, which has no switch for any of this: each takes the place of a function, a driver, a journal or a store in the process that it is ordered for.

    python -m refold.testing.controls [MODULE:AGENT]     runs them all
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from refold.events import facts as f, sqlite
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
from refold.testing.certify import Campaign, Certificate, Family, certify
from refold.testing.judging import Finding, Kind
from refold.testing.victim import WitnessedLog

Logs = type[WitnessedLog] | None


@dataclass(frozen=True)
class Control:
    """A broken runtime. `put_in_place` changes this process and gives the log to use, if it is another; a campaign over `families` must report `kind`, in words that hold `says`."""

    put_in_place: Callable[[], Logs]
    kind: Kind
    says: str
    families: tuple[Family, ...] = ("once",)
    first: int = 1
    """The step from which on it shows, where it does not show before."""

    def is_seen_in(self, finding: Finding) -> bool:
        """Whether this is what it is there for."""
        return finding.kind == self.kind and self.says in finding.what


def noticed(certificate: Certificate, control: Control) -> bool:
    """Whether a campaign found what is wrong with a broken runtime."""
    return any(control.is_seen_in(finding) for told in certificate.told for finding in told.findings)


def run(name: str, agent: str, jobs: int = 2) -> Certificate:
    """A campaign against a broken runtime, until it has found what is wrong."""
    control = CONTROLS[name]
    return certify(
        Campaign(agent=agent, control=name, families=control.families, first=control.first, jobs=jobs, stop_after=FINDINGS_MAX), enough=control.is_seen_in
    )


FINDINGS_MAX: Final = 200
"""Findings after which a campaign against a broken runtime ends, when none of them is the one that it is there for."""


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


def _intent_after_effect() -> Logs:
    return _IntentAfterEffect


def _outcome_before_effect() -> Logs:
    """The outcome is stored first, and the handler is called when there is time for it."""
    good = performing.Performer._run_tool

    async def run_tool(self: performing.Performer, effect: RunTool) -> f.ToolSucceeded | f.ToolFailed:
        task = asyncio.get_running_loop().create_task(good(self, effect))
        LATER.add(task)
        return f.ToolSucceeded(call=effect.call, result="done", attempt=effect.attempt)

    return _put(performing.Performer, _run_tool=run_tool)


LATER: Final[set["asyncio.Task[Any]"]] = set()


def _key_per_process() -> Logs:
    """The idempotency key is made anew for every attempt."""
    good = performing._context

    def context(run: Run, effect: RunTool) -> Any:
        made = good(run, effect)
        return type(made)(run_id=made.run_id, turn=made.turn, call_id=made.call_id, attempt=made.attempt, idempotency_key=f"{effect.key}-{os.getpid()}")

    return _put(performing, _context=context)


# -- what is done on resume


def _started_calls_again() -> Logs:
    """Whatever was started and has no outcome is run again, side effects too."""
    return _put(calls, _lost=lambda _call: None)


def _doubt_told_as_failure() -> Logs:
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


def _whole_batch_again() -> Logs:
    return _put(agents, Driver=_WholeBatchAgain, Journal=_Recovering)


def _script_restarts() -> Logs:
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


def _counters_reset() -> Logs:
    return _put(agents, Journal=_ForgetsItsCounters)


def _results_not_sent() -> Logs:
    """After a death requests leave out the results of the last calls."""
    good = requests.request_of

    def request_of(run: Run, transcript: Transcript) -> p.Request:
        request = good(run, transcript)
        last = max((n for n, message in enumerate(request.messages) if message.calls), default=0)
        return replace(request, messages=request.messages[: last + 1]) if _Recovering.dead else request

    _put(agents, Journal=_Recovering)
    return _put(performing, request_of=request_of)


def _reconciling_is_skipped() -> Logs:
    """A tool that could say what became of a call is not asked: surely nothing did."""

    async def reconcile(_self: performing.Performer, effect: Reconcile) -> f.DoubtResolved:
        return f.DoubtResolved(call=effect.call, verdict="did_not_happen", by="reconcile", who=effect.name)

    return _put(performing.Performer, _reconcile=reconcile)


def _failed_side_effects_again() -> Logs:
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


def _acknowledged_too_early() -> Logs:
    return _EarlyWord


class _PayloadsLater(WitnessedLog):
    """Large values are stored with the batch after the one that names them."""

    _late: Mapping[Digest, bytes] = {}

    def _append(self, submission: Submission) -> None:
        late, self._late = self._late, submission.payloads
        super()._append(submission._replace(payloads=late))


def _payloads_later() -> Logs:
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


def _record_by_record() -> Logs:
    return _RecordByRecord


class _ConflictIsSuccess(WitnessedLog):
    """That somebody else was faster is not noticed."""

    def _append(self, submission: Submission) -> None:
        try:
            super()._append(submission)
        except Conflict:
            return


def _conflict_is_success() -> Logs:
    return _ConflictIsSuccess


def _no_head_check() -> Logs:
    """A batch is stored wherever its writer believes the end to be."""
    good = sqlite._Recorder.__init__

    def made(self: Any, datastore: Any) -> None:
        good(self, datastore)
        self.insert_events_statement = self.insert_events_statement.replace("INSERT INTO", "INSERT OR REPLACE INTO")

    _put(sqlite._Recorder, __init__=made)
    return _put(sqlite, check_head=lambda _submission, _head: None)


# -- humans, cancellation, drivers


def _approval_by_name() -> Logs:
    """An approval is kept under the name of its tool, with the arguments of the first call that asked for one."""
    good = performing.Performer._run_tool

    async def run_tool(self: performing.Performer, effect: RunTool) -> f.ToolSucceeded | f.ToolFailed:
        asked = [call.check for call in self.journal.run.calls if call.name == effect.name and call.approval is not None and call.check is not None]
        return await good(self, replace(effect, arguments=asked[0].arguments) if asked else effect)

    return _put(performing.Performer, _run_tool=run_tool)


def _nobody_is_asked() -> Logs:
    """No call needs the word of a human."""
    good = consults.Consults.check

    def check(self: consults.Consults, call: f.ProposedCall) -> f.Check:
        return replace(good(self, call), approval=False, approval_reason="", digest=None)

    return _put(consults.Consults, check=check)


def _unjudged_answers() -> Logs:
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


def _orphans_on_cancel() -> Logs:
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


def _lost_ownership_ignored() -> Logs:
    return _put(agents, Journal=_Obstinate)


def _put(owner: Any, **instead: Any) -> Logs:
    """Put something in the place of what is there, for good: the process is there for nothing else. Its log stays the usual one."""
    for name, broken in instead.items():
        assert hasattr(owner, name), f"{owner} has no {name} any more; the broken runtime that replaces it must be mended"
        setattr(owner, name, broken)
    return None


CONTROLS: Final[dict[str, Control]] = {
    "the intent is stored after the effect": Control(_intent_after_effect, "duplicate", "was performed 2 times"),
    "the outcome is stored before the effect": Control(_outcome_before_effect, "loss", "and no handler ran"),
    "a key for each attempt": Control(_key_per_process, "duplicate", "ran under 2 keys"),
    "started side effects are run again": Control(_started_calls_again, "duplicate", "was performed 2 times"),
    "a call that is in doubt counts as not performed": Control(_doubt_told_as_failure, "loss", "was performed, and its result is cancelled"),
    "the whole batch is run again": Control(_whole_batch_again, "duplicate", "was performed 2 times"),
    "the script restarts": Control(_script_restarts, "divergence", "the twin's"),
    "counters are reset": Control(_counters_reset, "divergence", "the last process reported the usage"),
    "a request without the results before it": Control(_results_not_sent, "divergence", "was sent without the results of"),
    "reconciling is skipped": Control(_reconciling_is_skipped, "duplicate", "book (t3.3) was performed 2 times", first=60),
    "a failed side effect is tried again": Control(_failed_side_effects_again, "duplicate", "fax (t3.2) was performed 2 times"),
    "an append is acknowledged too early": Control(_acknowledged_too_early, "loss", "acknowledged appends are not in the log any more"),
    "payloads are not in the transaction": Control(_payloads_later, "loss", "an acknowledged record cannot be read"),
    "a batch is not one transaction": Control(_record_by_record, "divergence", "replay:"),
    "a conflict is taken for success": Control(_conflict_is_success, "duplicate", "was performed 2 times", ("spoken to",)),
    "the head is not checked": Control(_no_head_check, "loss", "a message that was acknowledged is 0 times in the log", ("spoken to",)),
    "an approval is not bound to arguments": Control(_approval_by_name, "divergence", "was allowed"),
    "nobody is asked for approval": Control(_nobody_is_asked, "divergence", "nobody had allowed it"),
    "an answer is not validated": Control(_unjudged_answers, "divergence", "the answer was accepted by no validator"),
    "calls are left open by a cancellation": Control(_orphans_on_cancel, "divergence", "the run has not ended", ("cancelled",)),
    "lost ownership is ignored": Control(_lost_ownership_ignored, "divergence", "a driver that had been taken over appended", ("taken over",)),
}
"""By what is wrong with them."""


def main(agent: str) -> int:
    """Run every broken runtime, and say what noticed it."""
    missed = 0
    for name, control in CONTROLS.items():
        certificate = run(name, agent)
        caught = noticed(certificate, control)
        missed += not caught
        scenarios = sum(certificate.scenarios.values())
        print(f"{'caught' if caught else 'MISSED'}  {name:<50} {control.kind} after {scenarios} scenarios", flush=True)
    print(f"{len(CONTROLS) - missed} of {len(CONTROLS)} broken runtimes are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "examples.crashtest:short"))
