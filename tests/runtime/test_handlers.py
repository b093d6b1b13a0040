"""Performing a call: whatever a handler does is an outcome."""

import asyncio
import contextvars
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Iterable
from typing import Any

import anyio
import pydantic
import pytest
from typing_extensions import TypedDict

from refold.runtime import handlers
from refold.runtime.handlers import Failed, Succeeded, perform
from refold.runtime.threads import stuck_threads
from refold.runtime.tools import Note, NotPerformed, RetryableToolError, Tool, ToolContext, ToolResult, tool


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(handlers, "GRACE_S", 0.1)


def context():
    return ToolContext("run", 1, "t1.1", 1, "key")


async def performed(made, arguments="{}", ctx=None, timeout_s=30, max_result_bytes=10_000, max_stuck_threads=4, on_late=None):
    return await perform(
        made, arguments, ctx or context(), timeout_s=timeout_s, max_result_bytes=max_result_bytes, max_stuck_threads=max_stuck_threads, on_late=on_late
    )


def outcome(made, arguments="{}", **more):
    return asyncio.run(performed(made, arguments, **more))


def both(function):
    """The same handler, sync and async."""

    async def later() -> Any:
        return function()

    return [Tool(name=each.__name__, description="", schema={}, handler=each, effect="read") for each in (lambda_of(function), async_of(later))]


def lambda_of(function):
    def sync(arguments, ctx):
        return function()

    return sync


def async_of(later):
    async def asynchronous(arguments, ctx):
        return await later()

    return asynchronous


# -- what comes back


def test_a_sync_and_an_async_function_get_their_arguments_and_context():
    @tool
    def sync(a: int, /, b: float, *, ctx: ToolContext) -> list[Any]:
        return [a, b, ctx.call_id, bool(ctx.cancelled), threading.current_thread().daemon]

    @tool
    async def later(a: int, b: float, ctx: ToolContext) -> list[Any]:
        return [a, b, ctx.call_id, ctx.cancelled.is_set()]

    assert outcome(sync, '{"a":1,"b":2.0}') == Succeeded(b'[1,2.0,"t1.1",false,true]')
    assert outcome(later, '{"a":1,"b":2.0}') == Succeeded(b'[1,2.0,"t1.1",false]')


def test_a_function_of_one_model_gets_an_instance():
    class Query(pydantic.BaseModel):
        text: str
        limit: int = 5

    @tool
    def search(query: Query) -> Any:
        return query

    assert outcome(search, '{"text":"a","limit":5}') == Succeeded(b'{"text":"a","limit":5}')


def test_names_that_pydantic_needs_reach_the_function():
    @tool
    def odd(json: int, _hidden: int = 2) -> int:
        return json + _hidden

    assert outcome(odd, '{"json":1,"_hidden":3}') == Succeeded(b"4")


def test_sources_and_notes_are_kept():
    for made in both(lambda: ToolResult(data={"n": 1}, source_ids=["doc-a"], notes=["seen", Note("more\ud800", ["doc-b"])])):
        assert outcome(made) == Succeeded(b'{"n":1}', ("doc-a",), (Note("seen"), Note("more\N{REPLACEMENT CHARACTER}", ("doc-b",))))


def test_something_to_await_from_a_sync_function_is_awaited():
    async def inner():
        return 3

    @tool
    def sync() -> Awaitable[int]:
        return inner()

    assert outcome(sync) == Succeeded(b"3")


def test_context_variables_reach_the_thread():
    variable = contextvars.ContextVar("variable", default="unset")

    @tool
    def read() -> str:
        return variable.get()

    variable.set("seen")
    assert outcome(read) == Succeeded(b'"seen"')


# -- results that are none

