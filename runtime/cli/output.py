"""Where words go: results to standard output, everything else to standard error; UTF-8 whatever the locale, and a closed pipe is no error."""

import os
import sys
from typing import Any, TextIO

from refold.runtime.cli.exits import FAILED, Refused


def prepare() -> None:
    """Both streams write UTF-8, and nothing that cannot be written stops them."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def line(text: str) -> bool:
    """One text to standard output; false where nobody reads any more."""
    return _write(sys.stdout, text if text.endswith("\n") else text + "\n")


def raw(data: bytes, *, flush: bool = False) -> bool:
    """Bytes to standard output as they are."""
    if sys.stdout is None:  # closed before the process began
        return False
    try:
        sys.stdout.buffer.write(data)
        if flush:
            sys.stdout.buffer.flush()
    except OSError as error:
        return _lost(sys.stdout, error)
    return True


def document(value: Any) -> bool:
    """One JSON document: on one line for programs, indented in a terminal."""
    import msgspec  # not for `refold --help`

    data = msgspec.json.encode(value)
    return raw((msgspec.json.format(data, indent=2) if sys.stdout is not None and sys.stdout.isatty() else data) + b"\n")


def note(text: str) -> None:
    """A line for people on standard error."""
    flush()
    _write(sys.stderr, text + "\n")


def prompt(text: str) -> None:
    """What is asked at the terminal, on standard error, where it is no result."""
    flush()
    _write(sys.stderr, text)


def complain(text: str) -> None:
    """What was wrong and what to do: one line, whatever is in it; in a terminal as wide as that is."""
    from refold.runtime.cli.render import Page, one_line  # nor this

    note("\n".join(Page(sys.stderr).paragraphs(f"refold: {one_line(text)}")))


def flush() -> None:
    """Hand over what was written; a reader that has gone is no error."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _write(stream, "")


def _write(stream: TextIO | None, text: str) -> bool:
    if stream is None:
        return False
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        return _lost(stream, error)
    return True


def _lost(stream: TextIO, error: OSError) -> bool:
    """A reader that has gone is no error, and neither is progress that nobody can see; a result that cannot be written is one."""
    _to_nowhere(stream)
    if stream is sys.stdout and not isinstance(error, BrokenPipeError):
        raise Refused(f"standard output cannot be written ({error.strerror}): make room, or send it elsewhere", FAILED)
    return False


def _to_nowhere(stream: TextIO) -> None:
    """Python flushes once more at its end, which must not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
