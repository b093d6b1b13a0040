"""Replay and audit of runs in a store or in an exported file: the pure functions, fed from where the records are.

With an agent its code is consulted again, and what it says is compared with what it said then; no tool runs, no model is asked, no clock is read.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from refold.events import facts as f, money
from refold.events.codec import Unreadable, read, read_line
from refold.events.payloads import Load
from refold.events.words import Digest, RunId
from refold.fsm import causes
from refold.fsm.compaction import choosable
from refold.fsm.divergence import Difference, Divergence, diverges
from refold.fsm.machine import Illegal, empty, step
from refold.fsm.otherwise import Verdict
from refold.fsm.replay import Ask, Stored, replay_rows
from refold.fsm.whatif import Change, Saved, WhatIf, cut_short, used_between, what_if
from refold.projections import forking
from refold.projections.evidence import cited
from refold.projections.run import Run
from refold.projections.transcript import Transcript
from refold.runtime import compacting, selecting, settings
from refold.runtime.agent import Agent
from refold.runtime.auditing import stored_rows
from refold.runtime.consults import Consults
from refold.runtime.forking import Elsewhere
from refold.runtime.journal import UnknownRun, inherited_if_there, loader, not_there
from refold.runtime.store import Store
from refold.runtime.transfer import Export


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one run; `what_if` is what would have been decided otherwise where something was changed.

    `saved_own` is what of the saving the run recorded itself: what a fork inherits was used once, by its parents.
    """

    run_id: str
    events: int
    divergence: Divergence | None
    what_if: WhatIf | None = None
    saved_own: Saved | None = None

    @property
    def identical(self) -> bool:
        return self.divergence is None

    @property
    def changes(self) -> tuple[Change, ...]:
        """What would have been decided otherwise; nothing where nothing was changed."""
        return self.what_if.changes if self.what_if is not None else ()

    @property
    def verdict(self) -> Verdict:
        """What the changes come to."""
        return self.what_if.verdict if self.what_if is not None else "unaffected"

    def as_json(self) -> dict[str, Any]:
        """The documented shape."""
        divergence = msgspec.to_builtins(self.divergence) if self.divergence is not None else None
        told = {"run_id": self.run_id, "events": self.events, "identical": self.identical, "divergence": divergence}
        if self.what_if is not None:
            told |= msgspec.to_builtins(self.what_if) | {"saved_own": msgspec.to_builtins(self.saved_own)}
        return told


@dataclass(frozen=True)
class Recording:
    """A run as it is recorded somewhere: its rows, as often as they are wanted, the payloads, and what a continuation goes on from."""

    run_id: str
    rows: Callable[[], Iterable[Stored]]
    load: Load
    inherited: Callable[[f.RunContinued], Transcript]
    elsewhere: Callable[[str], Callable[[Digest, str], str]] = lambda _: lambda _signature, _business: ""
    """Where runs that a fork inherits from did later what it may not repeat unasked, in words, by signature."""
    damage: tuple[int, str] | None = None
    """What is wrong beside the rows, and where."""


def in_store(store: Store, run_id: str) -> Recording:
    """A run of a store. Raises UnknownRun."""
    if store.log.head(run_id) is None:
        raise UnknownRun(f"there is no run {run_id} in this store")
    return Recording(
        run_id,
        lambda: stored_rows(store, run_id),
        loader(store.log, run_id, many=True),
        lambda begun: inherited_if_there(store.log, begun),
        lambda fork: Elsewhere(store.log, fork).performed,
    )


def in_file(export: Export) -> Recording:
    """A run of an exported file, however damaged. What a continuation goes on from, and what a fork's parents did later, is elsewhere."""
    damage = export.damage if export.rows else (1, "the file holds no record of a run")
    return Recording(export.run_id or export.name, lambda: export.rows, export.load, not_there, damage=damage)


def replay(store: Store, run_id: str, agent: Agent | None = None, changes: Mapping[str, Any] | None = None) -> Replayed:
    """Derive a run again from its input facts and compare.

    With `changes`, such as `{"budgets.max_turns": 3}`, or an agent it is also told what would have been decided otherwise; then only a replay without changes asks the
    agent for the divergence. Raises UnknownRun, StoreUnavailable, UnsupportedEngine, WrongSetting.
    """
    return replayed(in_store(store, run_id), agent, settings.checked(changes) if changes is not None else None)


