"""Replies of the three APIs, written by hand: answers, calls, refusals and failures as the events that a provider streams, for the loopback server.

Apart from the server, which plays whatever bytes it is given; here is what those bytes are where a model speaks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from refold.testing.loopback import Loopback, Reply

Call = tuple[str, str, Sequence[str]]
"""Id, name, and the arguments in the pieces in which they are streamed."""
Usage = dict[str, Any]
"""Usage in the words of the API."""


def sse(value: Any, name: str = "") -> bytes:
    """One event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def event(kind: str, **fields: Any) -> bytes:
    """One event of Responses or Messages, which say its kind twice."""
    return sse({"type": kind, **fields}, kind)


def chunk(delta: dict[str, Any], stop: str | None = None, **fields: Any) -> bytes:
    """One event of Chat Completions."""
    return sse({"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": stop}], **fields})


@dataclass(frozen=True)
class Api:
    """One API: what a user types for it, and replies in its form, as the list of their events.

    `stop` is the provider's own word for why it ended, `usage` its own counts; without them a reply ends well, with 11 tokens in and 7 out.
    """

    name: str
    spec: str
    path: str
    root: str
    agent: str
    key: str

    def url(self, server: Loopback) -> str:
        return server.url + self.root

    def text(self, *pieces: str, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        """An answer in these pieces."""
        raise NotImplementedError

    def calls(self, *calls: Call, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        """Calls, one after another."""
        raise NotImplementedError

    def declined(self, why: str) -> list[bytes]:
        """A reply in which the model declines, and says nothing else."""
        raise NotImplementedError

    def failure(self, kind: str, message: str) -> bytes:
        """An error in the middle of a stream."""
        raise NotImplementedError

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        """A request that is refused."""
        raise NotImplementedError


class Chat(Api):
    def _end(self, stop: str, usage: Usage | None) -> list[bytes]:
        counts = usage if usage is not None else {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        return [chunk({}, stop), sse({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": counts}), b"data: [DONE]\n\n"]

    def text(self, *pieces: str, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        return [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in pieces), *self._end(stop or "stop", usage)]

    def calls(self, *calls: Call, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        made = [chunk({"role": "assistant", "content": None})]
        for n, (call_id, name, pieces) in enumerate(calls):
            made.append(chunk({"tool_calls": [{"index": n, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}]}))
            made += [chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]}) for piece in pieces]
        return made + self._end(stop or "tool_calls", usage)

    def declined(self, why: str) -> list[bytes]:
        return [chunk({"role": "assistant", "content": None}), chunk({"refusal": why}), *self._end("stop", None)]

    def failure(self, kind: str, message: str) -> bytes:
        return sse({"error": {"type": kind, "message": message}})

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        return Reply.json({"error": {"type": kind, "message": message, "code": None, "param": None}}, status, **headers)


class Responses(Api):
    def _start(self) -> bytes:
        return event("response.created", response={"id": "r1", "status": "in_progress", "output": []})

    def _end(self, output: list[dict[str, Any]], stop: str, usage: Usage | None) -> list[bytes]:
        response: dict[str, Any] = {"id": "r1", "status": "completed", "output": output}
        if stop:
            response |= {"status": "incomplete", "incomplete_details": {"reason": stop}}
        response["usage"] = usage if usage is not None else {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
        return [event(f"response.{response['status']}", response=response)]

    def _message(self, deltas: list[bytes], content: dict[str, Any], stop: str, usage: Usage | None) -> list[bytes]:
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [content]}
        added = event("response.output_item.added", output_index=0, item={**item, "content": []})
        return [self._start(), added, *deltas, event("response.output_item.done", output_index=0, item=item), *self._end([item], stop, usage)]

    def text(self, *pieces: str, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        deltas = [event("response.output_text.delta", output_index=0, content_index=0, item_id="m1", delta=piece) for piece in pieces]
        return self._message(deltas, {"type": "output_text", "text": "".join(pieces)}, stop, usage)

    def calls(self, *calls: Call, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        made, output = [self._start()], []
        for n, (call_id, name, pieces) in enumerate(calls):
            item = {"type": "function_call", "id": f"fc_{n}", "call_id": call_id, "name": name, "arguments": "".join(pieces), "status": "completed"}
            output.append(item)
            made.append(event("response.output_item.added", output_index=n, item={**item, "arguments": ""}))
            made += [event("response.function_call_arguments.delta", output_index=n, item_id=f"fc_{n}", delta=piece) for piece in pieces]
            made.append(event("response.output_item.done", output_index=n, item=item))
        return made + self._end(output, stop, usage)

    def declined(self, why: str) -> list[bytes]:
        deltas = [event("response.refusal.delta", output_index=0, content_index=0, item_id="m1", delta=why)]
        return self._message(deltas, {"type": "refusal", "refusal": why}, "", None)

    def failure(self, kind: str, message: str) -> bytes:
        return sse({"type": "error", "error": {"type": kind, "message": message}}, "error")

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        return Reply.json({"error": {"type": kind, "message": message, "code": None, "param": None}}, status, **headers)


class Messages(Api):
    def _start(self, usage: Usage | None) -> list[bytes]:
        counts = {**(usage if usage is not None else {"input_tokens": 11}), "output_tokens": 1}
        return [event("message_start", message={"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": counts}), event("ping")]

    def _end(self, stop: str, usage: Usage | None, **details: Any) -> list[bytes]:
        counts = {"output_tokens": usage["output_tokens"] if usage is not None else 7}
        return [event("message_delta", delta={"stop_reason": stop, "stop_sequence": None, **details}, usage=counts), event("message_stop")]

    def _block(self, index: int, block: dict[str, Any], deltas: Sequence[dict[str, Any]]) -> list[bytes]:
        made = [event("content_block_start", index=index, content_block=block)]
        made += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        return [*made, event("content_block_stop", index=index)]

    def text(self, *pieces: str, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        block = self._block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces])
        return [*self._start(usage), *block, *self._end(stop or "end_turn", usage)]

    def calls(self, *calls: Call, stop: str = "", usage: Usage | None = None) -> list[bytes]:
        made = self._start(usage)
        for n, (call_id, name, pieces) in enumerate(calls):
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
            made += self._block(n, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas)
        return made + self._end(stop or "tool_use", usage)

    def declined(self, why: str) -> list[bytes]:
        return [*self._start(None), *self._end("refusal", None, stop_details={"type": "refusal", "category": None, "explanation": why})]

    def failure(self, kind: str, message: str) -> bytes:
        return event("error", error={"type": kind, "message": message})

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        return Reply.json({"type": "error", "error": {"type": kind, "message": message}}, status, **headers)


APIS: Final[dict[str, Api]] = {
    "openai.chat": Chat("openai.chat", "openai-chat:test-model", "/v1/chat/completions", "/v1", "AsyncOpenAI", "OPENAI_API_KEY"),
    "openai.responses": Responses("openai.responses", "openai:test-model", "/v1/responses", "/v1", "AsyncOpenAI", "OPENAI_API_KEY"),
    "anthropic.messages": Messages("anthropic.messages", "anthropic:test-model", "/v1/messages", "", "AsyncAnthropic", "ANTHROPIC_API_KEY"),
}
