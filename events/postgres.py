"""The log in a PostgreSQL database: the library's recorder with a checked head, written in groups like the SQLite one.

Apart from the port, because everything here is about one engine and its driver, which is an extra.
"""

import os
import secrets
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any, Final, LiteralString

import psycopg
import psycopg_pool
from eventsourcing.persistence import InterfaceError, OperationalError, PersistenceError
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from psycopg import Connection, Cursor
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, tuple_row

from refold.events.groups import Outcome
from refold.events.holds import Held, Hold, Holder, micros
from refold.events.sql import Dialect, SqlLog, closed, full, locked
from refold.events.storage import STARTS, Conflict, Row, StoreDamaged, StoreMissing, StoreUnavailable, Submission, additions

CONNECTIONS_MAX: Final = 8
CREATION_LOCK: Final = 0x7265666F6C64
"""The advisory lock under which the table is made ("refold"): `IF NOT EXISTS` fails when two make it at once."""
CREATE_TABLE: Final = """CREATE TABLE stored_events (
    originator_id text COLLATE "C" NOT NULL, originator_version bigint NOT NULL, topic text NOT NULL, state bytea NOT NULL, notification_id bigserial,
    PRIMARY KEY (originator_id, originator_version))"""
"""As the library makes it, but in byte order whatever the language of the database, so that the primary key serves prefixes."""
CREATE_ORDER: Final = "CREATE UNIQUE INDEX stored_events_notification_id_idx ON stored_events (notification_id)"
STARTED: Final = f"topic IN {STARTS}"
CREATE_STARTED: Final = f"CREATE INDEX started_runs ON stored_events (notification_id) WHERE {STARTED}"
CREATE_DRIVERS: Final = """CREATE UNLOGGED TABLE drivers (
    run_id text COLLATE "C" PRIMARY KEY, hold bigint NOT NULL, life bigint NOT NULL, who text NOT NULL, since timestamptz NOT NULL, until timestamptz NOT NULL)"""
"""Not logged, because no row in it outlives the server's connections: a commit waits for no disk."""
LASTS: Final = """EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND (l.classid::bigint << 32 | l.objid::bigint) = d.life)"""
"""Whether somebody still has the lock that a row names as its life."""
TAKE: Final = f"""INSERT INTO drivers AS d (run_id, hold, life, who, since, until)
    VALUES (%s, %s, %s, %s, clock_timestamp(), clock_timestamp() + %s * interval '1 microsecond')
    ON CONFLICT (run_id) DO UPDATE SET hold = excluded.hold, life = excluded.life, who = excluded.who, since = excluded.since, until = excluded.until
    WHERE d.until <= clock_timestamp() OR NOT {LASTS} OR d.hold = excluded.hold"""
"""The last condition is for a statement that is executed again, because the connection broke before it was known to be committed."""
FIND: Final = f"""SELECT who, (extract(epoch FROM since) * 1000000)::bigint, (extract(epoch FROM until) * 1000000)::bigint
    FROM drivers AS d WHERE run_id = %s AND until > clock_timestamp() AND {LASTS}"""
EXTEND: Final = "UPDATE drivers SET until = clock_timestamp() + %s * interval '1 microsecond' WHERE run_id = %s AND hold = %s"
DIALECT: Final = Dialect(
    mark="%s",
    topic="topic",
    state="state",
    started=f"stored_events WHERE {STARTED}",
    order="notification_id",
)


class PostgresLog(SqlLog):
    """A log whose writes are grouped all the more, since the library locks the table for each of its transactions.

    That lock makes the order of the ids the order of the commits: nobody who follows the store passes over a row.
    """

    def __init__(self, url: str, *, create: bool = True, lock_timeout_s: float = 5.0) -> None:
        try:
            settings = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise ValueError("a PostgreSQL store is postgresql://USER@HOST/DATABASE, with options that its driver knows") from None  # It may hold a password.
        name = f"postgresql://{settings.get('host') or ''}/{settings.get('dbname') or ''}"
        with _translated(name):
            schema = _prepare(name, url, create=create)
            self._datastore = _Datastore(settings, schema, lock_timeout_s)
            recorder = _Recorder(self._datastore)
        self._holds = _Holds(name, settings)
        super().__init__(name, DIALECT, _Committer(name, recorder), self._holds.close, self._datastore.close)

    def changed(self) -> int:
        newest: int | None = self._select("SELECT max(notification_id) FROM stored_events")[0][0]
        return newest or 0

    def hold(self, run_id: str, who: str, ttl_s: float) -> Hold:
        self._check_process()
        return self._holds.take(run_id, who, ttl_s)

    def holder(self, run_id: str) -> Holder | None:
        self._check_process()
        if not self._select("SELECT to_regclass('drivers')")[0][0]:
            return None
        rows = self._select(FIND, run_id)
        return Holder(*rows[0]) if rows else None

    def _found(self, query: LiteralString, values: tuple[str | int, ...]) -> list[Any]:
        with _translated(self._place), self._datastore.get_connection() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(query, values).fetchall()


