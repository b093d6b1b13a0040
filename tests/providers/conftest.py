"""What the tests of providers share: the three APIs as a user reaches them, replies of each written by hand, and what real providers answered, where that is at hand.

The recordings are no part of this repository. They are looked for in the folder that REFOLD_RECORDINGS names, else beside the checkout; without them their tests are skipped.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.testing.loopback import Loopback, Reply

RECORDINGS = Path(os.environ.get("REFOLD_RECORDINGS") or Path(refold.__file__).parent.parent / "shared" / "recordings") / "wire"
KEYS = {"OPENAI_API_KEY": "sk-test-0123456789abcdef", "ANTHROPIC_API_KEY": "sk-ant-test-0123456789", "DEEPSEEK_API_KEY": "sk-deep-0123456789"}


@pytest.fixture(autouse=True, scope="session")
def sdks() -> None:
    """Loaded before anything is timed: that takes seconds."""
    for name in ("openai", "anthropic"):
        pytest.importorskip(name, reason=f"the {name} package is not installed")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keys that are none, and nothing else from the environment that could lead a request astray."""
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.startswith(("OPENAI_", "ANTHROPIC_", "DEEPSEEK_")):
            monkeypatch.delenv(name)
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    return KEYS


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback() as made:
        yield made


# -- replies written by hand

Call = tuple[str, str, Sequence[str]]
"""Id, name, and the arguments in the pieces in which they are streamed."""


