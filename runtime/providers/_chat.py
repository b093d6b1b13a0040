"""The reply of Chat Completions, from its chunks or in one piece, as parts.

Apart from the request, because here live the habits of real servers: ids and names repeated in every delta, indexes that begin at one, are missing or are always
zero, usage in the middle, reasoning under three names, several choices, errors inside a 200.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from refold.projections.messages import Message
from refold.runtime import ports as p
from refold.runtime.providers import _history as history
from refold.runtime.providers._errors import Origin, gave_up, masked, one_line, reported
from refold.runtime.providers._replies import WHOLE
from refold.runtime.providers._stops import BROKEN, meaning
from refold.runtime.providers._usage import cost_usd, count, is_beside

API: Final = "openai.chat"
REASONING: Final = ("reasoning_content", "reasoning")


class ChatReply:
    """Takes the chunks of one reply and gives parts; `end` gives the rest, and `Finished` where the reply was complete."""

    holds = "choices"

    def __init__(self, model: str, origin: Origin) -> None:
        self._model, self._origin = model, origin
        self._calls: list[_Call] = []
        self._by_key: dict[Any, _Call] = {}
        self._reasoning: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._stop = ""
        self.known = self.over = False

    @property
    def stopped(self) -> bool:
        """Whether the model gave a reason to stop."""
        return bool(self._stop)

    def take(self, chunk: dict[str, Any], name: str) -> Iterator[p.Part]:
        """The parts of one more chunk, or of the reply in one piece. Raises ModelError for an error inside it."""
        whole = name == WHOLE
        if not whole and (name == "error" or chunk.get("error")):
            raise reported(chunk, self._origin, mid_stream=True)
        self.known |= "choices" in chunk
        groq = chunk.get("x_groq")
        usage = chunk.get("usage") or (groq.get("usage") if isinstance(groq, dict) else None)
        for choice in chunk.get("choices") or []:
            if isinstance(choice, dict) and (choice.get("index") or 0) == 0:
                yield from self._choice(choice, whole)
                break
        if isinstance(usage, dict) and self.known:
            yield _usage(usage)
        self.over = whole

    def _choice(self, choice: dict[str, Any], whole: bool) -> Iterator[p.Part]:
        said = choice.get("message" if whole else "delta") or choice.get("delta") or {}
        text, thought = _content(said.get("content"))
        thought += self._reasoned(said)
        if thought:
            yield p.ReasoningDelta(text=thought)
        if text:
            yield p.TextDelta(text=text)
        if refusal := said.get("refusal"):
            yield p.Refusal(text=str(refusal))
        for place, piece in enumerate(said.get("tool_calls") or []):
            yield from self._piece(piece, place if whole else piece.get("index"))
        stop = choice.get("finish_reason")
        if stop in BROKEN:
            raise gave_up(stop, self._origin, mid_stream=not whole)
        if stop:
            self._stop = str(stop)

    def _reasoned(self, said: dict[str, Any]) -> str:
        """What is shown of the reasoning, under whichever name; what the server wants back of it is kept."""
        details = [each for each in said.get("reasoning_details") or [] if isinstance(each, dict)]
        for each in details:
            _merge(self._details, each)
        for name in REASONING:
            if isinstance(shown := said.get(name), str) and shown:
                if name == "reasoning_content":
                    self._reasoning.append(shown)
                return shown
        return "".join(str(each.get("text") or each.get("summary") or "") for each in details)

    def _piece(self, piece: dict[str, Any], index: int | None) -> Iterator[p.Part]:
        """More of a call, or the first of one; nothing where a call that is complete comes once more. Raises ModelError where nothing tells whose it is."""
        function = piece.get("function") or piece.get("custom") or {}
        identifier, name = str(piece.get("id") or ""), str(function.get("name") or "")
        arguments = function.get("arguments", function.get("input"))
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        call = self._found(index, identifier, name)
        if call is not None and (identifier or name or index is None) and text.lstrip().startswith("{") and call.complete:
            if identifier == call.id != "" and text == "".join(call.arguments):
                return
            call = None  # another object behind a whole one is never more of it
        if call is None:
            if index is None and not (identifier or name):
                line = f"a piece of a call has no index, id or name, so that nothing tells whose it is: {one_line(text, 80)!r}"
                raise p.ModelError("protocol", masked(line, self._origin.key), code="ambiguous_call", retryable=True, mid_stream=True)
            call = _Call(len(self._calls), identifier)
            self._calls.append(call)
        self._by_key[index] = self._by_key[index, identifier] = call
        call.extra |= {key: value for key, value in piece.items() if key == "extra_content"}
        call.id = call.id or identifier
        call.name += name if name != call.name else ""
        if not call.opened and (call.name or text):
            call.opened = True
            yield p.ToolCallOpened(index=call.index, name=call.name, id=call.id)
        if text:
            call.arguments.append(text)
            yield p.ArgumentsDelta(index=call.index, text=text)

    def _found(self, index: int | None, identifier: str, name: str) -> "_Call | None":
        """The call with this index and id; without an index the one with this id; with neither the last, unless a name says that another begins."""
        if index is not None:
            call = self._by_key.get(index)
            other = call is not None and identifier and call.id and identifier != call.id
            return self._by_key.get((index, identifier)) if other else call
        if identifier:
            return self._by_key.get((None, identifier))
        last = self._calls[-1] if self._calls else None
        begins = last is not None and name and last.arguments and (name != last.name or last.complete)
        return None if begins else last

    def end(self, *, marked: bool) -> Iterator[p.Part]:
        """What follows the last chunk; no `Finished` where the stream broke off."""
        if not (self._stop or self.over or marked):
            return
        for call in self._calls:
            yield p.ToolCallReady(index=call.index, name=call.name, arguments="".join(call.arguments), id=call.id)
        if item := self._wanted_back():
            yield p.OpaqueItem(item=history.kept(API, self._model, item))
        yield p.Finished(stop_reason=meaning(self._stop, calls=bool(self._calls)), provider_stop_reason=self._stop)

    def _wanted_back(self) -> dict[str, Any]:
        """Reasoning that belongs to calls, details and signatures, under the names they came by."""
        item: dict[str, Any] = {}
        if self._reasoning and self._calls:
            item["reasoning_content"] = "".join(self._reasoning)
        if self._details:
            item["reasoning_details"] = self._details
        if any(call.extra for call in self._calls):
            item["calls"] = [call.extra for call in self._calls]
        return item


class _Call:
    """A call that is being received."""

    def __init__(self, index: int, identifier: str) -> None:
        self.index, self.id, self.name = index, identifier, ""
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}
        self.opened = False

    @property
    def complete(self) -> bool:
        """Whether its arguments are a whole JSON object."""
        if not self.arguments or not self.arguments[0].lstrip().startswith("{") or not self.arguments[-1].rstrip().endswith("}"):
            return False
        return history.arguments_object(text := "".join(self.arguments)) == text


def returned(message: Message, model: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What goes back with an assistant's message, and with each of its calls: fields that the same model sent."""
    fields: dict[str, Any] = {}
    for _, item in history.given_back(message, API, model):
        fields |= item
    of_calls = fields.pop("calls", [])
    return fields, of_calls


