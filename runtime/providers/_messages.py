"""Anthropic's Messages API: a request as its body, and the events of a response as parts.

Apart from the adapter, because this is translation without a connection: what goes in and what comes out can be compared line by line.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from refold.projections.messages import Message
from refold.runtime import ports as p
from refold.runtime.providers import _history as history
from refold.runtime.providers._errors import Origin, gave_up, reported
from refold.runtime.providers._replies import WHOLE
from refold.runtime.providers._settings import at_most, sent
from refold.runtime.providers._stops import BROKEN, meaning
from refold.runtime.providers._usage import count
from refold.runtime.text import visible, whole

API: Final = "anthropic.messages"
ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
THINKING_TOKENS_MIN: Final = 1_024

Block = dict[str, Any]


# -- the request


def body_of(request: p.Request, model: str, settings: dict[str, Any], output_format: Block | None) -> dict[str, Any]:
    """The body of a request. `settings` go in as they are, and win; one that is null takes its field out."""
    given = {name: value for name, value in sent(settings).items() if request.tools or name != "tool_choice"}
    cache = given.pop("cache_control", {"type": "ephemeral"})
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_output_tokens, "stream": settings.get("stream", True)}
    body |= {"messages": _messages(request, model, cache), **_tools(request)}
    if visible(request.instructions):
        body["system"] = whole(request.instructions)
    if output_format is not None:
        body["output_config"] = {"format": output_format}
    if isinstance(given.get("output_config"), dict):
        given["output_config"] = {**body.get("output_config", {}), **given["output_config"]}
    body |= given
    body["max_tokens"] = at_most(given.get("max_tokens"), request.max_output_tokens)
    return _with_room_to_think({name: value for name, value in body.items() if value is not None})


def _with_room_to_think(body: dict[str, Any]) -> dict[str, Any]:
    """A budget of thinking that fits into the output; none where the output that is left has no room for the least one."""
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and isinstance(budget := thinking.get("budget_tokens"), int) and budget >= body["max_tokens"]:
        if body["max_tokens"] <= THINKING_TOKENS_MIN:
            return {name: value for name, value in body.items() if name != "thinking"}
        return {**body, "thinking": {**thinking, "budget_tokens": body["max_tokens"] - 1}}
    return body


def _tools(request: p.Request) -> dict[str, Any]:
    """The tools; without any, those that the history names, out of use: the API refuses calls in a history without declarations."""
    if request.tools:
        return {"tools": [{"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in request.tools]}
    named = dict.fromkeys(history.tool_name(call.name) for message in request.messages for call in message.calls)
    if not named:
        return {}
    out_of_use = [{"name": name, "description": "Not available in this turn.", "input_schema": {"type": "object"}} for name in named]
    return {"tools": out_of_use, "tool_choice": {"type": "none"}}


def _messages(request: p.Request, model: str, cache: Any) -> list[Block]:
    """The transcript with user and assistant in turns, and the notice behind it; what the next request repeats is marked for the provider's cache."""
    made: list[Block] = []
    for turn in _without_dangling([_turn(message, model) for message in history.prepared(request.messages, ID)]):
        if made and made[-1]["role"] == turn["role"]:
            made[-1]["content"] += turn["content"]
        elif turn["content"]:
            made.append(turn)
    if made and request.messages[-1].kind == "paused" and any(_is_hosted(block) for block in made[-1]["content"]):
        return _unpadded(made)  # The provider goes on from exactly there, and nothing may stand behind.
    if not made or made[-1]["role"] == "assistant":
        made.append({"role": "user", "content": _text(history.CLIPPED)})
    last = made[-1]["content"]
    if cache:
        last[-1] = {**last[-1], "cache_control": cache}
    if visible(request.notice):
        last += _text(history.aside(request.notice))
    return made


def _unpadded(made: list[Block]) -> list[Block]:
    """A history that ends with the model's own words: white space at their end is refused."""
    content = made[-1]["content"]
    if content[-1]["type"] == "text":
        content[-1] = {**content[-1], "text": content[-1]["text"].rstrip()}
    return made


def _turn(message: Message, model: str) -> Block:
    match message.role:
        case "assistant":
            return {"role": "assistant", "content": _assistant(message, model)}
        case "tool":
            return {"role": "user", "content": [_result(message)]}
        case _:
            return {"role": "user", "content": _text(history.user_text(message))}


