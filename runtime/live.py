"""Live parts and committed records in one order, for any number of readers, who may be slow, late or gone: the run waits for none of them.

Apart from the driver, which only says what it hears, and from the log, which knows nothing of parts.

A *cursor* is a place in that order: `(position, index)` is the `index`-th part behind the record at `position`, and `(position, 0)` that record itself.
Screen, backend and log share it, and a reader that gives the last one that it saw goes on behind it. Records are never left out: who lags is served from the log.
Parts are kept within bounds; those that a reader came too late for are said to be `Dropped`, and the fact that their request comes to holds what they said.

A request's parts stand between its `model_requested` and the fact that it came to. After `model_failed` another `model_requested` begins a new attempt, and a screen
drops the text of the old one; so does `driver_attached`, where the process of the old one was lost.
"""

import asyncio
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from threading import Lock
from typing import Final

import msgspec

from refold.events import facts as f
from refold.events.codec import Record, read_line
from refold.events.lineage import history
from refold.events.storage import Log, Row
from refold.events.words import CallId
from refold.projections.run import Run
from refold.runtime.journal import UnknownRun, loader, record_in
from refold.runtime.ports import OpaqueItem, Part, TextDelta
from refold.runtime.values import to_json

Cursor = tuple[int, int]
Shown = Part | Record
START: Final[Cursor] = (0, 0)
"""Before everything."""
KEPT_MAX: Final = 10_000
"""Parts and records that a driver keeps for its readers at most,"""
KEPT_BYTES_MAX: Final = 4 * 1024 * 1024
"""and the memory that they take; the newest is always kept."""
BATCH: Final = 64
"""What a reader takes at once."""
WAKE_S: Final = 0.01
"""How long readers are left alone after they were woken."""
POLL_S: Final = 0.1
"""How often a log is asked whether anybody appended."""
_SIZE: Final = 300
"""Bytes of a part without its text."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """So many parts came and went before this reader took them; its cursor is that of the last."""

    parts: int


class Streamed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that a stream gives, and where it belongs, in the words of the log.

    `turn` is `t3`; `call` is `t3.2` where it is about a call, also before that is in the log, and `index` then its place in the turn, from 1.
    """

    cursor: Cursor
    turn: str
    what: Shown | Dropped
    call: CallId | None = None
    index: int | None = None


def of_record(record: Record) -> Streamed:
    """A record as a stream gives it."""
    number = record.call.rpartition(".")[2] if record.call is not None else ""
    index = int(number) if number.isdecimal() else None
    return Streamed(cursor=(record.position, 0), turn=f"t{record.turn}", what=record, call=record.call, index=index)


