"""What-if: a recorded run decided again under other settings, or by today's code of the agent, up to where the recording proves nothing more.

Two runs go side by side, the one that was and the one that would have been. What is derived is compared by what it means to the model, a tool or a human, not by bytes;
where a human would have been asked it is assumed that they allowed it. At the first decision that anybody else would have seen, the evidence ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import msgspec

from refold.events import facts as f, money
from refold.events.codec import Record, Stamp
from refold.events.payloads import Load
from refold.events.words import CallId, RunId
from refold.fsm import limits, otherwise, reasons
from refold.fsm.batches import Batch, Stored, batches
from refold.fsm.decide import follow, from_outside
from refold.fsm.machine import NOT_JUDGED, Cursor, Illegal, Refused, empty, fire_compiled, step
from refold.fsm.otherwise import Otherwise, Verdict
from refold.fsm.replay import Ask
from refold.projections import forking
from refold.projections.run import Run, replace


class Broken(Exception):
    """The recording cannot be followed any further: one line that says why."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that would have been another, or may have been (`cannot be told`), at a position of the recorded run: `field` is `type` where another fact follows, or a path in its data.

    `because` names the setting or the code of the agent, the code of the reason in brackets, and what it says.
    """

    position: int
    turn: int
    call_id: CallId | None
    field: str
    recorded: Any
    derived: Any
    because: str
    verdict: Verdict


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What the recorded run used beyond the place where the other one ends; USD, exact."""

    turns: int
    tokens: int
    cost_usd: str


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What would have been decided otherwise; `verdict` is that of the first change.

    `horizon` is the position after which the recording proves nothing more (None where all of it counts), `evidence` the same in words, and `assumed` what it leans on.
    `saved` is given where the run is proved to end earlier.
    """

    verdict: Verdict
    changes: tuple[Change, ...] = ()
    horizon: int | None = None
    evidence: str
    assumed: tuple[str, ...] = ()
    saved: Saved | None = None


class Parted(msgspec.Struct, frozen=True, kw_only=True):
    """Where the evidence ends: the decisions that are others, and what was spent where the run ends there. `last_turn` where it ends with the turn that begins there.

    `at` is where it ends if that is behind the first of them.
    """

    changes: tuple[Change, ...]
    at: int | None = None
    ended: Run | None = None
    last_turn: bool = False


class Pair:
    """The run that was and the one that would have been, side by side."""

    def __init__(self, run_id: str, settings: reasons.Settings, ask: Ask | None) -> None:
        self.was = self.now = empty(RunId(run_id))
        self.settings, self.ask = settings, ask
        self.changed: tuple[reasons.Setting, ...] = ()
        """The settings that are others than the run had."""
        self.declared = self.told = ""
        """What the agent's code says otherwise: of itself, and of the batch at hand,"""
        self.said: dict[CallId, str] = {}
        """and of each call of the turn."""
        self.began: dict[CallId, otherwise.Began] = {}
        """When the calls of the turn began."""
        self.unshown: Change | None = None
        """What the model was told otherwise, and no request has shown yet."""
        self.unasked: set[CallId] = set()
        """Calls about which a human was asked, and would not be."""
        self.assumed: dict[str, None] = {}

    def take(self, record: Record) -> None:
        """One more record of the run that was. Raises Illegal where it has no place."""
        self.was = step(self.was, record)
        if isinstance(record.fact, f.ToolStarted):
            self.began[record.fact.call] = otherwise.Began(record.at + record.fact.delay_us, self.was.spent.active_us)

    def change(self, record: Record | None, found: Otherwise, call: CallId | None = None) -> Change:
        """A difference at a record; None is the place behind the last one of its batch."""
        call = call or (record.call if record is not None else None)
        said = self.said.get(call or CallId("")) or self.told or next(iter(self.said.values()), self.declared)
        words = reasons.blamed(found.settings, self.changed, said)
        return Change(
            position=record.position if record is not None else self.was.position + 1,
            turn=record.turn if record is not None else self.was.turn,
            call_id=call,
            field=found.field,
            recorded=found.recorded,
            derived=found.derived,
            because=f"{words} ({found.code})" + (f": {found.words}" if found.words else ""),
            verdict=found.verdict,
        )


