"""Data: whatever strange values models, tools and people bring, they are stored as a documented rule says, or refused by name, and live equals reloaded."""

import datetime
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from refold import Agent, Budgets, Tool, fold, show, tool
from refold.events.codec import full_line
from refold.runtime import ports as p
from refold.runtime.transfer import export_lines


def returning(value: Any, ran: list[int] | None = None, **options: Any) -> Tool:
    """A tool that gives what it is told to give."""

    def give(arguments: dict[str, Any], ctx: Any) -> Any:
        if ran is not None:
            ran.append(1)
        return value() if callable(value) else value

    return Tool(name="give", description="Give.", schema={"type": "object"}, handler=give, **{"effect": "read", **options})


def given(stage: Any, value: Any, **options: Any) -> tuple[str, Any]:
    """Kind and content of the result, as the next request shows it (and as the log gives it back, which the stage compares)."""
    stage.play([{"calls": [{"name": "give"}]}, {"text": "done"}], [returning(value, **options)])
    told = stage.requests()[1].messages[-1]
    return told.kind, told.content


# -- half characters

HALF = "ok \ud83d"
WHOLE = "ok \N{REPLACEMENT CHARACTER}"


def test_B131_half_characters_are_replaced_once_at_the_border(stage):
    # given halves of surrogate pairs wherever text comes in
    @tool(effect="read")
    def echo(text: str) -> dict[str, str]:
        """Echo."""
        return {"\udc81x": text + HALF}

    @tool(effect="read")
    def fail() -> str:
        """Fail."""
        raise ValueError(HALF)

    calls = [
        {"name": "echo", "arguments": {"text": HALF}},
        {"name": "fail"},
        {"name": f"unknown {HALF}"},
        {"name": "ask_user", "arguments": {"question": HALF}},
    ]
    agent = stage.agent(
        [{"text": HALF, "reasoning": HALF, "calls": calls, "rationale": HALF}, {"text": HALF, "citations": [HALF]}],
        [echo, fail],
        instructions=HALF,
        name=HALF,
        documents=[HALF],
    )
    # when the run goes through a human, too
    waiting = agent.run_sync(HALF, store=stage.store)
    stage.store.say_sync(waiting.id, HALF)
    stage.store.answer_sync(waiting.id, HALF)
    result = agent.resume_sync(waiting.id, store=stage.store)
    # then nothing fails, and every half is one mark, the same live and reloaded
    first, second = stage.requests()
    assert (first.messages[0].text, first.instructions) == (WHOLE, WHOLE)
    results = [message.content for message in second.messages if message.role == "tool"]
    assert results[0] == {"\N{REPLACEMENT CHARACTER}x": f"{WHOLE}{WHOLE}"}
    assert WHOLE in results[1]["message"]
    assert "\N{REPLACEMENT CHARACTER}" in results[2]["message"]
    assert results[3] == WHOLE
    assert second.messages[-1].text == WHOLE
    assert result.answer == WHOLE
    # and what is shown and exported can be written
    json.dumps(show(stage.store, result.id), ensure_ascii=False).encode("utf-8")
    b"".join(export_lines(stage.store, result.id)).decode("utf-8")


def test_B131_a_character_split_over_two_pieces_is_joined(stage):
    # given a stream that cuts an emoji in two, in text, arguments and a refusal
    @tool(effect="read")
    def echo(text: str) -> str:
        """Echo."""
        return text

    model = stage.parts(
        [
            p.TextDelta(text="look \ud83d"),
            p.TextDelta(text="\ude00"),
            p.ToolCallOpened(index=0, name="echo", id="c\ud83d"),
            p.ArgumentsDelta(index=0, text='{"text": "\ud83d'),
            p.ArgumentsDelta(index=0, text='\ude00"}'),
            p.OpaqueItem(item={"signature": "\ud83d", "n": [1]}),
            p.Finished(stop_reason="tool_calls", provider_stop_reason="\ud83d"),
        ],
        [p.TextDelta(text="done"), p.Finished(stop_reason="stop")],
    )
    # when
    result = Agent(model=model, tools=[echo]).run_sync("Look.", store=stage.store)
    # then it is whole, and what stays half is marked
    called, told = model.requests[1].messages[1:]
    assert called.text == "look \U0001f600"
    assert told.content == "\U0001f600"
    assert called.calls[0].provider_id == "c\N{REPLACEMENT CHARACTER}"
    assert called.opaque == ({"signature": "\N{REPLACEMENT CHARACTER}", "n": [1]},)
    assert result.status == "completed"


