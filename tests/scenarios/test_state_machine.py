"""The machine: a move is made once or not at all, a refused one breaks nothing, and no state exists that is not in the log."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from refold import Agent, Store, fold, open_store, tool
from refold.events import facts as f
from refold.events.storage import StoreUnavailable
from refold.fsm.machine import MACHINE, Illegal
from refold.runtime import ports as p
from refold.runtime.store import NotAsked
from refold.testing.faults import Fate, FaultyLog
from refold.testing.trajectory import Act, Trajectory


def asking_agent(stage: Any) -> Agent:
    @tool(approval="always")
    def send(to: str) -> str:
        """Send."""
        return "sent"

    return stage.agent([{"calls": [{"name": "send", "arguments": {"to": "x"}}]}, {"text": "done"}], [send])


def outcome(act: Callable[[], Any]) -> str:
    try:
        act()
    except NotAsked:
        return "refused"
    return "accepted"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_B150_of_a_hundred_approvals_at_once_one_counts(stage, kind, tmp_path):
    # given a call that waits for approval
    store = stage.store if kind == "memory" else stage.another_store(f"sqlite:///{tmp_path}/log.db")
    agent = asking_agent(stage)
    waiting = agent.run_sync("Send.", store=store)
    # when a hundred threads approve it at once
    together = threading.Barrier(20)

    def approve(n: int) -> str:
        if n < 20:
            together.wait(10)
        return outcome(lambda: store.approve_sync(waiting.id, "t1.1"))

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(approve, range(100)))
    # then one is accepted, and the log has it once
    assert (outcomes.count("accepted"), outcomes.count("refused")) == (1, 99)
    granted = [record for record in store.read(waiting.id) if record.type == "approval_granted"]
    assert len(granted) == 1
    assert agent.resume_sync(waiting.id, store=store).status == "completed"


def test_B150_tasks_of_one_loop_are_no_different(stage):
    # given a question
    agent = stage.agent([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "done"}])
    waiting = agent.run_sync("Do it.", store=stage.store)

    async def scenario() -> list[Any]:
        return await asyncio.gather(*(stage.store.answer(waiting.id, f"number {n}") for n in range(100)), return_exceptions=True)

    # when a hundred tasks answer it
    outcomes = asyncio.run(scenario())
    # then one was first, and its words are in the log
    refused = [each for each in outcomes if isinstance(each, NotAsked)]
    assert len(refused) == 99
    assert "does not wait for a question" in str(refused[0])
    assert [record.type for record in stage.store.read(waiting.id)].count("clarification_received") == 1


@pytest.mark.slow
def test_B150_two_processes_are_no_different(stage, tmp_path):
    # given a call that waits, in a file
    url = f"sqlite:///{tmp_path}/log.db"
    store = stage.another_store(url)
    waiting = asking_agent(stage).run_sync("Send.", store=store)
    code = f"""
from refold import open_store
from refold.runtime.store import NotAsked
store, taken = open_store({url!r}), 0
for _ in range(50):
    try:
        store.approve_sync({waiting.id!r})
        taken += 1
    except NotAsked:
        pass
