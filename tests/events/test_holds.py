"""One driver a run: a hold is free at once when its process dies, lapses when nobody refreshes it, and only one taker ever wins it."""

import itertools
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.events import holds
from refold.events.log import Held, Hold, Log, Row, StoreUnavailable, open_log

LONG_S = 60.0
SHORT_S = 0.03


def child(code: str, *arguments: object) -> "subprocess.Popen[str]":
    code = "import os, sys, time\nfrom refold.events.log import *\n" + code
    return subprocess.Popen([sys.executable, "-P", "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tells(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def until(true: Callable[[], object], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def one_line(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


HOLDER = """
log = open_log(sys.argv[1])
hold = log.hold("r", "child", float(sys.argv[2]))
print("held", flush=True)
for line in sys.stdin:
    print(hold.refresh(), flush=True)
    hold.release()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('file')}"
    found: str = request.getfixturevalue("schema")
    return found


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    match request.param:
        case "memory":
            opened = open_log("memory:")
        case "sqlite":
            opened = open_log(f"sqlite:///{request.getfixturevalue('file')}")
        case _:
            opened = open_log(request.getfixturevalue("schema"))
    yield opened
    opened.close()


@pytest.fixture
def shared(url: str) -> Iterator[Log]:
    opened = open_log(url)
    yield opened
    opened.close()


# What every store promises.


def test_a_run_that_is_held_is_refused_with_who_and_since_when(log: Log) -> None:
    # given
    before = time.time() - 1
    hold = log.hold("r", "me@here:1", LONG_S)
    # when
    with pytest.raises(Held) as refused:
        log.hold("r", "you@there:2", LONG_S)
    # then
    one_line(refused, "r", "me@here:1")
    held = refused.value
    assert (held.run_id, held.who) == ("r", "me@here:1")
    assert before < held.since_us / 1_000_000 < time.time() + 1
    assert held.until_us - held.since_us == pytest.approx(LONG_S * 1_000_000, abs=2_000)
    assert log.holder("r") == (held.who, held.since_us, held.until_us)
    # and once it is let go, anybody may take it
    hold.release()
    hold.release()
    assert log.holder("r") is None
    log.hold("r", "you@there:2", LONG_S).release()


def test_holds_of_different_runs_are_apart_and_no_part_of_the_log(log: Log) -> None:
    held = [log.hold(run_id, run_id, LONG_S) for run_id in ("A", "a", "a.b", "a-b_c", "con", "x" * 64)]
    assert [log.holder(hold.run_id) for hold in held] != [None] * len(held)
    held[0].release()
    assert log.holder("A") is None
    assert all(hold.refresh() for hold in held[1:])
    assert log.runs() == log.find("") == []
    assert log.head("a") is None


def test_a_refresh_keeps_a_run_beyond_its_first_time(log: Log) -> None:
    hold = log.hold("r", "me", LONG_S)
    first = log.holder("r")
    assert first is not None

    def later() -> bool:
        now = log.holder("r")
        return hold.refresh() and now is not None and now.until_us > first.until_us and now.since_us == first.since_us

    until(later)


def test_a_hold_whose_time_has_passed_is_kept_by_a_refresh_until_somebody_takes_it(log: Log) -> None:
    # given
    hold = log.hold("r", "me", SHORT_S)
    until(lambda: log.holder("r") is None)
    assert hold.refresh()
    assert log.holder("r") is not None
    # when
    until(lambda: log.holder("r") is None)
    other = log.hold("r", "you", LONG_S)
    # then it is lost, and nothing that its owner does touches the other
    assert not hold.refresh()
    hold.release()
    assert not hold.refresh()
    assert other.refresh()
    found = log.holder("r")
    assert found is not None
    assert found.who == "you"


def test_an_old_owner_that_lets_go_before_it_notices_takes_nothing_away(log: Log) -> None:
    hold = log.hold("r", "me", SHORT_S)
    until(lambda: log.holder("r") is None)
    other = log.hold("r", "you", LONG_S)
    hold.release()
    assert other.refresh()
    assert log.holder("r") is not None


def test_a_hold_is_let_go_at_the_end_of_its_block(log: Log) -> None:
    with pytest.raises(KeyError), log.hold("r", "me", LONG_S):
        raise KeyError
    assert log.holder("r") is None


def test_a_closed_store_gives_no_holds_and_has_let_go_of_all(log: Log) -> None:
    hold = log.hold("r", "me", LONG_S)
    log.close()
    for use in (lambda: log.hold("r", "me", LONG_S), lambda: log.holder("r")):
        with pytest.raises(StoreUnavailable) as closed:
            use()
        one_line(closed, "closed")
    hold.release()


def test_of_threads_that_take_a_run_at_once_one_wins(log: Log) -> None:
    for n in range(10):
        won: list[Hold] = []
        ready = threading.Barrier(4)

        def take(run_id: str = f"r{n}", won: list[Hold] = won, ready: threading.Barrier = ready) -> None:
            ready.wait()
            try:
                won.append(log.hold(run_id, "me", LONG_S))
            except Held:
                return

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


# Several processes.


def test_two_stores_of_one_process_see_one_another(url: str, shared: Log) -> None:
    other = open_log(url)
    hold = other.hold("r", "other", LONG_S)
    with pytest.raises(Held):
        shared.hold("r", "me", LONG_S)
    assert hold.refresh()
    # a store that is closed lets go
    other.close()
    until(lambda: shared.holder("r") is None)
    shared.hold("r", "me", LONG_S)


def test_a_run_is_free_at_once_when_its_process_is_killed(url: str, shared: Log) -> None:
    # given
    process = child(HOLDER, url, LONG_S)
    assert tells(process) == "held"
    with pytest.raises(Held) as refused:
        shared.hold("r", "me", LONG_S)
    assert refused.value.who == "child"
    # when
    process.kill()
    process.communicate()
    # then
    until(lambda: shared.holder("r") is None, within_s=LONG_S / 10)
    assert shared.hold("r", "me", LONG_S).refresh()


def test_a_run_is_free_when_its_process_ends_without_a_word(url: str, shared: Log) -> None:
    process = child("""log = open_log(sys.argv[1]); hold = log.hold("r", "child", 60)""", url)
    process.communicate()
    assert process.returncode == 0
    until(lambda: shared.holder("r") is None, within_s=LONG_S / 10)


def test_a_stopped_process_loses_its_run_when_its_time_has_passed_and_is_told_when_it_wakes(url: str, shared: Log) -> None:
    # given a process that is stopped while it holds the run, and its lock
    process = child(HOLDER, url, 0.5)
    assert tells(process) == "held"
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(Held):
        shared.hold("r", "me", LONG_S)
    # when its time has passed
    until(lambda: shared.holder("r") is None)
    hold = shared.hold("r", "me", LONG_S)
    # then it has lost the run when it wakes, and does not disturb the one who has it
    process.send_signal(signal.SIGCONT)
    tell(process, "refresh")
    assert tells(process) == "False"
    process.communicate()
    assert hold.refresh()
    # nor does its death free what it no longer holds
    assert shared.holder("r") is not None


def test_a_forked_child_does_not_keep_its_parents_hold_alive(url: str, shared: Log) -> None:
    # given a process whose child goes on without it
    code = """
log = open_log(sys.argv[1])
hold = log.hold("r", "parent", 60)
if (pid := os.fork()) == 0:
    hold.release()
    assert not hold.refresh()
    print("forked", flush=True)
    sys.stdin.readline()
    os._exit(0)
os.waitpid(pid, 0)
"""
    process = child(code, url)
    assert tells(process) == "forked"
    assert shared.holder("r") is not None
    # when the parent dies
    process.send_signal(signal.SIGKILL)
    process.wait()
    # then the run is free, while the child lives
    until(lambda: shared.holder("r") is None, within_s=LONG_S / 10)
    tell(process, "end")
    process.communicate()


RACER = """
log = open_log(sys.argv[1])
print("ready", flush=True)
hold = None
for line in sys.stdin:
    if line == "release\\n":
        hold.release()
        print("released", flush=True)
        continue
    try:
        hold = log.hold("r", sys.argv[2], 60)
    except Held:
        print("lost", flush=True)
    else:
        print("won", flush=True)
"""


@pytest.mark.parametrize("before", ["free", "dead", "late"])
def test_of_two_processes_that_take_a_run_at_once_one_wins(file: Path, before: str) -> None:
    # given
    log = open_log(f"sqlite:///{file}")
    racers = [child(RACER, f"sqlite:///{file}", n) for n in range(2)]
    assert [tells(racer) for racer in racers] == ["ready", "ready"]
    wins = [0, 0]
    for _ in range(50):
        match before:
            case "dead":  # who held it is no more
                log.hold("r", "me", LONG_S)
                with sqlite3.connect(file, isolation_level=None) as other:
                    other.execute("UPDATE drivers SET life = '1-0000000000000000'")
                other.close()
            case "late":  # who holds it lives, and its time has passed
                log.hold("r", "me", 0.001)
                until(lambda: log.holder("r") is None)
            case _:
                pass
        # when
        for racer in racers:
            tell(racer, "go")
        said = [tells(racer) for racer in racers]
        # then
        assert sorted(said) == ["lost", "won"]
        winner = said.index("won")
        wins[winner] += 1
        found = log.holder("r")
        assert found is not None
        assert found.who == str(winner)
        tell(racers[winner], "release")
        assert tells(racers[winner]) == "released"
    for racer in racers:
        racer.communicate()
    log.close()


@pytest.mark.slow
def test_processes_that_share_a_server_race_for_a_run_whose_process_was_killed(schema: str) -> None:
    log = open_log(schema)
    racers = [child(RACER, schema, n) for n in range(2)]
    assert [tells(racer) for racer in racers] == ["ready", "ready"]
    for _ in range(10):
        dead = open_log(schema)
        dead.hold("r", "dead", LONG_S)
        dead.close()
        until(lambda: log.holder("r") is None)
        for racer in racers:
            tell(racer, "go")
        said = [tells(racer) for racer in racers]
        assert sorted(said) == ["lost", "won"]
        tell(racers[said.index("won")], "release")
        assert tells(racers[said.index("won")]) == "released"
    for racer in racers:
        racer.communicate()
    log.close()


@pytest.mark.slow
def test_processes_that_are_stopped_at_random_never_hold_a_run_at_once(file: Path) -> None:
    # given three processes that take turns, each saying when it surely had the run: from when it was given until it let go, or until its time
    code = """
import random
log = open_log(sys.argv[1])
end = time.time() + float(sys.argv[2])
while time.time() < end:
    asked = time.time()
    try:
        hold = log.hold("r", "me", 0.1)
    except Held:
        time.sleep(0.002)
        continue
    given, sure, lost = time.time(), asked + 0.098, False
    for _ in range(random.randrange(20)):
        time.sleep(0.005)
        asked = time.time()
        if lost := not hold.refresh():
            break
        sure = asked + 0.098
    print(given, min(sure, time.time()), int(lost), flush=True)
    hold.release()
"""
    processes = [child(code, f"sqlite:///{file}", 6) for _ in range(3)]
    # when they are stopped beyond their time, again and again
    end = time.monotonic() + 6
    n = 0
    while time.monotonic() < end:
        process = processes[n % 3]
        n += 1
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.15)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    said = [[[float(word) for word in line.split()] for line in process.communicate(timeout=30)[0].splitlines()] for process in processes]
    # then all had their turns, some lost the run while they were stopped, no two had it at once, and nobody has it in the end
    assert all(process.returncode == 0 for process in processes)
    assert all(said)
    turns = sorted(tuple(turn) for each in said for turn in each if turn[0] < turn[1])
    assert any(lost for each in said for _, _, lost in each)
    assert len(turns) > 30
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(turns))
    assert open_log(f"sqlite:///{file}").holder("r") is None


# SQLite.


def test_a_store_that_is_closed_leaves_only_its_file(file: Path) -> None:
    log = open_log(f"sqlite:///{file}")
    log.hold("r", "me", LONG_S)
    assert {path.name for path in file.parent.iterdir()} == {"log.db", "log.db-wal", "log.db-shm", "log.db-drivers"}
    log.close()
    assert list(file.parent.iterdir()) == [file]


def test_what_dead_processes_leave_behind_is_swept_away_and_nothing_else(file: Path) -> None:
    # given what a killed process left, beside the living and a file of somebody else
    process = child(HOLDER, f"sqlite:///{file}", LONG_S)
    assert tells(process) == "held"
    process.kill()
    process.communicate()
    folder = file.with_name("log.db-drivers")
    (left,) = folder.iterdir()
    (folder / "notes.txt").write_text("mine")
    # when another drives
    log = open_log(f"sqlite:///{file}")
    log.hold("r", "me", LONG_S)
    # then
    names = {path.name for path in folder.iterdir()}
    assert left.name not in names
    assert "notes.txt" in names
    assert len(names) == 2
    log.close()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_store_opened_by_a_link_is_the_same_store(file: Path) -> None:
    log = open_log(f"sqlite:///{file}")
    log.hold("r", "me", LONG_S)
    (file.parent / "elsewhere").mkdir()
    link = file.parent / "elsewhere" / "link.db"
    link.symlink_to(file)
    linked = open_log(f"sqlite:///{link}")
    with pytest.raises(Held):
        linked.hold("r", "you", LONG_S)
    linked.close()
    log.close()


def test_a_relative_store_is_the_same_after_the_process_went_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = open_log("sqlite:///log.db")
    monkeypatch.chdir("/")
    log.hold("r", "me", LONG_S)
    assert (tmp_path / "log.db-drivers").is_dir()
    log.close()


def test_a_folder_that_cannot_be_made_is_one_line(file: Path) -> None:
    file.with_name("log.db-drivers").write_text("in the way")
    log = open_log(f"sqlite:///{file}")
    with pytest.raises(StoreUnavailable) as refused:
        log.hold("r", "me", LONG_S)
    one_line(refused, "log.db-drivers")
    assert log.holder("r") is None
    log.close()


def test_asking_who_drives_writes_nothing(file: Path) -> None:
    log = open_log(f"sqlite:///{file}")
    assert log.holder("r") is None
    with sqlite3.connect(file) as other:
        assert other.execute("SELECT name FROM sqlite_master WHERE name = 'drivers'").fetchall() == []
    other.close()
    assert not file.with_name("log.db-drivers").exists()
    log.close()


def test_a_store_that_somebody_locks_takes_no_hold_away(file: Path) -> None:
    # given
    log = open_log(f"sqlite:///{file}", lock_timeout_s=0.03)
    hold = log.hold("r", "me", LONG_S)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    # when
    with pytest.raises(StoreUnavailable) as locked:
        hold.refresh()
    one_line(locked, "locked")
    # then
    other.close()
    assert hold.refresh()
    log.close()


def test_a_hold_does_not_soften_what_is_recorded(file: Path) -> None:
    log = open_log(f"sqlite:///{file}")
    log.hold("r", "me", LONG_S)
    log.append("r", 0, [Row(1, "run_started", b"{}")], create=True)
    with log._writer._commit._opened().cursor() as cursor:  # type: ignore[attr-defined]
        assert cursor.execute("PRAGMA synchronous").fetchone()[0] == 2
    with log._datastore.get_connection(commit=False) as connection, connection.cursor() as cursor:  # type: ignore[attr-defined]
        assert cursor.execute("PRAGMA synchronous").fetchone()[0] == 2
    log.close()


def test_without_locks_of_the_system_time_alone_frees_a_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a system without them, as Windows is
    monkeypatch.setattr(holds, "fcntl", None)
    log, other = open_log(f"sqlite:///{file}"), open_log(f"sqlite:///{file}")
    hold = log.hold("r", "me", SHORT_S)
    log.close()
    # then a store that is gone still holds the run, until its time has passed
    assert not file.with_name("log.db-drivers").exists()
    until(lambda: other.holder("r") is None)
    other.hold("r", "you", LONG_S)
    with pytest.raises(Held):
        other.hold("r", "me", LONG_S)
    hold.release()
    other.close()


# PostgreSQL.


def drop_connections(schema: str) -> None:
    import psycopg

    with psycopg.connect(schema, autocommit=True) as other:
        theirs = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = current_setting('application_name')"
        assert other.execute(f"SELECT pg_terminate_backend(pid) {theirs}").fetchall()
        until(lambda: not other.execute(f"SELECT pid {theirs}").fetchall())


def test_a_connection_that_is_dropped_frees_the_run_and_is_made_again_if_nobody_took_it(schema: str) -> None:
    log = open_log(schema)
    hold, another = log.hold("r", "me", LONG_S), log.hold("s", "me", LONG_S)
    drop_connections(schema)
    assert log.holder("r") is None
    # when
    assert hold.refresh()
    # then all that it held is held again
    assert log.holder("r") is not None
    assert log.holder("s") is not None
    assert another.refresh()
    log.close()


def test_a_connection_that_is_dropped_loses_the_run_to_who_takes_it(schema: str) -> None:
    log, other = open_log(schema), open_log(schema)
    hold = log.hold("r", "me", LONG_S)
    drop_connections(schema)
    taken = other.hold("r", "you", LONG_S)
    assert not hold.refresh()
    assert taken.refresh()
    log.close()
    other.close()


def test_a_take_that_was_committed_when_its_connection_broke_is_ours(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a connection that breaks once, just behind the commit
    import psycopg

    from refold.events import postgres

    log = open_log(schema)
    log.hold("other", "me", LONG_S)
    real, broken = postgres._Holds._executed, list[int]()

    def breaks_once(self: postgres._Holds, *arguments: object) -> object:
        done = real(self, *arguments)  # type: ignore[arg-type]
        if not broken:
            broken.append(1)
            assert self._connection is not None
            self._connection.pgconn.finish()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return done

    monkeypatch.setattr(postgres._Holds, "_executed", breaks_once)
    # then
    hold = log.hold("r", "me", LONG_S)
    assert broken
    assert hold.refresh()
    log.close()
