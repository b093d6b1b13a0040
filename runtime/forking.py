"""Forks: where a run can be split, what the new run says of itself, and what its parents did behind the split.

Apart from the driver, because a fork is one record that points at its parent: nothing is folded for it, unless a result is to be edited.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from refold.events import facts as f
from refold.events.codec import Edge, Line, Record, read_line
from refold.events.lineage import history, holds, splits
from refold.events.storage import Conflict, Log, Row
from refold.events.words import CallId, Digest, RunId
from refold.fsm.decide import Batch, written
from refold.fsm.machine import Illegal
from refold.projections import forking
from refold.projections.prefix import HISTORY
from refold.projections.revisions import SUPPORTED, UnsupportedEngine, rules_of
from refold.projections.run import Run
from refold.runtime.consults import business_key
from refold.runtime.driver import RunExists
from refold.runtime.journal import USER, Journal, UnknownRun, loader, record_in, stamp
from refold.runtime.ports import Clock, SystemClock
from refold.runtime.text import whole

WINDOW: Final = 64
"""Records that are read at once on the way back."""
KEPT: Final = ("engine", "seed", "price", "budgets", "policy", "context", *f.ModelSetup.__struct_fields__)
"""Parts of a setup that are not compared whole: a fork keeps them, or they change by their fields."""


class NoFork(ValueError):
    """A run cannot be forked like this: one line that says why, and what to do."""


class Forked(NamedTuple):
    """A fork that was made: its parent is the run that holds the record at `at`."""

    run_id: RunId
    parent: RunId
    at: int


class Asked(NamedTuple):
    """What a fork is to be other than its parent: `changes` of the setup by path, `edits` of results by call, what the user says to it."""

    changes: Mapping[str, Any] = {}
    edits: Mapping[str, Any] = {}
    message: str = ""
    allow_repeat: bool = False


AS_IT_WAS: Final = Asked()


def fork(log: Log, run_id: str, at: int, new_id: RunId, asked: Asked = AS_IT_WAS, *, who: str = USER, clock: Clock | None = None) -> Forked:
    """Begin a run at the last place at or before `at` where another rests. Raises UnknownRun, NoFork, RunExists, OtherHistory, UnsupportedEngine, StoreUnavailable."""
    rest = rest_at(log, run_id, at)
    Journal(log, run_id).load(1).check_past()  # else what is made here could not be driven
    before = setup_at(log, run_id, rest.position)
    after = _changed(before, asked.changes)
    if after.engine not in SUPPORTED:
        raise UnsupportedEngine(after.engine)
    if not rules_of(after.engine).chains and (asked.edits or asked.message or _other_prompt(before, after)):
        raise NoFork(f"run {run_id} was begun under the rules of an older version ({after.engine}), which cannot show its past otherwise: fork it as it is")
    fact = f.RunForked(
        parent=rest.run,
        at=rest.position,
        head=rest.digest,
        changes=dict(asked.changes),
        edits=_edits(log, run_id, rest, asked.edits),
        message=asked.message,
        performed=() if asked.allow_repeat else _performed(log, run_id, rest),
        allow_repeat=asked.allow_repeat,
        named=RunId(run_id) if run_id != rest.run else None,
        who=whole(who),
    )
    split = Run(id=new_id, position=rest.position, at=rest.at, head=rest.digest, state=rest.target, turn=rest.turn, setup=after)
    edge = Edge(fact=fact, source=rest.target, target=rest.target, turn=rest.turn)
    records, payloads = written(split, Batch(edges=(edge,), runs=(split,), run=split, stamp=stamp(clock or SystemClock(), split)))
    try:
        log.append(new_id, rest.position, [Row(record.position, record.type, record.stored) for record in records], payloads, create=True)
    except Conflict:
        raise RunExists(f"there is already a run {new_id}; choose another id") from None
    return Forked(new_id, rest.run, rest.position)


# -- where


def rest_at(log: Log, run_id: str, at: int) -> Line:
    """The last record at or before `at` behind which the run can be split: the end of a batch, or results that are in before the next request is made.

    Raises UnknownRun, NoFork, OtherHistory.
    """
    head = log.head(run_id)
    if head is None:
        raise UnknownRun(f"there is no run {run_id} in this store")
    last = head[0]
    if not 1 <= at <= last:
        raise NoFork(f"run {run_id} has no position {at}: it has 1 to {last}")
    behind = _line(next(history(log, run_id, at, at + 1), None))
    for line in _backwards(log, run_id, at):
        if line.target == "done":
            raise NoFork(
                f"run {run_id} has ended by position {line.position}: go on from its end with refold continue {run_id}, or fork it at an earlier position"
            )
        if line.target == "injecting_tool_results" or behind is None or behind.batch != line.batch:
            return line
        behind = line
    first = _first_rest(log, run_id)
    raise NoFork(
        f"run {run_id} {'rests nowhere before its end' if first is None else f'does not rest at or before position {at}: fork it at {first} or later'}"
    )


def _first_rest(log: Log, run_id: str) -> int | None:
    """The end of the batch that a run begins with, where another follows."""
    lines = map(_read, history(log, run_id))
    first = next(lines)
    return next((line.position - 1 for line in lines if line.batch != first.batch), None)


def _backwards(log: Log, run_id: str, at: int) -> Iterator[Line]:
    """The records of a history from a position back to its beginning."""
    while at > 0:
        yield from map(_read, reversed(list(history(log, run_id, max(0, at - WINDOW), at))))
        at -= WINDOW


def _line(row: Row | None) -> Line | None:
    return None if row is None else _read(row)


def _read(row: Row) -> Line:
    return read_line(row.state)


# -- with what


def setup_at(log: Log, run_id: str, at: int) -> f.Setup:
    """The setup of a run there, but for a model that a driver changed: what it was begun with, and what forks made of it."""
    load = loader(log, run_id, many=False)
    first = record_in(next(history(log, run_id)), load).fact
    if not isinstance(first, f.RunStarted | f.RunContinued):
        raise Illegal("idle", first.TAG, "a run begins otherwise")
    setup = first.setup
    for split in splits(log, run_id, load):
        if split.at < at:
            setup = forking.changed(setup, split.changes)
    return setup


def changes_between(before: f.Setup, after: f.Setup, *, with_model: bool) -> dict[str, Any]:
    """What of a setup is to be other, by path; the model where it is another one, or is to count as one (`with_model`)."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    names = [name for name in f.Setup.__struct_fields__ if name not in KEPT]
    changes = {name: new.get(name, getattr(_DEFAULTS, name, None)) for name in names if getattr(before, name) != getattr(after, name)}
    for section in ("budgets", "policy", *(("context",) if before.context is not None else ())):
        fields, past = new.get(section) or {}, old.get(section) or {}
        changes |= {f"{section}.{field}": value for field, value in fields.items() if field not in past or past[field] != value}
    if with_model or any(getattr(before, name) != getattr(after, name) for name in ("model", "base_url", "model_settings")):
        changes[forking.MODEL] = msgspec.to_builtins(f.ModelSetup(**{name: getattr(after, name) for name in f.ModelSetup.__struct_fields__}))
    return changes


