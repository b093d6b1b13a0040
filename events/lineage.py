"""The history of a run: its own records and, where it is a fork, those of the run it was split off in front of them.

Apart from the stores, because a fork points at its parent and copies nothing: whoever reads a run asks here, and the stores only know streams.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from refold.events import facts as f
from refold.events.chain import NOTHING, recompute
from refold.events.codec import Unreadable, read, read_line
from refold.events.payloads import Load
from refold.events.storage import Log, PayloadMissing, Row
from refold.events.words import Digest


class OtherHistory(Exception):
    """The run that another goes on from is not in the store, or is not as it was then."""


class Stretch(NamedTuple):
    """An inherited part of a history: the stream that holds it, and the last position of it that belongs to the history."""

    run_id: str
    upto: int


def history(log: Log, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Row]:
    """The rows of a run's history at positions after < p <= upto, in order, in flat memory. Raises OtherHistory where an ancestor is missing."""
    rows = log.scan(run_id, after, upto)
    first = next(rows, None)
    if (first is None and upto is not None) or (first is not None and first.position > after + 1):
        for stretch in ancestors(log, run_id):
            yield from log.scan(stretch.run_id, after, stretch.upto if upto is None else min(stretch.upto, upto))
            after = max(after, stretch.upto)
    if first is not None:
        yield first
        yield from rows


def ancestors(log: Log, run_id: str) -> list[Stretch]:
    """What a run inherits, the oldest first; nothing where it is no fork, or holds its whole history itself. Raises OtherHistory."""
    found: list[Stretch] = []
    child, split = run_id, split_of(log, run_id)
    while split is not None:
        parent = _where_parent_is(log, split)
        if parent is None:
            raise OtherHistory(f"run {child} is a fork of {absent(log, split.parent)}")
        if parent in (run_id, *(stretch.run_id for stretch in found)):
            raise OtherHistory(f"run {child} is a fork of {parent}, which is a fork of it: the store is damaged")
        found.append(Stretch(parent, min([split.at, *(stretch.upto for stretch in found)])))
        child, split = parent, split_of(log, parent)
    return found[::-1]


def _where_parent_is(log: Log, split: f.RunForked) -> str | None:
    """The run in whose history a fork's parent is found: itself, or the one that was named, which may have been imported without it and hold its records."""
    names = [name for name in (split.parent, split.named) if name is not None]
    found = next((name for name in names if holds(log, name, split.at, split.head)), None)
    return found or next((name for name in names if _is_damaged(log, name, split.at)), None)


def _is_damaged(log: Log, run_id: str, at: int) -> bool:
    """Whether the record there is none, or does not cover its bytes: then it is not another's, and whoever reads it is to find out."""
    rows = {row.position: row for row in log.scan(run_id, max(0, at - 2), at)}
    if at not in rows:
        return False
    try:
        before = read_line(rows[at - 1].state).digest if at - 1 in rows else NOTHING
        return recompute(rows[at].state, before) != read_line(rows[at].state).digest
    except Unreadable:
        return True


def holds(log: Log, run_id: str, at: int, head: Digest) -> bool:
    """Whether the history of a run has the record of this digest there; an id alone does not tell, since another store may have given it to another run."""
    names, seen = [run_id], set[str]()
    while names:
        name = names.pop()
        seen.add(name)
        row = next(log.scan(name, at - 1, at), None)
        if row is not None and _has_digest(row, head):
            return True
        split = split_of(log, name) if row is None else None
        if split is not None and split.at >= at:
            names += [each for each in (split.named, split.parent) if each is not None and each not in seen]
    return False


def _has_digest(row: Row, digest: Digest) -> bool:
    try:
        return read_line(row.state).digest == digest
    except Unreadable:
        return False


def absent(log: Log, run_id: str) -> str:
    """A run of this id that is needed and that the store does not hold, in words that end a sentence: what is there instead, and what to do."""
    if log.head(run_id) is None:
        return f"{run_id}, which is not in this store: import it first"
    return f"{run_id}, and the run {run_id} of this store is another, ends before that or is damaged there: see refold audit {run_id}, or import both into a store without it"


def split_of(log: Log, run_id: str) -> f.RunForked | None:
    """The fact with which a fork begins that points at its parent; None for any other run, and where that record is none, as whoever reads it will find."""
    first = next(log.scan(run_id), None)
    if first is None or first.type != f.RunForked.TAG:
        return None
    try:
        fact = read(first.state, lambda digest: log.payload(run_id, digest)).fact
    except (Unreadable, PayloadMissing):
        return None
    return fact if isinstance(fact, f.RunForked) else None


def splits(log: Log, run_id: str, load: Load) -> list[f.RunForked]:
    """Every fork in a run's history, the run's own last. Raises OtherHistory, and what reading raises."""
    found: list[f.RunForked] = []
    for stream, upto in (*ancestors(log, run_id), (run_id, None)):
        rows = log.scan(stream, 0, upto)
        first = next(rows, None)
        if first is None:
            continue  # all of this stretch is its parents'
        if first.type == f.RunForked.TAG:
            held: Iterable[Row] = (first,)
        elif read_line(first.state).run != stream:
            held = rows  # It was imported, and holds its parents' records.
        else:
            held = ()
        facts = (read(row.state, load).fact for row in held if row.type == f.RunForked.TAG)
        found += [fact for fact in facts if isinstance(fact, f.RunForked)]
    return found


def inherited_payloads(log: Log, run_id: str) -> Load:
    """Payloads by digest from the runs that a run inherits from. Raises PayloadMissing."""
    streams = [stretch.run_id for stretch in ancestors(log, run_id)]

    def load(digest: Digest) -> bytes:
        for stream in reversed(streams):
            try:
                return log.payload(stream, digest)
            except PayloadMissing:
                continue
        raise PayloadMissing(run_id, digest)

    return load
