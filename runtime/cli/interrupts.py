"""Ctrl-C and SIGTERM while a run is driven: the first one ends the run in good order (or parks it), the second one ends the process at once."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Final, Literal, Self

from refold.events.storage import StoreUnavailable
from refold.runtime.cli.exits import INTERRUPTED
from refold.runtime.journal import TooManyConflicts, UnknownRun
from refold.runtime.store import NotAsked, Store

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
BEGIN_S: Final = 0.02
"""How often it is looked whether a run that is to be cancelled has begun."""
BLOCKED_S: Final = 1.2
"""How long the event loop may take to hear of a signal, before code of the user that blocks it is left behind."""


class Interruption:
    """Holds both signals while a run is driven; `name` is the one that came.

    Handlers of Python itself and not of the event loop, so that the second signal works even while code of the user blocks the loop.
    """

    def __init__(self, store: Store, run_id: str, mode: str, told: Callable[[str], None], leave: Callable[[], None]) -> None:
        self._store, self._run_id, self._mode, self._told, self._leave = store, run_id, mode, told, leave
        self.name = ""
        self._task: asyncio.Task[object] | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._heard = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Literal[False]:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave
        return False

    def driving(self, task: "asyncio.Task[object] | None") -> None:
        """From here on a signal is about this task; None: about a prompt, where it is a KeyboardInterrupt."""
        self._task = task
        if task is not None and self.name:
            self._begin()

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if self.name:
            self._leave()
            os._exit(INTERRUPTED)
        self.name = signal.Signals(number).name
        if self._task is None:
            raise KeyboardInterrupt
        self._task.get_loop().call_soon_threadsafe(self._begin)
        threading.Thread(target=self._leave_if_blocked, name="refold-interrupted", daemon=True).start()

    def _leave_if_blocked(self) -> None:
        """An async handler that never yields keeps everything else from running: the cancellation is written down from here, and the process ends."""
        if self._heard.wait(BLOCKED_S):
            return
        if self._mode != "park":
            with suppress(UnknownRun, NotAsked, StoreUnavailable, TooManyConflicts):
                self._store.cancel_sync(self._run_id, self.name)
        self._leave()
        os._exit(INTERRUPTED)

    def _begin(self) -> None:
        self._heard.set()
        task = self._task
        if task is None or task.done():
            return
        if self._mode == "park":
            self._told(f"{self.name}: leaving run {self._run_id} to be resumed; once more ends the process at once")
            task.cancel()
        else:
            self._told(f"{self.name}: ending run {self._run_id} as cancelled; once more ends the process at once")
            self._cancelling = task.get_loop().create_task(self._cancel(task))

    async def _cancel(self, task: "asyncio.Task[object]") -> None:
        """Append the cancellation; the driver notices it, ends what runs and closes every call."""
        while not task.done():
            try:
                await self._store.cancel(self._run_id, self.name)
            except UnknownRun:
                await asyncio.sleep(BEGIN_S)
            except NotAsked:
                return  # it has ended meanwhile
            except (StoreUnavailable, TooManyConflicts):
                task.cancel()
                return
            else:
                return
