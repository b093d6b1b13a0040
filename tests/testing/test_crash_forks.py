"""A process dies in the middle of making a fork, or of driving it: the fork is there whole and goes on as its twin, or is not there; its parent is what it was."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from refold import Agent, Policy, ScriptedModel, ToolContext, audit, open_store, replay, tool
from refold.events.lineage import history
from refold.events.memory import MemoryLog
from refold.events.storage import Log, Row
from refold.events.words import RunId
from refold.projections.run import Call
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.forking import NoFork, rest_at
from refold.runtime.store import Store
from refold.testing.crash import FATES, RUN, Trial, fates, losses, survive
from refold.testing.faults import Fault, Place

PARENT: Final = RunId("parent")
STRIKES: Final = [(place, fault) for place, fault in FATES if fault != "conflict" and place not in ("validator", "policy")]
"""A conflict in front of a fork is a run of its id, and no accident; nobody here asks validators or rules."""
SOON: Final = [("acted", "death")]
"""Those of the quick set."""
WORLD: Final = "REFOLD_TEST_WORLD"
"""Where processes of their own write down what they did."""
ACTS: Counter[str] = Counter()
"""What was done in the world, by idempotency key."""


def act(ctx: ToolContext) -> None:
    ACTS[ctx.idempotency_key] += 1
    if WORLD in os.environ:
        with open(os.environ[WORLD], "a", encoding="utf-8") as world:
            world.write(f"{ctx.idempotency_key}\n")


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


@tool
def send(to: str, ctx: ToolContext) -> str:
    """Sends."""
    act(ctx)
    return f"sent to {to}"


@tool(approval="always")
def pay(amount: int, ctx: ToolContext) -> str:
    """Pays."""
    act(ctx)
    return f"paid {amount}"


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in made]}


def agent(*turns: dict[str, Any], instructions: str = "") -> AnyAgent:
    return Agent(ScriptedModel(list(turns)), instructions, [look, send, pay], policy=Policy(wrap_up=False))


def other() -> AnyAgent:
    """The agent of a fork: another prompt, and a model that does some of what the parent did, and more."""
    return agent(calls(("send", {"to": "ann"}), ("look", {"at": "west"})), {"text": "Otherwise."}, instructions="Be brief.")


def allow(store: Store, run_id: RunId, call: Call) -> None:
    """Allows everything; of a call in doubt the model is told."""
    if call.phase == "doubt":
        store.resolve_sync(run_id, call.id, verdict="tell_model")
    else:
        store.approve_sync(run_id, call.id)


def begin_parent(log: Log) -> list[int]:
    """A run with every kind of place to fork at; gives those places."""
    store = Store(log, "memory:")
    made = agent(calls(("look", {"at": "north"}), ("send", {"to": "ann"}), ("pay", {"amount": 3})), calls(("send", {"to": "bob"})), {"text": "Done."})
    made.run_sync("Do it.", store=store, run_id=PARENT)
    store.approve_sync(PARENT)
    assert made.resume_sync(PARENT, store=store).status == "completed"
    return list(places(log))


def places(log: Log) -> Iterator[int]:
    """Where the parent rests."""
    last = log.head(PARENT)
    assert last is not None
    for at in range(1, last[0] + 1):
        try:
            if rest_at(log, PARENT, at).position == at:
                yield at
        except NoFork:
            continue


@pytest.fixture(scope="module")
def parent() -> tuple[list[Row], list[int]]:
    """The parent's rows, and where it rests."""
    log = MemoryLog()
    rests = begin_parent(log)
    return log.read(PARENT), rests


