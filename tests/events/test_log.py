"""Every store keeps the same promises: order, one winner, all or nothing, and nothing acknowledged is ever lost."""

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from refold.events.log import Conflict, Log, PayloadMissing, Row, StoreDamaged, StoreMissing, StoreUnavailable, open_log


def rows(first: int, n: int = 1, mark: str = "x", kind: str = "user_said") -> list[Row]:
    return [Row(p, kind, f'{{"mark":"{mark}","position":{p}}}'.encode()) for p in range(first, first + n)]


def start(log: Log, run_id: str, n: int = 1, kind: str = "run_started") -> None:
    log.append(run_id, 0, rows(1, 1, run_id, kind) + rows(2, n - 1, run_id), create=True)


def one_line(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


def child(code: str, *arguments: object) -> "subprocess.Popen[str]":
    code = "import sys\nfrom refold.events.log import *\n" + code
    return subprocess.Popen([sys.executable, "-P", "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    match request.param:
        case "memory":
            url = "memory:"
        case "sqlite":
            url = f"sqlite:///{tmp_path}/log.db"
        case _:
            url = request.getfixturevalue("schema")
    opened = open_log(url)
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


# What every store promises.


def test_what_was_appended_is_read_in_order_byte_for_byte(log: Log) -> None:
    # given a run that grew in three batches, beside another
    start(log, "a", 2)
    start(log, "b")
    log.append("a", 2, rows(3, 3, "ä\0"))
    log.append("a", 5, rows(6))
    # then it reads as one, from any place to any place
    everything = rows(1, 1, "a", "run_started") + rows(2, 1, "a") + rows(3, 3, "ä\0") + rows(6)
    assert log.read("a") == everything == list(log.scan("a"))
    assert log.read("a", after=2, upto=4) == everything[2:4] == list(log.scan("a", 2, 4))
    assert log.read("a", after=4) == everything[4:]
    assert log.read("a", after=6) == log.read("a", after=99) == log.read("a", 0, 0) == []
    assert log.head("a") == (6, everything[-1].state)


def test_a_run_that_does_not_exist_has_no_rows_and_no_head(log: Log) -> None:
    assert log.read("none") == list(log.scan("none")) == []
    assert log.head("none") is None
    assert log.payloads("none") == {}


def test_a_long_run_is_scanned_whole(log: Log) -> None:
    start(log, "long", 2000)
    assert [row.position for row in log.scan("long")] == list(range(1, 2001))
    assert [row.position for row in log.scan("long", 500, 1900)] == list(range(501, 1901))
    assert [row.position for row in log.read("long", 3)] == list(range(4, 2001))


@pytest.mark.parametrize("expected", [1, 3, 99])
def test_only_the_head_may_be_expected(log: Log, expected: int) -> None:
    # given a run at position 2
    start(log, "a", 2)
    # when a writer believes it to be elsewhere, earlier or later
    with pytest.raises(Conflict) as refused:
        log.append("a", expected, rows(expected + 1))
    # then it is told where the run is, and nothing was stored
    assert (refused.value.run_id, refused.value.expected, refused.value.actual) == ("a", expected, 2)
    assert len(log.read("a")) == 2


def test_a_run_is_begun_once_and_only_on_purpose(log: Log) -> None:
    with pytest.raises(Conflict) as unbegun:
        log.append("a", 0, rows(1))
    assert unbegun.value.actual is None
    start(log, "a")
    with pytest.raises(Conflict) as twice:
        start(log, "a")
    assert twice.value.actual == 1
    assert log.read("a") == rows(1, 1, "a", "run_started")


def test_a_fork_begins_after_its_parents_position(log: Log) -> None:
    log.append("fork", 40, rows(41, kind="run_forked") + rows(42), create=True)
    log.append("fork", 42, rows(43))
    assert [row.position for row in log.read("fork")] == [41, 42, 43]
    assert [row.position for row in log.read("fork", 41, 42)] == [42]
    assert log.runs() == ["fork"]


@pytest.mark.parametrize("wrong", [[], rows(2), rows(1) + rows(3), rows(1) + rows(1)], ids=["none", "late", "gap", "twice"])
def test_rows_that_do_not_follow_are_a_bug(log: Log, wrong: list[Row]) -> None:
    with pytest.raises(ValueError, match="numbered from 1"):
        log.append("a", 0, wrong, create=True)
    assert log.runs() == []


def test_payloads_are_stored_once_a_run_with_the_rows_that_name_them(log: Log) -> None:
    # given a value that two batches and two runs name
    log.append("a_b", 0, rows(1, kind="run_started"), {"D1": b"one", "D2": b"\0\xff"}, create=True)
    log.append("a_b", 1, rows(2), {"D1": b"one", "D3": b"three"})
    log.append("axb", 0, rows(1, kind="run_started"), {"D1": b"one", "D9": b"nine"}, create=True)
    # then each run has its own, and they are no rows of it
    assert log.payload("a_b", "D2") == b"\0\xff"
    assert log.payloads("a_b") == {"D1": b"one", "D2": b"\0\xff", "D3": b"three"}
    assert log.payloads("axb") == {"D1": b"one", "D9": b"nine"}
    assert len(log.read("a_b")) == 2
    assert log.runs() == ["a_b", "axb"]
    with pytest.raises(PayloadMissing) as missing:
        log.payload("a_b", "D9")
    assert (missing.value.run_id, missing.value.digest) == ("a_b", "D9")


def test_a_refused_batch_leaves_no_payload(log: Log) -> None:
    start(log, "a", 2)
    with pytest.raises(Conflict):
        log.append("a", 1, rows(2), {"D": b"x"})
    assert log.payloads("a") == {}


def test_another_value_under_a_known_digest_is_damage(log: Log) -> None:
    log.append("a", 0, rows(1, kind="run_started"), {"D": b"one"}, create=True)
    with pytest.raises(StoreDamaged) as damaged:
        log.append("a", 1, rows(2), {"D": b"two", "E": b"three"})
    one_line(damaged, "a", "D")
    assert log.head("a") == (1, rows(1)[0].state)
    assert log.payloads("a") == {"D": b"one"}


def test_runs_come_in_the_order_in_which_they_were_started(log: Log) -> None:
    start(log, "z", kind="run_started")
    start(log, "m", kind="run_continued")
    log.append("z", 1, rows(2))
    log.append("a", 7, rows(8, kind="run_forked"), create=True)
    assert log.runs() == ["z", "m", "a"]


def test_a_run_is_named_once_however_many_begin_in_its_records(log: Log) -> None:
    # given a fork that holds its whole history, as an imported one does, between two other runs
    start(log, "first")
    log.append("child", 0, rows(1, kind="run_started") + rows(2) + rows(3, kind="run_forked"), create=True)
    start(log, "last")
    # when it is forked once more, then it still is one run, in its place
    log.append("child", 3, rows(4, kind="run_forked"))
    assert log.runs() == ["first", "child", "last"]
    assert log.find("chi") == ["child"]


def test_find_takes_the_prefix_literally(log: Log) -> None:
    for run_id in ("b_1", "bx1", "b%1", "B_1", "c"):
        start(log, run_id)
    log.append("c", 1, rows(2), {"D": b"x"})
    assert log.find("b_") == ["b_1"]
    assert log.find("b%") == ["b%1"]
    assert log.find("b") == ["b%1", "b_1", "bx1"]
    assert log.find("c") == ["c"]
    for nothing in ("d", "_", "%", "payload", "é", "\udcff", "b_1 "):
        assert log.find(nothing) == []


def test_find_names_ten_at_most(log: Log) -> None:
    for n in range(12):
        start(log, f"run-{n:02}")
    assert log.find("") == log.find("run-") == [f"run-{n:02}" for n in range(10)]


def test_changed_says_that_something_was_committed(log: Log) -> None:
    before = log.changed()
    assert log.changed() == before
    start(log, "a")
    after = log.changed()
    assert after != before
    log.read("a")
    assert log.changed() == after


def test_a_closed_store_says_so(log: Log) -> None:
    start(log, "a")
    log.close()
    log.close()
    for use in (lambda: log.read("a"), lambda: list(log.scan("a")), lambda: log.head("a"), log.runs, log.changed, lambda: log.append("a", 1, rows(2))):
        with pytest.raises(StoreUnavailable) as closed:
            use()
        one_line(closed, "closed", "open")


def test_closing_settles_what_was_submitted(log: Log) -> None:
    start(log, "a")
    futures = [log.submit("a", n, rows(n + 1)) for n in range(1, 100)]
    log.close()
    assert all(future.done() and future.exception() is None for future in futures)


def test_a_submission_that_loses_spoils_no_other(log: Log) -> None:
    # given many submissions on their way at once, every third of them wrong
    futures: list[tuple[int, Future[None]]] = [(n, log.submit(f"run-{n}", 0, rows(1, kind="run_started"), {"D": b"x"}, create=n % 3 > 0)) for n in range(60)]
    # then just these are refused
    for n, future in futures:
        if n % 3:
            future.result()
        else:
            assert isinstance(future.exception(), Conflict)
    assert log.runs() == [f"run-{n}" for n in range(60) if n % 3]


def test_a_cancelled_waiter_does_not_take_its_batch_along(log: Log) -> None:
    async def cancelled_at_once() -> None:
        waiter = asyncio.wrap_future(log.submit("a", 0, rows(1, kind="run_started"), create=True))
        waiter.cancel()

    asyncio.run(cancelled_at_once())
    log.append("a", 1, rows(2))
    assert len(log.read("a")) == 2


def test_threads_that_race_for_positions_each_win_once(log: Log) -> None:
    # given four threads that want the same positions
    start(log, "a")
    won: list[int] = []

    def race() -> None:
        for n in range(1, 26):
            try:
                log.append("a", n, rows(n + 1))
            except Conflict:
                continue
            won.append(n + 1)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # then every position was won once
    assert sorted(won) == list(range(2, 27))
    assert [row.position for row in log.read("a")] == list(range(1, 27))


# How a store is named.


@pytest.mark.parametrize(
    "url", ["mysql://x", "log.db", "", "memory:x", "sqlite:log.db", "sqlite://log.db", "sqlite:///", "sqlite:////", "sqlite:///:memory:", "sqlite:///a\0b"]
)
def test_a_url_that_names_no_store_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(ValueError, match="store") as refused:
        open_log(url)
    one_line(refused, "sqlite:///")


def test_stores_in_memory_are_apart() -> None:
    one, other = open_log("memory:"), open_log("memory:")
    start(one, "a")
    assert other.runs() == []


ODD = [
    "a b.db",
    "100%.db",
    "a%20b.db",
    "what?.db",
    "a?mode=memory",
    "x#y.db",
    ":memory:",
    "file:z.db",
    "Öl 油 🙂.db",
    "a'b\"c.db",
    "new\nline.db",
    "deep/er/log.db",
    "tail.db?synchronous=no/log.db",
]


@pytest.mark.parametrize("name", ODD)
def test_a_path_is_taken_literally(tmp_path: Path, name: str) -> None:
    # given a file of that name, made on first use with the folders above it
    log = open_log(f"sqlite:///{tmp_path}/{name}")
    start(log, "a")
    # then it is that file, and nothing else was made
    assert (tmp_path / name).is_file()
    assert {path.name for path in tmp_path.iterdir()} <= {name.split("/")[0], name + "-wal", name + "-shm"}
    assert open_log(f"sqlite:///{tmp_path}/{name}", create=False).runs() == ["a"]


def test_a_path_without_a_slash_of_its_own_is_relative_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a store opened from one folder
    monkeypatch.chdir(tmp_path)
    log = open_log("sqlite:///.refold/log.db")
    # when the process goes elsewhere before it is used
    monkeypatch.chdir("/")
    start(log, "a")
    # then it is where it was named
    assert (tmp_path / ".refold" / "log.db").is_file()


@pytest.mark.parametrize(
    ("suffix", "argument", "level"), [("", "FULL", 2), ("", "NORMAL", 1), ("?synchronous=NORMAL", "FULL", 1), ("?synchronous=full", "NORMAL", 2)]
)
def test_the_price_of_durability_can_be_chosen(file: Path, suffix: str, argument: str, level: int) -> None:
    log = open_log(f"sqlite:///{file}{suffix}", synchronous=argument)
    start(log, "a")
    # then every connection of its pool has that price, in write-ahead mode
    with log._datastore.get_connection(commit=False) as connection, connection.cursor() as cursor:  # type: ignore[attr-defined]
        assert cursor.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert cursor.execute("PRAGMA synchronous").fetchone()[0] == level
    assert {path.name for path in file.parent.iterdir()} == {"log.db", "log.db-wal", "log.db-shm"}


@pytest.mark.parametrize("suffix", ["?synchronous=OFF", "?synchronous="])
def test_a_log_that_is_not_durable_cannot_be_chosen(file: Path, suffix: str) -> None:
    with pytest.raises(ValueError, match="FULL or NORMAL"):
        open_log(f"sqlite:///{file}{suffix}")
    assert not list(file.parent.iterdir())


def test_loading_the_door_loads_no_store() -> None:
    process = child("print([m for m in sys.modules if m.split('.')[0] in ('eventsourcing', 'sqlite3', 'psycopg')])")
    assert process.communicate() == ("[]\n", "")


# What can be wrong with a file.


@pytest.mark.parametrize("name", ["log.db", "no/such/folder/log.db"])
def test_a_store_that_is_not_there_is_not_made_for_a_reader(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreMissing) as missing:
        open_log(f"sqlite:///{tmp_path}/{name}", create=False)
    one_line(missing, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", [b"x", b"A letter to my aunt. " * 500, b"\0" * 5000, b"SQLite format 3\0" + b"\1" * 50], ids=["short", "long", "zeros", "headed"]
)
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database_is_refused_and_stays_as_it_is(file: Path, content: bytes, create: bool) -> None:
    file.write_bytes(content)
    with pytest.raises(StoreUnavailable) as refused:
        open_log(f"sqlite:///{file}", create=create)
    one_line(refused, str(file))
    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_a_file_of_no_bytes_is_a_fresh_store_but_none_for_a_reader(file: Path) -> None:
    file.touch()
    with pytest.raises(StoreMissing):
        open_log(f"sqlite:///{file}", create=False)
    assert file.stat().st_size == 0
    start(open_log(f"sqlite:///{file}"), "a")
    assert open_log(f"sqlite:///{file}", create=False).runs() == ["a"]


@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_another_program_is_left_alone(file: Path, create: bool) -> None:
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE stored_events (id INTEGER, what TEXT)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(StoreUnavailable) as refused:
        open_log(f"sqlite:///{file}", create=create)
    one_line(refused, str(file), "another program")
    assert file.read_bytes() == before


def test_a_device_is_no_store() -> None:
    with pytest.raises(StoreUnavailable) as refused:
        open_log("sqlite:////dev/null")
    one_line(refused, "not a file")


@pytest.mark.parametrize("create", [True, False])
def test_a_folder_is_no_store(tmp_path: Path, create: bool) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        open_log(f"sqlite:///{tmp_path}", create=create)
    one_line(refused, "folder")


def test_a_store_below_a_file_is_refused(file: Path) -> None:
    file.write_text("x")
    with pytest.raises(StoreUnavailable) as refused:
        open_log(f"sqlite:///{file}/below/log.db")
    one_line(refused, "cannot be opened")
    assert file.read_text() == "x"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sealed").mkdir(mode=0o555)
    with pytest.raises(StoreUnavailable) as refused:
        open_log(f"sqlite:///{tmp_path}/sealed/log.db")
    one_line(refused, "sealed")


def test_a_damaged_file_is_refused(file: Path) -> None:
    # given a store whose pages behind the first were overwritten
    log = open_log(f"sqlite:///{file}")
    start(log, "a", 500)
    log.close()
    content = bytearray(file.read_bytes())
    content[8192:] = b"\x5a" * (len(content) - 8192)
    file.write_bytes(content)
    # then a reader is told
    with pytest.raises(StoreDamaged) as damaged:
        open_log(f"sqlite:///{file}").read("a")
    one_line(damaged, str(file))


def test_a_store_that_somebody_locks_is_unavailable_after_a_while_and_can_be_read_meanwhile(file: Path) -> None:
    # given a store that another program holds
    log = open_log(f"sqlite:///{file}", lock_timeout_s=0.05)
    start(log, "a")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    # then writers give up, and readers do not notice
    with pytest.raises(StoreUnavailable) as locked:
        log.append("a", 1, rows(2))
    one_line(locked, str(file), "locked")
    assert len(log.read("a")) == len(open_log(f"sqlite:///{file}", create=False).read("a")) == 1
    # and when it is released, the store is as before
    other.close()
    log.append("a", 1, rows(2))
    assert len(log.read("a")) == 2


def test_a_fresh_store_that_somebody_locks_is_unavailable(file: Path) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable) as locked:
        open_log(f"sqlite:///{file}", lock_timeout_s=0.05)
    one_line(locked, "locked")
    other.close()
    start(open_log(f"sqlite:///{file}"), "a")


def test_a_disk_that_takes_no_more_is_unavailable_and_the_log_goes_on_when_there_is_room(file: Path) -> None:
    # given a process whose files may not grow (as on a full disk)
    process = child(
        """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = open_log(sys.argv[1])
log.append("a", 0, [Row(1, "run_started", b"{}")], create=True)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
try:
    log.append("a", 1, [Row(2, "user_said", b"{}")], {"D": b"x" * 200_000})
except StoreUnavailable as error:
    print(error)
print(log.head("a"), log.payloads("a"))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
log.append("a", 1, [Row(2, "user_said", b"{}")], {"D": b"y"})
print(log.head("a"), log.payloads("a"))
""",
        f"sqlite:///{file}",
    )
    # then the batch is refused whole, and once there is room the next one is taken
    out, err = process.communicate()
    first, second, third = out.splitlines()
    assert str(file) in first
    assert (second, third, err) == ("(1, b'{}') {}", "(2, b'{}') {'D': b'y'}", "")


# Several processes, and processes that die.


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_processes_that_make_and_fill_one_store_lose_nothing(file: Path, count: int) -> None:
    # given processes with a run each, on a store that none of them has made yet
    code = """
log = open_log(sys.argv[1])
log.append(sys.argv[2], 0, [Row(1, "run_started", b"{}")], create=True)
for n in range(1, 40):
    log.append(sys.argv[2], n, [Row(n + 1, "user_said", b"{}")])
"""
    processes = [child(code, f"sqlite:///{file}?synchronous=NORMAL", f"run-{n}") for n in range(count)]
    assert [process.communicate() for process in processes] == [("", "")] * count
    # then every run is whole
    log = open_log(f"sqlite:///{file}")
    assert sorted(log.runs()) == [f"run-{n}" for n in range(count)]
    assert all([row.position for row in log.read(run_id)] == list(range(1, 41)) for run_id in log.runs())


def test_two_processes_that_race_for_positions_each_win_once(file: Path) -> None:
    # given two processes that want the same hundred positions
    start(open_log(f"sqlite:///{file}"), "a")
    code = """
log = open_log(sys.argv[1])
for n in range(1, 101):
    try:
        log.append("a", n, [Row(n + 1, "user_said", sys.argv[2].encode())])
    except Conflict:
        continue
    print(n + 1)
"""
    racers = {mark: child(code, f"sqlite:///{file}", mark) for mark in ("one", "two")}
    won = {mark: process.communicate() for mark, process in racers.items()}
    # then each position was told to one of them, and holds what that one wrote
    stored = [(row.position, row.state.decode()) for row in open_log(f"sqlite:///{file}").read("a", 1)]
    assert [position for position, _ in stored] == list(range(2, 102))
    assert sorted((int(n), mark) for mark, (out, _) in won.items() for n in out.split()) == stored
    assert all(err == "" for _, err in won.values())


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_what_was_acknowledged_survives_the_death_of_its_process(file: Path, synchronous: str) -> None:
    # given a process that says what was stored, and is killed while it stores more
    code = """
log = open_log(sys.argv[1])
log.append("a", 0, [Row(1, "run_started", b"{}")], create=True)
n = 1
while True:
    log.append("a", n, [Row(n + 1, "user_said", b"{}"), Row(n + 2, "user_said", b"{}")], {f"D{n}": b"x"})
    n += 2
    print(n, flush=True)
"""
    process = child(code, f"sqlite:///{file}?synchronous={synchronous}")
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    said += process.communicate()[0].splitlines(keepends=True)
    acknowledged = max(int(line) for line in said if line.endswith("\n"))
    # then all of it is there, and no batch is there in part
    log = open_log(f"sqlite:///{file}", create=False)
    head = log.head("a")
    assert head is not None
    assert head[0] >= acknowledged
    assert head[0] % 2 == 1
    assert [row.position for row in log.read("a")] == list(range(1, head[0] + 1))
    assert len(log.payloads("a")) == (head[0] - 1) // 2


def test_a_process_that_ends_without_closing_writes_what_it_submitted(file: Path) -> None:
    code = """
log = open_log(sys.argv[1])
log.submit("a", 0, [Row(1, "run_started", b"{}")], create=True)
for n in range(1, 200):
    log.submit("a", n, [Row(n + 1, "user_said", b"{}")])
"""
    assert child(code, f"sqlite:///{file}").communicate(timeout=30) == ("", "")
    log = open_log(f"sqlite:///{file}")
    assert len(log.read("a")) == 200


def test_a_log_that_nobody_holds_lets_go_of_its_thread_and_files(file: Path) -> None:
    log = open_log(f"sqlite:///{file}")
    log.submit("a", 0, rows(1), create=True).result()
    assert any(thread.name == "refold-log" for thread in threading.enumerate())
    del log
    gc.collect()
    assert not any(thread.name == "refold-log" for thread in threading.enumerate())
    assert list(file.parent.iterdir()) == [file]


def test_a_store_opened_before_a_fork_says_so_in_the_child(file: Path) -> None:
    code = """
import os
log = open_log(sys.argv[1])
log.append("a", 0, [Row(1, "run_started", b"{}")], create=True)
if os.fork() == 0:
    for use in (lambda: log.append("a", 1, [Row(2, "user_said", b"{}")]), log.runs):
        try:
            use()
        except StoreUnavailable as error:
            print("forked" in str(error), flush=True)
    sys.exit()
os.wait()
log.append("a", 1, [Row(2, "user_said", b"{}")])
print(len(log.read("a")))
"""
    assert child(code, f"sqlite:///{file}").communicate(timeout=30) == ("True\nTrue\n2\n", "")


def test_changed_sees_another_process(file: Path) -> None:
    log = open_log(f"sqlite:///{file}")
    before = log.changed()
    child("""open_log(sys.argv[1]).append("a", 0, [Row(1, "run_started", b"{}")], create=True)""", f"sqlite:///{file}").communicate()
    assert log.changed() != before
    assert log.runs() == ["a"]


def test_the_rows_can_be_found_with_plain_sql(file: Path) -> None:
    # given a store that is open
    log = open_log(f"sqlite:///{file}")
    written = rows(1, kind="run_started") + rows(2)
    log.append("a", 0, written, {"D": b"x"}, create=True)
    # then its table is the library's
    other = sqlite3.connect(file)
    found = other.execute("SELECT originator_id, originator_version, topic, state FROM stored_events ORDER BY rowid").fetchall()
    assert found == [("payload:a:D", 1, "payload", b"x"), *(("a", row.position, row.type, row.state) for row in written)]
    other.close()


# PostgreSQL.


def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown() -> None:
    pytest.importorskip("psycopg_pool")
    with pytest.raises(StoreUnavailable) as refused:
        open_log("postgresql://me:s3cret@127.0.0.1:1/test")
    one_line(refused, "127.0.0.1", "server")
    assert "s3cret" not in str(refused.value)


def test_a_postgres_url_that_cannot_be_read_is_refused_without_showing_it() -> None:
    pytest.importorskip("psycopg_pool")
    with pytest.raises(ValueError, match="postgresql://USER@HOST") as refused:
        open_log("postgresql://me:s3cret%zz@127.0.0.1/test")
    assert "s3cret" not in str(refused.value)


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "refold.events.postgres", None)
    with pytest.raises(StoreUnavailable) as missing:
        open_log("postgresql://127.0.0.1/test")
    one_line(missing, "pip install 'refold[postgres]'")


def test_a_schema_without_a_store_is_none_for_a_reader(schema: str) -> None:
    with pytest.raises(StoreMissing) as missing:
        open_log(schema, create=False)
    one_line(missing, "postgresql://")
    with pytest.raises(StoreMissing):
        open_log(schema, create=False)


def test_a_table_of_another_program_is_left_alone(schema: str) -> None:
    import psycopg

    with psycopg.connect(schema) as other:
        other.execute("CREATE TABLE stored_events (what text)")
    with pytest.raises(StoreUnavailable) as refused:
        open_log(schema)
    one_line(refused, "another program")


@pytest.mark.slow
def test_a_table_that_somebody_locks_is_unavailable_after_a_while_and_can_be_read_meanwhile(schema: str) -> None:
    import psycopg

    log = open_log(schema, lock_timeout_s=1)
    start(log, "a")
    with psycopg.connect(schema) as other:
        other.execute("LOCK TABLE stored_events IN EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable) as locked:
            log.append("a", 1, rows(2))
        one_line(locked, "locked")
        assert len(log.read("a")) == 1
    log.append("a", 1, rows(2))
    log.close()


def test_a_connection_that_dies_after_the_commit_loses_nothing(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a log whose first commit succeeds, and whose caller is told that the connection died
    from eventsourcing.persistence import OperationalError

    from refold.events.postgres import _Committer

    log = open_log(schema)
    start(log, "a")
    real, calls = _Committer._commit, []

    def dies_once(self: _Committer, group: object) -> object:
        outcomes = real(self, group)  # type: ignore[arg-type]
        calls.append(group)
        if len(calls) == 1:
            raise OperationalError("server closed the connection unexpectedly")
        return outcomes

    monkeypatch.setattr(_Committer, "_commit", dies_once)
    # then our own batch is recognised, and another's is still a conflict
    log.append("a", 1, rows(2), {"D": b"x"})
    assert (len(calls), len(log.read("a"))) == (2, 2)
    calls.clear()
    with pytest.raises(Conflict):
        log.append("a", 1, rows(2, mark="other"))
    log.close()


def test_a_server_that_drops_every_connection_is_asked_again(schema: str) -> None:
    import psycopg

    log = open_log(schema)
    start(log, "a")
    with psycopg.connect(schema, autocommit=True) as other:
        dropped = other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = current_setting('application_name')"
        ).fetchall()
        assert dropped
    log.append("a", 1, rows(2))
    assert len(log.read("a")) == 2
    log.close()


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_that_make_and_fill_one_schema_lose_nothing(schema: str, count: int) -> None:
    code = """
log = open_log(sys.argv[1])
log.append(sys.argv[2], 0, [Row(1, "run_started", b"{}")], create=True)
for n in range(1, 20):
    log.append(sys.argv[2], n, [Row(n + 1, "user_said", b"{}")])
"""
    processes = [child(code, schema, f"run-{n}") for n in range(count)]
    assert [process.communicate() for process in processes] == [("", "")] * count
    log = open_log(schema, create=False)
    assert sorted(log.runs()) == [f"run-{n}" for n in range(count)]
    assert all([row.position for row in log.read(run_id)] == list(range(1, 21)) for run_id in log.runs())
    log.close()