WRONG_RESULTS = {
    "object": (object, "type object"),
    "generator": (lambda: (n for n in range(3)), "generator"),
    "source that is no text": (lambda: ToolResult(data=1, source_ids=[3]), "source_ids must be strings"),
    "one source": (lambda: ToolResult(data=1, source_ids="doc"), "source_ids must be a list"),
    "note that is no text": (lambda: ToolResult(data=1, notes=[3]), "notes must be"),
    "too much": (lambda: "x" * 10_000, "10,000 bytes that are stored. Return a part"),
}


@pytest.mark.parametrize(("make", "says"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_result_that_cannot_be_stored_is_invalid(make, says):
    for made in both(make):
        failed = outcome(made)
        assert (failed.kind, failed.performed, failed.retryable) == ("invalid_result", "yes", False)
        assert says in failed.message


def test_a_result_of_the_largest_size_is_stored():
    for made in both(lambda: "x" * 9_998):
        assert len(outcome(made).data) == 10_000


class Row(TypedDict):
    a: int


PROMISES = [
    (int, 1, ""),
    (int, "many", "promised int and returned str"),
    (int, True, "returned bool"),
    (float, 3, ""),
    (None, None, ""),
    (None, 1, "promised None and returned int"),
    (list[int], [1, 2], ""),
    (list[int], [1, "2"], "at [1]"),
    (tuple[int, str], (1, "a"), ""),
    (Row, {"a": 1}, ""),
    (Row, {"a": "1"}, "at .a"),
    (int | None, None, ""),
    (str, "half \ud800", ""),
    (list[str], ["half \ud800", "b"], ""),
    (list[str], ["half \ud800", 1], "at [1]"),
    (ToolResult | str, ToolResult(data=1), ""),
    (ToolResult | str, 1, "returned int"),
    (str, ToolResult(data="a"), "returned ToolResult"),
    (Any, 1, ""),
    (Iterable[int], [1], ""),
]


@pytest.mark.parametrize(("promise", "value", "says"), PROMISES, ids=str)
def test_a_return_annotation_is_a_promise(promise, value, says):
    def work():
        return value

    work.__annotations__["return"] = promise
    kept = outcome(tool(work))
    assert isinstance(kept, Failed) == bool(says), kept
    if says:
        assert kept.kind == "invalid_result"
        assert says in kept.message


# -- exceptions


class Unspeakable(Exception):
    def __str__(self):
        raise SystemExit("no text")


class Odd(BaseException):
    pass


ERRORS = [
    ValueError("rain"),
    Unspeakable(),
    Odd("odd"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(1),
    StopAsyncIteration(),
    asyncio.CancelledError("mine"),
    TimeoutError(),
    RecursionError("deep"),
    MemoryError(),
    ExceptionGroup("several", [ValueError("rain"), ExceptionGroup("inner", [KeyError("snow")])]),
    BaseExceptionGroup("worse", [KeyboardInterrupt()]),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "half"),
    ValueError("half \ud800"),
    ValueError("x" * 1_000_000),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_handler_raises_is_an_outcome(error):
    def fail():
        raise error

    for made in both(fail):
        failed = outcome(made)
        assert (failed.kind, failed.retryable, failed.performed) == ("execution_failed", False, "unknown")
        assert len(failed.message.encode()) <= 2048
        assert type(error).__name__ in failed.message or isinstance(error, StopIteration | StopAsyncIteration)
        assert failed.error_type


def test_an_error_says_what_happened_in_groups_too():
    def fail():
        raise ExceptionGroup("several", [ValueError("rain"), ExceptionGroup("inner", [KeyError("snow")])])

    for made in both(fail):
        assert "rain" in outcome(made).message
        assert "snow" in outcome(made).message


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: ExceptionGroup("g", [e])], ids=["bare", "grouped"])
def test_a_handler_may_say_that_another_attempt_may_work_or_that_nothing_happened(wrap):
    def retry():
        raise wrap(RetryableToolError("again"))

    def nothing():
        raise wrap(NotPerformed("closed"))

    for made in both(retry):
        assert (outcome(made).retryable, outcome(made).performed) == (True, "unknown")
    for made in both(nothing):
        assert (outcome(made).retryable, outcome(made).performed) == (False, "no")


def test_a_group_with_any_other_error_leaves_doubt():
    def fail():
        raise ExceptionGroup("g", [NotPerformed("closed")] * 30 + [ValueError("x"), RetryableToolError("y")])

    for made in both(fail):
        assert (outcome(made).retryable, outcome(made).performed) == (False, "unknown")


def test_arguments_that_no_longer_fit_are_not_performed():
    @tool
    def work(a: int) -> int:
        return a

    failed = outcome(work, '{"b":1}')
    assert (failed.kind, failed.performed) == ("invalid_arguments", "no")


# -- time limits


def waiting(release, after=lambda: "late"):
    """A sync handler that cannot be stopped."""

    @tool(effect="read")
    def stuck(ctx: ToolContext) -> Any:
        release.wait(30)
        return after()

    return stuck


def test_a_sync_handler_over_its_time_is_abandoned_and_heard_in_the_end():
    async def main():
        # given a handler that cannot be stopped, and a limit of one such thread
        release, ended = threading.Event(), asyncio.Event()
        late = []
        ctx = context()
        # when its time is up
        failed = await performed(waiting(release), ctx=ctx, timeout_s=0.01, on_late=lambda o: (late.append(o), ended.set()))
        # then it is told, counted, and others are refused
        assert (failed.kind, failed.performed, failed.error_type) == ("timeout", "unknown", "TimeoutError")
        assert ctx.cancelled
        assert stuck_threads() == 1
        refused = await performed(waiting(release), max_stuck_threads=1)
        assert (refused.kind, refused.performed) == ("execution_failed", "no")
        assert "max_stuck_threads=1" in refused.message
        # and its late return is heard once
        release.set()
        await asyncio.wait_for(ended.wait(), 10)
        assert late == [Succeeded(b'"late"')]
        assert stuck_threads() == 0

    asyncio.run(main())


def test_a_late_return_is_heard_although_the_loop_is_closed():
    release, ended = threading.Event(), threading.Event()
    late = []

    def fail():
        raise ValueError("late")

    failed = outcome(waiting(release, fail), timeout_s=0.01, on_late=lambda o: (late.append(o), ended.set()))
    assert failed.kind == "timeout"
    release.set()
    assert ended.wait(10)
    assert [(o.kind, o.message) for o in late] == [("execution_failed", "ValueError: late")]


def test_a_coroutine_that_comes_too_late_is_closed():
    async def inner():
        return 1

    release, ended = threading.Event(), threading.Event()
    late = []
    outcome(waiting(release, inner), timeout_s=0.01, on_late=lambda o: (late.append(o), ended.set()))
    release.set()
    assert ended.wait(10)
    gc.collect()
    assert late[0].kind == "execution_failed"


def test_an_async_handler_over_its_time_is_cancelled():
    cleaned = []

    @tool
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)
        return ""

    late = []
    failed = outcome(slow, timeout_s=0.01, on_late=late.append)
    assert (failed.kind, failed.performed, cleaned, late) == ("timeout", "unknown", [True], [])
    assert "0.01 s" in failed.message


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_handler_that_was_told_in_time_may_say_that_nothing_happened(style):
    @tool
    def sync(ctx: ToolContext) -> str:
        ctx.cancelled.wait(30)
        raise NotPerformed("not begun")

    @tool(name="later")
    async def later() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise NotPerformed("not begun") from None
        return ""

    failed = outcome(sync if style == "sync" else later, timeout_s=0.01)
    assert (failed.kind, failed.performed) == ("timeout", "no")
    assert "not begun" in failed.message
    assert stuck_threads() == 0


def stubborn(release):
    """An async handler that ignores cancellation."""

    @tool
    async def ignoring() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    return ignoring


def test_an_async_handler_that_ignores_cancellation_is_abandoned_and_heard_in_the_end():
    async def main():
        release, late = asyncio.Event(), asyncio.Queue()
        failed = await performed(stubborn(release), timeout_s=0.01, on_late=late.put_nowait)
        assert failed.kind == "timeout"
        release.set()
        assert await asyncio.wait_for(late.get(), 10) == Succeeded(b'"late"')
        assert late.empty()

    asyncio.run(main())


def test_what_comes_within_the_grace_is_heard_after_the_outcome():
    @tool
    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        return ""

    async def main():
        heard = []
        failed = await performed(tidy, timeout_s=0.01, on_late=heard.append)
        assert (failed.kind, heard) == ("timeout", [])
        await asyncio.sleep(0)
        assert heard == [Succeeded(b'"finished anyway"')]

    asyncio.run(main())


# -- cancellation


@pytest.mark.parametrize("style", ["sync", "async", "stubborn", "returns"])
def test_a_cancelled_call_is_cancelled_whatever_the_handler_does(style):
    async def main():
        begun, release = asyncio.Event(), asyncio.Event()
        loop, thread_release = asyncio.get_running_loop(), threading.Event()

        @tool(name="sync")
        def sync(ctx: ToolContext) -> str:
            loop.call_soon_threadsafe(begun.set)
            thread_release.wait(30)
            return "late"

        @tool(name="later")
        async def later() -> str:
            begun.set()
            while True:
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    if style == "async":
                        raise
                    if style == "returns":
                        return "late"
                else:
                    return "late"

        heard = asyncio.Queue()
        ctx = context()
        task = asyncio.create_task(performed(sync if style == "sync" else later, ctx=ctx, on_late=heard.put_nowait))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert ctx.cancelled
        release.set()
        thread_release.set()
        if style != "async":
            assert await asyncio.wait_for(heard.get(), 10) == Succeeded(b'"late"')
        assert heard.empty()

    asyncio.run(main())
    assert stuck_threads() == 0