def what_if(run_id: str, rows: Iterable[Stored], load: Load, settings: reasons.Settings, ask: Ask | None = None) -> WhatIf:
    """Decide a run again under other settings, and with the verdicts that `ask` gives. Raises UnsupportedEngine."""
    pair = Pair(run_id, settings, ask)
    changes: list[Change] = []
    stored = batches(rows, load)
    try:
        for batch in stored:
            for found in _batch(pair, batch):
                if isinstance(found, Parted):
                    behind = (record for record in batch.records if record.position > pair.was.position)
                    return _parted(pair, changes, found, chain(behind, (record for later in stored for record in later.records)))
                changes.append(found)
            if batch.broken is not None:
                raise Broken(batch.broken.cause.partition(": ")[2])
        if not pair.was.position:
            raise _missing(1)
    except (Broken, Illegal, Refused, *NOT_JUDGED) as error:
        told = _result(pair, changes)
        why = str(error) if isinstance(error, Broken | Illegal | Refused) else f"there the rules of today raise {type(error).__name__}: {error}"
        return cut_short(told, pair.was.position, why)
    return _result(pair, changes)


WHOLE: Final = "the whole recording"


def cut_short(told: WhatIf, position: int, why: str) -> WhatIf:
    """The same of a recording that cannot be followed beyond a position."""
    if told.horizon is not None and told.horizon <= position:
        return told
    verdict = told.verdict if told.changes else "cannot be told"
    return replace(told, verdict=verdict, horizon=position, evidence=f"up to position {position}: the recording cannot be followed any further ({why})")


def _result(pair: Pair, changes: Sequence[Change], evidence: str = WHOLE, *, horizon: int | None = None, saved: Saved | None = None) -> WhatIf:
    verdict = changes[0].verdict if changes else "unaffected"
    return WhatIf(verdict=verdict, changes=tuple(changes), horizon=horizon, evidence=evidence, assumed=tuple(pair.assumed), saved=saved)


def _parted(pair: Pair, before: Sequence[Change], parted: Parted, rest: Iterable[Record]) -> WhatIf:
    """The result where the evidence ends. The rest of the recording only says what was used behind that."""
    first, ended = parted.changes[0], parted.ended
    at = parted.at or first.position
    for record in _followed(pair, rest):
        anew = isinstance(record.fact, f.ModelRequested) and record.source != "streaming_model" and record.position > first.position
        if ended is None and parted.last_turn and anew:
            ended = pair.was  # the last turn is counted as it was recorded
    if parted.last_turn and ended is not None:
        first = replace(first, verdict="would stop earlier")
        pair.assumed |= {"the last turn would have used what it used when it was recorded": None}
    changes = sorted((*before, first, *parted.changes[1:]), key=lambda change: change.position)
    saved = used_between(ended, pair.was) if ended is not None and changes[0].verdict == "would stop earlier" else None
    why = "there the run ends" if parted.ended is not None else BEYOND[first.verdict]
    evidence = f"up to position {at}: {why}, and the recording proves nothing more"
    return _result(pair, changes, evidence, horizon=at, saved=saved)


def _followed(pair: Pair, records: Iterable[Record]) -> Iterator[Record]:
    """Take the records of the run that was, each after it is given, up to where it cannot be followed."""
    with suppress(Broken, Illegal):
        for record in records:
            yield record
            pair.take(record)


def used_between(before: Run, after: Run) -> Saved:
    """What a run used from one of its states to a later one."""
    return Saved(
        turns=after.turn - before.turn, tokens=after.spent.tokens - before.spent.tokens, cost_usd=money.subtract(after.spent.cost_usd, before.spent.cost_usd)
    )


BEYOND: Final[Mapping[Verdict, str]] = {
    "would stop earlier": "the turn that begins there is the last",
    "would ask a human": "what a human would say is not known",
    "would be rejected": "from there on the model sees that",
    "would show the model something else": "from there on the model sees something else",
    "would go on": "what comes of that is not recorded",
    "would act otherwise": "what comes of that is not recorded",
    "cannot be told": "what the model would have made of that is not recorded",
}
"""Why the evidence ends, by what would have happened."""