def _changed(setup: f.Setup, changes: Mapping[str, Any]) -> f.Setup:
    try:
        return forking.changed(setup, changes)
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise NoFork(f"the changes have no place in the run's setup: {error}") from None


def _other_prompt(before: f.Setup, after: f.Setup) -> bool:
    return (before.instructions, before.tools) != (after.instructions, after.tools)


# -- edited results


def _edits(log: Log, run_id: str, rest: Line, edits: Mapping[str, Any]) -> tuple[f.Edit, ...]:
    if not edits:
        return ()
    journal = Journal(log, run_id).load(upto=rest.position)
    return tuple(_edit(journal, call, result) for call, result in edits.items())


def _edit(journal: Journal, call_id: str, result: Any) -> f.Edit:
    """An edit of a result that the run has there, wherever it stands. Raises NoFork."""
    run = journal.run
    call = run.call(call_id)
    if call is not None and not (run.open is not None and run.open.closed is not None):
        if call.open:
            raise NoFork(f"call {call_id} has no result yet at position {run.position} of run {run.id}: fork it behind one")
        return f.Edit(call=CallId(call_id), name=call.name, result=result, source_ids=call.source_ids)
    for message in run.fresh:
        if message.call_id == call_id:
            return f.Edit(call=CallId(call_id), name=message.name, result=result, source_ids=message.source_ids)
    for place in range(run.past.hidden, len(run.entries)):
        for message in journal.transcript.as_shown(place):
            if message.call_id == call_id and run.entries[place].kind != HISTORY:
                return f.Edit(call=CallId(call_id), name=message.name, result=result, source_ids=message.source_ids, place=place)
    behind = any(message.call_id == call_id for message in journal.transcript.messages)
    why = "is shown by a summary alone" if behind else "has no result"
    raise NoFork(f"call {call_id} {why} at position {run.position} of run {run.id}: fork it {'before that' if behind else 'behind one'}")


# -- what parents did later


def _performed(log: Log, run_id: str, rest: Line) -> tuple[CallId, ...]:
    """The calls, open at a rest, that its run began later, or the one that it has that place from; all of them while that may still come, or cannot be told."""
    if rest.target != "executing_tools":
        return ()
    started: dict[CallId, None] = {}
    for name in dict.fromkeys((run_id, rest.run)):
        later = _started_later(log, name, rest) if holds(log, name, rest.position, rest.digest) else None
        if later is None:
            return _calls_of_turn(log, run_id, rest)
        started |= dict.fromkeys(later)
    return tuple(started)


