"""What a model said is played back as it was said."""

from pathlib import Path
from typing import Any

import pytest

from refold import Agent, Budgets, Context, Policy, ScriptedModel, ToolResult, open_store, tool
from refold.events import facts as f
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.result import Result
from refold.testing.checks import transcript_of
from refold.testing.recording import Recorded, is_repeatable, record


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


SCRIPT: list[dict[str, Any]] = [
    {"calls": [{"name": "look", "arguments": {"at": "north"}, "id": "call_7"}], "text": "first north", "reasoning": "why not", "rationale": "to see"},
    {"error": {"type": "overloaded", "message": "come back later", "retryable": True, "retry_after_s": 0}},
    {"text": ""},
    {"calls": [{"name": "look", "arguments": "{"}], "usage": {"input_tokens": 30, "output_tokens": 5, "cached_input_tokens": 10}, "cost_usd": "0.02"},
    {"calls": [{"name": "look", "arguments": {"at": "south"}}], "stop_reason": "length"},
    {"calls": [{"name": "look", "arguments": {"at": "west"}}], "usage": {"output_tokens": 3}},
    {"text": "done", "citations": ["a"], "usage": {"input_tokens": 40, "output_tokens": 2}},
]


def ran(model: Any, tools: Any = (look,), **more: Any) -> Result:
    agent = Agent(model, tools=list(tools), policy=Policy(max_model_errors=3), **more)
    return agent.run_sync("the goal", store=open_store("memory:"))


def test_a_recorded_run_comes_out_the_same_when_it_is_played_back(tmp_path: Path) -> None:
    # given a run with a bit of everything
    first = ran(ScriptedModel(SCRIPT))
    record(first.records, tmp_path / "recording.json")
    # when its model is played back
    again = ran(Recorded(tmp_path / "recording.json"))
    # then
    assert (again.status, again.answer, again.usage, again.turns) == (first.status, first.answer, first.usage, first.turns)
    assert transcript_of(again.records) == transcript_of(first.records)
    assert [record.type for record in again.records] == [record.type for record in first.records]


@tool(effect="read")
def page(n: int) -> ToolResult:
    """Reads a page."""
    return ToolResult(data="x" * 2_000, notes=[f"page {n} is long"])


def pages(*numbers: int) -> dict[str, Any]:
    return {"calls": [{"name": "page", "arguments": {"n": n}} for n in numbers]}


@pytest.mark.parametrize(
    "summary",
    [
        {"text": "Two pages were read."},
        {"text": "Two pages were read.", "usage": {"input_tokens": 70, "output_tokens": 7}},
        {"error": {"type": "server_error", "message": "no: not now", "retryable": True}},
        {"refusal": "I will not."},
        {"text": ""},
        pages(9),
    ],
    ids=["a summary", "a summary with its usage", "a failure", "a refusal", "nothing", "a call"],
)
def test_a_summary_by_the_model_is_played_back_too(tmp_path: Path, summary: dict[str, Any]) -> None:
    # given a run whose model is asked for a summary, with notes beside it
    script = [pages(1, 2), pages(3, 4), pages(5, 6), summary, {"text": "done"}]
    settings: dict[str, Any] = {
        "tools": [page],
        "budgets": Budgets(max_cost_usd=None, max_tokens=None),
        "context": Context(window_tokens=4_000, compaction="model"),
    }
    first = ran(ScriptedModel(script), **settings)
    (compacted,) = [each.fact for each in first.records if isinstance(each.fact, f.ContextCompacted)]
    assert (compacted.author, bool(compacted.error)) == ("model", summary.get("text") != "Two pages were read.")
    record(first.records, tmp_path / "recording.json")
    # when its model is played back
    again = ran(Recorded(tmp_path / "recording.json"), **settings)
    # then the summary is the same, and so is everything else
    (made,) = [each.fact for each in again.records if isinstance(each.fact, f.ContextCompacted)]
    assert (made.summary, made.error, made.usage) == (compacted.summary, compacted.error, compacted.usage)
    assert [each.type for each in again.records] == [each.type for each in first.records]
    assert (again.answer, again.usage) == (first.answer, first.usage) == ("done", first.usage)


def test_a_request_that_was_never_made_is_refused(tmp_path: Path) -> None:
    record(ran(ScriptedModel(SCRIPT)).records[:3], tmp_path / "recording.json")
    assert ran(Recorded(tmp_path / "recording.json")).reason == "provider"


@pytest.mark.parametrize(
    ("agent", "repeatable"),
    [(Agent(ScriptedModel([])), True), (Agent("offline"), True), (Agent(), True), (Agent("openai:gpt"), False), (Agent(object()), False)],
)
def test_only_models_that_are_known_to_say_the_same_are_asked_again(agent: AnyAgent, repeatable: bool) -> None:
    assert is_repeatable(agent) is repeatable
