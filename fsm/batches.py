"""Stored rows as batches of records, up to the first that is not what was written.

Apart from the replay, because bytes that were changed are named for what they are before anything is derived from them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from refold.events import chain, facts as f
from refold.events.codec import Line, Record, Unreadable, read_line, record_of
from refold.events.payloads import Load
from refold.events.words import Digest
from refold.fsm import causes
from refold.fsm.divergence import Difference, Divergence, diverges

Stored = tuple[int, bytes]
"""A position and the bytes stored there."""


class Batch(NamedTuple):
    """Records that were appended together; `behind` is the one that follows them. With `broken` there may have been more: that is what is wrong with what follows."""

    records: list[Record]
    behind: Record | None = None
    broken: Divergence | None = None

    @property
    def end(self) -> int | None:
        """The first position behind the batch; None where the log ends with it."""
        return self.broken.position if self.broken is not None else self.behind.position if self.behind is not None else None

    @property
    def forked(self) -> bool:
        """Whether a fork begins behind these records, and perhaps within what its parent appended together."""
        return self.behind is not None and isinstance(self.behind.fact, f.RunForked)


def batches(rows: Iterable[Stored], load: Load) -> Iterator[Batch]:
    """Records by the batch they were appended in; what is broken ends the last one."""
    load = _told_apart(load)
    batch: list[Record] = []
    for position, stored in rows:
        record = _record(position, stored, batch[-1] if batch else None, load)
        if isinstance(record, Divergence):
            yield Batch(batch, broken=record)
            return
        if batch and record.batch != batch[0].batch:
            yield Batch(batch, record)
            batch = []
        batch.append(record)
    if batch:
        yield Batch(batch)


class _PayloadBroken(Exception):
    pass


def _record(position: int, stored: bytes, before: Record | None, load: Load) -> Record | Divergence:
    """The record in a row, or what is wrong with it."""
    try:
        line = read_line(stored)
    except Unreadable as error:
        return diverges(position, Difference("bytes", error.why, None), causes.changed("the stored bytes cannot be read"))
    damage = _damage(position, line, stored, before)
    if damage is not None:
        return damage
    try:
        return record_of(line, stored, load)
    except _PayloadBroken as error:
        return diverges(position, Difference("data", str(error), None), causes.changed(f"a stored value is not what was written: {error}"), line)
    except Unreadable as error:
        return diverges(position, Difference("data", error.why, None), causes.unread(error.why), line)


def _told_apart(load: Load) -> Callable[[Digest], bytes]:
    """The same, telling a value that is missing or changed from data that cannot be read."""

    def told(digest: Digest) -> bytes:
        try:
            return load(digest)
        except (LookupError, Unreadable) as error:
            raise _PayloadBroken(error.why if isinstance(error, Unreadable) else f"the stored value {digest} is missing") from error

    return told


def _damage(position: int, line: Line, stored: bytes, before: Record | None) -> Divergence | None:
    """What shows that these are not the bytes that were written here: their place, the chain, the time."""
    last = before.position if before is not None else 0
    if line.position != position or position <= last:
        place = position if position > last else last + 1
        return diverges(position, Difference("position", line.position, place), causes.changed(f"the record at {line.position} stands where {place} should be"))
    if last == position - 1:
        digest = chain.recompute(stored, before.digest if before is not None else chain.NOTHING)
        if digest != line.digest:
            return diverges(position, Difference("digest", line.digest, digest), causes.changed(), line)
    if before is not None and line.at < before.at:
        return diverges(
            position, Difference("at", line.at, before.at), causes.changed("the clock steps back, and no record is earlier than the one before"), line
        )
    return None
