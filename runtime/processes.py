"""Runs one call in a process of its own, which leads its own group, so that the handler and whatever it started can be ended together.

Apart from threads, which cannot be stopped. The process is a fresh interpreter (`child.py`): a fork of a process with threads may deadlock.
"""

import os
import select
import selectors
import signal
import subprocess
import sys
import time
from asyncio import CancelledError
from contextlib import suppress
from typing import Final

import msgspec

from refold.runtime.child import AROUND_BYTES_MAX, GRACE_S, LENGTH_BYTES, STARTED, Ended, Request, Returned, frame
from refold.runtime.outcomes import Failed, Succeeded
from refold.runtime.tools import Note, Tool, ToolContext

__all__ = ["GRACE_S", "Child"]

EXIT_S: Final = 0.5
"""How long a process may take to exit once it has given its outcome."""
TICK_S: Final = 0.05
"""How often it is looked whether the call is still wanted."""
POLL_S: Final = 0.002
"""How often it is looked whether a process that is about to exit has."""
PART_BYTES: Final = 1_048_576
BOOT: Final = "import sys; _, reply_to, *sys.path[:] = sys.argv; del sys.argv[1:]; from refold.runtime.child import main; main(int(reply_to))"


class Child:
    """One call in a process of its own. `run` blocks; once `ctx.cancelled` is set it ends the whole group: SIGTERM, GRACE_S, SIGKILL."""

    def __init__(self, tool: Tool, canonical: str, ctx: ToolContext, max_result_bytes: int) -> None:
        self._tool, self._ctx = tool, ctx
        self._content_max = max_result_bytes + AROUND_BYTES_MAX
        module = sys.modules.get(tool.handler.__module__)
        self._request = Request(
            tool=tool.name,
            module=tool.handler.__module__,
            file=getattr(getattr(module, "__spec__", None), "origin", None) or "",
            function=tool.handler.__qualname__,
            typed=tool.signature is not None,
            arguments=canonical,
            max_result_bytes=max_result_bytes,
            run_id=ctx.run_id,
            turn=ctx.turn,
            call_id=ctx.call_id,
            attempt=ctx.attempt,
            idempotency_key=ctx.idempotency_key,
        )
        self._reply = bytearray()
        self._stopping = False

    def run(self) -> Succeeded | Failed:
        """The outcome, whatever becomes of the process."""
        if not self._is_found():
            return _not_begun(f"{self._request.function} in {self._request.module} is not this tool, so another process would run something else")
        reading, writing = os.pipe()
        try:
            process = self._start(writing)
        except (OSError, ValueError) as error:
            os.close(reading)
            return _not_begun(f"the system gave no process: {error}")
        finally:
            os.close(writing)
        assert process.stdin is not None
        try:
            try:
                self._exchange(process, reading)
            finally:
                self._end(process, reading)
        finally:
            os.close(reading)
            process.stdin.close()  # not before, because its end means that we are gone
        return self._outcome(process.returncode)

    def _is_found(self) -> bool:
        found = getattr(sys.modules.get(self._request.module), self._request.function, None)
        return (found.handler if isinstance(found, Tool) else found) is self._tool.handler

    def _start(self, reply_to: int) -> "subprocess.Popen[bytes]":
        if not sys.executable:
            raise ValueError("this Python does not know its own interpreter")
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
        command = [sys.executable, *flags, "-c", BOOT, str(reply_to), *sys.path]
        shown = 2 if _is_open(2) else subprocess.DEVNULL  # what a handler prints is no result
        asked = subprocess.PIPE
        # Unbuffered, so that closing it never writes. The command is our own interpreter; nothing that a model said is in it.
        return subprocess.Popen(command, bufsize=0, stdin=asked, stdout=shown, stderr=shown, pass_fds=(reply_to,), start_new_session=True)  # noqa: S603

    # -- while it runs

    def _exchange(self, process: "subprocess.Popen[bytes]", reading: int) -> None:
        """Hand the request over and take the reply, until there is one, or the process has ended, or its grace is over."""
        assert process.stdin is not None
        asking = process.stdin.fileno()
        left = memoryview(frame(msgspec.json.encode(self._request)))
        os.set_blocking(asking, False)
        os.set_blocking(reading, False)
        ends_at = float("inf")
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            selector.register(asking, selectors.EVENT_WRITE)
            while not self._is_complete() and time.monotonic() < ends_at:
                if self._ctx.cancelled and not self._stopping:
                    self._stopping = True
                    ends_at = time.monotonic() + GRACE_S
                    _to_group(process, signal.SIGTERM)
                ready = {key.fd for key, _ in selector.select(TICK_S)}
                if asking in ready:
                    left = left[_written(asking, left) :]
                    if not left:
                        selector.unregister(asking)  # but not closed: its end would say that we are gone
                if (reading in ready and not self._receive(reading)) or _has_ended(process):
                    return

    def _receive(self, reading: int) -> bool:
        """Take what is there; false where there will be no more."""
        try:
            part = os.read(reading, PART_BYTES)
        except BlockingIOError:
            return True
        self._reply += part
        return bool(part)

    def _is_complete(self) -> bool:
        length = self._length()
        return length is not None and len(self._reply) - self._head() >= min(length, self._content_max + 1)

    def _length(self) -> int | None:
        """Of the reply's content, where so much is known."""
        head = self._head()
        return int.from_bytes(self._reply[head - LENGTH_BYTES : head], "big") if len(self._reply) >= head else None

    def _head(self) -> int:
        return LENGTH_BYTES + (len(STARTED) if self._has_started() else 0)

    def _has_started(self) -> bool:
        return self._reply.startswith(STARTED)  # a length begins with zeros

    # -- when it is over

    def _end(self, process: "subprocess.Popen[bytes]", reading: int) -> None:
        """Leave no process behind: none of the group, unless the handler ended by itself, when what it left running is its own affair.

        The process is not reaped before the group is ended, so that its id, which is the group's, is still its own.
        """
        ends_at = time.monotonic() + EXIT_S
        while not self._ctx.cancelled and not _has_ended(process) and time.monotonic() < ends_at:
            time.sleep(POLL_S)
        if self._ctx.cancelled or not self._is_complete():
            _to_group(process, signal.SIGKILL)  # what the handler started had its SIGTERM, and its grace as long as the handler took
        elif not _has_ended(process):
            process.kill()
        process.wait()
        while not self._is_complete() and _is_readable(reading) and self._receive(reading):
            pass

    def _outcome(self, code: int) -> Succeeded | Failed:
        length, head = self._length(), self._head()
        if length is not None and len(self._reply) - head == length <= self._content_max:
            try:
                return _as_outcome(msgspec.json.decode(self._reply[head:], type=Returned | Ended))
            except msgspec.DecodeError as error:
                return Failed("execution_failed", f"Its process gave an outcome that cannot be read: {error}", error_type=type(error).__name__)
        if not self._has_started():
            return _not_begun("its process was ended before the handler was called" if self._stopping else f"its process {_how(code)}")
        if self._stopping:
            return Failed("execution_failed", f"Its process {_how(code)}.", error_type=CancelledError.__name__)
        return Failed("execution_failed", f"Its process {_how(code)} and gave no outcome.")


def _as_outcome(reply: Returned | Ended) -> Succeeded | Failed:
    if isinstance(reply, Ended):
        return Failed(reply.kind, reply.message, reply.retryable, reply.performed, reply.error_type)
    return Succeeded(bytes(reply.result), reply.source_ids, tuple(Note(note.text, note.source_ids) for note in reply.notes))


def _not_begun(why: str) -> Failed:
    return Failed("execution_failed", f"The call was not begun: {why}.", performed="no")


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _written(target: int, left: memoryview) -> int:
    try:
        return os.write(target, left)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(left)  # it has ended, which is noticed elsewhere


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Without reaping it, where the system can do that."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # reaped by somebody else


def _to_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    assert process.pid != os.getpgrp()  # it leads a group of its own
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(process.pid, number)


def _is_readable(reading: int) -> bool:
    return bool(select.select([reading], [], [], 0)[0])


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
