"""What took how long: spans of requests, calls and waiting, folded from the records, for people and for exporters of traces.

Apart from `Run`, because no decision reads it and it grows with the run.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.words import CallId
from refold.projections.breaks import breaks

SpanKind = Literal["request", "summary", "call", "wait", "dead"]
"""A request to the model, the making of a summary, an attempt of a call, waiting for a human, or the time between a driver that vanished and the next."""


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """From one record to another. `began` and `ended` are microseconds UTC, `ended` None while it is open; `outcome` is the type of the record that ended it."""

    kind: SpanKind
    name: str
    turn: int
    call: CallId | None
    attempt: int
    position: int
    began: int
    ended: int | None = None
    outcome: str = ""
    elapsed_us: int | None = None
    """Measured by a monotonic clock, where an effect was."""
    broke: str = ""
    """Of a request: the first part of what the one before had shown that is another now."""

    @property
    def duration_us(self) -> int | None:
        if self.elapsed_us is not None:
            return self.elapsed_us
        return None if self.ended is None else self.ended - self.began


def timeline(records: Iterable[Record]) -> tuple[Span, ...]:
    """The spans of a run, in the order begun."""
    held = list(records)
    spans: list[Span] = []
    open_: dict[str, int] = {}
    names: dict[CallId, str] = {}
    for record in held:
        _take(spans, open_, names, record)
    broken = {found.position: found.part for found in breaks(held)}
    return tuple(msgspec.structs.replace(span, broke=broken[span.position]) if span.position in broken else span for span in spans)


def _take(spans: list[Span], open_: dict[str, int], names: dict[CallId, str], record: Record) -> None:
    """One record: it ends a span, begins one, or neither."""
    fact = record.fact
    match fact:
        case f.ModelRequested():
            _begin(spans, open_, record, "request", f"request {fact.number}", fact.attempt)
        case f.ToolCallsRequested() | f.FinalProposed() | f.ModelInterrupted() | f.ModelFailed():
            names.update({call.id: call.name for call in getattr(fact, "calls", ())})
            _end(spans, open_, "request", record, fact.elapsed_us)
        case f.SummaryRequested():
            _begin(spans, open_, record, "summary", f"request {fact.number}" if fact.number is not None else fact.author, 1)
        case f.ContextCompacted():
            _end(spans, open_, "summary", record, fact.elapsed_us or None)
        case f.ToolStarted():
            _begin(spans, open_, record, "call", names.get(fact.call, ""), fact.attempt)
        case f.ToolSucceeded() | f.ToolFailed():
            _end(spans, open_, f"call {fact.call}", record, fact.elapsed_us)
        case f.ApprovalRequested() | f.ClarificationRequested() | f.ToolInDoubt():
            _begin(spans, open_, record, "wait", names.get(fact.call, ""), 1)
        case (
            f.ApprovalGranted() | f.ApprovalDenied() | f.ApprovalExpired() | f.ClarificationReceived() | f.CallSuperseded() | f.DoubtResolved() | f.ToolClosed()
        ):
            _end(spans, open_, f"wait {fact.call}", record, None)
        case f.DriverAttached():
            _lost(spans, open_, record)
        case _:
            pass


def _begin(spans: list[Span], open_: dict[str, int], record: Record, kind: SpanKind, name: str, attempt: int) -> None:
    open_[f"{kind} {record.call}" if record.call else kind] = len(spans)
    spans.append(Span(kind=kind, name=name, turn=record.turn, call=record.call, attempt=attempt, position=record.position, began=record.at))


def _end(spans: list[Span], open_: dict[str, int], key: str, record: Record, elapsed_us: int | None) -> None:
    n = open_.pop(key, None)
    if n is not None:
        spans[n] = msgspec.structs.replace(spans[n], ended=record.at, outcome=record.type, elapsed_us=elapsed_us)


def _lost(spans: list[Span], open_: dict[str, int], record: Record) -> None:
    """What an earlier driver left open has no measured end: it is known to be over, and when is not."""
    for key in [key for key in open_ if not key.startswith("wait")]:
        n = open_.pop(key)
        spans[n] = msgspec.structs.replace(spans[n], kind="dead", ended=record.at, outcome=record.type)
