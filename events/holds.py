"""Who drives a run, beside the log and never in it: a hold that dies with its process, and that lapses where nobody refreshes it.

Apart from the stores, because the rules are one page and each store only says where its table is; what is lost here costs nobody a record.

A hold is a row (who, since when, until when, by the store's clock) and the *life* it belongs to: a lock of the operating system, or of the server,
that is let go when its process dies. A run may be taken when nobody holds it, when the life of its holder is over, or when `until` has passed,
whatever the lock says: a process that is stopped keeps its locks. Each of these is one statement that only one taker can win.
"""

import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LIFE_NAME: Final = re.compile(r"\d+-[0-9a-f]{16}")
"""What the files of lives are called: the number of the process and something that is never given twice."""

Execute = Callable[[str, Sequence[str | int]], tuple[int, list[Any]]]
"""Executes one statement by itself: gives how many rows it changed, and those it found."""


class Holder(NamedTuple):
    """Who holds a run; both times are microseconds since the epoch, by the store's clock."""

    who: str
    since_us: int
    until_us: int


class Held(Exception):
    """Somebody else drives the run: another process that lives, or another driver in this one."""

    def __init__(self, run_id: str, holder: Holder) -> None:
        super().__init__(f"run {run_id} is driven by {holder.who}")
        self.run_id, self.who, self.since_us, self.until_us = run_id, *holder