def _without_dangling(turns: list[Block]) -> list[Block]:
    """Without calls that the provider runs itself and never answered: it takes those only where it is to go on with them, at the end or behind our results."""
    answered = {block.get("tool_use_id") for turn in turns for block in turn["content"]}
    last = max((n for n, turn in enumerate(turns) if turn["role"] == "assistant"), default=-1)
    behind = turns[last + 1]["content"] if last + 1 < len(turns) else []
    goes_on = last if not behind or behind[0]["type"] == "tool_result" else -1
    return [
        turn if n == goes_on else {**turn, "content": [block for block in turn["content"] if not _is_hosted(block) or block.get("id", "") in {"", *answered}]}
        for n, turn in enumerate(turns)
    ]


def _is_hosted(block: Block) -> bool:
    """Whether a block is a call that the provider runs itself, or the result of one."""
    return bool(block["type"].endswith(("_tool_use", "_tool_result")))


def _text(text: str) -> list[Block]:
    return [{"type": "text", "text": whole(text)}] if visible(text) else []


def _result(message: Message) -> Block:
    failed = {"is_error": True} if history.failed(message) else {}
    return {"type": "tool_result", "tool_use_id": message.call_id, "content": history.result_text(message), **failed}


def _assistant(message: Message, model: str) -> list[Block]:
    """Text, calls and what the provider wants back, in the order in which they came."""
    calls = [{"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments_text)} for call in message.calls]
    blocks: list[Block] = []
    text_at = call_at = 0
    for (characters, before), item in history.given_back(message, API, model):
        if item.get("type") == "thinking" and not item.get("signature"):
            continue  # Nobody takes it back without.
        blocks += _text(message.text[text_at:characters]) + calls[call_at:before] + [item]
        text_at, call_at = max(text_at, characters), max(call_at, before)
    return blocks + _text(message.text[text_at:]) + calls[call_at:]


# -- the response


class Reader:
    """Takes the events of one response, or the whole of it, and gives parts."""

    holds = "content"

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.known = self.over = False
        self._id: str | None = None
        self._blocks: dict[int, _Block] = {}
        self._text = history.Length()
        self._calls = 0
        self._usage: dict[str, Any] = {}
        self._stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether the model gave a reason to stop."""
        return bool(self._stop)

    def take(self, event: dict[str, Any], name: str) -> Iterator[p.Part]:
        """One more event; unknown ones are passed over. Raises ModelError."""
        if name == WHOLE:
            self.known = True
            yield from self._whole(event)
            return
        if event.get("type") == "error" or ("error" in event and "type" not in event):
            raise reported(event, self._origin, mid_stream=True)
        made = self._made_of(event)
        self.known |= made is not None
        yield from made or ()

    def _made_of(self, event: dict[str, Any]) -> list[p.Part] | None:
        """The parts that an event is; None where it is not known."""
        match event.get("type"):
            case "message_start":
                return self._start(event["message"])
            case "content_block_start":
                return self._open(event["index"], event["content_block"])
            case "content_block_delta":
                return self._more(event["index"], event["delta"])
            case "content_block_stop":
                return self._close(event["index"])
            case "message_delta":
                return self._changed(event.get("delta") or {}, event.get("usage"))
            case "message_stop":
                return self._finish()
            case "ping":
                return [p.ReasoningDelta(text="")]  # A sign of life: thinking that is not shown can take minutes.
        return None

    def _whole(self, message: dict[str, Any]) -> list[p.Part]:
        """The parts of a response that came in one piece."""
        made = self._start({"id": message.get("id")})
        for index, block in enumerate(message["content"]):
            made += self._open(index, block) + self._close(index)
        return made + self._changed(message, message.get("usage")) + self._finish()

    def _start(self, message: dict[str, Any]) -> list[p.Part]:
        if self._id is not None and message.get("id") != self._id:
            line = "a second message_start with another id came before message_stop"
            raise p.ModelError("protocol", line, code="spliced_message", retryable=True, mid_stream=True)
        self._id = message.get("id") or ""
        return self._counted(message.get("usage"))

    def _open(self, index: int, block: Block) -> list[p.Part]:
        place = (self._text.characters, self._calls)
        match block["type"]:
            case "text":
                self._blocks[index] = _Block(block, place)
                return self._said(block.get("text") or "")
            case "thinking":
                self._blocks[index] = _Block(block, place, pieces=[block.get("thinking") or ""])
                return [p.ReasoningDelta(text=block["thinking"])] if block.get("thinking") else []
            case "tool_use":
                self._blocks[index] = _Block(block, place, call=self._calls)
                self._calls += 1
                return [p.ToolCallOpened(index=self._calls - 1, name=block.get("name") or "", id=block.get("id") or "")]
        self._blocks[index] = _Block(block, place)
        return []

    def _said(self, text: str) -> list[p.Part]:
        self._text.add(text)
        return [p.TextDelta(text=text)] if text else []

    def _more(self, index: int, delta: dict[str, Any]) -> list[p.Part]:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                return self._said(delta.get("text") or "")
            case "thinking_delta" if thought := delta.get("thinking"):
                block.pieces.append(thought)
                return [p.ReasoningDelta(text=thought)]
            case "input_json_delta" if more_json := delta.get("partial_json"):
                block.pieces.append(more_json)
                return [p.ArgumentsDelta(index=block.call, text=more_json)] if block.call is not None else []
            case "thinking_delta" | "input_json_delta":
                return []
            case _:  # a signature, or whatever else belongs to the block: more of a text that is in it
                more = {name: (block.block.get(name) or "") + text for name, text in delta.items() if name != "type" and isinstance(text, str)}
                block.block = {**block.block, **more}
        return []

    def _close(self, index: int) -> list[p.Part]:
        block = self._blocks.pop(index)
        joined = "".join(block.pieces)
        match block.block["type"]:
            case "text":
                return []
            case "tool_use":
                assert block.call is not None
                arguments = joined or (json.dumps(block.block["input"], ensure_ascii=False) if block.block.get("input") else "")
                return [p.ToolCallReady(index=block.call, name=block.block.get("name") or "", arguments=arguments, id=block.block.get("id") or "")]
            case "thinking":
                return [self._opaque(block.place, {**block.block, "thinking": joined})]
        # Redacted thinking, and what the provider ran itself: not our calls, and wanted back.
        return [self._opaque(block.place, {**block.block, "input": _read(joined)} if joined else block.block)]

    def _opaque(self, place: tuple[int, int], item: Block) -> p.OpaqueItem:
        return p.OpaqueItem(item=history.kept(API, self._origin.model, item, place))

    def _changed(self, delta: dict[str, Any], usage: dict[str, Any] | None) -> list[p.Part]:
        self._stop = delta.get("stop_reason") or self._stop
        if self._stop in BROKEN:
            raise gave_up(self._stop, self._origin, mid_stream=self.known)
        details = (delta.get("stop_details") or {}) if self._stop == "refusal" else {}
        why = details.get("explanation") or details.get("category")
        return ([p.Refusal(text=str(why))] if why else []) + self._counted(usage)

    def _counted(self, usage: dict[str, Any] | None) -> list[p.Part]:
        """What was counted so far: later numbers stand for earlier ones, and what was read from a cache or written to one was read as well.

        A zero, or what is no number, stands for nothing: the end of a stream often leaves out so what its beginning said.
        """
        if not usage:
            return []
        self._usage |= {name: value for name, value in usage.items() if count(value) or isinstance(value, dict)}
        read, written = count(self._usage.get("cache_read_input_tokens")), count(self._usage.get("cache_creation_input_tokens"))
        return [
            p.UsageUpdated(
                input_tokens=count(self._usage.get("input_tokens")) + read + written,
                output_tokens=count(self._usage.get("output_tokens")),
                cached_input_tokens=read,
                cache_write_tokens=written,
                reasoning_tokens=count((self._usage.get("output_tokens_details") or {}).get("thinking_tokens")),
            )
        ]

    def end(self, *, marked: bool) -> Iterator[p.Part]:  # noqa: ARG002 - no marker stands for a reason to stop
        """What follows the last event, where that is not the one that closes the message."""
        if self.stopped and not self.over:
            yield from self._finish()

    def _finish(self) -> list[p.Part]:
        self.over = True
        left = [part for index in list(self._blocks) for part in self._close(index)]
        return [*left, p.Finished(stop_reason=meaning(self._stop or ""), provider_stop_reason=self._stop or "")]


class _Block:
    """A block that is being received: how it began, its place (characters of text and calls before it), the pieces since, its number among the calls."""

    def __init__(self, block: Block, place: tuple[int, int], pieces: list[str] | None = None, call: int | None = None) -> None:
        self.block, self.place, self.pieces, self.call = block, place, pieces if pieces is not None else [], call


def _read(joined: str) -> Any:
    try:
        return json.loads(joined)
    except ValueError:  # cut off by the limit, with the call that it belongs to
        return {}