# -- one batch


def _batch(pair: Pair, batch: Batch) -> Iterator[Change | Parted]:
    """What would have been decided otherwise in one batch, as far as it is whole; both runs are behind it then, unless they parted. Raises Broken, Illegal."""
    recorded = batch.records
    if not recorded:
        return
    first = recorded[0]
    for position, record in enumerate(recorded, pair.was.position + 1):
        if record.position != position:
            raise _missing(position)
    cursor = Cursor(replace(pair.now, id=first.run), Stamp(at=first.at, driver=first.driver, stepped_back_us=first.stepped_back_us))
    heard = [record for record in recorded if record.fact.INPUT]
    given: list[f.Input] = [record.fact for record in heard]  # type: ignore[misc]  # INPUT tells the unions apart
    asked = pair.ask(pair.now, given) if pair.ask is not None else given
    pair.told = ""
    if pair.was.state == "streaming_model":  # nothing is known yet of the calls that may come
        pair.said, pair.began = {}, {}
    for record, today in zip(heard, asked, strict=True):
        yield from _input(pair, cursor, record, today)
    if not all(map(from_outside, given)):
        yield from _derived(pair, cursor, recorded[len(heard) :], batch)
    pair.now = replace(cursor.run, head=recorded[-1].digest)


def _missing(position: int) -> Broken:
    return Broken(f"position {position} is missing")


def _input(pair: Pair, cursor: Cursor, record: Record, today: f.Input) -> Iterator[Change | Parted]:
    """One input fact, as it would have been heard."""
    if isinstance(record.fact, f.CallsChecked) and isinstance(today, f.CallsChecked):
        pair.said = reasons.said_of_calls(record.fact, today)
    else:
        pair.told = reasons.said_otherwise(record.fact, today) or pair.told  # type: ignore[arg-type]  # it is an input
    fact = _laid_over(pair, cursor.run, today)
    if isinstance(fact, f.ContextChosen):
        found = otherwise.chosen(pair.was, cursor.run, fact, asked=pair.ask is not None)
        if found is not None:
            yield Parted(changes=(pair.change(record, found),))
    if isinstance(fact, f.CallsChecked) and isinstance(record.fact, f.CallsChecked):
        yield from _other_arguments(pair, record, record.fact, fact)
        fact = f.CallsChecked(checks=tuple([_as_asked(old, new) for old, new in zip(record.fact.checks, fact.checks, strict=True)]))
    try:
        fire_compiled(cursor, fact)
    except Illegal as illegal:
        yield Parted(changes=(pair.change(record, Otherwise("would act otherwise", "type", record.type, None, (), "illegal", str(illegal))),))
    pair.take(record)
    found = otherwise.heard(pair.was, cursor.run, fact, cursor.stamp, pair.began)
    if found is not None:
        ended = cursor.run if found.verdict == "would stop earlier" else None
        yield Parted(changes=(pair.change(record, found._replace(recorded=found.recorded or record.type)),), ended=ended)
    yield from _refused_unasked(pair, record)


def _refused_unasked(pair: Pair, record: Record) -> Iterator[Parted]:
    """A human's no, or other arguments, for a call about which nobody would have been asked."""
    if isinstance(record.fact, f.ApprovalDenied | f.CallSuperseded | f.ApprovalExpired) and record.call in pair.unasked:
        yield Parted(changes=(pair.change(record, Otherwise("would go on", "type", record.type, None, (), "approval", "nobody would have been asked")),))


