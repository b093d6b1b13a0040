"""Decides what a run waits for at once: by `--approve TOOL`, or by asking whoever sits at the terminal.

Decisions are appended through the store like those of any other process, and the run is driven on afterwards.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from refold.projections.run import Run
from refold.projections.view import pending_of
from refold.runtime.cli import options as o, output
from refold.runtime.cli.interrupts import Interruption
from refold.runtime.cli.render import Page, fields, one_line
from refold.runtime.cli.stores import why
from refold.runtime.store import NotAsked, Store, Verdict
from refold.runtime.text import visible as says_something

BY_OPTION = "--approve"


def decided(options: o.Driving, store: Store, run: Run, interruption: Interruption, *, first: bool) -> bool:
    """Whether something was decided, so that the run can be driven on. The `first` time it is said how to leave."""
    asked = pending_of(run)
    granted = [one for one in asked if one["kind"] == "approval" and one["name"] in options.approve]
    for one in granted:
        _append(partial(store.approve_sync, run.id, one["call_id"], digest=one["digest"], who=BY_OPTION))
    left = [one for one in asked if one not in granted]
    if not left or options.no_input or sys.stdin is None or not sys.stdin.isatty():
        return bool(granted)
    answered = len(granted)
    if first:
        _wrapped(
            "\nCtrl-C leaves the run to be resumed, and so does Ctrl-D."
            if options.on_interrupt == "park"
            else "\nCtrl-C ends the run, Ctrl-D leaves it for later.",
            "dim",
        )
    try:
        for one in left:
            _ask(store, run.id, one)
            answered += 1
    except EOFError:
        output.note("")
    except KeyboardInterrupt:
        output.note("")
        if options.on_interrupt == "cancel":
            _append(partial(store.cancel_sync, run.id, interruption.name))
        return False
    return answered > 0


def _ask(store: Store, run_id: str, one: dict[str, Any]) -> None:
    """Ask one thing until it is answered. Raises EOFError, KeyboardInterrupt."""
    if one["kind"] == "question":
        _wrapped("\n" + one["reason"])
        text = ""
        while not says_something(text):
            text = _read("> ")
        _append(partial(store.answer_sync, run_id, text, call=one["call_id"]))
        return None
    _wrapped(
        f"\nIt is not known whether {one['name']} took place ({why(one)}):"
        if one["kind"] == "doubt"
        else f"\n{one['name']} waits for your approval ({why(one)}):"
    )
    _wrapped("\n".join(fields(one["arguments"])))
    if one["kind"] == "doubt":
        return _settle(store, run_id, one)
    while True:
        word = _read("Allow it? [y/n, Ctrl-D: later] ").strip().lower()
        if word in ("y", "yes"):
            return _append(partial(store.approve_sync, run_id, one["call_id"], digest=one["digest"]))
        if word in ("n", "no"):
            reason = _read("Why not? The model is told: ")
            return _append(partial(store.deny_sync, run_id, one["call_id"], reason=reason if says_something(reason) else "the user said no"))


def _settle(store: Store, run_id: str, one: dict[str, Any]) -> None:
    """Ask what became of a call until it is said."""
    verdicts: dict[str, Verdict] = {"y": "happened", "n": "did_not_happen", "?": "tell_model"}
    word = ""
    _wrapped("Did it take place? With ? the model is told that nobody knows.")
    while word not in verdicts:
        word = _read("[y/n/?] ").strip().lower()[:1]
    _append(partial(store.resolve_sync, run_id, one["call_id"], verdict=verdicts[word]))


def _append(decide: Callable[[], object]) -> None:
    """A decision that somebody else took first is theirs, and the run goes on all the same."""
    try:
        decide()
    except NotAsked as error:
        output.note(one_line(str(error)))


def _wrapped(text: str, style: str = "") -> None:
    page = Page(sys.stderr)
    for line in page.paragraphs(text):
        output.note(page.paint(line, style))


def _read(prompt: str) -> str:
    """A line from the terminal; the prompt goes to standard error, where it is no result."""
    output.prompt(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")