def sse(value: Any, name: str = "") -> bytes:
    """One event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


@dataclass(frozen=True)
class Api:
    """One API: what a user types for it, and replies in its form, as the list of their events."""

    name: str
    spec: str
    path: str
    root: str
    agent: str
    key: str

    def url(self, server: Loopback) -> str:
        return server.url + self.root

    def text(self, *pieces: str) -> list[bytes]:
        """An answer in these pieces; 11 tokens in, 7 out."""
        raise NotImplementedError

    def calls(self, *calls: Call) -> list[bytes]:
        """Calls, one after another."""
        raise NotImplementedError

    def failure(self, kind: str, message: str) -> bytes:
        """An error in the middle of a stream."""
        raise NotImplementedError

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        """A request that is refused."""
        raise NotImplementedError


class Chat(Api):
    def _chunk(self, delta: dict[str, Any], stop: str | None = None) -> bytes:
        return sse({"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]})

    def _end(self, stop: str) -> list[bytes]:
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        return [self._chunk({}, stop), sse({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": usage}), b"data: [DONE]\n\n"]

    def text(self, *pieces: str) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""}), *(self._chunk({"content": piece}) for piece in pieces), *self._end("stop")]

    def calls(self, *calls: Call) -> list[bytes]:
        made = [self._chunk({"role": "assistant", "content": None})]
        for n, (call_id, name, pieces) in enumerate(calls):
            made.append(self._chunk({"tool_calls": [{"index": n, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}]}))
            made += [self._chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]}) for piece in pieces]
        return made + self._end("tool_calls")

    def failure(self, kind: str, message: str) -> bytes:
        return sse({"error": {"type": kind, "message": message}})

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        return Reply.json({"error": {"type": kind, "message": message, "code": None, "param": None}}, status, **headers)


class Responses(Api):
    def _start(self) -> bytes:
        return sse({"type": "response.created", "response": {"id": "r1", "status": "in_progress", "output": []}}, "response.created")

    def _end(self, output: list[dict[str, Any]]) -> bytes:
        usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
        response = {"id": "r1", "status": "completed", "output": output, "usage": usage}
        return sse({"type": "response.completed", "response": response}, "response.completed")

    def text(self, *pieces: str) -> list[bytes]:
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "".join(pieces)}]}
        place = {"output_index": 0, "content_index": 0, "item_id": "m1"}
        made = [self._start(), sse({"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}}, "response.output_item.added")]
        made += [sse({"type": "response.output_text.delta", **place, "delta": piece}, "response.output_text.delta") for piece in pieces]
        return [*made, sse({"type": "response.output_item.done", "output_index": 0, "item": item}, "response.output_item.done"), self._end([item])]

    def calls(self, *calls: Call) -> list[bytes]:
        made, output = [self._start()], []
        for n, (call_id, name, pieces) in enumerate(calls):
            item = {"type": "function_call", "id": f"fc_{n}", "call_id": call_id, "name": name, "arguments": "".join(pieces), "status": "completed"}
            output.append(item)
            made.append(sse({"type": "response.output_item.added", "output_index": n, "item": {**item, "arguments": ""}}, "response.output_item.added"))
            kind = "response.function_call_arguments.delta"
            made += [sse({"type": kind, "output_index": n, "item_id": f"fc_{n}", "delta": piece}, kind) for piece in pieces]
            made.append(sse({"type": "response.output_item.done", "output_index": n, "item": item}, "response.output_item.done"))
        return [*made, self._end(output)]

    def failure(self, kind: str, message: str) -> bytes:
        return sse({"type": "error", "error": {"type": kind, "message": message}}, "error")

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        return Reply.json({"error": {"type": kind, "message": message, "code": None, "param": None}}, status, **headers)


class Messages(Api):
    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, kind)

    def _start(self) -> list[bytes]:
        usage = {"input_tokens": 11, "output_tokens": 1}
        return [
            self._event("message_start", message={"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": usage}),
            self._event("ping"),
        ]

    def _end(self, stop: str) -> list[bytes]:
        return [self._event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 7}), self._event("message_stop")]

    def _block(self, index: int, block: dict[str, Any], deltas: Sequence[dict[str, Any]]) -> list[bytes]:
        made = [self._event("content_block_start", index=index, content_block=block)]
        made += [self._event("content_block_delta", index=index, delta=delta) for delta in deltas]
        return [*made, self._event("content_block_stop", index=index)]

    def text(self, *pieces: str) -> list[bytes]:
        return [
            *self._start(),
            *self._block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]),
            *self._end("end_turn"),
        ]

    def calls(self, *calls: Call) -> list[bytes]:
        made = self._start()
        for n, (call_id, name, pieces) in enumerate(calls):
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
            made += self._block(n, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas)
        return made + self._end("tool_use")

    def failure(self, kind: str, message: str) -> bytes:
        return self._event("error", error={"type": kind, "message": message})

    def refusal(self, kind: str, message: str, status: int, **headers: str) -> Reply:
        return Reply.json({"type": "error", "error": {"type": kind, "message": message}}, status, **headers)


APIS: dict[str, Api] = {
    "openai.chat": Chat("openai.chat", "openai-chat:test-model", "/v1/chat/completions", "/v1", "AsyncOpenAI", "OPENAI_API_KEY"),
    "openai.responses": Responses("openai.responses", "openai:test-model", "/v1/responses", "/v1", "AsyncOpenAI", "OPENAI_API_KEY"),
    "anthropic.messages": Messages("anthropic.messages", "anthropic:test-model", "/v1/messages", "", "AsyncAnthropic", "ANTHROPIC_API_KEY"),
}


@pytest.fixture(params=APIS.values(), ids=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    made: Api = request.param
    return made


# -- what real providers answered


@dataclass(frozen=True)
class Exchange:
    """One request to a real provider and its response; `expect` is what a reading of the body alone makes of it."""

    name: str
    api: Api
    provider: str
    streamed: bool
    asked: dict[str, Any]
    status: int
    headers: dict[str, str]
    body: bytes
    expect: dict[str, Any]

    def reply(self, cuts: Sequence[int] = ()) -> Reply:
        """The response, streamed where it was, cut at these places."""
        if not self.streamed:
            return Reply(self.body, self.status, self.headers)
        return Reply(list(Reply.events(self.body, cuts).body or ()), self.status, self.headers)


@dataclass(frozen=True)
class Conversation:
    """Several exchanges in order."""

    name: str
    exchanges: tuple[Exchange, ...]


def _read(path: Path) -> Conversation:
    recording = json.loads(path.read_text(encoding="utf-8"))
    exchanges = recording.get("exchanges") or [recording]
    return Conversation(path.stem, tuple(_exchange(recording, each, n) for n, each in enumerate(exchanges)))


def _exchange(recording: dict[str, Any], exchange: dict[str, Any], n: int) -> Exchange:
    response = exchange["response"]
    return Exchange(
        name=f"{recording['id']}.{n}",
        api=APIS[recording["api"]],
        provider=recording["provider"],
        streamed="event-stream" in response["headers"].get("content-type", ""),
        asked=exchange["request"]["body"] or {},
        status=response["status"],
        headers=response["headers"],
        body=response["body"].encode(),
        expect=exchange["expect"],
    )


CONVERSATIONS = [_read(path) for path in sorted(RECORDINGS.glob("*-*.json"))]
EXCHANGES = [exchange for conversation in CONVERSATIONS for exchange in conversation.exchanges]
STREAMS = sorted((exchange for exchange in EXCHANGES if exchange.streamed), key=lambda exchange: (len(exchange.body), exchange.name))
SMALLEST = [exchange for api in APIS.values() for exchange in [each for each in STREAMS if each.api is api][:10]]

PLAYED: dict[str, Sequence[Exchange | Conversation]] = {
    "exchange": EXCHANGES,
    "stream": STREAMS,
    "smallest": SMALLEST,
    "conversation": [conversation for conversation in CONVERSATIONS if len(conversation.exchanges) > 1],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, played in PLAYED.items():
        if name in metafunc.fixturenames:
            absent = pytest.param(None, id="absent", marks=pytest.mark.skip(f"no recordings of real providers in {RECORDINGS}"))
            metafunc.parametrize(name, [pytest.param(each, id=each.name) for each in played] or [absent])
