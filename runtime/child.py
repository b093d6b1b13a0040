"""The inside of a process that runs one call: reads the request, imports the handler, runs it, and writes what came of it.

Apart from `processes.py`, which starts and ends such a process, so that no more is imported here than a handler needs.
"""

import atexit
import importlib
import importlib.util
import inspect
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

import msgspec

from refold.events.words import Kind
from refold.runtime.arguments import bound
from refold.runtime.outcomes import Failed, Performed, Succeeded, bounded, failure, judged
from refold.runtime.signatures import read_signature
from refold.runtime.tools import Cancellation, Tool, ToolContext, ToolResult

GRACE_S: Final = 0.5
"""How long a handler that was told to stop may take, before its process group is killed."""
LENGTH_BYTES: Final = 8
STARTED: Final = b"S"
"""What is written before the handler is called: without it, nothing was performed."""
AROUND_BYTES_MAX: Final = 16_777_216
"""Of sources, notes and messages, beside the result itself."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call. The handler is `function` in `module`, which came from `file`; a typed one takes its own parameters, any other `(arguments, ctx)`."""

    tool: str
    module: str
    file: str
    function: str
    typed: bool
    arguments: str
    max_result_bytes: int
    run_id: str
    turn: int
    call_id: str
    attempt: int
    idempotency_key: str


