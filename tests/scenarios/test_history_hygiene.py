"""The history that is sent: nothing empty, nothing twice, and the same after any number of pauses."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from refold import Agent, fold, show, tool
from refold.runtime import ports as p
from refold.runtime.cli.main import perform
from refold.runtime.transfer import export_lines, import_file, parse
from refold.testing.replies import APIS, Api, chunk, event

CHAT, RESPONSES, MESSAGES = APIS.values()


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


LOOKS = ("a", "look", ['{"at": 1}'])


def block(index: int, made: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    """One block of a message, as Anthropic streams it."""
    streamed = [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return [event("content_block_start", index=index, content_block=made), *streamed, event("content_block_stop", index=index)]


def beside_calls(api: Api, text: str) -> list[bytes]:
    """A reply with this text in front of a call."""
    whole = api.calls(LOOKS)
    if api is CHAT:
        return [chunk({"role": "assistant", "content": text}), *whole]
    if api is RESPONSES:
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": text}]}
        said = [
            event("response.output_item.added", output_index=9, item={**item, "content": []}),
            event("response.output_text.delta", output_index=9, content_index=0, item_id="m1", delta=text),
            event("response.output_item.done", output_index=9, item=item),
        ]
        return [whole[0], *said, *whole[1:]]
    return [*whole[:2], *block(9, {"type": "text", "text": ""}, {"type": "text_delta", "text": text}), *whole[2:]]


SAID = {
    "calls only": lambda api: api.calls(LOOKS),
    "calls beside nothing": lambda api: beside_calls(api, ""),
    "calls beside blank": lambda api: beside_calls(api, " \n"),
    "calls beside text with blanks behind it": lambda api: beside_calls(api, "I look. \n"),
    "empty": lambda api: api.text(""),
    "no piece of a text": lambda api: api.text(),
    "blank": lambda api: api.text("  \n "),
}


@pytest.mark.parametrize("case", SAID)
def test_B115_no_provider_is_sent_an_empty_text_live_or_after_a_reload(wire, api, case):
    # given a reply without text over the wire (the strict provider looks at every request when the scenario ends), another of the kind, and an answer
    agent = wire.agent(api, [look])
    wire.says(SAID[case](api), SAID[case](api), api.text("Done. \n"))
    # when the run is driven to its end
    result = agent.run_sync("Do it.", store=wire.stage.store, run_id="r")
    live = [heard.body for heard in wire.requests]
    assert (result.status, len(live)) == ("completed", 3)
    # and again from where each request was made and lost, from the log alone
    made = [record.position for record in result.records if record.type == "model_requested"]
    for number, position in enumerate(made):
        wire.says(api.text("Done."))
        assert agent.resume_sync("r", store=wire.stage.cut("r", position)).answer == "Done."
        # then it asks, byte for byte, what was asked live
        assert wire.requests[-1].body == live[number]
    # and whoever goes on from the end asks what the strict provider takes, too
    wire.says(api.text("Done again."))
    assert agent.continue_run_sync("r", "And now?", store=wire.stage.store).answer == "Done again."


def test_B115_a_request_never_ends_with_a_blank_of_the_model(wire):
    # given a provider that pauses behind a search of its own and a text that ends in a blank
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    reply = MESSAGES.text("x", stop="pause_turn")
    said = block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "It may rain. \n"})
    wire.says([*reply[:2], *block(0, use), *block(1, found), *said, *reply[-2:]], MESSAGES.text("It rains."))
    # when it goes on from there
    result = wire.agent(MESSAGES, [look]).run_sync("How is the weather?", store=wire.stage.store)
    # then the blank, which the provider would refuse at the very end, is not sent
    assert result.answer == "It rains."
    assert wire.requests[1].json["messages"][-1]["content"] == [use, found, {"type": "text", "text": "It may rain."}]


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


@pytest.mark.parametrize("text", BLANK)
def test_B116_who_goes_on_from_a_run_with_nothing_is_refused(stage, text):
    # given a run that has ended
    agent = stage.agent([{"calls": [{"name": "look", "arguments": {"at": 1}}]}, {"text": "done"}, {"text": "done"}], [look])
    ended = agent.run_sync("Do it.", store=stage.store, run_id="r")
    at = next(record.position for record in ended.records if record.type == "tool_results_injected")
    # when it is continued or forked with a message that shows nothing (no message at all is another thing)
    if text:
        with pytest.raises(ValueError, match="empty"):
            agent.continue_run_sync("r", text, store=stage.store, new_id="next")
        with pytest.raises(ValueError, match="empty"):
            agent.fork_sync("r", at, store=stage.store, message=text, new_id="fork")
    # then nothing was begun, and a real message works
    assert stage.store.runs() == ["r"]
    assert stage.agent([{"text": "done"}], [look]).continue_run_sync("r", "And now?", store=stage.store).answer == "done"
    assert stage.agent([{"text": "done"}], [look]).fork_sync("r", at, store=stage.store, message="Look again.").answer == "done"


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


def test_B117_continuing_again_and_again_says_everything_once(stage):
    # given a conversation in which every message is a run that goes on from the one before
    turns = [{"calls": [{"name": "look", "arguments": {"at": 1}}]}, {"text": "done"}]
    agent = stage.agent(turns, [look])
    agent.run_sync("Message 0.", store=stage.store, run_id="r0")
    for n in range(1, 6):
        # when it goes on
        agent = stage.agent([{"text": f"answer {n}"}], [look])
        agent.continue_run_sync(f"r{n - 1}", f"Message {n}.", store=stage.store, new_id=f"r{n}")
        # then its request has all that was said before, and each of it once
        messages = stage.requests()[-1].messages
        assert [message.text for message in messages if message.role == "user"] == [f"Message {m}." for m in range(n + 1)]
        assert len(messages) == 4 + 2 * n - 1
        ids = [call.id for message in messages for call in message.calls]
        assert len(ids) == len(set(ids)) == 1


def test_B117_a_transcript_that_is_sent_again_is_recognised(stage):
    # given a run that is parked, with a copy of its whole log elsewhere, and a fork of it there, too
    agent = stage.agent(
        [{"calls": [{"name": "look", "arguments": {"at": 1}}, {"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "done"}], [look]
    )
    waiting = agent.run_sync("Do it.", store=stage.store, run_id="r")
    stage.agent([{"text": "done"}], [look]).fork_sync("r", waiting.position, store=stage.store, new_id="fork")
    copies = {name: b"".join(export_lines(stage.store, name)) for name in ("r", "fork")}
    before = {name: show(stage.store, name) for name in copies}
    # when they are taken in again and again
    for name in (*copies, *copies):
        assert import_file(stage.store, parse(copies[name], "copy")) == name
    # then they are known, and nothing was appended
    assert {name: show(stage.store, name) for name in copies} == before
    stage.store.answer_sync("r", "This one.")
    assert agent.resume_sync("r", store=stage.store).status == "completed"
    assert len(stage.models[0].requests[-1].messages) == 4
