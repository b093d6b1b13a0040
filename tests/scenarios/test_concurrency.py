"""Concurrency: one process drives a run, whoever comes second sees what the first wrote and decides again, and readers miss nothing."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from refold import Agent, Store, ToolContext, audit, open_store, replay, tool
from refold.events import facts as f
from refold.events.log import Row, open_log
from refold.events.words import CallId
from refold.runtime.cli import exits
from refold.runtime.cli.main import perform
from refold.runtime.journal import Journal
from refold.runtime.ownership import DrivenElsewhere


def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


# -- two that resume


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_B145_of_two_workers_that_resume_a_run_one_drives_it(stage, tmp_path, times):
    # given runs that were left behind, in a store that two workers have open
    ran: Counter[tuple[str, int]] = Counter()
    url = f"sqlite:///{tmp_path}/log.db?synchronous=NORMAL"
    stores = [stage.another_store(url) for _ in range(2)]

    @tool
    async def act(n: int, ctx: ToolContext) -> str:
        """Acts."""
        ran[ctx.run_id, n] += 1
        await asyncio.sleep(0)
        return f"did {n}"

    turns = [*({"calls": [{"name": "act", "arguments": {"n": n}}]} for n in range(3)), {"text": "done"}]
    agents = [stage.agent(turns, [act]) for _ in range(2)]
    for n in range(times):
        begin = f.RunStarted(goal="Do it.", setup=agents[0].declared(seed=f"{n}"))
        Journal(stores[0].log, f"r{n}").command_sync(lambda run, begin=begin: (begin,))
    start, outcomes = threading.Barrier(2), []

    def work(store: Store, agent: Agent) -> None:
        for n in range(times):
            start.wait(20)
            try:
                outcomes.append(agent.resume_sync(f"r{n}", store=store).status)
            except DrivenElsewhere as elsewhere:
                outcomes.append("elsewhere" if elsewhere.until_us > elsewhere.since_us else "nowhere")

    # when both resume each of them at the same moment
    workers = [threading.Thread(target=work, args=pair) for pair in zip(stores, agents, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    # then one drove it and the other was told (or came when it was over), and every call ran once
    assert len(outcomes) == 2 * times
    assert set(outcomes) <= {"completed", "elsewhere"}
    assert times < 200 or "elsewhere" in outcomes
    assert ran == {(f"r{n}", k): 1 for n in range(times) for k in range(3)}
    assert all([record.type for record in stores[0].read(f"r{n}")].count("driver_attached") == 1 for n in range(times))


def test_B145_a_run_that_is_driven_is_named_with_its_driver_and_nothing_is_appended(stage, tmp_path, monkeypatch, capsys):
    # given a run that somebody drives
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "somebodys.py").write_text("from refold import Agent\nagent = Agent()\n", encoding="utf-8")
    url = f"sqlite:///{tmp_path}/log.db"
    store = stage.another_store(url)
    agent = stage.agent([{"text": "done"}])
    begin = f.RunStarted(goal="Do it.", setup=agent.declared(seed="s"))
    Journal(store.log, "r").command_sync(lambda run: (begin,))
    head = store.log.head("r")
    with store.log.hold("r", "ann@elsewhere:7", 30):
        # when another resumes it
        assert perform(["resume", "r", "--store", url, "--agent", "somebodys:agent", "--model", "offline"]) == exits.UNAVAILABLE
        # then it is told by whom and since when, and nothing was appended
        said = capsys.readouterr().err.splitlines()[-1]
        assert "driven by ann@elsewhere:7 since" in said
        assert store.log.head("r") == head
    assert agent.resume_sync("r", store=store).status == "completed"


OWNER = """
import sys, time
from pathlib import Path
from refold import Agent, ScriptedModel, open_store, tool

counted = Path(sys.argv[3])

@tool
def act(n: int) -> str:
    "Acts."
    with counted.open("a") as lines:
        lines.write(f"{n}\\n")
    if n == 1:
        print("in the second call", flush=True)
        sys.stdin.readline()
    return f"did {n}"

