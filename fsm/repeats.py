"""The invariants of repetition: identical actions are limited (I6), and cycles of decisions end the run (I7).

They read actions and decisions off the records by other code than the fold's, so that the two check each other.
"""

from bisect import bisect_right
from collections.abc import Mapping

from refold.events import facts as f
from refold.events.words import CallId, Digest
from refold.fsm.decisions import repeating
from refold.fsm.history import History, Sign, Signs, broken

# -- I6


def identical_actions_are_limited(history: History) -> Signs:
    """An action is performed no more than `max_duplicate_actions` times.

    Another action that is no read, or a message of the user, starts the count of a harmless one again; that of a side effect only the message.
    """
    checks: dict[CallId, f.Check] = {}
    chosen: set[CallId] = set()
    allowed: dict[CallId, int] = {}  # how often, when the call was begun: a fork may allow less than its parent did
    places: dict[Digest, int | list[int]] = {}  # a number alone, as most actions are performed once
    last_write: dict[Digest, int] = {}
    said = 0
    while (record := (yield None)) is not None:
        position = record.position
        performed: CallId | None = None
        match record.fact:
            case f.ToolStarted(call=call):
                allowed.setdefault(call, history.settings.policy.max_duplicate_actions)
            case f.CallsChecked(checks=new):
                checks, allowed = {check.call: check for check in new}, {}
            case f.ToolSucceeded(call=call):
                performed = call
            case f.CallSuperseded(call=call, check=other):  # a human's own choice is counted, and is theirs
                checks[call] = other
                chosen.add(call)
            case f.UserSaid():
                said = position
            case f.RunForked(message=message) if message:
                said = position
            case fact:
                performed = _may_have_performed(fact)
        check = checks.get(performed) if performed is not None else None
        if check is None:
            continue
        since = said if check.effect == "side_effect" else max(said, _other_write(last_write, check.signature))
        before = _listed(places.get(check.signature))
        times = len(before) - bisect_right(before, since) + 1
        most = allowed.get(check.call, history.settings.policy.max_duplicate_actions)
        if times > most and not check.repeatable and check.call not in chosen:
            yield broken(position, f"{check.call}: performed at {position}, the {times}. time since {since}; allowed are {most}")
        elif times > 1:
            yield Sign(position, f"{check.call}: performed at {position}, the {times}. time since {since}")
        before.append(position)
        places[check.signature] = before if len(before) > 1 else position
        if check.effect != "read":
            # Two are enough to know the last write by another action: those of the last two that differ.
            others = [(signature, at) for signature, at in last_write.items() if signature != check.signature]
            last_write = dict([*others[-1:], (check.signature, position)])


def _listed(places: int | list[int] | None) -> list[int]:
    return places if isinstance(places, list) else [] if places is None else [places]


def _may_have_performed(fact: f.Fact) -> CallId | None:
    """The call that took place, or may have, although no outcome says so."""
    match fact:
        case f.ToolClosed(call=call, kind="in_doubt"):
            return call
        case f.DoubtResolved(call=call, verdict=verdict) if verdict in ("happened", "tell_model"):
            return call
        case _:
            return None


def _other_write(last_write: Mapping[Digest, int], signature: Digest) -> int:
    return max((at for other, at in last_write.items() if other != signature), default=0)


# -- I7


def cycles_end_the_run(history: History) -> Signs:
    """Once the latest decisions repeat `cycle_repeats` times, no further request is made unless the user speaks."""
    while (record := (yield None)) is not None:
        policy = history.settings.policy
        length = repeating(history.decisions, policy)
        if not length:
            continue
        words = f"the last {length} decisions repeated {policy.cycle_repeats} times"
        if isinstance(record.fact, f.ModelRequested):
            yield broken(record.position, f"{words}, and a request was made at {record.position}")
        elif isinstance(record.fact, f.CallsChecked | f.FinalRejected):
            yield Sign(record.position, f"{words} at {record.position}")
