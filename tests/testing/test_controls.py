"""Runtimes that are broken on purpose: what checks the good one must notice each of them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from refold import Agent, ScriptedModel, ToolContext, tool
from refold.events import facts as f
from refold.events.memory import MemoryLog
from refold.events.storage import Submission
from refold.fsm import calls, decide
from refold.fsm.machine import Illegal
from refold.projections import evolve
from refold.projections.run import Run
from refold.runtime.journal import TooManyConflicts
from refold.testing.checks import Broken, breaches_of, check_log
from refold.testing.crash import FATES, Trial, fates, losses, survive
from refold.testing.machine import RunMachine

ACTS: Counter[str] = Counter()
KEYS: set[str] = set()


@tool
def send(to: str, ctx: ToolContext) -> str:
    """Send a letter."""
    ACTS[to] += 1
    return f"sent to {to}"


@tool(effect="read")
def look(topic: str, ctx: ToolContext) -> str:
    """Look something up."""
    KEYS.add(ctx.idempotency_key)
    return topic


SCRIPT: list[dict[str, Any]] = [{"calls": [{"name": "send", "arguments": {"to": "Ann"}}, {"name": "look", "arguments": {"topic": "a"}}]}, {"text": "done"}]
TRIAL = Trial(lambda: Agent(ScriptedModel(SCRIPT), tools=[send, look]))


def campaign(log: type[MemoryLog] = MemoryLog) -> Iterator[str]:
    """What every crash of the trial shows."""
    twin = survive(TRIAL, MemoryLog()).outcome
    for place, fault in FATES:
        for fate in fates(place, fault):
            ACTS.clear()
            KEYS.clear()
            yield from losses(survive(TRIAL, log(), fate), twin)
            if ACTS["Ann"] > 1:
                yield "sent twice"
            if len(KEYS) > 1:
                yield "two keys"


def test_the_runtime_as_it_is_passes() -> None:
    assert list(campaign()) == []


def test_a_runtime_that_repeats_side_effects_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(calls, "_lost", lambda call: None)
    # then
    assert "sent twice" in campaign()


def test_a_runtime_whose_keys_change_with_the_driver_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(calls, "key", lambda run, call: f"{call.id} of {run.epoch}")
    # then
    assert "two keys" in campaign()


def test_a_runtime_that_doubts_what_it_could_repeat_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(calls, "_lost", lambda call: f.ToolClosed(call=call.id, kind="cancelled", message="lost"))
    # then
    assert any("message" in line for line in campaign())


def test_a_store_that_says_stored_too_early_is_noticed() -> None:
    # given
    class Hasty(MemoryLog):
        """Loses its second batch, having said that it was stored."""

        lost = False

        def _append(self, submission: Submission) -> None:
            if submission.expected and not self.lost:
                self.lost = True
                return
            super()._append(submission)

    # then
    with pytest.raises(TooManyConflicts):
        list(campaign(Hasty))


MANY = settings(
    max_examples=200,
    stateful_step_count=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


def mutants() -> dict[str, tuple[Any, str, Any]]:
    """Module, name and what takes its place."""
    attached, started, follow = evolve._attached, evolve._started, decide.follow

    def goes_on_with_the_calls_of_another(run: Run, fact: f.DriverAttached, at: int) -> Run:
        return msgspec.structs.replace(attached(run, fact, at), open=run.open)

    def forgets_to_count(run: Run, fact: f.ToolStarted) -> Run:
        return msgspec.structs.replace(started(run, fact), spent=run.spent)

    def looks_at_the_time(run: Run, stamp: Any) -> f.Derived | None:
        LOOKS.append(1)
        return None if len(LOOKS) % 29 == 0 else follow(run, stamp)

    def asks_too_early(run: Run, stamp: Any) -> f.Derived | None:
        return f.ToolResultsInjected(calls=tuple(call.id for call in run.calls if not call.open))

    return {
        "a new driver that runs what another had started": (evolve, "_attached", goes_on_with_the_calls_of_another),
        "a counter that is not the sum of the events": (evolve, "_started", forgets_to_count),
        "a decision that depends on more than the run and the stamp": (decide, "follow", looks_at_the_time),
        "results that are injected before they are all there": (calls, "executing", asks_too_early),
    }


LOOKS: list[int] = []


@pytest.mark.slow
@pytest.mark.parametrize("name", mutants())
def test_the_state_machine_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    module, attribute, broken = mutants()[name]
    monkeypatch.setattr(module, attribute, broken)

    class Broke(RunMachine):
        """Under test; looks are counted anew in every example, so that the fault is the same when it is tried again."""

        def __init__(self) -> None:
            LOOKS.clear()
            super().__init__()

    # then
    with pytest.raises((AssertionError, Illegal)):  # Broken is the former
        run_state_machine_as_test(Broke, settings=MANY)


def test_check_log_names_what_is_wrong() -> None:
    # given
    records = list(survive(TRIAL, MemoryLog()).records)
    check_log(records)
    # then
    with pytest.raises(Broken, match="chain: broken at 4"):
        check_log(records[:3] + records[4:])
    assert list(breaches_of([])) == ["there are no records"]
