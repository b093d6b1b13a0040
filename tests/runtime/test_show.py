"""A run can be shown at any position, with the calls of the turn that is going on."""

import pytest

from refold import Agent, Budgets, ScriptedModel, open_store, show
from refold.events import facts as f
from refold.runtime.journal import Journal
from refold.runtime.show import NoPrompt, NoSuchPosition, prompt
from refold.runtime.store import Store, attach
from refold.runtime.tools import Tool


def test_the_calls_of_the_turn_that_is_going_on_are_shown_with_where_they_are(looked: Store) -> None:
    # given every moment of a run
    moments = {record.type: show(looked, "r", record.position) for record in looked.read("r")}
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
def test_a_position_that_the_run_does_not_have_is_said_with_those_it_has(looked: Store, at: int) -> None:
    with pytest.raises(NoSuchPosition, match=rf"run r has no position {at}: it has 1 to \d+"):
        show(looked, "r", at)


@pytest.mark.parametrize("engine", [1, 2])
def test_every_prompt_is_made_again_with_the_digest_that_was_recorded(look: Tool, monkeypatch: pytest.MonkeyPatch, engine: int) -> None:
    # given a run with a question, a failure of the provider, a rejected answer and a last turn without tools; and one that goes on from it
    monkeypatch.setattr("refold.runtime.agent.ENGINE", engine)
    made = open_store("memory:")
    busy = {"error": {"type": "overloaded", "message": "busy", "retryable": True, "retry_after_s": 0}}
    turns = [
        {"calls": [{"name": "look", "arguments": {"at": "north"}}, {"name": "look", "arguments": {"at": 7}}]},
        busy,
        {"text": "cut", "stop_reason": "length"},
    ]
    turns += [{"text": "", "reasoning": "hm"}, {"text": "Seen."}]
    model, following = ScriptedModel(turns), ScriptedModel([{"calls": [{"name": "look", "arguments": {"at": "south"}}]}, {"text": "Seen too."}])
    Agent(model=model, instructions="Be brief.", tools=[look], budgets=Budgets(max_turns=4)).run_sync("Look.", store=made, run_id="r")
    Agent(model=following, tools=[look]).continue_run_sync("r", "And the south?", store=made, new_id="s")
    for run_id, sent in (("r", model.requests), ("s", following.requests)):
        # when each is made again, at the record of the request and at those behind it
        asked = [record for record in made.read(run_id) if record.type == "model_requested"]
        again = [prompt(made, run_id, record.position) for record in asked]
        # then it is what was sent, with the digest that was recorded
        assert [each.request for each in again] == sent
        assert [each.digest for each in again] == [record.data["digest"] for record in asked]
    failed = next(record.position for record in made.read("r") if record.type == "model_failed")
    assert prompt(made, "r", failed).request == model.requests[1]


def test_the_prompt_of_a_stream_is_what_was_asked_whatever_was_reported_since(look: Tool) -> None:
    # given a run whose request is open, with a report and a checkpoint
    made, agent = open_store("memory:"), Agent(tools=[look])
    journal = Journal(made.log, "r")
    journal.command_sync(lambda run: (f.RunStarted(goal="Look.", setup=agent.declared(seed="0")), attach(run)))
    before = prompt(made, "r")
    journal.command_sync(lambda _: (f.StreamCheckpointed(text="so far", usage=f.Usage(input_tokens=900, output_tokens=3)),))
    # then
    assert prompt(made, "r") == before
    assert "200000 tokens" in before.request.notice


def test_where_no_request_is_open_the_prompts_that_were_made_are_named(looked: Store) -> None:
    with pytest.raises(NoPrompt, match=r"requests were made at 3, \d+"):
        prompt(looked, "r")


def test_what_broke_the_prefix_is_shown(look: Tool) -> None:
    made = open_store("memory:")
    turns = [{"calls": [{"name": "look", "arguments": {"at": "north"}}]}, {"text": "Seen."}]
    Agent(model=ScriptedModel(turns), tools=[look], budgets=Budgets(max_turns=2)).run_sync("Look.", store=made, run_id="r")
    (broken,) = show(made, "r")["prefix_breaks"]
    assert (broken["number"], broken["part"]) == (2, "tools")
    assert broken["tokens"] > 0
