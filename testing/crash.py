"""Crash a run everywhere, resume it, and hold it against a twin that nothing happened to.

Apart from the faults, which only break things; here is what must be true afterwards. For agents with a scripted model, whose twin says the same.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.lineage import history
from refold.events.storage import Log, StoreUnavailable
from refold.events.words import RunId
from refold.projections.messages import Message
from refold.projections.run import Call, Run, Tokens
from refold.runtime.agent import Agent
from refold.runtime.result import Result
from refold.runtime.store import Store
from refold.testing.checks import breaches_of, transcript_of
from refold.testing.faults import Died, Fate, Fault, FaultyLog, Place, mortal

RUN: Final = RunId("crashed")
PROCESSES_MAX: Final = 20
"""How often a run is driven on before it counts as stuck."""
FATES: Final[tuple[tuple[Place, Fault], ...]] = (
    ("append", "death"),
    ("appended", "death"),
    ("append", "unavailable"),
    ("appended", "unavailable"),
    ("append", "conflict"),
    ("request", "death"),
    ("part", "death"),
    ("answered", "death"),
    ("tool", "death"),
    ("acted", "death"),
    ("validator", "death"),
    ("policy", "death"),
)


def nobody(store: Store, run_id: RunId, call: Call) -> None:
    """The human of a run that asks none."""
    raise AssertionError(f"run {run_id} waits for a human at {call.id}, and the trial has none")


@dataclass(frozen=True)
class Trial:
    """A run to be crashed, with a world of its own. `agent` makes the agent anew, as every process does; `human` settles one call that waits.

    With `fork_of`, a run of the log and a place in it, it is begun as a fork.
    """

    agent: Callable[[], Agent]
    goal: str = "the goal"
    human: Callable[[Store, RunId, Call], None] = nobody
    fork_of: tuple[RunId, int] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run came to, without what depends on time: the twins' must be equal."""

    status: str
    reason: str | None
    answer: str | None
    reported: Tokens
    estimated: Tokens
    cost_usd: str
    turns: int
    tool_calls: int
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Survived:
    """A run that met its fate and came to an end all the same; `stored` and `heard` are what was durable and told to a listener when it did."""

    fate: Fate
    outcome: Outcome
    records: tuple[Record, ...]
    stored: tuple[bytes, ...]
    heard: tuple[bytes, ...]

    @property
    def effects(self) -> dict[str, str]:
        """What the tool of every call that was checked declares about its effect."""
        return {check.call: check.effect for record in self.records if isinstance(record.fact, f.CallsChecked) for check in record.fact.checks}


def fates(place: Place, fault: Fault) -> Iterator[Fate]:
    """The first time, the second, ... until one does not come, which the caller sees by then."""
    nth, came = 1, True
    while came:
        fate = Fate(place, nth, fault)
        yield fate
        nth, came = nth + 1, fate.came


def survive(trial: Trial, log: Log, fate: Fate | None = None, *, own_loop: bool = False) -> Survived:
    """Drive a run into its fate, and on in fresh processes until it ends."""
    fate = fate or Fate()
    heard: list[bytes] = []
    stored: tuple[bytes, ...] = ()
    met, fault = fate, None
    for _ in range(PROCESSES_MAX):
        try:
            result = _process(trial, FaultyLog(log, met), met, heard, own_loop)
        except (Died, StoreUnavailable) as error:
            if fault is not None:
                raise AssertionError(f"{fate!r} struck twice") from error
            stored, fault = tuple(row.state for row in history(log, RUN)), error
            met = Fate()
            continue
        if result.state == "done":
            return _survived(fate, result, stored, heard)
    raise AssertionError(f"{fate!r}: the run did not end in {PROCESSES_MAX} processes; it is in {result.state}, {result.status}")


