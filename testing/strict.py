"""Strict providers, as far as a request shows: what real servers refuse in the history of a chat completion, a Responses call or an Anthropic message.

Apart from the loopback server, because a request can be judged without one; and stricter than any single provider, because a history must be legal for all that speak an API.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
RESPONSES_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
CHAT_ID: Final = re.compile(r"[\x21-\x7e]{1,512}")
"""Servers of chat completions give ids of every kind, and take them back."""
OUTPUT_TOKENS_MIN: Final = 16
THINKING_TOKENS_MIN: Final = 1_024

Body = dict[str, Any]


class Refused(ValueError):
    """A request that a provider would answer with 400; the message says where and why."""


def check(path: str, body: Body) -> None:
    """Judge a request by the path it was sent to. Raises Refused, also for a path of no known API."""
    for end, judge in APIS.items():
        if path.split("?")[0].endswith(end):
            return judge(body)
    raise Refused(f"no API is served at {path}")


# -- chat completions


def check_chat(body: Body) -> None:
    """A body of `POST /chat/completions`. Raises Refused."""
    _model(body)
    tools = _tools(body, lambda tool: tool.get("function"), "parameters")
    _need(bool(tools) or not {"tool_choice", "parallel_tool_calls"} & body.keys(), "tool_choice and parallel_tool_calls are allowed only with tools")
    messages = _list(body, "messages")
    used: set[str] = set()
    began = False
    for n, message in enumerate(messages):
        where = f"messages[{n}]"
        match message.get("role"):
            case "system" | "developer":
                _need(not began, f"{where}: instructions stand before everything else")
                _text(message.get("content"), where)
            case "user":
                began = True
                _text(message.get("content"), where)
            case "assistant":
                _need(began, f"{where}: the first message is the user's")
                _chat_assistant(message, messages[n + 1 :], where, used)
            case "tool":
                _need(n > 0 and messages[n - 1].get("role") in ("tool", "assistant"), f"{where}: a result stands directly behind its call")
                _need(message.get("tool_call_id") in used, f"{where}: no call has the id {message.get('tool_call_id')!r}")
                _text(message.get("content"), where)
            case role:
                raise Refused(f"{where}: there is no role {role!r}")
    _need(messages[-1].get("role") in ("user", "tool"), "the last message is the user's or a tool's")


def _chat_assistant(message: Body, behind: Sequence[Body], where: str, used: set[str]) -> None:
    calls = message.get("tool_calls")
    _need(calls is None or (isinstance(calls, list) and bool(calls)), f"{where}.tool_calls: an empty list")
    if message.get("content") is not None or not calls:
        _text(message.get("content"), where)
    results = []
    for after in behind:
        if after.get("role") != "tool":
            break
        results.append(after.get("tool_call_id"))
    for place, call in _numbered(calls or [], f"{where}.tool_calls"):
        function = call.get("function") or {}
        _need(call.get("type") == "function", f"{place}: only functions are called")
        _id(call.get("id"), place, used, CHAT_ID)
        _name(function.get("name"), place)
        _arguments(function.get("arguments"), place)
    _same([call["id"] for call in calls or []], results, where)


# -- Responses


def check_responses(body: Body) -> None:
    """A body of `POST /responses` that carries everything itself: nothing may be kept by the server. Raises Refused."""
    _model(body)
    _tools(body, lambda tool: tool, "parameters")
    _need("previous_response_id" not in body and "conversation" not in body, "the history is sent, not referred to")
    if (most := body.get("max_output_tokens")) is not None:
        _need(isinstance(most, int) and most >= OUTPUT_TOKENS_MIN, f"max_output_tokens: at least {OUTPUT_TOKENS_MIN}")
    if body.get("instructions") is not None:
        _text(body["instructions"], "instructions")
    items = _list(body, "input")
    open_calls: list[str] = []
    used: set[str] = set()
    item_ids: set[str] = set()
    answering = False
    for where, item in _numbered(items, "input"):
        kind = item.get("type", "message")
        if item.get("id") is not None:
            _need(item["id"] not in item_ids, f"{where}: a second item has the id {item['id']!r}")
            item_ids.add(item["id"])
        if kind in ("function_call_output", "custom_tool_call_output"):
            _need(bool(open_calls) and item.get("call_id") == open_calls[0], f"{where}: no call waits for a result with call_id {item.get('call_id')!r} here")
            open_calls.pop(0)
            answering = True
            _text(item.get("output"), f"{where}.output")
            continue
        _need(not open_calls or (not answering and kind != "message"), f"{where}: the call {open_calls[0] if open_calls else ''!r} has no result before it")
        answering = False
        match kind:
            case "message":
                _response_message(item, where)
            case "function_call" | "custom_tool_call":
                _id(item.get("call_id"), where, used, RESPONSES_ID)
                _need(item.get("id") is None or bool(RESPONSES_ID.fullmatch(item["id"])), f"{where}.id: no legal id")
                _name(item.get("name"), where)
                if kind == "function_call":
                    _arguments(item.get("arguments"), where)
                open_calls.append(item["call_id"])
            case "reasoning":
                _need(isinstance(item.get("summary"), list), f"{where}: a reasoning item has a summary, if an empty one")
                _need(
                    bool(item.get("encrypted_content") or item.get("content")),
                    f"{where}: a reasoning item that the server does not keep is sent with its content",
                )
            case "item_reference":
                raise Refused(f"{where}: the server keeps nothing to refer to")
            case _:
                pass  # what a provider ran itself goes back as it came
    _need(not open_calls, f"input: the call {open_calls[0] if open_calls else ''!r} has no result")
    _followed(items)
    _need(items[0].get("role") in ("user", "system", "developer"), "input[0]: the first item is the user's")
    last = items[-1]
    _need(last.get("role") != "assistant" and last.get("type") != "reasoning", "input: the last item is not the model's own")


def _response_message(item: Body, where: str) -> None:
    role = item.get("role")
    _need(role in ("user", "assistant", "system", "developer"), f"{where}: there is no role {role!r}")
    content = item.get("content")
    if isinstance(content, list):
        kinds = ("output_text", "refusal") if role == "assistant" else ("input_text", "input_image", "input_file")
        for part in content:
            _need(part.get("type") in kinds, f"{where}: a part of type {part.get('type')!r} in a message of role {role!r}")
    _text(content, where)


def _followed(items: Sequence[Body]) -> None:
    """Behind a reasoning item comes what was reasoned about, from the model."""
    for n, item in enumerate(items):
        if item.get("type") == "reasoning":
            after = next((each for each in items[n + 1 :] if each.get("type") != "reasoning"), {})
            own = after.get("role") == "assistant" or (not after.get("role") and "output" not in str(after.get("type", "output")))
            _need(own, f"input[{n}]: a reasoning item without the item that follows it")


# -- Anthropic messages


def check_messages(body: Body) -> None:
    """A body of `POST /v1/messages`. Raises Refused."""
    _model(body)
    tools = _tools(body, lambda tool: tool, "input_schema")
    most = body.get("max_tokens")
    _need(isinstance(most, int) and most >= 1, "max_tokens: a number of tokens is required")
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens", 0)
        _need(THINKING_TOKENS_MIN <= budget < most, f"thinking.budget_tokens: at least {THINKING_TOKENS_MIN}, and less than max_tokens")
    if body.get("system") is not None:
        _text(body["system"], "system")
    messages = _list(body, "messages")
    used: set[str] = set()
    waiting: list[str] = []
    hosted: list[str] = []
    for n, message in enumerate(messages):
        role, where = message.get("role"), f"messages[{n}]"
        _need(role == ("assistant" if n % 2 else "user"), f"{where}: user and assistant take turns, the user first; this is {role!r}")
        content = message.get("content")
        blocks = _list({where: [{"type": "text", "text": content}] if isinstance(content, str) else content}, where)
        if role == "user":
            _user_blocks(blocks, waiting, hosted, where)
            waiting = []
        else:
            waiting, hosted = _assistant_blocks(blocks, hosted, used, where)
    _need(not waiting, f"messages: the call {waiting[0] if waiting else ''!r} has no result")
    _need(not used or bool(tools), "tools: a history with calls needs the tools declared")
    paused = messages[-1]["role"] == "assistant" and any(
        str(block.get("type")).endswith(("_tool_use", "_tool_result")) for block in messages[-1]["content"] if isinstance(block, dict)
    )
    _need(messages[-1]["role"] == "user" or paused, "messages: the last message is the user's, unless the provider paused")
    last = messages[-1]["content"][-1] if paused else {}
    _need(last.get("type") != "text" or last["text"] == last["text"].rstrip(), "messages: a last message of the model does not end in white space")


def _user_blocks(blocks: Sequence[Body], waiting: Sequence[str], hosted: Sequence[str], where: str) -> None:
    _need(bool(waiting) or not hosted, f"{where}: the provider's own call {hosted[0] if hosted else ''!r} has no result")
    results: list[str] = []
    for n, (place, block) in enumerate(_numbered(blocks, where)):
        match block.get("type"):
            case "tool_result":
                _need(n == len(results), f"{place}: results stand before everything else")
                results.append(block.get("tool_use_id", ""))
                _need(isinstance(block.get("is_error", False), bool), f"{place}.is_error: true or false")
                _need(bool(block.get("content")) or not block.get("is_error"), f"{place}: an error says what it is")
                if block.get("content"):
                    _text(block["content"], place)
            case "text":
                _text(block.get("text"), place)
            case "image" | "document":
                pass
            case kind:
                raise Refused(f"{place}: there is no block {kind!r} in a user's message")
    _same(waiting, results, where)


def _assistant_blocks(blocks: Sequence[Body], carried: Sequence[str], used: set[str], where: str) -> tuple[list[str], list[str]]:
    """The ids of its calls, and of those that the provider runs itself and has not answered yet; `carried` are such of the message before."""
    calls: list[str] = []
    hosted = list(carried)
    for place, block in _numbered(blocks, where):
        kind = str(block.get("type"))
        match kind:
            case "text":
                _text(block.get("text"), place)
            case "thinking":
                _need(isinstance(block.get("thinking"), str) and bool(block.get("signature")), f"{place}: thinking without its signature")
            case "redacted_thinking":
                _need(bool(block.get("data")), f"{place}: redacted thinking without its data")
            case "tool_use":
                _id(block.get("id"), place, used)
                _name(block.get("name"), place)
                _need(isinstance(block.get("input"), dict), f"{place}.input: an object is required")
                calls.append(block["id"])
            case "server_tool_use" | "mcp_tool_use":
                _need(isinstance(block.get("input"), dict), f"{place}.input: an object is required")
                hosted.append(str(block.get("id")))
            case _:
                _need(kind.endswith("_tool_result") and block.get("tool_use_id") in hosted, f"{place}: a block {kind!r} that belongs to nothing before it")
                hosted.remove(block["tool_use_id"])
    for call in carried:
        _need(call not in hosted, f"{where}: the provider's own call {call!r} has no result")
    kinds = [str(block.get("type")) for block in blocks]
    _need("thinking" not in kinds or kinds[0] in ("thinking", "redacted_thinking") or bool(carried), f"{where}: thinking stands first")
    return calls, hosted


# -- what they have in common

APIS: Final[dict[str, Callable[[Body], None]]] = {"/chat/completions": check_chat, "/responses": check_responses, "/messages": check_messages}


def _need(holds: bool, sentence: str) -> None:
    if not holds:
        raise Refused(sentence)


def _list(body: Body, key: str) -> list[Body]:
    items = body.get(key)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise Refused(f"{key}: a list with something in it is required")
    return items


def _numbered(items: Sequence[Body], where: str) -> Iterator[tuple[str, Body]]:
    return ((f"{where}[{n}]", item) for n, item in enumerate(items))


def _model(body: Body) -> None:
    _need(isinstance(body.get("model"), str) and bool(body["model"]), "model: a name is required")


def _tools(body: Body, function_of: Callable[[Body], Any], schema: str) -> list[Body]:
    """The tools declared; those that the provider runs itself have a type of their own and are its business."""
    tools = body.get("tools")
    if tools is None:
        return []
    names: set[str] = set()
    for where, tool in _numbered(_list(body, "tools"), "tools"):
        if tool.get("type", "function") not in ("function", "custom"):
            continue
        function = function_of(tool) or {}
        _name(function.get("name"), where)
        _need(function["name"] not in names, f"{where}: a second tool is named {function['name']!r}")
        names.add(function["name"])
        described = function.get(schema)
        _need(isinstance(described, dict) and described.get("type") == "object", f"{where}.{schema}: a JSON Schema of an object is required")
    return list(tools)


def _text(content: Any, where: str) -> None:
    """Text, or a list of parts whose text is; none of it empty or blank."""
    if isinstance(content, list):
        _need(bool(content), f"{where}: no content")
        for place, part in _numbered(content, where):
            if "text" in str(part.get("type")):
                _text(part.get("text"), place)
        return
    _need(isinstance(content, str) and bool(content.strip()), f"{where}: text is required, and it may not be blank")


def _id(given: Any, where: str, used: set[str], legal: re.Pattern[str] = ID) -> None:
    _need(isinstance(given, str) and bool(legal.fullmatch(given)), f"{where}: {given!r} is no legal id of a call")
    _need(given not in used, f"{where}: a second call has the id {given!r}")
    used.add(given)


def _name(name: Any, where: str) -> None:
    _need(isinstance(name, str) and bool(NAME.fullmatch(name)), f"{where}: {name!r} is no legal name of a tool")


def _arguments(text: Any, where: str) -> None:
    try:
        parsed = json.loads(text, parse_constant=_not_json)
    except (TypeError, ValueError, RecursionError):
        parsed = None
    _need(isinstance(parsed, dict), f"{where}: arguments are the text of a JSON object")


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _same(calls: Sequence[Any], results: Sequence[Any], where: str) -> None:
    for call in calls:
        _need(call in results, f"{where}: the call {call!r} has no result directly behind it")
    for result in results:
        _need(result in calls, f"{where}: a result names {result!r}, which is no call directly before it")
    _need(list(calls) == list(results), f"{where}: results stand in the order of their calls, one for each")
