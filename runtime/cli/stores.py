"""What most commands begin and end with: opening the store that is meant, reading a text that is given, and spelling out the line to type next."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from refold.projections.run import Run
from refold.runtime.cli import options as o
from refold.runtime.cli.exits import Refused
from refold.runtime.cli.render import one_line, short
from refold.runtime.cli.telling import why_asked
from refold.runtime.ports import SystemClock
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


def to_drive(options: o.Common, verb: str, run: Run, *words: str) -> str:
    """`resume` or `continue` as it is to be typed: with the agent that was given, or a place for one where the record alone does not lead to its code."""
    from refold.runtime.cli import lookup  # what drives is loaded where it is needed

    given = options.agent if isinstance(options, o.Driving) else None
    agent = given or ("" if lookup.is_found(run.begun) else "MODULE:NAME")
    return typed(options, verb, run.id, *words, *(("--agent", agent) if agent else ()))


def waiting_lines(options: o.Common, run: Run, asked: dict[str, Any]) -> list[str]:
    """What a run waits for, and the lines to type."""
    return [f"run {run.id} {what_waits(asked)}", *(f"    {line}" for line in to_type(options, run, asked))]


def what_waits(asked: dict[str, Any]) -> str:
    """What a run waits for, as the end of a sentence that begins with the run."""
    if asked["kind"] == "question":
        return f"asks: {one_line(asked['reason'])}"
    reason = why(asked)
    shown = f"{one_line(asked['name'])} {short(asked['arguments'], 200)}".strip()
    if asked["kind"] == "approval":
        return f"waits for approval of {shown} ({reason})"
    return f"does not know whether {shown} took place" + (f" ({reason})" if reason else "")


def why(asked: dict[str, Any]) -> str:
    """Why a human is asked, on one line."""
    return why_asked(asked["reason"])


def has_expired(asked: dict[str, Any]) -> bool:
    """Whether an approval was not given in time; the run that is driven on takes it as denied."""
    return asked["expires_at"] is not None and asked["expires_at"] <= SystemClock().now_us()


def to_type(options: o.Common, run: Run, asked: dict[str, Any]) -> list[str]:
    """The lines that settle it, one of which is to be typed."""
    run_id, call_id = run.id, asked["call_id"]
    if asked["kind"] == "question":
        return [typed(options, "answer", run_id, "--call", call_id, "TEXT")]
    if asked["kind"] == "approval" and has_expired(asked):
        return [to_drive(options, "resume", run)]
    if asked["kind"] == "approval":
        return [typed(options, "approve", run_id, call_id), typed(options, "deny", run_id, call_id, "--reason", "TEXT")]
    return [typed(options, "resolve", run_id, call_id, verdict) for verdict in ("--happened", "--did-not-happen", "--tell-model")]
