"""Starts the processes of a campaign: forked from this one, which has imported everything, or as fresh interpreters where that is not safe.

Apart from the campaign, because only here is known that a fork costs a hundredth of a start and must happen before there is any thread.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from refold.testing.orders import Order
from refold.testing.victim import perform

Work = Callable[[], int]
BROKEN: Final = 70


class Nursery:
    """Processes that were started and not yet heard of. Leaving it ends whatever still runs."""

    def __init__(self, *, fresh: bool = False) -> None:
        self.fresh = fresh or not hasattr(os, "fork") or threading.active_count() > 1
        """Whether each process is an interpreter of its own: asked for, or because a fork would take threads apart."""
        self._children: set[int] = set()
        self._held: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        while self._children:
            self.ended()

    def start(self, order: Order) -> int:
        """A process that performs an order."""
        return self._spawned(order) if self.fresh else self.work(lambda: perform(order))

    def work(self, work: Work) -> int:
        """A process that performs some work of the campaign itself; its exit code is what the work gives."""
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _perform(work)
        self._children.add(child)
        return child

    def _spawned(self, order: Order) -> int:
        path = Path(order.folder) / "order.json"
        path.write_bytes(msgspec.json.encode(order))
        with (Path(order.folder) / "output.txt").open("ab") as output:
            command = [sys.executable, "-m", "refold.testing.victim", str(path)]
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603 - our own module, by our own interpreter
        self._children.add(child.pid)
        self._held[child.pid] = child
        return child.pid

    def ended(self) -> tuple[int, int]:
        """Wait until a process ends: which, and its exit code, negative where a signal ended it."""
        while True:
            child, status = os.wait()
            if child in self._children:  # the agent's own module may have started others
                self._children.discard(child)
                code = os.waitstatus_to_exitcode(status)
                if (held := self._held.pop(child, None)) is not None:
                    held.returncode = code
                return child, code


def _perform(work: Work) -> None:
    """What a forked process does and how it ends: without a word to whatever its parent had registered for its own end."""
    code = BROKEN
    try:
        gc.disable()  # too short a life to collect anything in, and what is here is shared
        code = work()
    except BaseException:  # noqa: BLE001 - said in the output of this process, and by its code
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
