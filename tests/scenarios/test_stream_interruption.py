"""Stream interruption: an end without a reason is no end, a reason without an end is one, and whoever listens hears how it ended."""

import asyncio
import time
from typing import Any

import pytest

from refold import Policy, tool
from refold.events import facts as f
from refold.events.codec import Record
from refold.testing.loopback import Reply
from refold.testing.replies import APIS, chunk

CHAT, MESSAGES = APIS["openai.chat"], APIS["anthropic.messages"]
ONCE_MORE, NO_MORE = Policy(max_provider_retries=1), Policy(max_provider_retries=0)
DONE = b"data: [DONE]\n\n"
WORDS = ("Hello ", "world", ".")
REASON = (b'"finish_reason": "', b"response.completed", b"message_delta")
"""In the event that says, or follows, why a stream ended."""


def tools(ran: list[str]) -> list[Any]:
    @tool
    def delete(path: str) -> str:
        """Deletes."""
        ran.append(path)
        return "deleted"

    return [delete]


def the(result: Any, kind: type[f.Fact]) -> list[Any]:
    return [record.fact for record in result.records if isinstance(record.fact, kind)]


def reason_at(events: list[bytes]) -> int:
    return next(n for n, event in enumerate(events) if any(mark in event for mark in REASON))


@pytest.mark.parametrize("reader", ["stream", "watch"])
def test_B018_who_listens_hears_of_a_cancellation_while_a_tool_runs(stage, reader):
    # given somebody who listens to a run, and a tool that runs
    begun = asyncio.Event()
    heard: list[Any] = []

    @tool(effect="read")
    async def wait(n: int) -> str:
        """Waits."""
        begun.set()
        await asyncio.sleep(60)
        return "never"

    agent = stage.agent([{"text": "I wait.", "calls": [{"name": "wait", "arguments": {"n": n}} for n in (1, 2)]}], [wait])
    told: list[Any] = []

    async def scenario() -> float:
        if reader == "stream":
            running = None
            listened = agent.stream("Do it.", store=stage.store, run_id="r")
        else:
            running = asyncio.create_task(agent.run("Do it.", store=stage.store, run_id="r", heard=told.append))
            await begun.wait()
            listened = stage.store.watch("r")

        async def listen() -> None:
            async for streamed in listened:
                heard.append(streamed.what)

        listening = asyncio.create_task(listen())
        await asyncio.wait_for(begun.wait(), 10)
        # when the run is cancelled
        asked = time.monotonic()
        await stage.store.cancel("r", "enough")
        await listening
        took = time.monotonic() - asked
        if running is not None:
            await running
        return took

    took = asyncio.run(scenario())
    # then the results of its calls come, then that it was cancelled, once and for all, and the iteration ends
    assert took < 1
    types = [what.type for what in heard if isinstance(what, Record)]
    ends = [kind for kind in types if kind in ("run_cancelled", "run_completed", "run_failed", "run_stopped")]
    assert ends == ["run_cancelled"]
    closed = [what for what in heard if isinstance(what, Record) and what.type == "tool_closed"]
    assert [(what.call, what.data["kind"]) for what in closed] == [("t1.1", "cancelled"), ("t1.2", "cancelled")]
    assert types.index("tool_closed") < types.index("tool_results_injected") < types.index("run_cancelled")
    behind = types[types.index("run_cancelled") + 1 :]
    assert behind in ([], ["driver_detached"])
    # and who was called for every record was called once with the end
    if reader == "watch":
        assert [what.type for what in told if isinstance(what, Record)].count("run_cancelled") == 1


def test_B108_half_a_text_is_no_answer(wire, api):
    # given a stream that is cut cleanly behind half of its text
    events = api.text(*WORDS)
    cut = next(n for n, event in enumerate(events) if b"world" in event) + 1
    # when it is whole the second time
    result = wire.play(api, [events[:cut], api.text("Hello again.")], policy=ONCE_MORE)
    # then the first attempt failed, and may be repeated; nothing of it is in the answer
    (failed,) = the(result, f.ModelFailed)
    assert (failed.error.type, failed.error.retryable, failed.text) == ("stream_broken", True, "Hello world")
    assert (result.status, result.answer) == ("completed", "Hello again.")
    # and when it is never whole, the run fails
    result = wire.play(api, [events[:cut]], policy=NO_MORE)
    assert (result.status, result.reason, result.answer) == ("failed", "max_provider_retries", None)


def test_B108_a_call_in_whose_middle_the_stream_is_cut_is_not_run(wire, api):
    # given a stream that is cut cleanly in the middle of its second call
    ran: list[str] = []
    events = api.calls(("a", "delete", ['{"path": "x"}']), ("b", "delete", ['{"path": ', '"y"}']))
    cut = next(n for n, event in enumerate(events) if b'y\\"}' in event)
    # when
    result = wire.play(api, [events[:cut]], tools(ran), policy=NO_MORE)
    # then neither call was run, the whole one included
    (failed,) = the(result, f.ModelFailed)
    assert (failed.error.type, failed.error.retryable) == ("stream_broken", True)
    assert ran == []
    assert (result.status, result.reason, result.tool_calls) == ("failed", "max_provider_retries", 0)