def _started_later(log: Log, run_id: str, rest: Line) -> list[CallId] | None:
    """The calls of a turn that a run began behind a rest in it; None while the turn goes on."""
    started: list[CallId] = []
    for line in map(_read, history(log, run_id, rest.position)):
        if line.turn != rest.turn or line.target == "done":
            return started
        if line.type == f.ToolStarted.TAG and line.call is not None:
            started.append(line.call)
    return None


def _calls_of_turn(log: Log, run_id: str, rest: Line) -> tuple[CallId, ...]:
    load = loader(log, run_id, many=False)
    turn = (record_in(row, load).fact for row in history(log, run_id, _before_turn(log, run_id, rest), rest.position))
    return next((tuple(call.id for call in fact.calls) for fact in turn if isinstance(fact, f.ToolCallsRequested)), ())


def _before_turn(log: Log, run_id: str, within: Line) -> int:
    """The position before a turn's first record."""
    return next((line.position for line in _backwards(log, run_id, within.position) if line.turn != within.turn), 0)


class Elsewhere:
    """What the runs that a fork inherits from performed behind the split: side effects by signature and by business key. Read when first asked for, and on from there."""

    def __init__(self, log: Log, run_id: str) -> None:
        self._log, self._run_id = log, run_id
        self._from: dict[str, int] | None = None
        self._splits: dict[str, int] = {}
        self._unknown = ""
        """An ancestor that is not in the store, whatever run has its id there, so that nobody can tell what it did."""
        self._calls: dict[str, dict[str, tuple[str, f.Check | None]]] = {}
        """Name and check of the calls of each run."""
        self._performed: dict[str, str] = {}

    def performed(self, signature: Digest, business: str = "") -> str:
        """Where an action took place that this run has not done itself, in words; nothing where it did not, or where doing it again is allowed.

        `business` is what `business_key` makes of the action.
        """
        if self._from is None:
            self._from = self._beginnings()
        for run_id in self._from:
            self._read_on(run_id)
        if self._unknown:
            return f"run {self._unknown}, from which this one was forked, is not in this store, and what it performed later is not known"
        return self._performed.get(signature) or (self._performed.get(business, "") if business else "")

    def _beginnings(self) -> dict[str, int]:
        """Behind which position each run is read: that of the turn in which it was left."""
        found = splits(self._log, self._run_id, loader(self._log, self._run_id, many=False))
        if not found or found[-1].allow_repeat:
            return {}
        for split in found:
            for run_id in (split.parent, split.named):
                if run_id is not None and holds(self._log, run_id, split.at, split.head):
                    self._splits[run_id] = min(split.at, self._splits.get(run_id, split.at))
                elif run_id is not None:
                    self._unknown = run_id
        self._calls = {run_id: {} for run_id in self._splits}
        lines = {run_id: _read(next(history(self._log, run_id, at - 1, at))) for run_id, at in self._splits.items()}
        return {run_id: _before_turn(self._log, run_id, line) for run_id, line in lines.items()}

    def _read_on(self, run_id: str) -> None:
        assert self._from is not None
        load = loader(self._log, run_id, many=False)
        for row in history(self._log, run_id, self._from[run_id]):
            self._from[run_id] = row.position
            if row.type in (f.ToolCallsRequested.TAG, f.CallsChecked.TAG, f.CallSuperseded.TAG, f.ToolStarted.TAG):
                self._take(run_id, record_in(row, load))

    def _take(self, run_id: str, record: Record) -> None:
        calls = self._calls[run_id]
        match record.fact:
            case f.ToolCallsRequested(calls=made):
                calls |= {call.id: (call.name, None) for call in made}
            case f.CallsChecked(checks=checks):
                calls |= {check.call: (calls.get(check.call, ("", None))[0], check) for check in checks}
            case f.CallSuperseded(call=call, check=check):
                calls[call] = (calls.get(call, ("", None))[0], check)
            case f.ToolStarted(call=call) if record.position > self._splits[run_id] and call in calls:
                name, known = calls[call]
                if known is not None and known.effect == "side_effect":
                    words = f"run {run_id}, from which this one was forked, performed it at {record.position}"
                    self._performed |= dict.fromkeys((known.signature, *([business_key(name, known.key)] if known.key else [])), words)
            case _:
                pass


_DEFAULTS: Final = f.Setup(engine=0, seed="", budgets=None, policy=None)  # type: ignore[arg-type]
"""What a part of a setup is where it is not written."""
