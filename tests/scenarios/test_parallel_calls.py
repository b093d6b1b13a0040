"""Parallel calls: each has its own outcome, recorded when it comes and shown in the order of the calls."""

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from refold import Policy, tool
from refold.events.codec import Record


def test_B024_a_failing_call_takes_nothing_from_its_siblings(stage, results_of):
    # given three calls at once: the second fails first, and the others are ready after that, one behind the other
    ran: Counter[str] = Counter()
    recorded = {"A": asyncio.Event(), "B": asyncio.Event()}

    @tool(effect="read", concurrent=True)
    async def work(name: str) -> str:
        """Works."""
        ran[name] += 1
        if name == "B":
            raise ValueError("B is broken")
        await recorded["B" if name == "A" else "A"].wait()
        return f"{name} is done"

    def hear(what: Any) -> None:
        if isinstance(what, Record) and what.type in ("tool_failed", "tool_succeeded"):
            recorded.get({"t1.1": "A", "t1.2": "B"}.get(what.call or "", ""), asyncio.Event()).set()

    agent = stage.agent([{"calls": [{"name": "work", "arguments": {"name": name}} for name in "ABC"]}, {"text": "done"}], [work])
    # when
    result = asyncio.run(agent.run("Do it.", store=stage.store, heard=hear))
    # then each ran once, the model sees all three in its own order, and goes on
    assert ran == {"A": 1, "B": 1, "C": 1}
    results = results_of(result)
    assert list(results) == ["t1.1", "t1.2", "t1.3"]
    assert results["t1.1"] == ("success", "A is done")
    assert results["t1.2"][0] == "execution_failed"
    assert "B is broken" in results["t1.2"][1]["message"]
    assert results["t1.3"] == ("success", "C is done")
    assert (result.status, result.answer) == ("completed", "done")
    # and the log has them as they came
    ended = [record.call for record in result.records if record.type in ("tool_succeeded", "tool_failed")]
    assert ended == ["t1.2", "t1.1", "t1.3"]


class Unspeakable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("error", [ValueError(), TimeoutError(), Unspeakable()], ids=["without a text", "a timeout of its own", "without words"])
def test_B026_an_error_names_its_call_its_tool_and_itself(stage, results_of, error, is_async):
    # given a tool that fails without a word, beside a good one
    def fail() -> str:
        """Fails."""
        raise error

    async def fail_async() -> str:
        """Fails."""
        raise error

    broken = tool(effect="read", concurrent=True, name="fail")(fail_async if is_async else fail)

    @tool(effect="read", concurrent=True)
    def work() -> str:
        """Works."""
        return "worked"

    # when both are called at once
    result = stage.play([{"calls": [{"name": "fail", "id": "a"}, {"name": "work", "id": "b"}]}, {"text": "done"}], [broken, work])
    # then each result is its own call's, and the failing one says what it was
    told = [message for message in stage.requests()[-1].messages if message.role == "tool"]
    assert [(message.call_id, message.name, message.kind) for message in told] == [("t1.1", "fail", "execution_failed"), ("t1.2", "work", "success")]
    assert type(error).__name__ in told[0].content["message"]
    assert told[1].content == "worked"
    assert result.status == "completed"


def test_B027_results_reach_the_model_in_the_order_of_its_calls_however_they_end(stage):
    # given calls that take as long as chance has it, one of them refused before any begins
    chance = random.Random(27)
    waits: list[int] = []

    @tool(effect="read", concurrent=True)
    async def work(name: str) -> str:
        """Works."""
        for _ in range(waits.pop()):
            await asyncio.sleep(0)
        return f"{name} is done"

    def never(arguments: dict[str, Any]) -> bool:
        raise PermissionError("not this one")

    @tool(approval=never)
    def forbidden() -> str:
        """Is forbidden."""
        raise AssertionError

    calls = [
        {"name": "work", "arguments": {"name": "slow"}},
        {"name": "forbidden"},
        *({"name": "work", "arguments": {"name": name}} for name in ("fast", "last")),
    ]
    requests, orders = set(), set()
    # when it is run twenty times
    for _ in range(20):
        waits[:] = [chance.randrange(0, 60, 10) for _ in range(3)]
        result = stage.play([{"calls": calls}, {"text": "done"}], [work, forbidden], policy=Policy(parallel_tools=3))
        requests.add(tuple(msgspec.json.encode(request) for request in stage.requests()))
        orders.add(tuple(record.call for record in result.records if record.type == "tool_succeeded"))
        told = [message.call_id for message in stage.requests()[-1].messages if message.role == "tool"]
        assert told == ["t1.1", "t1.2", "t1.3", "t1.4"]
    # then they ended in several orders, and every request was the same, byte for byte
    assert len(orders) > 1
    assert len(requests) == 1