def test_B108_a_reason_to_stop_is_an_end_without_its_marker(wire, api):
    """Responses has no reason apart from its end marker: there it is what follows that event that is missing, and nothing does."""
    # given a stream that is cut cleanly behind its reason to stop
    events = api.text(*WORDS)
    # when
    result = wire.play(api, [events[: reason_at(events) + 1]], policy=ONCE_MORE)
    # then it is complete, and is not asked for again
    assert (result.status, result.answer, len(wire.requests)) == ("completed", "".join(WORDS), 1)
    assert the(result, f.ModelFailed) == []


@pytest.mark.parametrize("end", ["stop", "reset"])
def test_B108_whatever_happens_behind_the_reason_to_stop_changes_nothing(wire, api, end):
    # given a connection that breaks behind the reason to stop of a call
    ran: list[str] = []
    events = api.calls(("a", "delete", ['{"path": "x"}']))
    broken = Reply.events(b"".join(events[: reason_at(events) + 1]), end=end)
    # when
    result = wire.play(api, [broken, api.text("done")], tools(ran), policy=ONCE_MORE)
    # then the call was complete, and ran once
    assert (ran, result.answer, len(wire.requests)) == (["x"], "done", 2)
    assert the(result, f.ModelFailed) == []


def test_B108_a_server_that_leaves_out_every_sign_of_an_end_is_not_believed_and_said_so(wire):
    """The contract goes before the scenario: a stream that gave neither a reason nor its end marker broke, and no setting makes an answer of it."""
    # given a lax server, which gives no reason to stop and no end marker, ever
    ran: list[str] = []
    lax = [chunk({"content": "Hello."})]
    # when
    result = wire.play(CHAT, [lax], tools(ran), policy=NO_MORE)
    # then the attempt failed, and the run says what was missing
    assert (result.status, result.reason) == ("failed", "max_provider_retries")
    assert "without a reason to stop and without an end marker" in result.detail
    assert [(failed.text, failed.error.retryable) for failed in the(result, f.ModelFailed)] == [("Hello.", True)]


def test_B108_a_server_that_gives_its_end_marker_alone_is_believed_and_marked(wire, results_of):
    # given a lax server, which gives the end marker and no reason to stop: with calls, whole and cut off, and with text
    ran: list[str] = []

    def call(index: int, arguments: str) -> bytes:
        return chunk({"tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": "delete", "arguments": arguments}}]})

    replies = [[call(0, '{"path": "x"}'), call(1, '{"path": "y'), DONE], [chunk({"content": "Hello."}), DONE]]
    # when
    result = wire.play(CHAT, replies, tools(ran), policy=ONCE_MORE)
    # then the text is taken, and of the calls the one whose arguments are complete; the log says that no reason was given
    assert (result.status, result.answer) == ("completed", "Hello.")
    assert ran == ["x"]
    assert [kind for kind, _ in results_of(result).values()] == ["success", "invalid_arguments"]
    said = [*the(result, f.ToolCallsRequested), *the(result, f.FinalProposed)]
    assert [(fact.stop_reason, fact.provider_stop_reason) for fact in said] == [("unknown", ""), ("unknown", "")]


@pytest.mark.parametrize("tail", [b"event: message_st", b"event: message_stop\ndata: {", b'event: message_stop\ndata: {"type": "message_st'])
def test_B109_a_cut_inside_the_closing_frame_takes_nothing_away(wire, tail):
    # given all of a message, the reason to stop with it, and the end of the bytes inside the frame that follows
    usage = {"input_tokens": 11, "output_tokens": 42}
    events = MESSAGES.text(*WORDS, usage=usage)[:-1]
    # when
    result = wire.play(MESSAGES, [[*events, tail]], policy=ONCE_MORE)
    # then it is complete, its usage is the delta's, and nobody asks again
    assert (result.status, result.answer, len(wire.requests)) == ("completed", "".join(WORDS), 1)
    (final,) = the(result, f.FinalProposed)
    assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("stop", 11, 42)
    assert the(result, f.RetryScheduled) == []


@pytest.mark.parametrize("tail", [b"data: [DO", b"data: [DONE", b'data: {"choices": [], "usage": {"prom', b"da"])
def test_B109_a_cut_behind_the_reason_of_a_chat_takes_nothing_away(wire, tail):
    # given the same of a chat completion
    usage = chunk({}, "stop", usage={"prompt_tokens": 11, "completion_tokens": 42})
    # when
    result = wire.play(CHAT, [[*(chunk({"content": word}) for word in WORDS), usage, tail]], policy=ONCE_MORE)
    # then
    assert (result.status, result.answer, len(wire.requests)) == ("completed", "".join(WORDS), 1)
    (final,) = the(result, f.FinalProposed)
    assert (final.usage.input_tokens, final.usage.output_tokens) == (11, 42)
