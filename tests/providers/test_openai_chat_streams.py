"""Chat Completions: the habits of servers that no recording shows, in what they stream and in how they end it."""

import asyncio
import json
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from refold.projections.messages import Message, MessageCall, user
from refold.runtime import ports as p
from refold.runtime.assemble import Assembler
from refold.runtime.providers import _replies
from refold.testing.loopback import Reply

DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], stop: str | None = None, **fields: Any) -> bytes:
    """One event of a stream; text goes over the wire in ASCII, so that a half of a pair can."""
    body = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": stop}], **fields}
    return f"data: {json.dumps(body)}\n\n".encode()


def call(index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: Any = None) -> bytes:
    """A delta of one call, with what is given of it and nothing else."""
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    piece = {key: value for key, value in {"index": index, "id": call_id, "function": function}.items() if value is not None}
    return chunk({"tool_calls": [piece]})


def stream(*events: bytes, end: bytes = DONE) -> Reply:
    return Reply.events(b"".join(events) + end)


def calls_of(assembler: Assembler) -> list[tuple[str, str, str]]:
    return [(each.provider_id, each.name, each.arguments_text) for each in assembler.response(0, 0).output.calls]


def test_a_pair_that_is_split_over_deltas_is_one_character(chat: Any):
    halves = stream(chunk({"content": "a \ud83d"}), chunk({"content": "\ude00 b"}, "stop"))
    assert chat.taken(halves).response(0, 0).output.text == "a \N{GRINNING FACE} b"


@pytest.mark.parametrize("text", ["größe", "\N{GRINNING FACE}", "a\u2028b\u0085c"])
def test_characters_are_whole_however_the_bytes_are_cut(chat: Any, text: str):
    body = f'data: {{"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":"stop"}}]}}\r\n\r\ndata: [DONE]\r\n\r\n'.encode()
    assert chat.taken(Reply.events(body, range(len(body)))).text == text


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param([call(0, "a", "f", "{}"), call(1, "b", "g", "{}")], [("a", "f", "{}"), ("b", "g", "{}")], id="in turn"),
        pytest.param(
            [call(0, "a", "f"), call(1, "b", "g"), call(1, None, None, "2"), call(0, None, None, "1")], [("a", "f", "1"), ("b", "g", "2")], id="mixed"
        ),
        pytest.param([call(1, "a", "f", "{"), call(1, "a", "f", "}")], [("a", "f", "{}")], id="id and name in every delta, from index one on"),
        pytest.param([call(0, "a", "f", "{}"), call(0, "b", "g", "{}")], [("a", "f", "{}"), ("b", "g", "{}")], id="every index is zero"),
        pytest.param([call(None, "a", "f", "{"), call(None, "a", None, "}")], [("a", "f", "{}")], id="no index"),
        pytest.param([call(None, None, "f", "{}"), call(None, None, "g", "{}")], [("", "f", "{}"), ("", "g", "{}")], id="neither index nor id"),
        pytest.param([call(0, "", "f", "{}"), call(1, "", "f", "{}")], [("", "f", "{}"), ("", "f", "{}")], id="empty ids"),
        pytest.param([call(0, "a", "f", "{}"), call(1, "a", "f", "{}")], [("a", "f", "{}"), ("a", "f", "{}")], id="one id twice"),
        pytest.param([call(0, "a", "lo"), call(0, None, "ok", "{}")], [("a", "look", "{}")], id="a name in pieces"),
        pytest.param([call(0, "a", "f")], [("a", "f", "")], id="no arguments"),
        pytest.param([call(0, "a", "f", "[1]")], [("a", "f", "[1]")], id="a list"),
        pytest.param([call(0, "a", "f", '"{}"')], [("a", "f", '"{}"')], id="a string"),
        pytest.param([call(0, "a", "f", '{"x": "y')], [("a", "f", '{"x": "y')], id="cut off"),
        pytest.param([call(0, "a", "f", {"x": [1]})], [("a", "f", '{"x": [1]}')], id="an object instead of its text"),
    ],
)
def test_calls_are_assembled_as_they_were_meant(chat: Any, deltas: Sequence[bytes], calls: list[tuple[str, str, str]]):
    assembler = chat.taken(stream(*deltas, chunk({}, "tool_calls")))
    assert calls_of(assembler) == calls
    assert assembler.finished is not None
    assert assembler.finished.stop_reason == "tool_calls"