def _process(trial: Trial, log: Log, fate: Fate, heard: list[bytes], own_loop: bool) -> Result:
    """One process: begin the run or take it up, and settle what waits for a human."""

    def hear(shown: object) -> None:
        if isinstance(shown, Record):
            heard.append(shown.stored)

    store, agent = Store(log, "memory:"), mortal(trial.agent(), fate)
    try:
        if log.head(RUN) is not None:
            result = asyncio.run(agent.resume(RUN, store=store, heard=hear, own_loop=own_loop))
        elif trial.fork_of is not None:
            result = asyncio.run(agent.fork(*trial.fork_of, store=store, new_id=RUN, heard=hear, own_loop=own_loop))
        else:
            result = asyncio.run(agent.run(trial.goal, store=store, run_id=RUN, heard=hear, own_loop=own_loop))
    finally:
        log.close()  # the process is no more, and what it held with it
    for call in result.run.calls if result.run.waits else ():
        if call.phase in ("waiting", "doubt"):
            trial.human(store, RUN, call)
    return result


def _survived(fate: Fate, result: Result, stored: tuple[bytes, ...], heard: Sequence[bytes]) -> Survived:
    records = result.records
    run: Run = result.run
    outcome = Outcome(
        status=result.status,
        reason=result.reason,
        answer=result.answer,
        reported=run.spent.reported,
        estimated=run.spent.estimated,
        cost_usd=run.spent.cost_usd,
        turns=run.turn,
        tool_calls=run.spent.tool_calls,
        messages=tuple(transcript_of(records)),
    )
    return Survived(fate=fate, outcome=outcome, records=tuple(records), stored=stored, heard=tuple(heard))


def losses(survived: Survived, twin: Outcome) -> Iterator[str]:
    """What a crash changed that it must not, a line each. A side effect may have become in doubt where a process was lost, and that may change nothing else."""
    final = [record.stored for record in survived.records]
    if final[: len(survived.stored)] != list(survived.stored):
        yield "records that were stored when it struck are not in the log any more"
    if missing := set(survived.heard) - set(final):
        yield f"{len(missing)} records were told to a listener and are not in the log"
    yield from breaches_of(survived.records)
    for name in ("status", "reason", "answer", "turns", "tool_calls", "cost_usd", "reported"):
        mine, its = getattr(survived.outcome, name), getattr(twin, name)
        if mine != its:
            yield f"{name} is {mine!r}, the twin's {its!r}"
    mine_estimated, its_estimated = survived.outcome.estimated, twin.estimated
    differs = mine_estimated.total < its_estimated.total if lost_a_request(survived) else mine_estimated != its_estimated
    if survived.outcome.messages == twin.messages and differs:  # estimates follow the transcript
        yield f"estimated is {mine_estimated!r}, the twin's {its_estimated!r}"
    if len(survived.outcome.messages) != len(twin.messages):
        yield f"the transcript has {len(survived.outcome.messages)} messages, the twin's {len(twin.messages)}"
    for place, (mine, its) in enumerate(zip(survived.outcome.messages, twin.messages, strict=False)):
        if mine != its and not (may_doubt(survived, mine) and (mine.call_id, mine.name) == (its.call_id, its.name)):
            yield f"message {place} is {mine!r}, the twin's {its!r}"


def lost_a_request(survived: Survived) -> bool:
    """Whether a driver attached while a request was open: what the lost one used is estimated on top."""
    under_way = False
    for record in survived.records:
        match record.fact:
            case f.ModelRequested() | f.SummaryRequested(author="model"):
                under_way = True
            case f.ModelFailed() | f.ModelOutput() | f.ContextCompacted():
                under_way = False
            case f.DriverAttached() if under_way:
                return True
            case _:
                pass
    return False


def may_doubt(survived: Survived, message: Message) -> bool:
    """Whether a result says that a side effect is in doubt, and its process was lost."""
    lost = survived.fate.came and survived.fate.fault != "conflict"
    return lost and message.kind == "in_doubt" and survived.effects.get(message.call_id) == "side_effect"
