"""Commits together what several callers submitted while the commit before was on its way to the disk.

Apart from the stores, because waiting, waking and stopping are the same whatever is written; with a single caller nothing waits.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Final

from refold.events.storage import Submission

GROUP_MAX: Final = 256
"""Submissions in one transaction at most."""

Outcome = Exception | None
Commit = Callable[[Sequence[Submission]], Sequence[Outcome]]
"""Stores a group in one transaction and says for each of its submissions whether it was stored; what it raises holds for all of them."""

_Waiting = tuple[Submission, "Future[None]"]


class GroupWriter:
    """Runs `commit`, never twice at a time: for a caller that waits alone in its own thread, for all others in one that starts when it is first needed.

    That thread is a daemon: a process may exit at any time, since only what is durable was acknowledged.
    """

    def __init__(self, commit: Commit, closed: Callable[[], Exception]) -> None:
        self._commit, self._closed_error = commit, closed
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._lock = Lock()
        self._turn = Lock()  # Held while something is committed.
        self._thread: Thread | None = None
        self._unsettled = [0]  # How much was taken and is not yet settled; shared with the thread.
        self._closed = False

    def append(self, submission: Submission) -> None:
        """Commits here if nothing else is on its way: waking a thread and being woken by it costs as much as a quick disk.

        A caller commits only its own, so that one that is interrupted leaves nobody waiting.
        """
        with self._lock:
            alone = self._unsettled[0] == 0 and not self._closed
            self._unsettled[0] += alone
        if not alone:
            return self._wait(submission)
        try:
            with self._turn:
                (outcome,) = self._commit([submission])
        finally:
            with self._lock:
                self._unsettled[0] -= 1
        if outcome is not None:
            raise outcome
        return None

    def _wait(self, submission: Submission) -> None:
        """Not `future.result()`: an interrupt inside it can leave the future locked, and with it the thread that wants to settle it."""
        future, settled = _taken(), Lock()
        settled.acquire()
        future.add_done_callback(lambda _: settled.release())
        self._enqueue(submission, future)
        settled.acquire()
        future.result()

    def submit(self, submission: Submission) -> "Future[None]":
        """Takes the submission for the thread, unless the writer is closed: then it raises at once."""
        future = _taken()
        self._enqueue(submission, future)
        return future

    def _enqueue(self, submission: Submission, future: "Future[None]") -> None:
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._thread is None:
                # The thread must not keep the writer alive: a log that nobody holds any more is closed.
                arguments = (self._queue, self._commit, self._turn, self._lock, self._unsettled)
                self._thread = Thread(target=_serve, args=arguments, name="refold-log", daemon=True)
                self._thread.start()
            self._unsettled[0] += 1
            self._queue.put((submission, future))

    def close(self) -> None:
        """Returns when everything that was taken is settled."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
            thread = self._thread
        if thread is current_thread():
            return  # Closed by something that was told there of its outcome.
        if thread is not None:
            thread.join()
        with self._turn:  # A caller may be committing in its own thread.
            pass


def _taken() -> "Future[None]":
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()  # A waiter that is cancelled must not take the batch along.
    return future


def _serve(queue: "SimpleQueue[_Waiting | None]", commit: Commit, turn: Lock, lock: Lock, unsettled: list[int]) -> None:
    while True:
        group = [queue.get()]
        with turn:
            # What came while another commit was on its way to the disk goes together.
            while group[-1] is not None and len(group) < GROUP_MAX:
                try:
                    group.append(queue.get_nowait())
                except Empty:
                    break
            waiting = [each for each in group if each is not None]
            if waiting:
                _settle(waiting, commit)
        with lock:
            unsettled[0] -= len(waiting)
        if group[-1] is None:
            return
        del group, waiting  # While it waits for more, the thread keeps nothing of what it wrote.


def _settle(group: list[_Waiting], commit: Commit) -> None:
    outcomes: Sequence[Outcome]
    try:
        outcomes = commit([submission for submission, _ in group])
    except Exception as error:  # noqa: BLE001 - handed to everyone who waits; without it they would wait for ever
        outcomes = [error] * len(group)
    for (_, future), outcome in zip(group, outcomes, strict=True):
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
