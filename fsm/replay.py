"""Replay: derive a log again from its input facts alone, batch by batch, and name the first record that comes out otherwise.

Pure, and the same `decide` that made the log; a log whose derived records were deleted comes out whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from refold.events import facts as f
from refold.events.chain import close, completes, recompute
from refold.events.codec import Edge, Record, Stamp, encoded, read
from refold.events.payloads import Load
from refold.events.words import Digest, RunId
from refold.fsm import causes
from refold.fsm.answers import Response, classify
from refold.fsm.batches import Batch, Stored as Stored, batches
from refold.fsm.causes import Cause
from refold.fsm.decide import decide
from refold.fsm.divergence import TYPE, Difference, Divergence as Divergence, Nearest, difference, diverges, first_difference, values_of
from refold.fsm.machine import NOT_JUDGED, Cursor, Illegal, Refused, empty, fire_compiled
from refold.projections.run import Run, replace

Ask = Callable[[Run, Sequence[f.Input]], Sequence[f.Input]]
"""The inputs of a batch as today's code of the agent would have given them: its verdicts asked for again."""


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay gives: the number of records that were stored, the whole log as derived where it was kept, and the first divergence."""

    run: Run
    events: int
    records: tuple[Record, ...]
    divergence: Divergence | None


def replay_rows(run_id: str, rows: Iterable[Stored], load: Load, ask: Ask | None = None, *, keep: bool = True) -> Derived:
    """Derive a run again, in flat memory where what is derived need not be kept. With `ask` the agent's verdicts are asked for again and compared too.

    Raises UnsupportedEngine.
    """
    counted = _Counted(rows)
    read = batches(counted, load)
    run = empty(RunId(run_id))
    derived: list[Record] = []
    first: Divergence | None = None
    for batch in read:
        again = _batch(run, batch, ask)
        run = again.run
        if keep:
            derived += again.records
        if first is None and again.found is not None:
            first = msgspec.structs.replace(again.found, nearest=_nearest(again, batch, read))
        if not again.goes_on:
            break  # what follows answers to another past
    if first is None and run.id != run_id:
        first = diverges(run.position, Difference("run", run.id, run_id), causes.changed(f"these are the records of run {run.id}"))
    for _ in counted:
        pass
    return Derived(run=run, events=counted.events, records=tuple(derived), divergence=first)


class _Counted:
    """Rows, and how many of them there were."""

    def __init__(self, rows: Iterable[Stored]) -> None:
        self._rows, self.events = iter(rows), 0

    def __iter__(self) -> Iterator[Stored]:
        for row in self._rows:
            self.events += 1
            yield row


class _Again(NamedTuple):
    """A batch that was derived again: the run behind it, its records, the first divergence, and whether what follows can be derived too."""

    run: Run
    records: tuple[Record, ...] = ()
    found: Divergence | None = None
    goes_on: bool = False
    recorded: Record | None = None
    derived: Record | None = None
    """The two that part, where they are different facts."""


def _batch(run: Run, batch: Batch, ask: Ask | None) -> _Again:
    """One batch again. What is broken behind it counts where nothing differs before."""
    again = _judged(run, batch, ask) if batch.records else _Again(run)
    broken = batch.broken
    if broken is not None and (again.found is None or again.found.position >= broken.position):
        return _Again(again.run, again.records, broken)
    return again


def _judged(run: Run, batch: Batch, ask: Ask | None) -> _Again:
    """The records of a batch against what follows from their inputs."""
    first = batch.records[0]
    if run.position and isinstance(first.fact, f.RunForked) and first.fact.parent != run.id:
        return _Again(run, found=diverges(first.position, Difference("data.parent", first.fact.parent, run.id), causes.orphaned(run.id), first))
    if not run.position or isinstance(first.fact, f.RunForked):
        run = replace(run, id=first.run)
    stored = {record.position: record for record in batch.records}
    gap = _gap(stored, run.position + 1, _end(batch))
    given: list[f.Input] = [record.fact for record in batch.records if record.fact.INPUT]  # type: ignore[misc]  # INPUT tells the unions apart
    if gap is not None and gap < max((record.position for record in batch.records if record.fact.INPUT), default=_end(batch)):
        return _Again(run, found=diverges(gap, Difference(TYPE, None, None), causes.missing(", and it is an input: nothing can be derived without it")))
    if not given:
        return _Again(run, found=diverges(first.position, Difference(TYPE, first.type, None), causes.causeless(first.type), first))
    if (misread := _misread(run, batch.records)) is not None:
        return _Again(run, found=misread)
    inputs = ask(run, given) if ask is not None else given
    stamp = Stamp(at=first.at, driver=first.driver, stepped_back_us=first.stepped_back_us)
    made: list[f.Fact] = []  # so that the place of the move that cannot be made is known, whatever it raises

    def fire(cursor: Cursor, fact: f.Fact) -> None:
        fire_compiled(cursor, fact)
        made.append(fact)

    try:
        decided = decide(run, inputs, stamp, fire)
    except (Illegal, Refused, *NOT_JUDGED) as error:
        return _Again(run, found=_said_otherwise(batch, inputs) or _stuck(error, run.position + len(made) + 1, stored, gap))
    shared = _end(batch) - run.position - 1 if batch.forked else None  # what followed there is the parent's alone
    pairs = _written(run, decided.edges[:shared], stamp, stored)
    again = _Again(replace(decided.runs[len(pairs) - 1], head=pairs[-1].taken.digest), tuple(pair.taken for pair in pairs))
    parts = _parts(batch, stored, pairs)
    if gap is None or (parts is not None and parts.position < gap):
        return again._replace(goes_on=True) if parts is None else _parted(again, batch, parts)
    recovered = next((record for record in again.records if record.position == gap), None) if parts is None else None
    more = "" if recovered is not None else ", and what stands behind it does not follow without it"
    found = diverges(gap, Difference(TYPE, None, recovered.type if recovered is not None else None), causes.missing(more), recovered)
    return again._replace(found=found, goes_on=recovered is not None)


def _end(batch: Batch) -> int:
    """The first position behind a batch."""
    return batch.end if batch.end is not None else batch.records[-1].position + 1


def _gap(stored: Mapping[int, Record], first: int, end: int) -> int | None:
    """The first position from `first` on at which a record is missing."""
    return None if len(stored) == end - first else next((n for n in range(first, end) if n not in stored), None)


class _Pair(NamedTuple):
    """What was derived, what of the two logs goes on (the stored record where both come to the same), and how they differ."""

    made: Record
    taken: Record
    differs: Difference | None


def _written(run: Run, edges: Sequence[Edge], stamp: Stamp, stored: Mapping[int, Record]) -> list[_Pair]:
    """The records of a batch, each chained to what is taken of the one before: an older version of the same keeps its own digest."""
    pairs: list[_Pair] = []
    before, first = run.head, run.position + 1
    for position, edge in enumerate(edges, first):
        kept = stored.get(position)
        body, payloads = encoded(edge, run=run.id, position=position, batch=first, stamp=stamp)
        if kept is not None and completes(kept.stored, body) and _follows(kept, stored.get(position - 1), before):
            made = kept
        else:
            made = read(close(body, before)[0], payloads.__getitem__)
        differs = difference(kept, made) if kept is not None and kept is not made else None
        taken = kept if kept is not None and differs is None else made
        pairs.append(_Pair(made, taken, differs))
        before = taken.digest
    return pairs


def _follows(kept: Record, stored_before: Record | None, before: Digest) -> bool:
    """Whether a stored record covers the digest before it; where that is of the record that is stored before it, the chain was checked when it was read."""
    return (stored_before is not None and stored_before.digest == before) or recompute(kept.stored, before) == kept.digest


# -- where they part


class _Parts(NamedTuple):
    """The first position at which stored and derived records differ: both, or one where the other log has none."""

    position: int
    recorded: Record | None
    derived: Record | None
    differs: Difference


def _parts(batch: Batch, stored: Mapping[int, Record], pairs: Sequence[_Pair]) -> _Parts | None:
    """The first of: a record that differs, one that does not follow any more, one that follows too."""
    for made, _, differs in pairs:
        if differs is not None:
            return _Parts(made.position, stored[made.position], made, differs)
    last, end = pairs[-1].made.position, _end(batch)
    if batch.records[-1].position > last:
        beyond = next(record for record in batch.records if record.position > last)
        return _Parts(beyond.position, beyond, None, Difference(TYPE, beyond.type, None))
    if batch.broken is None and last >= end:
        too = next(pair.made for pair in pairs if pair.made.position >= end)
        return _Parts(too.position, batch.behind, too, Difference(TYPE, batch.behind.type if batch.behind is not None else None, too.type))
    return None


def _parted(again: _Again, batch: Batch, parts: _Parts) -> _Again:
    """The divergence at that place."""
    recorded, derived = parts.recorded, parts.derived
    found = diverges(parts.position, parts.differs, _cause(batch, parts), recorded or derived)
    if parts.differs.field != TYPE:
        return again._replace(found=found)
    return again._replace(found=found, recorded=recorded, derived=derived)


def _cause(batch: Batch, parts: _Parts) -> Cause:
    recorded, derived = parts.recorded, parts.derived
    if recorded is None:
        assert derived is not None
        return causes.ended(derived.type)
    older = next((record for record in batch.records if record.fact.INPUT and record.v != record.fact.VERSION), None)
    return causes.of(recorded, derived, parts.differs.field, older)


def _nearest(again: _Again, batch: Batch, later: Iterable[Batch]) -> Nearest | None:
    """Where the recorded fact follows in the derived log, or else the derived one stands in the recorded log."""
    recorded, derived = again.recorded, again.derived
    assert again.found is not None
    if recorded is not None and (same := _next_of(recorded, again.records, again.found.position)) is not None:
        return Nearest(type=same.type, position=same.position, log="derived")
    if recorded is None or derived is None:
        return None
    rest = chain(batch.records, chain.from_iterable(each.records for each in later))
    same = _next_of(derived, rest, again.found.position)
    return Nearest(type=same.type, position=same.position, log="recorded") if same is not None else None


def _next_of(record: Record, records: Iterable[Record], position: int) -> Record | None:
    """The next record that is of the same fact: of one type, and of the same call, attempt or request."""
    wanted = _identity(record)
    return next((each for each in records if each.position > position and _identity(each) == wanted), None)


def _identity(record: Record) -> tuple[object, ...]:
    return record.type, record.call, *(getattr(record.fact, name, None) for name in ("number", "attempt"))


# -- where nothing can be derived


def _said_otherwise(batch: Batch, inputs: Sequence[f.Input]) -> Divergence | None:
    """The first input that today's code of the agent gives otherwise, where nothing can be made of that."""
    for record, fact in zip((record for record in batch.records if record.fact.INPUT), inputs, strict=True):
        found = first_difference(values_of(record.fact), values_of(fact), "data") if fact != record.fact else None
        if found is not None:
            return diverges(record.position, found, causes.said_again(record, fact, found.field), record)
    return None