class Feed:
    """What one driver says of its run, and the newest of it, kept for readers.

    It is called with every part and every record, in the loop of the driver; `heard` is called with them too, until it raises. Readers may be in any loop.
    """

    def __init__(self, heard: Callable[[Shown], None] | None = None) -> None:
        self._heard = heard
        self._lock = Lock()
        self._cursor = START
        self._turn = "t0"
        self._calls: dict[int, tuple[CallId, int]] = {}
        """Calls of the open request, by the index that its parts have."""
        self._kept: deque[Streamed] = deque()
        self._sizes: deque[int] = deque()
        self._size = 0
        self._came: dict[int, tuple[int, str]] = {}
        """Parts behind each record that has some, kept or not, and their turn."""
        self._bell = _Bell()
        self._rung = 0.0
        self._rings = False
        """Whether a timer will ring it."""
        self.closed = False
        """Whether the driver is done."""
        self.spoke = False
        """Whether it has said anything."""

    # -- the driver's side

    def begin(self, run: Run) -> None:
        """Where the run stands when its driver begins."""
        self._cursor, self._turn = (run.position, 0), f"t{run.turn}"

    def __call__(self, what: Shown) -> None:
        with self._lock:
            self.spoke = True
            if isinstance(what, Record):
                self._record(what)
            else:
                self._part(what)
        if self._bell.waiting and not self._rings:
            self._ring_in_time()
        if self._heard is not None:
            self._tell(self._heard, what)

    def close(self) -> None:
        """Nothing more comes."""
        with self._lock:
            self.closed = True
        self._ring()

    def _record(self, record: Record) -> None:
        if isinstance(record.fact, f.ModelRequested):
            self._calls = {}
        streamed = of_record(record)
        self._cursor, self._turn = streamed.cursor, streamed.turn
        if b'"$payload"' not in record.stored:  # who wants a large value reads it from the log
            self._keep(streamed, _SIZE + len(record.stored))

    def _part(self, part: Part) -> None:
        position, number = self._cursor
        self._cursor = cursor = position, number + 1
        self._came[position] = number + 1, self._turn
        place: int | None = getattr(part, "index", None)
        call, index = self._placed(place) if place is not None else (None, None)
        self._keep(Streamed(cursor=cursor, turn=self._turn, what=part, call=call, index=index), _size_of(part))

    def _placed(self, index: int) -> tuple[CallId, int]:
        """The id that a call of the open request will have: calls are numbered as they open."""
        if (placed := self._calls.get(index)) is None:
            number = len(self._calls) + 1
            placed = self._calls[index] = CallId(f"{self._turn}.{number}"), number
        return placed

    def _keep(self, streamed: Streamed, size: int) -> None:
        self._kept.append(streamed)
        self._sizes.append(size)
        self._size += size
        while len(self._kept) > KEPT_MAX or (self._size > KEPT_BYTES_MAX and len(self._kept) > 1):
            self._kept.popleft()
            self._size -= self._sizes.popleft()

    def _ring_in_time(self) -> None:
        """At once, or a little later where that was just done: a quick stream comes in larger bites."""
        left_s = self._rung + WAKE_S - time.monotonic()
        if left_s <= 0:
            self._ring()
        else:
            self._rings = True
            asyncio.get_running_loop().call_later(left_s, self._ring)

    def _ring(self) -> None:
        self._rings, self._rung = False, time.monotonic()
        self._bell.ring()

    def _tell(self, heard: Callable[[Shown], None], what: Shown) -> None:
        try:
            heard(what)
        except Exception as error:  # noqa: BLE001 - whoever listens is no part of the run, and cannot end it
            self._heard = None
            asyncio.get_running_loop().call_exception_handler({"message": "a listener of a run raised, and is told nothing more of it", "exception": error})

    # -- the readers' side

    async def more(self, log: Log, run_id: str, cursor: Cursor) -> list[Streamed] | None:
        """What comes behind a cursor, as soon as there is something; None when the driver is done and nothing is left. Raises StoreUnavailable."""
        while True:
            with self._lock:
                found = self._behind(cursor)
                if found is None:
                    if self.closed:
                        return None
                    rung = self._bell.rung()
            if isinstance(found, list):
                return found
            if found is None:
                await rung
            elif records := await asyncio.to_thread(_records, log, run_id, cursor[0], found):
                return records
            else:
                cursor = found, 0  # a run whose own records begin behind its parent's

    def _behind(self, cursor: Cursor) -> list[Streamed] | int | None:
        """What is kept, or that it was dropped; up to which position the log has it; None where nothing came yet."""
        position, index = cursor
        came, turn = self._came.get(position, (0, ""))
        following = (position, index + 1) if index < came else (position + 1, 0)
        if following > self._cursor:
            return None
        at = self._place(cursor)
        first = self._kept[at].cursor if at < len(self._kept) else None
        if first == following:
            return self._run_from(at)
        if index < came:
            last = first[1] - 1 if first is not None and first[0] == position else came
            return [Streamed(cursor=(position, last), turn=turn, what=Dropped(parts=last - index))]
        return self._on_log(position, first)

    def _place(self, cursor: Cursor) -> int:
        """Where in what is kept that begins which is behind a cursor; a reader that keeps up is at the end."""
        kept = self._kept
        if not kept or kept[-1].cursor <= cursor:
            return len(kept)
        if len(kept) == 1 or kept[-2].cursor <= cursor:
            return len(kept) - 1
        return bisect_right(kept, cursor, key=_cursor_of)

    def _run_from(self, at: int) -> list[Streamed]:
        """What is kept from a place on, as far as no record is missing in between."""
        found = [self._kept[at]]
        for n in range(at + 1, min(at + BATCH, len(self._kept))):
            (position, index), cursor = found[-1].cursor, self._kept[n].cursor
            if cursor != (position, index + 1) and cursor != (position + 1, 0):
                break
            found.append(self._kept[n])
        return found

    def _on_log(self, position: int, first: Cursor | None) -> int:
        """The last record behind a position before anything else: before a part, or before what is kept."""
        until = self._cursor[0] if first is None else first[0] - (first[1] == 0)
        return min(until, next((at for at in self._came if at > position), until))


