"""Stream assembly: two calls are never glued into one, however little a server says of which piece is whose, and one call that comes twice is one."""

from collections.abc import Sequence
from typing import Any

import pytest

from refold import Policy, tool
from refold.events import facts as f
from refold.testing.replies import APIS, chunk, event

CHAT, RESPONSES = APIS["openai.chat"], APIS["openai.responses"]
DONE = b"data: [DONE]\n\n"


def piece(arguments: str | None = None, *, call_id: str | None = None, name: str | None = None, index: int | None = None) -> bytes:
    """A delta of one call, with what is given of it and nothing else."""
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    return chunk({"tool_calls": [{key: value for key, value in {"index": index, "id": call_id, "function": function}.items() if value is not None}]})


def reader(ran: list[str]) -> Any:
    @tool(effect="read")
    def read(path: str) -> str:
        """Reads."""
        ran.append(path)
        return f"read {path}"

    return read


def seen(path: str) -> str:
    return f'{{"path": "{path}"}}'


def proposed(result: Any) -> list[tuple[str, str, str]]:
    """The calls of the first turn that has some, as they were assembled."""
    fact = next(record.fact for record in result.records if isinstance(record.fact, f.ToolCallsRequested | f.ModelInterrupted | f.ModelFailed))
    return [(call.provider_id, call.name, call.arguments_text) for call in fact.calls]


ONE = [piece(call_id="a", name="read"), piece('{"path"', call_id="a"), piece(': "x"}', call_id="a")]
ONE_BARE = [piece("", call_id="a", name="read"), piece('{"path"'), piece(': "x"}')]
TWO_IDS = [piece('{"path": ', call_id="a", name="read"), piece('"x"}', call_id="a"), piece('{"path": ', call_id="b", name="read"), piece('"y"}', call_id="b")]
TWO_OPENED = [piece("", call_id="a", name="read"), piece('{"path": '), piece('"x"}'), piece("", call_id="b", name="read"), piece('{"path": '), piece('"y"}')]
TWO_NAMES = [piece("", name="read"), piece('{"path": '), piece('"x"}'), piece("", name="look"), piece('{"path": '), piece('"y"}')]
TWO_OF_ONE_NAME = [piece("", name="read"), piece('{"path": '), piece('"x"}'), piece("", name="read"), piece('{"path": '), piece('"y"}')]
NAMED_EACH_TIME = [piece('{"path": ', name="read"), piece('"x"}', name="read"), piece('{"path": ', name="read"), piece('"y"}', name="read")]
X, Y = seen("x"), seen("y")


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param(ONE, [("a", "read", X)], id="(a) one call, its id in every delta"),
        pytest.param(ONE_BARE, [("a", "read", X)], id="(a) one call, its id in the first"),
        pytest.param(TWO_IDS, [("a", "read", X), ("b", "read", Y)], id="(b) two calls with ids"),
        pytest.param(TWO_OPENED, [("a", "read", X), ("b", "read", Y)], id="(c) an id begins a call"),
        pytest.param(TWO_NAMES, [("", "read", X), ("", "look", Y)], id="(c) a name begins a call"),
        pytest.param(TWO_OF_ONE_NAME, [("", "read", X), ("", "read", Y)], id="(c) the same name behind a whole call begins one"),
        pytest.param(NAMED_EACH_TIME, [("", "read", X), ("", "read", Y)], id="(c) the name in every delta"),
    ],
)
def test_B065_fragments_without_index_are_the_calls_that_were_meant(wire, deltas, calls):
    # given a server that leaves out the index
    ran: list[str] = []
    reply = [*deltas, chunk({}, "tool_calls"), DONE]

    @tool(effect="read")
    def look(path: str) -> str:
        """Looks."""
        ran.append(path)
        return f"seen {path}"

    # when
    result = wire.play(CHAT, [reply, CHAT.text("done")], [reader(ran), look])
    # then every call was assembled, and ran once with its own arguments
    assert proposed(result) == calls
    assert ran == ["x", "y"][: len(calls)]
    assert (result.status, result.answer) == ("completed", "done")


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([piece(X, call_id="a", name="read"), piece(Y)], id="a second object that belongs to nobody"),
        pytest.param([piece(X), piece(Y)], id="neither id nor name at all"),
    ],
)
def test_B065_fragments_that_could_be_anybodys_are_an_error_of_the_protocol(wire, deltas):
    # given a server that does not say whose a piece is
    ran: list[str] = []
    reply = [*deltas, chunk({}, "tool_calls"), DONE]
    # when
    result = wire.play(CHAT, [reply], [reader(ran)], policy=Policy(max_provider_retries=0))
    # then nothing of it ran, nothing was glued together, and the log says what was wrong
    (failed,) = [record.fact for record in result.records if isinstance(record.fact, f.ModelFailed)]
    assert (failed.error.type, failed.error.code, failed.error.retryable) == ("protocol", "ambiguous_call", True)
    assert "nothing tells whose it is" in failed.error.message
    assert [call.arguments_text for call in failed.calls] in ([X], [])
    assert ran == []
    assert (result.status, result.tool_calls) == ("failed", 0)


