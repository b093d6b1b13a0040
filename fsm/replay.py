"""Replay: derive a log again from its input facts alone, batch by batch, and name the first record that comes out otherwise.

Pure, and the same `decide` that made the log; a log whose derived records were deleted comes out whole.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from refold.events import chain, facts as f
from refold.events.codec import Record, Stamp, Unreadable, read, read_line
from refold.events.payloads import Load
from refold.events.words import Digest, RunId
from refold.fsm.audit import NOT_JUDGED
from refold.fsm.decide import decide, written
from refold.fsm.machine import Illegal, empty
from refold.projections.run import Run, replace

SHOWN_MAX: Final = 200
"""Characters of a value that a divergence shows."""

Stored = tuple[int, bytes]
"""A position and the bytes stored there."""
Ask = Callable[[Run, Sequence[f.Input]], Sequence[f.Input]]
"""The inputs of a batch as today's code of the agent would have given them: its verdicts asked for again."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first record that came out otherwise: where, which field by its path, what is recorded, what is derived, and why as far as can be told.

    `cause` begins with its class: `code`, `context`, `tool schema`, `policy or limit`, `upcaster` or `environment`.
    """

    position: int
    field: str
    recorded: Any
    derived: Any
    cause: str


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay gives: the number of records that were stored, the whole log as derived, and the first divergence."""

    run: Run
    events: int
    records: tuple[Record, ...]
    divergence: Divergence | None


def replay_rows(run_id: str, rows: Iterable[Stored], load: Load, ask: Ask | None = None) -> Derived:
    """Derive a run again. With `ask` the agent's verdicts are asked for again and compared too."""
    run = empty(RunId(run_id))
    derived: list[Record] = []
    first: Divergence | None = None
    events = 0
    stored = batches(rows, load)
    try:
        for batch, cut in stored:
            events += len(batch)
            found, run, records = _batch(run, batch, ask, cut=cut)
            derived += records
            first = first or found
            if found is not None and found.recorded is not None:
                break  # what follows answers to another past
    except Broken as broken:
        first = first or broken.divergence
    events += sum(len(batch) for batch, _ in _rest(stored))
    return Derived(run=run, events=events, records=tuple(derived), divergence=first)


class Broken(Exception):
    """The records cannot be followed any further; `divergence` says where and why."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.cause)
        self.divergence = divergence


def _rest(stored: Iterator[tuple[list[Record], bool]]) -> Iterator[tuple[list[Record], bool]]:
    """What was not replayed, only to be counted."""
    try:
        yield from stored
    except Broken:
        return


def batches(rows: Iterable[Stored], load: Load) -> Iterator[tuple[list[Record], bool]]:
    """Records by the batch they were appended in, and whether a fork begins within it, so that what followed is its parent's alone. Raises Broken."""
    batch: list[Record] = []
    before: Record | None = None
    for position, stored in rows:
        try:
            record = read(stored, load)
        except Unreadable as error:
            raise Broken(
                Divergence(position=position, field="bytes", recorded=error.why, derived=None, cause="environment: the stored bytes cannot be read")
            ) from error
        except LookupError as error:
            raise Broken(
                Divergence(position=position, field="data", recorded=str(error), derived=None, cause="environment: a stored value is missing")
            ) from error
        if (before.position if before is not None else 0) == position - 1:
            _check_digest(position, record, before)
        before = record
        if batch and record.batch != batch[0].batch:
            yield batch, record.run != batch[0].run
            batch = []
        batch.append(record)
    if batch:
        yield batch, False


def _check_digest(position: int, record: Record, before: Record | None) -> None:
    """Bytes that were changed after they were written are named for what they are, before anything is derived from them."""
    digest = chain.recompute(record.stored, before.digest if before is not None else chain.NOTHING)
    if digest != record.digest:
        cause = "environment: the stored bytes were changed after they were written"
        raise Broken(Divergence(position=position, field="digest", recorded=record.digest, derived=digest, cause=cause))


