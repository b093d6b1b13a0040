"""What is no reply of an API, for each of them: it stays, and says what to check; what was damaged on its way, or cut off, is asked for again."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from refold import Agent, Budgets, Policy, open_store
from refold.events import facts as f
from refold.runtime import models
from refold.testing.loopback import SSE, Loopback, Reply
from refold.testing.replies import APIS

OPTIONS = {"OPENAI_API_KEY": "OPENAI_BASE_URL", "ANTHROPIC_API_KEY": "ANTHROPIC_BASE_URL"}
JSON = {"content-type": "application/json"}
ENCODED = {"content-encoding": "gzip"}

PLAIN: dict[str, Any] = {
    "openai.chat": {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]},
    "openai.responses": {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}]},
    "anthropic.messages": {"id": "m", "type": "message", "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn"},
}
"""A reply of each API in one piece."""


def document(value: Any) -> Reply:
    return Reply.json(value)


def page(label: dict[str, str]) -> Reply:
    return Reply(b"<!doctype html><title>Welcome</title>", headers=label)


def is_streamed(value: Any) -> Reply:
    return Reply.events(f"data: {json.dumps(value)}\n\ndata: [DONE]\n\n".encode())


NO_REPLY: dict[str, Reply] = {
    **{f"json {json.dumps(value)}": document(value) for value in ({}, [], [1], ["x"], "hello", None, 7, True, {"error": None}, {"detail": "Not Found"})},
    **{
        f"json {json.dumps(value)}": document(value)
        for value in ({"error": "nope"}, {"error": {"message": "nope"}}, {"type": "error", "error": {"type": "odd"}})
    },
    **{f"json {json.dumps(value)}": document(value) for value in ({"choices": 7}, {"output": "x"}, {"content": None}, {"choices": ["a"]}, {"output": ["a"]})},
    "gemini": document({"candidates": [{"content": {"parts": [{"text": "Yes."}]}}]}),
    "lines of ollama": Reply(b'{"message": {"content": "Yes."}, "done": false}\n{"done": true}\n', headers={"content-type": "application/x-ndjson"}),
    "a page as json": page(JSON),
    "a page as a stream": page({"content-type": SSE}),
    "a page as nothing": page({}),
    "json as a stream": Reply(b"{}", headers={"content-type": SSE}),
    "json as nothing": Reply(b"{}"),
    "text": Reply(b"It works.", headers={"content-type": "text/plain"}),
    **{f"an event {json.dumps(value)}": is_streamed(value) for value in ({}, [], "hello", None, 7, {"candidates": []})},
}


class Played:
    """A run against the server: how it ended, and how often the model failed."""

    def __init__(self, api: Any, server: Loopback, *replies: Reply, streaming: bool = True) -> None:
        server.add(*replies)
        model = models.resolve(api.spec, base_url=api.url(server), settings={"stream": streaming})
        budgets = Budgets(max_tokens=None, max_cost_usd=None)
        self.result = Agent(model, budgets=budgets, policy=Policy(max_provider_retries=1)).run_sync("Is it?", store=open_store("memory:"))
        self.errors = [record.fact.error for record in self.result.records if isinstance(record.fact, f.ModelFailed)]


def is_told(played: Played, api: Any, server: Loopback, keys: dict[str, str]) -> None:
    """That a run failed at its first request, and says where to look."""
    (error,) = played.errors
    assert (played.result.status, played.result.reason, len(server.requests)) == ("failed", "provider", 1)
    assert not error.retryable
    assert "no reply of this API" in error.message
    for named in (server.url, "--base-url", OPTIONS[api.key]):
        assert named in error.message
    assert "\n" not in error.message
    assert keys[api.key] not in error.message


def asked_for() -> Iterator[Any]:
    """Every reply, asked for as a stream and in one piece; in the quick set one after the other in turn."""
    for n, (name, reply) in enumerate(NO_REPLY.items()):
        for streaming in (True, False):
            marks = () if streaming == (n % 2 == 0) else pytest.mark.slow
            yield pytest.param(reply, streaming, marks=marks, id=f"{name}-{'streamed' if streaming else 'plain'}")


@pytest.mark.parametrize(("reply", "streaming"), list(asked_for()))
def test_what_is_no_reply_of_the_api_says_what_to_check(api: Any, server: Loopback, keys: dict[str, str], reply: Reply, streaming: bool) -> None:
    # given a server that answers something else, and then what is due
    played = Played(api, server, reply, Reply.json(PLAIN[api.name]), streaming=streaming)
    # then the run ended at once, in one line that says what to check
    is_told(played, api, server, keys)


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "plain"])
def test_the_reply_of_another_api_is_none_of_this(api: Any, keys: dict[str, str], streaming: bool) -> None:
    # given servers that speak another API, in one piece and streamed
    for other in PLAIN.keys() - {api.name}:
        for reply in (Reply.json(PLAIN[other]), Reply.events(b"".join(APIS[other].text("Yes.")))):
            with Loopback() as server:
                # when they are asked, then the run says so
                is_told(Played(api, server, reply, streaming=streaming), api, server, keys)


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "plain"])
def test_a_label_that_is_wrong_hides_no_reply(api: Any, server: Loopback, streaming: bool) -> None:
    # given a stream and a document, each under the other's label, and under none
    streamed, plain = b"\r\n" + b"".join(api.text("Ja", ".")), b"\n" + json.dumps(PLAIN[api.name]).encode()
    for body, label in ((streamed, JSON), (streamed, {}), (plain, {"content-type": SSE}), (plain, {})):
        assert Played(api, server, Reply(body, headers=label), streaming=streaming).result.answer in ("Ja.", "Yes.")


def test_a_stream_is_known_by_its_first_bytes_however_they_come(api: Any, server: Loopback) -> None:
    body = b"\xef\xbb\xbf: hello\n\n" + b"".join(api.text("Ja", "."))
    assert Played(api, server, Reply.events(body, range(12))).result.answer == "Ja."


def damaged(api: Any, how: str) -> Reply:
    """A reply whose content encoding cannot be read."""
    body = gzip.compress(json.dumps(PLAIN[api.name]).encode())
    match how:
        case "no gzip":
            return Reply(b"this is no gzip", headers=JSON | ENCODED)
        case "no gzip in a stream":
            return Reply([b"this is no gzip"], headers={"content-type": SSE} | ENCODED)
        case "a damaged check":
            return Reply(body[:-8] + bytes(8), headers=JSON | ENCODED)
        case "no gzip in a refusal":
            return Reply(b"this is no gzip", 500, JSON | ENCODED)
        case "a truncated gzip":
            return Reply([body[:-30]], headers=JSON | ENCODED)
        case "a truncated document":
            return Reply([json.dumps(PLAIN[api.name]).encode()[:-7]], headers=JSON)
        case _:
            assert how == "a truncated stream"
            whole = gzip.compress(b"".join(api.text("Yes.")[:-2]))
            return Reply([whole[:-30]], headers={"content-type": SSE} | ENCODED)


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize(
    "how",
    ["no gzip", "no gzip in a stream", "a damaged check", "no gzip in a refusal", "a truncated gzip", "a truncated document", "a truncated stream"],
)
def test_a_response_that_was_damaged_is_asked_for_again(api: Any, server: Loopback, how: str, streaming: bool) -> None:
    # given a response that cannot be decoded, or that ends too early, and then a good one
    played = Played(api, server, damaged(api, how), Reply.json(PLAIN[api.name]), streaming=streaming)
    # then it is asked for again, and the log says what was wrong
    (error,) = played.errors
    assert (error.type, error.retryable) in {("connection", True), ("stream_broken", True)}
    assert error.type == "connection" or how == "a truncated stream"
    assert "could not be decoded" in error.message or "cut off" in error.message
    assert played.result.answer == "Yes."
