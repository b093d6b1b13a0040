"""The log in an SQLite file: the library's recorder with a durable pool, a checked head and one thread that writes.

Apart from the port, because everything here is about one engine: its locks, its pragmas and what it raises.
"""

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final

from eventsourcing.persistence import ConnectionPoolClosedError, PersistenceError
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteConnection, SQLiteConnectionPool, SQLiteDatastore

from refold.events.groups import GroupWriter, Outcome
from refold.events.holds import FileHolds, Hold, Holder
from refold.events.storage import (
    FOUND_MAX,
    SCAN_ROWS,
    STARTS,
    Conflict,
    Log,
    PayloadMissing,
    Row,
    StoreDamaged,
    StoreMissing,
    StoreUnavailable,
    Submission,
    inserted,
    payload_stream,
)
from refold.events.words import Digest

COLUMNS: Final = {"rowid", "originator_id", "originator_version", "topic", "state"}
VERSION_MAX: Final = 2**63 - 1
RETRY_S: Final = 0.001
STARTED: Final = f"({' OR '.join(f'topic = {topic!r}' for topic in STARTS)})"
"""Not `IN`: every insert asks it of its row, and SQLite would build a set each time (3 µs a row)."""
STARTED_RUNS: Final = f"stored_events INDEXED BY started_runs WHERE {STARTED}"
"""Named, because SQLite cannot know how few rows begin a run and would walk them all."""
SELECT_ROWS: Final = (
    "SELECT originator_version, CAST(topic AS TEXT), CAST(state AS BLOB) FROM stored_events "
    "WHERE originator_id = ? AND originator_version > ? AND originator_version <= ? ORDER BY originator_version LIMIT ?"
)


