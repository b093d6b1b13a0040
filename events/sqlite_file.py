"""The SQLite file of a store: whether it may be one, its connections, the wait for its lock, and what its errors mean.

Apart from the log in it, because none of this knows what is recorded.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, LiteralString

from eventsourcing.persistence import ConnectionPoolClosedError, PersistenceError
from eventsourcing.sqlite import SQLiteConnection, SQLiteConnectionPool, SQLiteDatastore

from refold.events.sql import closed, full, locked
from refold.events.storage import StoreDamaged, StoreMissing, StoreUnavailable

COLUMNS: Final = {"rowid", "originator_id", "originator_version", "topic", "state"}
RETRY_S: Final = 0.001


def check_place(path: str, *, create: bool) -> None:
    """Makes the folders of a store that may be made. Raises StoreMissing, StoreUnavailable where no store is or can be."""
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


def prepare(path: str, connection: SQLiteConnection, statements: Sequence[str], lock_timeout_s: float, *, create: bool) -> None:
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
        patiently(cursor, "PRAGMA journal_mode=WAL", lock_timeout_s)
        patiently(cursor, "BEGIN IMMEDIATE", lock_timeout_s)
        try:
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise


class Datastore(SQLiteDatastore):
    """The connections to one file. `synchronous` is what all of them have."""

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


class Statements:
    """Executes what is no record, each statement by itself, on a connection of its own.

    Who drives need not survive a power cut, so the disk is not waited for; NORMAL and not less, because this connection may move the log's pages too.
    """

    def __init__(self, path: str, pool: SQLiteConnectionPool, lock_timeout_s: float) -> None:
        self._path, self._pool, self._lock_timeout_s = path, pool, lock_timeout_s
        self._connection: SQLiteConnection | None = None
        self._lock = Lock()

    def __call__(self, statement: str, values: Sequence[str | int]) -> tuple[int, list[Any]]:
        with self._lock, translated(self._path):
            cursor = self._opened().cursor().sqlite_cursor
            cursor.row_factory = None
            patiently(cursor, statement, self._lock_timeout_s, values)
            rows = cursor.fetchall()
            return cursor.rowcount, rows

    def _opened(self) -> SQLiteConnection:
        if self._connection is None:
            self._connection = dedicated(self._pool, self._lock_timeout_s, "synchronous=NORMAL")
        return self._connection


def dedicated(pool: SQLiteConnectionPool, lock_timeout_s: float, *pragmas: LiteralString, is_writer: bool = False) -> SQLiteConnection:
    """A connection that one user keeps, whose waiting is `patiently` done and not SQLite's."""
    connection = pool.get_connection(is_writer=is_writer)
    try:
        with connection.cursor() as cursor:
            for pragma in ("busy_timeout=0", *pragmas):
                patiently(cursor, f"PRAGMA {pragma}", lock_timeout_s)
    except BaseException:
        pool.put_connection(connection)
        raise
    return connection


def patiently(cursor: sqlite3.Cursor, statement: str, timeout_s: float, values: Sequence[str | int] = ()) -> None:
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


@contextmanager
def translated(path: str) -> Iterator[None]:
    """The one door through which errors of SQLite and of the library leave."""
    try:
        yield
    except ConnectionPoolClosedError as error:
        raise closed(path) from error
    except PersistenceError as error:
        raise _unavailable(path, error.__cause__ or error) from error
    except sqlite3.Error as error:
        raise _unavailable(path, error) from error


@contextmanager
def beside(path: str) -> Iterator[None]:
    """For what the system says about the folder beside the file."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"who drives a run cannot be written beside the store {path} ({error.strerror}): make the folder {path}-drivers one that can be read and written"
        ) from error


def _unavailable(path: str, error: BaseException) -> StoreUnavailable:
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return closed(path)
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return locked(path)
        case sqlite3.SQLITE_NOTADB:
            return StoreUnavailable(f"the file {path} is not a database: name another file for the store")
        case sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(f"the store {path} is damaged ({error}): restore it from a copy")
        case sqlite3.SQLITE_FULL:
            return full(path)
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
