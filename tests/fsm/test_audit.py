"""The audit finds what no run may do, in logs that are otherwise in perfect order, and nothing in those of honest runs."""

from collections.abc import Sequence
from typing import Final

import pytest

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.settings import Budgets, Policy
from refold.events.words import CallId, Digest
from refold.fsm.audit import EVIDENCE_MAX, Audit, audit_rows, verify_rows
from refold.fsm.invariants import INVARIANTS
from refold.testing.forge import Forged, forge
from refold.testing.trajectory import Act, Trajectory

C1, C2 = CallId("t1.1"), CallId("t1.2")
LOOK = Act("look", '{"at":"north"}')
Step = f.Fact | Forged


# Facts as an honest log has them, to be put together dishonestly.


def begin(budgets: Budgets | None = None, policy: Policy | None = None) -> list[Step]:
    setup = f.Setup(engine=1, seed="seed", budgets=budgets or Budgets(), policy=policy or Policy())
    return [f.RunStarted(goal="Do it.", setup=setup), f.DriverAttached(epoch=1, who="tester", host="here"), request(1)]


def request(number: int, attempt: int = 1, most: int = 4_096) -> f.ModelRequested:
    return f.ModelRequested(number=number, attempt=attempt, digest=Digest("x" * 43), max_output_tokens=most, estimated_input_tokens=10)


def proposed(*calls: CallId) -> f.ToolCallsRequested:
    return f.ToolCallsRequested(calls=tuple(f.ProposedCall(id=call, name="look") for call in calls))


def checked(*calls: CallId, act: Act = LOOK) -> f.CallsChecked:
    return f.CallsChecked(checks=tuple(act.check(call) for call in calls))


def started(call: CallId, attempt: int = 1) -> f.ToolStarted:
    return f.ToolStarted(call=call, attempt=attempt, key="key")


def succeeded(call: CallId, attempt: int = 1) -> f.ToolSucceeded:
    return f.ToolSucceeded(call=call, result="fine", attempt=attempt)


def accepted(*calls: CallId) -> f.ToolCallsAccepted:
    return f.ToolCallsAccepted(calls=calls)


def injected(*calls: CallId) -> f.ToolResultsInjected:
    return f.ToolResultsInjected(calls=calls)


def turn(number: int, act: Act = LOOK) -> list[Step]:
    """A whole honest turn with one call, and the request after it."""
    call = CallId(f"t{number}.1")
    return [proposed(call), checked(call, act=act), accepted(call), started(call), succeeded(call), injected(call), request(number + 1)]


CLAIM: Final = [f.FinalProposed(text="Done."), f.AnswerChecked()]
ONE_CALL: Final = [proposed(C1), checked(C1), accepted(C1)]

VIOLATIONS: Final[list[tuple[str, str, list[Step], int]]] = [
    ("I1", "an outcome of a call that nobody started", [*begin(), *ONE_CALL, succeeded(C1), injected(C1), request(2)], 7),
    ("I1", "an outcome of another attempt", [*begin(), *ONE_CALL, started(C1), succeeded(C1, 2)], 8),
    ("I1", "a call that is started while nobody drives", [*begin(), *ONE_CALL, f.DriverDetached(epoch=1), started(C1)], 8),
    ("I1", "a late outcome of a call that never ran", [*begin(), f.LateOutcome(call=C1, outcome="it came back")], 4),
    ("I2", "a call that was never checked", [*begin(), proposed(C1), accepted(C1), started(C1)], 6),
    ("I2", "a call that was refused and ran", [*begin(), proposed(C1), checked(C1, act=Act("look", kind="invalid_arguments")), accepted(C1), started(C1)], 7),
    ("I2", "a call that was not accepted", [*begin(), proposed(C1, C2), checked(C1, C2), accepted(C1), started(C2)], 7),
    ("I3", "two outcomes of one call", [*begin(), *ONE_CALL, started(C1), succeeded(C1), f.ToolClosed(call=C1, kind="cancelled", message="no")], 9),
    ("I3", "an end with a call that has no result", [*begin(), *ONE_CALL, f.CancelRequested(who="ann"), f.RunCancelled(who="ann")], 8),
    ("I3", "results that leave out a call", [*begin(), proposed(C1, C2), checked(C1, C2), accepted(C1, C2), started(C1), succeeded(C1), injected(C1)], 9),
    ("I3", "results in another order", [*begin(), proposed(C1, C2), checked(C1, C2), rejected(C1) if False else accepted(C1, C2)], 0),
    ("I4", "more turns than the budget has", [*begin(Budgets(max_turns=1)), *turn(1)], 10),
    ("I4", "a request out of number", [*begin(), *turn(1)[:-1], request(3)], 10),
    ("I4", "more attempts than the policy allows", [*begin(policy=Policy(max_provider_retries=0)), *failed(), request(2, 2)] if False else [], 0),
    ("I4", "more calls than the budget has", [*begin(Budgets(max_tool_calls=0)), *turn(1)], 7),
    ("I4", "a call that is tried again and again", [*begin(), *ONE_CALL, started(C1, 2)], 7),
]
