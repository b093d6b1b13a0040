"""Usage and cost: each token is counted once and priced once, whichever way a provider writes it down."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.events import facts as f
from refold.projections.spending import priced
from refold.runtime import ports as p
from refold.runtime.metering import usage_of
from refold.runtime.providers._chat import ChatReply
from refold.runtime.providers._errors import Origin
from refold.runtime.providers._messages import Reader
from refold.runtime.providers._responses import ResponsesReply
from refold.testing.replies import APIS, Api, chunk, event, sse

CHAT, RESPONSES, MESSAGES = APIS.values()
DONE = b"data: [DONE]\n\n"
PRICE = f.Price(input="10", cached_input="1", cache_write="12.5", output="100")
"""For a million tokens; no two classes cost the same."""


def usage_in(result: Any) -> f.Usage:
    """The usage of a run's one response, as it is recorded."""
    (said,) = [record.fact for record in result.records if isinstance(record.fact, f.ModelOutput)]
    assert said.usage is not None
    return said.usage


def cost(uncached: int, cached: int, written: int, output: int) -> Decimal:
    return (uncached * 10 + cached + written * Decimal("12.5") + output * 100) / 1_000_000


def test_B086_the_usage_of_a_stream_counts_though_it_comes_last_and_alone(wire):
    # given a stream of text, reason, a chunk with usage and an empty list of choices, and the end marker
    usage = {"prompt_tokens": 321, "completion_tokens": 45, "total_tokens": 366}
    heard: list[Any] = []
    reply = [chunk({"content": "Hello."}), chunk({}, "stop"), sse({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": usage}), DONE]
    wire.says(reply)
    # when it is read
    result = asyncio.run(wire.agent(CHAT).run("Do it.", store=wire.stage.store, heard=heard.append))
    # then usage was asked for, and the totals are those of the chunk
    assert wire.requests[0].json["stream_options"] == {"include_usage": True}
    assert (usage_in(result).input_tokens, usage_in(result).output_tokens) == (321, 45)
    assert result.usage["reported"] == {"input_tokens": 321, "cached_input_tokens": 0, "output_tokens": 45}
    assert (result.usage["estimated"]["input_tokens"], result.usage["estimated"]["output_tokens"]) == (0, 0)
    # and the chunk is a count, no text, no turn and no record of its own
    parts = [type(part).__name__ for part in heard if isinstance(part, p.Part)]
    assert parts == ["TextDelta", "UsageUpdated", "Finished"]
    types = [record.type for record in result.records]
    assert types.count("final_proposed") == 1
    assert "usage_updated" not in types
    assert result.answer == "Hello."


OPENAI_STYLE = {"input_tokens": 1700, "input_tokens_details": {"cached_tokens": 500}, "output_tokens": 100, "total_tokens": 1800}
CHAT_STYLE = {"prompt_tokens": 1700, "prompt_tokens_details": {"cached_tokens": 500}, "completion_tokens": 100, "total_tokens": 1800}
ANTHROPIC_STYLE = {"input_tokens": 1200, "cache_read_input_tokens": 500, "cache_creation_input_tokens": 0, "output_tokens": 100}
GATEWAY = {"prompt_tokens": 2000, "prompt_tokens_details": {"cached_tokens": 500, "cache_write_tokens": 300}, "completion_tokens": 100, "total_tokens": 2100}
RESPONSES_GATEWAY = {
    "input_tokens": 2000,
    "input_tokens_details": {"cached_tokens": 500, "cache_write_tokens": 300},
    "output_tokens": 100,
    "total_tokens": 2100,
}
ANTHROPIC_WRITES = {**ANTHROPIC_STYLE, "cache_creation_input_tokens": 300}

READ_ONLY = (1200, 500, 0, 100)
WRITTEN_TOO = (1200, 500, 300, 100)


@pytest.mark.parametrize(
    ("api", "usage", "classes"),
    [
        pytest.param(CHAT, CHAT_STYLE, READ_ONLY, id="chat"),
        pytest.param(RESPONSES, OPENAI_STYLE, READ_ONLY, id="responses"),
        pytest.param(MESSAGES, ANTHROPIC_STYLE, READ_ONLY, id="messages"),
        pytest.param(CHAT, GATEWAY, WRITTEN_TOO, id="chat, a gateway with cache writes"),
        pytest.param(RESPONSES, RESPONSES_GATEWAY, WRITTEN_TOO, id="responses, a gateway with cache writes"),
        pytest.param(MESSAGES, ANTHROPIC_WRITES, WRITTEN_TOO, id="messages with cache writes"),
    ],
)
def test_B088_each_class_of_tokens_is_charged_once(wire, monkeypatch, api, usage, classes):
    # given one true usage in the notation of this API, and a price for each class
    uncached, cached, written, output = classes
    monkeypatch.setattr("refold.runtime.prices.price_of", lambda *_: PRICE)
    monkeypatch.setattr(wire.model(api), "priced", True, raising=False)
    # when
    result = wire.play(api, [api.text("Hello.", usage=usage)])
    # then the recorded numbers are the same under every notation, and so is the cost; the classes are everything there is
    recorded = usage_in(result)
    assert recorded == f.Usage(input_tokens=uncached + cached + written, cached_input_tokens=cached, cache_write_tokens=written, output_tokens=output)
    assert Decimal(result.usage["cost_usd"]) == cost(*classes)
    assert result.usage["reported"] == {"input_tokens": sum(classes) - output, "cached_input_tokens": cached, "output_tokens": output}


ORIGIN = Origin("m", "http://localhost", "KEY", "")


def read_by(api: Api, usage: dict[str, Any]) -> f.Usage:
    """What the adapter of an API makes of usage in its notation."""
    if api is CHAT:
        parts = list(ChatReply("m", ORIGIN).take({"choices": [], "usage": usage}, ""))
    elif api is RESPONSES:
        response = {"status": "completed", "output": [], "usage": usage}
        parts = list(ResponsesReply("openai.responses", ORIGIN).take({"type": "response.completed", "response": response}, ""))
    else:
        parts = list(Reader(ORIGIN).take({"type": "message_delta", "delta": {}, "usage": usage}, ""))
    (part,) = [part for part in parts if isinstance(part, p.UsageUpdated)]
    return usage_of(part)


COUNT = st.integers(0, 2**40)


@given(uncached=COUNT, cached=COUNT, written=COUNT, output=COUNT)
def test_B088_no_numbers_make_the_sum_differ_from_its_parts(uncached, cached, written, output):
    # given any true usage, in the three notations
    read, total = uncached + cached + written, uncached + cached + written + output
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    notations = [
        (CHAT, {"prompt_tokens": read, "prompt_tokens_details": details, "completion_tokens": output, "total_tokens": total}),
        (RESPONSES, {"input_tokens": read, "input_tokens_details": details, "output_tokens": output, "total_tokens": total}),
        (MESSAGES, {"input_tokens": uncached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": written, "output_tokens": output}),
    ]
    # when they are read
    usages = [read_by(api, usage) for api, usage in notations]
    # then they are one usage, and its price is that of its parts
    assert usages[0] == usages[1] == usages[2]
    assert usages[0].input_tokens - usages[0].cached_input_tokens - usages[0].cache_write_tokens == uncached
    assert Decimal(priced(usages[0], PRICE)) == cost(uncached, cached, written, output)


ANYTHING = st.one_of(st.integers(-10, 2**60), st.none(), st.text(max_size=3), st.booleans(), st.floats())


@given(prompt=ANYTHING, cached=ANYTHING, written=ANYTHING, output=ANYTHING, reasoned=ANYTHING, total=ANYTHING)
def test_B088_no_uncached_count_is_ever_negative(prompt, cached, written, output, reasoned, total):
    # given whatever a server may write where numbers are due
    details, thoughts = {"cached_tokens": cached, "cache_write_tokens": written}, {"reasoning_tokens": reasoned}
    notations = [
        (
            CHAT,
            {
                "prompt_tokens": prompt,
                "prompt_tokens_details": details,
                "completion_tokens": output,
                "completion_tokens_details": thoughts,
                "total_tokens": total,
            },
        ),
        (
            RESPONSES,
            {"input_tokens": prompt, "input_tokens_details": details, "output_tokens": output, "output_tokens_details": thoughts, "total_tokens": total},
        ),
    ]
    for api, usage in notations:
        # when it is read and priced
        read = read_by(api, usage)
        # then no class of tokens costs less than nothing
        assert min(read.input_tokens, read.output_tokens, read.cached_input_tokens, read.cache_write_tokens, read.reasoning_tokens) >= 0
        assert Decimal(priced(read, PRICE)) >= cost(0, read.cached_input_tokens, read.cache_write_tokens, read.output_tokens)


DETAILS = {"reasoning_tokens": 1360}


@pytest.mark.parametrize(
    ("api", "usage"),
    [
        pytest.param(CHAT, {"prompt_tokens": 50, "completion_tokens": 1944, "total_tokens": 1994, "completion_tokens_details": DETAILS}, id="chat, inside"),
        pytest.param(CHAT, {"prompt_tokens": 50, "completion_tokens": 1944, "completion_tokens_details": DETAILS}, id="chat, inside, without a total"),
        pytest.param(CHAT, {"prompt_tokens": 50, "completion_tokens": 584, "total_tokens": 1994, "completion_tokens_details": DETAILS}, id="chat, beside"),
        pytest.param(CHAT, {"prompt_tokens": 50, "completion_tokens": 584, "completion_tokens_details": DETAILS}, id="chat, beside, without a total"),
        pytest.param(RESPONSES, {"input_tokens": 50, "output_tokens": 1944, "total_tokens": 1994, "output_tokens_details": DETAILS}, id="responses, inside"),
        pytest.param(RESPONSES, {"input_tokens": 50, "output_tokens": 584, "total_tokens": 1994, "output_tokens_details": DETAILS}, id="responses, beside"),
    ],
)
def test_B089_reasoning_is_billed_once_whether_it_is_counted_inside_the_output_or_beside_it(wire, monkeypatch, api, usage):
    # given a provider that counts its reasoning in its output, or beside it
    monkeypatch.setattr("refold.runtime.prices.price_of", lambda *_: PRICE)
    monkeypatch.setattr(wire.model(api), "priced", True, raising=False)
    # when
    result = wire.play(api, [api.text("Hello.", usage=usage)])
    # then everything that it wrote is billed, once, and how much of that was reasoning is shown
    recorded = usage_in(result)
    assert (recorded.input_tokens, recorded.written, recorded.reasoning_tokens) == (50, 1944, 1360)
    assert result.usage["reported"]["output_tokens"] == 1944
    assert Decimal(result.usage["cost_usd"]) == cost(50, 0, 0, 1944)


def test_B089_less_reasoning_than_output_is_told_apart_by_the_total(wire):
    # given two providers with the same counts, but for the total
    beside = {"prompt_tokens": 50, "completion_tokens": 1000, "completion_tokens_details": {"reasoning_tokens": 300}}
    # when, then
    inside = usage_in(wire.play(CHAT, [CHAT.text("Hello.", usage={**beside, "total_tokens": 1050})]))
    outside = usage_in(wire.play(CHAT, [CHAT.text("Hello.", usage={**beside, "total_tokens": 1350})]))
    assert (inside.written, outside.written) == (1000, 1300)


ABSENT = object()


@pytest.mark.parametrize(
    ("late", "counted"),
    [(ABSENT, 15), (None, 15), (0, 15), (15, 15), (240, 240), (-3, 15), ("many", 15), (True, 15), ([7], 15)],
    ids=["absent", "null", "zero", "same", "larger", "negative", "text", "boolean", "list"],
)
def test_B091_the_end_of_a_stream_never_takes_back_what_its_beginning_counted(wire, late, counted):
    """The contract has no fact for a warning: a counter that is none is ignored, and what is recorded is what was counted."""
    # given 15 tokens of input at the beginning, 4 of them beside from a cache, and whatever the end says of it
    start = {"input_tokens": 15, "cache_read_input_tokens": 4, "output_tokens": 1}
    end = {"output_tokens": 9, **({} if late is ABSENT else {"input_tokens": late, "cache_read_input_tokens": None})}
    reply = [
        event("message_start", message={"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": start}),
        *[e for e in MESSAGES.text("Hello.") if b"content_block" in e],
        event("message_delta", delta={"stop_reason": "end_turn"}, usage=end),
        event("message_stop"),
    ]
    # when
    result = wire.play(MESSAGES, [reply])
    # then the larger truth counts, and nothing else
    recorded = usage_in(result)
    assert (recorded.input_tokens, recorded.cached_input_tokens, recorded.output_tokens) == (counted + 4, 4, 9)
    assert result.status == "completed"


@pytest.mark.parametrize("late", [None, 0, -1, "many"])
def test_B091_nor_does_it_take_back_the_output(wire, late):
    # given an end whose count of the output is none
    events = MESSAGES.text("Hello.", usage={"input_tokens": 15, "output_tokens": late})
    # when, then what was counted before stands
    assert usage_in(wire.play(MESSAGES, [events])).output_tokens == 1


@pytest.mark.parametrize(
    ("api", "usage"),
    [
        pytest.param(CHAT, {"prompt_tokens": 0, "completion_tokens": 45, "total_tokens": 45}, id="chat, zero"),
        pytest.param(CHAT, {"completion_tokens": 45}, id="chat, missing"),
        pytest.param(RESPONSES, {"input_tokens": 0, "output_tokens": 45, "total_tokens": 45}, id="responses, zero"),
        pytest.param(RESPONSES, {"output_tokens": 45}, id="responses, missing"),
        pytest.param(MESSAGES, {"input_tokens": 0, "output_tokens": 45}, id="messages, zero"),
        pytest.param(MESSAGES, {"output_tokens": 45}, id="messages, missing"),
    ],
)
def test_an_input_that_was_not_counted_is_estimated_and_marked(wire, monkeypatch, api, usage):
    # given a provider that counts what it wrote, and not what it read
    monkeypatch.setattr("refold.runtime.prices.price_of", lambda *_: PRICE)
    monkeypatch.setattr(wire.model(api), "priced", True, raising=False)
    # when
    result = wire.play(api, [api.text("Hello.", usage=usage)])
    # then nothing was read for nothing: the request's own estimate stands for it, marked as one, beside the output as it was counted
    (asked,) = [record.fact for record in result.records if isinstance(record.fact, f.ModelRequested)]
    assert asked.estimated_input_tokens > 0
    assert usage_in(result) == f.Usage(input_tokens=asked.estimated_input_tokens, output_tokens=45, estimated=True)
    assert result.usage["reported"] == {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0}
    assert result.usage["estimated"] == {"input_tokens": asked.estimated_input_tokens, "cached_input_tokens": 0, "output_tokens": 45}
    assert Decimal(result.usage["cost_usd"]) == cost(asked.estimated_input_tokens, 0, 0, 45)