turns = [*({"calls": [{"name": "act", "arguments": {"n": n}}]} for n in range(4)), {"text": "done"}]
agent = Agent(model=ScriptedModel(turns), tools=[act])
store = open_store(sys.argv[1], driver_ttl_s=float(sys.argv[2]))
verb = sys.argv[4]
result = agent.run_sync("Do it.", store=store, run_id="r") if verb == "run" else agent.resume_sync("r", store=store)
print(result.status, result.lost, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("asleep", ["longer than its time", "killed"])
def test_B145_a_driver_that_slept_for_too_long_appends_nothing_and_performs_nothing(tmp_path, asleep):
    # given a driver in its second call, which stops there: for longer than it may be silent, or for good
    url, counted = f"sqlite:///{tmp_path}/log.db", tmp_path / "counted"
    command = [sys.executable, "-P", "-c", OWNER, url, "0.5", str(counted)]
    owner = subprocess.Popen([*command, "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "in the second call\n"
        owner.send_signal(signal.SIGSTOP if asleep == "longer than its time" else signal.SIGKILL)
        store = open_store(url)
        until(lambda: store.log.holder("r") is None)
        # when another takes the run over and ends it
        other = subprocess.run([*command, "resume"], input="\n", capture_output=True, text=True, timeout=60)
        assert other.stdout.splitlines()[-1] == "completed False", other.stderr
        # and the first wakes up and its call returns
        if asleep == "longer than its time":
            owner.send_signal(signal.SIGCONT)
            out, err = owner.communicate("\n", timeout=30)
            assert (err, owner.returncode) == ("", 0)
            assert out.split()[0] == "completed"
    finally:
        owner.kill()
        owner.communicate()
    # then each call ran once, and of the one that was lost the log says that nobody knows; what the sleeper knew is a note, and nothing else is its own
    assert counted.read_text().split() == ["0", "1", "2", "3"]
    records = list(store.read("r"))
    taken_over = [record.type for record in records].index("driver_attached", 5)
    first, later = records[0].driver, records[taken_over].driver
    assert [record.call for record in records if record.type == "tool_in_doubt"] == ["t2.1"]
    assert {record.type for record in records[taken_over:] if record.driver == first} <= {"late_outcome"}
    assert {record.driver for record in records} == {first, later}
    assert audit(store, "r").ok
    assert replay(store, "r").divergence is None
    store.close()


# -- readers


def begun(run_id: str) -> list[Row]:
    return [Row(1, "run_started", json.dumps({"run": run_id}).encode())]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_B149_a_reader_of_all_runs_never_passes_over_one_that_is_committed_later(schema, end):
    # given a writer that has its number and has not committed
    import psycopg

    log, reader = open_log(schema), open_log(schema)
    log.append("before", 0, begun("before"), create=True)
    polls = [reader.runs()]
    changes = [reader.changed()]

    def poll() -> None:
        polls.append(reader.runs())
        changes.append(reader.changed())

    with psycopg.connect(schema) as slow:
        slow.execute("LOCK TABLE stored_events IN EXCLUSIVE MODE")  # as every writer of the log does
        slow.execute("INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('first', 1, 'run_started', '{}')")
        # when another writes meanwhile, somebody reads again and again, and the first ends
        other = threading.Thread(target=lambda: log.append("second", 0, begun("second"), create=True))
        other.start()
        for _ in range(5):
            poll()
        slow.commit() if end == "commit" else slow.rollback()
        other.join(20)
    poll()
    # then what was read is only ever added to, in one order, and a gap holds nobody up
    assert polls[-1] == (["before", "first", "second"] if end == "commit" else ["before", "second"])
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(polls))
    assert changes == sorted(changes)
    assert changes[-1] > changes[0]
    log.close()
    reader.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh store of each kind."""
    match request.param:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite:///{tmp_path}/log.db?synchronous=NORMAL"
        case _:
            found: str = request.getfixturevalue("schema")
            return found


def test_B149_who_follows_the_store_sees_every_record_once_and_in_order(url):
    # given a store with four writers, and somebody who follows it by the number that says that something changed
    log = open_log(url)
    reader = log if url == "memory:" else open_log(url)
    followed: dict[str, list[int]] = {}
    done = threading.Event()

    def follow() -> None:
        seen, last = -1, False
        while not last:
            last = done.is_set()
            if (now := reader.changed()) == seen:
                time.sleep(0.001)
                continue
            seen = now
            for run_id in reader.runs():
                positions = followed.setdefault(run_id, [])
                positions += [row.position for row in reader.read(run_id, positions[-1] if positions else 0)]

    def write(run_id: str) -> None:
        log.append(run_id, 0, begun(run_id), create=True)
        for n in range(1, 30):
            log.append(run_id, n, [Row(n + 1, "user_said", b"{}")])

    # when
    follower, writers = threading.Thread(target=follow), [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
    for thread in (follower, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    follower.join()
    # then nothing was missed and nothing seen twice
    assert followed == {f"w{n}": list(range(1, 31)) for n in range(4)}
    log.close()
    reader.close()


# -- two that write


@pytest.mark.parametrize("first", ["the result", "the cancellation"])
def test_B175_who_comes_second_decides_again_on_what_the_first_wrote(url, stage, first):
    # given two processes that know a run up to the same position: one has the result of its call, the other wants it to end
    one = stage.another_store(url)
    other = one if url == "memory:" else stage.another_store(url)

    @tool
    def act() -> str:
        """Acts."""
        return "acted"

    agent = stage.agent([{"calls": [{"name": "act"}]}, {"text": "done"}], [act])
    finished = agent.run_sync("Do it.", store=stage.store, run_id="r")
    before = next(record.position for record in finished.records if record.type == "tool_succeeded") - 1
    rows = [Row(row.position, row.type, row.state) for row in stage.store.log.scan("r", 0, before)]
    one.log.append("r", 0, rows, stage.store.log.payloads("r"), create=True)
    driver, human = (Journal(store.log, "r").load() for store in (one, other))
    result = f.ToolSucceeded(call=CallId("t1.1"), result="acted")
    cancel = f.CancelRequested(who="ann", reason="enough")
    # when both write
    if first == "the result":
        driver.command_sync(lambda run: (result,))
        human.command_sync(lambda run: (cancel,))
    else:
        human.command_sync(lambda run: (cancel,))
        driver.command_sync(lambda run: (result,))
    # then both are in the log, in the order in which they came, each decided on what was there, and no position is missing or there twice
    run = Journal(one.log, "r").load().run
    types = [record.type for record in one.read("r")][before:]
    if first == "the result":
        assert types == ["tool_succeeded", "tool_results_injected", "model_requested", "cancel_requested"]
        assert (run.status, run.cancel is not None) == ("running", True)
        agent.resume_sync("r", store=one)
    else:
        assert types == ["cancel_requested", "tool_succeeded", "tool_results_injected", "run_cancelled"]
    assert [row.position for row in one.log.read("r")] == list(range(1, len(one.log.read("r")) + 1))
    run = Journal(other.log, "r").load().run
    assert (run.status, run.detail) == ("cancelled", "enough")


# -- threads


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_B180_threads_share_a_store(stage, tmp_path, kind, times):
    # given eight threads that drive runs in one store, and four that read in it
    store = stage.store if kind == "memory" else stage.another_store(f"sqlite:///{tmp_path}/log.db?synchronous=NORMAL")

    @tool(effect="read")
    def look(at: int) -> str:
        """Looks."""
        return f"{at} " * 2_000

    turns = [*({"calls": [{"name": "look", "arguments": {"at": n}}]} for n in range(4)), {"text": "done"}]
    agents = [stage.agent(turns, [look]) for _ in range(8)]
    done, wrong = threading.Event(), list[BaseException]()

    def write(n: int) -> None:
        try:
            for k in range(times):
                assert agents[n].run_sync("Do it.", store=store, run_id=f"r{n}-{k}").status == "completed"
        except BaseException as error:
            wrong.append(error)

    def read() -> None:
        known: dict[str, int] = {}
        try:
            while not done.is_set():
                for run_id in store.runs():
                    positions = [record.position for record in store.read(run_id)]
                    assert positions == list(range(1, len(positions) + 1))
                    assert len(positions) >= known.get(run_id, 0)
                    known[run_id] = len(positions)
        except BaseException as error:
            wrong.append(error)

    # when
    readers, writers = [threading.Thread(target=read) for _ in range(4)], [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    # then nobody met an error, and every run is whole
    assert wrong == []
    assert len(store.runs()) == 8 * times
    assert len({store.log.head(run_id)[0] for run_id in store.runs()}) == 1
