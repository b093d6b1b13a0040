"""Budgets: they hold while a response streams, exactly where they end, and where nobody knows what a model costs."""

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest

from refold import Agent, Budgets, Policy, open_store, tool
from refold.events import facts as f
from refold.runtime import ports as p
from refold.runtime.agent import UnknownPrice


class Endless:
    """A model that never stops talking, and counts what it was allowed to say."""

    spec = "endless"

    def __init__(self, pause_s: float = 0) -> None:
        self.pause_s, self.said, self.closed = pause_s, 0, False
        self.requests: list[p.Request] = []

    async def stream(self, request: p.Request) -> Any:
        self.requests.append(request)
        try:
            while True:
                self.said += 1
                yield p.TextDelta(text="word")
                await asyncio.sleep(self.pause_s)
        finally:
            self.closed = True


@pytest.mark.parametrize("what", ["tokens", "time"])
def test_B095_a_budget_that_runs_out_in_the_middle_of_a_reply_closes_it(stage, what):
    # given a thousand tokens, or a tenth of a second, and an endless reply
    model = Endless(0 if what == "tokens" else 0.001)
    stage.models.append(model)
    budgets = Budgets(max_tokens=1_000) if what == "tokens" else Budgets(timeout_s=0.1)
    # when
    result = Agent(model=model, budgets=budgets).run_sync("Do it.", store=stage.store, run_id="r")
    # then the stream is closed soon behind the limit, with the text so far, and nothing more is asked
    assert (result.status, result.reason) == ("stopped", "max_tokens" if what == "tokens" else "timeout_s")
    assert model.closed
    assert len(model.requests) == 1
    (cut,) = [record.fact for record in result.records if isinstance(record.fact, f.ModelInterrupted)]
    assert cut.text == "word" * model.said or cut.text == "word" * (model.said - 1)
    spent = result.run.spent
    assert spent.tokens <= 1_000 * 1.05 if what == "tokens" else spent.active_us < 1_000_000
    assert spent.estimated.output_tokens == len(cut.text) // 4


def test_B095_a_budget_of_time_that_runs_out_in_a_tool_stops_it(stage, results_of):
    # given a tool that takes longer than there is
    @tool(effect="read")
    async def work() -> str:
        """Works."""
        await asyncio.sleep(60)
        return "done"

    # when
    result = stage.play([{"calls": [{"name": "work"}]}, {"text": "done"}], [work], budgets=Budgets(timeout_s=0.1))
    # then it is stopped as by its own limit, and nothing more is asked
    assert (result.status, result.reason) == ("stopped", "timeout_s")
    assert results_of(result)["t1.1"][0] == "timeout"
    assert len(stage.requests()) == 1


def turns(usage: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"calls": [{"name": "look", "arguments": {"at": n}}], "usage": usage, **more} for n in range(9)]


@tool(effect="read")
def look(at: int) -> str:
    """Look."""
    return f"saw {at}"


@pytest.mark.parametrize(
    ("budgets", "reason"),
    [
        ({"max_turns": 3}, "max_turns"),
        ({"max_tokens": 3 * 1_000, "max_output_tokens": 1}, "max_tokens"),
        ({"max_cost_usd": "0.3"}, "max_cost_usd"),
    ],
)
def test_B096_what_is_used_up_to_the_last_unit_is_used_up(stage, budgets, reason):
    # given responses that use exactly a third of each budget, in amounts that a float cannot add
    script = turns({"input_tokens": 10, "output_tokens": 990}, cost_usd="0.1")
    # when
    result = stage.play(script, [look], budgets=Budgets(**budgets), policy=Policy(wrap_up=False))
    # then the third is the last, whatever is counted
    assert (result.status, result.reason) == ("stopped", reason)
    assert len(stage.requests()) == 3
    assert result.usage["cost_usd"] == "0.3"


@pytest.mark.parametrize("proposed", [8, 200])
def test_B097_of_a_batch_that_is_larger_than_the_allowance_the_first_calls_run(stage, results_of, proposed):
    # given six calls, and a model that asks for more at once
    calls = [{"name": "look", "arguments": {"at": n}} for n in range(proposed)]
    # when
    result = stage.play([{"calls": calls}, {"text": "done"}], [look], budgets=Budgets(max_tool_calls=6))
    # then six run, in order, and each of the others has a result of its own
    kinds = [kind for kind, _ in results_of(result).values()]
    assert kinds == ["success"] * 6 + ["limit_reached"] * (proposed - 6)
    assert (result.status, result.tool_calls) == ("completed", 6)


def test_B099_an_unknown_price_is_not_free(stage, monkeypatch):
    # given a list of prices without this model, and one where it costs nothing
    listed: dict[str, f.Price] = {}
    prices = ModuleType("refold.runtime.prices")
    prices.price_of = lambda spec, *_: listed.get(spec)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, prices.__name__, prices)
    model = stage.scripted([{"text": "done"}] * 3)
    model.priced, model.spec = True, "somebody:something"
    agent = Agent(model=model, budgets=Budgets(max_cost_usd="1"))
    # when it is unknown, then nothing begins
    with pytest.raises(UnknownPrice, match="the price of somebody:something is not known"):
        agent.run_sync("Do it.", store=open_store("memory:"))
    assert model.requests == []
    # when it is nothing, then the run costs nothing, and the price is with it
    listed["somebody:something"] = f.Price(input="0", output="0", source="a list of today")
    result = agent.run_sync("Do it.", store=stage.store, run_id="r")
    assert (result.status, result.usage["cost_usd"]) == ("completed", "0")
    (begun,) = [record.fact for record in result.records if isinstance(record.fact, f.RunStarted)]
    assert begun.setup.price == listed["somebody:something"]


HALF = [p.TextDelta(text="Half of the ")]
CUT = {
    "after half of the text": (HALF, False),
    "in the middle of a call": ([*HALF, p.ToolCallOpened(index=0, name="look"), p.ArgumentsDelta(index=0, text='{"at": ')], False),
    "behind a call that looks whole": ([p.ToolCallReady(index=0, name="look", arguments='{"at": 1}')], False),
    "behind its reason to stop": ([p.TextDelta(text="All of it."), p.Finished(stop_reason="stop")], True),
}


@pytest.mark.parametrize("where", CUT)
def test_B108_a_stream_that_simply_ends_is_done_only_where_it_said_so(stage, where):
    # given a stream that ends cleanly in several places, and is whole the second time
    parts, whole = CUT[where]

    class Cut:
        spec = "cut"

        def __init__(self) -> None:
            self.requests: list[p.Request] = []

        async def stream(self, request: p.Request) -> Any:
            self.requests.append(request)
            for part in parts if request.number == 1 else (p.TextDelta(text="All of it."), p.Finished(stop_reason="stop")):
                yield part

    model = Cut()
    stage.models.append(model)
    # when
    result = Agent(model=model, tools=[look]).run_sync("Do it.", store=stage.store)
    # then it was done, or it is a failed attempt that may be made again, and nothing of it runs
    assert (result.answer, result.tool_calls) == ("All of it.", 0)
    failed = [record.fact for record in result.records if isinstance(record.fact, f.ModelFailed)]
    assert [each.error.type for each in failed] == ([] if whole else ["stream_broken"])
    assert all(each.error.retryable and each.error.mid_stream for each in failed)
    assert len(model.requests) == (1 if whole else 2)
