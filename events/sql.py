"""What a log in a database is, whichever that is: the queries that read it, and the one writer of the one process that opened it.

Apart from the databases, which say how their dialect is written, what is done in a transaction, and what they raise.
"""

import os
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, LiteralString, NamedTuple

from refold.events.groups import Commit, GroupWriter
from refold.events.storage import FOUND_MAX, SCAN_ROWS, Log, PayloadMissing, Row, StoreUnavailable, Submission, payload_stream
from refold.events.words import Digest

NO_END: Final = 2**63 - 1
"""The last version there can be, and more rows than there are."""


class Dialect(NamedTuple):
    """How a database is asked."""

    mark: LiteralString
    """Where a value is put in."""
    topic: LiteralString
    state: LiteralString
    """How these columns are read, a text and bytes: a column of SQLite may hold a value of another kind than its own, as in a file that somebody changed."""
    started: LiteralString
    """Where the rows are with which runs begin: a table, and a condition."""
    order: LiteralString
    """The column in which the rows of all runs have their order."""


class SqlLog(Log):
    """Every read is one short query; every write goes through one `GroupWriter`. `place` is how errors name the store."""

    def __init__(self, place: str, dialect: Dialect, commit: Commit, *close: Callable[[], None]) -> None:
        self._place = place
        mark, topic, state, started, order = dialect
        of_run = f"FROM stored_events WHERE originator_id = {mark}"
        between = f"AND originator_version > {mark} AND originator_version <= {mark}"
        self._rows = f"SELECT originator_version, {topic}, {state} {of_run} {between} ORDER BY originator_version LIMIT {mark}"
        self._head = f"SELECT originator_version, {state} {of_run} ORDER BY originator_version DESC LIMIT 1"
        self._payload = f"SELECT {state} {of_run} AND originator_version = 1"
        self._payloads = f"SELECT originator_id, {state} FROM stored_events WHERE originator_id >= {mark} AND originator_id < {mark}"
        self._runs = f"SELECT originator_id FROM {started} GROUP BY originator_id ORDER BY min({order})"  # an imported fork holds several beginnings
        self._find = f"SELECT DISTINCT originator_id FROM {started} AND originator_id >= {mark} AND originator_id < {mark} ORDER BY originator_id LIMIT {mark}"
        self._writer = GroupWriter(commit, partial(closed, place))
        self._process = os.getpid()
        # Also at the exit of the interpreter, and when nobody holds the log any more: what was submitted is still written.
        self._release = weakref.finalize(self, _release, self._process, self._writer.close, *close)

    def _append(self, submission: Submission) -> None:
        self._check_process()
        self._writer.append(submission)

    def _submit(self, submission: Submission) -> "Future[None]":
        self._check_process()
        return self._writer.submit(submission)

    def read(self, run_id: str, after: int = 0, upto: int | None = None) -> list[Row]:
        return [Row._make(row) for row in self._select(self._rows, run_id, after, NO_END if upto is None else upto, NO_END)]

    def scan(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Row]:
        while rows := self._select(self._rows, run_id, after, NO_END if upto is None else upto, SCAN_ROWS):
            yield from map(Row._make, rows)
            after = rows[-1][0]

    def head(self, run_id: str) -> tuple[int, bytes] | None:
        rows = self._select(self._head, run_id)
        return (rows[0][0], rows[0][1]) if rows else None

    def payload(self, run_id: str, digest: str) -> bytes:
        rows = self._select(self._payload, payload_stream(run_id, digest))
        if not rows:
            raise PayloadMissing(run_id, digest)
        state: bytes = rows[0][0]
        return state

    def payloads(self, run_id: str) -> dict[Digest, bytes]:
        first = payload_stream(run_id, "")
        # The character after the colon ends the range: an index can walk it, and LIKE would take the `_` of a run id for a wildcard.
        return {stream[len(first) :]: state for stream, state in self._select(self._payloads, first, first[:-1] + ";")}

    def runs(self) -> list[str]:
        return [run_id for (run_id,) in self._select(self._runs)]

    def find(self, prefix: str) -> list[str]:
        if not prefix.isascii() or "\0" in prefix:
            return []  # No run id has such characters, and some could not even be asked for.
        return [run_id for (run_id,) in self._select(self._find, prefix, prefix + "\x7f", FOUND_MAX)]

    def close(self) -> None:
        self._release()

    def _select(self, query: LiteralString, *values: str | int) -> list[Any]:
        self._check_process()
        return self._found(query, values)

    @abstractmethod
    def _found(self, query: LiteralString, values: tuple[str | int, ...]) -> list[Any]:
        """What a query finds, as bare tuples: the libraries' own rows and events are three times as dear."""

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreUnavailable(f"the store {self._place} was opened before this process was forked: open it again here")


def _release(process: int, *close: Callable[[], None]) -> None:
    if os.getpid() == process:  # A forked child has neither the thread nor a right to these connections.
        for each in close:
            each()


def closed(place: str) -> StoreUnavailable:
    """Somebody uses a store that was closed."""
    return StoreUnavailable(f"the store {place} is closed: open it again")


def locked(place: str) -> StoreUnavailable:
    """Another process kept a lock for too long."""
    return StoreUnavailable(f"the store {place} is locked by another process: try again when that one is done")


def full(place: str) -> StoreUnavailable:
    """There is no room for what is to be stored."""
    return StoreUnavailable(f"the disk of the store {place} is full: make room and try again")
