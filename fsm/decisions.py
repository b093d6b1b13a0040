"""The latest decisions of a run, read off the records: what a cycle is made of.

Apart from the fold, which remembers them by digest, so that the two check each other.
"""

from typing import Final, NamedTuple

from refold.events import facts as f
from refold.events.settings import Policy


class Decisions(NamedTuple):
    """The latest decisions, and the answer that will be one if it is rejected."""

    made: tuple[tuple[str, ...], ...] = ()
    claim: tuple[str, ...] = ()


NOTHING_DECIDED: Final = Decisions()


DECIDES: Final = frozenset(fact.TAG for fact in (f.RunStarted, f.RunContinued, f.RunForked, f.UserSaid, f.FinalProposed, f.FinalRejected, f.CallsChecked))
"""The types of facts that may change the decisions: all others need not be asked."""


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
    for length in policy.cycle_lengths if times > 1 else ():
        if not 0 < length * times <= len(decisions.made):
            continue
        tail = decisions.made[-length * times :]
        if all(tail[n] == tail[n % length] for n in range(len(tail))):
            return length
    return 0
