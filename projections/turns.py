"""A run as a list of turns that can be compared: what each was asked, decided, what came of its calls, and what it took.

Apart from the comparison, because this reads facts and that reads turns. Whatever differs between two runs that did the same is left out: times, hosts, drivers, ids.
"""

from dataclasses import asdict
from typing import Any, Final, Literal

import msgspec

from refold.events import facts as f, money
from refold.events.chain import NOTHING, digest_of
from refold.events.codec import Record
from refold.events.words import CallId, Digest, RunId
from refold.projections.forking import goes_into_open_request
from refold.projections.run import Call, Run, Spent, Turn

LOST: Final = "lost with its process"


class TurnView(msgspec.Struct, kw_only=True):
    """A turn; number 0 is what the run began with.

    `decision` is what the model proposed, as a signature; `shape` the names in it. `fields` are JSON values by name, and one that has nothing to say is not there.
    `changed` names the settings that became others in it, whose values are in `settings` with all the others. `unshown` stands for what is no difference by
    itself and yet is another prompt for the next request: the provider's ids, the model's own text of arguments.
    """

    number: int
    prompt: Digest = NOTHING
    decision: str = ""
    shape: str = ""
    fields: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    changed: set[str] = set()
    unshown: Digest = NOTHING
    parted: bool = False
    """Whether it is the first that was decided otherwise in a run that shares its past with the one it is compared with."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a run began from: a fork of its parent at a position, or a continuation of it."""

    kind: Literal["fork", "continuation"]
    parent: RunId
    at: int