def _laid_over(pair: Pair, now: Run, fact: f.Input) -> f.Input:
    """An input fact under the other settings."""
    match fact:
        case f.RunStarted() | f.RunContinued():
            pair.changed, pair.declared = reasons.changed(fact.setup, pair.settings), pair.told
            setup = reasons.laid_over(fact.setup, pair.settings)
            pair.assumed |= dict.fromkeys(reasons.assumptions(fact.setup, setup, pair.changed))
            return replace(fact, setup=setup)
        case f.RunForked():
            pair.changed = reasons.changed(forking.changed(pair.was.begun, fact.changes), pair.settings)
            return reasons.forked(fact, pair.settings)
        case f.CallsChecked() if now.open is not None:
            names = {call.id: call.name for call in now.calls}
            return f.CallsChecked(checks=tuple(reasons.check_under(check, names.get(check.call, ""), now.begun, pair.changed) for check in fact.checks))
        case f.CallSuperseded() if (call := now.call(fact.call)) is not None:
            return replace(fact, check=reasons.check_under(fact.check, call.name, now.begun, pair.changed))
        case f.ToolFailed(kind="timeout"):
            return otherwise.given_up_sooner(pair.was, now, fact, pair.began.get(fact.call))
        case _:
            return fact


def _other_arguments(pair: Pair, record: Record, was: f.CallsChecked, now: f.CallsChecked) -> Iterator[Change | Parted]:
    """Calls whose handler would be given something else, and those about which nobody would be asked."""
    for number, (old, new) in enumerate(zip(was.checks, now.checks, strict=True)):
        if old.kind != "success" or new.kind != "success":
            continue  # what follows from that is compared
        if old.arguments != new.arguments:
            found = Otherwise("would act otherwise", f"data.checks[{number}].arguments", old.arguments, new.arguments, (), "arguments")
            yield Parted(changes=(pair.change(record, found, old.call),))
        if old.approval and not new.approval:
            pair.unasked.add(old.call)
            found = Otherwise("would go on", f"data.checks[{number}].approval", True, False, (), "approval", "nobody would have been asked")
            yield pair.change(record, found, old.call)


def _as_asked(old: f.Check, new: f.Check) -> f.Check:
    """A check under which a human is asked for what they were asked for, so that their word counts for it."""
    if not old.approval or new.kind != "success":
        return new
    return replace(new, approval=True, approval_reason=old.approval_reason, digest=old.digest)


# -- what follows


def _derived(pair: Pair, cursor: Cursor, recorded: Sequence[Record], batch: Batch) -> Iterator[Change | Parted]:
    """What follows in both runs, fact by fact, up to where they part. Raises Broken where more must have followed."""
    left = list(reversed(recorded))
    while True:
        record, follows = left[-1] if left else None, follow(cursor.run, cursor.stamp)
        if record is None:
            if follows is None or batch.broken is not None or otherwise.waits_for_builder(pair.was):
                return  # the same, or what follows is not whole, or is what a builder chooses
            if follow(pair.was, cursor.stamp) is not None:
                if batch.forked:
                    return  # it goes on in a fork
                raise _missing(pair.was.position + 1)
        field = otherwise.differs(pair.was, cursor.run, record.fact, follows) if record is not None and follows is not None else "type"
        if record is not None and follows is not None and (field is None or otherwise.only_told(follows, field)):
            if isinstance(follows, f.ModelRequested):
                pair.unshown = None
            elif field is not None:
                pair.unshown = pair.unshown or _told(pair, cursor.run, record, follows, field)
            fire_compiled(cursor, follows)
            pair.take(record)
            left.pop()
            yield from _refused_unasked(pair, record)
        elif field == "data.digest" and pair.unshown is not None:
            yield Parted(changes=(pair.unshown,), at=pair.was.position + 1)
            return
        elif isinstance(follows, f.ApprovalRequested):
            yield _asks(pair, cursor, record, follows)
        elif follows is None and (choice := _choice(pair, cursor.run)) is not None and not choice.left_out:
            _aside(cursor, choice)
        else:
            if isinstance(follows, f.ModelRequested) and pair.unshown is not None:
                yield pair.unshown
            yield _parts(pair, cursor, left, follows, field or "type")
            return


def _told(pair: Pair, now: Run, record: Record, derived: f.Derived, field: str) -> Change:
    """Something else that the model is told, once a request shows it."""
    names, code, words = reasons.of_facts([derived], record.fact, pair.changed)
    return pair.change(
        record, Otherwise("would show the model something else", field, *_values(pair.was, now, record.fact, derived, field), names, code, words)
    )


