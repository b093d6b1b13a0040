"""A run played by hand, one fact at a time: every step is decided, written, read back and folded, and the two folds are compared.

For tests of the rules, where no model, no tool and no clock should be in the way.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from refold.events import facts as f
from refold.events.chain import NOTHING, signature_of
from refold.events.codec import Record, Stamp, write
from refold.events.settings import Budgets, Policy, Seconds
from refold.events.words import CallId, Digest, Effect, Kind, RunId, StopReason
from refold.fsm.audit import Audit, audit_rows
from refold.fsm.decide import decide
from refold.fsm.machine import empty, step
from refold.fsm.replay import Ask, Derived, replay_rows
from refold.fsm.whatif import WhatIf, what_if
from refold.projections.revisions import ENGINE
from refold.projections.run import Run, replace

START: Final = 1_000_000_000_000_000
"""When a trajectory begins, in microseconds."""
COMPARED_MAX: Final = 1_000
"""Up to which position the folds are compared: it takes as long as the run."""
Cause = Literal["cancelled", "limit", "length", "filtered", "invalid", "paused", "overflow"]
STOPPED: Final[Mapping[Cause, StopReason]] = {"length": "length", "filtered": "content_filter", "paused": "pause", "overflow": "context_overflow"}
"""The reason to stop for which a response becomes an interruption of this cause."""


class Act(msgspec.Struct, frozen=True):
    """A call as the model proposes it, and what user code says of it."""

    name: str
    arguments: str = "{}"
    effect: Effect = "read"
    kind: Kind = "success"
    approval: bool = False
    retries: int = 0
    repeatable: bool = False

    @property
    def signature(self) -> Digest:
        return signature_of([self.name, self.arguments])

    @property
    def digest(self) -> Digest:
        """What an approval of this binds to."""
        return signature_of(["approve", self.name, self.arguments])

    def check(self, call: str) -> f.Check:
        return f.Check(
            call=CallId(call),
            kind=self.kind,
            message="" if self.kind == "success" else f"{self.name} was refused",
            arguments=self.arguments,
            effect=self.effect,
            signature=self.signature,
            approval=self.approval,
            question=self.arguments if self.name == "ask_user" else "",
            digest=self.digest if self.approval else None,
            repeatable=self.repeatable,
            retries=self.retries,
        )


class Trajectory:
    """A run in memory. Every method appends one batch and gives its facts by tag; `last` holds them whole."""

    def __init__(self, run_id: str = "played", *, now: int = START) -> None:
        self.id, self.now = RunId(run_id), now
        self.run: Run = empty(self.id)
        self.records: list[Record] = []
        self.payloads: dict[Digest, bytes] = {}
        self.last: tuple[f.Fact, ...] = ()

    def tell(self, *inputs: f.Input) -> list[str]:
        """Append what follows from some input facts."""
        stamp = Stamp(at=self.now, driver="by hand")
        batch = decide(self.run, inputs, stamp)
        run, first = self.run, self.run.position + 1
        for position, edge in enumerate(batch.edges, first):
            before = self.records[-1].digest if self.records else NOTHING
            record, payloads = write(edge, run=self.id, position=position, batch=first, stamp=stamp, before=before)
            self.records.append(record)
            self.payloads |= payloads
            run = step(run, record)
        live = msgspec.structs.replace(batch.run, head=run.head)
        assert run.position > COMPARED_MAX or run == live, "what is read back folds to another run than the one that was decided"
        self.run, self.last = run, tuple(edge.fact for edge in batch.edges)
        return [fact.TAG for fact in self.last]

    # -- the run

    def start(self, *, goal: str = "Do it.", budgets: Budgets | None = None, policy: Policy | None = None, attach: bool = True, **setup: Any) -> "Trajectory":
        """Begin, by default with somebody who drives."""
        fields: dict[str, Any] = {"engine": ENGINE, "seed": "seed"} | setup
        begun = f.RunStarted(goal=goal, setup=f.Setup(budgets=budgets or Budgets(), policy=policy or Policy(), **fields))
        self.tell(begun, *([self.driver()] if attach else []))
        return self

    def fork(self, child_id: str, at: int | None = None, *, attach: bool = True, **fields: Any) -> "Trajectory":
        """A run that goes its own way behind a record of this one, by default with somebody who drives; `fields` are those of `run_forked`."""
        child = Trajectory(child_id, now=self.now)
        child.records = self.records[:at]
        child.payloads = dict(self.payloads)
        run = empty(self.id)
        for record in child.records:
            run = step(run, record)
        parent, child.run = child.records[-1], replace(run, id=child.id)
        child.tell(f.RunForked(parent=parent.run, at=parent.position, head=parent.digest, **fields))
        if attach:
            child.attach()
        return child

    def driver(self) -> f.DriverAttached:
        return f.DriverAttached(epoch=self.run.epoch + 1, who="tester", host="here")

    def attach(self) -> list[str]:
        """Another process takes the wheel."""
        return self.tell(self.driver())

    def detach(self) -> list[str]:
        return self.tell(f.DriverDetached(epoch=self.run.epoch))

    def say(self, text: str) -> list[str]:
        return self.tell(f.UserSaid(text=text, who="ann"))

    def cancel(self, reason: str = "") -> list[str]:
        return self.tell(f.CancelRequested(who="ann", reason=reason))

    # -- the model

    def calls(self, *acts: Act, text: str = "", usage: f.Usage | None = None, elapsed_us: int = 0) -> list[str]:
        """The model proposes calls."""
        ids = [CallId(f"t{self.run.turn}.{n}") for n in range(1, len(acts) + 1)]
        proposed = tuple(f.ProposedCall(id=call, name=act.name, arguments_text=act.arguments) for call, act in zip(ids, acts, strict=True))
        said = f.ToolCallsRequested(calls=proposed, text=text, usage=usage, elapsed_us=elapsed_us)
        return self.tell(said, f.CallsChecked(checks=tuple(act.check(call) for call, act in zip(ids, acts, strict=True))))

    def answer(
        self,
        text: str = "All done.",
        *,
        complaints: tuple[str, ...] = (),
        error: str = "",
        refusal: str = "",
        stop_reason: StopReason = "stop",
        no_evidence: bool = False,
        usage: f.Usage | None = None,
    ) -> list[str]:
        """The model claims an answer."""
        claim = f.FinalProposed(text=text, refusal=refusal, stop_reason=stop_reason, no_evidence=no_evidence, usage=usage)
        return self.tell(claim, f.AnswerChecked(complaints=complaints, error=error))

    def interrupt(self, cause: Cause, **fields: Any) -> list[str]:
        """The response is none that can be acted on; one that its length cut short was cut within a call."""
        if cause == "length":
            cut = f.ProposedCall(id=CallId(f"t{self.run.turn}.1"), name="look", arguments_text='{"at": "nor')
            fields = {"calls": (cut,)} | fields
        return self.tell(f.ModelInterrupted(cause=cause, detail="it was no turn", stop_reason=STOPPED.get(cause, "stop"), **fields))

    def model_fails(self, *, retryable: bool = True, retry_after_s: Seconds | None = None) -> list[str]:
        error = f.ErrorInfo(type="overloaded", message="try later", retryable=retryable, retry_after_s=retry_after_s)
        return self.tell(f.ModelFailed(error=error))

    # -- tools and people

    def succeed(self, call: str, result: Any = "fine", *, notes: tuple[f.Note, ...] = (), source_ids: tuple[str, ...] = (), elapsed_us: int = 0) -> list[str]:
        outcome = f.ToolSucceeded(call=CallId(call), result=result, notes=notes, source_ids=source_ids, attempt=self.attempt(call), elapsed_us=elapsed_us)
        return self.tell(outcome)

    def fail(
        self,
        call: str,
        kind: Kind = "execution_failed",
        *,
        retryable: bool = False,
        performed: Literal["yes", "no", "unknown"] = "unknown",
        elapsed_us: int = 0,
    ) -> list[str]:
        outcome = f.ToolFailed(
            call=CallId(call), kind=kind, message="it went wrong", retryable=retryable, performed=performed, attempt=self.attempt(call), elapsed_us=elapsed_us
        )
        return self.tell(outcome)

    def approve(self, call: str, digest: Digest | None = None) -> list[str]:
        shown = self.run.call(call)
        assert shown is not None
        return self.tell(f.ApprovalGranted(call=CallId(call), digest=digest or shown.approval or Digest("nothing"), who="ann"))

    def deny(self, call: str, reason: str = "no") -> list[str]:
        return self.tell(f.ApprovalDenied(call=CallId(call), reason=reason, who="ann"))

    def attempt(self, call: str) -> int:
        found = self.run.call(call)
        return found.attempt if found is not None else 1

    # -- what became of it

    @property
    def tags(self) -> list[str]:
        """Every fact so far."""
        return [record.type for record in self.records]

    @property
    def kinds(self) -> list[Kind | None]:
        """What became of the calls of the open turn."""
        return [call.kind for call in self.run.calls]

    @property
    def rows(self) -> list[tuple[int, bytes]]:
        return [(record.position, record.stored) for record in self.records]

    def position_of(self, place: str) -> int:
        """Where a fact stands: `retry_scheduled`, or `retry_scheduled 3` for the third one."""
        tag, _, nth = place.partition(" ")
        return [record.position for record in self.records if record.type == tag][int(nth or 1) - 1]

    def found(self, tag: str) -> Any:
        """The last fact of this tag in the last batch."""
        return next(fact for fact in reversed(self.last) if tag == fact.TAG)

    def audit(self) -> Audit:
        return audit_rows(self.id, self.rows, self.payloads.__getitem__)

    def replay(self, rows: Iterable[tuple[int, bytes]] | None = None) -> Derived:
        """The run derived again, or what is derived where its rows are these."""
        return replay_rows(self.id, self.rows if rows is None else rows, self.payloads.__getitem__)

    def what_if(self, changes: Mapping[str, Any], ask: Ask | None = None) -> WhatIf:
        """What would have been decided otherwise under other settings, and by an agent that says something else."""
        return what_if(self.id, self.rows, self.payloads.__getitem__, changes, ask)