print(taken)
store.close()
"""
    # when two processes approve it fifty times each
    running = [subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    taken = [int(process.communicate(timeout=60)[0]) for process in running]
    # then one approval was taken over all
    assert sum(taken) == 1
    assert [record.type for record in store.read(waiting.id)].count("approval_granted") == 1


def test_B150_a_hundred_cancellations_end_a_run_once(stage):
    # given a run that waits
    waiting = asking_agent(stage).run_sync("Send.", store=stage.store)
    # when it is cancelled by a hundred threads under one command
    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(lambda _: outcome(lambda: stage.store.cancel_sync(waiting.id, command_id="stop")), range(100)))
    # then it was requested once and ended once; the same command again is no error
    tags = [record.type for record in stage.store.read(waiting.id)]
    assert outcomes == ["accepted"] * 100
    assert (tags.count("cancel_requested"), tags.count("run_cancelled")) == (1, 1)
    assert fold(stage.store.read(waiting.id)).status == "cancelled"


def test_B150_a_second_outcome_of_a_call_finds_no_row():
    # given a call that has its result
    played = Trajectory().start()
    played.calls(Act("look"), Act("look", '{"at":2}'))
    played.succeed("t1.1")
    before = played.run
    # when a second one comes
    for again in (lambda: played.succeed("t1.1"), lambda: played.fail("t1.1")):
        with pytest.raises(Illegal, match="not legal in executing_tools"):
            again()
    # then the run is where it was
    assert played.run is before


def test_B151_after_a_cancelled_request_the_machine_goes_on(stage):
    # given a model that is cancelled in the middle of its answer
    begun = asyncio.Event()

    class Model:
        spec = "slow"

        async def stream(self, request: p.Request) -> Any:
            yield p.TextDelta(text="Well")
            begun.set()
            await asyncio.Event().wait()

    async def scenario() -> Any:
        running = asyncio.ensure_future(Agent(model=Model()).run("Do it.", store=stage.store, run_id="r"))
        await begun.wait()
        await stage.store.cancel("r", "enough")
        return await running

    # when the cancellation is through
    result = asyncio.run(scenario())
    # then the run is cancelled, a message to it is refused with the way to go on, and the next run works
    assert (result.status, result.state) == ("cancelled", "done")
    interrupted = next(record for record in result.records if record.type == "model_interrupted")
    assert (interrupted.data["text"], result.records[-1].type) == ("Well", "run_cancelled")
    with pytest.raises(NotAsked, match="refold continue r"):
        stage.store.say_sync("r", "and now?")
    assert stage.play([{"text": "done"}]).status == "completed"


def test_B151_a_parked_run_takes_messages_and_goes_on(stage):
    # given a run whose task was cancelled in the middle of an answer
    begun = asyncio.Event()
    script = stage.scripted([{"text": "too early"}, {"text": "done, quickly"}])

    class Model:
        spec = "slow"
        first = True

        async def stream(self, request: p.Request) -> Any:
            if self.first:
                self.first = False
                begun.set()
                await asyncio.Event().wait()
            async for part in script.stream(request):
                yield part

    agent = Agent(model=Model())

    async def park() -> None:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await begun.wait()
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()

    asyncio.run(park())
    # when a message comes and the run is resumed
    stage.store.say_sync("r", "and be quick")
    result = agent.resume_sync("r", store=stage.store)
    # then nothing is stuck: the answer of the repeated request comes before the message is heard, so the model is asked again, with it
    assert (result.status, result.answer) == ("completed", "done, quickly")
    assert [message.text for message in stage.requests()[-1].messages] == ["Do it.", "too early", "and be quick"]


def test_B152_an_illegal_input_does_not_take_a_cancellation_with_it(stage):
    # given a run in the middle of a tool
    begun, may_end = threading.Event(), threading.Event()

    @tool(effect="read")
    def work() -> str:
        """Work."""
        begun.set()
        may_end.wait(10)
        return "worked"

    agent = stage.agent([{"calls": [{"name": "work"}]}, {"text": "never asked"}], [work])
    outcomes: list[Any] = []
    running = threading.Thread(target=lambda: outcomes.append(agent.run_sync("Work.", store=stage.store, run_id="r")))
    running.start()
    begun.wait(10)
    # when an answer that nobody asked for comes just before a cancellation
    with pytest.raises(NotAsked, match="does not wait for a question"):
        stage.store.answer_sync("r", "blue")
    with pytest.raises(NotAsked):
        stage.store.approve_sync("r", "t1.1")
    stage.store.cancel_sync("r", "enough")
    may_end.set()
    running.join(10)
    # then it was refused, without a trace in the log, and the cancellation is carried out
    assert outcomes[0].status == "cancelled"
    assert not {"clarification_received", "approval_granted"} & {record.type for record in outcomes[0].records}


def test_B152_a_refused_move_leaves_the_machine_as_it_was():
    # given a run that executes tools
    played = Trajectory().start()
    played.calls(Act("look"))
    before = played.run
    # when everything that is illegal there is tried, on the machine that all runs share
    for fact in (
        f.AnswerChecked(),
        f.UsageUpdated(usage=f.Usage()),
        f.ApprovalExpired(call="t1.1"),
        f.ToolResultsInjected(calls=("t1.1",)),
        f.Sealed(algorithm="a", key="k", signature="s"),
    ):
        with pytest.raises(Illegal):
            played.tell(fact)
    # then nothing moved, nothing is queued, and what is legal works
    assert played.run is before
    assert MACHINE.has_queue is False
    assert "model_requested" in played.succeed("t1.1")
    assert played.cancel() == ["cancel_requested"]


FAULTS = [("append", n) for n in range(1, 6)] + [("appended", n) for n in range(1, 6)]


@pytest.mark.parametrize(("place", "nth"), FAULTS)
def test_B178_no_state_is_seen_that_is_not_stored(stage, place, nth):
    # given a store that fails at one append: before it stores, or behind it
    performed = []

    @tool(effect="read")
    def look(at: int) -> str:
        """Look."""
        performed.append(at)
        return f"saw {at}"

    turns = [{"calls": [{"name": "look", "arguments": {"at": n}}]} for n in (1, 2)] + [{"text": "done"}]
    fate = Fate(place, nth, "unavailable")
    failing = Store(FaultyLog(stage.store.log, fate), "memory:")
    seen: list[Any] = []
    agent = stage.agent(turns, [look])
    # when a run meets it
    with pytest.raises(StoreUnavailable):
        asyncio.run(agent.run("Do it.", store=failing, run_id="r", heard=seen.append))
    # then whoever listened saw a part of what is stored, in order, and no more; and batches are whole
    stored = list(stage.store.read("r")) if stage.store.runs() else []
    heard = [each.stored for each in seen if hasattr(each, "stored")]
    assert heard == [record.stored for record in stored][: len(heard)]
    if place == "append":
        assert len(heard) == len(stored)
    # and the run goes on from there as if nothing had been
    if stored:
        result = agent.resume_sync("r", store=stage.store)
        assert (result.status, result.answer) == ("completed", "done")


def test_B178_loading_a_run_appends_nothing_and_performs_nothing(stage):
    # given a log that ends in the middle of a tool
    performed = []

    @tool(effect="read")
    def look(at: int) -> str:
        """Look."""
        performed.append(at)
        return "saw"

    result = stage.play([{"calls": [{"name": "look", "arguments": {"at": 1}}]}, {"text": "done"}], [look])
    begun = next(record.position for record in result.records if record.type == "tool_started")
    died = stage.cut(result.id, begun)
    performed.clear()
    # when it is loaded and folded
    journal = died.journal(result.id)
    # then its state is the one of that position, and nothing else happened
    assert (journal.run.state, journal.run.calls[0].phase) == ("executing_tools", "started")
    assert journal.run == fold(died.read(result.id))
    assert fold(died.read(result.id)).position == begun
    assert performed == []


def test_B150_open_stores_of_one_file_see_each_other(tmp_path, stage):
    # given one file opened twice
    url = f"sqlite:///{tmp_path}/log.db"
    one = stage.another_store(url)
    other = open_store(url)
    waiting = asking_agent(stage).run_sync("Send.", store=one)
    # when the same call is answered through both
    outcomes = [outcome(lambda store=store: store.deny_sync(waiting.id, reason="no")) for store in (one, other)]
    other.close()
    # then the second is refused
    assert outcomes == ["accepted", "refused"]
