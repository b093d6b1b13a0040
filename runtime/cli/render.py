"""Plain text for people: what may stand in a terminal, how wide it is, colours where they are wanted, tables and paragraphs."""

import os
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Sequence
from typing import Any, Final, TextIO

import msgspec

HIDDEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]")
"""Controls, reordering marks and halves of characters: what could move the cursor or make a text look like another."""
COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
STATUS: Final = {
    "completed": ("completed", "green"),
    "failed": ("failed", "red"),
    "stopped": ("stopped", "yellow"),
    "cancelled": ("cancelled", "yellow"),
    "waiting_for_user": ("waiting", "cyan"),
    "running": ("running", "blue"),
    "parked": ("parked", "yellow"),
}
"""A status as people read it, and its colour."""
WIDE: Final = 100
"""Lines longer than this are hard to read, however wide the terminal is."""


def visible(text: str) -> str:
    """A text with everything that is hidden in it spelled out."""
    return HIDDEN.sub(lambda match: _spelled(ord(match[0])), text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def one_line(text: str, most: int | None = None) -> str:
    """A text on one line, cut to so many columns."""
    line = visible(" ".join(text.split()))
    return line if most is None else cut(line, most)


def width_of(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(0 if unicodedata.combining(c) or c in "\u200d\ufe0f" else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, most: int) -> str:
    """A text in at most so many columns; what is missing is said by an ellipsis."""
    if len(text) <= most and width_of(text) <= most:
        return text
    kept, taken = [], 1
    for character in text:
        taken += width_of(character)
        if taken > most:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def wrapped(text: str, columns: int, first: str = "", rest: str = "") -> list[str]:
    """A visible text on lines of so many columns, behind what the first line begins with and what each further one does."""
    by_columns = "".join(c + FILLER * (width_of(c) - 1) for c in text)  # lines are filled by counting characters
    lines = _ByColumns(columns, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False).wrap(by_columns)
    return [line.replace(FILLER, "") for line in lines]


class _ByColumns(textwrap.TextWrapper):
    """Breaks a word that is longer than a line between characters, never between the two columns of one."""

    def _handle_long_word(self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int) -> None:
        first_left = max(0, width - cur_len)
        split = reversed_chunks[-1][first_left : first_left + 1] == FILLER
        super()._handle_long_word(reversed_chunks, cur_line, cur_len, width - split)


FILLER: Final = "\0"
"""Stands beside a character that takes two columns; no visible text has it."""


def padded(text: str, columns: int) -> str:
    """A text filled up to a column."""
    return text + " " * max(0, columns - width_of(text))


class Page:
    """A stream as a page: how wide it is and whether it has colours. A file or a pipe has no width."""

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = stream if stream is not None else sys.stdout
        terminal = stream is not None and stream.isatty()
        self.width = min(WIDE, max(30, shutil.get_terminal_size((80, 24)).columns)) if terminal else None
        self.coloured = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def paint(self, text: str, *styles: str) -> str:
        """A text in a style, where there are styles."""
        codes = ";".join(COLOURS[style] for style in styles if style)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.coloured and codes and text else text

    def status(self, status: str, columns: int = 0) -> str:
        """A status in its word and colour."""
        word, colour = STATUS.get(status, (status, "red"))
        return self.paint(padded(word, columns), colour)

    def paragraphs(self, text: str, indent: str = "") -> list[str]:
        """A text of several lines, wrapped and indented; what a line is indented by itself, the rest of it is too."""
        lines: list[str] = []
        for line in visible(text if self.width is None else text.expandtabs(4)).split("\n"):
            if self.width is None or not line.strip():
                lines.append((indent + line).rstrip())
            else:
                words = line.lstrip()
                margin = indent + line[: len(line) - len(words)]
                width = max(len(margin) + 20, self.width)
                lines += wrapped(words, width, margin, margin)
        return lines

    def room(self, taken: int, otherwise: int = 120) -> int:
        """Columns left of a line."""
        return otherwise if self.width is None else max(8, self.width - taken)

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        """Rows in columns. The last one takes what is left; where that is too little it stands on a line of its own."""
        shown = [[STATUS.get(cell, (cell, ""))[0] if title == "STATUS" else cell for title, cell in zip(titles, row, strict=True)] for row in rows]
        widths = [max(width_of(row[n]) for row in (titles, *shown)) for n in range(len(titles) - 1)]
        taken = sum(widths) + 2 * len(widths)
        below = self.width is not None and self.width - taken < 24
        head = "  ".join(padded(title, columns) for title, columns in zip(titles, widths, strict=False)) + ("" if below else f"  {titles[-1]}")
        lines = [self.paint(head.rstrip(), "dim")]
        for row in rows:
            cells = [
                self.status(cell, columns) if titles[n] == "STATUS" else padded(cell, columns)
                for n, (cell, columns) in enumerate(zip(row, widths, strict=False))
            ]
            if below:
                lines += ["  ".join(cells).rstrip(), self.paint(f"  {cut(row[-1], self.room(2))}", "dim")]
            else:
                lines.append(("  ".join(cells) + f"  {cut(row[-1], self.room(taken))}").rstrip())
        return lines


def since(at_us: int) -> str:
    """How long ago a moment was, as people say it."""
    return f"{_span(time.time_ns() // 1000 - at_us)} ago"


def until(at_us: int) -> str:
    """When a moment comes, or that it is past."""
    left_us = at_us - time.time_ns() // 1000
    return f"in {_span(left_us)}" if left_us > 0 else since(at_us)


def _span(us: int) -> str:
    seconds = max(0, us) // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def bytes_of(size: int) -> str:
    """A size in bytes as people say it."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.1f} {unit}"
    return f"{size} B"


def clock(at_us: int) -> str:
    """A moment as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at_us // 1_000_000)) + f".{at_us % 1_000_000 // 1000:03d}"


def day(at_us: int) -> str:
    """A moment as the local date."""
    return time.strftime("%Y-%m-%d", time.localtime(at_us // 1_000_000))


def thousands(number: int) -> str:
    """A count that can be read."""
    return f"{number:,}"


def counted(number: int, thing: str) -> str:
    """So many things."""
    return f"{thousands(number)} {thing}{'s' * (number != 1)}"


def fields(arguments: dict[str, Any], indent: str = "    ") -> list[str]:
    """Arguments in full, one below the other: what a human decides about."""
    made: list[str] = []
    for name, value in arguments.items():
        lines = visible(value if isinstance(value, str) else compact(value)).split("\n")
        made += (
            [f"{indent}{one_line(name)}: {lines[0]}"]
            if len(lines) == 1
            else [f"{indent}{one_line(name)}:", *(f"{indent}    {line}".rstrip() for line in lines)]
        )
    return made


def short(value: Any, most: int = 80) -> str:
    """A JSON value in a few words: fields of an object, how many items a list has."""
    match value:
        case dict():
            return cut(" ".join(f"{one_line(str(key), 30)}={_piece(item)}" for key, item in value.items()), most)
        case list():
            return counted(len(value), "item")
        case str():
            return one_line(value, most)
        case _:
            return cut(compact(value), most)


def _piece(value: Any) -> str:
    match value:
        case str():
            return compact(one_line(value, 48))
        case dict():
            return f"{{{len(value)}}}"
        case list():
            return f"[{len(value)}]"
        case _:
            return compact(value)


def compact(value: Any) -> str:
    """A JSON value on one line."""
    return msgspec.json.encode(value).decode()