class Hold:
    """The right to drive one run, for `ttl_s` at a time. It belongs to the process that took it: a forked child neither has it nor can give it away."""

    def __init__(self, run_id: str, who: str, ttl_s: float, extend: Callable[[], bool], let_go: Callable[[], object]) -> None:
        self.run_id, self.who, self.ttl_s = run_id, who, ttl_s
        self._extend, self._let_go = extend, let_go
        self._process = os.getpid()
        self._over = False

    def refresh(self) -> bool:
        """Holds the run for another `ttl_s` from now; false when it is lost, and ever after. Raises StoreUnavailable, which says nothing about who holds the run.

        A hold whose time has passed is not lost before somebody else took the run.
        """
        self._over = self._over or os.getpid() != self._process or not self._extend()
        return not self._over

    def release(self) -> None:
        """Anybody may take the run; may be called again. Raises StoreUnavailable where that cannot be written down: then the hold lapses by itself."""
        if not self._over and os.getpid() == self._process:
            self._over = True
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class MemoryHolds:
    """Holds among the drivers of one process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rows: dict[str, tuple[object, Holder]] = {}

    def take(self, run_id: str, who: str, ttl_s: float) -> Hold:
        token = object()
        with self._lock:
            now = time.time_ns() // 1000
            found = self._rows.get(run_id)
            if found is not None and found[1].until_us > now:
                raise Held(run_id, found[1])
            self._rows[run_id] = (token, Holder(who, now, now + micros(ttl_s)))
        return Hold(run_id, who, ttl_s, lambda: self._extend(run_id, token, ttl_s), lambda: self._let_go(run_id, token))

    def holder(self, run_id: str) -> Holder | None:
        with self._lock:
            found = self._rows.get(run_id)
            return found[1] if found is not None and found[1].until_us > time.time_ns() // 1000 else None

    def _extend(self, run_id: str, token: object, ttl_s: float) -> bool:
        with self._lock:
            found = self._rows.get(run_id)
            if found is None or found[0] is not token:
                return False
            self._rows[run_id] = (token, found[1]._replace(until_us=time.time_ns() // 1000 + micros(ttl_s)))
            return True

    def _let_go(self, run_id: str, token: object) -> None:
        with self._lock:
            if run_id in self._rows and self._rows[run_id][0] is token:
                del self._rows[run_id]


_NOW: Final = "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)"
_CREATE: Final = """CREATE TABLE IF NOT EXISTS drivers (
    run_id TEXT PRIMARY KEY, hold TEXT NOT NULL, life TEXT NOT NULL, who TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL) WITHOUT ROWID"""
_TAKE: Final = f"""INSERT INTO drivers (run_id, hold, life, who, since, until) VALUES (?, ?, ?, ?, {_NOW}, {_NOW} + ?)
    ON CONFLICT (run_id) DO UPDATE SET hold = excluded.hold, life = excluded.life, who = excluded.who, since = excluded.since, until = excluded.until
    WHERE drivers.until <= excluded.since"""
_FIND: Final = f"SELECT hold, life, who, since, until FROM drivers WHERE run_id = ? AND until > {_NOW}"
_INHERIT: Final = f"UPDATE drivers SET hold = ?, life = ?, who = ?, since = {_NOW}, until = {_NOW} + ? WHERE run_id = ? AND hold = ?"
_EXTEND: Final = f"UPDATE drivers SET until = {_NOW} + ? WHERE run_id = ? AND hold = ?"
_LET_GO: Final = "DELETE FROM drivers WHERE run_id = ? AND hold = ?"


class FileHolds:
    """Holds in a table of an SQLite file, whose lives are locked files in a folder beside it. Raises what `execute` raises, and OSError for that folder."""

    def __init__(self, folder: Path, execute: Execute) -> None:
        self._execute, self._life = execute, Life(folder)
        self._lock = Lock()
        self._made = False
        self._let_go_of: set[str] = set()
        """Holds of ours that are over although the store could not be told."""

    def take(self, run_id: str, who: str, ttl_s: float) -> Hold:
        with self._lock:
            if not self._made:
                self._execute(_CREATE, ())
                self._made = True
        token, life, ttl_us = secrets.token_hex(8), self._life.name(), micros(ttl_s)
        while not self._take(run_id, (token, life, who), ttl_us):
            pass  # Somebody took the run or let it go between two statements: it is looked at again.
        return Hold(run_id, who, ttl_s, lambda: self._execute(_EXTEND, (ttl_us, run_id, token))[0] == 1, lambda: self._let_go(run_id, token))

    def _take(self, run_id: str, ours: tuple[str, str, str], ttl_us: int) -> bool:
        if self._execute(_TAKE, (run_id, *ours, ttl_us))[0] == 1:
            return True
        _, rows = self._execute(_FIND, (run_id,))
        if not rows:
            return False
        hold, life, *holder = rows[0]
        if hold not in self._let_go_of and self._life.lasts(life):
            raise Held(run_id, Holder(*holder))
        return self._execute(_INHERIT, (*ours, ttl_us, run_id, hold))[0] == 1

    def _let_go(self, run_id: str, token: str) -> None:
        if not self._life.closed:  # That let go of everything.
            self._let_go_of.add(token)
            self._execute(_LET_GO, (run_id, token))
            self._let_go_of.discard(token)

    def holder(self, run_id: str) -> Holder | None:
        _, tables = self._execute("SELECT 1 FROM sqlite_master WHERE name = 'drivers'", ())
        _, rows = self._execute(_FIND, (run_id,)) if tables else (0, [])
        if not rows:
            return None
        _, life, *holder = rows[0]
        return Holder(*holder) if self._life.lasts(life) else None

    def close(self) -> None:
        """Every hold is let go at once."""
        self._life.close()


class Life:
    """A file that this process keeps locked while it lives and has not closed it; who knows its name can ask. It is made when it is first needed.

    Names are never given twice, so a life that is over is over for good. Where the system has no such locks every life seems to last,
    and a dead process holds its runs until their time has passed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._name = ""
        self.closed = False
        self.descriptor: int | None = None
        _LIVES.add(self)

    def name(self) -> str:
        """The name by which others know this life. Raises OSError."""
        with self._lock:
            while fcntl is not None and self.descriptor is None and not self.closed:
                self._folder.mkdir(exist_ok=True)
                with suppress(FileNotFoundError):  # Somebody closed the last life, and took the folder along.
                    self._sweep()
                    self._begin()
            return self._name or f"{os.getpid()}-{0:016x}"

    def lasts(self, name: str) -> bool:
        """Whether the process of that life lives. A shared lock asks, so that two who ask at once do not take one another for the living. Raises OSError."""
        if fcntl is None:
            return True
        if not LIFE_NAME.fullmatch(name):
            return False
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True  # Another user's: only time can tell.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def close(self) -> None:
        """The end of this life."""
        with self._lock:
            descriptor, self.descriptor, self.closed = self.descriptor, None, True
            if descriptor is not None:
                with suppress(OSError):  # A file that stays is swept away by the next process.
                    (self._folder / self._name).unlink(missing_ok=True)
                os.close(descriptor)
                with suppress(OSError):  # Others live in it.
                    self._folder.rmdir()

    def _begin(self) -> None:
        """A new locked file. It may have been swept away before it was locked: then there is none, and the next turn makes another."""
        assert fcntl is not None
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        path = self._folder / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.stat()  # Swept away files are locked while that is done, so that one which is here now stays.
        except BlockingIOError:
            os.close(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        else:
            self._name, self.descriptor = name, descriptor

    def _sweep(self) -> None:
        """Takes away what dead processes left behind."""
        assert fcntl is not None
        for path in self._folder.iterdir():
            if LIFE_NAME.fullmatch(path.name):
                with suppress(OSError):  # In use, gone, or somebody else's: it is not ours to care for.
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        path.unlink()
                    finally:
                        os.close(descriptor)


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


_LIVES: Final[weakref.WeakSet[Life]] = weakref.WeakSet()


def _not_the_childs() -> None:
    """A forked child would keep its parent's locks alive: they belong to the open file, which both have."""
    for life in list(_LIVES):
        if life.descriptor is not None:
            os.close(life.descriptor)
            life.descriptor = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_not_the_childs)