def _batch(run: Run, recorded: list[Record], ask: Ask | None, *, cut: bool) -> tuple[Divergence | None, Run, list[Record]]:
    """One batch again: the first difference, the run behind it and the records as derived."""
    first = recorded[0]
    if not run.position or first.type == f.RunForked.TAG:
        run = replace(run, id=first.run)
    given: list[f.Input] = [record.fact for record in recorded if record.fact.INPUT]  # type: ignore[misc]  # INPUT tells the unions apart
    if not given:
        cause = "environment: the inputs that this follows from are missing from the log"
        raise Broken(Divergence(position=first.position, field="type", recorded=first.type, derived=None, cause=cause))
    inputs = ask(run, given) if ask is not None else given
    try:
        batch = decide(run, inputs, Stamp(at=first.at, driver=first.driver, stepped_back_us=first.stepped_back_us))
        derived, _ = written(run, batch)
    except Illegal as illegal:
        position = next((record.position for record in recorded if record.type == illegal.trigger), first.position)
        cause = f"code: under the rules of today {illegal}"
        raise Broken(Divergence(position=position, field="type", recorded=illegal.trigger, derived=None, cause=cause)) from illegal
    except NOT_JUDGED as error:  # only records that somebody else made up have such inputs
        cause = f"environment: nothing follows from what was said here ({type(error).__name__} {error})"
        raise Broken(Divergence(position=first.position, field="data", recorded=first.type, derived=None, cause=cause)) from error
    after = batch.run
    if cut and len(recorded) < len(derived):
        derived, after = derived[: len(recorded)], batch.runs[len(recorded) - 1]
    stored = {record.position: record for record in recorded}
    found = next((difference for record in derived if (difference := _difference(stored.get(record.position), record)) is not None), None)
    beyond = next((record for record in recorded if record.position > derived[-1].position), None)
    if found is None and beyond is not None:
        found = Divergence(position=beyond.position, field="type", recorded=beyond.type, derived=None, cause="code: this does not follow any more")
    return found, replace(after, head=derived[-1].digest), derived


# -- the first difference, and why


def _difference(recorded: Record | None, derived: Record) -> Divergence | None:
    if recorded is None:
        return Divergence(position=derived.position, field="type", recorded=None, derived=derived.type, cause="environment: the record is missing from the log")
    if recorded.stored == derived.stored:
        return None
    if recorded.v != derived.v and recorded.fact == derived.fact:
        return None  # an older version of the same: equal after upcasting
    old, new = _plain(recorded), _plain(derived)
    field, left, right = _first_path(old, new, "") or ("digest", recorded.digest, derived.digest)
    return Divergence(position=derived.position, field=field, recorded=_short(left), derived=_short(right), cause=_cause(recorded, derived, field))


def _plain(record: Record) -> dict[str, Any]:
    """A record as JSON values, without its digest, large values in place."""
    line = read_line(record.stored)
    envelope: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(line, data=msgspec.Raw(b"{}"), digest=Digest(""))))
    return {**envelope, "data": record.data}


def _first_path(old: Any, new: Any, path: str) -> tuple[str, Any, Any] | None:
    """The first place at which two JSON values differ."""
    if type(old) is type(new) and isinstance(old, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            found = _first_path(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}" if path else str(key))
            if found is not None:
                return found
        return None
    if type(old) is type(new) and isinstance(old, list) and len(old) == len(new):
        return next((found for n, pair in enumerate(zip(old, new, strict=True)) if (found := _first_path(*pair, f"{path}[{n}]")) is not None), None)
    return None if old == new and type(old) is type(new) else (path, old, new)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT: Final = _Absent()


def _short(value: Any) -> Any:
    if isinstance(value, _Absent):
        return "(absent)"
    if isinstance(value, str | dict | list) and len(text := value if isinstance(value, str) else msgspec.json.encode(value).decode()) > SHOWN_MAX:
        return text[:SHOWN_MAX] + "..."
    return value


def _cause(recorded: Record, derived: Record, field: str) -> str:
    """The class of a difference, as far as the two records tell."""
    if field == "digest":
        return "environment: the stored bytes are not those that this version would have written"
    if recorded.type != derived.type and {recorded.type, derived.type} & {"run_stopped", "tool_closed"}:
        return "policy or limit: a limit is decided otherwise"
    match recorded.fact:
        case f.CallsChecked():
            return "tool schema: the agent's tools check these calls otherwise"
        case f.ContextChosen():
            return "context: the agent's context builder chooses other turns"
        case f.ContextCompacted():
            return "context: the summary of the same turns is another"
        case f.AnswerChecked():
            return "code: the agent's validators judge this answer otherwise"
        case f.ModelRequested() if field.endswith("digest"):
            return "context: the request would show the model something else"
        case f.RunStarted():
            return "tool schema: the agent declares its tools otherwise" if ".tools" in field else "context: the agent begins otherwise"
        case _:
            return "code: the same inputs lead elsewhere under the rules of today"