def test_B131_half_characters_in_a_providers_error_and_in_reasons_do_no_harm(stage):
    # given an error of a provider, and the reasons of humans
    failed = stage.play([{"error": {"type": HALF, "message": HALF}}])
    assert (failed.status, failed.reason) == ("failed", "provider")
    assert WHOLE in failed.detail

    @tool(approval="always")
    def send(to: str) -> str:
        """Send."""
        return to

    agent = stage.agent([{"calls": [{"name": "send", "arguments": {"to": "x"}}]}] * 2, [send])
    # when a call is denied and a run cancelled with half characters
    waiting = agent.run_sync("Send.", store=stage.store)
    stage.store.deny_sync(waiting.id, reason=HALF)
    agent.resume_sync(waiting.id, store=stage.store)
    stage.store.cancel_sync(waiting.id, HALF)
    # then
    assert fold(stage.store.read(waiting.id)).detail == WHOLE


# -- numbers that JSON does not have


@pytest.mark.parametrize(
    "value",
    [{"m": math.nan, "n": 1}, [math.inf, -math.inf], {"a": {"b": [1, math.nan]}}, {math.nan: 1}, Decimal("NaN")],
    ids=["NaN", "infinities", "nested", "as a key", "a decimal"],
)
def test_B132_numbers_that_json_does_not_have_are_refused_by_name_and_place(stage, value):
    # given a tool that did its work and gives NaN or infinity
    ran: list[int] = []
    # when
    kind, content = given(stage, value, ran=ran, effect="side_effect")
    # then the result is refused with its place, the work is not repeated, the run ends well, and everything is JSON
    assert (kind, ran) == ("invalid_result", [1])
    assert "$" in content["message"] or "key" in content["message"]


def test_B132_nan_in_arguments_never_reaches_a_tool(stage, results_of):
    # given arguments with NaN and with an infinite number
    ran: list[int] = []
    calls = [{"name": "give", "arguments": text} for text in ('{"m": NaN}', '{"m": -Infinity}', '{"m": 1e999}')]
    # when
    result = stage.play([{"calls": calls}, {"text": "done"}], [returning("fine", ran)])
    # then
    assert ran == []
    assert [kind for kind, _ in results_of(result).values()] == ["invalid_arguments"] * 3


# -- NUL

NUL = "a\x00b"


def test_B133_nul_is_text_like_any_other_in_every_store(stage, twin, tmp_path):
    # given NUL wherever text comes in, and two kinds of stores
    @tool(effect="read")
    def echo(text: str) -> dict[str, str]:
        """Echo."""
        return {NUL: text}

    def run_on(store: Any) -> Any:
        agent = stage.agent([{"text": NUL, "calls": [{"name": "echo", "arguments": {"text": NUL}}]}, {"text": NUL}], [echo], name=NUL)
        result = agent.run_sync(NUL, store=store, run_id="r")
        assert result.answer == NUL
        return store.read("r")

    # when the same run is made on both
    in_memory, on_disk = list(run_on(stage.store)), list(run_on(stage.another_store(f"sqlite:///{tmp_path}/log.db")))
    # then they are the same, and the NUL is there
    assert twin(in_memory) == twin(on_disk)
    assert stage.requests()[1].messages[-1].content == {NUL: NUL}


