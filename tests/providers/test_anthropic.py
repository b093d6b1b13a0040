"""The Messages API: what goes over the wire to Anthropic's own SDK's server, and what comes back as parts."""

import asyncio
import json
from typing import Any

import pytest

from refold import Agent, Budgets, open_store, tool
from refold.projections.messages import Message, MessageCall, told, user
from refold.runtime import models, ports as p
from refold.runtime.models import UnknownModel
from refold.testing import strict
from refold.testing.loopback import Loopback, Reply

SPEC = "anthropic:claude-test"
THINKING = {"type": "thinking", "thinking": "I should look. \N{GRINNING FACE}", "signature": "c2ln+/=="}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    more = [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join([event("content_block_start", index=index, content_block=start), *more, event("content_block_stop", index=index)])


def stream(*blocks: bytes, stop: str = "end_turn", start: dict[str, Any] | None = None, end: dict[str, Any] | None = None, **details: Any) -> bytes:
    """A whole response; `start` and `end` are the usage at its beginning and its end."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": start or {"input_tokens": 5, "output_tokens": 1}}
    delta = event("message_delta", delta={"stop_reason": stop, **details}, usage=end or {"output_tokens": 3})
    return b"".join([event("message_start", message=message), event("ping"), *blocks, delta, event("message_stop")])


def text(index: int, *pieces: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call(index: int, name: str, *pieces: str, call_id: str = "toolu_1") -> bytes:
    return block(
        index, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, *({"type": "input_json_delta", "partial_json": each} for each in pieces)
    )


def thought(index: int) -> bytes:
    """Thinking in pieces, a character cut in two, and its signature behind."""
    pieces = ("I should ", "look. \ud83d", "\ude00")
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces] + [{"type": "signature_delta", "signature": THINKING["signature"]}]
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def asked(*messages: Message, **fields: Any) -> p.Request:
    return p.Request(**{"turn": 1, "number": 1, "instructions": "", "messages": messages, "tools": (), "max_output_tokens": 1_000, **fields})


def parts_of(server: Loopback, body: bytes, request: p.Request | None = None, **settings: Any) -> list[p.Part]:
    """What the model streams when its server answers so. Raises ModelError."""
    server.add(Reply.events(body))
    model = models.resolve(SPEC, base_url=server.url, settings=settings)

    async def received() -> list[p.Part]:
        return [p.checked(part) async for part in model.stream(request or asked(user("Go.")))]

    return asyncio.run(received())


def sent(server: Loopback, request: p.Request, **settings: Any) -> Any:
    """The body that a request becomes; one that a strict provider takes."""
    parts_of(server, stream(text(0, "Yes.")), request, **settings)
    strict.check_messages(server.requests[-1].json)
    return server.requests[-1].json


# -- what is wanted back


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_thinking_goes_back_as_it_came_and_where_it_came(server: Loopback, streamed: bool) -> None:
    # given a model that thinks, speaks, thinks behind a veil and calls
    if streamed:
        first = Reply.events(stream(thought(0), text(1, "I look."), block(2, REDACTED), call(3, "look", '{"at": ', '"home"}'), stop="tool_use"))
    else:
        spoken = [THINKING, {"type": "text", "text": "I look."}, REDACTED, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "home"}}]
        first = Reply.json({"id": "msg_1", "type": "message", "content": spoken, "stop_reason": "tool_use", "usage": {"input_tokens": 5, "output_tokens": 3}})
    server.add(first, Reply.events(stream(text(0, "Home it is."))))
    model = models.resolve(SPEC, base_url=server.url + "/v1", settings={"stream": streamed, "thinking.type": "adaptive"})
    # when its run goes on
    agent = Agent(model, instructions="Be brief.", tools=[look], budgets=Budgets(max_cost_usd=None), ask_user=False)
    assert agent.run_sync("Where am I?", store=open_store("memory:")).answer == "Home it is."
    # then the second request is exactly this
    body = server.requests[1].json
    strict.check_messages(body)
    question, spoken, results = body.pop("messages")
    assert question == {"role": "user", "content": [{"type": "text", "text": "Where am I?"}]}
    assert spoken == {
        "role": "assistant",
        "content": [THINKING, {"type": "text", "text": "I look."}, REDACTED, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "home"}}],
    }
    result, notice = results["content"]
    assert results["role"] == "user"
    assert {name: value for name, value in result.items() if name != "content"} == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "cache_control": {"type": "ephemeral"},
    }
    assert "\nseen home\n" in result["content"]
    assert notice["text"].startswith("[runtime] Budget left: ")
    assert body == {
        "model": "claude-test",
        "max_tokens": 4_096,
        "stream": streamed,
        "system": "Be brief.",
        "thinking": {"type": "adaptive"},
        "tools": [{"name": "look", "description": "Looks.", "input_schema": look.schema}],
    }


def test_only_what_the_same_model_can_check_goes_back(server: Loopback) -> None:
    # given thinking of another model, and of this one without its signature
    other, unsigned = (
        {"api": "anthropic.messages", "model": name, "place": [0, 0], "item": item}
        for name, item in (("claude-2", THINKING), ("claude-test", {"type": "thinking", "thinking": "?", "signature": ""}))
    )
    body = sent(server, asked(user("Go."), Message(role="assistant", text="Well.", opaque=(other, unsigned, {"api": "openai.responses"})), user("On.")))
    # then neither is sent
    assert body["messages"][1] == {"role": "assistant", "content": [{"type": "text", "text": "Well."}]}


def test_a_pause_goes_on_from_exactly_there(server: Loopback) -> None:
    # given a response in which the provider paused its own search
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "weather"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result", "encrypted_content": "abc"}]}
    more = {**use, "id": "srv_2", "input": {"query": "news"}}
    searched = block(
        1, {**use, "input": {}}, {"type": "input_json_delta", "partial_json": '{"query": '}, {"type": "input_json_delta", "partial_json": '"weather"}'}
    )
    body = stream(text(0, "I search. "), searched, block(2, found), text(3, "Some more."), block(4, more), stop="pause_turn")
    parts = parts_of(server, body)
    # then nothing of it is a call of ours, and it ends in a pause
    assert not [part for part in parts if isinstance(part, p.ToolCallOpened | p.ArgumentsDelta | p.ToolCallReady)]
    assert parts[-1] == p.Finished(stop_reason="pause", provider_stop_reason="pause_turn")
    opaque = tuple(part.item for part in parts if isinstance(part, p.OpaqueItem))
    paused = Message(role="assistant", text="I search. Some more.", kind="paused", opaque=opaque)
    said = [{"type": "text", "text": "I search. "}, use, found, {"type": "text", "text": "Some more."}]
    # when it is to go on, then the request ends with it, and nothing stands behind
    body = sent(server, asked(user("Go."), paused, notice="Budget left: little."))
    assert body["messages"][-1] == {"role": "assistant", "content": [*said, more]}
    # and when the user speaks instead, the search that was not answered is left out
    body = sent(server, asked(user("Go."), paused, user("Stop that.")))
    assert body["messages"][1] == {"role": "assistant", "content": said}


# -- how a response ends, and what it costs


@pytest.mark.parametrize(
    ("word", "stop"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("model_context_window_exceeded", "context_overflow"),
        ("something_new", "unknown"),
    ],
)
def test_every_reason_to_stop_has_its_meaning_and_keeps_its_word(server: Loopback, word: str, stop: Any) -> None:
    assert parts_of(server, stream(text(0, "Yes."), stop=word))[-1] == p.Finished(stop_reason=stop, provider_stop_reason=word)


def test_a_refusal_says_why(server: Loopback) -> None:
    parts = parts_of(server, stream(text(0, "No."), stop="refusal", stop_details={"type": "refusal", "explanation": "It would do harm."}))
    assert [part for part in parts if isinstance(part, p.Refusal | p.Finished)] == [
        p.Refusal(text="It would do harm."),
        p.Finished(stop_reason="refusal", provider_stop_reason="refusal"),
    ]


def test_what_was_read_from_a_cache_was_read_too(server: Loopback) -> None:
    # given usage at the beginning, and later numbers that stand for earlier ones
    start = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30, "output_tokens": 1}
    end = {"input_tokens": 12, "cache_read_input_tokens": None, "output_tokens": 7, "output_tokens_details": {"thinking_tokens": 4}}
    parts = parts_of(server, stream(text(0, "Yes."), start=start, end=end))
    # then each report is a total, and the last one counts
    first, last = [part for part in parts if isinstance(part, p.UsageUpdated)]
    assert first == p.UsageUpdated(input_tokens=240, output_tokens=1, cached_input_tokens=200, cache_write_tokens=30)
    assert last == p.UsageUpdated(input_tokens=242, output_tokens=7, cached_input_tokens=200, cache_write_tokens=30, reasoning_tokens=4)


def test_a_call_without_arguments_has_the_empty_text(server: Loopback) -> None:
    parts = parts_of(server, stream(call(0, "look", ""), stop="tool_use"))
    calls = [part for part in parts if isinstance(part, p.ToolCallOpened | p.ArgumentsDelta | p.ToolCallReady)]
    assert calls == [p.ToolCallOpened(index=0, name="look", id="toolu_1"), p.ToolCallReady(index=0, name="look", arguments="", id="toolu_1")]


def test_arguments_that_are_cut_off_are_left_as_they_are(server: Loopback) -> None:
    ready = [part for part in parts_of(server, stream(call(0, "look", '{"at": "ho'), stop="max_tokens")) if isinstance(part, p.ToolCallReady)]
    assert [part.arguments for part in ready] == ['{"at": "ho']


def test_a_silent_model_gives_signs_of_life(server: Loopback) -> None:
    parts = parts_of(server, stream(text(0, "Yes.")))
    assert p.ReasoningDelta(text="") in parts


# -- what is no response


def failed(server: Loopback, body: bytes) -> p.ModelError:
    with pytest.raises(p.ModelError) as error:
        parts_of(server, body)
    return error.value


def test_a_second_message_inside_the_first_is_an_error_of_the_protocol(server: Loopback) -> None:
    # given two responses that a proxy spliced together
    first = stream(call(0, "look", '{"at": "home"}')).partition(b"event: message_delta")[0]
    error = failed(server, first + stream(text(0, "Yes.")).replace(b"msg_1", b"msg_2"))
    assert (error.type, error.code, error.retryable, error.mid_stream) == ("protocol", "spliced_message", True, True)


def test_an_error_in_the_middle_is_the_providers(server: Loopback) -> None:
    body = stream(text(0, "Yes.")).partition(b"event: message_delta")[0] + event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    error = failed(server, body)
    assert (error.type, error.message, error.retryable, error.mid_stream) == ("overloaded_error", "Overloaded", True, True)


@pytest.mark.parametrize("odd", [b"data: {no json\n\n", b'data: {"type": "content_block_delta", "index": 9, "delta": {}}\n\n', b"data: 7\n\n"])
def test_what_no_reader_understands_is_an_error_of_the_protocol(server: Loopback, odd: bytes) -> None:
    error = failed(server, stream().partition(b"event: message_delta")[0] + odd)
    assert (error.type, error.retryable, error.mid_stream) == ("protocol", True, True)


def test_events_that_nobody_knows_yet_are_passed_over(server: Loopback) -> None:
    body = event("dance", steps=3) + b": a comment\n\n" + stream(text(0, "Yes.")) + event("encore")
    assert [part.text for part in parts_of(server, body) if isinstance(part, p.TextDelta)] == ["Yes."]


# -- the request


def test_roles_take_turns_and_nothing_is_blank(server: Loopback) -> None:
    # given a history as it can come: two messages of the user, blank text, illegal names and ids, arguments that are no object, a message of the runtime
    calls = (
        MessageCall(id="t1.1", name="look up!", arguments_text='["no object"]', provider_id="id with spaces"),
        MessageCall(id="t1.2", name="look", arguments_text='{"at": "home"}', provider_id="toolu_1"),
    )
    history = (
        user("One."),
        user("Two."),
        Message(role="assistant", text=" \n", calls=calls),
        Message(role="tool", call_id="t1.1", name="look up!", kind="unknown_tool", content={"error": "unknown_tool"}),
        Message(role="tool", call_id="t1.2", name="look", kind="success", content=""),
        told("Go on."),
        Message(role="assistant", text="\u200b"),
        user("Three."),
    )
    spec = p.ToolSpec(name="look", description="Looks.", schema=look.schema)
    # when it is sent
    body = sent(server, asked(*history, tools=(spec,), notice="Budget left: little."))
    # then it is legal, and says the same
    first, spoken, behind = body["messages"]
    assert [part["text"] for part in first["content"]] == ["One.", "Two."]
    assert spoken["content"] == [
        {"type": "tool_use", "id": "call_t1_1", "name": "look_up_", "input": {}},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "home"}},
    ]
    refused, empty, *texts = behind["content"]
    assert (refused["tool_use_id"], refused["is_error"], "is_error" in empty) == ("call_t1_1", True, False)
    assert [part["text"] for part in texts] == ["[runtime] Go on.", "Three.", "[runtime] Budget left: little."]
    # and what the next request repeats is marked for the cache, which the notice is not
    assert [("cache_control" in part) for part in behind["content"]] == [False, False, False, True, False]


def test_a_last_turn_without_tools_declares_those_of_the_history(server: Loopback) -> None:
    # given a history with a call, and a request that offers no tools
    spoken = Message(role="assistant", calls=(MessageCall(id="t1.1", name="look", arguments_text="{}", provider_id="toolu_1"),))
    history = (user("Go."), spoken, Message(role="tool", call_id="t1.1", name="look", kind="success", content="x"))
    body = sent(server, asked(*history), tool_choice={"type": "any"})
    # then the tool is declared, out of use
    assert [declared["name"] for declared in body["tools"]] == ["look"]
    assert body["tool_choice"] == {"type": "none"}
    # and without a call in the history nothing is
    body = sent(server, asked(user("Go.")))
    assert not {"tools", "tool_choice"} & body.keys()


def test_settings_are_sent_as_they_are(server: Loopback) -> None:
    body = sent(server, asked(user("Go.")), temperature="0.5", top_k=3, max_tokens=90_000, cache_control=None, service_tier=None)
    assert (body["temperature"], body["top_k"], body["max_tokens"]) == (0.5, 3, 1_000)
    assert "service_tier" not in body
    assert sent(server, asked(user("Go.")), max_tokens=50)["max_tokens"] == 50
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Go."}]}]


def test_thinking_fits_into_what_is_left(server: Loopback) -> None:
    # given a budget of thinking that was right when the run began
    settings = {"thinking.type": "enabled", "thinking.budget_tokens": 4_000}
    assert sent(server, asked(user("Go."), max_output_tokens=8_000), **settings)["thinking"]["budget_tokens"] == 4_000
    # when less output is left, then it is made smaller, and at last there is none
    assert sent(server, asked(user("Go."), max_output_tokens=2_000), **settings)["thinking"]["budget_tokens"] == 1_999
    assert "thinking" not in sent(server, asked(user("Go."), max_output_tokens=500), **settings)


def test_an_answers_schema_is_enforced_as_far_as_the_api_can(server: Loopback) -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer", "minimum": 2000}}, "required": ["year"]}
    enforced = sent(server, asked(user("Go."), answer_schema=schema), **{"output_config.effort": "low"})["output_config"]
    assert enforced["effort"] == "low"
    assert enforced["format"]["type"] == "json_schema"
    assert enforced["format"]["schema"]["additionalProperties"] is False
    assert "output_config" not in sent(server, asked(user("Go."), answer_schema={"anything": "goes"}))


# -- making one


@pytest.mark.parametrize(
    ("name", "base_url", "settings", "says"),
    [
        ("", None, {}, "anthropic:NAME"),
        ("x", "localhost:1", {}, "address"),
        ("x", None, {"messages": []}, "model.messages"),
        ("x", None, {"api_key": "y"}, "model.api_key"),
        ("x", None, {"stream": "yes"}, "model.stream"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(name: str, base_url: str | None, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UnknownModel, match=says) as refused:
        models.resolve(f"anthropic:{name}", base_url=base_url, settings=settings)
    assert "\n" not in str(refused.value)


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(UnknownModel, match="ANTHROPIC_API_KEY"):
        models.resolve(SPEC)


def test_the_address_is_the_one_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.resolve(SPEC).base_url == "https://api.anthropic.com"  # type: ignore[attr-defined] - of a model behind a server
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/v1/")
    assert models.resolve(SPEC).base_url == "http://127.0.0.1:9"  # type: ignore[attr-defined] - the same


def test_a_run_goes_on_where_the_provider_paused(server: Loopback) -> None:
    # given a provider that pauses its own search, and goes on when it is asked again
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "weather"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    server.add(Reply.events(stream(text(0, "I search."), block(1, use), stop="pause_turn")), Reply.events(stream(block(0, found), text(1, "It rains."))))
    server.add(Reply.events(stream(text(0, "Tomorrow too."))))
    agent = Agent(models.resolve(SPEC, base_url=server.url), budgets=Budgets(max_cost_usd=None), ask_user=False)
    store = open_store("memory:")
    # when it is run, and continued
    result = agent.run_sync("How is the weather?", store=store)
    assert result.answer == "It rains."
    agent.continue_run_sync(result.id, "And tomorrow?", store=store)
    # then the second request ends with what was paused, and the third has it as one turn
    for heard in server.requests:
        strict.check_messages(heard.json)
    said = [{"type": "text", "text": "I search."}, use]
    assert server.requests[1].json["messages"][-1] == {"role": "assistant", "content": said}
    assert server.requests[2].json["messages"][1] == {"role": "assistant", "content": [*said, found, {"type": "text", "text": "It rains."}]}
