"""The invariants of a run by name: each reads the records itself, without the fold, and says what proves or breaks it.

Apart from the audit, which only asks them. Those that count are in `bounds`; here are those about order: what must have come before what.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from refold.events import facts as f
from refold.events.chain import signature_of
from refold.events.words import CallId
from refold.fsm import bounds, repeats, sensitive
from refold.fsm.history import History, Judge, Sign, Signs, broken


class Named(NamedTuple):
    """An invariant: what it says, the function that judges it, the facts that it reads (all, where none are named), and whether it rests on the sums."""

    title: str
    judge: Judge
    reads: tuple[type[f.Fact], ...] = ()
    counts: bool = False


def model_runs_nothing(history: History) -> Signs:
    """Outcomes come only from calls that a driver started."""
    driven = False
    started: dict[CallId, tuple[int, int]] = {}
    ever: set[CallId] = set()
    while (record := (yield None)) is not None:
        position = record.position
        match record.fact:
            case f.ToolStarted(call=call, attempt=attempt):
                if not driven:
                    yield broken(position, f"{call}: started at {position}, and nobody drove")
                started[call] = (position, attempt)
                ever.add(call)
            case f.ToolSucceeded(call=call, attempt=attempt) | f.ToolFailed(call=call, attempt=attempt):
                begun = started.pop(call, None)
                if begun is None:
                    yield broken(position, f"{call}: outcome at {position} of an attempt that nobody started")
                elif begun[1] != attempt:
                    yield broken(position, f"{call}: outcome at {position} of attempt {attempt}, but {begun[1]} was started at {begun[0]}")
                else:
                    yield Sign(position, f"{call}: started at {begun[0]}, outcome at {position}")
            case f.DriverAttached():
                driven = True
            case f.DriverDetached() | f.RunForked():
                driven = False
            case f.LateOutcome(call=call) if call not in ever:
                yield broken(position, f"{call}: late outcome at {position}, and it was never started")
            case _:
                pass


def executed_calls_were_validated(history: History) -> Signs:
    """Whatever is started was checked and accepted before, with the arguments that it is known by."""
    names: dict[CallId, str] = {}
    checked: dict[CallId, tuple[int, str]] = {}
    accepted: set[CallId] = set()
    while (record := (yield None)) is not None:
        position = record.position
        match record.fact:
            case f.ToolStarted(call=call):
                at, kind = checked.get(call, (0, ""))
                if not at:
                    yield broken(position, f"{call}: started at {position}, never checked")
                elif kind != "success":
                    yield broken(position, f"{call}: refused at {at} ({kind}), started at {position}")
                elif call not in accepted:
                    yield broken(position, f"{call}: checked at {at}, never accepted, started at {position}")
                else:
                    yield Sign(position, f"{call}: checked at {at}, started at {position}")
            case f.CallsChecked(checks=checks):
                checked, accepted = {check.call: (position, check.kind) for check in checks}, set()
                for check in checks:
                    if _is_of_another(check, names):
                        yield broken(position, f"{check.call}: checked at {position} with other arguments than its signature is of")
            case f.CallSuperseded(call=call, check=check):
                checked[call] = (position, check.kind)
                if _is_of_another(check, names):
                    yield broken(position, f"{call}: allowed at {position} with other arguments than its signature is of")
            case f.ToolCallsRequested(calls=requested):
                names = {each.id: each.name for each in requested}
            case f.ToolCallsAccepted(calls=calls):
                accepted |= set(calls)
            case _:
                pass


def _is_of_another(check: f.Check, names: Mapping[CallId, str]) -> bool:
    """Whether the signature of a call that may run, by which it is counted and approved, is not that of its name and arguments."""
    return check.kind == "success" and check.signature != signature_of([names.get(check.call, ""), check.arguments])


def every_call_has_one_observation(history: History) -> Signs:
    """A proposed call gets exactly one result, and it is shown once, in call order."""
    proposed: dict[CallId, int] = {}
    results: dict[CallId, int] = {}
    while (record := (yield None)) is not None:
        position = record.position
        match record.fact:
            case f.ToolCallsRequested(calls=calls):
                proposed, results = {call.id: position for call in calls}, {}
            case f.ToolResultsInjected() as shown:
                yield from _shown(position, shown, proposed, results)
                proposed = {}
            case fact if (closed := _closes(fact)) is not None:
                if closed in results:
                    yield broken(position, f"{closed}: has a result, and another at {position}")
                elif closed not in proposed:
                    yield broken(position, f"{closed}: a result at {position}, and no such call is open")
                results[closed] = position
            case f.RunCompleted() | f.RunStopped() | f.RunFailed() | f.RunCancelled():
                for call in proposed:
                    yield broken(position, f"{call}: proposed at {proposed[call]}, and the run ended at {position} without showing a result")
            case _:
                pass


_CLOSING: Final = (
    *(f.ToolRejected, f.DuplicateActionBlocked, f.ToolSucceeded, f.ToolClosed, f.ApprovalDenied, f.ApprovalExpired),
    *(f.ClarificationReceived, f.DoubtResolved),
)


def _closes(fact: f.Fact) -> CallId | None:
    """The call that this fact gives its result."""
    match fact:
        case (
            f.ToolSucceeded()
            | f.ToolRejected()
            | f.DuplicateActionBlocked()
            | f.ToolClosed()
            | f.ApprovalDenied()
            | f.ApprovalExpired()
            | f.ClarificationReceived()
        ):
            return fact.call
        case f.DoubtResolved() if fact.verdict in ("happened", "tell_model"):
            return fact.call
        case _:
            return None


def _shown(position: int, fact: f.ToolResultsInjected, proposed: Mapping[CallId, int], results: Mapping[CallId, int]) -> Signs:
    for call, at in proposed.items():
        if call not in results:
            yield broken(position, f"{call}: proposed at {at}, injected at {position} without a result")
        elif call not in fact.calls:
            yield broken(position, f"{call}: result at {results[call]}, not among those injected at {position}")
        else:
            yield Sign(position, f"{call}: proposed at {at}, result at {results[call]}, shown at {position}")
    if list(fact.calls) != list(proposed):
        yield broken(position, f"injected at {position}: {', '.join(fact.calls) or 'nothing'}, proposed were {', '.join(proposed) or 'none'}")


def completed_only_after_validation(history: History) -> Signs:
    """A run completes only with an answer of its last turn that was checked and not rejected."""
    claim = verdict = 0
    faults = ""
    while (record := (yield None)) is not None:
        position = record.position
        match record.fact:
            case f.ModelRequested() | f.ToolCallsRequested() | f.FinalRejected():
                claim = verdict = 0
            case f.FinalProposed():
                claim, verdict, faults = position, 0, ""
            case f.AnswerChecked(complaints=complaints, error=error):
                verdict, faults = position, error or "; ".join(complaints)
            case f.RunCompleted(answer_at=answer_at):
                if not claim:
                    yield broken(position, f"completed at {position} without an answer in its turn")
                elif not verdict:
                    yield broken(position, f"completed at {position}; the answer at {claim} was never checked")
                elif faults:
                    yield broken(position, f"completed at {position} although the check at {verdict} found: {faults}")
                elif answer_at != claim:
                    yield broken(position, f"completed at {position} with {answer_at} as its answer; the one that was checked is at {claim}")
                else:
                    yield Sign(position, f"answer at {claim}, checked at {verdict}, completed at {position}")
            case _:
                pass


def state_changes_have_events(history: History) -> Signs:
    """Each record begins in the state where the one before it ended, the first in idle."""
    state = "idle"
    while (record := (yield None)) is not None:
        if record.source != state:
            yield broken(record.position, f"{record.type} at {record.position} begins in {record.source}, but the run was in {state}")
        elif record.target != state:
            yield Sign(record.position, f"{state} -> {record.target} at {record.position}")
        state = record.target


def requests_have_answered_calls(history: History) -> Signs:
    """No request is made while a call of an earlier turn has no result in its history."""
    open_calls: dict[CallId, int] = {}
    while (record := (yield None)) is not None:
        position = record.position
        match record.fact:
            case f.ToolCallsRequested(calls=calls):
                open_calls |= {call.id: position for call in calls}
            case f.ToolResultsInjected(calls=injected):
                open_calls = {call: at for call, at in open_calls.items() if call not in injected}
            case f.ModelRequested(number=number):
                for call, at in open_calls.items():
                    yield broken(position, f"request {number} at {position}: {call}, proposed at {at}, has no result")
                if not open_calls:
                    yield Sign(position, f"request {number} at {position}: every call answered")
            case _:
                pass


def chain_holds(history: History) -> Signs:
    """Positions are gapless and every digest covers its record and the one before."""
    while (record := (yield None)) is not None:
        if isinstance(record.fact, f.Sealed):
            yield Sign(record.position, f"sealed at {record.position} with key {record.fact.key}; signatures are checked by `refold verify`")
    last = history.last
    if history.damage is not None:
        yield broken(*history.damage)
    elif last is not None:
        yield Sign(last.position, f"1 to {last.position}, head {last.digest}")


_CHECKS: Final = (f.CallsChecked, f.CallSuperseded)
_OUTCOMES: Final = (f.ToolSucceeded, f.ToolFailed)
_ENDS: Final = (f.RunCompleted, f.RunStopped, f.RunFailed, f.RunCancelled)

INVARIANTS: Final[dict[str, Named]] = {
    "I1": Named(
        "the model never executes tools", model_runs_nothing, (f.DriverAttached, f.DriverDetached, f.RunForked, f.ToolStarted, *_OUTCOMES, f.LateOutcome)
    ),
    "I2": Named("every executed call was validated first", executed_calls_were_validated, (f.ToolCallsRequested, *_CHECKS, f.ToolCallsAccepted, f.ToolStarted)),
    "I3": Named(
        "every call ends in exactly one observation",
        every_call_has_one_observation,
        (f.ToolCallsRequested, f.ToolResultsInjected, *_ENDS, *_CLOSING),
    ),
    "I4": Named(
        "every iteration consumes a bounded budget", bounds.iterations_are_bounded, (f.ModelRequested, *_CHECKS, f.DoubtResolved, f.ToolStarted), counts=True
    ),
    "I5": Named(
        "the runtime can stop without the model",
        bounds.ends_have_causes,
        (
            *(f.ModelRequested, f.ModelFailed, f.ModelErrorObserved, f.ModelInterrupted, f.FinalProposed, f.FinalRejected, f.CallsChecked),
            *(f.CancelRequested, f.ToolClosed, f.ToolRejected, f.RunForked, *_ENDS),
        ),
        counts=True,
    ),
    "I6": Named(
        "identical actions cannot run without limit",
        repeats.identical_actions_are_limited,
        (*_CHECKS, f.UserSaid, f.RunForked, f.ToolStarted, f.ToolSucceeded, f.ToolClosed, f.DoubtResolved),
    ),
    "I7": Named("repeating cycles are detected", repeats.cycles_end_the_run, (f.ModelRequested, f.CallsChecked, f.FinalRejected)),
    "I8": Named(
        "sensitive actions have a prior approval for the same arguments",
        sensitive.approvals_come_first,
        (*_CHECKS, f.RunForked, f.ApprovalRequested, f.ApprovalGranted, f.ApprovalDenied, f.ToolStarted, *_OUTCOMES),
    ),
    "I9": Named(
        "completion only after validation",
        completed_only_after_validation,
        (f.FinalProposed, f.AnswerChecked, f.ModelRequested, f.FinalRejected, f.ToolCallsRequested, f.RunCompleted),
    ),
    "I10": Named("every state change has an event", state_changes_have_events),
    "I11": Named(
        "no request is sent with an unanswered call in its history",
        requests_have_answered_calls,
        (f.ToolCallsRequested, f.ToolResultsInjected, f.ModelRequested),
    ),
    "I12": Named("counters equal the sum of the events", bounds.counters_are_sums, counts=True),
    "I13": Named("positions are gapless and the chain holds", chain_holds, (f.Sealed,)),
    "I15": Named(
        "no side effect begins twice under different keys or without a record",
        sensitive.side_effects_keep_their_key,
        (f.CallsChecked, f.ToolStarted, *_OUTCOMES, f.DoubtResolved),
    ),
}
"""All that can be told from the records alone; I14, that they can be derived again, is added by whoever replays."""
