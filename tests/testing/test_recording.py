"""What a model said is played back as it was said."""

from pathlib import Path
from typing import Any

import pytest

from refold import Agent, Policy, ScriptedModel, open_store, tool
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
    {"text": "done", "citations": ["a"], "usage": {"input_tokens": 40, "output_tokens": 2}},
]


def ran(model: Any) -> Result:
    agent = Agent(model, tools=[look], policy=Policy(max_model_errors=3))
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


def test_a_request_that_was_never_made_is_refused(tmp_path: Path) -> None:
    record(ran(ScriptedModel(SCRIPT)).records[:3], tmp_path / "recording.json")
    assert ran(Recorded(tmp_path / "recording.json")).reason == "provider"


@pytest.mark.parametrize(
    ("agent", "repeatable"),
    [(Agent(ScriptedModel([])), True), (Agent("offline"), True), (Agent(), True), (Agent("openai:gpt"), False), (Agent(object()), False)],
)
def test_only_models_that_are_known_to_say_the_same_are_asked_again(agent: AnyAgent, repeatable: bool) -> None:
    assert is_repeatable(agent) is repeatable