def test_B065_a_model_that_writes_two_objects_in_one_call_is_told(wire, results_of):
    # given a server that says whose every piece is, and a model that wrote two objects into one call
    ran: list[str] = []
    reply = [piece(X, index=0, call_id="a", name="read"), piece(Y, index=0), chunk({}, "tool_calls"), DONE]
    # when
    result = wire.play(CHAT, [reply, CHAT.text("done")], [reader(ran)])
    # then it is one call, whose arguments are refused as they are
    assert proposed(result) == [("a", "read", X + Y)]
    assert results_of(result)["t1.1"][0] == "invalid_arguments"
    assert ran == []


def done_items(*calls: tuple[int, str, str]) -> list[bytes]:
    """A Responses stream of items that come complete."""
    items = [(n, {"type": "function_call", "call_id": call_id, "name": "read", "arguments": arguments}) for n, call_id, arguments in calls]
    output = list(dict(items).values())
    response = {"id": "r", "status": "completed", "output": output, "usage": {"input_tokens": 11, "output_tokens": 7}}
    return [*(event("response.output_item.done", output_index=n, item=item) for n, item in items), event("response.completed", response=response)]


OF = {"a": X, "b": Y}
RESENT: dict[str, tuple[Any, Sequence[bytes]]] = {
    "chat, no index": (CHAT, [piece(X, call_id="a", name="read"), piece(Y, call_id="b", name="read"), piece(X, call_id="a", name="read")]),
    "chat, every index is zero": (CHAT, [piece(OF[call_id], call_id=call_id, name="read", index=0) for call_id in "aba"]),
    "chat, at once": (CHAT, [piece(OF[call_id], call_id=call_id, name="read", index=n) for call_id, n in (("a", 0), ("a", 0), ("b", 1))]),
    "responses": (RESPONSES, done_items((0, "a", X), (1, "b", Y), (0, "a", X))),
}


@pytest.mark.parametrize(("api", "events"), RESENT.values(), ids=RESENT)
def test_B066_two_calls_of_one_tool_are_two_and_one_that_comes_again_is_no_third(wire, api, events):
    # given two complete calls of one tool, the first of which is sent once more
    ran: list[str] = []
    reply = [*events, chunk({}, "tool_calls"), DONE] if api is CHAT else events
    # when
    result = wire.play(api, [reply, api.text("done")], [reader(ran)])
    # then there are two calls, each valid and each run once
    assert proposed(result) == [("a", "read", X), ("b", "read", Y)]
    assert ran == ["x", "y"]
    assert (result.status, result.tool_calls) == ("completed", 2)


def test_B066_without_ids_another_object_is_another_call(wire):
    # given a server without ids that gives both calls the same index
    ran: list[str] = []
    reply = [piece(X, name="read", index=0), piece(Y, name="read", index=0), chunk({}, "tool_calls"), DONE]
    # when
    result = wire.play(CHAT, [reply, CHAT.text("done")], [reader(ran)])
    # then they are not glued together
    assert proposed(result) == [("", "read", X), ("", "read", Y)]
    assert ran == ["x", "y"]


def test_B066_a_third_place_with_a_used_id_is_no_legal_turn(wire, api):
    """The contract goes before the scenario: where a server numbers its calls, three places are three calls, and equal ids within one response are an invalid turn."""
    # given a response in which the first call stands again in a place of its own
    ran: list[str] = []
    thrice = api.calls(("a", "read", [X]), ("b", "read", [Y]), ("a", "read", [X]))
    # when
    result = wire.play(api, [thrice, api.text("done")], [reader(ran)])
    # then nothing of it ran, no argument was glued to another, and the model was told why
    (interrupted,) = [record.fact for record in result.records if isinstance(record.fact, f.ModelInterrupted)]
    assert interrupted.cause == "invalid"
    assert [call.arguments_text for call in interrupted.calls] == [X, Y, X]
    assert "two calls of the response have the id 'a'" in interrupted.detail
    assert ran == []
    assert result.answer == "done"
