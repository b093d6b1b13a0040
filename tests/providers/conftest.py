"""What the tests of providers share: a server on this machine, one that speaks Chat Completions, and what real providers answered, where that is at hand.

The recordings are no part of this repository. They are looked for in the folder that REFOLD_RECORDINGS names, else beside the checkout; without them their tests are skipped.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.projections.messages import Message, user
from refold.runtime import models, ports as p
from refold.runtime.assemble import Assembler
from refold.testing import strict
from refold.testing.loopback import Loopback, Reply
from refold.testing.replies import APIS, Api

RECORDINGS = Path(os.environ.get("REFOLD_RECORDINGS") or Path(refold.__file__).parent.parent / "shared" / "recordings") / "wire"


@pytest.fixture(autouse=True)
def ready(sdks: None, keys: dict[str, str], at_once: None) -> None:
    """Every test here speaks to a provider, and waits for none."""


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback() as made:
        yield made


class Chat:
    """A server that speaks Chat Completions, and models that ask it."""

    def __init__(self, server: Loopback) -> None:
        self.server = server

    def asked(self, *messages: Message, **fields: Any) -> p.Request:
        given: dict[str, Any] = {"turn": 1, "number": 1, "instructions": "Be brief.", "tools": (), "max_output_tokens": 1_000}
        return p.Request(messages=messages or (user("What is there?"),), **(given | fields))

    def model(self, settings: dict[str, Any] | None = None, name: str = "m") -> p.Model:
        return models.resolve(f"openai-chat:{name}", base_url=f"{self.server.url}/v1", settings=settings)

    def parts(self, model: p.Model, request: p.Request | None = None) -> list[p.Part]:
        async def all_of_them() -> list[p.Part]:
            return [p.checked(part) async for part in model.stream(request or self.asked())]

        return asyncio.run(all_of_them())

    def taken(self, reply: Reply, **settings: Any) -> Assembler:
        """The turn that a reply is."""
        self.server.add(reply)
        assembler = Assembler()
        for part in self.parts(self.model(settings)):
            assembler.take(part)
        return assembler

    def body(self, request: p.Request, settings: dict[str, Any] | None = None, name: str = "m") -> dict[str, Any]:
        """What the server gets for a request."""
        self.server.add(Reply.events(b"".join(APIS["openai.chat"].text("Yes."))))
        self.parts(self.model(settings, name), request)
        heard = self.server.requests[-1]
        assert (heard.method, heard.path) == ("POST", "/v1/chat/completions")
        body: dict[str, Any] = heard.json
        strict.check(heard.path, body)
        return body


@pytest.fixture
def chat(server: Loopback) -> Chat:
    return Chat(server)


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
