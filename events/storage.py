"""What every store of logs promises: its rows, its errors, and the port `Log`.

Apart from the stores, so that memory, SQLite and PostgreSQL are written against one page and whoever reads a log loads none of them.

    StoreUnavailable        the store cannot be used: the message says what, where and what to do
    ├── StoreMissing        there is no store at that place, and none was to be made
    └── StoreDamaged        what is stored contradicts itself
    Conflict                the run has moved on: not an error of the store, but a writer that was slower
    PayloadMissing          a record names a value that is not stored
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from refold.events.holds import Hold, Holder
from refold.events.words import Digest

PAYLOAD_TOPIC: Final = "payload"
STARTS: Final = ("run_started", "run_continued", "run_forked")
"""The types of record with which a run begins."""
FOUND_MAX: Final = 10
"""How many runs `find` names at most: enough to say that a prefix is ambiguous."""
SCAN_ROWS: Final = 512
"""Rows that `scan` holds at once."""
NO_PAYLOADS: Final[Mapping[Digest, bytes]] = {}


class Row(NamedTuple):
    """One stored record: its position in the run's history, its type, and the JSON bytes."""

    position: int
    type: str
    state: bytes


class StoreUnavailable(Exception):
    """The store cannot be used now: locked, full, unreadable, closed, or not a store at all. One line that says what, where and what to do.

    After a failed append the head says whether it was stored: a commit that an input/output error interrupted may have been either.
    """


class StoreMissing(StoreUnavailable):
    """There is no store at that place. Nothing was made, folders included."""


class StoreDamaged(StoreUnavailable):
    """The store holds two different values under one digest, or its file is malformed."""


class Conflict(Exception):
    """The head of the run is not what the writer expected; `actual` is None where the run has no records."""

    def __init__(self, run_id: str, expected: int, actual: int | None) -> None:
        found = "it has no records" if actual is None else f"it is at {actual}"
        super().__init__(f"run {run_id} was expected at position {expected}, but {found}")
        self.run_id, self.expected, self.actual = run_id, expected, actual


class PayloadMissing(LookupError):
    """A value that a record refers to is not in the store."""

    def __init__(self, run_id: str, digest: str) -> None:
        super().__init__(f"run {run_id} has no payload {digest}")
        self.run_id, self.digest = run_id, digest


class Submission(NamedTuple):
    """One batch on its way to the store: stored whole or not at all."""

    run_id: str
    expected: int
    rows: tuple[Row, ...]
    payloads: Mapping[Digest, bytes]
    create: bool


class Log(ABC):
    """Append-only streams of records, one a run, in one store. Every method may be called from any thread; all raise `StoreUnavailable`.

    `expected` is the position of the run's last record. A run without records is begun with `create=True`;
    a fork begins after its parent's position, so any number may be expected there.
    """

    driver_ttl_s: float = 30.0
    """How long a driver that says nothing more keeps its run while its process lives, by the clock of the store."""

    def append(self, run_id: str, expected: int, rows: Sequence[Row], payloads: Mapping[Digest, bytes] = NO_PAYLOADS, *, create: bool = False) -> None:
        """Stores rows and payloads in one transaction and returns when they are durable. Raises `Conflict`."""
        self._append(_checked(run_id, expected, rows, payloads, create=create))

    def submit(
        self, run_id: str, expected: int, rows: Sequence[Row], payloads: Mapping[Digest, bytes] = NO_PAYLOADS, *, create: bool = False
    ) -> "Future[None]":
        """`append` without waiting. The future cannot be cancelled: what is submitted will be stored or refused.

        Its callbacks run in the thread that writes and must not wait for the log.
        """
        return self._submit(_checked(run_id, expected, rows, payloads, create=create))

    def read(self, run_id: str, after: int = 0, upto: int | None = None) -> list[Row]:
        """The rows at positions after < p <= upto, in order; none for a run that does not exist."""
        return list(self.scan(run_id, after, upto))

    @abstractmethod
    def scan(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Row]:
        """`read` in flat memory: rows come in chunks and no transaction stays open between them."""

    @abstractmethod
    def head(self, run_id: str) -> tuple[int, bytes] | None:
        """Position and bytes of the last record."""

    @abstractmethod
    def payload(self, run_id: str, digest: str) -> bytes:
        """A value stored beside the records; raises `PayloadMissing`."""

    @abstractmethod
    def payloads(self, run_id: str) -> dict[Digest, bytes]:
        """All of them, by digest, in one query."""

    @abstractmethod
    def runs(self) -> list[str]:
        """The ids of all runs in the order in which they were started."""

    @abstractmethod
    def find(self, prefix: str) -> list[str]:
        """The first `FOUND_MAX` ids, in alphabetical order, that begin with exactly these characters."""

    @abstractmethod
    def changed(self) -> int:
        """A number that is another one after any process has committed; cheap enough to ask ten times a second."""

    def hold(self, run_id: str, who: str, ttl_s: float) -> Hold:
        """The right to drive a run, whether it exists or not. Raises `Held` where another driver has it, in this process or in one that lives.

        It ends with its process, and when `ttl_s` have passed without a refresh by the clock of the store. It guards effects, not the log:
        whoever lost it without knowing is refused by the head of the run.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say who drives a run")

    def holder(self, run_id: str) -> Holder | None:
        """Who drives a run now; None where nobody does, or the one who did is dead or has not refreshed its hold."""
        raise NotImplementedError(f"{type(self).__name__} does not say who drives a run")

    @abstractmethod
    def close(self) -> None:
        """Waits for what was submitted and lets go of the store. May be called again."""

    @abstractmethod
    def _append(self, submission: Submission) -> None: ...

    @abstractmethod
    def _submit(self, submission: Submission) -> "Future[None]": ...


def _checked(run_id: str, expected: int, rows: Sequence[Row], payloads: Mapping[Digest, bytes], *, create: bool) -> Submission:
    first = expected + 1
    if not rows or any(row.position != position for position, row in enumerate(rows, first)):
        raise ValueError(f"the rows of run {run_id} must be numbered from {first}, not {[row.position for row in rows]}")
    return Submission(run_id, expected, tuple(rows), payloads, create)


def payload_stream(run_id: str, digest: str) -> str:
    """The stream whose only version is this value. Run ids have no colon, so no run can be called so."""
    return f"{PAYLOAD_TOPIC}:{run_id}:{digest}"


def check_head(submission: Submission, head: int | None) -> None:
    """The rule of appending; called inside the transaction that stores, because the recorders themselves accept gaps."""
    if submission.create != (head is None) or (head is not None and head != submission.expected):
        raise Conflict(submission.run_id, submission.expected, head)


def additions(submission: Submission, head: int | None, stored: Callable[[str], bytes | None]) -> list[tuple[str, int, str, bytes]]:
    """The rows that a submission adds behind the head of its run, each with its stream: payloads that `stored` does not find in theirs, then the records.

    Raises Conflict, StoreDamaged; nothing is written before.
    """
    check_head(submission, head)
    run_id, added = submission.run_id, []
    for digest, payload in submission.payloads.items():
        stream = payload_stream(run_id, digest)
        known = stored(stream)
        if known is None:
            added.append((stream, 1, PAYLOAD_TOPIC, payload))
        elif known != payload:
            raise StoreDamaged(f"run {run_id} holds another value under the digest {digest}: export what can still be read, and restore the store from a copy")
    return [*added, *((run_id, *row) for row in submission.rows)]
