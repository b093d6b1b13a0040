"""What real providers answered, played again over real HTTP to the real SDK clients: each response becomes the turn that it is, however the network cuts it up."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from refold.events import facts as f
from refold.fsm.answers import classify
from refold.projections.messages import user
from refold.runtime import models, ports as p
from refold.runtime.assemble import Assembler
from refold.runtime.providers._sse import Event, events
from refold.runtime.text import whole
from refold.testing import strict
from refold.testing.loopback import Loopback, Reply

pytestmark = pytest.mark.slow  # hundreds of recordings
ASKED = p.Request(turn=1, number=1, instructions="Be brief.", messages=(user("What is there?"),), tools=(), max_output_tokens=1_000)
PLACES = 50
BYTE_BY_BYTE_MAX = 10_000


@dataclass
class Turn:
    """What came of one request: a fact, what is recorded of the usage, and the error where there was one."""

    fact: f.FinalProposed | f.ToolCallsRequested | f.ModelInterrupted
    usage: f.Usage | None
    error: p.ModelError | None
    complete: bool


async def taken(parts: AsyncIterator[p.Part]) -> Turn:
    """Parts to a turn, as the runtime takes them in."""
    assembler, error = Assembler(), None
    try:
        async for part in parts:
            assembler.take(p.checked(part))
    except p.ModelError as failed:
        error = failed
    return Turn(classify(assembler.response(0, 0), 1), assembler.usage(), error, assembler.finished is not None)


class Stage:
    """One server, and a model for each API that is asked there; a client takes a tenth of a second to make, so each is made once."""

    def __init__(self, server: Loopback) -> None:
        self.server = server
        self._models: dict[tuple[str, bool], p.Model] = {}

    def ask(self, exchange: Any, replies: Sequence[Reply], *, stream: bool = True) -> list[Turn]:
        """A turn for each of these replies to the model of a recording."""
        self.server.requests.clear()
        self.server.add(*replies)
        model = self._model(exchange, stream)

        async def all_of_them() -> list[Turn]:
            return [await taken(model.stream(ASKED)) for _ in replies]

        return asyncio.run(all_of_them())

    def _model(self, exchange: Any, stream: bool) -> p.Model:
        spec = "deepseek:test-model" if exchange.provider == "deepseek" and exchange.api.name == "openai.responses" else exchange.api.spec
        if (spec, stream) not in self._models:
            self._models[spec, stream] = models.resolve(spec, base_url=exchange.api.url(self.server), settings={"stream": stream})
        return self._models[spec, stream]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Loopback() as server:
        yield Stage(server)


# -- what a turn must be


def check(turn: Turn, exchange: Any) -> None:
    expect = exchange.expect
    if expect["error"] is not None:
        return check_error(turn, expect)
    assert turn.error is None
    assert turn.complete
    fact = turn.fact
    assert (fact.text, fact.reasoning, fact.refusal) == (whole(expect["text"]), whole(expect["reasoning"]), expect["refusal"] or "")
    assert fact.provider_stop_reason == (expect["stop_reason"] or "")
    assert [(call.name, call.provider_id) for call in fact.calls] == [(call["name"], call["id"] or "") for call in expect["tool_calls"]]
    for call, wanted in zip(fact.calls, expect["tool_calls"], strict=True):
        check_arguments(call.arguments_text, wanted)
    check_usage(turn.usage, expect["usage"], exchange.api.name)
    assert isinstance(fact, f.ToolCallsRequested) == bool(fact.calls and fact.stop_reason == "tool_calls")
    return None


def check_arguments(text: str, wanted: dict[str, Any]) -> None:
    if wanted["arguments_text"] is not None:
        assert text == wanted["arguments_text"]
    if wanted.get("arguments_valid", True) and wanted.get("kind") != "custom":
        assert json.loads(text or "{}") == wanted["arguments"]


def check_usage(usage: f.Usage | None, wanted: dict[str, Any] | None, api: str) -> None:
    if wanted is None:
        assert usage is None
        return
    counts = {name: count or 0 for name, count in wanted.items() if name != "raw"}
    if api == "anthropic.messages":  # the one that leaves out what came from a cache or went into it
        counts["input_tokens"] += counts["cached_input_tokens"] + counts["cache_write_tokens"]
    assert usage is not None
    assert {name: getattr(usage, name) for name in counts} == counts


def check_error(turn: Turn, expect: dict[str, Any]) -> None:
    error, wanted = turn.error, expect["error"]
    assert error is not None
    assert not turn.complete
    assert " ".join(wanted["message"].split()) in error.message
    assert error.type == wanted["type"] or wanted["type"] is None
    assert error.code == str(wanted["code"]) or not wanted["code"]
    assert (error.http_status, error.retry_after_s, error.mid_stream) == (wanted["http_status"], wanted["retry_after"], wanted["mid_stream"])
    if wanted["http_status"]:
        assert error.retryable == (wanted["http_status"] == 429)
    assert turn.fact.text == expect["text"]
    check_usage(turn.usage, expect["usage"], "")


# -- as it was sent


def test_a_recorded_response_becomes_the_turn_that_it_is(exchange: Any, stage: Stage) -> None:
    # given a server that answers as a real one did, and a model that asks for a stream or, where it was recorded without one, also for none
    for stream in (True,) if exchange.streamed else (True, False):
        # when it is asked
        (turn,) = stage.ask(exchange, [exchange.reply()], stream=stream)
        # then the turn is what the body says
        check(turn, exchange)
        # and it was the SDK of that provider that asked, in a way that no server refuses
        (heard,) = stage.server.requests
        assert heard.headers["user-agent"].startswith(exchange.api.agent)
        assert heard.path == exchange.api.path
        assert bool(heard.json.get("stream")) == stream
        strict.check(heard.path, heard.json)


# -- cut into pieces


def test_a_stream_that_is_cut_anywhere_is_the_same_turn(stream: Any, stage: Stage) -> None:
    # given a recorded stream that comes in two pieces, in fifty, and byte by byte
    size = len(stream.body)
    places = random.Random(stream.name).sample(range(1, size), PLACES)
    cuts: list[Sequence[int]] = [*([place] for place in places[:5]), places, range(size if size < BYTE_BY_BYTE_MAX else 0)]
    # when it is received over HTTP
    turns = stage.ask(stream, [stream.reply(cut) for cut in cuts])
    # then each time it is the same turn
    for turn in turns:
        check(turn, stream)


def test_a_cut_at_any_byte_changes_no_event(smallest: Any) -> None:
    """Everything behind the reading of events sees events alone, so here are all offsets: over HTTP a hundred thousand requests would take ten minutes."""
    body = smallest.body
    # given the events of a recorded stream
    uncut = received(body)
    assert uncut
    # when it is cut at any byte, then they are the same
    for place in range(1, len(body)):
        assert received(body[:place], body[place:]) == uncut, place
    # and with every line ending that a server may choose, cut inside it too
    for ending in (b"\r\n", b"\r"):
        assert received(*(bytes([byte]) for byte in body.replace(b"\n", ending))) == uncut


def test_a_cut_anywhere_changes_no_event_of_a_long_stream(stream: Any) -> None:
    uncut = received(stream.body)
    for place in random.Random(stream.name).sample(range(1, len(stream.body)), PLACES):
        assert received(stream.body[:place], stream.body[place:]) == uncut, place


def received(*pieces: bytes) -> list[Event]:
    async def read() -> list[Event]:
        return [event async for event in events(of_pieces(pieces))]

    return run_alone(read())


def run_alone(coroutine: Coroutine[Any, Any, list[Event]]) -> list[Event]:
    """What a coroutine comes to that waits for nothing: an event loop for each of a hundred thousand would take minutes."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    made: list[Event] = stopped.value.value
    return made


async def of_pieces(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