class SaidNote(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    source_ids: tuple[str, ...]


class Returned(msgspec.Struct, frozen=True, kw_only=True, tag="returned"):
    """A result; `result` is JSON as it will be stored."""

    result: msgspec.Raw
    source_ids: tuple[str, ...]
    notes: tuple[SaidNote, ...]


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A call that did not give one."""

    kind: Kind
    message: str
    retryable: bool
    performed: Performed
    error_type: str


def main(reply_to: int) -> None:
    """Run one call: the request comes from standard input, the reply goes to the descriptor `reply_to`, what the handler prints goes where it went."""
    os.set_inheritable(reply_to, False)
    lifeline = _keep_standard_input()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed before a kill is to be seen
    request = msgspec.json.decode(_read_frame(lifeline), type=Request)
    watch = _Watch(lifeline)
    watch.start()
    outcome = _outcome(request, watch, lambda: _write(reply_to, STARTED))
    _write(reply_to, _frame(outcome, request.max_result_bytes + AROUND_BYTES_MAX))
    os.close(reply_to)
    if watch.ending:
        watch.join()  # whoever asked for the end means the whole group, which the watch sees to


def frame(content: bytes) -> bytes:
    """A message with its length in front."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def _keep_standard_input() -> int:
    """A descriptor of our own, so that neither the handler nor what it starts can read from it."""
    kept = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return kept


def _read_frame(source: int) -> bytes:
    return _read(source, int.from_bytes(_read(source, LENGTH_BYTES), "big"))


def _read(source: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(source, min(size - len(parts), 1_048_576))
        if not part:
            sys.exit("the process that wanted this call is gone")
        parts += part
    return bytes(parts)


def _write(target: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        try:
            left = left[os.write(target, left) :]
        except BrokenPipeError:
            return  # nobody is left to read it


class _Watch(threading.Thread):
    """Hears SIGTERM, and that the process which started this one is gone; tells the handler, and kills the group when its grace is over."""

    def __init__(self, lifeline: int) -> None:
        super().__init__(name="refold-watch", daemon=True)
        self.cancelled = Cancellation()
        self.ending = False
        self.cancel: Callable[[], object] = _nothing
        """What else tells the handler."""
        self._lifeline = lifeline
        self._hears, self._rings = os.pipe()

    def hold_sigterm(self) -> None:
        """From here on SIGTERM is a request. The signal handler itself only rings: it may interrupt code that holds the locks of `Cancellation`."""
        signal.signal(signal.SIGTERM, self._ring)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        self.ending = True
        os.write(self._rings, b"t")

    def run(self) -> None:
        heard, _, _ = select.select([self._lifeline, self._hears], [], [])
        if self._lifeline in heard:  # nothing is ever written to it after the request, so this is its end
            self.ending = True
            _to_group(signal.SIGTERM)
        self.cancelled.set()
        self.cancel()
        time.sleep(GRACE_S)
        _to_group(signal.SIGKILL)


def _to_group(number: signal.Signals) -> None:
    if os.getpgrp() == os.getpid():  # never a group that is not our own
        os.killpg(os.getpid(), number)


def _nothing() -> None:
    """A sync handler looks at `ctx.cancelled`."""


def _outcome(request: Request, watch: _Watch, begin: Callable[[], None]) -> Succeeded | Failed:
    ctx = ToolContext(request.run_id, request.turn, request.call_id, request.attempt, request.idempotency_key, watch.cancelled)
    try:
        tool = _tool(request)
    except BaseException as error:  # noqa: BLE001 - code of the user runs when its module is imported
        return _not_begun(f"{request.function} could not be imported from {request.module}: {failure(error).message}", error)
    try:
        positional, named = bound(tool, request.arguments, ctx)
    except ValueError as error:
        return Failed("invalid_arguments", f"The arguments no longer fit the tool: {bounded(str(error))}", performed="no", error_type="ValueError")
    except BaseException as error:  # noqa: BLE001 - validators of the user
        return _not_begun(f"its arguments could not be made: {failure(error).message}", error)
    watch.hold_sigterm()
    begin()
    try:
        value = tool.handler(*positional, **named)
        if inspect.isawaitable(value):
            value = _awaited(value, watch)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        return failure(error)
    return judged(tool.signature, value, request.max_result_bytes)


def _not_begun(why: str, error: BaseException) -> Failed:
    return Failed("execution_failed", bounded(f"The call was not begun: {why}"), performed="no", error_type=type(error).__name__)


def _awaited(awaitable: Any, watch: _Watch) -> Any:
    import asyncio  # only async handlers pay for it

    async def main() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        watch.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if watch.cancelled:
            task.cancel()
        try:
            return await awaitable
        finally:
            watch.cancel = _nothing

    runner = asyncio.Runner()
    atexit.register(runner.close)  # which waits for tasks that the handler left behind, so not before the outcome is out
    return runner.run(main())


def _tool(request: Request) -> Tool:
    found = getattr(_module(request.module, request.file), request.function)
    if isinstance(found, Tool) and (found.signature is not None) == request.typed:
        return found
    handler = found.handler if isinstance(found, Tool) else found
    signature = read_signature(handler, request.tool, context_type=ToolContext, result_type=ToolResult) if request.typed else None
    return Tool(name=request.tool, description="", schema={}, handler=handler, signature=signature)


def _module(name: str, file: str) -> ModuleType:
    """The module of that name, where it comes from the same file; else that file, under that name."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and (not file or spec.origin == file or _same(spec.origin, file)):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _same(one: str | None, other: str) -> bool:
    try:
        return one is not None and Path(one).samefile(other)
    except OSError:
        return False


def _frame(outcome: Succeeded | Failed, bytes_max: int) -> bytes:
    match outcome:
        case Succeeded(data, source_ids, notes):
            said = tuple(SaidNote(text=note.text, source_ids=tuple(note.source_ids)) for note in notes)
            content = msgspec.json.encode(Returned(result=msgspec.Raw(data), source_ids=source_ids, notes=said))
        case Failed(kind, message, retryable, performed, error_type):
            content = msgspec.json.encode(Ended(kind=kind, message=message, retryable=retryable, performed=performed, error_type=error_type))
    if len(content) <= bytes_max:
        return frame(content)
    message = f"The sources and notes of the result are more than {AROUND_BYTES_MAX:,} bytes."
    return _frame(Failed("invalid_result", message, performed="yes", error_type="TooLarge"), bytes_max)