class Course:
    """The turns of a run, as its records are taken in order; `finish` gives them, once."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.origin: Origin | None = None
        self.began_behind: Digest | None = None
        """The record behind which it began from another."""
        self.digests: list[tuple[Digest, int]] = []
        """Of every record, with the turn it belongs to: runs share what has the same."""
        self._turns: list[TurnView] = [TurnView(number=0)]
        self._settings: dict[str, Any] = {}
        self._open: Turn | None = None
        self._since = Spent()
        self._now: dict[str, Any] = {}
        """Fields of the open turn so far,"""
        self._next: dict[str, Any] = {}
        """and of the one that the next request begins,"""
        self._changed: set[str] = set()
        """with the settings that were changed before it."""
        self._calls: dict[CallId, dict[str, Any]] = {}
        """What is known of calls beside what the run holds; `result` of one that a fork edited."""
        self._asked_at: dict[int, int] = {}
        """Turns by the positions of their requests."""

    def take(self, before: Run, record: Record, after: Run) -> None:
        """One more record, with the run before and behind it."""
        fact = record.fact
        self.run = after
        self.digests.append((record.digest, record.turn))
        if isinstance(fact, f.ModelRequested):
            self._requested(before, fact, after)
        elif before.setup is not after.setup:
            self._configured(before, after)
        self._note(before, fact, after)
        if after.open is not None:
            self._open = after.open

    def finish(self) -> list[TurnView]:
        """The turns, from 0. What was said behind the last request belongs to the last turn."""
        assert self.run is not None
        self._close(self.run)
        last = self._turns[-1]
        last.fields = {**self._next, **last.fields}
        last.settings, last.changed = self._settings, last.changed | self._changed
        return self._turns

    # -- turns begin and end

    def _requested(self, before: Run, fact: f.ModelRequested, after: Run) -> None:
        if after.turn != before.turn:
            self._close(before)
            self._turns.append(TurnView(number=after.turn, settings=self._settings, changed=self._changed))
            self._now, self._next, self._changed, self._open, self._since = self._next, {}, set(), None, before.spent
            if fact.wrap_up:
                self._now["wrap_up"] = True
            self._asked_at[after.position] = after.turn
        self._turns[-1].prompt = fact.digest  # of another attempt, where a fork changed what is asked

    def _close(self, run: Run) -> None:
        """The open turn is over; `run` is as it ended."""
        view, turn = self._turns[-1], self._open
        if not view.number:
            view.fields = {**self._now, **view.settings}
            return
        view.fields = self._now | _spent(self._since, run.spent)
        if turn is not None:
            self._said(view, turn)

    def _said(self, view: TurnView, turn: Turn) -> None:
        """What the model said, and what became of it."""
        output, fields = turn.output, view.fields
        fields |= _filled(reasoning=output.reasoning, rationale=output.rationale)
        match output:
            case f.ToolCallsRequested():
                calls = [self._called(call) for call in turn.calls]
                fields |= _filled(commentary=output.text, calls=calls)
                view.shape = " ".join(call.name for call in turn.calls)
                view.decision = _signature([[call["name"], call["arguments"]] for call in calls])
            case f.ModelInterrupted(cause=cause, detail=detail):
                fields |= _filled(interrupted=f"{cause}: {detail}" if detail else cause, text=output.text or output.refusal)
                view.shape = view.decision = f"interrupted {cause}"
            case _:
                fields |= _filled(answer=output.text, refusal=output.refusal, citations=list(output.citations or ()))
                view.shape, view.decision = "answer", _signature(["answer", output.text, output.refusal])
        view.unshown = _signature([[call.provider_id, call.arguments_text] for call in output.calls] + list(output.opaque))

    def _called(self, call: Call) -> dict[str, Any]:
        """A call with its result; `kind` of one that is open is where it stands."""
        known = self._calls.setdefault(call.id, {})
        made = {"name": call.name, "arguments": known.pop("arguments", call.proposed.arguments_text), "kind": call.kind or call.phase}
        if call.kind is not None:
            made["result"] = call.content
        made |= _filled(sources=list(call.source_ids)) | known
        self._calls[call.id] = made  # a fork may edit its result yet
        return made

    # -- what is noted on the way

    def _note(self, before: Run, fact: f.Fact, after: Run) -> None:
        """What one fact adds to a turn beside the model's output and the results of its calls, which the run holds."""
        match fact:
            case f.RunStarted(goal=goal):
                self._now["goal"] = goal
            case f.RunContinued(goal=goal, message=message, transcript=transcript):
                self.origin, self.began_behind = Origin(kind="continuation", parent=fact.parent, at=fact.at), fact.head
                self._now |= {"goal": goal, "history": transcript}
                self._say(message if message != goal else "")
            case f.RunForked():
                self._forked(before, fact, after)
            case f.UserSaid(text=text):
                self._say(text)
            case f.ContextCompacted(error=error, summary=summary):
                place = self._now if before.state == "streaming_model" else self._next
                if error:
                    place.setdefault("errors", []).append(f"no summary: {error}")
                else:
                    place["summary"] = summary
            case f.ContextChosen(left_out=left_out, instead=instead, error=error):
                turns = sorted({self._asked_at.get(position, 0) for position in left_out})
                self._next["context"] = _filled(left_out=turns, instead=instead, error=error)
            case f.ModelFailed(error=error_info):
                self._wrong(f"{error_info.type}: {error_info.message}")
            case f.FinalRejected(complaints=complaints, because=because):
                self._now["rejected"] = list(complaints) or [because]
            case f.DriverAttached():
                self._taken_over(before)
            case f.RunCompleted() | f.RunStopped() | f.RunFailed() | f.RunCancelled() as ended if ended.reason or not isinstance(ended, f.RunCompleted):
                self._now["ended"] = {"status": after.status} | _filled(reason=ended.reason, detail=ended.detail)
            case f.CallsChecked(checks=checks):
                for check in checks:
                    self._checked(before, check)
            case _:
                self._note_of_call(fact)

    def _note_of_call(self, fact: f.Fact) -> None:
        match fact:
            case f.ToolFailed(kind=kind, message=message):
                self._add(fact.call, "failures", f"{kind}: {message}")
            case f.ApprovalGranted():
                self._add(fact.call, "human", "approved")
            case f.ApprovalDenied():
                self._add(fact.call, "human", "denied")
            case f.ApprovalExpired():
                self._add(fact.call, "human", "nobody approved in time")
            case f.ClarificationReceived():
                self._add(fact.call, "human", "answered")
            case f.CallSuperseded(check=check):
                self._add(fact.call, "human", {"approved_with": _value(check.arguments)})
            case f.DoubtResolved(by=by, verdict=verdict):
                self._add(fact.call, "human" if by == "human" else "reconciled", verdict)
            case f.NoteStored(text=text):
                self._add(fact.call, "notes", text)
            case _:
                pass

    def _say(self, text: str) -> None:
        if text:
            self._next.setdefault("said", []).append(text)

    def _wrong(self, what: str) -> None:
        self._now.setdefault("errors", []).append(what)

    def _add(self, call: CallId, name: str, what: Any) -> None:
        self._calls.setdefault(call, {}).setdefault(name, []).append(what)

    def _checked(self, run: Run, check: f.Check) -> None:
        """The arguments in canonical form, where they have one; the model's own spelling is no difference."""
        call = run.call(check.call)
        assert call is not None
        self._calls.setdefault(check.call, {})["arguments"] = _value(check.arguments or call.proposed.arguments_text)

    def _taken_over(self, before: Run) -> None:
        """What an earlier driver left open."""
        if before.asked == "yes":
            self._wrong(f"request {LOST}")
        for call in before.calls:
            if call.phase == "started":
                self._add(call.id, "failures", LOST)

    def _configured(self, before: Run, after: Run) -> None:
        """The settings became others: for the turn that is going on, or else for the next."""
        old, self._settings = self._settings, settings_of(after.begun)
        if before.setup is None:
            self._turns[-1].settings = self._settings
            return
        changed = {name for name in old.keys() | self._settings.keys() if old.get(name) != self._settings.get(name)}
        if after.state in ("idle", "injecting_tool_results"):
            self._changed |= changed
        else:
            view = self._turns[-1]
            view.settings, view.changed = self._settings, view.changed | changed

    def _forked(self, before: Run, fact: f.RunForked, after: Run) -> None:
        """A fork may be told something, in the request that is open or in the next, and may have results otherwise than its parent."""
        self.origin, self.began_behind = Origin(kind="fork", parent=fact.parent, at=fact.at), fact.head
        if fact.message:
            place = self._now if goes_into_open_request(before) else self._next
            place.setdefault("said", []).append(fact.message)
        if after.request is not None:
            self._turns[-1].prompt = after.request.digest
        for edit in fact.edits:
            self._calls.setdefault(edit.call, {}).update({"kind": "success", "result": edit.result} | _filled(sources=list(edit.source_ids)))


