"""Arguments of calls: what a model sends is checked on every path, never repaired, never guessed, and never breaks the conversation."""

import asyncio
import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from refold import Agent, Budgets, Policy, Tool, tool
from refold.runtime import ports as p


def kinds(results: dict[str, tuple[str, Any]]) -> list[str]:
    return [kind for kind, _ in results.values()]


@pytest.mark.parametrize("text", ["", "  ", "{}", " \n{ } "])
def test_B054_empty_arguments_of_a_tool_without_parameters_are_no_arguments(stage, results_of, text):
    # given a tool without parameters
    ran = []

    @tool(effect="read")
    def ping() -> str:
        """Ping."""
        ran.append("ping")
        return "pong"

    # when the model calls it with nothing, in one of the ways models have of saying so
    result = stage.play([{"calls": [{"name": "ping", "arguments": text}]}, {"text": "done"}], [ping])

    # then it runs, and the history that is sent back has a JSON object
    assert (result.status, ran) == ("completed", ["ping"])
    assert results_of(result)["t1.1"] == ("success", "pong")
    assert json.loads(stage.requests()[1].messages[1].calls[0].arguments_text) == {}


def test_B054_a_call_without_any_fragment_of_arguments_has_none(stage, results_of):
    # given a stream that opens a call and never sends a piece of its arguments
    @tool(effect="read")
    def ping() -> str:
        """Ping."""
        return "pong"

    model = stage.parts(
        [p.ToolCallOpened(index=0, name="ping", id="c1"), p.Finished(stop_reason="tool_calls")],
        [p.TextDelta(text="done"), p.Finished(stop_reason="stop")],
    )
    # when it is run
    result = Agent(model=model, tools=[ping]).run_sync("Ping.", store=stage.store)
    # then the tool runs
    assert results_of(result)["t1.1"] == ("success", "pong")


def test_B054_null_is_refused_and_a_required_field_is_named(stage, results_of):
    ran = []

    @tool(effect="read")
    def ping() -> str:
        """Ping."""
        ran.append("ping")
        return "pong"

    @tool(effect="read")
    def read(path: str) -> str:
        """Read."""
        ran.append("read")
        return path

    # given null for a tool without parameters, and nothing for one with a required parameter
    calls = [{"name": "ping", "arguments": "null"}, {"name": "read", "arguments": ""}]
    # when
    result = stage.play([{"calls": calls}, {"text": "done"}], [ping, read])
    # then both are refused with words that help, and nothing ran
    results = results_of(result)
    assert ran == []
    assert kinds(results) == ["invalid_arguments", "invalid_arguments"]
    assert "null" in results["t1.1"][1]["message"]
    assert "path: is missing" in results["t1.2"][1]["message"]


def test_B055_broken_json_never_becomes_an_empty_object(stage, results_of):
    # given a tool that would do harm with its defaults, and a call cut in the middle of a string
    deleted = []

    @tool
    def delete_files(pattern: str | None = None) -> str:
        """Delete files, all of them by default."""
        deleted.append(pattern)
        return "deleted"

    broken = '{"pattern": "old-*'
    # when
    result = stage.play([{"calls": [{"name": "delete_files", "arguments": broken}]}, {"text": "gave up"}], [delete_files])
    # then nothing is executed; the result says what is wrong, where, and what is wanted
    kind, content = results_of(result)["t1.1"]
    assert (deleted, result.tool_calls, kind) == ([], 0, "invalid_arguments")
    assert "not JSON" in content["message"]
    assert "line 1 column 18" in content["message"]
    assert "pattern (string or null)" in content["message"]
    # and the log has what the model sent
    requested = next(record for record in result.records if record.type == "tool_calls_requested")
    assert requested.data["calls"][0]["arguments_text"] == broken


def test_B055_refused_calls_are_repeats_like_others_and_end_in_a_cycle(stage):
    # given a model that sends the same broken call for ever
    @tool
    def delete_files(pattern: str | None = None) -> str:
        """Delete files."""
        raise AssertionError("never runs")

    turns = [{"calls": [{"name": "delete_files", "arguments": '{"pattern": "old-*'}]}] * 12
    # when
    result = stage.play(turns, [delete_files])
    # then the run ends by itself, long before its turns are used up
    assert (result.status, result.reason, result.turns) == ("failed", "cycle", 3)


