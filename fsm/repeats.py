"""The invariants of repetition: identical actions are limited (I6), and cycles of decisions end the run (I7).

They read actions and decisions off the records by other code than the fold's, so that the two check each other.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final, NamedTuple

from refold.events import facts as f
from refold.events.settings import Policy
from refold.events.words import CallId, Digest
from refold.fsm.history import NONE_YET, History, Sign, Signs, broken, in_force

# -- I6


def identical_actions_are_limited(history: History) -> Signs:
    """An action is performed no more than `max_duplicate_actions` times.

    Another action that is no read, or a message of the user, starts the count of a harmless one again; that of a side effect only the message.
    """
    settings = NONE_YET
    checks: dict[CallId, f.Check] = {}
    chosen: set[CallId] = set()
    places: dict[Digest, list[int]] = {}
    last_write: dict[Digest, int] = {}
    said = 0
    for record in history.records:
        settings = in_force(settings, record.fact)
        position = record.position
        match record.fact:
            case f.CallsChecked(checks=new):
                checks = {check.call: check for check in new}
            case f.CallSuperseded(call=call, check=other):  # a human's own choice is counted, and is theirs
                checks[call] = other
                chosen.add(call)
            case f.UserSaid():
                said = position
            case _:
                pass
        check = checks.get(performed) if (performed := _performs(record.fact)) is not None else None
        if check is None:
            continue
        since = said if check.effect == "side_effect" else max(said, _other_write(last_write, check.signature))
        before = places.setdefault(check.signature, [])
        times = len(before) - bisect_right(before, since) + 1
        most = settings.policy.max_duplicate_actions
        if times > most and not check.repeatable and check.call not in chosen:
            yield broken(position, f"{check.call}: performed at {position}, the {times}. time since {since}; allowed are {most}")
        elif times > 1:
            yield Sign(position, f"{check.call}: performed at {position}, the {times}. time since {since}")
        before.append(position)
        if check.effect != "read":
            # Two are enough to know the last write by another action: those of the last two that differ.
            others = [(signature, at) for signature, at in last_write.items() if signature != check.signature]
            last_write = dict([*others[-1:], (check.signature, position)])


def _performs(fact: f.Fact) -> CallId | None:
    """The call that this fact says took place, or may have."""
    match fact:
        case f.ToolSucceeded(call=call):
            return call
        case f.ToolClosed(call=call, kind="in_doubt"):
            return call
        case f.DoubtResolved(call=call, verdict=verdict) if verdict in ("happened", "tell_model"):
            return call
        case _:
            return None


def _other_write(last_write: Mapping[Digest, int], signature: Digest) -> int:
    return max((at for other, at in last_write.items() if other != signature), default=0)


# -- I7


class Decisions(NamedTuple):
    """The latest decisions, and the answer that will be one if it is rejected."""

    made: tuple[tuple[str, ...], ...] = ()
    claim: tuple[str, ...] = ()


NOTHING_DECIDED: Final = Decisions()


def cycles_end_the_run(history: History) -> Signs:
    """Once the latest decisions repeat `cycle_repeats` times, no further request is made unless the user speaks."""
    settings = NONE_YET
    decisions = NOTHING_DECIDED
    for record in history.records:
        settings = in_force(settings, record.fact)
        decisions = decided(decisions, record.fact, settings.policy)
        length = repeating(decisions, settings.policy)
        if not length:
            continue
        words = f"the last {length} decisions repeated {settings.policy.cycle_repeats} times"
        if isinstance(record.fact, f.ModelRequested):
            yield broken(record.position, f"{words}, and a request was made at {record.position}")
        elif isinstance(record.fact, f.CallsChecked | f.FinalRejected):
            yield Sign(record.position, f"{words} at {record.position}")


def decided(decisions: Decisions, fact: f.Fact, policy: Policy) -> Decisions:
    """The decisions since the user last spoke: the actions of a turn's calls, or an answer that was not accepted."""
    match fact:
        case f.RunStarted() | f.RunContinued():
            return NOTHING_DECIDED
        case f.UserSaid():
            return decisions._replace(made=())
        case f.RunForked(message=message) if message:
            return decisions._replace(made=())
        case f.FinalProposed(text=text, refusal=refusal):
            return decisions._replace(claim=("answer", text, refusal))
        case f.FinalRejected():
            made = (*decisions.made, decisions.claim)
        case f.CallsChecked(checks=checks) if not all(check.repeatable for check in checks):
            made = (*decisions.made, ("calls", *(check.signature for check in checks)))
        case _:
            return decisions
    kept = max(policy.cycle_lengths, default=0) * policy.cycle_repeats
    return decisions._replace(made=made[-kept:] if kept else ())


def repeating(decisions: Decisions, policy: Policy) -> int:
    """The length of the cycle at the end, or 0."""
    times = policy.cycle_repeats
    for length in policy.cycle_lengths:
        tail = decisions.made[-length * times :] if length > 0 and times > 1 else ()
        if tail and len(tail) == length * times and all(tail[n] == tail[n % length] for n in range(len(tail))):
            return length
    return 0
