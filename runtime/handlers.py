"""Performs one call: runs the tool's handler, holds it to its limits, and makes an outcome of whatever it does.

The one way to run a tool. Whatever a handler does (raise anything, never return, ignore cancellation, return nonsense) leaves this file as an outcome.
"""

import asyncio
import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import anyio

from refold.events.words import Kind
from refold.runtime.arguments import revive
from refold.runtime.text import whole
from refold.runtime.threads import NoThread, Raised, Returned, run_in_daemon_thread
from refold.runtime.tools import Note, NotPerformed, RetryableToolError, Tool, ToolContext, ToolResult
from refold.runtime.values import NotStorable, TooLarge, to_json

GRACE_S: Final = 0.5
"""How long a handler that was told to stop is waited for, before it is abandoned."""
TEXT_BYTES_MAX: Final = 2_048
LEAVES_MAX: Final = 20
"""Exceptions of one group that are told."""

Performed = Literal["yes", "no", "unknown"]
OnLate = Callable[["Succeeded | Failed"], None]


@dataclass(frozen=True)
class Succeeded:
    """`data` is JSON."""

    data: bytes
    source_ids: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Failed:
    """`performed` is what is known about the handler's effect; `error_type` names the exception, empty where there was none."""

    kind: Kind
    message: str
    retryable: bool = False
    performed: Performed = "unknown"
    error_type: str = ""


async def perform(
    tool: Tool,
    canonical: str,
    ctx: ToolContext,
    *,
    timeout_s: float | None,
    max_result_bytes: int,
    max_stuck_threads: int,
    on_late: OnLate | None = None,
) -> Succeeded | Failed:
    """Runs the handler once, with arguments made from their canonical form. Raises only the CancelledError with which its own task was cancelled.

    At the time limit, or when cancelled, `ctx.cancelled` becomes true and an async handler is cancelled; after GRACE_S it is abandoned.
    What it gives after that is handed to `on_late` once, and so is what it gives within the grace, unless the outcome already says it.
    `on_late` is called by the event loop, or by the handler's thread where the loop is closed by then.
    """
    call = _Call(tool, canonical, ctx, max_result_bytes, max_stuck_threads, on_late)
    task = asyncio.get_running_loop().create_task(call.run(), name=f"refold {tool.name} {ctx.call_id}")
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if task.done():
            return task.result()
        outcome = await call.stop(task)
    except asyncio.CancelledError:
        call.late(await call.stop(task))
        raise
    return call.timed_out(outcome, timeout_s)


class _Call:
    """One run of a handler and how it is given up."""

    def __init__(self, tool: Tool, canonical: str, ctx: ToolContext, max_result_bytes: int, max_stuck_threads: int, on_late: OnLate | None) -> None:
        self._tool, self._canonical, self._ctx = tool, canonical, ctx
        self._max_result_bytes, self._max_stuck_threads, self._on_late = max_result_bytes, max_stuck_threads, on_late
        self._in_thread = not inspect.iscoroutinefunction(tool.handler)

    async def run(self) -> Succeeded | Failed:
        try:
            positional, named = _bound(self._tool, self._canonical, self._ctx)
        except ValueError as error:
            return Failed("invalid_arguments", f"The arguments no longer fit the tool: {_bounded(str(error))}", performed="no", error_type="ValueError")

        def handle() -> Any:
            return self._tool.handler(*positional, **named)

        if not self._in_thread:
            return await self._awaited(handle)
        try:
            ended = await run_in_daemon_thread(lambda: self._outcome(handle), stuck_limit=self._max_stuck_threads, on_late=self._late_thread)
        except NoThread as refused:
            return Failed("execution_failed", f"The call was not begun: {refused}.", performed="no", error_type="NoThread")
        return await self._finished(ended)

    async def _finished(self, ended: "Returned[Succeeded | Failed | _Pending] | Raised") -> Succeeded | Failed:
        match ended:
            case Raised(error):
                return _failure(error)
            case Returned(value):
                return await self._awaited(value.result) if isinstance(value, _Pending) else value

    async def _awaited(self, start: Callable[[], Any]) -> Succeeded | Failed:
        self._in_thread = False
        try:
            value = await start()
        except BaseException as error:  # noqa: BLE001 - see the top of the file
            return _failure(error)
        return self._judged(value)

    def _outcome(self, handle: Callable[[], Any]) -> "Succeeded | Failed | _Pending":
        """Runs in the thread, so that writing a large result does not hold the loop up."""
        value = handle()
        return _Pending(value) if inspect.isawaitable(value) else self._judged(value)

    def _judged(self, value: object) -> Succeeded | Failed:
        try:
            return _success(self._tool, value, self._max_result_bytes)
        except NotStorable as refused:
            return Failed("invalid_result", _bounded(str(refused)), performed="yes", error_type=type(refused).__name__)
        except BaseException as error:  # noqa: BLE001 - validators and methods of the returned value
            return Failed("invalid_result", f"The result could not be checked: {_text(error)}", performed="yes", error_type=_type_name(error))

    async def stop(self, task: "asyncio.Task[Succeeded | Failed]") -> Succeeded | Failed | None:
        """What the handler gave after it was told to stop; None if it was abandoned."""
        self._ctx.cancelled.set()
        if not self._in_thread:
            task.cancel()
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait({task}, timeout=GRACE_S)
                if not task.done() and self._in_thread:
                    task.cancel()  # leaves the thread, which then counts as stuck and reports by itself
                    await asyncio.wait({task}, timeout=GRACE_S)
        finally:  # a second cancellation ends the grace at once
            if not task.done():
                self._abandon(task)
        return task.result() if task.done() and not task.cancelled() else None

    def _abandon(self, task: "asyncio.Task[Succeeded | Failed]") -> None:
        task.add_done_callback(lambda ended: self.late(None if ended.cancelled() else ended.result()))
        if self._in_thread:
            task.cancel()
        # asyncio.run would wait for it for ever, and complain about it when the loop is gone
        asyncio._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    def timed_out(self, outcome: Succeeded | Failed | None, timeout_s: float | None) -> Failed:
        message = f"The tool was not ready within {timeout_s:g} s."
        if isinstance(outcome, Failed) and outcome.performed == "no":
            return Failed("timeout", f"{message} Nothing was performed: {outcome.message}", performed="no", error_type=outcome.error_type)
        if outcome is not None and not _is_cancellation(outcome):
            asyncio.get_running_loop().call_soon(self.late, outcome)  # after the caller has its outcome
        return Failed("timeout", message, error_type="TimeoutError")

    def late(self, outcome: Succeeded | Failed | None) -> None:
        if outcome is not None and self._on_late is not None and not _is_cancellation(outcome):
            self._on_late(outcome)

    def _late_thread(self, ended: "Returned[Succeeded | Failed | _Pending] | Raised") -> None:
        match ended:
            case Raised(error):
                self.late(_failure(error))
            case Returned(_Pending(awaitable)):
                if isinstance(awaitable, types.CoroutineType):
                    awaitable.close()
                self.late(Failed("execution_failed", "It returned something to await when it was too late.", error_type="TimeoutError"))
            case Returned(Succeeded() | Failed() as outcome):
                self.late(outcome)