def test_B056_malformed_arguments_do_not_end_the_run(stage, results_of):
    # given three bad calls in a row, the first beside a good sibling, then a good one
    ran = []

    @tool(effect="read")
    def look(at: str) -> str:
        """Look."""
        ran.append(at)
        return f"saw {at}"

    def bad(n: int) -> dict[str, Any]:
        return {"name": "look", "arguments": f'{{"at": "x{n}"}}, }}'}

    turns = [
        {"calls": [bad(1), {"name": "look", "arguments": {"at": "sibling"}}]},
        {"calls": [bad(2)]},
        {"calls": [bad(3)]},
        {"calls": [{"name": "look", "arguments": {"at": "last"}}]},
        {"text": "done"},
    ]
    # when
    result = stage.play(turns, [look])
    # then the sibling ran in its turn, each bad call has an error, the fourth turn ran, and the run is done
    results = results_of(result)
    assert result.status == "completed"
    assert ran == ["sibling", "last"]
    assert [results[call][0] for call in ("t1.1", "t1.2", "t2.1", "t3.1", "t4.1")] == [
        "invalid_arguments",
        "success",
        "invalid_arguments",
        "invalid_arguments",
        "success",
    ]


def test_B056_bad_calls_in_a_row_can_be_limited(stage):
    # given a policy that takes two repeats of one invalid call, and no more
    @tool(effect="read")
    def look(at: str) -> str:
        """Look."""
        return at

    turns = [{"calls": [{"name": "look", "arguments": '{"at": }'}]}] * 5
    # when
    result = stage.play(turns, [look], policy=Policy(cycle_lengths=(1,), cycle_repeats=2))
    # then the run fails and says so
    assert (result.status, result.reason, result.turns) == ("failed", "cycle", 2)


NOT_OBJECTS = {
    "array": ("[1,2]", "an array"),
    "string": ('"abc"', "a string"),
    "number": ("5", "a number"),
    "true": ("true", "true or false"),
    "null": ("null", "null"),
    "two objects": ('{"a":1}{"b":2}', "trailing characters"),
    "words behind": ('{"a":1} and that is all', "trailing characters"),
    "a key twice": ('{"a":1,"a":2}', '"a" twice'),
    "NaN": ('{"a":NaN}', "not JSON"),
}


@pytest.mark.parametrize("case", NOT_OBJECTS)
def test_B057_valid_json_that_is_no_object_is_refused_with_its_own_message(stage, results_of, case):
    # given a tool that would take anything
    text, word = NOT_OBJECTS[case]
    ran = []
    grab = Tool(name="grab", description="Grab.", schema={"type": "object"}, handler=lambda arguments, ctx: ran.append(arguments), effect="read")
    # when
    result = stage.play([{"calls": [{"name": "grab", "arguments": text}]}, {"text": "done"}], [grab])
    # then it does not run, the message says what was sent, without a traceback, and the loop goes on
    kind, content = results_of(result)["t1.1"]
    assert (ran, kind, result.status) == ([], "invalid_arguments", "completed")
    assert word in content["message"]
    assert "Traceback" not in content["message"]


def test_B058_arguments_encoded_twice_are_refused_and_the_model_is_told_how_to_send_them(stage, results_of):
    # given the whole object as a JSON string, also for a tool whose only parameter is a string
    ran = []

    @tool(effect="read")
    def weather(city: str) -> str:
        """Weather."""
        ran.append(city)
        return "fine"

    text = json.dumps(json.dumps({"city": "Graz"}))
    # when
    result = stage.play(
        [{"calls": [{"name": "weather", "arguments": text}]}, {"calls": [{"name": "weather", "arguments": {"city": "Graz"}}]}, {"text": "fine"}], [weather]
    )
    # then the outer string never reaches the tool; the model is told, sends an object, and that runs
    kind, content = results_of(result)["t1.1"]
    assert (kind, ran) == ("invalid_arguments", ["Graz"])
    assert "send an object, not a string" in content["message"]
    assert content["sent"] == text


class Item(BaseModel):
    name: str