def _content(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content, which is text or a list of typed pieces."""
    if isinstance(content, str):
        return content, ""
    text = thought = ""
    for piece in content if isinstance(content, list) else []:
        if isinstance(piece, dict) and piece.get("type") == "thinking":
            thought += "".join(str(each.get("text") or "") for each in piece.get("thinking") or [] if isinstance(each, dict))
        elif isinstance(piece, dict) and isinstance(piece.get("text"), str):
            text += piece["text"]
    return text, thought


def _merge(details: list[dict[str, Any]], more: dict[str, Any]) -> None:
    """One more reasoning detail; pieces of one text or summary become one detail, as they were before they were streamed."""
    last = details[-1] if details else {}
    for field in ("text", "summary"):
        if (
            isinstance(last.get(field), str)
            and isinstance(more.get(field), str)
            and last.get("type") == more.get("type")
            and last.get("index") == more.get("index")
        ):
            details[-1] = last | {key: value for key, value in more.items() if value is not None} | {field: last[field] + more[field]}
            return
    details.append(more)


def _usage(usage: dict[str, Any]) -> p.UsageUpdated:
    """Totals; what was read from a cache, or written to one, is a part of the input, under the name that the server has for it."""
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    cached = next((each for each in (prompt.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens")) if each is not None), 0)
    reasoned = count(completion.get("reasoning_tokens") if completion else usage.get("reasoning_tokens"))
    asked = count(usage.get("prompt_tokens"))
    return p.UsageUpdated(
        input_tokens=asked,
        output_tokens=count(usage.get("completion_tokens")),
        reasoning_beside=is_beside(count(usage.get("completion_tokens")), reasoned, asked, count(usage.get("total_tokens"))),
        cached_input_tokens=count(cached),
        cache_write_tokens=count(prompt.get("cache_write_tokens")),
        reasoning_tokens=reasoned,
        cost_usd=cost_usd(usage.get("cost")),
    )