class SqliteLog(Log):
    """Every read is one short query on a pooled connection, so that readers never hold up a writer; every write goes through one `GroupWriter`."""

    def __init__(self, path: str, *, create: bool = True, synchronous: str = "FULL", lock_timeout_s: float = 5.0) -> None:
        self._path = path
        _check_place(path, create=create)
        self._datastore = _Datastore(path, create=create, synchronous=synchronous, lock_timeout_s=lock_timeout_s)
        recorder = _Recorder(self._datastore)
        try:
            with _translated(path), self._datastore.get_connection(commit=False) as connection:
                _prepare(path, connection, recorder.create_table_statements, lock_timeout_s, create=create)
        except BaseException:
            self._datastore.close()
            raise
        self._writer = GroupWriter(_Committer(path, recorder, lock_timeout_s), partial(_closed, path))
        folder = Path(f"{os.path.realpath(path)}-drivers")  # Where SQLite puts its own files: beside the file itself, by whatever link it was opened.
        self._holds = FileHolds(folder, _Statements(path, self._datastore.pool, lock_timeout_s))
        self._watcher: SQLiteConnection | None = None
        self._watcher_lock = Lock()
        self._process = os.getpid()
        # Also at the exit of the interpreter, and when nobody holds the log any more: what was submitted is still written.
        self._release = weakref.finalize(self, _release, self._writer, self._holds, self._datastore, self._process)

    def _append(self, submission: Submission) -> None:
        self._check_process()
        self._writer.append(submission)

    def _submit(self, submission: Submission) -> "Future[None]":
        self._check_process()
        return self._writer.submit(submission)

    def read(self, run_id: str, after: int = 0, upto: int | None = None) -> list[Row]:
        return [Row._make(row) for row in self._select(SELECT_ROWS, run_id, after, VERSION_MAX if upto is None else upto, -1)]

    def scan(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Row]:
        while rows := self._select(SELECT_ROWS, run_id, after, VERSION_MAX if upto is None else upto, SCAN_ROWS):
            yield from map(Row._make, rows)
            after = rows[-1][0]

    def head(self, run_id: str) -> tuple[int, bytes] | None:
        rows = self._select(
            "SELECT originator_version, CAST(state AS BLOB) FROM stored_events WHERE originator_id = ? ORDER BY originator_version DESC LIMIT 1", run_id
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def payload(self, run_id: str, digest: str) -> bytes:
        rows = self._select("SELECT CAST(state AS BLOB) FROM stored_events WHERE originator_id = ? AND originator_version = 1", payload_stream(run_id, digest))
        if not rows:
            raise PayloadMissing(run_id, digest)
        state: bytes = rows[0][0]
        return state

    def payloads(self, run_id: str) -> dict[Digest, bytes]:
        first = payload_stream(run_id, "")
        # The character after the colon ends the range: an index can walk it, and LIKE would take the `_` of a run id for a wildcard.
        rows = self._select(
            "SELECT originator_id, CAST(state AS BLOB) FROM stored_events WHERE originator_id >= ? AND originator_id < ?", first, first[:-1] + ";"
        )
        return {stream[len(first) :]: state for stream, state in rows}

    def runs(self) -> list[str]:
        return [run_id for (run_id,) in self._select(f"SELECT originator_id FROM {STARTED_RUNS} ORDER BY rowid")]

    def find(self, prefix: str) -> list[str]:
        if not prefix.isascii():
            return []  # No run id has such characters, and a broken one could not even be asked for.
        query = f"SELECT DISTINCT originator_id FROM {STARTED_RUNS} AND originator_id >= ? AND originator_id < ? ORDER BY originator_id LIMIT ?"
        return [run_id for (run_id,) in self._select(query, prefix, prefix + "\x7f", FOUND_MAX)]

    def changed(self) -> int:
        # SQLite counts, for each connection, what *other* connections committed: this one commits nothing, so it sees every writer, our own included.
        self._check_process()
        with self._watcher_lock, _translated(self._path):
            if self._watcher is None:
                self._watcher = self._datastore.pool.get_connection()
            with self._watcher.cursor() as cursor:
                version: int = cursor.execute("PRAGMA data_version").fetchone()[0]
                return version

    def hold(self, run_id: str, who: str, ttl_s: float) -> Hold:
        self._check_process()
        with _translated(self._path), _beside(self._path):
            return self._holds.take(run_id, who, ttl_s)

    def holder(self, run_id: str) -> Holder | None:
        self._check_process()
        with _translated(self._path), _beside(self._path):
            return self._holds.holder(run_id)

    def close(self) -> None:
        self._release()

    def _select(self, query: str, *values: str | int) -> list[Any]:
        self._check_process()
        with _translated(self._path), self._datastore.get_connection(commit=False) as connection, connection.cursor() as cursor:
            cursor.row_factory = None  # Bare tuples: the library's rows and events are three times as dear.
            return cursor.execute(query, values).fetchall()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreUnavailable(f"the store {self._path} was opened before this process was forked: open it again here")


class _Committer:
    """Stores a group in one transaction, on a connection that is used for nothing else."""

    def __init__(self, path: str, recorder: "_Recorder", lock_timeout_s: float) -> None:
        self._path, self._recorder, self._lock_timeout_s = path, recorder, lock_timeout_s
        self._connection: SQLiteConnection | None = None

    def __call__(self, group: Sequence[Submission]) -> list[Outcome]:
        with _translated(self._path):
            connection = self._opened()
            cursor = connection.cursor().sqlite_cursor
            connection.rollback()  # Does nothing, unless an interrupted caller left something open.
            try:
                # Immediate: a transaction that first reads the head and asks for the write lock later can be refused without waiting.
                _patiently(cursor, "BEGIN IMMEDIATE", self._lock_timeout_s)
                outcomes = [self._store(cursor, submission, alone=len(group) == 1) for submission in group]
                cursor.execute("COMMIT")
            except BaseException:
                connection.rollback()  # Does nothing where SQLite has rolled back by itself.
                raise
            return outcomes

    def _store(self, cursor: sqlite3.Cursor, submission: Submission, *, alone: bool) -> Outcome:
        """What is refused must not spoil the rest of the group, hence a savepoint; it costs a tenth of the append, so that one alone goes without."""
        if not alone:
            cursor.execute("SAVEPOINT submission")
        outcome: Outcome = None
        try:
            self._recorder.append(cursor, submission)
        except (Conflict, StoreDamaged) as refused:
            outcome = refused
        except (sqlite3.DataError, OverflowError, UnicodeError) as refused:
            outcome = StoreUnavailable(f"the store {self._path} cannot hold a value of run {submission.run_id}: {refused}")
        if alone and outcome is not None:
            raise outcome  # The whole transaction is rolled back: it holds nothing else.
        if not alone:
            if outcome is not None:
                cursor.execute("ROLLBACK TO submission")
            cursor.execute("RELEASE submission")
        return outcome

    def _opened(self) -> SQLiteConnection:
        if self._connection is None:
            pool = self._recorder.datastore.pool
            connection = pool.get_connection(is_writer=True)
            try:
                with connection.cursor() as cursor:
                    cursor.execute("PRAGMA busy_timeout=0")
                    _patiently(cursor, "PRAGMA journal_mode=WAL", self._lock_timeout_s)
            except BaseException:
                pool.put_connection(connection)
                raise
            self._connection = connection
        return self._connection


class _Statements:
    """Executes what is no record, each statement by itself, on a connection of its own.

    Who drives need not survive a power cut, so the disk is not waited for; NORMAL and not less, because this connection may move the log's pages too.
    """

    def __init__(self, path: str, pool: SQLiteConnectionPool, lock_timeout_s: float) -> None:
        self._path, self._pool, self._lock_timeout_s = path, pool, lock_timeout_s
        self._connection: SQLiteConnection | None = None
        self._lock = Lock()

    def __call__(self, statement: str, values: Sequence[str | int]) -> tuple[int, list[Any]]:
        with self._lock, _translated(self._path):
            cursor = self._opened().cursor().sqlite_cursor
            cursor.row_factory = None
            _patiently(cursor, statement, self._lock_timeout_s, values)
            rows = cursor.fetchall()
            return cursor.rowcount, rows

    def _opened(self) -> SQLiteConnection:
        if self._connection is None:
            connection = self._pool.get_connection()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("PRAGMA busy_timeout=0")
                    cursor.execute("PRAGMA synchronous=NORMAL")
            except BaseException:
                self._pool.put_connection(connection)
                raise
            self._connection = connection
        return self._connection


class _Recorder(SQLiteApplicationRecorder):
    """The library's recorder, with row ids that are declared and with an index over the runs.

    Its own table has implicit row ids, which SQLite may renumber when the file is vacuumed, and they are the order of the store.
    The column is called `rowid` so that every query of the library stays right. Rows are never deleted, so no id is given twice.
    """

    def __init__(self, datastore: SQLiteDatastore) -> None:
        super().__init__(datastore)
        self.insert_events_statement = f"INSERT INTO {self.events_table_name} (originator_id, originator_version, topic, state) VALUES (?,?,?,?)"

    def construct_create_table_statements(self) -> list[str]:
        return [
            f"""CREATE TABLE IF NOT EXISTS {self.events_table_name} (
                rowid INTEGER PRIMARY KEY, originator_id TEXT NOT NULL, originator_version INTEGER NOT NULL, topic TEXT NOT NULL, state BLOB NOT NULL,
                UNIQUE (originator_id, originator_version))""",
            f"CREATE INDEX IF NOT EXISTS started_runs ON {self.events_table_name} (originator_id) WHERE {STARTED}",
        ]

    def append(self, cursor: sqlite3.Cursor, submission: Submission) -> None:
        cursor.execute("SELECT max(originator_version) FROM stored_events WHERE originator_id = ?", (submission.run_id,))
        rows = inserted(submission, cursor.fetchone()[0], partial(self._stored, cursor))
        # The library's own statement, but without its event objects and row by row questions for ids that nobody asks for.
        cursor.executemany(self.insert_events_statement, rows)

    def _stored(self, cursor: sqlite3.Cursor, stream: str) -> bytes | None:
        cursor.execute("SELECT CAST(state AS BLOB) FROM stored_events WHERE originator_id = ? AND originator_version = 1", (stream,))
        row = cursor.fetchone()
        return None if row is None else row[0]


class _Datastore(SQLiteDatastore):
    def __init__(self, path: str, *, create: bool, synchronous: str, lock_timeout_s: float) -> None:
        # As a URI every character of the path is quoted, so that none of them is read as an option or as the name of a database in memory.
        uri = f"{Path(path).absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        super().__init__(uri, originator_id_type="text")
        self.pool = _Pool(uri, synchronous, lock_timeout_s)


class _Pool(SQLiteConnectionPool):
    """Connections as the library makes them, with three differences: it would keep one prepared statement (`cached_statements=True` is 1),
    it leaves the durability to SQLite's default, and it would switch the journal mode before we know whose file this is.
    """

    def __init__(self, uri: str, synchronous: str, lock_timeout_s: float) -> None:
        super().__init__(db_name=uri)
        self._synchronous, self._lock_timeout_s = synchronous, lock_timeout_s

    def _create_connection(self) -> SQLiteConnection:
        connection = sqlite3.connect(self.db_name, uri=True, check_same_thread=False, isolation_level=None, timeout=self._lock_timeout_s)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
        except BaseException:
            connection.close()
            raise
        return SQLiteConnection(sqlite_conn=connection, max_age=self.max_age)


def _check_place(path: str, *, create: bool) -> None:
    place = Path(path)
    try:
        if place.is_dir():
            raise StoreUnavailable(f"the store {path} is a folder: name a file in it")
        if not create and not place.exists():
            raise StoreMissing(f"there is no store {path}: start a run with it, or name another")
        if place.exists() and not place.is_file():
            raise StoreUnavailable(f"the store {path} is not a file: name another place")
        if place.exists() and not _is_database(place):
            raise StoreUnavailable(f"the file {path} is not a database: name another file for the store")
        if create:
            place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"the store {path} cannot be opened ({error.strerror}): name a place that can be read and written") from error