class _Committer:
    """Stores a group in one transaction.

    When the connection dies in it nobody knows whether it was committed: the second attempt looks at what is stored before it calls anything lost.
    """

    def __init__(self, name: str, recorder: "_Recorder") -> None:
        self._name, self._recorder = name, recorder

    def __call__(self, group: Sequence[Submission]) -> list[Outcome]:
        with _translated(self._name):
            try:
                return self._commit(group)
            except (OperationalError, InterfaceError) as error:
                if isinstance(error.__cause__, (psycopg.errors.LockNotAvailable, psycopg_pool.PoolClosed, psycopg.errors.DiskFull)):
                    raise
            outcomes = self._commit(group)
            return [
                None if isinstance(outcome, Conflict) and self._recorder.holds(submission) else outcome
                for submission, outcome in zip(group, outcomes, strict=True)
            ]

    def _commit(self, group: Sequence[Submission]) -> list[Outcome]:
        with self._recorder.datastore.transaction(commit=True) as cursor:
            self._recorder.open_batch(cursor)
            return [self._store(cursor, submission, alone=len(group) == 1) for submission in group]

    def _store(self, cursor: Cursor[DictRow], submission: Submission, *, alone: bool) -> Outcome:
        try:
            with nullcontext() if alone else cursor.connection.transaction():
                self._recorder.append(cursor, submission)
        except (Conflict, StoreDamaged) as refused:
            return refused  # Checked before anything is written, so that there is nothing to roll back.
        return None


class _Holds:
    """Holds in a table, whose life is an advisory lock of one connection that is kept for them: the server lets go of it when the connection is gone.

    The lock is of the connection and not of a run, so that a holder which was replaced cannot block its successor by living on.
    Behind a pooler it needs one that leaves a connection to its client for as long as that stays.
    """

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self._name, self._settings = name, settings
        self._lock = Lock()
        self._connection: Connection[tuple[Any, ...]] | None = None
        self._life = 0
        self._closed = False
        _HOLDS.add(self)

    def take(self, run_id: str, who: str, ttl_s: float) -> Hold:
        token, ttl_us = secrets.randbits(63), micros(ttl_s)
        while True:  # A round that finds nobody and takes nothing met somebody who let go in between.
            taken, _ = self._execute(TAKE, run_id, token, None, who, ttl_us)
            if taken == 1:
                return Hold(run_id, who, ttl_s, lambda: self._execute(EXTEND, ttl_us, run_id, token)[0] == 1, lambda: self._let_go(run_id, token))
            _, rows = self._execute(FIND, run_id)
            if rows:
                raise Held(run_id, Holder(*rows[0]))

    def _let_go(self, run_id: str, token: int) -> None:
        if not self._closed:  # That let go of everything.
            self._execute("DELETE FROM drivers WHERE run_id = %s AND hold = %s", run_id, token)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()

    def _execute(self, statement: LiteralString, *values: str | int | None) -> tuple[int, list[Any]]:
        """One statement by itself, in which None stands for this life; once more where the connection turns out to be gone."""
        with self._lock, _translated(self._name):
            if self._closed:
                raise closed(self._name)
            try:
                return self._executed(self._opened(), statement, values)
            except psycopg.OperationalError:
                if self._connection is not None and not self._connection.broken:
                    raise
            return self._executed(self._opened(), statement, values)

    def _executed(self, connection: Connection[tuple[Any, ...]], statement: LiteralString, values: Sequence[str | int | None]) -> tuple[int, list[Any]]:
        cursor = connection.execute(statement, [self._life if value is None else value for value in values])
        return cursor.rowcount, cursor.fetchall() if cursor.description else []

    def _opened(self) -> Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.broken:
            self._connection = None
            bounded = {"connect_timeout": 5, "tcp_user_timeout": 5000, **self._settings}
            connection = psycopg.connect(**bounded, autocommit=True)
            try:
                before, self._life = self._life, secrets.randbits(63)
                _make_drivers(connection)
                connection.execute("SELECT pg_advisory_lock(%s)", (self._life,))
                # What nobody took while the connection was gone is still ours.
                connection.execute("UPDATE drivers SET life = %s WHERE life = %s", (self._life, before))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def is_childs(self) -> None:
        """In a forked child: lets go of the connection without a word to the server, which is still talking to the parent."""
        self._closed = True
        if self._connection is not None and not self._connection.closed:
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nowhere, self._connection.fileno(), inheritable=False)
            os.close(nowhere)


