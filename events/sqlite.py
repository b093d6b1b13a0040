"""The log in an SQLite file: the library's recorder with a checked head, row ids that stay, and one writer at a time.

Apart from the file as such (`sqlite_file.py`), because this is about records: where they are, and that a batch is stored whole or not at all.
"""

import os
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, LiteralString

from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteConnection, SQLiteDatastore

from refold.events.groups import Outcome
from refold.events.holds import FileHolds, Hold, Holder
from refold.events.sql import Dialect, SqlLog
from refold.events.sqlite_file import Datastore, Statements, beside, check_place, dedicated, patiently, prepare, translated
from refold.events.storage import STARTS, Conflict, StoreDamaged, StoreUnavailable, Submission, additions

STARTED: Final = f"({' OR '.join(f'topic = {topic!r}' for topic in STARTS)})"
"""Not `IN`: every insert asks it of its row, and SQLite would build a set each time (3 µs a row)."""
STARTED_RUNS: Final = f"stored_events INDEXED BY started_runs WHERE {STARTED}"
"""Named, because SQLite cannot know how few rows begin a run and would walk them all."""
DIALECT: Final = Dialect(mark="?", topic="CAST(topic AS TEXT)", state="CAST(state AS BLOB)", started=STARTED_RUNS, order="rowid")


class SqliteLog(SqlLog):
    """A log whose reads are queries on pooled connections, so that readers never hold up a writer."""

    def __init__(self, path: str, *, create: bool = True, synchronous: str = "FULL", lock_timeout_s: float = 5.0) -> None:
        check_place(path, create=create)
        self._datastore = Datastore(path, create=create, synchronous=synchronous, lock_timeout_s=lock_timeout_s)
        recorder = _Recorder(self._datastore)
        try:
            with translated(path), self._datastore.get_connection(commit=False) as connection:
                prepare(path, connection, recorder.create_table_statements, lock_timeout_s, create=create)
        except BaseException:
            self._datastore.close()
            raise
        folder = Path(f"{os.path.realpath(path)}-drivers")  # Where SQLite puts its own files: beside the file itself, by whatever link it was opened.
        self._holds = FileHolds(folder, Statements(path, self._datastore.pool, lock_timeout_s))
        self._watcher: SQLiteConnection | None = None
        self._watcher_lock = Lock()
        super().__init__(path, DIALECT, _Committer(path, recorder, lock_timeout_s), self._holds.close, self._datastore.close)

    def changed(self) -> int:
        # SQLite counts, for each connection, what *other* connections committed: this one commits nothing, so it sees every writer, our own included.
        self._check_process()
        with self._watcher_lock, translated(self._place):
            if self._watcher is None:
                self._watcher = self._datastore.pool.get_connection()
            with self._watcher.cursor() as cursor:
                version: int = cursor.execute("PRAGMA data_version").fetchone()[0]
                return version

    def hold(self, run_id: str, who: str, ttl_s: float) -> Hold:
        self._check_process()
        with translated(self._place), beside(self._place):
            return self._holds.take(run_id, who, ttl_s)

    def holder(self, run_id: str) -> Holder | None:
        self._check_process()
        with translated(self._place), beside(self._place):
            return self._holds.holder(run_id)

    def _found(self, query: LiteralString, values: tuple[str | int, ...]) -> list[Any]:
        with translated(self._place), self._datastore.get_connection(commit=False) as connection, connection.cursor() as cursor:
            cursor.row_factory = None
            return cursor.execute(query, values).fetchall()


class _Committer:
    """Stores a group in one transaction, on a connection that is used for nothing else."""

    def __init__(self, path: str, recorder: "_Recorder", lock_timeout_s: float) -> None:
        self._path, self._recorder, self._lock_timeout_s = path, recorder, lock_timeout_s
        self._connection: SQLiteConnection | None = None

    def __call__(self, group: Sequence[Submission]) -> list[Outcome]:
        with translated(self._path):
            connection = self._opened()
            cursor = connection.cursor().sqlite_cursor
            connection.rollback()  # Does nothing, unless an interrupted caller left something open.
            try:
                # Immediate: a transaction that first reads the head and asks for the write lock later can be refused without waiting.
                patiently(cursor, "BEGIN IMMEDIATE", self._lock_timeout_s)
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
            self._connection = dedicated(self._recorder.datastore.pool, self._lock_timeout_s, "journal_mode=WAL", is_writer=True)
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
        rows = additions(submission, cursor.fetchone()[0], partial(self._stored, cursor))
        # The library's own statement, but without its event objects and row by row questions for ids that nobody asks for.
        cursor.executemany(self.insert_events_statement, rows)

    def _stored(self, cursor: sqlite3.Cursor, stream: str) -> bytes | None:
        cursor.execute("SELECT CAST(state AS BLOB) FROM stored_events WHERE originator_id = ? AND originator_version = 1", (stream,))
        row = cursor.fetchone()
        return None if row is None else row[0]
