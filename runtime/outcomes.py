"""What a call came to, and how that is read off whatever a handler returned or raised.

Apart from running handlers, because a handler may run in a thread here or in a process of its own, and both are judged by the same rules.
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast

from refold.events.words import Kind
from refold.runtime.signatures import Signature
from refold.runtime.text import whole
from refold.runtime.tools import Note, NotPerformed, RetryableToolError, ToolResult
from refold.runtime.values import NotStorable, TooLarge, to_json

TEXT_BYTES_MAX: Final = 2_048
LEAVES_MAX: Final = 20
"""Exceptions of one group that are told."""

Performed = Literal["yes", "no", "unknown"]


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


def judged(signature: Signature | None, value: object, max_bytes: int) -> Succeeded | Failed:
    """What a handler returned, as an outcome."""
    try:
        return _success(signature, value, max_bytes)
    except NotStorable as refused:
        return Failed("invalid_result", bounded(str(refused)), performed="yes", error_type=type(refused).__name__)
    except BaseException as error:  # noqa: BLE001 - validators and methods of the returned value
        return Failed("invalid_result", f"The result could not be checked: {_text(error)}", performed="yes", error_type=_type_name(error))


def failure(error: BaseException) -> Failed:
    """What a handler raised, as an outcome."""
    leaves = _leaves(error)
    performed: Performed = "no" if all(isinstance(each, NotPerformed) for each in leaves) else "unknown"
    retryable = all(isinstance(each, RetryableToolError) for each in leaves)
    said = [_text(error)] + ([_text(each) for each in leaves[:LEAVES_MAX]] if isinstance(error, BaseExceptionGroup) else [])
    return Failed("execution_failed", bounded("; ".join(said)), retryable, performed, _type_name(error))


def is_cancellation(outcome: Succeeded | Failed) -> bool:
    """Whether the handler only did as it was told when it was cancelled."""
    return isinstance(outcome, Failed) and outcome.error_type == "CancelledError"


def bounded(text: str) -> str:
    """A text short enough for a message."""
    encoded = whole(text).encode()
    return encoded.decode() if len(encoded) <= TEXT_BYTES_MAX else encoded[: TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."


def _success(signature: Signature | None, value: object, max_bytes: int) -> Succeeded | Failed:
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return Failed("invalid_result", "The tool returned a generator; a result must be complete.", performed="yes", error_type="TypeError")
    promise = signature.promise if signature else None
    if promise is not None and not (promise.may_wrap and isinstance(value, ToolResult)):
        complaint = promise.complaint(value)
        if complaint:
            return Failed("invalid_result", bounded(complaint), performed="yes", error_type="TypeError")
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
    return bounded(type(error).__name__)
