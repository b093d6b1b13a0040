"""What really happened to a run, written down outside its log: executions, requests, acknowledged appends, decisions of humans, deaths.

A file of JSON lines that every process of the run appends to; a line that was written outlives the process that wrote it.
"""

import os
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

import msgspec

FILE: Final = "ledger.jsonl"

Role = Literal["drive", "human"]
Deed = Literal["death", "say", "cancel", "takeover"]
"""What comes over a run at some step: its process dies; or, from outside, somebody speaks, cancels it, or another driver takes it over."""


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag=str.lower):
    """One line; `process` is the id of the process that wrote it."""

    process: int


class Began(Line, frozen=True, kw_only=True):
    """A process began."""

    role: Role


class Step(Line, frozen=True, kw_only=True):
    """A place was passed."""

    place: str


class Came(Line, frozen=True, kw_only=True):
    """A deed came; `done` is false where it found nothing to do, because the run had not begun or had ended."""

    deed: Deed
    place: str
    done: bool = True
    head: int = 0
    """Where the log was behind it."""


class Stored(Line, frozen=True, kw_only=True):
    """An append was acknowledged, up to this record."""

    position: int
    digest: str


class Started(Line, frozen=True, kw_only=True):
    """A handler is called; flushed to the disk before it is."""

    call: str
    key: str
    tool: str
    attempt: int
    arguments: str


class Ended(Line, frozen=True, kw_only=True):
    """A handler returned, or raised; `performed` is false where it said that nothing happened. Flushed to the disk before anybody else hears of it."""

    call: str
    value: Any = None
    raised: str = ""
    performed: bool = True


class Asked(Line, frozen=True, kw_only=True):
    """The model was asked: the digest of what it was shown, and the calls among it without a result."""

    number: int
    digest: str
    unanswered: tuple[str, ...] = ()


class Allowed(Line, frozen=True, kw_only=True):
    """A human allowed a call, as it was shown: its arguments as the handler is to get them."""

    call: str
    arguments: str


class Reported(Line, frozen=True, kw_only=True):
    """What the process that drove the run said of it."""

    result: dict[str, Any]


Lines = Began | Step | Came | Stored | Started | Ended | Asked | Allowed | Reported
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Lines)


class Ledger:
    """The file, as one process writes it. Whole lines only: each is one write at the end of the file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = Lock()

    def note(self, line: Lines, *, durable: bool = False) -> None:
        """Write a line; a durable one is on the disk when this returns."""
        with self._lock:
            os.write(self._file, _ENCODER.encode(line) + b"\n")
            if durable:
                os.fsync(self._file)

    def lines(self) -> list[Lines]:
        """Everything that was written so far."""
        return read(self._path.parent)


def read(folder: Path) -> list[Lines]:
    """The lines of a run's ledger, in order; none where there is no ledger yet."""
    path = folder / FILE
    return [_DECODER.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []
