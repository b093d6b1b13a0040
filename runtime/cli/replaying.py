"""`replay`: runs of the store or exported files derived again, by themselves or under other settings; many runs by several processes.

Apart from the other checks, because only this one asks what would have been.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial
from typing import Any, Final

import msgspec

from refold.events import money
from refold.events.lineage import OtherHistory
from refold.events.storage import StoreUnavailable
from refold.fsm.divergence import Divergence
from refold.fsm.whatif import WhatIf
from refold.projections.revisions import UnsupportedEngine
from refold.runtime import replay as proofs, settings
from refold.runtime.agent import Agent
from refold.runtime.cli import diverging, lookup, options as o, output
from refold.runtime.cli.exits import COMPLETED, FOUND, USAGE, Refused
from refold.runtime.cli.naming import exported, some_named
from refold.runtime.cli.render import Page, compact, counted, one_line, thousands, width_of
from refold.runtime.cli.several import Check, Named, Told, each, every_named, store_of, there
from refold.runtime.store import Store


def replay(options: o.Replay) -> int:
    """Derive runs again and compare, or say what would have been decided otherwise."""
    some_named(options.runs, options.all, "replay")
    agent, changes = _agent(options), _changes(options)
    page, found = Page(), list[Told]()
    with ExitStack() as stack:
        store = store_of(options, stack)
        named = every_named(options, store)
        for told in each(partial(_told, store, agent, changes), partial(_ready, options), options, named, store):
            found.append(told)
            if not options.json and "error" not in told:
                output.line("\n".join(_lines(told, page, whole=len(named) == 1)))
    if options.json:
        output.document(found)
    elif len(found) > 1:
        output.line("\n".join(page.paragraphs(_total(found))))
    unknown = [told for told in found if "error" in told]
    for told in unknown:
        output.complain(f"run {told['run_id']} cannot be replayed: {told['error']}")
    if not all(_passes(told, options) for told in found if "error" not in told):
        return FOUND
    return USAGE if unknown else COMPLETED


def _passes(told: Told, options: o.Replay) -> bool:
    """Whether the exit code is 0 for a run: what a setting changes was asked for, and is no finding unless that is said; a log that does not follow from itself always is one."""
    unaffected = not told.get("changes") and told.get("verdict", "unaffected") == "unaffected"
    return told["identical"] and (unaffected or not options.expect_identical)


# -- one run, here or in another process


def _agent(options: o.Replay) -> Agent | None:
    """The agent that is to be asked. Raises Refused."""
    with redirect_stdout(sys.stderr):
        return lookup.agent_named(options.agent) if options.agent else None


def _changes(options: o.Replay) -> Mapping[str, Any] | None:
    """The settings that are to be others. Raises WrongSetting."""
    return settings.changes_of(options.settings) if options.settings else None


def _ready(options: o.Replay, store: Store | None) -> Check:
    """What one of several processes does."""
    return partial(_told, store, _agent(options), _changes(options))


def _told(store: Store | None, agent: Agent | None, changes: Mapping[str, Any] | None, named: Named) -> Told:
    """One run in the documented shape, whatever is wrong with it. Raises what is wrong with the store, or Refused for a file that cannot be read."""
    recording = proofs.in_file(exported(named.name)) if named.file else proofs.in_store(there(store), named.name)
    try:
        with redirect_stdout(sys.stderr):  # what the agent's code prints is no result
            told = proofs.replayed(recording, agent, changes).as_json()
    except UnsupportedEngine as error:  # nobody knows what would follow, which is not the same as another thing
        told = {"run_id": recording.run_id, "events": None, "identical": None, "divergence": None, "error": str(error)}
        if agent is not None or changes is not None:
            told |= msgspec.to_builtins(WhatIf(verdict="cannot be told", horizon=0, evidence=str(error))) | {"saved_own": None}
    except OtherHistory as error:
        told = _unfit(recording, "", f"environment: {error}", asked=agent is not None or changes is not None)
    except (StoreUnavailable, Refused):
        raise
    except Exception as error:  # a record that no version of refold wrote is the fault of the record
        if os.environ.get("REFOLD_DEBUG"):
            raise
        why = f"environment: it is no record of a run that can be followed ({type(error).__name__}: {error})"
        told = _unfit(recording, "", why, asked=agent is not None or changes is not None)
    return {**told, "file": named.name} if named.file else told


def _unfit(recording: proofs.Recording, field: str, cause: str, *, asked: bool) -> Told:
    """A run that cannot be derived at all, in the same shape; with what nobody can say of it where that was `asked`."""
    events = 0
    with suppress(OtherHistory):
        events = sum(1 for _ in recording.rows())
    divergence = Divergence(position=1, field=field, recorded=None, derived=None, cause=one_line(cause, 400), cause_class="environment")
    told = WhatIf(verdict="cannot be told", horizon=0, evidence=cause.partition(": ")[2]) if asked else None
    return proofs.Replayed(run_id=recording.run_id, events=events, divergence=divergence, what_if=told).as_json()


# -- in words


def _lines(told: Told, page: Page, *, whole: bool) -> list[str]:
    """A run in a line, and everything that is to be said of it where it is the `whole` answer."""
    divergence, changes = told["divergence"], told.get("changes", [])
    pieces = [(f"run {one_line(told['run_id'])}  ", ""), *_summary(told)]
    first = "".join(page.paint(text, style) for text, style in pieces)
    if whole:
        return [first, *(diverging.lines(msgspec.convert(divergence, Divergence), page) if divergence is not None else ()), *_changed(told, page)]
    why = changes[0]["because"] if changes else divergence["cause"] if divergence is not None else ""
    room = page.room(sum(width_of(text) for text, _ in pieces) + 2)
    return [f"{first}: {one_line(why, room)}" if why and room > ROOM_MIN else first]


ROOM_MIN: Final = 8
"""Columns that are worth beginning to say why."""


def _summary(told: Told) -> Iterator[tuple[str, str]]:
    """What is said of a run in a few words, each with its style."""
    if "verdict" in told:
        yield told["verdict"], {"unaffected": "green", "cannot be told": "red"}.get(told["verdict"], "yellow")
        if told["changes"]:
            yield f" at position {told['changes'][0]['position']}{_saving(told['saved'])}", ""
        if told["divergence"] is not None:
            yield "; ", ""
    elif told["divergence"] is None:
        yield "identical", "green"
        yield f"  {counted(told['events'], 'record')}", ""
    if told["divergence"] is not None:
        yield "diverges", "red"
        yield f" at position {told['divergence']['position']}", ""


def _changed(told: Told, page: Page) -> list[str]:
    """Every change with its reason, how far the recording proves them, and what that leans on."""
    lines = []
    for change in told.get("changes", ()):
        place = f"{change['position']}" + (f", {change['call_id']}" if change["call_id"] else "")
        derived = "?" if change["verdict"] == "cannot be told" else _value(change["derived"])
        values = f"{_value(change['recorded'])} -> {derived}"
        lines += page.paragraphs(f"{place}: {change['field'].removeprefix('data.')} {values}: {one_line(change['because'], 400)}", "    ")
    if told.get("evidence"):
        lines += page.paragraphs(f"evidence: {one_line(told['evidence'], 400)}", "    ")
    for assumed in told.get("assumed", ()):
        lines += page.paragraphs(f"assumed: {one_line(assumed)}", "    ")
    return lines


def _value(value: Any) -> str:
    """A value of a change, in a few words."""
    return "nothing" if value is None else one_line(value if isinstance(value, str) else compact(value), 60)


def _saving(saved: Told | None) -> str:
    return f" (saving {_sums([saved])})" if saved else ""


def _saving_in_all(found: Sequence[Told]) -> str:
    """What runs save together: each counts with what it recorded itself, since its parents used what it inherits."""
    inherited = any(told["saved_own"] != told["saved"] for told in found)
    return f" (saving {_sums([told['saved_own'] for told in found])}{', without what forks inherited' * inherited})" if found else ""


def _sums(saved: Sequence[Told]) -> str:
    """What was saved, summed exactly."""
    usd = "0"
    for one in saved:
        usd = money.add(usd, one["cost_usd"])
    tokens = sum(one["tokens"] for one in saved)
    return f"{counted(sum(one['turns'] for one in saved), 'turn')}, {counted(tokens, 'token')}" + (f", {usd} USD" if usd != "0" else "")


def _total(found: Sequence[Told]) -> str:
    """The last line: how many of each kind."""
    verdicts = Counter(told.get("verdict") or ("cannot be told" if "error" in told else "identical" if told["identical"] else "diverge") for told in found)
    saving = _saving_in_all([told for told in found if told.get("saved")])
    pieces = [f"{thousands(number)} {verdict}" + (saving if verdict == "would stop earlier" else "") for verdict, number in verdicts.most_common()]
    parted = sum(told["identical"] is False for told in found if "verdict" in told)
    return f"{counted(len(found), 'run')}: {', '.join(pieces)}" + (f"; {thousands(parted)} diverge" if parted else "")
