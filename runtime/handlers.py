"""Performs one call: runs the tool's handler, holds it to its limits, and makes an outcome of whatever it does.

The one way to run a tool. Whatever a handler does (raise anything, never return, ignore cancellation, return nonsense) leaves this file as an outcome.
"""

import asyncio
import ctypes
import inspect
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from refold.runtime import processes
from refold.runtime.arguments import bound
from refold.runtime.outcomes import Failed, Succeeded, bounded, failure, is_cancellation, judged
from refold.runtime.threads import NoThread, Raised, Returned, run_in_daemon_thread
from refold.runtime.tools import Tool, ToolContext

__all__ = ["GRACE_S", "Failed", "Succeeded", "perform"]

GRACE_S: Final = 0.5
"""How long a handler that was told to stop is waited for, before it is abandoned."""

OnLate = Callable[[Succeeded | Failed], None]


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
    A handler in a process of its own is ended then, with every process of its group.
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


def _shielded() -> AbstractContextManager[object]:
    """Where a cancel scope of anyio ends, the grace is kept all the same. There is none around us while nobody has loaded what makes them:
    and to load it now, beside a handler that never yields, would hold up the end of the process for a second.
    """
    if "anyio._backends._asyncio" not in sys.modules:
        return nullcontext()
    import anyio

    return anyio.CancelScope(shield=True)


class _Call:
    """One run of a handler and how it is given up."""

    def __init__(self, tool: Tool, canonical: str, ctx: ToolContext, max_result_bytes: int, max_stuck_threads: int, on_late: OnLate | None) -> None:
        self._tool, self._canonical, self._ctx = tool, canonical, ctx
        self._max_result_bytes, self._max_stuck_threads, self._on_late = max_result_bytes, max_stuck_threads, on_late
        self._in_process = tool.isolation == "process"
        self._in_thread = self._in_process or not inspect.iscoroutinefunction(tool.handler)

    async def run(self) -> Succeeded | Failed:
        if self._in_process:
            child = processes.Child(self._tool, self._canonical, self._ctx, self._max_result_bytes)
            return await self._threaded(child.run)
        try:
            positional, named = bound(self._tool, self._canonical, self._ctx)
        except ValueError as error:
            return Failed("invalid_arguments", f"The arguments no longer fit the tool: {bounded(str(error))}", performed="no", error_type="ValueError")

        def handle() -> Any:
            return self._tool.handler(*positional, **named)

        if not self._in_thread:
            return await self._awaited(handle)
        return await self._threaded(lambda: self._outcome(handle))

    async def _threaded(self, work: "Callable[[], Succeeded | Failed | _Pending]") -> Succeeded | Failed:
        try:
            ended = await run_in_daemon_thread(work, stuck_limit=self._max_stuck_threads, on_late=self._late_thread)
        except NoThread as refused:
            return Failed("execution_failed", f"The call was not begun: {refused}.", performed="no", error_type="NoThread")
        return await self._finished(ended)

    async def _finished(self, ended: "Returned[Succeeded | Failed | _Pending] | Raised") -> Succeeded | Failed:
        match ended:
            case Raised(error):
                return failure(error)
            case Returned(value):
                return await self._awaited(value.result) if isinstance(value, _Pending) else value

    async def _awaited(self, start: Callable[[], Any]) -> Succeeded | Failed:
        self._in_thread = False
        try:
            value = await start()
        except BaseException as error:  # noqa: BLE001 - see the top of the file
            return failure(error)
        return self._judged(value)

    def _outcome(self, handle: Callable[[], Any]) -> "Succeeded | Failed | _Pending":
        """Runs in the thread, so that writing a large result does not hold the loop up."""
        value = handle()
        return _Pending(value) if inspect.isawaitable(value) else self._judged(value)

    def _judged(self, value: object) -> Succeeded | Failed:
        return judged(self._tool.signature, value, self._max_result_bytes)

    async def stop(self, task: "asyncio.Task[Succeeded | Failed]") -> Succeeded | Failed | None:
        """What the handler gave after it was told to stop; None if it was abandoned."""
        self._ctx.cancelled.set()
        if not self._in_thread:
            task.cancel()
        try:
            with _shielded():
                await asyncio.wait({task}, timeout=GRACE_S + (processes.GRACE_S if self._in_process else 0))
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
        # A coroutine that is thrown away is told so, once more; one that swallows that too would keep the interpreter from exiting.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
        # asyncio.run would wait for it for ever, and complain about it when the loop is gone
        asyncio._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    def timed_out(self, outcome: Succeeded | Failed | None, timeout_s: float | None) -> Failed:
        message = f"The tool was not ready within {timeout_s:g} s."
        if isinstance(outcome, Failed) and outcome.performed == "no":
            return Failed("timeout", f"{message} Nothing was performed: {outcome.message}", performed="no", error_type=outcome.error_type)
        if outcome is not None and not is_cancellation(outcome):
            asyncio.get_running_loop().call_soon(self.late, outcome)  # after the caller has its outcome
        return Failed("timeout", message, error_type="TimeoutError")

    def late(self, outcome: Succeeded | Failed | None) -> None:
        if outcome is not None and self._on_late is not None and not is_cancellation(outcome):
            self._on_late(outcome)

    def _late_thread(self, ended: "Returned[Succeeded | Failed | _Pending] | Raised") -> None:
        match ended:
            case Raised(error):
                self.late(failure(error))
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