def test_B059_a_nested_list_sent_as_a_string_is_named_and_real_strings_are_never_altered(stage, results_of):
    # given a tool with a list and a note
    got = []

    @tool(effect="read")
    def plan(items: list[Item], note: str) -> str:
        """Plan."""
        got.append((items, note))
        return note

    wrong = {"items": '[{"name": "a"}]', "note": "[1,2]"}
    right = {"items": [{"name": "a"}], "note": "[1,2]"}
    # when the list is sent as text, then as a list; the note looks like JSON both times
    result = stage.play([{"calls": [{"name": "plan", "arguments": wrong}]}, {"calls": [{"name": "plan", "arguments": right}]}, {"text": "done"}], [plan])
    # then the error names the field and what it wants, and the note arrives as it was sent
    results = results_of(result)
    assert results["t1.1"][0] == "invalid_arguments"
    assert "items:" in results["t1.1"][1]["message"]
    assert "array" in results["t1.1"][1]["message"] or "list" in results["t1.1"][1]["message"]
    assert "note:" not in results["t1.1"][1]["message"]
    assert got == [([Item(name="a")], "[1,2]")]


@pytest.mark.parametrize(
    "text", ['{"n": ', "nonsense", "[1]", '{"n": "\x00"}', '{"n": "\\ud83d"}', '{"n": ' + "9" * 5000 + "}", "[" * 3000, '{"n":' * 300 + "1" + "}" * 300]
)
def test_B060_a_malformed_call_does_not_poison_the_history(stage, results_of, text):
    # given a strict provider (every request is checked when the scenario ends) and one malformed call
    @tool(effect="read")
    def count(n: int) -> int:
        """Count."""
        return n

    # when the model recovers
    result = stage.play([{"calls": [{"name": "count", "arguments": text}]}, {"text": "recovered"}], [count])
    # then the history has a legal form of the call, and the result shows the model what it had sent, bounded
    called, told = stage.requests()[1].messages[1:]
    assert result.answer == "recovered"
    assert called.calls[0].arguments_text == "{}"
    assert told.content["sent"].startswith(text[:100])
    assert len(told.content["sent"]) < 300


def test_B060_arguments_that_are_an_object_are_sent_back_as_the_model_wrote_them(stage):
    # given an object that does not fit, written in the model's own way
    text = '{ "n" : "three",  "n2":1.0 }'

    @tool(effect="read")
    def count(n: int) -> int:
        """Count."""
        return n

    # when
    stage.play([{"calls": [{"name": "count", "arguments": text}]}, {"text": "recovered"}], [count])
    # then not a space of it is changed
    assert stage.requests()[1].messages[1].calls[0].arguments_text == text
    assert "sent" not in stage.requests()[1].messages[2].content


def test_B061_a_call_with_a_control_character_is_not_dropped(stage, results_of):
    # given a stream with a raw NUL inside a string of the arguments
    @tool(effect="read")
    def look(at: str) -> str:
        """Look."""
        raise AssertionError("never runs")

    model = stage.parts(
        [
            p.ToolCallOpened(index=0, name="look", id="c1"),
            p.ArgumentsDelta(index=0, text='{"at": "a'),
            p.ArgumentsDelta(index=0, text='\x00b"}'),
            p.Finished(stop_reason="tool_calls"),
        ],
        [p.TextDelta(text="done"), p.Finished(stop_reason="stop")],
    )
    # when
    result = Agent(model=model, tools=[look]).run_sync("Look.", store=stage.store)
    # then there is one invalid call with its own result, not an empty answer
    assert kinds(results_of(result)) == ["invalid_arguments"]
    assert (result.status, result.answer, result.turns) == ("completed", "done", 2)


@pytest.mark.parametrize("text", ['{"data": "' + "x" * 500_000, json.dumps({"data": "x" * 500_000, "unknown": 1})], ids=["cut", "does not fit"])
def test_B062_huge_invalid_arguments_are_not_echoed(stage, results_of, text):
    # given 500 kB of arguments that are refused
    @tool(effect="read")
    def store(data: str) -> str:
        """Store."""
        return "stored"

    # when
    result = stage.play([{"calls": [{"name": "store", "arguments": text}]}, {"text": "gave up"}], [store], budgets=Budgets(max_tokens=None))
    # then the error is small and states how much there was, the next request hardly grows, and the log has it all
    _, content = results_of(result)["t1.1"]
    first, second = (len(msgspec.json.encode(request)) for request in stage.requests())
    assert len(json.dumps(content)) <= 2_048
    assert f"{len(text):,} characters" in content["message"]
    assert second - first < 4_096
    requested = next(record for record in result.records if record.type == "tool_calls_requested")
    assert requested.data["calls"][0]["arguments_text"] == text


CASES = {'{"n": "3"}': "n:", '{"n": 0}': "n:", '{"n": 3.5}': "n:", "{}": "n:", '{"n": 1, "x": "secret-value"}': "x:", '{"n": 0, "x": 1}': "n:"}


