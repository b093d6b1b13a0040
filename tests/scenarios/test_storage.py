"""Storage: many writers, readers that stay, connections that die; nothing is lost, nothing is done twice, and whoever must know is told in words."""

import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest

from refold import Policy, Store, audit, fold, open_store, tool
from refold.events.log import StoreUnavailable, open_log
from refold.runtime.ownership import Ownership

WRITERS, RUNS = 8, 5
WRITER = """
import sys
from refold import Agent, ScriptedModel, open_store, tool

@tool
def act(n: int) -> str:
    "Acts."
    acted.append(n)
    return f"did {n}"

acted = []
url, name, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_store(url)
turns = [*({"calls": [{"name": "act", "arguments": {"n": n}}]} for n in range(4)), {"text": "done"}]
for n in range(runs):
    result = Agent(model=ScriptedModel(turns), tools=[act]).run_sync("Do it.", store=store, run_id=f"{name}-{n}")
    assert result.status == "completed", result
    assert acted == [0, 1, 2, 3], acted
    acted.clear()
print("ok")
"""


@pytest.mark.slow
def test_B140_many_processes_a_reader_and_a_backup_share_one_file(tmp_path):
    # given a store, with somebody who reads in one transaction for as long as it takes, and somebody who copies it
    url = f"sqlite:///{tmp_path}/log.db"
    open_store(url).close()
    reader, copied = sqlite3.connect(tmp_path / "log.db"), sqlite3.connect(tmp_path / "copy.db")
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM stored_events").fetchone() == (0,)
    # when eight processes drive runs of their own
    writers = [
        subprocess.Popen([sys.executable, "-P", "-c", WRITER, url, f"w{n}", str(RUNS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(WRITERS)
    ]
    while any(writer.poll() is None for writer in writers):
        with sqlite3.connect(tmp_path / "log.db") as source:
            source.backup(copied, pages=200)
        source.close()
    said = [writer.communicate() for writer in writers]
    reader.close()
    copied.close()
    # then nobody met an error, and every run is whole
    assert said == [("ok\n", "")] * WRITERS
    store, copy = open_store(url), open_store(f"sqlite:///{tmp_path}/copy.db", create=False)
    assert sorted(store.runs()) == sorted(f"w{n}-{k}" for n in range(WRITERS) for k in range(RUNS))
    positions = {run_id: [row.position for row in store.log.read(run_id)] for run_id in store.runs()}
    assert all(found == list(range(1, len(found) + 1)) for found in positions.values())
    assert len({len(found) for found in positions.values()}) == 1
    assert all(audit(store, f"w{n}-0").ok for n in range(WRITERS))
    # and the copy holds the beginning of each
    for run_id in copy.runs():
        rows = copy.log.read(run_id)
        assert rows == store.log.read(run_id)[: len(rows)]
    store.close()
    copy.close()


@pytest.mark.parametrize("effect", ["read", "side_effect"])
def test_B140_a_store_that_is_locked_for_too_long_is_named_and_costs_nothing(stage, results_of, tmp_path, briefly, effect):
    # given a store that somebody locks while a tool runs, for longer than is waited
    path = tmp_path / "log.db"
    store = Store(open_log(f"sqlite:///{path}", lock_timeout_s=0.2), f"sqlite:///{path}")
    stage.stores.append(store)
    ran: list[int] = []
    locked = sqlite3.connect(path, check_same_thread=False)

    @tool(effect=effect)
    def act() -> str:
        """Acts."""
        ran.append(1)
        if len(ran) == 1:
            locked.execute("BEGIN IMMEDIATE")
        return "acted"

    turns = [{"calls": [{"name": "act"}]}, {"text": "done"}]
    agent = stage.agent(turns, [act])
    # when its result cannot be stored
    with pytest.raises(StoreUnavailable) as refused:
        agent.run_sync("Do it.", store=store, run_id="r")
    # then that is said in one line
    assert "locked" in str(refused.value)
    assert "\n" not in str(refused.value)
    # and once it can, the run goes on: what may run again does, what may not is in doubt
    locked.rollback()
    locked.close()
    lapsed(store, "r")
    result = agent.resume_sync("r", store=store)
    assert result.status == "completed"
    assert len(ran) == (2 if effect == "read" else 1)
    assert results_of(result)["t1.1"][0] == ("success" if effect == "read" else "in_doubt")


@pytest.fixture
def briefly(monkeypatch):
    """A driver that could not say that it let go keeps its run for its time: half a second here."""
    monkeypatch.setattr(Ownership.acquire, "__defaults__", (0.5,))


def lapsed(store: Store, run_id: str) -> None:
    """Until the store answers again, and nobody drives the run any more: connections are tried anew at growing intervals."""
    end = time.monotonic() + 40
    while not _is_free(store, run_id):
        assert time.monotonic() < end
        time.sleep(0.01)


def _is_free(store: Store, run_id: str) -> bool:
    try:
        return store.log.holder(run_id) is None
    except StoreUnavailable:
        return False


class Gate:
    """A way to the server that can be cut, and closed for a while."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._pairs: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, args=(self._listening,), daemon=True).start()

    def cut(self) -> None:
        """Every connection dies."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for each in pairs:
            cut_off(each)

    def close(self) -> None:
        """And nobody gets in any more."""
        if self._listening is not None:
            cut_off(self._listening)
            self._listening = None
        self.cut()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            with self._lock:
                self._pairs += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while some := one.recv(65536):
            other.sendall(some)
    cut_off(one)
    cut_off(other)


def cut_off(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@pytest.fixture
def gate(schema: str) -> Iterator[tuple[Gate, str]]:
    """A gate in front of the server, and the URL of a fresh schema behind it."""
    from psycopg.conninfo import conninfo_to_dict

    settings = conninfo_to_dict(schema)
    made = Gate(str(settings.get("host") or "127.0.0.1"), int(settings.get("port") or 5432))
    url = f"postgresql://{settings.get('user', 'postgres')}@127.0.0.1:{made.port}/{settings['dbname']}"
    yield made, f"{url}?options={quote(str(settings['options']))}&sslmode=disable&gssencmode=disable&connect_timeout=2"
    made.close()


def test_B187_a_connection_that_died_while_a_human_was_waited_for_is_made_anew(gate, stage):
    # given a run that waits, and a server that is restarted meanwhile
    way, url = gate
    store = stage.another_store(url)
    agent = stage.agent([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "done"}])
    assert agent.run_sync("Do it.", store=store, run_id="r").status == "waiting_for_user"
    way.cut()
    # when the human answers
    store.answer_sync("r", "this one")
    # then nobody noticed
    assert agent.resume_sync("r", store=store).status == "completed"


def test_B187_a_result_is_stored_once_the_server_is_back_and_its_tool_is_not_run_again(gate, stage, results_of):
    # given a tool during which the server is restarted
    way, url = gate
    ran: list[int] = []

    @tool
    def act() -> str:
        """Acts."""
        ran.append(1)
        way.cut()
        return "acted"

    # when
    result = stage.agent([{"calls": [{"name": "act"}]}, {"text": "done"}], [act]).run_sync("Do it.", store=stage.another_store(url))
    # then its result is stored, and it ran once
    assert (result.status, len(ran)) == ("completed", 1)
    assert results_of(result)["t1.1"] == ("success", "acted")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the commit", "behind the commit"])
def test_B187_an_append_that_was_cut_is_stored_once(gate, stage, results_of, monkeypatch, moment):
    # given a server that goes away in the middle of each append
    from refold.events.postgres import _Committer

    way, url = gate
    store = stage.another_store(url)
    real, cuts = _Committer._commit, [0]

    def cut(self: Any, group: Any) -> Any:
        first = cuts[0] % 2 == 0
        cuts[0] += 1
        if not first:
            return real(self, group)
        if moment == "before the commit":
            way.cut()
            return real(self, group)
        outcomes = real(self, group)
        from eventsourcing.persistence import OperationalError

        way.cut()
        raise OperationalError("server closed the connection unexpectedly") from outcomes[0]

    monkeypatch.setattr(_Committer, "_commit", cut)
    ran: list[int] = []

    @tool
    def act(n: int) -> str:
        """Acts."""
        ran.append(n)
        return f"did {n}"

    # when a run is driven through it
    turns = [*({"calls": [{"name": "act", "arguments": {"n": n}}]} for n in range(3)), {"text": "done"}]
    result = stage.agent(turns, [act]).run_sync("Do it.", store=store, run_id="r")
    # then every batch is there once, and every tool ran once
    assert (result.status, ran) == ("completed", [0, 1, 2])
    assert [row.position for row in store.log.read("r")] == list(range(1, result.position + 1))
    assert cuts[0] > 6


@pytest.mark.slow
def test_B187_a_server_that_stays_away_is_named_in_time_and_the_run_can_be_resumed(gate, stage, briefly, results_of):
    # given a server that goes away while a tool runs and does not come back
    way, url = gate
    store = stage.another_store(url)
    ran: list[int] = []

    @tool
    def act() -> str:
        """Acts."""
        ran.append(1)
        way.close()
        return "acted"

    agent = stage.agent([{"calls": [{"name": "act"}]}, {"text": "done"}], [act], policy=Policy(on_doubt="ask"))
    # when its result cannot be stored
    with pytest.raises(StoreUnavailable, match="postgresql://"):
        agent.run_sync("Do it.", store=store, run_id="r")
    # then, once it is back, the run is there and says what it does not know; nothing is done again
    way.open()
    lapsed(store, "r")
    result = agent.resume_sync("r", store=store)
    assert (result.status, len(ran)) == ("waiting_for_user", 1)
    store.resolve_sync("r", verdict="happened", result="acted")
    assert agent.resume_sync("r", store=store).status == "completed"
    assert fold(store.read("r")).status == "completed"
    assert len(ran) == 1