def test_two_hundred_parallel_calls_keep_their_arguments(chat: Any):
    # given calls whose arguments come in turns of one character
    texts = [json.dumps({"n": n}) for n in range(200)]
    opened = [call(n, f"c{n}", "f", "") for n in range(200)]
    pieces = [call(n, None, None, text[at : at + 1]) for at in range(max(map(len, texts))) for n, text in enumerate(texts)]
    # when, then
    assert calls_of(chat.taken(stream(*opened, *pieces, chunk({}, "tool_calls")))) == [(f"c{n}", "f", text) for n, text in enumerate(texts)]


def test_only_the_first_of_several_choices_is_read(chat: Any):
    second = b'data: {"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}]}\n\n'
    assembler = chat.taken(stream(second, chunk({"content": "A"}), second, chunk({}, "stop"), second))
    assert (assembler.text, assembler.finished) == ("A", p.Finished(stop_reason="stop", provider_stop_reason="stop"))


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_usage_counts_wherever_it_stands(chat: Any, place: int):
    # given a chunk with usage and nothing else, at any place before the end marker
    usage = (
        b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}, "cost": 0.0000125}}\n\n'
    )
    events = [chunk({"content": "A"}), chunk({"content": "B"}), chunk({}, "stop")]
    # when
    assembler = chat.taken(stream(*events[:place], usage, *events[place:]))
    # then
    used = assembler.usage()
    assert used is not None
    assert (used.input_tokens, used.cached_input_tokens, used.output_tokens, used.cost_usd) == (9, 4, 3, "0.0000125")


def test_counts_that_are_none_stop_nothing(chat: Any):
    odd = chunk({}, "stop", usage={"prompt_tokens": -1, "completion_tokens": "many", "prompt_tokens_details": None, "cost": 1e-300})
    assert chat.taken(stream(chunk({"content": "A"}), odd)).usage() is not None


@pytest.mark.parametrize("end", [b"", b"data: [DONE]", b": bye\n\n"])
def test_a_reason_to_stop_ends_a_stream_without_its_marker(chat: Any, end: bytes):
    assert chat.taken(stream(chunk({"content": "A"}, "stop"), end=end)).finished is not None


def test_a_marker_ends_a_stream_without_a_reason(chat: Any):
    assert chat.taken(stream(chunk({"content": "A"}))).finished == p.Finished(stop_reason="unknown")


@pytest.mark.parametrize("end", [b"", b'data: {"choices": [{"ind', b"data:"])
def test_a_stream_without_either_has_not_ended(chat: Any, end: bytes):
    # given a stream that stops in the middle, perhaps of an event
    chat.server.add(stream(chunk({"content": "A"}), call(0, "a", "f", "{}"), end=end))
    # when it is read to its end
    seen: list[p.Part] = []
    failure = failed(chat, seen)
    # then there is text, but no call and no end
    assert p.TextDelta(text="A") in seen
    assert not any(isinstance(part, p.ToolCallReady | p.Finished) for part in seen)
    assert failure is None or (failure.retryable and failure.mid_stream)


def failed(chat: Any, seen: list[p.Part] | None = None) -> p.ModelError | None:
    """The error of a request."""

    async def read() -> None:
        async for part in chat.model().stream(chat.asked()):
            (seen if seen is not None else []).append(part)

    try:
        asyncio.run(read())
    except p.ModelError as error:
        return error
    return None