@pytest.mark.parametrize("run_id", ["a\x00b", "", "a b", "-a", "a" * 65, "last", "a/b", "ä"])
def test_B133_a_run_id_that_is_none_is_refused_at_the_door(stage, run_id):
    # given an id that a store might choke on
    # when
    with pytest.raises(ValueError, match="no run id"):
        stage.play([{"text": "done"}], run_id=run_id)
    # then nothing was stored
    assert stage.store.runs() == []


# -- values of Python


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float


class Item(BaseModel):
    name: str
    at: datetime.date


NOISE = bytes(range(256)) * 4_000

CONVERTED: dict[str, tuple[Any, Any]] = {
    "bytes of text": (b"hello", {"base64": "aGVsbG8="}),
    "datetime": (datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC), "2026-01-31T12:00:00+00:00"),
    "decimal": (Decimal("1.10"), "1.10"),
    "set": ({"b", "a"}, ["a", "b"]),
    "tuple": ((1, "a"), [1, "a"]),
    "dataclass": (Point(1, 2.5), {"x": 1, "y": 2.5}),
    "pydantic": (Item(name="a", at=datetime.date(2026, 1, 31)), {"name": "a", "at": "2026-01-31"}),
    "enum": (Colour.RED, "red"),
    "path": (Path("a") / "b", str(Path("a") / "b")),
    "int keys": ({1: "a", 20: "b"}, {"1": "a", "20": "b"}),
    "nothing": (None, None),
    "empty text": ("", ""),
}


@pytest.mark.parametrize("case", CONVERTED)
def test_B134_values_of_python_are_converted_by_a_rule_when_they_are_recorded(stage, case):
    # given a tool that returns such a value
    value, stored = CONVERTED[case]
    # when
    kind, content = given(stage, value)
    # then the model sees what the log holds (the stage compares them)
    assert (kind, content) == ("success", stored)


