"""`replay`: runs of the store or exported files derived again, by themselves or under other settings; many runs by several processes.

Apart from the other checks, because only this one asks what would have been, and is worth a pool of processes.
"""

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from refold.events import money
from refold.events.lineage import OtherHistory
from refold.events.storage import StoreMissing, StoreUnavailable
from refold.fsm.divergence import Divergence
from refold.fsm.whatif import WhatIf
from refold.projections.revisions import UnsupportedEngine
from refold.runtime import replay as proofs, settings
from refold.runtime.agent import Agent
from refold.runtime.cli import diverging, lookup, options as o, output
from refold.runtime.cli.exits import COMPLETED, FAILED, FOUND, USAGE, Refused, explain
from refold.runtime.cli.naming import chosen, exported, is_file, some_named
from refold.runtime.cli.render import Page, counted, one_line, thousands, width_of
from refold.runtime.cli.stores import opened
from refold.runtime.store import Store, open_store

POOLED_MIN: Final = 50_000
"""Records that are worth starting other processes for, where nobody says how many there are to be."""
CHUNKS: Final = 8
"""Portions for each process: few enough to cost nothing, and enough that none is left with much more than the others."""

Told = dict[str, Any]
"""One run in the documented shape."""


class Wanted(NamedTuple):
    """What is asked of every run. All of it can be sent to another process."""

    store: str
    agent: str | None
    changes: Mapping[str, Any] | None


class Named(NamedTuple):
    """A run of the store by its id, or an exported file by its name."""

    name: str
    file: bool


def replay(options: o.Replay) -> int:
    """Derive runs again and compare, or say what would have been decided otherwise."""
    some_named(options.runs, options.all, "replay")
    wanted = Wanted(options.store, options.agent, settings.changes_of(options.settings) if options.settings else None)
    agent = _agent(options.agent)
    page, found = Page(), list[Told]()
    with ExitStack() as stack:
        store = _store(options, stack)
        named = _named(options, store)
        for told in _all_told(wanted, named, _jobs(options, named, store), store, agent):
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


# -- what is named


def _store(options: o.Replay, stack: ExitStack) -> Store | None:
    """The store, where a run of it is named. With --all there need be none."""
    if not options.all and all(map(is_file, options.runs)):
        return None
    try:
        return stack.enter_context(opened(options))
    except StoreMissing:
        if any(not is_file(name) for name in options.runs):
            raise
        return None


def _named(options: o.Replay, store: Store | None) -> list[Named]:
    """Everything that is named, each once, in that order; the other runs of the store behind it."""
    made = [Named(name, file=True) if is_file(name) else Named(chosen(_there(store), [name], False)[0], file=False) for name in options.runs]
    return list(dict.fromkeys([*made, *(Named(run_id, file=False) for run_id in (store.runs() if options.all and store is not None else ()))]))


def _there(store: Store | None) -> Store:
    assert store is not None, "it is opened where a run is named"
    return store


def _jobs(options: o.Replay, named: Sequence[Named], store: Store | None) -> int:
    """How many processes there are to be; one is this process alone."""
    if len(named) < 2 or options.store.startswith("memory:") or Named("-", file=True) in named:
        return 1
    if options.jobs is not None:
        return min(options.jobs, len(named))
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(named)) if _is_much(named, store) else 1


def _is_much(named: Sequence[Named], store: Store | None) -> bool:
    """Whether the runs are long enough, together, that other processes save time."""
    records = 0
    for name, file in named:
        if not file:
            head = _there(store).log.head(name)
            records += head[0] if head is not None else 0
        if records >= POOLED_MIN:
            return True
    return False


# -- one run, here or in another process


def _agent(spec: str | None) -> Agent | None:
    """The agent that is to be asked. Raises Refused."""
    with redirect_stdout(sys.stderr):
        return lookup.agent_named(spec) if spec else None


def _all_told(wanted: Wanted, named: Sequence[Named], jobs: int, store: Store | None, agent: Agent | None) -> Iterator[Told]:
    """Every run, in order."""
    if jobs == 1:
        return map(partial(_told, store, agent, wanted.changes), named)
    return _by_others(wanted, named, jobs)