def verdicts(results: dict[str, tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(kind, content["message"] if isinstance(content, dict) else content) for kind, content in results.values()]


@pytest.mark.parametrize("path", ["sync", "async", "streaming", "approval", "resumed"])
def test_B063_validation_is_the_same_on_every_path(stage, results_of, path):
    # given a tool with a bound, and calls that break it, each in its own way, and one that does not
    ran = []
    approval: Literal["always", "never"] = "always" if path in ("approval", "resumed") else "never"

    @tool(effect="read", approval=approval)
    def take(n: Annotated[int, Field(ge=1)]) -> int:
        """Take."""
        ran.append(n)
        return n

    calls = [{"name": "take", "arguments": text} for text in [*CASES, '{"n": 3}']]
    agent = stage.agent([{"calls": calls}, {"text": "done"}], [take])
    # when it is run on one of the ways there are to run it
    match path:
        case "sync":
            result = agent.run_sync("Take.", store=stage.store)
        case "async":
            result = asyncio.run(agent.run("Take.", store=stage.store))
        case "streaming":

            async def listen() -> None:
                async for _ in agent.stream("Take.", store=stage.store, run_id="streamed"):
                    pass

            asyncio.run(listen())
            result = agent.resume_sync("streamed", store=stage.store)
        case _:
            waiting = agent.run_sync("Take.", store=stage.store)
            assert waiting.status == "waiting_for_user"
            assert ran == []
            stage.store.approve_sync(waiting.id)
            fresh = agent if path == "approval" else stage.agent([{"calls": calls}, {"text": "done"}], [take])
            result = fresh.resume_sync(waiting.id, store=stage.store)
    # then the verdicts are the same, nothing that breaks a rule runs, and no value is repeated
    results = results_of(result)
    assert ran == [3]
    assert kinds(results) == ["invalid_arguments"] * len(CASES) + ["success"]
    for (_, message), field in zip(verdicts(results), CASES.values(), strict=False):
        assert field in message
        assert "https://" not in message
        assert "secret-value" not in message
    both = verdicts(results)[5][1]
    assert "n:" in both
    assert "x:" in both


MEANT: dict[str, tuple[str, Any]] = {
    # arguments -> what is performed, or the field that is refused
    '{"dry_run": true, "n": 1, "name": "a"}': ("success", {"dry_run": True, "n": 1, "name": "a"}),
    '{"dry_run": false, "n": 1, "name": "b"}': ("success", {"dry_run": False, "n": 1, "name": "b"}),
    '{"dry_run": "false", "n": 1, "name": "a"}': ("invalid_arguments", "dry_run:"),
    '{"dry_run": "False", "n": 1, "name": "a"}': ("invalid_arguments", "dry_run:"),
    '{"dry_run": "0", "n": 1, "name": "a"}': ("invalid_arguments", "dry_run:"),
    '{"dry_run": 0, "n": 1, "name": "a"}': ("invalid_arguments", "dry_run:"),
    '{"dry_run": "no", "n": 1, "name": "a"}': ("invalid_arguments", "dry_run:"),
    '{"dry_run": "banana", "n": 1, "name": "a"}': ("invalid_arguments", "dry_run:"),
    '{"n": 1.0, "name": "a"}': ("invalid_arguments", "n:"),
    '{"n": "1", "name": "a"}': ("invalid_arguments", "n:"),
    '{"n": true, "name": "a"}': ("invalid_arguments", "n:"),
    '{"n": 1, "name": 2662}': ("invalid_arguments", "name:"),
}


@pytest.mark.parametrize("text", MEANT)
def test_B186_text_never_becomes_a_truth_value_or_a_number(stage, results_of, text):
    # given a tool whose dry run is a matter of one flag
    got = []

    @tool
    def grant(n: int, name: str, dry_run: bool = True) -> str:
        """Grant."""
        got.append({"dry_run": dry_run, "n": n, "name": name})
        return "granted"

    wanted, meant = MEANT[text]
    # when
    result = stage.play([{"calls": [{"name": "grant", "arguments": text}]}, {"text": "done"}], [grant])
    # then either exactly what was said is performed, and is what the log shows, or nothing is
    kind, content = results_of(result)["t1.1"]
    assert kind == wanted
    if wanted == "success":
        assert got == [meant]
        checked = next(record for record in result.records if record.type == "calls_checked")
        assert json.loads(checked.data["checks"][0]["arguments"]) == meant
    else:
        assert got == []
        assert meant in content["message"]