def test_a_server_that_stays_connected_after_the_model_stopped_is_not_waited_for(chat: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_replies, "LINGER_S", 0.05)
    chat.server.add(Reply.events(chunk({"content": "A"}, "stop"), end="hang"))
    assert p.Finished(stop_reason="stop", provider_stop_reason="stop") in chat.parts(chat.model())


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("function_call", "tool_calls"),
        ("model_length", "length"),
        ("odd", "unknown"),
    ],
)
def test_reasons_to_stop_are_mapped_and_kept(chat: Any, word: str, meaning: str):
    finished = chat.taken(stream(chunk({"content": "A"}, word))).finished
    assert finished is not None
    assert (finished.stop_reason, finished.provider_stop_reason) == (meaning, word)


def test_a_server_that_gives_up_is_an_error(chat: Any):
    chat.server.add(stream(chunk({"content": "A"}, "insufficient_system_resource")))
    error = failed(chat)
    assert error is not None
    assert (error.type, error.retryable, error.mid_stream) == ("insufficient_system_resource", True, True)


@pytest.mark.parametrize(
    "event", ['{"error": {"type": "overloaded_error", "message": "Busy."}}', '[{"error": {"type": "overloaded_error", "message": "Busy."}}]']
)
def test_an_error_inside_a_response_is_one(chat: Any, event: str):
    chat.server.add(stream(chunk({"content": "A"}), f"data: {event}\n\n".encode(), chunk({}, "stop")))
    error = failed(chat)
    assert error is not None
    assert (error.type, error.message, error.retryable, error.mid_stream) == ("overloaded_error", "Busy.", True, True)


def test_comments_and_unknown_fields_of_a_stream_are_nothing(chat: Any):
    noise = b": keep-alive\n\nretry: 10\n\nid: 7\nevent: odd\n\ndata:\n\n"
    assert chat.taken(stream(noise, chunk({"content": "A"}), noise, chunk({}, "stop"), noise)).text == "A"


def test_what_is_no_event_of_the_api_is_an_error(chat: Any):
    chat.server.add(stream(b"data: {nonsense\n\n"), stream(b'data: {"choices": 7}\n\n'))
    for error in (failed(chat), failed(chat)):
        assert error is not None
        assert (error.type, error.retryable) == ("protocol", True)


def test_a_json_document_that_is_no_reply_is_an_error(chat: Any):
    chat.server.add(
        Reply.json({"message": "There is nothing here."}), Reply.json([{"error": {"code": 503, "message": "Busy."}}]), Reply.json(7), Reply.json({})
    )
    errors = [failed(chat) for _ in range(4)]
    assert [error.retryable for error in errors if error is not None] == [False, True, False, False]
    nothing, busy = [error.message for error in errors if error is not None][:2]
    assert ("There is nothing here." in nothing, chat.server.url in nothing, busy) == (True, True, "Busy.")
    assert all(error is not None and not error.mid_stream for error in errors)


def test_a_stream_under_the_label_of_json_is_read(chat: Any):
    body = chunk({"content": "A"}, "stop") + DONE
    assert chat.taken(Reply(body, headers={"content-type": "application/json"})).text == "A"


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([{"reasoning_content": "Hm."}], "Hm."),
        ([{"reasoning": "Hm."}], "Hm."),
        ([{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Yes."}]}], "Hm."),
        ([{"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm."}]}], "Hm."),
    ],
)
def test_reasoning_is_shown_under_every_name(chat: Any, pieces: list[dict[str, Any]], shown: str):
    assembler = chat.taken(stream(*(chunk(piece) for piece in pieces), chunk({"content": " So."}, "stop")))
    assert assembler.response(0, 0).output.reasoning == shown


