"""Failing tools: whatever a handler raises is a result that the model can read, and ends neither the run nor the process."""

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from refold import Agent, tool
from refold.runtime import ports as p


class Abort(BaseException):
    """An exception that no `except Exception` catches."""


RAISED: dict[str, Any] = {
    "CancelledError": lambda: asyncio.CancelledError(),
    "Abort": lambda: Abort("I give up"),
    "SystemExit": lambda: SystemExit(3),
    "ExceptionGroup": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [Abort("one"), asyncio.CancelledError()]),
    "StopIteration": lambda: StopIteration("enough"),
    "GeneratorExit": lambda: GeneratorExit(),
}


def made(raised: str) -> BaseException:
    error: BaseException = RAISED[raised]()
    return error


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("raised", RAISED)
def test_B007_whatever_a_tool_raises_is_an_error_result(stage, results_of, raised, is_async):
    # given a tool that ends with an exception that is no ordinary one, while nobody cancelled the run
    @tool(effect="read", name="break_it")
    async def break_async() -> str:
        """Break."""
        raise made(raised)

    @tool(effect="read", name="break_it")
    def break_sync() -> str:
        """Break."""
        raise made(raised)

    @tool(effect="read")
    def work() -> str:
        """Work."""
        return "worked"

    calls = [{"name": "break_it"}, {"name": "work"}]
    # when the model calls it beside another
    result = stage.play([{"calls": calls}, {"text": "done"}], [break_async if is_async else break_sync, work])
    # then it has one result that names the exception, the other ran, and the run went on
    results = results_of(result)
    assert results["t1.1"][0] == "execution_failed"
    if not (raised == "StopIteration" and is_async):  # Python itself turns that one into a RuntimeError
        assert raised in results["t1.1"][1]["message"]
    assert results["t1.2"] == ("success", "worked")
    assert (result.status, result.answer) == ("completed", "done")


@pytest.mark.parametrize("raised", ["CancelledError", "Abort", "SystemExit"])
def test_B007_a_model_that_raises_such_an_exception_fails_the_run_and_nothing_else(stage, raised):
    # given a model whose stream ends like that, while nobody cancelled the run
    class Model:
        spec = "broken"

        async def stream(self, request: p.Request) -> Any:
            yield p.TextDelta(text="Well")
            raise made(raised)

    # when
    result = Agent(model=Model()).run_sync("Do it.", store=stage.store)
    # then it is a failure of the provider that names the exception
    assert (result.status, result.reason) == ("failed", "provider")
    assert raised in result.detail


@pytest.mark.parametrize("raised", ["CancelledError", "Abort", "SystemExit"])
def test_B007_code_that_is_consulted_denies_when_it_raises_such_an_exception(stage, results_of, raised):
    # given a rule, a business key and a check of arguments that end like that
    def explode(_: Any) -> Any:
        raise made(raised)

    @tool(approval=explode)
    def by_rule() -> str:
        """Never runs."""
        raise AssertionError

    @tool(key=explode)
    def by_key() -> str:
        """Never runs."""
        raise AssertionError

    @tool
    def by_check(n: Annotated[int, AfterValidator(explode)]) -> str:
        """Never runs."""
        raise AssertionError

    # when the model calls all three and then answers
    calls = [{"name": "by_rule"}, {"name": "by_key"}, {"name": "by_check", "arguments": {"n": 1}}]
    result = stage.play([{"calls": calls}, {"text": "done"}], [by_rule, by_key, by_check])
    # then none ran, each has its result, and the run went on
    results = results_of(result)
    assert [kind for kind, _ in results.values()] == ["permission_denied", "permission_denied", "invalid_arguments"]
    assert all(raised in content["message"] for _, content in results.values())
    assert result.status == "completed"


@pytest.mark.parametrize("raised", ["CancelledError", "Abort", "SystemExit"])
def test_B007_a_validator_that_raises_such_an_exception_fails_the_run_and_is_named(stage, raised):
    # given a final validator that ends like that
    def rule(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
        raise made(raised)

    # when
    result = stage.play([{"text": "done"}], validators=[rule])
    # then the answer does not stand
    assert (result.status, result.reason, result.answer) == ("failed", "validator", None)
    assert f"rule failed: {raised}" in result.detail


def test_B007_only_a_cancellation_from_outside_cancels_the_run(stage, results_of):
    # given a tool that waits, and somebody who cancels the run meanwhile
    begun = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("never comes back")

    agent = stage.agent([{"calls": [{"name": "wait"}]}, {"text": "never asked"}], [wait])

    async def scenario() -> Any:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await begun.wait()
        await stage.store.cancel("r", "enough")
        return await running

    # when
    result = asyncio.run(scenario())
    # then the run is cancelled, and its history is whole
    assert (result.status, result.detail) == ("cancelled", "enough")
    assert results_of(result)["t1.1"][0] == "cancelled"


def test_B007_a_cancelled_task_parks_the_run_and_loses_nothing(stage, results_of):
    # given a tool that waits, and a host that cancels the task in which the run is driven
    begun = asyncio.Event()
    first = [True]

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        if first:
            first.clear()
            begun.set()
            await asyncio.Event().wait()
        return "waited"

    agent = stage.agent([{"calls": [{"name": "wait"}]}, {"text": "done"}], [wait])

    async def park() -> None:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(park())
    # when the run is resumed
    result = agent.resume_sync("r", store=stage.store)
    # then it goes on where it was
    assert results_of(result)["t1.1"] == ("success", "waited")
    assert result.status == "completed"
