"""Somebody speaks, parks or signals in the midst of an effect: what a tool knew by then is kept, and nothing is begun behind it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from refold import Agent, NotPerformed, Policy, ScriptedModel, Store, ToolContext, audit, open_store, replay, tool
from refold.events.codec import Record
from refold.events.log import Row
from refold.runtime.driver import STOPPING
from refold.runtime.result import Result
from refold.runtime.show import show

ACTED: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def store() -> Any:
    ACTED.clear()
    made = open_store("memory:")
    yield made
    for run_id in made.runs():
        assert audit(made, run_id).ok, run_id
        assert replay(made, run_id).divergence is None
    made.close()


async def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.002)


def of(records: list[Record], *types: str) -> list[Record]:
    return [record for record in records if record.type in types]


# -- parked


@tool
def finisher(ctx: ToolContext) -> str:
    """Finishes when it is told to stop."""
    ACTED["begun"] += 1
    ctx.cancelled.wait(20)
    ACTED["finished"] += 1
    return "sent"


@tool
async def afinisher() -> str:
    """Finishes when it is told to stop."""
    ACTED["begun"] += 1
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ACTED["finished"] += 1
    return "sent"


@tool
def polite(ctx: ToolContext) -> str:
    """Stops when it is told to, and knows that it did nothing."""
    ACTED["begun"] += 1
    if ctx.attempt == 1:
        ctx.cancelled.wait(20)
        raise NotPerformed("nothing was sent")
    ACTED["finished"] += 1
    return "sent"


@tool
async def apolite(ctx: ToolContext) -> str:
    """Stops when it is told to, and knows that it did nothing."""
    ACTED["begun"] += 1
    if ctx.attempt == 1:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise NotPerformed("nothing was sent") from None
    ACTED["finished"] += 1
    return "sent"


@tool
def next_one() -> str:
    """Must not be begun by a run that is parked."""
    ACTED["next"] += 1
    return "done"


def parked(store: Store, name: str) -> list[Record]:
    """A run that is parked in the midst of this tool."""

    async def drive() -> None:
        task = asyncio.create_task(agent_of(name).run("x", store=store, run_id="r"))
        await until(lambda: ACTED["begun"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(drive())
    return list(store.read("r"))


def agent_of(name: str) -> Agent:
    turns = [{"calls": [{"name": name, "arguments": {}}, {"name": "next_one", "arguments": {}}]}, {"text": "done"}]
    return Agent(ScriptedModel(turns), tools=[finisher, afinisher, polite, apolite, next_one])


@pytest.mark.parametrize("name", ["finisher", "afinisher"])
def test_a_handler_that_finishes_while_its_run_is_parked_has_its_result(store: Store, name: str) -> None:
    # when
    records = parked(store, name)
    # then its outcome and the end of the driver are one batch, and the next call was not begun
    assert [record.type for record in records[-2:]] == ["tool_succeeded", "driver_detached"]
    assert records[-1].batch == records[-2].position
    assert ACTED == {"begun": 1, "finished": 1}
    # and when it is resumed, it is not run again
    result = agent_of(name).resume_sync("r", store=store)
    assert (result.status, ACTED["begun"], ACTED["next"]) == ("completed", 1, 1)
    assert of(list(result.records), "tool_in_doubt") == []


@pytest.mark.parametrize("name", ["polite", "apolite"])
def test_a_handler_that_did_nothing_when_its_run_was_parked_is_begun_again(store: Store, name: str) -> None:
    records = parked(store, name)
    assert (records[-2].type, records[-2].data["performed"]) == ("tool_failed", "no")
    result = agent_of(name).resume_sync("r", store=store)
    assert (result.status, ACTED["finished"], ACTED["next"]) == ("completed", 1, 1)
    assert of(list(result.records), "tool_in_doubt") == []


# -- settled by a human while the tool is asked


def in_doubt(store: Store, reconcile: Callable[[str], Any], policy: Policy) -> Agent:
    """The run r, whose process died in the midst of a side effect that can be asked about, and its agent."""

    @tool(reconcile=reconcile)
    async def send(to: str) -> str:
        """Sends."""
        ACTED[to] += 1
        return f"sent to {to}"

    turns = [{"calls": [{"name": "send", "arguments": {"to": to}} for to in ("ann", "bob")]}, {"text": "done"}]
    agent = Agent(ScriptedModel(turns), tools=[send], policy=policy)
    whole = open_store("memory:")
    agent.run_sync("x", store=whole, run_id="r")
    begun = next(record.position for record in whole.read("r") if record.type == "tool_started")
    store.log.append("r", 0, [Row(row.position, row.type, row.state) for row in whole.log.read("r", 0, begun)], create=True)
    whole.close()
    ACTED.clear()
    return agent


@pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "tell_model"])
@pytest.mark.parametrize("policy", [Policy(on_doubt="ask"), Policy(on_doubt="tell_model")], ids=lambda policy: policy.on_doubt)
def test_a_human_may_settle_a_doubt_while_the_tool_is_asked_about_it(store: Store, verdict: Any, policy: Policy) -> None:
    # given a tool that is being asked what became of a call
    asked, answered = asyncio.Event(), asyncio.Event()

    async def reconcile(key: str) -> str:
        asked.set()
        await answered.wait()
        return "it was sent"

    agent = in_doubt(store, reconcile, policy)

    async def drive() -> Result:
        task = asyncio.create_task(agent.resume("r", store=store))
        await asked.wait()
        # when a human is faster
        await store.resolve("r", "t1.1", verdict=verdict)
        answered.set()
        return await task

    result = asyncio.run(drive())
    # then the human's word holds, what the tool said is a note, and the run goes on
    assert result.status == "completed"
    assert [record.data["verdict"] for record in of(list(result.records), "doubt_resolved")] == [verdict]
    assert [record.data["by"] for record in of(list(result.records), "late_outcome")] == ["reconcile"]
    assert ({"ann": 1, "bob": 1} if verdict == "did_not_happen" else {"bob": 1}) == ACTED


@pytest.mark.parametrize("policy", [Policy(on_doubt="ask"), Policy(on_doubt="tell_model")], ids=lambda policy: policy.on_doubt)
def test_a_tool_that_cannot_tell_is_no_second_result(store: Store, policy: Policy) -> None:
    result = in_doubt(store, lambda key: None, policy).resume_sync("r", store=store)
    if policy.on_doubt == "ask":
        store.resolve_sync("r", "t1.1", verdict="tell_model")
        result = in_doubt(open_store("memory:"), lambda key: None, policy).resume_sync("r", store=store)
    assert result.status == "completed"
    assert audit(store, "r").ok


def test_what_a_tool_says_of_a_call_is_shown_as_its_own_word(store: Store) -> None:
    in_doubt(store, lambda key: "it was sent", Policy()).resume_sync("r", store=store)
    observed = next(each for each in show(store, "r")["observations"] if each["call_id"] == "t1.1")
    assert (observed["ok"], observed["data"], observed["performed"], observed["source"]) == (True, "it was sent", "yes", "tool")


def test_a_call_that_a_lost_process_had_begun_is_not_said_to_have_never_run(store: Store) -> None:
    # given a run whose process died while an idempotent call ran
    @tool(effect="idempotent")
    def put(n: int) -> str:
        """Puts."""
        return "there"

    turns = [{"calls": [{"name": "put", "arguments": {"n": n}} for n in (1, 2)]}, {"text": "done"}]
    whole = open_store("memory:")
    Agent(ScriptedModel(turns), tools=[put]).run_sync("x", store=whole, run_id="r")
    begun = next(record.position for record in whole.read("r") if record.type == "tool_started")
    store.log.append("r", 0, [Row(row.position, row.type, row.state) for row in whole.log.read("r", 0, begun)], create=True)
    whole.close()
    # when it is cancelled
    store.cancel_sync("r", who="ann")
    # then the model is told which call may have run, and which did not
    first, second = (record.data["message"] for record in of(list(store.read("r")), "tool_closed"))
    assert first == "the run was cancelled by ann; the process that ran this call is gone, and what became of it is unknown"
    assert second == "the run was cancelled by ann before this call ran"


# -- told to stop


def test_nothing_is_begun_once_whoever_drives_was_told_to_stop(store: Store) -> None:
    # given a driver that is told to stop while a call runs, and somebody who is slow to say so in the log
    stopping: list[bool] = []

    @tool
    async def first() -> str:
        """Runs while the signal comes."""
        stopping.append(True)
        return "done"

    turns = [{"calls": [{"name": "first", "arguments": {}}, {"name": "next_one", "arguments": {}}]}, {"text": "done"}]
    agent = Agent(ScriptedModel(turns), tools=[first, next_one])

    async def drive() -> Result:
        STOPPING.set(lambda: bool(stopping))
        task = asyncio.create_task(agent.run("x", store=store, run_id="r"))
        await until(lambda: of(list(store.read("r")), "tool_succeeded") if store.log.head("r") else None)
        # when it says so at last
        await store.cancel("r", "told to")
        return await task

    result = asyncio.run(drive())
    # then the call that was next was never run
    assert (result.status, ACTED["next"]) == ("cancelled", 0)
