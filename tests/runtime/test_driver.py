"""The driver when others write into the same log, and when it is told to stop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from refold import Agent, ScriptedModel, open_store, tool
from refold.events import facts as f
from refold.events.memory import MemoryLog
from refold.events.storage import Submission
from refold.runtime.journal import Journal
from refold.runtime.ports import Finished, Part, Request
from refold.runtime.store import Store
from refold.testing.checks import check_log
from refold.testing.crash import RUN, Trial, losses, survive
from refold.testing.faults import Fate, FaultyLog

PAY: list[dict[str, Any]] = [{"calls": [{"name": "pay", "arguments": {"amount": 3}}]}, {"text": "paid"}]


@tool(approval="always")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="read")
async def look(topic: str) -> str:
    """Look something up."""
    await asyncio.sleep(0)
    return topic


class Interrupted(FaultyLog):
    """Does something just before the first append of a batch that begins with one type of record."""

    def __init__(self, log: MemoryLog, before: str, act: Callable[[], object]) -> None:
        super().__init__(log)
        self.before, self.act = before, act

    def _submit(self, submission: Submission) -> "Future[None]":
        if submission.rows[0].type == self.before:
            self.before = ""
            self.act()
        return super()._submit(submission)


def test_an_approval_that_comes_while_the_driver_lets_go_is_acted_on() -> None:
    # given
    inner = MemoryLog()
    log = Interrupted(inner, "driver_detached", lambda: Store(inner, "memory:").approve_sync("r"))
    # when
    result = asyncio.run(Agent(ScriptedModel(PAY), tools=[pay]).run("g", store=Store(log, "memory:"), run_id="r"))
    # then
    assert (result.status, result.answer) == ("completed", "paid")
    check_log(result.records)


def test_a_driver_that_lets_go_leaves_a_run_to_who_took_it_meanwhile() -> None:
    # given
    inner = MemoryLog()

    def take_over() -> None:
        Store(inner, "memory:").approve_sync("r")
        Journal(inner, "r").load().command_sync(lambda run: (f.DriverAttached(epoch=run.epoch + 1, who="another", host="elsewhere"),))

    log = Interrupted(inner, "driver_detached", take_over)
    # when
    result = asyncio.run(Agent(ScriptedModel(PAY), tools=[pay]).run("g", store=Store(log, "memory:"), run_id="r"))
    # then
    assert result.lost
    assert result.run.driver is not None
    assert result.run.driver.who == "another"
    check_log(result.records)


class Held(MemoryLog):
    """Stores at once, and says so only when told."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Future[None] = Future()

    def _submit(self, submission: Submission) -> "Future[None]":
        self._append(submission)
        return self.held


@pytest.mark.parametrize("when", ["before the answer", "with the answer"])
def test_a_cancellation_while_an_append_is_on_its_way_is_met_after_it(when: str) -> None:
    # given
    log = Held()
    journal = Journal(log, "r")
    begin = f.RunStarted(goal="g", setup=Agent(ScriptedModel([])).declared())

    async def command() -> None:
        await journal.command(lambda _run: (begin,))
        await asyncio.sleep(60)

    async def cancelled() -> bool:
        task = asyncio.get_running_loop().create_task(command())
        await asyncio.sleep(0)
        # when
        task.cancel()
        if when == "before the answer":
            await asyncio.sleep(0)
        log.held.set_result(None)
        await asyncio.wait({task}, timeout=5)
        return task.cancelled()

    # then
    assert asyncio.run(cancelled())
    assert journal.run.position == 1


def test_a_run_that_is_parked_at_any_append_ends_as_its_twin() -> None:
    # given
    script = [{"calls": [{"name": "look", "arguments": {"topic": "a"}}]}, {"calls": [{"name": "look", "arguments": {"topic": "b"}}]}, {"text": "done"}]

    def agent() -> Agent:
        return Agent(ScriptedModel(script), tools=[look])

    trial = Trial(agent)
    twin = survive(trial, MemoryLog()).outcome
    for nth in range(1, 6):
        log = MemoryLog()
        # when
        assert asyncio.run(parked(agent(), log, nth)), nth
        survived = survive(trial, log, Fate())
        # then
        assert survived.records[-1].type == "run_completed"
        assert [record.fact.why for record in survived.records if isinstance(record.fact, f.DriverDetached)][:1] == ["parked"]
        assert list(losses(survived, twin)) == [], nth


async def parked(agent: Agent, log: MemoryLog, nth: int) -> bool:
    """Cancel the task that drives a run at its nth append."""
    appends = 0

    class Counted(FaultyLog):
        def _submit(self, submission: Submission) -> "Future[None]":
            nonlocal appends
            appends += 1
            if appends == nth:
                driving.cancel()
            return super()._submit(submission)

    driving = asyncio.get_running_loop().create_task(agent.run("the goal", store=Store(Counted(log), "memory:"), run_id=RUN))
    await asyncio.wait({driving})
    return driving.cancelled()


def test_a_cancelled_driver_that_lost_its_run_is_cancelled_all_the_same() -> None:
    # given
    log = MemoryLog()

    def take_over() -> None:
        Journal(log, RUN).load().command_sync(lambda run: (f.DriverAttached(epoch=run.epoch + 1, who="another", host="elsewhere"),))

    async def cancelled() -> bool:
        model = Endless()
        driving = asyncio.get_running_loop().create_task(Agent(model).run("g", store=Store(log, "memory:"), run_id=RUN))
        await model.asked.wait()
        # when
        take_over()
        driving.cancel()
        await asyncio.wait({driving})
        return driving.cancelled()

    # then
    assert asyncio.run(cancelled())
    run = Journal(log, RUN).load().run
    assert run.driver is not None
    assert run.driver.who == "another"


class Endless:
    """A model that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def stream(self, request: Request) -> AsyncIterator[Part]:
        self.asked.set()
        await asyncio.sleep(60)
        yield Finished(stop_reason="stop")


def test_no_id_comes_twice_in_a_conversation() -> None:
    # given three runs, each going on from the one before, each with a call in its first turn
    store = open_store("memory:")
    model = ScriptedModel([{"calls": [{"name": "note", "arguments": {"n": 1}}]}, {"text": "Noted."}])

    @tool(effect="read")
    def note(n: int) -> int:
        """Notes."""
        return n

    agent = Agent(model=model, tools=[note])
    run = agent.run_sync("Note.", store=store)
    for message in ("Again.", "And again."):
        run = agent.continue_run_sync(run.id, message, store=store)
    # then the last request names every call of the conversation once, each with its result
    messages = model.requests[-1].messages
    calls = [call.id for said in messages for call in said.calls]
    assert calls == ["p.p.t1.1", "p.t1.1", "t1.1"]
    assert [said.call_id for said in messages if said.role == "tool"] == calls
