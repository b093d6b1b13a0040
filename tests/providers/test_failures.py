"""Everything that goes wrong between a model and a run, over real HTTP and for each API: what the log says of it, and how the run goes on."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from refold import Agent, Budgets, Policy, audit, open_store, replay, tool
from refold.events import facts as f
from refold.projections.messages import user
from refold.runtime import models, ports as p
from refold.runtime.result import Result
from refold.runtime.store import Store
from refold.testing import strict
from refold.testing.loopback import Loopback, Reply

UNLIMITED = Budgets(max_tokens=None, max_cost_usd=None, max_tool_calls=None)
SOON_MS = {"retry_after_ms": "1"}
HELLO = ("Hello, ", "wörld \N{GRINNING FACE}", ".")


@tool(effect="read", repeatable=True)
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


class Played:
    """A run against the server, and its log."""

    def __init__(self, api: Any, server: Loopback, replies: Sequence[Reply], *, budgets: Budgets = UNLIMITED, **policy: Any) -> None:
        server.add(*replies)
        model = models.resolve(api.spec, base_url=api.url(server))
        agent = Agent(model, tools=[look], budgets=budgets, policy=Policy(**{"max_provider_retries": 0, "max_model_errors": 0, **policy}), ask_user=False)
        self.store: Store = open_store("memory:")
        self.result: Result = agent.run_sync("Say hello.", store=self.store)
        self.facts = [record.fact for record in self.store.read(self.result.id)]
        for heard in server.requests:
            strict.check(heard.path, heard.json)
        assert audit(self.store, self.result.id).ok
        assert replay(self.store, self.result.id).divergence is None

    @property
    def failed(self) -> f.ModelFailed:
        """The one failure of a provider in the log."""
        (failed,) = self.all(f.ModelFailed)
        return cast("f.ModelFailed", failed)

    def all(self, kind: type[f.Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]


def stream(events: Sequence[bytes], **how: Any) -> Reply:
    return Reply.events(b"".join(events), **how)


# -- refused


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_failure_that_may_pass_is_tried_again(api: Any, server: Loopback, status: int) -> None:
    # given a server that fails once, and says when to come back
    replies = [api.refusal("some_error", "not now", status, **SOON_MS), stream(api.text(*HELLO))]
    # when a run asks it
    played = Played(api, server, replies, max_provider_retries=1)
    # then the log says what failed, what was scheduled, and the answer of the second attempt
    error = played.failed.error
    assert (error.http_status, error.retryable, error.mid_stream, error.retry_after_s) == (status, True, False, 0.001)
    assert error.type == "some_error"
    assert "not now" in error.message
    (retry,) = played.all(f.RetryScheduled)
    assert retry.delay_us == 1_000
    assert (played.result.status, played.result.answer) == ("completed", "".join(HELLO))
    assert server.requests[0].json == server.requests[1].json


@pytest.mark.parametrize(
    ("status", "kind", "message", "says"),
    [
        (400, "invalid_request_error", "max_tokens is too large", "max_tokens is too large"),
        (401, "authentication_error", "invalid key", "{key}"),
        (403, "permission_error", "not for you", "{key}"),
        (404, "not_found_error", "no such model", "test-model"),
        (422, "invalid_request_error", "cannot be processed", "cannot be processed"),
        (429, "insufficient_quota", "you have no credit left", "credit"),
    ],
)
def test_a_failure_that_stays_is_not_tried_again(api: Any, server: Loopback, status: int, kind: str, message: str, says: str) -> None:
    # given a server that refuses for good
    played = Played(api, server, [api.refusal(kind, message, status)], max_provider_retries=3)
    # then the run failed at once, in one line that says what to check
    error = played.failed.error
    assert (error.type, error.http_status, error.retryable) == (kind, status, False)
    assert message in error.message
    assert says.format(key=api.key) in error.message
    assert "\n" not in error.message
    assert (played.result.status, played.result.reason, len(server.requests)) == ("failed", "provider", 1)


def test_a_request_that_is_too_long_is_known_as_such(api: Any, server: Loopback) -> None:
    message = {"anthropic.messages": "prompt is too long: 250000 tokens > 200000 maximum"}.get(api.name, "This model's maximum context length is 1000 tokens")
    played = Played(api, server, [api.refusal("invalid_request_error", message, 400)])
    assert (played.failed.error.overflow, played.failed.error.retryable) == (True, False)


def test_a_web_page_is_no_answer(api: Any, server: Loopback) -> None:
    played = Played(api, server, [Reply.html()], max_provider_retries=3)
    assert not played.failed.error.retryable
    assert "--base-url" in played.failed.error.message
    assert (played.result.status, len(server.requests)) == ("failed", 1)


def test_a_server_that_is_not_there_is_named(api: Any) -> None:
    # given an address at which nothing listens any more
    with Loopback() as gone:
        model = models.resolve(api.spec, base_url=api.url(gone))
    # when it is asked
    error = refused(model)
    # then the failure names it, and may pass
    assert (error.type, error.retryable, error.http_status) == ("connection", True, None)
    assert gone.url in error.message
    assert "Connect" in error.message


def test_a_server_that_does_not_speak_tls_is_named(api: Any, server: Loopback) -> None:
    # given https where there is only http
    model = models.resolve(api.spec, base_url=api.url(server).replace("http:", "https:"))
    # when it is asked
    error = refused(model)
    # then the failure is of the kind that stays, and says what to check
    assert (error.type, error.retryable) == ("tls", False)
    assert "https" in error.message


def test_a_key_is_nowhere_in_a_log(api: Any, server: Loopback, keys: dict[str, str]) -> None:
    # given a server that repeats the key it refuses
    key = keys[api.key]
    played = Played(api, server, [api.refusal("authentication_error", f"the key {key} is wrong, {key[:7]}***{key[-4:]} too", 401)])
    # then it is neither in the log nor in what is shown of the model
    assert key in str(server.requests[0].headers)
    log = json.dumps([record.data for record in played.store.read(played.result.id)], default=str)
    for secret in (key, key[:7], key[-4:]):
        assert secret not in log
    model = models.resolve(api.spec, base_url=api.url(server))
    assert key not in repr(model) + str(vars(model))


# -- broken off


def test_an_error_in_the_middle_of_a_stream(api: Any, server: Loopback) -> None:
    # given a server that is overloaded in the middle of its answer
    broken = stream([*unfinished(api), api.failure("overloaded_error", "Overloaded")])
    # when a run asks it
    played = Played(api, server, [broken, stream(api.text("Hello again."))], max_provider_retries=1)
    # then what had come is kept apart, and the answer is the second attempt's alone
    error = played.failed.error
    assert (error.type, error.message, error.retryable, error.mid_stream, error.http_status) == ("overloaded_error", "Overloaded", True, True, None)
    assert played.failed.text == "".join(HELLO)
    assert played.result.answer == "Hello again."


def unfinished(api: Any) -> list[bytes]:
    """The events of an answer up to the one that says that, or why, it ends."""
    marks = (b'"finish_reason": "stop"', b"response.completed", b'"stop_reason": "end_turn"')
    events: list[bytes] = api.text(*HELLO)
    return events[: next(n for n, event in enumerate(events) if any(mark in event for mark in marks))]


@pytest.mark.parametrize("end", ["stop", "reset"])
def test_a_connection_that_ends_before_the_first_byte(api: Any, server: Loopback, end: Any) -> None:
    played = Played(api, server, [Reply.nothing(end), stream(api.text(*HELLO))], max_provider_retries=1)
    assert (played.failed.error.type, played.failed.error.retryable, played.failed.error.mid_stream) == ("connection", True, False)
    assert played.failed.text == ""
    assert played.result.answer == "".join(HELLO)


@pytest.mark.parametrize("end", ["stop", "reset"])
def test_a_connection_that_ends_after_some_text(api: Any, server: Loopback, end: Any) -> None:
    # given a stream that breaks off, without and with a reset
    played = Played(api, server, [stream(unfinished(api), end=end), stream(api.text("Hello again."))], max_provider_retries=1)
    # then the log says so, and keeps what had come apart from the answer
    assert (played.failed.error.type, played.failed.error.retryable, played.failed.error.mid_stream) == ("connection", True, True)
    assert played.failed.text == "".join(HELLO)
    assert played.result.answer == "Hello again."


@pytest.mark.parametrize("end", ["stop", "reset", "whole"])
def test_a_call_whose_arguments_break_off_is_not_run(api: Any, server: Loopback, end: Any) -> None:
    # given a stream that breaks off in the middle of the arguments of a second call
    events = api.calls(("call_1", "look", ['{"at": "home"}']), ("call_2", "look", ['{"at": ', '"sea"}']))
    cut = next(n for n, event in enumerate(events) if b"sea" in event)
    played = Played(api, server, [stream(events[:cut], end=end), stream(api.text(*HELLO))], max_provider_retries=1)
    # then neither call was run
    assert played.failed.error.retryable
    assert not played.all(f.ToolStarted)
    assert not played.all(f.ToolCallsRequested)
    assert played.result.answer == "".join(HELLO)


def test_a_stream_that_just_stops_is_broken(api: Any, server: Loopback) -> None:
    # given a stream that ends in good order, but before the model said why
    played = Played(api, server, [stream(unfinished(api)), stream(api.text("Hello again."))], max_provider_retries=1)
    # then it is no answer
    assert (played.failed.error.type, played.failed.error.retryable) == ("stream_broken", True)
    assert played.failed.text == "".join(HELLO)
    assert played.result.answer == "Hello again."


def test_a_stream_that_is_cut_inside_an_event_is_broken(api: Any, server: Loopback) -> None:
    body = b"".join(unfinished(api))
    played = Played(api, server, [Reply.events(body[:-20]), stream(api.text("Hello again."))], max_provider_retries=1)
    assert played.failed.error.retryable
    assert played.result.answer == "Hello again."


@pytest.mark.slow
def test_a_stream_that_never_closes_is_given_up(api: Any, server: Loopback) -> None:
    # given a server that falls silent in the middle of its answer
    played = Played(api, server, [stream(unfinished(api), end="hang"), stream(api.text("Hello again."))], max_provider_retries=1, model_idle_timeout_s=1)
    # then the run gives it up, keeps what had come, and hangs up
    assert (played.failed.error.type, played.failed.error.retryable) == ("idle_timeout", True)
    assert played.failed.text == "".join(HELLO)
    assert server.requests[0].gone.wait(5)
    assert played.result.answer == "Hello again."


# -- slow, long, many


@pytest.mark.slow
def test_a_stream_that_comes_byte_by_byte_is_the_same_answer(api: Any, server: Loopback) -> None:
    body = b"".join(api.text(*HELLO))
    played = Played(api, server, [Reply.events(body, range(len(body)), every_s=0.001)], model_idle_timeout_s=5)
    assert played.result.answer == "".join(HELLO)
    assert (played.result.usage["reported"]["input_tokens"], played.result.usage["reported"]["output_tokens"]) == (11, 7)


@pytest.mark.slow
def test_ten_megabytes_of_text_are_an_answer(api: Any, server: Loopback) -> None:
    # given 10 MB in 1,000 pieces
    pieces = [f"{n:09d}\n" * 1_000 for n in range(1_000)]
    events = api.text(*pieces)
    body = b"".join(events)
    cuts = range(0, len(body), 65_536)
    played = Played(api, server, [Reply.events(body, cuts)], budgets=Budgets(max_tokens=None, max_cost_usd=None, timeout_s=None))
    assert played.result.answer == "".join(pieces)


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_many_calls_in_one_response_all_get_their_results(api: Any, server: Loopback, count: int) -> None:
    # given a response of many calls
    calls = [(f"call_{n}", "look", ['{"at":', f'"place {n}"}}']) for n in range(count)]
    played = Played(api, server, [stream(api.calls(*calls)), stream(api.text(*HELLO))])
    # then each was run, and the next request carries each result behind its call
    assert len(played.all(f.ToolSucceeded)) == count
    assert played.result.answer == "".join(HELLO)
    sent = json.dumps(server.requests[1].json)
    places = [sent.index(f"seen place {n}\\n") for n in range(count)]
    assert places == sorted(places)


def test_two_calls_of_one_id_are_no_turn(api: Any, server: Loopback) -> None:
    # given a response in which two calls have one id
    twice = stream(api.calls(("call_1", "look", ['{"at": "home"}']), ("call_1", "look", ['{"at": "sea"}'])))
    played = Played(api, server, [twice, stream(api.text(*HELLO))], max_model_errors=1)
    # then none is run, and the model is told
    (interrupted,) = played.all(f.ModelInterrupted)
    assert (interrupted.cause, [call.provider_id for call in interrupted.calls]) == ("invalid", ["call_1", "call_1"])
    assert not played.all(f.ToolStarted)
    assert "call_1" in json.dumps(server.requests[1].json)
    assert played.result.answer == "".join(HELLO)


def test_an_id_that_comes_back_in_another_turn_is_renamed(api: Any, server: Loopback) -> None:
    # given a server that counts its calls anew in every response
    replies = [stream(api.calls(("call_0", "look", [f'{{"at": "{place}"}}']))) for place in ("home", "sea")]
    played = Played(api, server, [*replies, stream(api.text(*HELLO))])
    # then the log has the provider's ids, and no request has one twice (the strict checker sees to that)
    assert [call.provider_id for fact in played.all(f.ToolCallsRequested) for call in fact.calls] == ["call_0", "call_0"]
    assert played.result.answer == "".join(HELLO)


# -- given up


def test_cancelling_a_task_hangs_up_at_once(api: Any, server: Loopback) -> None:
    # given a stream that goes on for ever
    server.add(stream(unfinished(api), end="hang"))
    model = models.resolve(api.spec, base_url=api.url(server))

    async def cancelled() -> None:
        begun = asyncio.Event()

        async def listen() -> None:
            async for part in model.stream(ASKED):
                if isinstance(part, p.TextDelta):
                    begun.set()

        listening = asyncio.create_task(listen())
        await asyncio.wait_for(begun.wait(), 10)
        # when its listener is cancelled
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening

    asyncio.run(cancelled())
    # then the server sees its socket closed
    assert server.wait().gone.wait(1)


def test_closing_a_stream_hangs_up_at_once(api: Any, server: Loopback) -> None:
    # given a stream that goes on for ever, in the same event loop in which other requests go on
    server.add(stream(unfinished(api), end="hang"), stream(api.text("Bye.")))
    model = models.resolve(api.spec, base_url=api.url(server))

    async def closed() -> None:
        parts = cast("AsyncGenerator[p.Part, None]", model.stream(ASKED))
        await anext(parts)
        # when it is closed
        await parts.aclose()
        # then the server sees its socket closed, and the model can be asked again
        assert await asyncio.to_thread(server.wait().gone.wait, 1)
        assert [part.text async for part in model.stream(ASKED) if isinstance(part, p.TextDelta)] == ["Bye."]

    asyncio.run(closed())


def test_a_run_that_is_cancelled_keeps_the_text_and_hangs_up(api: Any, server: Loopback) -> None:
    # given a run whose model goes on for ever
    server.add(stream(unfinished(api), end="hang"))
    store = open_store("memory:")
    agent = Agent(models.resolve(api.spec, base_url=api.url(server)), budgets=UNLIMITED)

    async def run() -> float:
        begun = asyncio.Event()
        running = asyncio.create_task(
            agent.run("Say hello.", store=store, run_id="r", heard=lambda what: begun.set() if isinstance(what, p.TextDelta) else None)
        )
        await asyncio.wait_for(begun.wait(), 10)
        # when it is cancelled
        at = time.monotonic()
        await store.cancel("r", "enough")
        assert (await running).status == "cancelled"
        return time.monotonic() - at

    # then it ends within a second, the log has what was said, and the server sees its socket closed
    assert asyncio.run(run()) < 1
    (interrupted,) = [record.fact for record in store.read("r") if isinstance(record.fact, f.ModelInterrupted)]
    assert interrupted.cause == "cancelled"
    assert interrupted.text
    assert server.wait().gone.wait(1)


ASKED = p.Request(turn=1, number=1, instructions="", messages=(user("Say hello."),), tools=(), max_output_tokens=1_000)


def refused(model: p.Model) -> p.ModelError:
    async def ask() -> None:
        async for _ in model.stream(ASKED):
            pass

    with pytest.raises(p.ModelError) as error:
        asyncio.run(ask())
    return error.value
