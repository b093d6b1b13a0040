"""Sync work in daemon threads of our own, so that a handler that never returns cannot keep the process alive.

Apart from the handlers, because a thread cannot be stopped: all that is left to do is to count the stuck ones and to hear what they say in the end.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

IDLE_MAX: Final = 4
"""Threads kept waiting for more work."""


class NoThread(Exception):
    """The work was not begun: too many threads are stuck, or the system gives no more."""


@dataclass(frozen=True)
class Returned(Generic[T]):
    value: T


@dataclass(frozen=True)
class Raised:
    """Kept as a value, because some exceptions (StopIteration, KeyboardInterrupt) cannot travel through a future."""

    error: BaseException


def stuck_threads() -> int:
    """Threads that were given up and have not returned."""
    return len(_stuck)


async def run_in_daemon_thread(
    work: Callable[[], T], *, stuck_limit: int, on_late: Callable[[Returned[T] | Raised], None] | None = None
) -> Returned[T] | Raised:
    """Runs `work` in a daemon thread, with a copy of the context variables. Raises NoThread instead while `stuck_limit` threads are stuck.

    If the awaiting task is cancelled, the thread goes on and counts as stuck; what it then gives is handed to `on_late`, once: by the event loop,
    or, where that is closed by then, by the thread itself.
    """
    stuck = stuck_threads()
    if stuck and stuck >= stuck_limit:
        raise NoThread(f"{stuck} earlier calls are still running and cannot be stopped (max_stuck_threads={stuck_limit})")
    call = _Call(contextvars.copy_context(), work, asyncio.get_running_loop(), on_late)
    _hand_over(call)
    try:
        return await call.outcome
    except asyncio.CancelledError:
        call.give_up()
        raise


_stuck: set["_Call[object]"] = set()
_lock = threading.Lock()
_idle: list["_Worker"] = []
"""Threads that wait for work: waking one costs less than starting one."""
os.register_at_fork(after_in_child=_idle.clear)


def _hand_over(call: "_Call[T]") -> None:
    """Give the work to an idle thread, or to a new one. Raises NoThread."""
    with _lock:
        worker = _idle.pop() if _idle else None
    if worker is not None:
        worker.inbox.put(call)
        return
    worker = _Worker()
    worker.inbox.put(call)
    try:
        threading.Thread(target=worker.serve, name="refold-handler", daemon=True).start()
    except RuntimeError as error:
        raise NoThread(f"the system gave no thread: {error}") from error


class _Worker:
    """A thread's side: one piece of work after another, until enough others are idle."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[_Call[Any]] = SimpleQueue()

    def serve(self) -> None:
        while True:
            call = self.inbox.get()
            call.context.run(call.perform)
            deliver, keep = call.deliver, False
            del call  # what it holds may be large, and the next work may be long in coming
            with _lock:
                if keep := len(_idle) < IDLE_MAX:
                    _idle.append(self)
            deliver()
            del deliver
            if not keep:
                return


class _Call(Generic[T]):
    """One piece of work: finished, or given up, whichever comes first."""

    def __init__(
        self, context: contextvars.Context, work: Callable[[], T], loop: asyncio.AbstractEventLoop, on_late: Callable[[Returned[T] | Raised], None] | None
    ) -> None:
        self.outcome: asyncio.Future[Returned[T] | Raised] = loop.create_future()
        self.context = context
        self._work, self._loop, self._on_late = work, loop, on_late
        self._ended: Returned[T] | Raised | None = None
        self._given_up = False

    def perform(self) -> None:
        ended: Returned[T] | Raised
        try:
            ended = Returned(self._work())
        except BaseException as error:  # noqa: BLE001 - whatever it raises is its outcome; nobody else would see it
            ended = Raised(error)
        with _lock:
            self._ended = ended
            _stuck.discard(self)

    def deliver(self) -> None:
        """Tell the awaiter, from the thread."""
        self._in_loop(self._deliver)

    def give_up(self) -> None:
        with _lock:
            self._given_up = True
            if self._ended is None:
                _stuck.add(self)  # type: ignore[arg-type]
        if self.outcome.done() and not self.outcome.cancelled():
            self._deliver()  # it ended in the same moment in which the awaiter was cancelled

    def _in_loop(self, step: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:  # the loop is closed, so nobody awaits the outcome any more
            self._given_up = True
            step()

    def _deliver(self) -> None:
        assert self._ended is not None
        if not self._given_up and not self.outcome.done():
            self.outcome.set_result(self._ended)
        elif self._on_late is not None:
            self._on_late(self._ended)