def _choice(pair: Pair, run: Run) -> f.ContextChosen | None:
    """What a context builder says that is asked here; None where none is, or what it would say is not known."""
    if not otherwise.waits_for_builder(run):
        return None
    if otherwise.shows_everything(run):
        return f.ContextChosen(builder="relevant")
    said = pair.ask(run, [f.ContextChosen(builder=run.begun.context_builder)]) if pair.ask is not None else ()
    return next((fact for fact in said if isinstance(fact, f.ContextChosen)), None)


def _asks(pair: Pair, cursor: Cursor, record: Record | None, asks: f.ApprovalRequested) -> Change:
    """A human would be asked here, and is taken to have allowed it."""
    call = cursor.run.call(asks.call)
    assert call is not None
    pair.assumed |= {f"a human would have allowed {call.name} ({call.id})": None}
    _aside(cursor, asks, f.ApprovalGranted(call=asks.call, digest=asks.digest, who="nobody: this is assumed"))
    recorded = record.type if record is not None and record.call == asks.call else None  # else that is about another call
    found = Otherwise("would ask a human", "type", recorded, asks.TAG, (), "approval", asks.because)
    return pair.change(record, found, asks.call)


def _aside(cursor: Cursor, *facts: f.Fact) -> None:
    """Facts that the recorded run does not have, so that they take no position."""
    position = cursor.run.position
    for fact in facts:
        fire_compiled(cursor, fact)
    cursor.run = replace(cursor.run, position=position)


def _parts(pair: Pair, cursor: Cursor, left: Sequence[Record], follows: f.Derived | None, field: str) -> Parted:
    """The place where both runs part, and the end of the one that would have been, where it comes to one at once. `left` is what is left of the recorded batch, from its end."""
    now, facts = cursor.run, list[f.Derived]()
    closing = limits.first_exceeded(limits.BEFORE_TOOLS, now, cursor.stamp)
    derived = follows
    while derived is not None:
        facts.append(derived)
        fire_compiled(cursor, derived)
        derived = follow(cursor.run, cursor.stamp)
    record = left[-1] if left else None
    recorded = record.fact if record is not None else None
    ended, ending = next((each.fact for each in left if isinstance(each.fact, f.Ending)), None), cursor.run.ended
    names, code, words = reasons.of_facts(facts, recorded, pair.changed, closing)
    old, new = _values(pair.was, now, recorded, follows, field)
    found = Otherwise(otherwise.comes_to(recorded, follows, ended, ending, now), field, old, new, names, code, words)
    if pair.ask is None and otherwise.waits_for_builder(now) and (builder := now.begun.context_builder):
        found = found._replace(verdict="cannot be told", words=f"the agent's {builder} would be asked, and what it would leave out is not recorded")
    changes = [pair.change(record, found, getattr(follows, "call", None) if found.verdict != "would go on" else None)]
    if ending is not None and ending is not follows and not otherwise.ends_the_same(ended, ending):
        names, code, words = reasons.of_facts([ending], None, pair.changed)
        tag = ended.TAG if ended is not None else None
        end = pair.change(record, found._replace(field="type", recorded=tag, derived=ending.TAG, settings=names, code=code, words=words))
        changes.append(replace(end, position=cursor.run.position, call_id=None))
    return Parted(changes=tuple(changes), ended=cursor.run if ending is not None else None, last_turn=otherwise.is_last_turn(now, follows))


def _values(was: Run, now: Run, recorded: f.Fact | None, derived: f.Fact | None, field: str) -> tuple[Any, Any]:
    """What a change shows of both sides."""
    if field == "type":
        waits = "context_chosen" if otherwise.waits_for_builder(now) else "(waits for a human)"
        return recorded.TAG if recorded is not None else "(waits)", derived.TAG if derived is not None else waits
    if field == "answer_schema":
        return was.begun.answer_schema, now.begun.answer_schema
    name = field.removeprefix("data.")
    return msgspec.to_builtins(getattr(recorded, name)), msgspec.to_builtins(getattr(derived, name))
