"""The strict providers take what is legal, and refuse what real ones refuse, saying where."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from refold.testing import strict

SCHEMA = {"type": "object", "properties": {}}

CHAT: dict[str, Any] = {
    "model": "m",
    "tools": [{"type": "function", "function": {"name": "look", "description": "", "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "tool", "tool_call_id": "b", "content": "y"},
        {"role": "user", "content": "On."},
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "max_output_tokens": 16,
    "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
    "input": [
        {"role": "user", "content": "Go."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "x"},
        {"type": "function_call_output", "call_id": "b", "output": "y"},
        {"role": "user", "content": [{"type": "input_text", "text": "On."}]},
    ],
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 2_000,
    "system": "Be brief.",
    "thinking": {"type": "enabled", "budget_tokens": 1_024},
    "tools": [{"name": "look", "input_schema": SCHEMA}],
    "messages": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "c2ln"},
                {"type": "text", "text": "I look."},
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
                {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "x"},
                {"type": "tool_result", "tool_use_id": "b", "content": "y", "is_error": True},
                {"type": "text", "text": "On."},
            ],
        },
    ],
}
LEGAL = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES}


def put(*path: str | int, value: Any) -> Callable[[Any], None]:
    """A change: a value put somewhere."""

    def change(body: Any) -> None:
        *way, last = path
        for step in way:
            body = body[step]
        body[last] = value

    return change


def drop(*path: str | int) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        *way, last = path
        for step in way:
            body = body[step]
        del body[last]

    return change


def swap(*path: str | int) -> Callable[[Any], None]:
    """A change: two neighbours trade places."""

    def change(body: Any) -> None:
        *way, n = path
        for step in way:
            body = body[step]
        body[n], body[n + 1] = body[n + 1], body[n]

    return change


@pytest.mark.parametrize("path", LEGAL)
def test_what_is_legal_is_taken(path: str) -> None:
    strict.check(path, copy.deepcopy(LEGAL[path]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop("model"), "model"),
        (put("messages", value=[]), "messages"),
        (put("messages", 0, "content", value=" \n"), "blank"),
        (swap("messages", 0), "instructions"),
        (put("messages", 1, "role", value="human"), "no role 'human'"),
        (drop("messages", 1), "the first message"),
        (put("messages", 2, "tool_calls", value=[]), "empty list"),
        (put("messages", 2, "tool_calls", 0, "type", value="custom"), "only functions"),
        (put("messages", 2, "tool_calls", 1, "id", value="a"), "second call"),
        (put("messages", 2, "tool_calls", 0, "id", value=""), "no legal id"),
        (put("messages", 2, "tool_calls", 0, "function", "name", value="look up"), "no legal name"),
        (put("messages", 2, "tool_calls", 0, "function", "arguments", value="[]"), "JSON object"),
        (put("messages", 2, "tool_calls", 0, "function", "arguments", value='{"a": NaN}'), "JSON object"),
        (put("messages", 2, "tool_calls", 0, "function", "arguments", value={}), "JSON object"),
        (drop("messages", 4), "'b' has no result"),
        (swap("messages", 3), "in the order"),
        (swap("messages", 4), "'b' has no result"),
        (put("messages", 3, "tool_call_id", value="c"), "'a' has no result"),
        (put("messages", 4, "tool_call_id", value="a"), "'b' has no result"),
        (put("messages", 4, "content", value=""), "blank"),
        (put("messages", 5, value={"role": "assistant", "content": "Hm."}), "last message"),
        (put("tools", value=[]), "tools"),
        (put("tools", 0, "function", "parameters", value={}), "JSON Schema"),
        (lambda body: (body.pop("tools"), body.update(tool_choice="auto")), "only with tools"),
    ],
)
def test_chat_completions_refuse(change: Callable[[Any], None], says: str) -> None:
    refuses("/v1/chat/completions", change, says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put("previous_response_id", value="resp_1"), "not referred to"),
        (put("max_output_tokens", value=8), "max_output_tokens"),
        (put("instructions", value=""), "instructions"),
        (put("input", 0, "role", value="tool"), "no role 'tool'"),
        (drop("input", 0), "the user's"),
        (put("input", 1, "encrypted_content", value=""), "with its content"),
        (drop("input", 1, "summary"), "summary"),
        (swap("input", 0), "without the item that follows"),
        (put("input", 2, "content", value=[{"type": "input_text", "text": "x"}]), "input_text"),
        (put("input", 7, "content", 0, "type", value="output_text"), "output_text"),
        (put("input", 3, "arguments", value=""), "JSON object"),
        (put("input", 4, "call_id", value="a"), "second call"),
        (put("input", 4, "id", value="rs_1"), "second item"),
        (drop("input", 5), "call_id 'b'"),
        (swap("input", 5), "call_id 'b'"),
        (swap("input", 6), "'b' has no result"),
        (put("input", 6, "call_id", value="c"), "call_id 'c'"),
        (put("input", 6, "output", value=""), "blank"),
        (put("input", 7, value={"type": "item_reference", "id": "x"}), "keeps nothing"),
        (put("input", 7, value={"role": "assistant", "content": "Hm."}), "model's own"),
        (lambda body: body["input"].insert(7, copy.deepcopy({**RESPONSES["input"][1], "id": "rs_2"})), "without the item that follows"),
    ],
)
def test_responses_refuse(change: Callable[[Any], None], says: str) -> None:
    refuses("/v1/responses", change, says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop("max_tokens"), "max_tokens"),
        (put("thinking", "budget_tokens", value=2_000), "budget_tokens"),
        (put("system", value=""), "system"),
        (put("messages", 0, "role", value="system"), "take turns"),
        (drop("messages", 0), "take turns"),
        (put("messages", 0, "content", value=[]), "messages[0]"),
        (put("messages", 0, "content", value=[{"type": "text", "text": " "}]), "blank"),
        (put("messages", 0, "content", value=[{"type": "tool_use"}]), "no block 'tool_use'"),
        (put("messages", 1, "content", 0, "signature", value=""), "signature"),
        (swap("messages", 1, "content", 0), "thinking stands first"),
        (drop("messages", 1, "content", 2), "belongs to nothing"),
        (put("messages", 1, "content", 4, "id", value="call/1"), "no legal id"),
        (put("messages", 1, "content", 5, "id", value="a"), "second call"),
        (put("messages", 1, "content", 4, "input", value="{}"), "an object"),
        (put("messages", 1, "content", 4, "name", value=""), "no legal name"),
        (drop("messages", 2), "'a' has no result"),
        (drop("messages", 2, "content", 1), "'b' has no result"),
        (swap("messages", 2, "content", 0), "in the order"),
        (swap("messages", 2, "content", 1), "results stand before"),
        (put("messages", 2, "content", 0, "tool_use_id", value="c"), "'a' has no result"),
        (put("messages", 2, "content", 1, "content", value=""), "says what it is"),
        (drop("tools"), "needs the tools declared"),
        (lambda body: body["messages"].append({"role": "assistant", "content": "Hm."}), "last message"),
    ],
)
def test_anthropic_messages_refuse(change: Callable[[Any], None], says: str) -> None:
    refuses("/v1/messages", change, says)


def test_a_paused_search_may_end_a_request_and_nothing_else() -> None:
    # given a history that ends where the provider paused
    paused = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "srv_2", "name": "web_search", "input": {}}]}
    body = copy.deepcopy(MESSAGES)
    body["messages"].append(paused)
    # then it is legal
    strict.check_messages(body)
    # when it ends in a blank, then it is not
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_2", "content": []}
    padded = {**body, "messages": [*MESSAGES["messages"], {**paused, "content": [*paused["content"], found, {"type": "text", "text": "It rains. "}]}]}
    with pytest.raises(strict.Refused, match="white space"):
        strict.check_messages(padded)
    # when the user speaks behind it, then it is not
    body["messages"].append({"role": "user", "content": "Well?"})
    with pytest.raises(strict.Refused, match="srv_2"):
        strict.check_messages(body)


def test_a_path_of_no_api_is_refused() -> None:
    with pytest.raises(strict.Refused, match="/v1/embeddings"):
        strict.check("/v1/embeddings", {})


def refuses(path: str, change: Callable[[Any], None], says: str) -> None:
    # given a legal request and one change to it
    body = copy.deepcopy(LEGAL[path])
    change(body)
    # then it is refused in a sentence that says where
    with pytest.raises(strict.Refused) as refused:
        strict.check(path, body)
    assert says in str(refused.value)
