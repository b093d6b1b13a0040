"""A log that lives and dies with its process, in the library's own in-memory recorder.

Apart from the stores on disk, because tests and throw-away runs should load and touch nothing else.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from threading import RLock

from eventsourcing.persistence import StoredEvent
from eventsourcing.popo import POPOApplicationRecorder

from refold.events.holds import Hold, Holder, MemoryHolds
from refold.events.storage import FOUND_MAX, SCAN_ROWS, STARTS, Conflict, Log, PayloadMissing, Row, StoreUnavailable, Submission, additions, payload_stream
from refold.events.words import Digest


class MemoryLog(Log):
    """Every one is a store of its own. It keeps what it holds when it is closed, and refuses to be used."""

    def __init__(self) -> None:
        self._recorder = POPOApplicationRecorder()
        self._lock = RLock()
        self._digests: dict[str, dict[Digest, None]] = {}  # The recorder has no index over stream names; this is one, by run.
        self._holds = MemoryHolds()
        self._closed = False

    def _append(self, submission: Submission) -> None:
        run_id = submission.run_id
        with self._opened():
            rows = additions(submission, self._position(run_id), self._state)
            self._recorder.insert_events([StoredEvent(*row) for row in rows])
            self._digests.setdefault(run_id, {}).update(dict.fromkeys(submission.payloads))

    def _submit(self, submission: Submission) -> "Future[None]":
        future: Future[None] = Future()
        self._opened()
        try:
            self._append(submission)
        except (Conflict, StoreUnavailable) as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def scan(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Row]:
        while rows := self._chunk(run_id, after, upto):
            yield from rows
            after = rows[-1].position

    def _chunk(self, run_id: str, after: int, upto: int | None) -> list[Row]:
        with self._opened():
            head = self._position(run_id)
            if head is None:
                return []
            # The recorder walks from one end of the stream: from its newest record the tail is near, which is what a driver asks for all day.
            newest = upto is None and head - after <= SCAN_ROWS
            events = self._recorder.select_events(run_id, gt=after, lte=upto, desc=newest, limit=head - after if newest else SCAN_ROWS) if head > after else []
            return [Row(e.originator_version, e.topic, e.state) for e in (reversed(events) if newest else events)]

    def head(self, run_id: str) -> tuple[int, bytes] | None:
        with self._opened():
            last = self._recorder.select_events(run_id, desc=True, limit=1)
            return (last[0].originator_version, last[0].state) if last else None

    def payload(self, run_id: str, digest: str) -> bytes:
        with self._opened():
            state = self._state(payload_stream(run_id, digest))
        if state is None:
            raise PayloadMissing(run_id, digest)
        return state

    def payloads(self, run_id: str) -> dict[Digest, bytes]:
        with self._opened():
            return {digest: self.payload(run_id, digest) for digest in self._digests.get(run_id, ())}

    def runs(self) -> list[str]:
        with self._opened():
            started = self._recorder.select_notifications(None, self.changed() + 1, topics=STARTS)
            return list(dict.fromkeys(str(notification.originator_id) for notification in started))  # an imported fork holds several beginnings

    def find(self, prefix: str) -> list[str]:
        return sorted(run_id for run_id in self.runs() if run_id.startswith(prefix))[:FOUND_MAX]

    def changed(self) -> int:
        with self._opened():
            return self._recorder.max_notification_id() or 0

    def hold(self, run_id: str, who: str, ttl_s: float) -> Hold:
        self._opened()
        return self._holds.take(run_id, who, ttl_s)

    def holder(self, run_id: str) -> Holder | None:
        self._opened()
        return self._holds.holder(run_id)

    def close(self) -> None:
        self._closed = True

    def _position(self, run_id: str) -> int | None:
        last = self._recorder.select_events(run_id, desc=True, limit=1)
        return last[0].originator_version if last else None

    def _state(self, stream: str) -> bytes | None:
        events = self._recorder.select_events(stream)
        return events[0].state if events else None

    def _opened(self) -> AbstractContextManager[object]:
        if self._closed:
            raise StoreUnavailable("the store in memory is closed: open another")
        return self._lock