def test_B134_a_megabyte_of_noise_is_not_shown_raw(stage):
    # given random bytes
    # when
    result = stage.play([{"calls": [{"name": "give"}]}, {"text": "done"}], [returning(NOISE)], budgets=Budgets(max_tokens=None))
    # then they are text of a kind that can be sent, and come back from the log without loss
    told = stage.requests()[1].messages[-1]
    assert set(told.content) == {"base64"}
    assert told.content["base64"].isascii()
    assert msgspec.json.decode(msgspec.json.encode(told.content["base64"]), type=bytes) == NOISE
    assert result.status == "completed"


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "generator": (lambda: (n for n in range(3)), "generator"),
    "cycle": (cyclic, "contains itself"),
    "function": (lambda: print, "builtin_function_or_method"),
    "class": (lambda: int, "a class"),
    "object": (lambda: object(), "object"),
    "keys that collide": (lambda: {1: "a", "1": "b"}, "two keys"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_B134_what_cannot_be_stored_is_an_error_of_that_call_and_is_not_done_again(stage, case):
    # given a side effect that returns something that is no data
    value, word = REFUSED[case]
    ran: list[int] = []
    # when
    kind, content = given(stage, value, ran=ran, effect="side_effect", retries=3)
    # then it ran once, and the model knows what was wrong
    assert (kind, ran) == ("invalid_result", [1])
    assert word in content["message"]


# -- digits

EXACT: dict[str, Any] = {
    "an id of 64 bits": 653247040368672768,
    "an id beyond": 2**64 + 1,
    "four thousand digits": 10**4_000 + 1,
    "minus nought": -0.0,
    "the largest": 1e308,
    "a sum": 0.1 + 0.2,
    "a small one": 5e-324,
}


@pytest.mark.parametrize("case", EXACT)
def test_B135_numbers_keep_every_digit(stage, results_of, case):
    # given such a number as an argument that a tool gives back
    value = EXACT[case]
    echo = Tool(name="echo", description="Echo.", schema={"type": "object"}, handler=lambda arguments, ctx: arguments, effect="read")
    result = stage.play([{"calls": [{"name": "echo", "arguments": {"n": value}}]}, {"text": "done"}], [echo])
    # when it is read from the request, from the log, from an export and from what is shown
    records = list(stage.store.read(result.id))
    exported = [json.loads(line) for line in export_lines(stage.store, result.id)]
    payloads = stage.store.log.payloads(result.id)
    lines = [json.loads(full_line(record, payloads.__getitem__)) for record in records]
    shown = json.loads(json.dumps(show(stage.store, result.id)))
    found = [
        stage.requests()[1].messages[-1].content["n"],
        next(record.data["result"]["n"] for record in records if record.type == "tool_succeeded"),
        next(line["data"]["result"]["n"] for line in lines if line["type"] == "tool_succeeded"),
        next(observed["data"]["n"] for observed in shown["observations"]),
        next(call["arguments"]["n"] for message in shown["messages"] for call in message.get("calls", [])),
    ]
    # then it is the same everywhere, to the last digit and the sign
    assert exported
    assert all(repr(each) == repr(value) for each in found)


def test_B135_ids_of_ours_are_text(stage):
    # given any run
    result = stage.play([{"calls": [{"name": "give"}]}, {"text": "done"}], [returning(1)])
    # when its records are read as JSON
    lines = [json.loads(record.stored) for record in result.records]
    # then what names something is text, and what counts is far below what a double holds
    assert all(isinstance(line["run"], str) and isinstance(line["digest"], str) for line in lines)
    assert all(isinstance(line.get("call", ""), str) for line in lines)
    assert all(line["at"] < 2**53 for line in lines)


def test_B135_an_integer_without_end_is_an_error_result_on_both_ways(stage, results_of):
    # given five thousand digits, in arguments and in a result
    digits = "9" * 5_000
    ran: list[int] = []
    calls = [{"name": "give", "arguments": '{"n": ' + digits + "}"}, {"name": "give", "arguments": {}}]
    # when
    result = stage.play([{"calls": calls}, {"text": "done"}], [returning(lambda: 10**5_000, ran)])
    # then both calls have results that say so
    results = results_of(result)
    assert [kind for kind, _ in results.values()] == ["invalid_arguments", "invalid_result"]
    assert all("digits" in content["message"] for _, content in results.values())
    assert (result.status, ran) == ("completed", [1])


# -- depth


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":' + "[" * 2_000 + "]" * 2_000 + "}"], ids=["brackets", "braces", "well formed"])
def test_B136_very_deep_arguments_are_an_error_result(stage, results_of, text):
    # given arguments of endless depth
    ran: list[int] = []
    # when
    result = stage.play([{"calls": [{"name": "give", "arguments": text}]}, {"text": "done"}], [returning(1, ran)])
    # then the call is refused with a bounded message, and the log can be read (the stage does)
    kind, content = results_of(result)["t1.1"]
    assert (kind, ran, result.status) == ("invalid_arguments", [], "completed")
    assert len(json.dumps(content)) < 2_500


def test_B136_a_very_deep_result_is_an_error_result(stage):
    # given a result of two thousand levels
    kind, content = given(stage, lambda: nested(2_000))
    # then it is refused, and the reason names the bound
    assert kind == "invalid_result"
    assert "nested" in content["message"]


def test_B136_a_deep_result_within_the_bound_is_kept(stage):
    # given a result as deep as is allowed
    value = nested(190)
    # then it is the same for the model and in the log
    assert given(stage, value) == ("success", value)


def test_B136_a_very_deep_item_of_a_provider_fails_the_run_by_name(stage):
    # given a provider whose opaque item has no bottom
    model = stage.parts([p.OpaqueItem(item=nested(2_000)), p.TextDelta(text="done"), p.Finished(stop_reason="stop")])
    # when
    result = Agent(model=model).run_sync("Do it.", store=stage.store)
    # then
    assert (result.status, result.reason) == ("failed", "provider")
    assert "nested" in result.detail