def _make_drivers(connection: Connection[tuple[Any, ...]]) -> None:
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '5s'")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
        found = connection.execute("SELECT to_regclass(quote_ident(current_schema()) || '.drivers')").fetchone()
        if found is None or found[0] is None:
            connection.execute(CREATE_DRIVERS)


_HOLDS: Final[weakref.WeakSet[_Holds]] = weakref.WeakSet()


def _not_the_childs() -> None:
    """A forked child would keep the parent's connection alive, and with it the lock."""
    for holds in list(_HOLDS):
        holds.is_childs()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_not_the_childs)


class _Recorder(PostgresApplicationRecorder):
    def open_batch(self, cursor: Cursor[DictRow]) -> None:
        self._lock_table(cursor)
        self._notify_channel(cursor)

    def append(self, cursor: Cursor[DictRow], submission: Submission) -> None:
        found = cursor.execute("SELECT max(originator_version) AS head FROM stored_events WHERE originator_id = %s", (submission.run_id,)).fetchone()
        assert found is not None  # An aggregate is one row.
        rows = additions(submission, found["head"], partial(_stored, cursor))
        cursor.executemany("INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (%s, %s, %s, %s)", rows)

    def holds(self, submission: Submission) -> bool:
        """Whether exactly these rows are stored: each names its driver and the digest before it, so no other writer's rows are the same."""
        stored = self.select_events(submission.run_id, gt=submission.expected, lte=submission.rows[-1].position)
        return [Row(event.originator_version, event.topic, event.state) for event in stored] == list(submission.rows)


def _stored(cursor: Cursor[DictRow], stream: str) -> bytes | None:
    row = cursor.execute("SELECT state FROM stored_events WHERE originator_id = %s AND originator_version = 1", (stream,)).fetchone()
    return None if row is None else row["state"]


class _Datastore(PostgresDatastore):
    def __init__(self, settings: dict[str, Any], schema: str, lock_timeout_s: float) -> None:
        # Whole seconds are all that the library takes, and its default waits for ever.
        super().__init__(
            "",
            "",
            "",
            "",
            "",
            max_overflow=CONNECTIONS_MAX - 1,
            lock_timeout=max(1, round(lock_timeout_s)),
            schema=schema,
            originator_id_type="text",
            pre_ping=True,
        )
        # Everything that the URL says, certificates and options included; what it leaves open is the driver's to find.
        self.pool.kwargs = {**settings, "row_factory": self.pool.kwargs["row_factory"]}  # type: ignore[index]


def _prepare(name: str, url: str, *, create: bool) -> str:
    """Makes sure that the database has the table of a log; returns its schema."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
        found = connection.execute(
            "SELECT s, to_regclass(quote_ident(s) || '.stored_events'), to_regclass(quote_ident(s) || '.started_runs') FROM current_schema() AS s"
        ).fetchone()
        schema, table, index = found or (None, None, None)
        if schema is None:
            raise StoreUnavailable(f"the store {name} has no schema to use: name one that exists in its search_path")
        if table is None and not create:
            raise StoreMissing(f"there is no store in {name}: start a run with it, or name another")
        if table is not None and index is None:
            raise StoreUnavailable(f"the table stored_events of {name} is another program's: name a database or a schema of its own for the store")
        if table is None:
            for statement in (CREATE_TABLE, CREATE_ORDER, CREATE_STARTED):
                connection.execute(statement)
        return str(schema)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """The one door through which errors of the driver and of the library leave."""
    try:
        yield
    except PersistenceError as error:
        raise _unavailable(name, error.__cause__ or error) from error
    except psycopg.Error as error:
        raise _unavailable(name, error) from error


def _unavailable(name: str, error: BaseException) -> StoreUnavailable:
    match error:
        case psycopg_pool.PoolClosed():
            return closed(name)
        case psycopg.errors.LockNotAvailable():
            return locked(name)
        case psycopg.errors.DiskFull():
            return full(name)
        case _:
            said = " ".join(str(error).split())
            return StoreUnavailable(f"the store {name} cannot be used ({said}): check that the server runs and lets you in")
