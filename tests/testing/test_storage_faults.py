"""Every write of a store on disk fails once, in every way a disk has: the run stops there, is taken up on the same store, and ends as its twin."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from refold import Agent, Policy, ScriptedModel, ToolContext, tool
from refold.events.log import open_log
from refold.events.storage import StoreUnavailable
from refold.projections.run import Call
from refold.runtime.store import Store
from refold.testing.crash import Trial, losses, survive
from refold.testing.faults import Fate

Failure = Literal["input/output error", "disk full", "lock timeout", "ambiguous commit"]
LOCK_S = 0.01


class Disk:
    """What the next log writes to: the `nth` write of this process goes wrong, once."""

    def __init__(self, failure: Failure | None, nth: int, fate: Fate) -> None:
        self.failure, self.nth, self.fate = failure, nth, fate
        self.seen = 0
        self.blocker: sqlite3.Connection | None = None

    def strikes(self, place: Failure) -> bool:
        """Whether this is the write that fails."""
        if self.failure != place:
            return False
        self.seen += 1
        if self.seen != self.nth:
            return False
        self.fate.came, self.fate.fault = True, "unavailable"
        return True

    def block(self, path: str) -> None:
        """Another program has the write lock, and keeps it."""
        self.blocker = sqlite3.connect(path, uri=True, isolation_level=None, check_same_thread=False)
        self.blocker.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        if self.blocker is not None:
            self.blocker.close()
            self.blocker = None


def failed(code: int, text: str) -> sqlite3.OperationalError:
    """What SQLite raises."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def connections(disk: Disk) -> Any:
    """`sqlite3.connect`, whose cursors write to this disk."""
    connect = sqlite3.connect

    class Cursor(sqlite3.Cursor):
        def execute(self, statement: str, values: Any = ()) -> Any:
            if statement == "BEGIN IMMEDIATE" and disk.strikes("lock timeout"):
                disk.block(self.connection.path)  # type: ignore[attr-defined]
            if statement == "COMMIT" and disk.strikes("input/output error"):
                raise failed(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")
            done = super().execute(statement, values)
            if statement == "COMMIT" and disk.strikes("ambiguous commit"):
                raise failed(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")
            return done

        def executemany(self, statement: str, rows: Any) -> Any:
            rows = list(rows)
            if disk.strikes("disk full"):
                super().executemany(statement, rows[: len(rows) // 2])
                raise failed(sqlite3.SQLITE_FULL, "database or disk is full")
            return super().executemany(statement, rows)

    class Connection(sqlite3.Connection):
        def __init__(self, path: str, **options: Any) -> None:
            super().__init__(path, **options)
            self.path = path

        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    def connected(path: str, **options: Any) -> sqlite3.Connection:
        return connect(path, factory=Connection, **options)

    return connected


class World:
    """What the tools did, and whether the log knew of it when they did."""

    def __init__(self) -> None:
        self.acts: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.unrecorded: list[str] = []
        self.path = Path()

    def act(self, ctx: ToolContext, *, counts: bool) -> None:
        looking = sqlite3.connect(self.path)
        states = [state for (state,) in looking.execute("SELECT state FROM stored_events WHERE topic = 'tool_started'")]
        looking.close()
        if not any(f'"call":"{ctx.call_id}"'.encode() in state for state in states):
            self.unrecorded.append(ctx.call_id)
        self.keys.setdefault(ctx.call_id, set()).add(ctx.idempotency_key)
        self.acts[ctx.call_id] += counts


WORLD = World()


@tool(effect="read", concurrent=True)
def look(topic: str, ctx: ToolContext) -> str:
    """Look something up that is long enough to be stored by itself."""
    WORLD.act(ctx, counts=False)
    return f"{topic} " * 3_000


@tool(effect="idempotent", concurrent=True)
def put(name: str, ctx: ToolContext) -> str:
    """Set a value."""
    WORLD.act(ctx, counts=False)
    return name


@tool
def send(to: str, ctx: ToolContext) -> str:
    """Send a letter."""
    WORLD.act(ctx, counts=True)
    return f"sent to {to}"


@tool(approval="always")
def pay(amount: int, ctx: ToolContext) -> str:
    """Pay."""
    WORLD.act(ctx, counts=True)
    return f"paid {amount}"


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


SCRIPT: Sequence[dict[str, Any]] = (
    {"calls": [call("look", topic="a"), call("put", name="x"), call("send", to="Ann")]},
    {"calls": [call("ask_user", question="Which year?"), call("pay", amount=3), call("look", topic="b")]},
    {"text": "done"},
)


def human(store: Store, run_id: str, asked: Call) -> None:
    """Answers and allows, and tries again where the store failed."""
    for attempt in range(2):
        try:
            if asked.phase == "doubt":
                store.resolve_sync(run_id, asked.id, verdict="tell_model", command_id=f"{asked.id} doubt")
            elif asked.approval is None:
                store.answer_sync(run_id, "2024", call=asked.id, command_id=f"{asked.id} answer")
            else:
                store.approve_sync(run_id, asked.id, command_id=f"{asked.id} approve")
        except StoreUnavailable:
            assert not attempt, "it fails once"
            assert DISKS
            DISKS[-1].let_go()
        else:
            return


def made() -> Agent:
    """The agent of a process that begins when whatever kept the last one from writing is over."""
    for disk in DISKS:
        disk.let_go()
    return Agent(ScriptedModel(SCRIPT), "Be brief.", [look, put, send, pay], policy=Policy())


DISKS: list[Disk] = []
TRIAL = Trial(made, human=human)


def fates(failure: Failure, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fate, Path, Disk]]:
    """The first write that fails, the second, ... until the run ends without having met one."""
    for nth in count(1):
        fate = Fate()
        path = folder / f"{failure.split('/', maxsplit=1)[0]}-{nth}.db"
        open_log(f"sqlite:///{path}").close()  # made before anything fails
        disk = Disk(failure, nth, fate)
        DISKS[:] = [disk]
        with monkeypatch.context() as patched:
            patched.setattr(sqlite3, "connect", connections(disk))
            yield fate, path, disk
        disk.let_go()
        if not fate.came:
            return


@pytest.mark.slow
@pytest.mark.parametrize("failure", get_args(Failure))
def test_whichever_write_fails_the_run_stops_there_and_ends_as_its_twin(failure: Failure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    WORLD.__init__()  # type: ignore[misc]
    DISKS.clear()
    WORLD.path = tmp_path / "twin.db"
    twin_log = open_log(f"sqlite:///{WORLD.path}")
    twin = survive(TRIAL, twin_log).outcome
    twin_log.close()
    struck = 0
    for fate, path, disk in fates(failure, tmp_path, monkeypatch):
        WORLD.__init__()  # type: ignore[misc]
        WORLD.path = path
        log = open_log(f"sqlite:///{path}", lock_timeout_s=LOCK_S)
        # when its nth write fails, and whoever drives or answers tries again
        survived = survive(TRIAL, log, fate, own_loop=True)
        log.close()
        # then
        assert list(losses(survived, twin)) == [], (failure, disk.nth)
        assert WORLD.unrecorded == [], (failure, disk.nth)
        assert {name: times for name, times in WORLD.acts.items() if times > 1} == {}, (failure, disk.nth)
        assert all(len(keys) == 1 for keys in WORLD.keys.values()), (failure, disk.nth)
        struck += fate.came
    assert struck >= 12, "every append of the run, its humans' included"
