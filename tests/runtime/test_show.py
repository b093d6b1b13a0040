"""A run can be shown at any position, with the calls of the turn that is going on."""

import pytest

from refold import Agent, ScriptedModel, open_store, show, tool
from refold.runtime.show import NoSuchPosition
from refold.runtime.store import Store


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


@pytest.fixture
def store() -> Store:
    made = open_store("memory:")
    script = [{"calls": [{"name": "look", "arguments": {"at": "north"}}, {"name": "nosuch"}]}, {"text": "Seen."}]
    Agent(model=ScriptedModel(script), tools=[look]).run_sync("Look.", store=made, run_id="r")
    return made


def test_the_calls_of_the_turn_that_is_going_on_are_shown_with_where_they_are(store: Store) -> None:
    # given every moment of a run
    moments = {record.type: show(store, "r", record.position) for record in store.read("r")}
    # then each call is there from its proposal until its result is in the transcript
    phases = {name: [call["phase"] for call in moment["calls"]] for name, moment in moments.items()}
    assert phases["tool_calls_requested"] == ["proposed", "proposed"]
    assert phases["tool_rejected"] == ["proposed", "unknown_tool"]
    assert phases["tool_started"] == ["started", "unknown_tool"]
    assert phases["tool_succeeded"] == ["success", "unknown_tool"]
    assert phases["tool_results_injected"] == phases["run_completed"] == []
    # and each says which record it stands at
    assert all(moment["record"] == name for name, moment in moments.items())


@pytest.mark.parametrize("at", [0, -1, 99])
def test_a_position_that_the_run_does_not_have_is_said_with_those_it_has(store: Store, at: int) -> None:
    with pytest.raises(NoSuchPosition, match=rf"run r has no position {at}: it has 1 to \d+"):
        show(store, "r", at)
