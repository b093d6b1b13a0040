"""What most commands begin and end with: opening the store that is meant, reading a text that is given, and spelling out the line to type next."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from refold.runtime.cli import options as o
from refold.runtime.cli.exits import Refused
from refold.runtime.cli.render import one_line, short
from refold.runtime.store import Store, open_store


@contextlib.contextmanager
def opened(options: o.Common, *, create: bool = False) -> Iterator[Store]:
    """The store that is meant. Raises Refused for a URL that names none, StoreUnavailable."""
    try:
        store = open_store(options.store, create=create)
    except ValueError as error:
        raise Refused(str(error)) from None
    try:
        yield store
    finally:
        store.close()


def text_of(word: str, what: str) -> str:
    """A text that is given as it is, as @FILE, or as - for standard input. Raises Refused."""
    if word != "-" and not word.startswith("@"):
        return word
    try:
        data = sys.stdin.buffer.read() if word == "-" else Path(word[1:]).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise Refused(f"the file {word[1:]!r} for {what} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise Refused(f"{what} from {'standard input' if word == '-' else word[1:]} is not UTF-8") from None


def typed(options: o.Common, *words: str) -> str:
    """A command as it is to be typed, with the store where that is not the usual one."""
    usual = options.store == (os.environ.get("REFOLD_STORE") or o.DEFAULT_STORE)
    return " ".join(("refold", *words, *(() if usual else ("--store", options.store))))


def waiting_lines(options: o.Common, asked: dict[str, Any]) -> list[str]:
    """What a run waits for, and the lines to type."""
    run_id, call_id = asked["run_id"], asked["call_id"]
    if asked["kind"] == "question":
        return [f"run {run_id} asks: {one_line(asked['reason'])}", f"    {typed(options, 'answer', run_id, '--call', call_id, 'TEXT')}"]
    if asked["kind"] == "approval":
        shown = f"{asked['name']} {short(asked['arguments'], 200)}".strip()
        return [
            f"run {run_id} waits for approval of {shown} ({one_line(asked['reason'])})",
            f"    {typed(options, 'approve', run_id, call_id)}",
            f"    {typed(options, 'deny', run_id, call_id, '--reason', 'TEXT')}",
        ]
    return [f"run {run_id} does not know whether {asked['name']} ({call_id}) took place: {one_line(asked['reason'])}"]