def test_a_second_cancellation_ends_the_grace(monkeypatch):
    monkeypatch.setattr(handlers, "GRACE_S", 30)

    async def main():
        release, heard = asyncio.Event(), asyncio.Queue()
        ctx = context()
        task = asyncio.create_task(performed(stubborn(release), ctx=ctx, on_late=heard.put_nowait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        while not ctx.cancelled:  # noqa: ASYNC110 - it is no event of the loop
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 10)
        release.set()
        assert await asyncio.wait_for(heard.get(), 10) == Succeeded(b'"late"')

    asyncio.run(main())


def test_the_grace_holds_under_a_cancel_scope():
    cleaned = []

    @tool
    async def careful() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
        return ""

    async def main():
        with anyio.move_on_after(0.01):
            await performed(careful)
        assert cleaned == [True]

    asyncio.run(main())


# -- the process can always exit

SCRIPT = """
import asyncio, sys, threading, time
from refold.runtime.handlers import perform
from refold.runtime.tools import ToolContext, tool

@tool
def blocked() -> str:
    threading.Event().wait()
    return ""

@tool
async def stubborn() -> str:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    for made in (blocked, stubborn):
        ctx = ToolContext("r", 1, "t1.1", 1, "k")
        print((await perform(made, "{}", ctx, timeout_s=0.01, max_result_bytes=100, max_stuck_threads=4)).kind)

asyncio.run(main())
"""


def test_handlers_that_never_end_do_not_keep_the_process_alive(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["timeout", "timeout"], "")


def test_many_calls_at_once_are_independent():
    @tool(effect="read")
    def square(n: int) -> int:
        if n % 3 == 0:
            raise ValueError(n)
        return n * n

    async def main():
        outcomes = await asyncio.gather(*(performed(square, json.dumps({"n": n})) for n in range(60)))
        for n, each in enumerate(outcomes):
            assert each == Succeeded(str(n * n).encode()) if n % 3 else isinstance(each, Failed)

    asyncio.run(main())
