"""The history that is sent: nothing empty, nothing twice, and the same after any number of pauses."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from refold import Agent, fold, tool
from refold.runtime import ports as p
from refold.runtime.cli.main import perform


@tool(effect="read")
def look(at: int) -> str:
    """Look."""
    return f"saw {at}"


REPLIES: dict[str, dict[str, Any]] = {
    "calls only": {"calls": [{"name": "look", "arguments": {"at": 1}}]},
    "calls and blank": {"text": " \n", "calls": [{"name": "look", "arguments": {"at": 1}}]},
    "empty": {"text": ""},
    "blank": {"text": "  \n "},
    "reasoning only": {"reasoning": "Hm."},
    "cut to nothing": {"text": "", "stop_reason": "length"},
}


@pytest.mark.parametrize("case", REPLIES)
def test_B115_empty_text_is_never_sent_back(stage, case):
    # given a reply without text, in each way there is (the strict provider looks at every request when the scenario ends)
    # when the model then answers
    result = stage.play([REPLIES[case], {"text": "done"}], [look])
    # then the second request has no blank message, live and reloaded
    assert result.answer == "done"
    for message in stage.requests()[1].messages:
        assert message.role == "tool" or message.text.strip() or (message.calls and message.text == "")


def test_B115_an_empty_reply_without_calls_is_no_silent_success(stage):
    # given a model that says nothing at all, until it is told
    # when
    result = stage.play([{"text": ""}] * 3)
    # then it is an outcome of its own
    assert (result.status, result.reason, result.answer) == ("failed", "max_model_errors", None)
    observed = [record for record in result.records if record.type == "model_error_observed"]
    assert [record.data["kind"] for record in observed] == ["invalid_turn"] * 3


BLANK = ["", "  ", "\u200b", "\n\t", "\u2060\ufeff", "\x00"]


@pytest.mark.parametrize("text", BLANK)
def test_B116_blank_input_is_refused_and_nothing_is_stored(stage, text):
    # given an agent and a run that waits for an answer
    agent = stage.agent([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "done"}])
    waiting = agent.run_sync("Do it.", store=stage.store)
    # when somebody sends nothing: as a goal, as a message, as an answer
    with pytest.raises(ValueError, match="empty"):
        agent.run_sync(text, store=stage.store)
    with pytest.raises(ValueError, match="empty"):
        stage.store.say_sync(waiting.id, text)
    with pytest.raises(ValueError, match="empty"):
        stage.store.answer_sync(waiting.id, text)
    # then nothing was appended, and a real answer works after it
    assert stage.store.runs() == [waiting.id]
    assert fold(stage.store.read(waiting.id)).position == waiting.position
    stage.store.answer_sync(waiting.id, "this one")
    assert agent.resume_sync(waiting.id, store=stage.store).status == "completed"


@pytest.mark.parametrize("text", BLANK[:3])
def test_B116_the_command_line_refuses_it_too(tmp_path, monkeypatch, capsys, text):
    # given a run on the command line that waits
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "done"}]))
    assert perform(["run", "Do it.", "--model", f"script:{script}", "--no-input", "--quiet", "--run-id", "r"]) == 3
    capsys.readouterr()
    # when nothing is typed, for each of the words that a human may say
    codes = [perform(["run", text, "--model", f"script:{script}", "--quiet"]), perform(["say", "r", text]), perform(["answer", "r", text])]
    said = capsys.readouterr().err
    # then each is one line and bad input, and the run can go on
    assert codes == [2, 2, 2]
    assert said.count("empty") == 3
    assert "Traceback" not in said
    assert perform(["answer", "r", "this", "--resume", "--quiet"]) == 0


def test_B117_the_history_does_not_grow_by_being_resumed(stage, twin):
    # given a run that is parked in five of its turns, and one that is not
    turns = [{"calls": [{"name": "look", "arguments": {"at": n}}]} for n in range(6)] + [{"text": "done"}]
    paused, straight = stage.store, stage.another_store()
    model = stage.scripted(turns)

    class Pausing:
        spec = "script"

        def __init__(self) -> None:
            self.pauses = {2, 3, 4, 5, 6}
            self.running: Any = None

        async def stream(self, request: p.Request) -> Any:
            if request.turn in self.pauses:
                self.pauses.discard(request.turn)
                self.running.cancel()
                await asyncio.Event().wait()
            async for part in model.stream(request):
                yield part

    pausing = Pausing()
    agent = Agent(model=pausing, tools=[look])

    async def drive(begin: bool) -> bool:
        task = pausing.running = asyncio.ensure_future(agent.run("Do it.", store=paused, run_id="r") if begin else agent.resume("r", store=paused))
        await asyncio.wait({task})
        return not task.cancelled()

    # when each is driven to its end
    sittings = 1
    ended = asyncio.run(drive(True))
    while not ended:
        sittings += 1
        ended = asyncio.run(drive(False))
    other = stage.agent(turns, [look])
    other.run_sync("Do it.", store=straight, run_id="r")
    # then all their requests are the same
    assert sittings == 6
    # but that the budget of the paused one is less by what its interrupted requests may have used
    alike = [[msgspec.structs.replace(request, notice="") for request in each.requests] for each in (model, other.model)]
    assert alike[0] == alike[1]
    assert len(model.requests[-1].messages) == 1 + 2 * 6


def test_B117_a_message_that_was_taken_is_not_taken_again(stage):
    # given a run that waits, and a client that sends its message and its answer again with every reconnect
    agent = stage.agent([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "done"}])
    waiting = agent.run_sync("Do it.", store=stage.store)
    for _ in range(5):
        stage.store.say_sync(waiting.id, "be quick", command_id="m1")
    first = stage.store.answer_sync(waiting.id, "this one", command_id="a1")
    for _ in range(5):
        again = stage.store.answer_sync(waiting.id, "this one", command_id="a1")
        assert (again.position, again.again) == (first.position, True)
    # when it goes on
    result = agent.resume_sync(waiting.id, store=stage.store)
    # then each is in the history once, behind the results
    messages = stage.requests()[-1].messages
    assert [message.text for message in messages if message.role == "user"] == ["Do it.", "be quick"]
    assert [record.type for record in result.records].count("user_said") == 1
    # and resuming what has ended appends nothing
    assert agent.resume_sync(waiting.id, store=stage.store).position == result.position