def replayed(recording: Recording, agent: Agent | None = None, changes: Mapping[str, Any] | None = None) -> Replayed:
    """The same of a run wherever it is recorded, with settings that were checked. Raises StoreUnavailable, UnsupportedEngine."""
    run_id, load = recording.run_id, recording.load

    def ask() -> Ask | None:
        return asking_again(recording, agent) if agent is not None else None

    derived = replay_rows(run_id, recording.rows(), load, ask() if changes is None else None, keep=False)
    divergence, damage = derived.divergence, recording.damage
    if damage is not None and (divergence is None or divergence.position > damage[0]):
        divergence = diverges(damage[0], Difference("bytes", damage[1], None), causes.changed("the file is damaged"))
    told = what_if(run_id, recording.rows(), load, changes or {}, ask()) if changes is not None or agent is not None else None
    if told is not None and damage is not None:
        told = cut_short(told, damage[0] - 1, damage[1])
    saved = told.saved if told is not None else None
    return Replayed(run_id=run_id, events=derived.events, divergence=divergence, what_if=told, saved_own=_own_share(recording, saved) if saved else None)


# -- what forks inherit


def _own_share(recording: Recording, saved: Saved) -> Saved:
    """What of a saving a run recorded itself: no more than it used since it was split off."""
    _, first = next(iter(recording.rows()))
    if read_line(first).run == recording.run_id:
        return saved
    own = _own_use(recording)
    return Saved(turns=min(saved.turns, own.turns), tokens=min(saved.tokens, own.tokens), cost_usd=min(saved.cost_usd, own.cost_usd, key=money.exact))


def _own_use(recording: Recording) -> Saved:
    """What a fork used behind the place where it was split off, as far as its log can be followed."""
    run = split = empty(RunId(recording.run_id))
    with suppress(Illegal, Unreadable, LookupError):
        for _, stored in recording.rows():
            record = read(stored, recording.load)
            run = step(run, record)
            if isinstance(record.fact, f.RunForked):
                split = forking.unasked(run) if run.asked == "inherited" else run
    return used_between(split, run)


# -- today's code of the agent


def asking_again(recording: Recording, agent: Agent) -> Ask:
    """The inputs of a batch with the verdicts that the agent's code gives today, and what ours makes of what was said."""
    said = _said(recording)
    next(said)
    earlier: dict[str, Callable[[Digest, str], str]] = {}

    def ask(run: Run, given: Sequence[f.Input]) -> Sequence[f.Input]:
        transcript = said.send(run.position)
        consults = agent.consults(run.setup)
        if run.forked_from is not None:
            consults = consults.of_fork(earlier.setdefault(run.id, recording.elsewhere(run.id)))
        return [_again(agent, consults, run, transcript, fact, given) for fact in given]

    return ask


def _said(recording: Recording) -> Generator[Transcript, int, None]:
    """What was said up to the positions that are sent, in ascending order; a log that cannot be followed says no more, and the replay says why."""
    run, transcript = empty(RunId(recording.run_id)), Transcript()
    upto = yield transcript
    with suppress(Illegal, Unreadable, LookupError):
        for position, stored in recording.rows():
            while position > upto:
                upto = yield transcript
            record = read(stored, recording.load)
            before, run = run, step(run, record)
            if isinstance(record.fact, f.RunContinued):
                transcript = recording.inherited(record.fact)
            transcript.take(before, record.fact, run)
    while True:
        yield transcript


def _again(agent: Agent, consults: Consults, run: Run, transcript: Transcript, fact: f.Input, given: Sequence[f.Input]) -> f.Input:
    match fact:
        case f.ContextChosen():
            return selecting.choice(run, transcript, choosable(run), *consults.context_builder)
        case f.ContextCompacted() if run.past.asked is not None and run.past.asked.author == "extractive":
            return compacting.extracted(run.past.asked, run, transcript)
        case f.RunStarted() | f.RunContinued():
            return msgspec.structs.replace(fact, setup=_declared(agent, fact.setup))
        case f.CallsChecked():
            output = next(made for made in given if isinstance(made, f.ToolCallsRequested))
            checked: f.CallsChecked = consults.redaction.verdict(consults.calls(output))
            return checked
        case f.AnswerChecked():
            claim = next(made for made in given if isinstance(made, f.FinalProposed))
            judged: f.AnswerChecked = consults.redaction.verdict(consults.answer(run, claim, cited(run, claim)))
            return judged
        case _:
            return fact


def _declared(agent: Agent, setup: f.Setup) -> f.Setup:
    """What the run was begun with, as the agent would declare tools, instructions and validators today; its settings stay the run's own."""
    today = agent.declared_in(setup.context)
    return msgspec.structs.replace(
        setup,
        instructions=today.instructions,
        tools=today.tools,
        validators=today.validators,
        answer_schema=today.answer_schema,
        context_builder=today.context_builder,
    )
