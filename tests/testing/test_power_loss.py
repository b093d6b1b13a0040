"""The power goes: whatever the disk has kept of the write-ahead log, the store opens to a legal log that holds everything acknowledged before the cut."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from refold import Agent, ScriptedModel, audit, tool
from refold.events.log import open_log
from refold.events.storage import Submission
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.store import Store
from refold.testing.faults import FaultyLog

WAL_HEADER: Final = 32
FRAME_HEADER: Final = 24
RUNS: Final = ("one", "two")
CUTS: Final = 120
"""Cuts at bytes that are no boundary of anything."""


@tool(effect="read")
def look(topic: str) -> str:
    """Look something up that takes several pages of the database."""
    return f"{topic} " * 4_000


@tool
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


def agent() -> AnyAgent:
    turns: list[dict[str, Any]] = [
        {"calls": [{"name": "look", "arguments": {"topic": f"topic {n}"}}, {"name": "send", "arguments": {"to": f"friend {n}"}}]} for n in range(6)
    ]
    return Agent(ScriptedModel([*turns, {"text": "done"}]), tools=[look, send])


@dataclass(frozen=True)
class Acknowledged:
    """An append of which its writer was told that it is stored, and how long the write-ahead log was by then."""

    run: str
    position: int
    state: bytes
    wal: int


class Watched(FaultyLog):
    """A log that remembers what it acknowledged."""

    def __init__(self, path: Path) -> None:
        super().__init__(open_log(f"sqlite:///{path}"))
        self.wal, self.heard = Path(f"{path}-wal"), list[Acknowledged]()

    def _strike_behind(self, submission: Submission) -> None:
        super()._strike_behind(submission)
        last = submission.rows[-1]
        self.heard.append(Acknowledged(submission.run_id, last.position, last.state, self.wal.stat().st_size))


@dataclass(frozen=True)
class Lost:
    """A store as the disk had it when the power went, with everything in its write-ahead log; and what it had acknowledged."""

    database: bytes
    wal: bytes
    page: int
    acknowledged: tuple[Acknowledged, ...]

    def cut(self, folder: Path, length: int, tail: bytes = b"") -> Path:
        """The store of which only so much of the write-ahead log reached the disk, followed by what stood there before."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = folder / "log.db"
        path.write_bytes(self.database)
        Path(f"{path}-wal").write_bytes(self.wal[:length] + tail)
        return path

    def boundaries(self) -> range:
        return range(WAL_HEADER, len(self.wal) + 1, FRAME_HEADER + self.page)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    """Two runs, one behind the other, none of whose writes has reached the database file itself."""
    path = tmp_path_factory.mktemp("power") / "log.db"
    log = Watched(path)
    for run_id in RUNS:
        agent().run_sync("the goal", store=Store(log, f"sqlite:///{path}"), run_id=run_id)
    reader = sqlite3.connect(path)
    page = reader.execute("PRAGMA page_size").fetchone()[0]
    made = Lost(path.read_bytes(), log.wal.read_bytes(), page, tuple(log.heard))
    reader.close()
    log.log.close()
    assert made.wal, "nothing was written back meanwhile"
    assert all(earlier.wal <= later.wal <= len(made.wal) for earlier, later in zip(made.acknowledged, made.acknowledged[1:], strict=False))
    return made


def wrongs(path: Path, lost: Lost, length: int) -> Iterator[str]:
    """What must not be of a store that was cut there."""
    store = Store(log := open_log(f"sqlite:///{path}"), "")
    try:
        runs = set(log.runs())
        for run_id in runs:
            audited = audit(store, run_id)
            if not audited.ok:
                yield f"cut at {length}: the audit of run {run_id} finds something"
            batches = {record.batch for record in store.read(run_id)}
            whole = {ack.position for ack in lost.acknowledged if ack.run == run_id}
            head = log.head(run_id)
            if head is None or head[0] not in whole:
                yield f"cut at {length}: run {run_id} ends at {head and head[0]}, within a batch"
            if not batches:
                yield f"cut at {length}: run {run_id} is empty"
        for ack in lost.acknowledged:
            if ack.wal <= length:
                rows = log.read(ack.run, ack.position - 1, ack.position)
                if [row.state for row in rows] != [ack.state]:
                    yield f"cut at {length}: record {ack.position} of run {ack.run} was acknowledged at {ack.wal} and is gone"
    finally:
        log.close()


@pytest.mark.slow
def test_a_write_ahead_log_that_is_cut_at_any_frame_holds_everything_acknowledged_before(lost: Lost, tmp_path: Path) -> None:
    # given every place at which a frame ends
    assert len(lost.boundaries()) > 100
    for length in lost.boundaries():
        # when only that much is on the disk
        path = lost.cut(tmp_path / "cut", length)
        # then
        assert list(wrongs(path, lost, length)) == []


@pytest.mark.slow
def test_a_write_ahead_log_that_is_cut_anywhere_and_followed_by_anything_does_too(lost: Lost, tmp_path: Path) -> None:
    chance = random.Random(8)
    for _ in range(CUTS):
        # given a place within a frame or a header, and what an older log had left behind it
        length = chance.randrange(len(lost.wal) + 1)
        tail = chance.choice((b"", chance.randbytes(chance.randrange(1, 9_000)), lost.wal[length + lost.page : length + 3 * lost.page], bytes(lost.page)))
        # when that is what is found
        path = lost.cut(tmp_path / "cut", length, tail)
        # then
        assert list(wrongs(path, lost, length)) == []


@pytest.mark.slow
def test_pages_that_were_being_written_back_when_the_power_went_are_written_back_again(lost: Lost, tmp_path: Path) -> None:
    # given the database as it is when everything is written back
    path = lost.cut(tmp_path / "whole", len(lost.wal))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    after = path.read_bytes()
    chance = random.Random(9)
    for _ in range(40):
        # when some of its pages have reached the disk, one of them in part
        pages = [
            after[at : at + lost.page] if chance.random() < 0.5 else lost.database[at : at + lost.page].ljust(lost.page, b"\0")
            for at in range(0, len(after), lost.page)
        ]
        torn = chance.randrange(len(pages))
        pages[torn] = after[torn * lost.page : torn * lost.page + 512] + pages[torn][512:]
        path = lost.cut(tmp_path / "cut", len(lost.wal))
        path.write_bytes(b"".join(pages))
        # then
        assert list(wrongs(path, lost, len(lost.wal))) == []


@pytest.mark.slow
def test_a_run_goes_on_from_wherever_it_was_cut(lost: Lost, tmp_path: Path) -> None:
    for length in lost.boundaries()[5::25]:
        # given
        path = lost.cut(tmp_path / "cut", length)
        store = Store(log := open_log(f"sqlite:///{path}"), "")
        for run_id in log.runs():
            # when it is taken up
            resumed = agent().resume_sync(run_id, store=store)
            if resumed.status == "waiting_for_user":
                for call in resumed.run.calls:
                    if call.phase == "doubt":
                        store.resolve_sync(run_id, call.id, verdict="tell_model")
                resumed = agent().resume_sync(run_id, store=store)
            # then
            assert (resumed.status, resumed.answer) == ("completed", "done")
            assert audit(store, run_id).ok
        log.close()
