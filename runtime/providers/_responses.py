"""The Responses API, stateless: the whole transcript in every request, and a reply's items, streamed or in one piece, as parts.

Apart from `openai` and `deepseek`, which differ in address, key and a few fields.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, Final

from refold.events.words import StopReason
from refold.projections.messages import Message
from refold.runtime import ports as p
from refold.runtime.models import UnknownModel
from refold.runtime.providers import _history as history, _settings as given
from refold.runtime.providers._errors import Origin, gave_up, reported
from refold.runtime.providers._openai import NEED_TOOLS, Connection
from refold.runtime.providers._replies import WHOLE
from refold.runtime.providers._stops import BROKEN, meaning
from refold.runtime.providers._usage import cost_usd, count, is_beside

LEGAL_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
RESERVED: Final = frozenset({"model", "input", "instructions", "tools", "messages", "previous_response_id", "conversation", "background"})
LIMIT: Final = "max_output_tokens"
ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
CALLS: Final = ("function_call", "custom_tool_call")


class ResponsesModel:
    """A model behind the Responses API; `always` are the fields that its provider needs in every request, `least` the fewest tokens of output that it takes as a limit."""

    priced = True
    """A run with this model costs money: its price is looked up when it begins."""

    def __init__(self, kind: str, origin: Origin, settings: dict[str, Any], always: dict[str, Any], least: int = 1) -> None:
        if given.at_most(given.sent(settings).get(LIMIT), least) < least:
            raise UnknownModel(f"--set model.{LIMIT}: {origin.base_url} takes no limit below {least}")
        self.spec, self.base_url, self.settings = f"{kind}:{origin.model}", origin.base_url, settings
        self._origin, self._always, self._least = origin, always, least
        self._api = f"{kind}.responses"
        self._connection = Connection("responses", origin)

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        """The parts of the reply. Raises ModelError."""
        said, rest = items(request, self._api, self._origin.model), self._rest(request)
        reply = ResponsesReply(self._api, self._origin)
        async with aclosing(self._connection.answered(said, rest, reply, stream=self.settings.get("stream", True))) as parts:
            async for part in parts:
                yield part

    def _rest(self, request: p.Request) -> dict[str, Any]:
        """The fields beside the conversation: ours under those of the user, and none that is null."""
        own = given.sent(self.settings)
        if "reasoning_effort" in own:  # the name that Chat Completions has for it
            own["reasoning"] = {"effort": own.pop("reasoning_effort")} | own.get("reasoning", {})
        body: dict[str, Any] = dict(self._always)
        if request.instructions:
            body["instructions"] = request.instructions
        if request.tools:
            body["tools"] = [
                {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema, "strict": False} for tool in request.tools
            ]
        if request.answer_schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": request.answer_schema, "strict": False}}
        body |= own
        body[LIMIT] = given.at_most(own.get(LIMIT), request.max_output_tokens)
        if body[LIMIT] < self._least:
            line = f"{self.base_url} takes no limit of output below {self._least} tokens, and this request may have {body[LIMIT]}: raise budgets.{LIMIT}"
            raise p.ModelError("invalid_request", line, retryable=False)
        left_out = () if request.tools else NEED_TOOLS
        return {name: value for name, value in body.items() if value is not None and name not in left_out}


# -- the conversation


def items(request: p.Request, api: str, model: str) -> list[dict[str, Any]]:
    """The transcript as input items; what the provider wants back stands where it stood between text and calls."""
    made: list[dict[str, Any]] = []
    for message in history.prepared(request.messages, LEGAL_ID):
        match message.role:
            case "user":
                made.append({"role": "user", "content": history.user_text(message)})
            case "tool":
                made.append({"type": "function_call_output", "call_id": message.call_id, "output": history.result_text(message)})
            case _:
                made += _assistant(message, history.given_back(message, api, model))
    if request.notice:
        made.append({"role": "user", "content": history.aside(request.notice)})
    elif request.messages and request.messages[-1].kind == "paused":  # only some providers go on from their own words
        made.append({"role": "user", "content": history.CLIPPED})
    return [item for item in made if item.get("content") != ""]


def _assistant(message: Message, wanted: list[tuple[tuple[int, int], Any]]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    characters = calls = 0
    phase: dict[str, Any] = {}
    for (characters_before, calls_before), item in [*wanted, ((len(message.text), len(message.calls)), None)]:
        if text := message.text[characters:characters_before]:
            made.append({"role": "assistant", "content": text, **phase})
            phase = {}
        made += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments_text} for call in message.calls[calls:calls_before]
        ]
        characters, calls = max(characters, characters_before), max(calls, calls_before)
        if item is not None and item.get("type") == "message":  # the beginning of a text, not an item of its own
            phase = {"phase": item["phase"]}
        elif item is not None and not _is_bare(item):
            made.append(item)
    while made and made[-1].get("type") == "reasoning":  # what it led to was cut off, and alone it is refused
        made.pop()
    return made


def _is_bare(item: dict[str, Any]) -> bool:
    """Whether a reasoning item is only a reference to what the provider did not keep."""
    return item.get("type") == "reasoning" and not any(item.get(name) for name in ("encrypted_content", "content", "summary"))


# -- the reply


class ResponsesReply:
    """Takes the events of one reply, or the whole of it, and gives parts."""

    holds = "output"
    stopped = False
    """The event that says why a reply ended is its last."""

    def __init__(self, api: str, origin: Origin) -> None:
        self._api, self._origin = api, origin
        self._items: dict[int, _Item] = {}
        self._text = history.Length()
        self.known = self.over = False

    def take(self, event: dict[str, Any], name: str) -> Iterator[p.Part]:
        """The parts of one more event, or of the reply in one piece. Raises ModelError for an error."""
        kind = str(event.get("type") or name)
        self.known |= name == WHOLE or kind.startswith("response.")
        if name == WHOLE:
            yield from self._end(event, "")
            return
        if kind in ENDS:
            yield from self._end(event.get("response") or {}, kind)
        elif kind == "error" or event.get("error"):
            error = event.get("error")
            raise reported(error if isinstance(error, dict) else event, self._origin, mid_stream=True)
        elif kind == "response.output_item.added":
            yield from self._opened(event)
        elif kind == "response.output_item.done":
            yield from self._done(self._item(event.get("output_index")), event.get("item") or {})
        elif isinstance(delta := event.get("delta"), str) and delta:
            yield from self._delta(kind, event.get("output_index"), delta)

    def _opened(self, event: dict[str, Any]) -> Iterator[p.Part]:
        item = self._item(event.get("output_index"))
        yield from self._named(item, event.get("item") or {})

    def _named(self, item: "_Item", given_item: dict[str, Any]) -> Iterator[p.Part]:
        """What an item is, and that a call began."""
        item.type = item.type or str(given_item.get("type") or "")
        item.id = item.id or str(given_item.get("call_id") or "")
        item.name = item.name or str(given_item.get("name") or "")
        if item.type in CALLS and not item.opened and item.name:
            item.opened = True
            yield p.ToolCallOpened(index=item.index, name=item.name, id=item.id)

    def _delta(self, kind: str, output_index: Any, delta: str) -> Iterator[p.Part]:
        item = self._item(output_index)
        match kind:
            case "response.output_text.delta":
                item.seen.add("text")
                self._text.add(delta)
                yield p.TextDelta(text=delta)
            case "response.refusal.delta":
                item.seen.add("refusal")
                yield p.Refusal(text=delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                item.seen.add("reasoning")
                yield p.ReasoningDelta(text=delta)
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                item.arguments.append(delta)
                yield p.ArgumentsDelta(index=item.index, text=delta)

    def _done(self, item: "_Item", final: dict[str, Any]) -> Iterator[p.Part]:
        """A complete item: what was not streamed of it, and what is wanted back."""
        if item.done:
            return
        item.done = True
        yield from self._named(item, final)
        match item.type:
            case "message":
                if phase := final.get("phase"):
                    yield self._kept({"type": "message", "phase": phase}, item)
                yield from self._message(item, final)
            case kind if kind in CALLS:
                sent = final.get("arguments", final.get("input"))
                text = sent if isinstance(sent, str) else json.dumps(sent, ensure_ascii=False) if sent else ""
                yield p.ToolCallReady(index=item.index, name=item.name, arguments=text or "".join(item.arguments), id=item.id)
            case "reasoning":
                if "reasoning" not in item.seen:
                    for piece in [*(final.get("summary") or []), *(final.get("content") or [])]:
                        if isinstance(piece, dict) and piece.get("text"):
                            yield p.ReasoningDelta(text=str(piece["text"]))
                yield self._kept(final, item)
            case _ if final:
                yield self._kept(final, item)

    def _message(self, item: "_Item", final: dict[str, Any]) -> Iterator[p.Part]:
        for piece in final.get("content") or []:
            if piece.get("type") == "output_text" and piece.get("text") and "text" not in item.seen:
                self._text.add(piece["text"])
                yield p.TextDelta(text=piece["text"])
            elif piece.get("type") == "refusal" and piece.get("refusal") and "refusal" not in item.seen:
                yield p.Refusal(text=piece["refusal"])

    def _end(self, response: dict[str, Any], kind: str) -> Iterator[p.Part]:
        """The response object that ends a reply: what the events left open, or everything where there were none, usage, and why it ended."""
        output = response.get("output") or []
        for place in sorted(self._items) or range(len(output)):
            item, final = self._item(place), output[place] if place < len(output) else {}
            yield from self._done(item, final if final.get("type") == item.type or not item.type else {})
        if isinstance(usage := response.get("usage"), dict):
            yield _usage(usage)
        status = str(response.get("status") or kind.removeprefix("response."))
        if response.get("error") or status == "failed":
            raise reported(response.get("error") or {"message": "the response failed"}, self._origin, mid_stream=bool(kind))
        reason = str((response.get("incomplete_details") or {}).get("reason") or "")
        if reason in BROKEN:
            raise gave_up(reason, self._origin, mid_stream=bool(kind))
        self.over = True
        yield p.Finished(stop_reason=self._stop(status, reason), provider_stop_reason=f"{status}:{reason}" if status == "incomplete" and reason else status)

    def end(self, *, marked: bool) -> Iterator[p.Part]:  # noqa: ARG002 - no marker stands for the last event
        """Nothing follows it."""
        yield from ()

    def _stop(self, status: str, reason: str) -> StopReason:
        if status == "completed":
            return meaning(status, calls=any(item.type in CALLS for item in self._items.values()))
        return meaning(reason) if status == "incomplete" else "unknown"

    def _item(self, output_index: Any) -> "_Item":
        """The item at a place; without a place, the last one."""
        index = output_index if isinstance(output_index, int) else max(self._items, default=0)
        if index not in self._items:
            calls = sum(item.type in CALLS for item in self._items.values())
            self._items[index] = _Item(index, (self._text.characters, calls))
        return self._items[index]

    def _kept(self, final: dict[str, Any], item: "_Item") -> p.OpaqueItem:
        return p.OpaqueItem(item=history.kept(self._api, self._origin.model, final, item.place))


class _Item:
    """An item that is being received; its ids may change on the way, its place does not."""

    def __init__(self, index: int, place: tuple[int, int]) -> None:
        self.index, self.place = index, place
        self.type = self.id = self.name = ""
        self.arguments: list[str] = []
        self.seen: set[str] = set()
        self.opened = self.done = False


def _usage(usage: dict[str, Any]) -> p.UsageUpdated:
    read, details = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
    asked, reasoned = count(usage.get("input_tokens")), count(details.get("reasoning_tokens"))
    return p.UsageUpdated(
        input_tokens=asked,
        output_tokens=count(usage.get("output_tokens")),
        reasoning_beside=is_beside(count(usage.get("output_tokens")), reasoned, asked, count(usage.get("total_tokens"))),
        cached_input_tokens=count(read.get("cached_tokens")),
        cache_write_tokens=count(read.get("cache_write_tokens")),
        reasoning_tokens=reasoned,
        cost_usd=cost_usd(usage.get("cost")),
    )
