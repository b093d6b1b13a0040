"""Limits: a run that reaches one says which, keeps what it has, and nobody gets past one by pausing."""

import asyncio
import json
from typing import Any

import pytest

from refold import Agent, Budgets, fold, tool
from refold.runtime import ports as p
from refold.runtime.cli.main import perform


@tool(effect="read")
def look(at: int) -> str:
    """Look."""
    return f"saw {at}"


def looks(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"calls": [{"name": "look", "arguments": {"at": n}}], "usage": {"input_tokens": 100, "output_tokens": 10}, "cost_usd": "0.01"}
        for n in range(first, first + count)
    ]


def test_B081_a_run_out_of_turns_is_no_success_and_says_why(stage, results_of):
    # given a limit of four turns and a model that would need six
    # when
    result = stage.play([*looks(1, 5), {"text": "done"}], [look], budgets=Budgets(max_turns=4))
    # then it stopped at a limit, with its name, its value and the count
    assert (result.status, result.reason, result.answer, result.turns) == ("stopped", "max_turns", None, 4)
    assert "limit of 4 turns is reached" in result.detail
    # and every call has its result, the work so far is there
    results = results_of(result)
    assert [kind for kind, _ in results.values()] == ["success", "success", "success", "limit_reached"]
    assert results["t3.1"][1] == "saw 3"


def test_B081_a_run_out_of_calls_is_no_success_either(stage, results_of):
    # given a limit of two calls
    # when the model goes on calling
    result = stage.play(looks(1, 12), [look], budgets=Budgets(max_tool_calls=2))
    # then it is told once, and then the run stops with that limit
    assert (result.status, result.reason, result.answer) == ("stopped", "max_tool_calls", None)
    assert "limit of 2 tool calls is reached" in result.detail
    assert [kind for kind, _ in results_of(result).values()] == ["success", "success", "limit_reached", "limit_reached"]


def test_B081_on_the_command_line_the_exit_code_is_one_of_its_own(tmp_path, monkeypatch, capsys):
    # given the same on the command line: four turns, and a model that would need six
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.json"
    calls = [{"calls": [{"name": "calculate", "arguments": {"expression": f"{n} + 1"}}]} for n in range(6)]
    script.write_text(json.dumps([*calls, {"text": "done"}]))
    # when
    code = perform(["run", "Count.", "--model", f"script:{script}", "--max-turns", "4", "--json", "--quiet", "--run-id", "r"])
    result = json.loads(capsys.readouterr().out)
    # then it is neither success nor failure, the limit is named, and the work so far can be listed
    assert code == 5
    assert (result["status"], result["reason"], result["answer"], result["turns"]) == ("stopped", "max_turns", None, 4)
    perform(["show", "r", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert [observed["ok"] for observed in shown["observations"]] == [True, True, True, False]


def test_B083_before_the_ceiling_the_model_may_conclude_from_what_it_has(stage):
    # given three turns, and a model that answers where no tools are offered
    # when
    result = stage.play([*looks(1, 2), {"text": "what I know so far"}], [look], budgets=Budgets(max_turns=3))
    # then the last request has no tools and says so, it is within the limit, and the answer is marked
    requests = stage.requests()
    assert [bool(request.tools) for request in requests] == [True, True, False]
    assert "last turn" in requests[-1].notice
    assert (result.status, result.answer, result.turns) == ("completed", "what I know so far", 3)
    assert result.detail == "answered in the last turn that the budget allowed"


def test_B083_a_call_in_the_last_turn_is_not_executed(stage, results_of):
    # given a model that calls where no tools are offered
    # when
    result = stage.play(looks(1, 3), [look], budgets=Budgets(max_turns=3))
    # then that call has a result of its own kind, and the run stopped at the limit within its turns
    assert results_of(result)["t3.1"][0] == "limit_reached"
    assert (result.status, result.reason, result.turns, result.tool_calls) == ("stopped", "max_turns", 3, 2)


class Pausing:
    """A scripted model during which the run is parked, once in each of the turns given."""

    spec = "pausing"

    def __init__(self, inner: Any, pauses: set[int]) -> None:
        self.inner, self.pauses = inner, pauses
        self.running: asyncio.Task[Any] | None = None

    async def stream(self, request: p.Request) -> Any:
        if request.turn in self.pauses:
            self.pauses.discard(request.turn)
            assert self.running is not None
            self.running.cancel()
            await asyncio.Event().wait()
        async for part in self.inner.stream(request):
            yield part


def run_until_paused(agent: Agent, store: Any, run_id: str, *, begin: bool) -> Any:
    """Drive a run in a task that may be cancelled; gives the result where the run ends."""

    async def drive() -> Any:
        task = agent.model.running = asyncio.ensure_future(agent.run("Do it.", store=store, run_id=run_id) if begin else agent.resume(run_id, store=store))
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    return asyncio.run(drive())


@pytest.mark.parametrize("pauses", [set(), {3}, {2, 3, 4}, {1, 2, 3, 4, 5}], ids=str)
def test_B084_pausing_and_resuming_gets_nobody_past_a_limit(stage, pauses, twin):
    # given five turns, a model that would go on for ever, and pauses in between
    model = stage.scripted(looks(1, 50))
    agent = Agent(model=Pausing(model, set(pauses)), tools=[look], budgets=Budgets(max_turns=5))
    # when it is resumed after each pause
    result = run_until_paused(agent, stage.store, "r", begin=True)
    resumed = 0
    while result is None:
        resumed += 1
        result = run_until_paused(agent, stage.store, "r", begin=False)
    # then there were five requests over all, the sums are those of the recorded responses, and turns are counted through
    assert resumed == len(pauses)
    assert (result.status, result.reason) == ("stopped", "max_turns")
    assert [request.number for request in model.requests] == [1, 2, 3, 4, 5]
    assert result.usage["reported"]["input_tokens"] == 500
    assert result.usage["cost_usd"] == "0.05"
    turns = [record.turn for record in result.records if record.type == "tool_calls_requested"]
    assert turns == [1, 2, 3, 4, 5]


def test_B084_a_token_budget_holds_over_all_processes(stage):
    # given a budget of tokens for three responses
    model = stage.scripted(looks(1, 50))
    agent = Agent(model=Pausing(model, {2, 3}), tools=[look], budgets=Budgets(max_tokens=600, max_output_tokens=10, max_turns=None))
    # when
    result = run_until_paused(agent, stage.store, "r", begin=True)
    while result is None:
        result = run_until_paused(agent, stage.store, "r", begin=False)
    # then
    run = fold(stage.store.read("r"))
    assert (result.status, result.reason) == ("stopped", "max_tokens")
    assert run.spent.reported.total == 110 * len(model.requests)
    assert run.spent.tokens <= 600