def settings_of(setup: f.Setup) -> dict[str, Any]:
    """Everything a run was begun with, by names as people set them; without the seed, which only makes runs unlike."""
    made: dict[str, Any] = {
        name: value for name, value in msgspec.to_builtins(setup).items() if name not in ("seed", "tools", "budgets", "policy", "context", "model_settings")
    }
    made |= {f"tools.{tool.name}": msgspec.to_builtins(tool) for tool in setup.tools}
    groups = {"budgets": asdict(setup.budgets), "policy": asdict(setup.policy), "context": asdict(setup.context) if setup.context else {}}
    for group, values in {**groups, "model": setup.model_settings}.items():
        made |= {f"settings.{group}.{name}": value for name, value in values.items()}
    return made


def encoded(value: Any) -> bytes:
    """A JSON value as bytes that are the same whatever the order of its keys, and others for `1`, `1.0` and `true`."""
    return msgspec.json.encode(value, order="deterministic")


def _signature(value: Any) -> Digest:
    return digest_of(encoded(value))


def _spent(since: Spent, spent: Spent) -> dict[str, Any]:
    """What was used up between two moments."""
    usage = {
        name: getattr(spent.reported, name) + getattr(spent.estimated, name) - getattr(since.reported, name) - getattr(since.estimated, name)
        for name in ("input_tokens", "cached_input_tokens", "output_tokens")
    }
    return {"usage": usage, "cost_usd": money.subtract(spent.cost_usd, since.cost_usd)}


def _filled(**fields: Any) -> dict[str, Any]:
    """Those that say something."""
    return {name: value for name, value in fields.items() if value}


def _value(text: str) -> Any:
    """Arguments as a JSON value, or the text where it is none."""
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text