@dataclass(frozen=True)
class _Pending:
    """A sync handler returned something to await."""

    awaitable: Any

    def result(self) -> Any:
        return self.awaitable


def _bound(tool: Tool, canonical: str, ctx: ToolContext) -> tuple[list[Any], dict[str, Any]]:
    arguments = revive(tool, canonical)
    if tool.signature is None:
        return [arguments, ctx], {}
    assert not isinstance(arguments, dict)
    return tool.signature.bind(arguments, ctx)


def _success(tool: Tool, value: object, max_bytes: int) -> Succeeded | Failed:
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return Failed("invalid_result", "The tool returned a generator; a result must be complete.", performed="yes", error_type="TypeError")
    promise = tool.signature.promise if tool.signature else None
    if promise is not None and not (promise.may_wrap and isinstance(value, ToolResult)):
        complaint = promise.complaint(value)
        if complaint:
            return Failed("invalid_result", _bounded(complaint), performed="yes", error_type="TypeError")
    result = value if isinstance(value, ToolResult) else ToolResult(data=value)
    try:
        data = to_json(result.data, max_bytes=max_bytes)
    except TooLarge:
        message = f"The result is more than the {max_bytes:,} bytes that are stored. Return a part and say how to ask for the next one."
        return Failed("invalid_result", message, performed="yes", error_type="TooLarge")
    notes = tuple(_note(note) for note in _listed(result.notes, "notes"))
    return Succeeded(data, _sources(result.source_ids), notes)


def _note(note: object) -> Note:
    match note:
        case str():
            return Note(whole(note))
        case Note(text=str(text)):
            return Note(whole(text), _sources(note.source_ids))
    raise NotStorable(f"notes must be texts or Notes, not {type(note).__name__}")


def _sources(source_ids: object) -> tuple[str, ...]:
    listed = _listed(source_ids, "source_ids")
    wrong = [each for each in listed if not isinstance(each, str)]
    if wrong:
        raise NotStorable(f"source_ids must be strings, not {type(wrong[0]).__name__}")
    return tuple(whole(each) for each in cast("list[str]", listed))


def _listed(items: object, name: str) -> list[object]:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise NotStorable(f"{name} must be a list, not {type(items).__name__}")
    return list(items)


def _failure(error: BaseException) -> Failed:
    leaves = _leaves(error)
    performed: Performed = "no" if all(isinstance(each, NotPerformed) for each in leaves) else "unknown"
    retryable = all(isinstance(each, RetryableToolError) for each in leaves)
    said = [_text(error)] + ([_text(each) for each in leaves[:LEAVES_MAX]] if isinstance(error, BaseExceptionGroup) else [])
    return Failed("execution_failed", _bounded("; ".join(said)), retryable, performed, _type_name(error))


def _leaves(error: BaseException) -> list[BaseException]:
    """The exceptions of a group, of groups in it too; the exception itself where it is none."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting += reversed(each.exceptions)
        else:
            found.append(each)
    return found


def _text(error: BaseException) -> str:
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001 - an exception whose text cannot be made is an exception all the same
        said = "its text could not be made"
    return f"{_type_name(error)}: {said}" if said.strip() else _type_name(error)


def _type_name(error: BaseException) -> str:
    return _bounded(type(error).__name__)


def _is_cancellation(outcome: Succeeded | Failed) -> bool:
    return isinstance(outcome, Failed) and outcome.error_type == "CancelledError"


def _bounded(text: str) -> str:
    encoded = whole(text).encode()
    return encoded.decode() if len(encoded) <= TEXT_BYTES_MAX else encoded[: TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
