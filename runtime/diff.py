"""`diff`: two runs side by side, turn by turn; the pure comparison, fed from the log."""

from collections.abc import Iterable
from typing import Any

import msgspec

from refold.events.codec import Record
from refold.fsm.machine import empty, step
from refold.projections.differences import Pair, differences, shared
from refold.projections.turns import Course, Origin
from refold.projections.view import usage_of
from refold.runtime.store import Store


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs as a whole. `cost_usd` is a decimal string, `tokens` all that were read and written; `origin` the run that it began from, if any.

    `from_other` says whether that is the other of the two, which its id alone does not tell.
    """

    run_id: str
    status: str
    reason: str | None
    model: str
    turns: int
    tokens: int
    cost_usd: str
    position: int
    usage: dict[str, Any]
    origin: Origin | None
    from_other: bool


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs have in common to the last byte: the records up to a position, which is in a turn."""

    position: int
    turn: int


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """What `diff` found. `shared` is None where the runs began apart."""

    same: bool
    left: Side
    right: Side
    shared: Shared | None
    turns: tuple[Pair, ...]

    def as_json(self) -> dict[str, Any]:
        """The documented shape."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def diff(store: Store, a: str, b: str) -> Diff:
    """Compare two runs, aligned by turn. Raises UnknownRun, StoreUnavailable."""
    return compare(course_of(store.read(a)), course_of(store.read(b)))


def compare(left: Course, right: Course) -> Diff:
    """Compare two runs that were taken in to their ends."""
    common = shared(left.digests, right.digests)
    turns = differences(left.finish(), right.finish(), forked=common > 0)
    return Diff(
        same=all(pair.verdict == "same" for pair in turns),
        left=_side(left, right),
        right=_side(right, left),
        shared=Shared(position=common, turn=left.digests[common - 1][1]) if common else None,
        turns=turns,
    )


def course_of(records: Iterable[Record]) -> Course:
    """A run as it went, from its records, the first one first. Raises Illegal where one has no place."""
    course = Course()
    for record in records:
        before = course.run or empty(record.run)
        course.take(before, record, step(before, record))
    return course


def _side(course: Course, other: Course) -> Side:
    run = course.run
    assert run is not None
    return Side(
        run_id=run.id,
        status=run.status,
        reason=run.reason,
        model=run.begun.model,
        turns=run.turn,
        tokens=run.spent.tokens,
        cost_usd=run.spent.cost_usd,
        position=run.position,
        usage=usage_of(run),
        origin=course.origin,
        from_other=_is_from(course, other),
    )


def _is_from(course: Course, other: Course) -> bool:
    """Whether the other is the run that this one began from: it has that id, and the record behind which this one began."""
    named = course.origin is not None and other.run is not None and course.origin.parent == other.run.id
    return named and any(digest == course.began_behind for digest, _ in other.digests)
