"""Server-sent events as the server wrote them, from the bytes of a response.

Apart from the adapters, and in place of the SDKs' own reading of streams: that one swallows the end marker, by which a complete stream is known from one that
broke, and what it accumulates is wrong on real servers.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

EVENT_BYTES_MAX: Final = 67_108_864
"""What one event may hold."""
DATA: Final = b"data:"
NAME: Final = b"event:"


class Event(NamedTuple):
    """One event: `name` is empty where the server gave none."""

    name: str
    data: str


class TooLong(ValueError):
    """An event that does not end."""


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Each event once it is complete, and at the end one whose closing empty line is missing (its reader sees whether it was cut). Raises TooLong.

    Lines end in LF, CR or CRLF, wherever the pieces are cut; comments, `id` and `retry` are left out (https://html.spec.whatwg.org/multipage/server-sent-events.html).
    """
    reader = _Reader()
    async for chunk in chunks:
        lines = reader.lines(chunk)[::-1]
        while lines:  # nothing holds on to what was given: an event may have megabytes, and the next one too
            if (event := reader.take(lines.pop())) is not None:
                yield event
                del event
    for line in (reader.rest(), b""):
        if (event := reader.take(line)) is not None:
            yield event


class _Reader:
    """What has come of the line and of the event that are being received."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[str] = []

    def lines(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their ends. Raises TooLong."""
        if self._after_cr and chunk.startswith(b"\n"):  # the second half of a CRLF
            chunk = chunk[1:]
        if not chunk:
            self._after_cr = False
            return []
        self._after_cr = chunk.endswith(b"\r")
        self._size += len(chunk)
        if self._size > EVENT_BYTES_MAX:
            raise TooLong(f"an event of more than {EVENT_BYTES_MAX:,} bytes")
        lines = chunk.splitlines()  # of bytes: at LF, CR and CRLF only; that of text would split at U+2028 too
        unfinished = b"" if chunk.endswith((b"\n", b"\r")) else lines.pop()
        if lines:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces.clear()
        if unfinished:
            self._pieces.append(unfinished)
        return lines

    def rest(self) -> bytes:
        """A last line without an end."""
        return b"".join(self._pieces)

    def take(self, line: bytes) -> Event | None:
        """The event that this line completes."""
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            event = Event(self._name, "\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        if line.startswith(DATA):
            self._data.append(_value(line, len(DATA)))
        elif line.startswith(NAME):
            self._name = _value(line, len(NAME))
        elif line == b"data":
            self._data.append("")
        elif line == b"event":
            self._name = ""
        return None


def _value(line: bytes, start: int) -> str:
    """What stands behind the name of a field, copied once: a line may have megabytes."""
    start += line[start : start + 1] == b" "
    return str(memoryview(line)[start:], "utf-8", "replace")
