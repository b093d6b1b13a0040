"""`show`: everything there is to know of a run at a position, as `refold show --json` prints it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import msgspec

from refold.events import facts as f
from refold.events.chain import NOTHING
from refold.events.codec import Record
from refold.events.words import OWNERS, CallId, Digest, Kind, RunId
from refold.fsm.machine import empty, step
from refold.projections.breaks import breaks
from refold.projections.evolve import rejection
from refold.projections.messages import Message, request_digest
from refold.projections.run import Run, replace
from refold.projections.transcript import Transcript, waiting
from refold.projections.view import answer_of, citations_of, message_json, pending_of, usage_of
from refold.runtime import compacting
from refold.runtime.journal import inherited, inherited_if_there
from refold.runtime.ports import Request
from refold.runtime.requests import request_of
from refold.runtime.store import Store


class NoSuchPosition(ValueError):
    """A position that the run does not have."""


def show(store: Store, run_id: str, at: int | None = None) -> dict[str, Any]:
    """The run folded to position `at` (the last one by default). Raises UnknownRun, NoSuchPosition, StoreUnavailable."""
    records = list(store.read(run_id, upto=at))
    if at is not None and (at < 1 or not records or records[-1].position != at):
        last = list(store.read(run_id))[-1].position
        raise NoSuchPosition(f"run {run_id} has no position {at}: it has 1 to {last}")
    begun = records[0].fact
    view = View(records, inherited_if_there(store.log, begun) if isinstance(begun, f.RunContinued) else None)
    view.run = replace(view.run, id=RunId(run_id))  # a place that a fork inherits is one of its own, whoever recorded it
    return view.as_json()


class NoPrompt(ValueError):
    """No request is open at a position; the line names those that were made."""


class OtherPrompt(Exception):
    """A prompt that was made again is not the one whose digest was recorded."""


class Prompt(NamedTuple):
    """A request as it was sent, and the recorded digest of everything that it shows, which it was found to have; of one for a summary that of what is to be replaced."""

    request: Request
    digest: Digest


def prompt(store: Store, run_id: str, at: int | None = None) -> Prompt:
    """The request that was open at a position (the last one by default), made again from the log. Raises NoSuchPosition, NoPrompt, OtherPrompt, UnknownRun."""
    records = list(store.read(run_id))
    first, last = records[0].position, records[-1].position
    upto = last if at is None else at
    if not first <= upto <= last:
        raise NoSuchPosition(f"run {run_id} has no position {upto}: it has {first} to {last}")
    known = [record for record in records if record.position <= upto]
    begun = records[0].fact

    def viewed() -> View:
        return View(known, inherited(store.log, begun) if isinstance(begun, f.RunContinued) else None)

    view = viewed()
    if view.run.past.asked is not None and view.run.past.asked.number is not None:
        return Prompt(compacting.request_of(view.run.past.asked, view.run, view.transcript), view.run.past.asked.digest)
    if known[-1].target != "streaming_model":
        made = ", ".join(str(record.position) for record in records if isinstance(record.fact, f.ModelRequested)) or "none"
        raise NoPrompt(f"no request is open at position {upto} of run {run_id}; requests were made at {made}: give one with --at")
    while not isinstance(known[-1].fact, f.ModelRequested):  # what came since says nothing of what was asked
        known.pop()
    return _prompt(viewed())


def _prompt(view: "View") -> Prompt:
    asked = view.run.request
    assert asked is not None
    if view.digest_of_prompt() != asked.digest:
        raise OtherPrompt(f"the prompt of request {asked.number} of run {view.run.id} is not the one that was recorded")
    return Prompt(request_of(view.run, view.transcript), asked.digest)


class View:
    """A run with what it said and saw, folded once from its records."""

    def __init__(self, records: Sequence[Record], inherited: Transcript | None = None) -> None:
        self.records = records
        self.run = empty(records[0].run)
        self.transcript = inherited or Transcript()
        self._inherited = len(self.transcript.messages)
        self._digest = NOTHING
        """Of the last request of a run whose requests are no chains: it covers the digest of the one before and what came since."""
        self.observations: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self._arguments: dict[str, Any] = {}
        shown = self._inherited
        for record in records:
            before = self.run
            self.run = step(before, record)
            self.transcript.take(before, record.fact, self.run)
            if isinstance(record.fact, f.ModelRequested) and self.run.turn != before.turn and not self.run.rules.chains:
                self._digest = request_digest(before.prefix, tuple(self.transcript.messages[shown:]))
                shown = len(self.transcript.messages)
            self._observe(before, record)

    def digest_of_prompt(self) -> Digest:
        """The digest of the last request, made from everything that it shows."""
        asked = self.run.request
        return self._digest if asked is None or not self.run.rules.chains else self.transcript.digest(self.run, bare=asked.wrap_up)

    def _observe(self, before: Run, record: Record) -> None:
        """What the model is told, and what was kept."""
        match record.fact:
            case f.NoteStored(text=text, source_ids=sources):
                self.notes.append({"text": text, "source_ids": list(sources), "turn": record.turn})
            case f.ToolCallsRequested(calls=calls):
                self._arguments |= {call.id: _value(call.arguments_text) for call in calls}
            case f.RunForked(edits=edits) if edits:
                given = {edit.call: edit for edit in edits}
                self.observations = [_edited(each, given) for each in self.observations]
            case f.FinalRejected() as rejected if rejected.because != "user_said":
                self.observations.append(_told(record, "rejected_answer", rejection(rejected)))
            case f.ModelErrorObserved(message=message, kind=kind):
                self.observations.append(_told(record, kind, message))
            case _:
                pass
        closed = (
            {call.id for call in before.calls if not call.open}
            if before.open is not None and self.run.open is not None and before.open.position == self.run.open.position
            else set()
        )
        self.observations += [self._result(record, call_id) for call_id in (call.id for call in self.run.calls if not call.open) if call_id not in closed]

    def _result(self, record: Record, call_id: CallId) -> dict[str, Any]:
        call = self.run.call(call_id)
        assert call is not None
        kind: Kind = call.kind or "success"
        ok = kind == "success"
        human = isinstance(record.fact, f.ClarificationReceived | f.ApprovalDenied) or (isinstance(record.fact, f.DoubtResolved) and record.fact.by == "human")
        ran = isinstance(record.fact, f.ToolSucceeded) or call.attempt > 0
        return {
            "turn": record.turn,
            "call_id": call.id,
            "source": "human" if human else "tool" if ran else "runtime",
            "name": call.name,
            "ok": ok,
            "data": call.content if ok else None,
            "error_type": None if ok else kind,
            "error_message": None if ok else str(call.content.get("message", "")),
            "owner": OWNERS[kind],
            "source_ids": list(call.source_ids),
            "action_signature": call.check.signature if call.check is not None else None,
            "performed": call.performed,
        }

    def _open_calls(self) -> list[dict[str, Any]]:
        """The calls of a turn whose results no request has shown yet, and where each is."""
        turn = self.run.open
        if turn is None or turn.closed is not None:
            return []
        return [
            {
                "call_id": call.id,
                "name": call.name,
                "arguments": self._arguments.get(call.id, call.proposed.arguments_text),
                "phase": call.kind if call.kind is not None else call.phase,
                "attempt": call.attempt,
            }
            for call in turn.calls
        ]

    def as_json(self) -> dict[str, Any]:
        """The documented shape of `show`."""
        run = self.run
        driver = {"host": run.driver.host, "pid": run.driver.pid, "since": run.driver.since} if run.driver is not None else None
        order = {call.id: n for n, call in enumerate(run.calls)}
        return {
            "run_id": run.id,
            "position": run.position,
            "state": run.state,
            "status": run.status,
            "turn": run.turn,
            "goal": run.goal,
            "parent": run.parent,
            "forked_from": run.forked_from,
            "forked_at": run.forked_at if run.forked_from is not None else None,
            "recorded_in": self.records[-1].run,
            "driver": driver,
            "pending": pending_of(run),
            "observations": sorted(self.observations, key=lambda o: (o["turn"], order.get(o["call_id"], 0))),
            "notes": self.notes,
            "messages": [
                message_json(message, self._arguments if n >= self._inherited else _written(message))  # ids are by place: those of the parent come again
                for n, message in enumerate((*self.transcript.messages, *waiting(run)))
            ],
            "usage": usage_of(run),
            "compactions": [_compaction(record) for record in self.records if isinstance(record.fact, f.ContextCompacted)],
            "budgets": asdict(run.budgets) if run.setup is not None else {},
            "answer": answer_of(run, self.records),
            "citations": citations_of(run, self.records),
            "reason": run.reason,
            "detail": run.detail,
            "tool_calls": run.spent.tool_calls,
            "calls": self._open_calls(),
            "record": self.records[-1].type,
            "at": self.records[-1].at,
            "model": run.setup.model if run.setup is not None else "",
            "prefix_breaks": msgspec.to_builtins(breaks(self.records)),
            "seals": [{"position": each.position, "key": each.fact.key} for each in self.records if isinstance(each.fact, f.Sealed)],
            "head": run.head,
        }


def _compaction(record: Record) -> dict[str, Any]:
    """A compaction: what it replaced by position, and its summary; `error` where there is none."""
    fact = record.fact
    assert isinstance(fact, f.ContextCompacted)
    names = ("since", "upto", "author", "summary", "error")
    return {"position": record.position, "turn": record.turn} | {name: getattr(fact, name) for name in names}


def _written(message: Message) -> dict[str, Any]:
    """Arguments by call id, as they were sent back to the model."""
    return {call.id: _value(call.arguments_text) for call in message.calls}


def _value(text: str) -> Any:
    """The model's own text of arguments as a JSON value, or the text where it is none."""
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


def _edited(observation: dict[str, Any], edits: Mapping[CallId, f.Edit]) -> dict[str, Any]:
    """An observation as a fork shows it."""
    edit = edits.get(observation["call_id"])
    if edit is None:
        return observation
    return {**observation, "source": "human", "ok": True, "data": edit.result, "error_type": None, "error_message": None, "owner": OWNERS["success"]}


def _told(record: Record, kind: str, message: str) -> dict[str, Any]:
    """Something the model is told without a call."""
    return {
        "turn": record.turn,
        "call_id": None,
        "source": "runtime",
        "name": "",
        "ok": False,
        "data": None,
        "error_type": kind,
        "error_message": message,
        "owner": "model",
        "source_ids": [],
        "action_signature": None,
        "performed": "no",
    }