class Live:
    """The runs that this process drives on a store, for those who read along."""

    def __init__(self) -> None:
        self._feeds: dict[str, list[Feed]] = {}
        self._lock = Lock()
        self.bell = _Bell()
        """Rings when somebody begins to drive a run."""

    @contextmanager
    def on_air(self, run: Run, heard: Callable[[Shown], None] | None) -> Iterator[Feed]:
        """While a run is driven: what is to be called with every part and record. `heard` is too, unless it is such a feed itself."""
        feed = heard if isinstance(heard, Feed) else Feed(heard)
        feed.begin(run)
        with self._lock:
            self._feeds.setdefault(run.id, []).append(feed)
        self.bell.ring()
        try:
            yield feed
        finally:
            with self._lock:
                self._feeds[run.id].remove(feed)
                if not self._feeds[run.id]:
                    del self._feeds[run.id]
            feed.close()

    def feed(self, run_id: str) -> Feed | None:
        """Of who drives a run here; of several the newest that has said something, since who only tries to drive may be refused."""
        with self._lock:
            feeds = self._feeds.get(run_id, ())
            return next((feed for feed in reversed(feeds) if feed.spoke), feeds[-1] if feeds else None)


class _Bell:
    """Wakes those who wait, each in the loop in which it does."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def rung(self) -> "asyncio.Future[None]":
        """Done once the bell rings; to be cancelled by who waits no more."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._lock:
            self.waiting = [*(each for each in self.waiting if not each[1].done()), (loop, future)]
        return future

    def ring(self) -> None:
        with self._lock:
            waiting, self.waiting = self.waiting, []
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop, future in waiting:
            if loop is here:
                _settle(future)
            else:
                with suppress(RuntimeError):  # a loop that is closed has nobody who waits
                    loop.call_soon_threadsafe(_settle, future)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Tail:
    """The records of a run as anybody appends them: `read`, and again once the log has `moved`, until `ended`."""

    def __init__(self, log: Log, run_id: str) -> None:
        self._log, self._run_id = log, run_id
        self._seen: int | None = None
        self.ended = False
        """Whether the run has ended, and everything was read."""

    def read(self, after: int) -> list[Row]:
        """The next rows behind a position, `BATCH` at most. Raises UnknownRun, StoreUnavailable, and Unreadable where the last record is none."""
        seen = self._log.changed()
        rows = list(islice(history(self._log, self._run_id, after), BATCH))
        if not rows:
            self._seen, self.ended = seen, self._is_done(after)
        return rows

    def moved(self) -> bool:
        """Whether anything was committed to the store since nothing was left to read."""
        return self._log.changed() != self._seen

    def _is_done(self, at: int) -> bool:
        head = self._log.head(self._run_id)
        if head is None:
            raise UnknownRun(f"there is no run {self._run_id} in this store")
        return head[0] <= at and read_line(head[1]).target == "done"


async def watch(live: Live, log: Log, run_id: str, after: Cursor) -> AsyncGenerator[Streamed, None]:
    """Everything behind a cursor until the run has ended: records from the log, whoever drives, and parts where this process does."""
    tail, cursor, begun = Tail(log, run_id), after, live.bell.rung()
    feed: Feed | None = None
    try:
        while not tail.ended:
            feed = feed or live.feed(run_id)
            batch = await feed.more(log, run_id, cursor) if feed is not None else None
            if batch is None:
                feed = None
                batch = [of_record(record) for record in await asyncio.to_thread(_read, tail, log, run_id, cursor[0])]
                if live.feed(run_id) is not None:
                    continue  # its parts stand between what was read: it says in which order
            for streamed in batch:
                cursor = streamed.cursor
                yield streamed
            if not batch and not tail.ended:
                begun = await _news(live, run_id, tail, begun)
    finally:
        begun.cancel()


async def _news(live: Live, run_id: str, tail: Tail, begun: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """Wait until somebody appends to the log, or begins to drive the run here; gives the bell's next ring."""
    while live.feed(run_id) is None and not await asyncio.to_thread(tail.moved):
        await asyncio.wait({begun}, timeout=POLL_S)
        if begun.done():
            begun = live.bell.rung()
    return begun


def _read(tail: Tail, log: Log, run_id: str, after: int) -> list[Record]:
    load = loader(log, run_id, many=False)
    return [record_in(row, load) for row in tail.read(after)]


def _records(log: Log, run_id: str, after: int, upto: int) -> list[Streamed]:
    """The next records that are not kept any more."""
    load = loader(log, run_id, many=False)
    return [of_record(record_in(row, load)) for row in islice(history(log, run_id, after, upto), BATCH)]


def _cursor_of(streamed: Streamed) -> Cursor:
    return streamed.cursor


def _size_of(part: Part) -> int:
    """About the memory that a part takes."""
    if isinstance(part, TextDelta):
        return _SIZE + sys.getsizeof(part.text)
    if isinstance(part, OpaqueItem):
        return _SIZE + len(to_json(part.item))
    return _SIZE + sum(sys.getsizeof(text) for name in part.__struct_fields__ if isinstance(text := getattr(part, name), str))