def _stuck(error: Exception, position: int, stored: Mapping[int, Record], gap: int | None) -> Divergence:
    """A move that the rules or the limits of today do not allow, or at which they raise something."""
    if gap is not None and gap <= position:
        return diverges(gap, Difference(TYPE, None, None), causes.missing(", and what stands behind it does not follow without it"))
    record = stored.get(position)
    match error:
        case Refused():
            cause = causes.refused(str(error))
        case Illegal():
            cause = causes.illegal(record, error.trigger, str(error))
        case _:
            cause = causes.raised(error)
    return diverges(position, Difference(TYPE, record.type if record is not None else None, None), cause, record)


def _misread(run: Run, records: Sequence[Record]) -> Divergence | None:
    """The first response whose record contradicts itself: by what it says of its calls and its end, the adapters of today would make another fact of it.

    What an adapter alone knew (that a stream was malformed, or a text marked as final) is not recorded, and neither is a response that we cut; those are believed.
    """
    for record in records:
        if record.type not in _RESPONSES:
            continue
        match record.fact:
            case f.ToolCallsRequested() | f.FinalProposed() | f.ModelInterrupted(cause="filtered" | "overflow" | "length" | "paused") as fact:
                today = classify(Response(output=fact), run.turn)
                found = _as_other(record, today)
                if found is not None:
                    return diverges(record.position, found, causes.misread(record, today), record)
            case _:
                pass
    return None


_RESPONSES: Final = frozenset(fact.TAG for fact in (f.ToolCallsRequested, f.FinalProposed, f.ModelInterrupted))


def _as_other(record: Record, today: f.FinalProposed | f.ToolCallsRequested | f.ModelInterrupted) -> Difference | None:
    """How today's fact is another; the words in which an interruption is told are the shell's."""
    if isinstance(record.fact, f.ModelInterrupted) and isinstance(today, f.ModelInterrupted):
        today = replace(today, detail=record.fact.detail)
    if record.fact == today:
        return None
    if record.type != today.TAG:
        return Difference(TYPE, record.type, today.TAG)
    return first_difference(values_of(record.fact), values_of(today), "data")