def _is_database(place: Path) -> bool:
    """SQLite would take a file of one byte for an empty database, and write over it."""
    with place.open("rb") as file:
        return file.read(16) in (b"", b"SQLite format 3\0")


def _prepare(path: str, connection: SQLiteConnection, statements: Sequence[str], lock_timeout_s: float, *, create: bool) -> None:
    """Makes sure that the file is a log, or makes it one if it is empty.

    A database of somebody else is left alone: a wrong path is likelier than a wish to share the file, and a log sets its journal mode for all who use it.
    """
    with connection.cursor() as cursor:
        tables = {row[0] for row in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = {row[1] for row in cursor.execute("PRAGMA table_info(stored_events)")}
        if columns >= COLUMNS:
            return
        if tables:
            raise StoreUnavailable(f"the file {path} is a database of another program: name a file of its own for the store")
        if not create:
            raise StoreMissing(f"there is no store in the empty file {path}: start a run with it, or name another")
        _patiently(cursor, "PRAGMA journal_mode=WAL", lock_timeout_s)
        _patiently(cursor, "BEGIN IMMEDIATE", lock_timeout_s)
        try:
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise


def _patiently(cursor: sqlite3.Cursor, statement: str, timeout_s: float, values: Sequence[str | int] = ()) -> None:
    """Executes what needs the write lock, asking again every millisecond.

    SQLite's own waiting sleeps up to 100 ms between two looks, which among busy writers starves one for seconds,
    and it does not wait at all to change the journal mode.
    """
    deadline = 0.0
    while True:
        try:
            cursor.execute(statement, values)
        except sqlite3.OperationalError as error:
            deadline = deadline or time.monotonic() + timeout_s
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return


def _release(writer: GroupWriter, holds: FileHolds, datastore: SQLiteDatastore, process: int) -> None:
    if os.getpid() == process:  # A forked child has neither the thread nor a right to these connections.
        writer.close()
        holds.close()
        datastore.close()


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """The one door through which errors of SQLite and of the library leave."""
    try:
        yield
    except ConnectionPoolClosedError as error:
        raise _closed(path) from error
    except PersistenceError as error:
        raise _unavailable(path, error.__cause__ or error) from error
    except sqlite3.Error as error:
        raise _unavailable(path, error) from error


@contextmanager
def _beside(path: str) -> Iterator[None]:
    """For what the system says about the folder beside the file."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"who drives a run cannot be written beside the store {path} ({error.strerror}): make the folder {path}-drivers one that can be read and written"
        ) from error


def _closed(path: str) -> StoreUnavailable:
    return StoreUnavailable(f"the store {path} is closed: open it again")


def _unavailable(path: str, error: BaseException) -> StoreUnavailable:
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return _closed(path)
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreUnavailable(f"the store {path} is locked by another process: try again when that one is done")
        case sqlite3.SQLITE_NOTADB:
            return StoreUnavailable(f"the file {path} is not a database: name another file for the store")
        case sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(f"the store {path} is damaged ({error}): restore it from a copy")
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"the disk of the store {path} is full: make room and try again")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreUnavailable(f"the store {path} cannot be opened for writing ({error}): check the permissions of the file and its folder")
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(f"the store {path} cannot be read or written ({error}): check the disk, then see what was stored")
        case _:
            return StoreUnavailable(f"the store {path} cannot be used ({error}): check it and try again")


def _code(error: BaseException) -> int | None:
    """The primary result code; its extended part, in the higher bytes, says more than we tell apart."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
