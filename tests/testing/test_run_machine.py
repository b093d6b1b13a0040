"""Whatever the world tells a run, in whatever order: the log is legal, folds to the run, and can be derived again."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, seed, settings, strategies as st
from hypothesis.stateful import run_state_machine_as_test

from refold import Agent, ScriptedModel, tool
from refold.events.settings import Context
from refold.fsm.machine import TABLE, Row
from refold.testing.machine import RunMachine
from refold.testing.moves import KIT, toolbox_of


class Quick(RunMachine):
    """As many examples as the profile says."""


TestQuick = Quick.TestCase
TestQuick.settings = settings(stateful_step_count=20)


@tool(effect="read")
def weigh(grams: int, kind: str = "a") -> str:
    """Weigh something."""
    return f"{grams} g"


@tool(approval=lambda arguments: arguments["to"] == "b")
def give(to: str) -> str:
    """Give something away."""
    return f"given to {to}"


class Mine(RunMachine):
    """The same with the tools, schemas and predicates of somebody's agent."""

    toolbox = toolbox_of(Agent(ScriptedModel([]), tools=[weigh, give]))


TestMine = Mine.TestCase
TestMine.settings = settings(stateful_step_count=20, max_examples=settings.default.max_examples // 2)

CANNOT_HAPPEN = {
    "a fork begins the stream of another run": lambda row: row.trigger == "run_forked",
    "a continuation begins with the transcript of another run": lambda row: row.trigger == "run_continued",
    "no call was started before the first request": lambda row: (row.trigger, row.source) == ("late_outcome", "idle"),
    "there is nothing to shorten before the first request": lambda row: row.source == "idle" and row.trigger in ("summary_requested", "context_compacted"),
    "nothing fails before the first request": lambda row: (row.trigger, row.source) == ("run_failed", "idle"),
}
"""Why a row of the table cannot be taken by what the world tells one run."""
ROUNDS_MAX = 12
"""Of some 13 s each; about every second one takes the rarest edges."""


def reason_not_to(row: Row) -> str | None:
    """Why a row cannot be taken, if so."""
    return next((reason for reason, holds in CANNOT_HAPPEN.items() if holds(row)), None)


@pytest.mark.slow
def test_every_edge_that_the_world_can_reach_is_taken_and_no_other() -> None:
    # given one that walks anywhere, and one whose windows are soon full
    class Walked(RunMachine):
        """Counts for itself."""

    class Narrow(RunMachine):
        """Counts for itself."""

        toolbox = replace(KIT, contexts=st.sampled_from((Context(keep_turns=1), Context(window_tokens=2_000, compact_at=20, keep_turns=1, relevant_turns=1))))

    reachable = {(row.source, row.trigger) for row in TABLE if reason_not_to(row) is None}
    # when they walk, the second again and again as long as there is an edge left: what hypothesis tries from a seed depends on the modules that are loaded
    many = settings(
        database=None, deadline=None, phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(seed(0)(Walked), settings=settings(many, max_examples=700, stateful_step_count=20))
    for number in range(ROUNDS_MAX):
        if reachable <= Walked.seen.keys() | Narrow.seen.keys():
            break
        run_state_machine_as_test(seed(number)(Narrow), settings=settings(many, max_examples=350, stateful_step_count=50))
    # then
    seen = Walked.seen.keys() | Narrow.seen.keys()
    assert reachable - seen == set(), "edges that no example took"
    assert seen - reachable == set(), "edges that were said to be out of reach"