def test_what_a_server_wants_back_goes_back_with_its_message(chat: Any):
    # given a turn with reasoning details in pieces, and a signature on its call
    details = [
        {"type": "reasoning.text", "index": 0, "text": "Hm", "signature": None},
        {"type": "reasoning.text", "index": 0, "text": ".", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "=="},
    ]
    signed = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "weather", "arguments": "{}"}, "extra_content": {"google": {"s": 1}}}]})
    reply = stream(*(chunk({"reasoning_details": [each]}) for each in details), chunk({"reasoning_content": "Hm."}), signed, chunk({}, "tool_calls"))
    output = chat.taken(reply).response(0, 0).output
    # when the next request is made
    named = MessageCall(id="t1.1", name="weather", arguments_text="{}", provider_id="a")
    result = Message(role="tool", call_id="t1.1", name="weather", kind="success", content="Sunny.")
    said = chat.body(chat.asked(user("Go."), Message(role="assistant", calls=(named,), opaque=output.opaque), result))["messages"][2]
    # then everything stands where it stood
    assert said["reasoning_content"] == "Hm."
    assert said["reasoning_details"] == [{"type": "reasoning.text", "index": 0, "text": "Hm.", "signature": "s"}, details[2]]
    assert said["tool_calls"][0]["extra_content"] == {"google": {"s": 1}}


def test_without_streaming_the_parts_are_the_same(chat: Any):
    # given one answer, streamed and in one piece
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    whole = {"choices": [{"index": 0, "message": {"content": "I look.", "tool_calls": [{"id": "a", "function": function}]}, "finish_reason": "tool_calls"}]}
    # when
    plain = chat.taken(Reply.json({**whole, "usage": usage}), stream=False)
    streamed = chat.taken(stream(chunk({"content": "I look."}), call(0, "a", **function), chunk({}, "tool_calls", usage=usage)))
    # then
    assert chat.server.requests[0].json["stream"] is False
    assert plain.response(0, 0) == streamed.response(0, 0)


# -- connections


def test_one_model_serves_several_event_loops(chat: Any):
    chat.server.add(*[stream(chunk({"content": "A"}, "stop"))] * 3)
    model = chat.model()
    assert [len(chat.parts(model)) for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_giving_a_stream_up_closes_its_connection_at_once(chat: Any, how: str):
    # given a stream that does not end
    chat.server.add(Reply.events(chunk({"content": "A"}), end="hang"))
    model = chat.model()

    async def give_up() -> float:
        parts = model.stream(chat.asked())
        await anext(parts)
        waiting = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        at = time.monotonic()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if how == "close":
            await parts.aclose()  # type: ignore[attr-defined] # it is a generator
        return at

    # when it is given up, then the server sees its socket closed
    at = asyncio.run(give_up())
    assert chat.server.requests[0].gone.wait(5)
    assert time.monotonic() - at < 1


def test_a_slow_stream_is_read_as_it_comes(chat: Any):
    # given a stream of one byte at a time that never ends
    body = chunk({"content": "A"}) + chunk({"content": "B"})
    chat.server.add(Reply.events(body, range(len(body)), end="hang"))

    async def first_two() -> list[p.Part]:
        parts = chat.model().stream(chat.asked())
        seen = [await anext(parts), await anext(parts)]
        await parts.aclose()  # type: ignore[attr-defined] # it is a generator
        return seen

    # when, then its parts come before it ends
    assert asyncio.run(first_two()) == [p.TextDelta(text="A"), p.TextDelta(text="B")]


@pytest.mark.slow
def test_a_long_text_takes_no_memory(chat: Any):
    # given a text of 10 MB in pieces of 1 KB, of which the server holds one
    pieces = [chunk({"content": "x" * 1_024})] * 10_240
    chat.server.add(Reply([*pieces, chunk({}, "stop"), DONE], headers={"content-type": "text/event-stream"}))
    model = chat.model()

    async def read() -> tuple[int, int]:
        size = 0
        tracemalloc.start()
        try:
            async for part in model.stream(chat.asked()):
                size += len(part.text) if isinstance(part, p.TextDelta) else 0
            return size, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # when it is read, then what was read is let go of
    size, peak = asyncio.run(read())
    assert size == 10_240 * 1_024
    assert peak < 2_000_000
