"""Replay and audit of runs in a store: the pure functions, fed from the log.

With an agent its code is consulted again, and what it says is compared with what it said then; no tool runs, no model is asked, no clock is read.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from refold.events import facts as f
from refold.events.codec import Record, Unreadable, read_line
from refold.events.lineage import history
from refold.events.storage import PayloadMissing
from refold.events.words import RunId
from refold.fsm import audit as audits
from refold.fsm.compaction import choosable
from refold.fsm.machine import Illegal, empty, step
from refold.fsm.replay import Ask, Derived, Divergence, Stored, replay_rows
from refold.projections.evidence import cited
from refold.projections.run import Run
from refold.projections.transcript import Transcript
from refold.runtime import compacting, selecting
from refold.runtime.agent import Agent
from refold.runtime.consults import Consults
from refold.runtime.forking import Elsewhere
from refold.runtime.journal import UnknownRun, loader
from refold.runtime.show import inherited_if_there
from refold.runtime.store import Store


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one run. `records` is the log as it was derived."""

    run_id: str
    events: int
    divergence: Divergence | None
    records: tuple[Record, ...]

    @property
    def identical(self) -> bool:
        return self.divergence is None

    def as_json(self) -> dict[str, Any]:
        """The documented shape."""
        divergence = msgspec.to_builtins(self.divergence) if self.divergence is not None else None
        return {"run_id": self.run_id, "events": self.events, "identical": self.identical, "divergence": divergence}


def replay(store: Store, run_id: str, agent: Agent | None = None) -> Replayed:
    """Derive a run again from its input facts and compare. Raises UnknownRun, StoreUnavailable, UnsupportedEngine."""
    again = asking_again(store, run_id, agent) if agent is not None else None
    derived: Derived = replay_rows(run_id, stored_rows(store, run_id), loader(store.log, run_id, many=True), again)
    return Replayed(run_id=run_id, events=derived.events, divergence=derived.divergence, records=derived.records)


def audit(store: Store, run_id: str) -> audits.Audit:
    """Chain, legality and every invariant of one run, without the code of its agent. Raises UnknownRun, StoreUnavailable."""
    audited = audits.audit_rows(run_id, stored_rows(store, run_id), loader(store.log, run_id, many=True))
    misfiled = _misfiled(store, run_id)
    if misfiled is None or (audited.chain.broken_at is not None and audited.chain.broken_at <= misfiled[0]):
        return audited
    position, why = misfiled
    return msgspec.structs.replace(audited, ok=False, chain=audits.Verdict(ok=False, broken_at=position, why=why))


def _misfiled(store: Store, run_id: str) -> tuple[int, str] | None:
    """The first row whose columns say something else than the record in it; what the bytes themselves are worth is the audit's business."""
    own = False
    """A fork that was imported holds its parents' records too, in front of its own."""
    for row in store.log.scan(run_id):
        try:
            line = read_line(row.state)
        except Unreadable:
            continue
        own = own or line.run == run_id
        if (line.position, line.type) != (row.position, row.type) or (own and line.run != run_id):
            return row.position, f"the row says {row.type} at {row.position} of {run_id}, the record in it {line.type} at {line.position} of {line.run}"
    return None


def stored_rows(store: Store, run_id: str) -> Iterator[Stored]:
    """Positions and bytes of a run that exists."""
    if store.log.head(run_id) is None:
        raise UnknownRun(f"there is no run {run_id} in this store")
    return ((row.position, row.state) for row in history(store.log, run_id))


def asking_again(store: Store, run_id: str, agent: Agent) -> Ask:
    """The inputs of a batch with the verdicts that the agent's code gives today, and what ours makes of what was said."""
    said = _said(store, run_id)
    next(said)
    earlier: dict[str, Elsewhere] = {}

    def ask(run: Run, given: Sequence[f.Input]) -> Sequence[f.Input]:
        transcript = said.send(run.position)
        consults = agent.consults(run.setup)
        if run.forked_from is not None:
            consults = consults.of_fork(earlier.setdefault(run.id, Elsewhere(store.log, run.id)).performed)
        return [_again(agent, consults, run, transcript, fact, given) for fact in given]

    return ask


def _said(store: Store, run_id: str) -> Generator[Transcript, int, None]:
    """What was said up to the positions that are sent, in ascending order; a log that cannot be followed says no more, and the replay says why."""
    run, transcript = empty(RunId(run_id)), Transcript()
    upto = yield transcript
    with suppress(Illegal, Unreadable, PayloadMissing):
        for record in store.read(run_id):
            while record.position > upto:
                upto = yield transcript
            before, run = run, step(run, record)
            if isinstance(record.fact, f.RunContinued):
                transcript = inherited_if_there(store, record.fact)
            transcript.take(before, record.fact, run)
    while True:
        yield transcript


def _again(agent: Agent, consults: Consults, run: Run, transcript: Transcript, fact: f.Input, given: Sequence[f.Input]) -> f.Input:
    match fact:
        case f.ContextChosen():
            return selecting.choice(run, transcript, choosable(run), *consults.context_builder)
        case f.ContextCompacted() if run.past.asked is not None and run.past.asked.author == "extractive":
            return compacting.extracted(run.past.asked, run, transcript)
        case f.RunStarted():
            return msgspec.structs.replace(fact, setup=_declared(agent, fact.setup))
        case f.CallsChecked():
            output = next(made for made in given if isinstance(made, f.ToolCallsRequested))
            return consults.calls(output)
        case f.AnswerChecked():
            claim = next(made for made in given if isinstance(made, f.FinalProposed))
            return consults.answer(run, claim, cited(run, claim))
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