@pytest.mark.parametrize(("place", "fault"), [pytest.param(*strike, marks=() if strike in SOON else pytest.mark.slow) for strike in STRIKES])
def test_a_fork_that_was_crashed_anywhere_ends_as_its_twin(place: Place, fault: Fault, parent: tuple[list[Row], list[int]]) -> None:
    rows, rests = parent
    for at in rests:
        # given a fork to which nothing happened
        trial = Trial(other, human=allow, fork_of=(PARENT, at))
        twin = survive(trial, holding(rows)).outcome
        assert (twin.status, twin.answer) == ("completed", "Otherwise.")
        for fate in fates(place, fault):
            # when one meets its fate, and is made again where it is not there, or driven on where it is
            log = holding(rows)
            ACTS.clear()
            survived = survive(trial, log, fate)
            # then nothing is lost or done twice, and the parent is what it was
            assert list(losses(survived, twin)) == [], (at, fate)
            assert max(ACTS.values(), default=0) <= 1, (at, fate)
            assert log.read(PARENT) == rows
            assert log.runs() == [PARENT, RUN]


def holding(rows: list[Row]) -> MemoryLog:
    log = MemoryLog()
    log.append(PARENT, 0, rows, create=True)
    return log


# -- processes that are killed

VICTIM: Final = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from refold.events.log import open_log
from refold.runtime.store import Store
from refold.testing.faults import Fate, FaultyLog, mortal
from test_crash_forks import PARENT, other

url, run_id, at, place, nth = sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], int(sys.argv[6])


class Killed(Fate):
    def meets(self, passed):
        if passed == place:
            self.nth += 1
            if self.nth == nth:
                os.kill(os.getpid(), signal.SIGKILL)


fate, log = Killed(), open_log(url)
asyncio.run(mortal(other(), fate).fork(PARENT, at, store=Store(FaultyLog(log, fate), url), new_id=run_id, own_loop=True))
log.close()
"""


def is_killed(url: str, run_id: str, at: int, place: Place, nth: int, world: Path) -> bool:
    """Make and drive a fork in a process that is killed; false where it came to its end before."""
    words = [sys.executable, "-P", "-c", VICTIM, str(Path(__file__).parent), url, run_id, str(at), place, str(nth)]
    done = subprocess.run(words, env={**os.environ, WORLD: str(world)}, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store that outlives its processes."""
    made: str = f"sqlite:///{tmp_path}/log.db" if request.param == "sqlite" else request.getfixturevalue("schema")
    return made


KILLS: Final[list[tuple[Place, str]]] = [
    *((place, behind) for place in ("append", "appended") for behind in ("tool_started", "model_requested")),
    *((place, "model_requested") for place in ("request", "answered", "tool", "acted")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "behind"), KILLS)
def test_a_fork_whose_process_was_killed_is_there_whole_or_not_at_all(
    url: str, place: Place, behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a run in a store on disk, and a place where it had just begun a call, or a request
    world, nth = tmp_path / "world", 0
    monkeypatch.setenv(WORLD, str(world))
    store = open_store(url)
    begin_parent(store.log)
    rows = store.log.read(PARENT)
    at = [row.position for row in rows if row.type == behind][-1]
    began = world.read_text()
    while is_killed(url, run_id := RunId(f"child{(nth := nth + 1)}"), at, place, nth, world):
        # when its process is killed
        stored = list(history(store.log, run_id)) if run_id in store.runs() else []
        # then it is there whole, which its records say, or not at all
        assert not stored or replay(store, run_id).divergence is None
        # and comes to its end with everything that was stored, nothing done twice, and a parent that is what it was
        assert to_its_end(store, run_id, at) == ("completed", "Otherwise.")
        assert list(history(store.log, run_id))[: len(stored)] == stored
        assert audit(store, run_id).ok
        assert replay(store, run_id).divergence is None
        assert store.log.read(PARENT) == rows
        done = Counter(world.read_text().removeprefix(began).split())
        assert max(done.values(), default=0) <= 1
        began = world.read_text()
    assert nth > 1
    store.close()


def to_its_end(store: Store, run_id: RunId, at: int) -> tuple[str, str | None]:
    """Make the fork again where it is not there, or drive it on, and allow what it asks for."""
    result = other().resume_sync(run_id, store=store) if store.log.head(run_id) else other().fork_sync(PARENT, at, store=store, new_id=run_id)
    while result.status == "waiting_for_user":
        for call in result.run.calls:
            if call.phase in ("waiting", "doubt"):
                allow(store, run_id, call)
        result = other().resume_sync(run_id, store=store)
    return result.status, result.answer