def _told(store: Store | None, agent: Agent | None, changes: Mapping[str, Any] | None, named: Named) -> Told:
    """One run in the documented shape, whatever is wrong with it. Raises what is wrong with the store, or Refused for a file that cannot be read."""
    recording = proofs.in_file(exported(named.name)) if named.file else proofs.in_store(_there(store), named.name)
    try:
        with redirect_stdout(sys.stderr):  # what the agent's code prints is no result
            told = proofs.replayed(recording, agent, changes).as_json()
    except UnsupportedEngine as error:  # nobody knows what would follow, which is not the same as another thing
        told = {"run_id": recording.run_id, "events": None, "identical": None, "divergence": None, "error": str(error)}
        if agent is not None or changes is not None:
            told |= msgspec.to_builtins(WhatIf(verdict="cannot be told", horizon=0, evidence=str(error)))
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


_here: list[partial[Told]] = []
"""What a process of the pool was begun with."""


def _begin(wanted: Wanted) -> None:
    """The beginning of a process of the pool, which has a store and an agent of its own; it is ended by the one that began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = open_store(wanted.store, create=False) if wanted.store else None
    _here.append(partial(_told, store, _agent(wanted.agent), wanted.changes))


def _perform(named: Named) -> Told | tuple[int, str]:
    """One run in a process of the pool; what ends the command comes back as its exit code and line, since not every exception can be sent."""
    try:
        return _here[0](named)
    except Exception as error:  # noqa: BLE001 - whatever it is, the command ends with one line
        return explain(error)


def _by_others(wanted: Wanted, named: Sequence[Named], jobs: int) -> Iterator[Told]:
    """Every run by a pool of processes, in order. Raises Refused."""
    if all(file for _, file in named):
        wanted = wanted._replace(store="")
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(wanted,))
    try:
        with _uninterrupted():
            outcomes = pool.map(_perform, named, chunksize=max(1, len(named) // (jobs * CHUNKS)))
        for outcome in outcomes:
            if isinstance(outcome, tuple):
                raise Refused(outcome[1], outcome[0])
            yield outcome
    except BrokenProcessPool:
        raise Refused("a process that replays died; give it more memory, or go on in this one with --jobs 1", FAILED) from None
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C, from their first moment on: this one does, and ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# -- in words


def _lines(told: Told, page: Page, *, whole: bool) -> list[str]:
    """A run in a line, and everything that is to be said of it where it is the `whole` answer."""
    divergence, changes = told["divergence"], told.get("changes", [])
    pieces = [(f"run {one_line(told['run_id'])}  ", ""), *_summary(told)]
    first = "".join(page.paint(text, style) for text, style in pieces)
    if whole:
        return [first, *(diverging.lines(msgspec.convert(divergence, Divergence), page) if divergence is not None else ()), *_changes(told, page)]
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


def _changes(told: Told, page: Page) -> list[str]:
    """Every change with its reason, how far the recording proves them, and what that leans on."""
    lines = []
    for change in told.get("changes", ()):
        place = f"{change['position']}" + (f", {change['call_id']}" if change["call_id"] else "")
        derived = "?" if change["verdict"] == "cannot be told" else one_line(str(change["derived"]), 60)
        values = f"{one_line(str(change['recorded']), 60)} -> {derived}"
        lines += page.paragraphs(f"{place}: {change['field'].removeprefix('data.')} {values}: {one_line(change['because'], 400)}", "    ")
    if told.get("evidence"):
        lines += page.paragraphs(f"evidence: {one_line(told['evidence'], 400)}", "    ")
    for assumed in told.get("assumed", ()):
        lines += page.paragraphs(f"assuming that {one_line(assumed)}", "    ")
    return lines


def _saving(saved: Told | None) -> str:
    return f" (saving {_sums([saved])})" if saved else ""


def _sums(saved: Sequence[Told]) -> str:
    """What was saved, summed exactly."""
    usd = "0"
    for one in saved:
        usd = money.add(usd, one["cost_usd"])
    tokens = sum(one["tokens"] for one in saved)
    return f"{counted(sum(one['turns'] for one in saved), 'turn')}, {counted(tokens, 'token')}, {usd} USD"


def _total(found: Sequence[Told]) -> str:
    """The last line: how many of each kind."""
    verdicts = Counter(told.get("verdict") or ("cannot be told" if "error" in told else "identical" if told["identical"] else "diverge") for told in found)
    saved = [told["saved"] for told in found if told.get("saved")]
    pieces = []
    for verdict, number in verdicts.most_common():
        pieces.append(f"{thousands(number)} {verdict}" + (f" (saving {_sums(saved)})" if saved and verdict == "would stop earlier" else ""))
    parted = sum(told["identical"] is False for told in found if "verdict" in told)
    return f"{counted(len(found), 'run')}: {', '.join(pieces)}" + (f"; {thousands(parted)} diverge" if parted else "")
