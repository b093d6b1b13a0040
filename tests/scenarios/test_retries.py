"""Retries: what may help is tried again within its limits and seen, what cannot help is not."""

import asyncio
from typing import Any

import pytest

from refold import Agent, Policy, tool
from refold.events import facts as f
from refold.events.codec import Record
from refold.runtime import ports as p

FINAL = [400, 401, 403, 404, 422]
PASSING = [408, 409, 429, 500, 503, 529, None]


def failing(status: int | None, *, retryable: bool) -> dict[str, Any]:
    return {"error": {"type": f"status_{status}", "message": "", "retryable": retryable, "retry_after_s": 0, "http_status": status}}


@pytest.mark.parametrize("status", FINAL)
def test_B101_an_error_that_no_retry_can_help_is_met_once(stage, status):
    # given a provider that refuses for good, with an empty word
    turns = [failing(status, retryable=False)] * 10
    # when
    result = stage.play(turns, run_id="r")
    # then one request was made, and the run failed
    assert (result.status, result.reason) == ("failed", "provider")
    assert f"status_{status}" in result.detail
    assert len(stage.requests()) == 1
    # and resuming it asks nothing
    again = stage.agent(turns)
    assert again.resume_sync("r", store=stage.store).status == "failed"
    assert stage.requests() == []


def test_B101_a_request_that_the_model_cannot_read_is_bounded(stage):
    # given a model that says each time that the request was too long
    turns = [{"text": "", "reasoning": "too long", "stop_reason": "context_overflow"}] * 10
    # when
    result = stage.play(turns)
    # then it is not asked the same again, and the run says what was too long
    assert (result.status, result.reason) == ("failed", "provider")
    assert "longer than the model's window" in result.detail
    assert len(stage.requests()) == 1


@pytest.mark.parametrize("status", PASSING)
def test_B101_an_error_that_may_pass_is_tried_again_up_to_the_limit(stage, status):
    # given a provider that fails and fails, and one that works the third time
    turns = [failing(status, retryable=True)] * 10
    policy = Policy(max_provider_retries=3)
    # when
    result = stage.play(turns, policy=policy, run_id="r")
    # then it was asked as often as the policy says, and every attempt is in the log
    assert (result.status, result.reason) == ("failed", "max_provider_retries")
    assert len(stage.requests()) == 4
    assert [record.type for record in result.records].count("model_failed") == 4
    again = stage.agent(turns, policy=policy)
    assert again.resume_sync("r", store=stage.store).status == "failed"
    assert stage.requests() == []
    # and where it helps the run goes on
    result = stage.play([*turns[:2], {"text": "done"}], policy=policy)
    assert (result.status, result.answer, result.turns) == ("completed", "done", 1)


def test_B101_a_provider_that_asks_for_more_patience_than_there_is_says_how_much_it_wanted(stage):
    turns = [{"error": {"type": "rate_limit", "message": "slow down", "retryable": True, "retry_after_s": 1_000}}]
    result = stage.play(turns)
    assert (result.status, result.reason) == ("failed", "max_provider_retries")
    assert "longer than policy.max_retry_wait_s=120 allows (1000 s), with rate_limit: slow down" in result.run.detail


def test_B101_a_provider_that_asks_for_more_patience_than_there_is_ends_the_run(stage):
    # given a provider that wants an hour
    turns = [{"error": {"type": "overloaded", "message": "later", "retryable": True, "retry_after_s": 3600}}] * 3
    # when
    result = stage.play(turns)
    # then nobody waits for it
    assert (result.status, result.reason) == ("failed", "max_provider_retries")
    assert len(stage.requests()) == 1


def test_B103_an_attempt_that_broke_leaves_nothing_in_the_next(stage, results_of):
    # given a stream that breaks in the middle of text and call, and is whole the second time
    ran: list[str] = []

    class Breaking:
        spec = "breaking"

        def __init__(self) -> None:
            self.requests: list[p.Request] = []

        async def stream(self, request: p.Request) -> Any:
            self.requests.append(request)
            if request.number == 1:
                yield p.TextDelta(text="Hello wo")
                yield p.ToolCallOpened(index=0, name="print_it")
                yield p.ArgumentsDelta(index=0, text='{"code": "pri')
                yield p.UsageUpdated(input_tokens=100, output_tokens=7)
                raise p.ModelError("connection", "reset by peer", retryable=True, retry_after_s=0)
            if request.number == 2:
                yield p.TextDelta(text="Hello world")
                yield p.ToolCallOpened(index=0, name="print_it")
                yield p.ArgumentsDelta(index=0, text='{"code": "print(1)"}')
                yield p.UsageUpdated(input_tokens=100, output_tokens=11)
                yield p.Finished(stop_reason="tool_calls")
                return
            yield p.TextDelta(text="done")
            yield p.UsageUpdated(input_tokens=120, output_tokens=2)
            yield p.Finished(stop_reason="stop")

    @tool
    def print_it(code: str) -> str:
        """Prints."""
        ran.append(code)
        return "printed"

    model = Breaking()
    stage.models.append(model)
    agent = Agent(model=model, tools=[print_it])

    async def listen() -> list[Any]:
        return [streamed.what async for streamed in agent.stream("Do it.", store=stage.store, run_id="r")]

    # when somebody listens
    heard = asyncio.run(listen())
    # then only the whole call ran, once, and the message is there once
    assert ran == ["print(1)"]
    spoken = [message for message in model.requests[-1].messages if message.role == "assistant"]
    assert [(message.text, [call.arguments_text for call in message.calls]) for message in spoken] == [("Hello world", ['{"code": "print(1)"}'])]
    # and the attempt that broke is in the log, apart, with what it cost
    records = list(stage.store.read("r"))
    (broken,) = [record.fact for record in records if isinstance(record.fact, f.ModelFailed)]
    assert (broken.text, broken.error.mid_stream) == ("Hello wo", True)
    run = stage.store.journal("r").run
    assert (run.spent.reported.input_tokens, run.spent.reported.output_tokens) == (320, 20)
    # and who listens is told that it begins again, between the two attempts
    kinds = [what.type if isinstance(what, Record) else what.text for what in heard if isinstance(what, Record | p.TextDelta)]
    assert kinds.index("Hello wo") < kinds.index("retry_scheduled") < kinds.index("Hello world")


def test_B103_a_stream_that_ends_without_saying_so_runs_none_of_its_calls(stage):
    # given a stream that breaks off behind a call that looks whole
    class Breaking:
        spec = "breaking"

        async def stream(self, request: p.Request) -> Any:
            if request.number == 1:
                yield p.ToolCallReady(index=0, name="delete", arguments='{"path": "/"}')
                return
            yield p.TextDelta(text="done")
            yield p.Finished(stop_reason="stop")

    @tool
    def delete(path: str) -> str:
        """Deletes."""
        raise AssertionError("never runs")

    # when
    result = Agent(model=Breaking(), tools=[delete]).run_sync("Do it.", store=stage.store)
    # then it was asked again instead
    assert (result.status, result.answer, result.tool_calls) == ("completed", "done", 0)
