"""What would have been decided otherwise: under other limits and policies, at which position, why, and how far the recording proves it."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings

from refold.events import facts as f
from refold.events.codec import read
from refold.events.settings import Budgets, Context, Policy
from refold.fsm.whatif import Change, Saved, WhatIf, what_if
from refold.runtime.journal import loader
from refold.runtime.transfer import parse
from refold.testing.machine import RUN, RunMachine
from refold.testing.trajectory import Act, Trajectory

Start = Callable[..., Trajectory]

LOGS = sorted((Path(__file__).parents[1] / "logs").glob("v*/*.jsonl"))
LOOK = Act("look", '{"at":"north"}')
SOUTH = Act("look", '{"at":"south"}')
SEND = Act("send", effect="side_effect", approval=True)
PAY = Act("pay", effect="side_effect")
PLAIN = Policy(wrap_up=False)
USAGE = f.Usage(input_tokens=100, output_tokens=10, cost_usd="0.001")


def under(run: Trajectory, changes: dict[str, Any], ask: Any = None) -> WhatIf:
    return what_if(run.id, run.rows, run.payloads.__getitem__, changes, ask)


def first(told: WhatIf) -> Change:
    return told.changes[0]


def brief(told: WhatIf) -> tuple[str, Any, Any]:
    return told.verdict, first(told).recorded, first(told).derived


def position_of(run: Trajectory, tag: str, nth: int = 0) -> int:
    return [record.position for record in run.records if record.type == tag][nth]


def turns(run: Trajectory, count: int, usage: f.Usage | None = USAGE) -> Trajectory:
    """So many turns of one call each, none like another, then an answer."""
    for n in range(1, count + 1):
        run.calls(Act("look", f'{{"at":"{n}"}}'), usage=usage)
        run.succeed(f"t{n}.1")
    run.answer(usage=usage)
    return run


def as_it_was(setup: f.Setup) -> dict[str, Any]:
    """Every setting of a run, set to what it was."""
    parts = {"budgets": setup.budgets, "policy": setup.policy} | ({"context": setup.context} if setup.context is not None else {})
    return {f"{section}.{name}": value for section, part in parts.items() for name, value in asdict(part).items()}


# -- nothing is changed


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_settings_that_a_golden_log_had_change_nothing_of_it(path: Path) -> None:
    export = parse(path.read_bytes(), path.name)
    records = [read(stored, export.load) for _, stored in export.rows]
    begun = records[0].fact
    assert isinstance(begun, f.RunStarted | f.RunContinued)
    forked = any(isinstance(record.fact, f.RunForked) for record in records)  # it has other settings than its parent had
    told = what_if(export.run_id, export.rows, export.load, {} if forked else as_it_was(begun.setup))
    assert (told.verdict, told.changes, told.horizon, told.assumed) == ("unaffected", (), None, ())


class Unchanged(RunMachine):
    """At the end of every example the run is decided again under its own settings."""

    def teardown(self) -> None:
        super().teardown()
        if not self.records:
            return
        rows = [(row.position, row.state) for row in self.log.read(RUN)]
        load = loader(self.log, RUN, many=True)
        told = what_if(RUN, rows, load, as_it_was(self.folded.begun))
        assert (told.verdict, told.changes) == ("unaffected", ()), told


TestUnchanged = Unchanged.TestCase
TestUnchanged.settings = settings(stateful_step_count=20)


# -- limits


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"budgets.max_turns": 2}, "max_turns"),
        ({"budgets.max_tokens": 300}, "max_tokens"),
        ({"budgets.deadline": "2001-01-01T00:00:00+00:00"}, "deadline"),
    ],
)
def test_a_limit_that_is_met_sooner_ends_the_run_there_and_the_rest_is_saved(start: Start, changes: dict[str, Any], reason: str) -> None:
    # given a run of four turns, each of which took 110 tokens
    run = turns(start(policy=PLAIN), 3)
    # when it is decided again under a limit
    told = under(run, changes)
    # then it ends in place of a request, and what came after is saved
    assert brief(told) == ("would stop earlier", "model_requested", "run_stopped")
    assert reason in first(told).because
    assert told.horizon == first(told).position
    turn = first(told).turn - 1
    usd = {0: "0.004", 1: "0.003", 2: "0.002"}[turn]
    assert told.saved == Saved(turns=4 - turn, tokens=110 * (4 - turn), cost_usd=usd)


def test_money_that_is_spent_by_a_response_lets_none_of_its_calls_run(start: Start) -> None:
    run = turns(start(policy=PLAIN), 3)
    told = under(run, {"budgets.max_cost_usd": "0.0015"})
    assert brief(told) == ("would stop earlier", "tool_started", "tool_closed")
    assert [change.derived for change in told.changes] == ["tool_closed", "run_stopped"]
    assert "budgets.max_cost_usd=0.0015 (was 1) (max_cost_usd)" in first(told).because
    assert told.saved == Saved(turns=2, tokens=220, cost_usd="0.002")


def test_a_last_turn_that_is_asked_for_sooner_is_the_end_and_counts_as_it_was_recorded(start: Start) -> None:
    run = turns(start(), 3)
    told = under(run, {"budgets.max_turns": 2})
    assert (told.verdict, first(told).field, told.saved) == ("would stop earlier", "data.wrap_up", Saved(turns=2, tokens=220, cost_usd="0.002"))
    assert first(told).because.startswith("budgets.max_turns=2 (was 12)")
    assert told.horizon == position_of(run, "model_requested", 1)


def test_a_last_turn_where_the_recorded_run_ended_anyway_only_looks_different_to_the_model(start: Start) -> None:
    run = turns(start(), 1)
    told = under(run, {"budgets.max_turns": 2})
    assert (told.verdict, told.saved) == ("would show the model something else", None)


def test_active_time_that_is_up_while_the_model_answers_cuts_the_answer(start: Start) -> None:
    # given an answer that took two seconds
    run = start()
    run.tell(f.FinalProposed(text="Done.", elapsed_us=2_000_000), f.AnswerChecked())
    told = under(run, {"budgets.timeout_s": 1})
    assert (told.verdict, told.saved) == ("would stop earlier", Saved(turns=0, tokens=0, cost_usd="0"))
    assert "budgets.timeout_s=1 (was 120) (timeout_s)" in first(told).because
    assert under(run, {"budgets.timeout_s": 3}).verdict == "unaffected"


def test_active_time_that_is_up_while_a_tool_runs_ends_the_run(start: Start) -> None:
    run = start()
    run.calls(LOOK)
    run.succeed("t1.1", elapsed_us=2_000_000)
    told = under(run, {"budgets.timeout_s": 1})
    assert brief(told) == ("would stop earlier", "model_requested", "run_stopped")


def test_a_report_on_the_way_that_goes_beyond_a_limit_cuts_the_stream_there(start: Start) -> None:
    run = start()
    run.tell(f.UsageUpdated(usage=f.Usage(input_tokens=900, output_tokens=200)))
    run.answer(usage=f.Usage(input_tokens=900, output_tokens=300))
    told = under(run, {"budgets.max_tokens": 1_000})
    assert (told.verdict, told.horizon) == ("would stop earlier", position_of(run, "usage_updated"))
    assert told.saved == Saved(turns=0, tokens=100, cost_usd="0")


def test_fewer_calls_refuse_the_later_ones(start: Start) -> None:
    run = start()
    run.calls(LOOK, SOUTH)
    run.succeed("t1.1")
    run.succeed("t1.2")
    run.answer()
    told = under(run, {"budgets.max_tool_calls": 1})
    assert brief(told) == ("would be rejected", "tool_calls_accepted", "tool_rejected")
    assert (first(told).call_id, told.saved) == ("t1.2", None)
    assert "budgets.max_tool_calls=1 (was 48) (limit_reached)" in first(told).because


def ended_at(run: Trajectory, told: WhatIf) -> str:
    """The record at which the evidence ends because nobody can tell what the model would have made of it."""
    assert told.verdict == first(told).verdict == "cannot be told"
    assert (first(told).derived, told.horizon, told.saved) == (None, first(told).position, None)
    assert "what the model would have made of that is not recorded" in told.evidence
    assert "budgets.max_output_tokens=" in first(told).because
    return run.records[first(told).position - 1].type


def test_a_lower_output_limit_is_only_asked_for_so_that_behind_a_longer_answer_nothing_is_known(start: Start) -> None:
    # given an answer of 500 tokens, one of as many with calls, one that was cut, and a stream that broke behind as many
    usage = f.Usage(input_tokens=10, output_tokens=500)
    answered, called, cut, broke = (start(policy=PLAIN) for _ in range(4))
    answered.answer(usage=usage)
    called.calls(LOOK, usage=usage)
    cut.interrupt("limit", limit="timeout_s", usage=usage)
    broke.tell(f.ModelFailed(error=f.ErrorInfo(type="stream_broken", message="it broke", retryable=True), usage=usage))
    for run, tag in ((answered, "final_proposed"), (called, "tool_calls_requested"), (cut, "model_interrupted"), (broke, "model_failed")):
        # then a limit above it changes nothing, and below it is for the model to say
        assert under(run, {"budgets.max_output_tokens": 500}).verdict == "unaffected"
        assert ended_at(run, under(run, {"budgets.max_output_tokens": 499})) == tag


def test_a_higher_output_limit_matters_where_the_answer_was_cut_and_how_is_not_known(start: Start) -> None:
    run = start()
    run.answer(stop_reason="length", usage=f.Usage(input_tokens=10, output_tokens=4_096))
    assert ended_at(run, under(run, {"budgets.max_output_tokens": 8_000})) == "final_proposed"


def test_a_limit_that_is_lifted_lets_the_run_go_on(start: Start) -> None:
    # given a run that was stopped after one turn, and one whose stream was cut
    stopped = start(budgets=Budgets(max_turns=1), policy=PLAIN)
    stopped.calls(LOOK)
    stopped.succeed("t1.1")
    cut = start(budgets=Budgets(max_tokens=2_000))
    cut.interrupt("limit", limit="max_tokens", usage=f.Usage(input_tokens=1_000, output_tokens=1_100))
    # when there is more
    told = under(stopped, {"budgets.max_turns": 5})
    # then both go on
    assert brief(told) == ("would go on", "run_stopped", "model_requested")
    assert under(cut, {"budgets.max_tokens": 9_000}).verdict == "would go on"
    assert under(cut, {"budgets.max_tokens": 2_050}).verdict == "unaffected"


# -- policies


def test_a_policy_that_stops_on_an_error_ends_the_run_with_it(start: Start) -> None:
    run = start()
    run.calls(LOOK, SOUTH)
    run.fail("t1.1")
    run.succeed("t1.2")
    run.answer()
    told = under(run, {"policy.on_tool_error": "stop"})
    # then the rest of the turn is closed, and the run fails
    assert brief(told) == ("would stop earlier", "tool_started", "tool_closed")
    assert [change.derived for change in told.changes] == ["tool_closed", "run_failed"]
    assert "policy.on_tool_error=stop (was observe) (on_tool_error)" in first(told).because


@pytest.mark.parametrize(
    ("changes", "name"), [({"policy.max_provider_retries": 0}, "max_provider_retries"), ({"policy.max_retry_wait_s": 1}, "max_retry_wait_s")]
)
def test_fewer_attempts_at_a_request_end_the_run(start: Start, changes: dict[str, Any], name: str) -> None:
    run = start()
    run.model_fails(retry_after_s=5)
    run.answer()
    told = under(run, changes)
    assert brief(told) == ("would stop earlier", "retry_scheduled", "model_error_observed")
    assert f"policy.{name}" in first(told).because


def test_more_attempts_at_a_request_go_on_where_it_was_given_up(start: Start) -> None:
    run = start(policy=Policy(max_provider_retries=0))
    run.model_fails()
    assert brief(under(run, {"policy.max_provider_retries": 1})) == ("would go on", "model_error_observed", "retry_scheduled")


def test_fewer_invalid_turns_fail_the_run(start: Start) -> None:
    run = start(policy=PLAIN)
    run.interrupt("invalid")
    run.answer()
    assert brief(under(run, {"policy.max_model_errors": 0})) == ("would stop earlier", "model_requested", "run_failed")


def test_other_attempts_of_a_call_are_those_that_its_tool_left_to_the_policy(start: Start) -> None:
    # given a tool that leaves its attempts to the policy, and one that does not; both fail once, and may be tried again
    tools = (f.ToolSetup(name="look", description="", schema={}, effect="read"), f.ToolSetup(name="pay", description="", schema={}, effect="read", retries=1))
    run = start(tools=tools)
    run.calls(Act("look", retries=1), Act("pay", retries=1))
    for call in ("t1.1", "t1.2"):
        run.fail(call, retryable=True)
        run.succeed(call)
    run.answer()
    # when nothing is tried again
    told = under(run, {"policy.max_tool_retries": 0})
    # then the first is given up at once
    assert brief(told) == ("would show the model something else", "retry_scheduled", "tool_closed")
    assert first(told).call_id == "t1.1"


def test_a_call_that_took_longer_than_its_time_would_have_been_given_up(start: Start) -> None:
    run = start(tools=(f.ToolSetup(name="look", description="", schema={}, effect="read"),))
    run.calls(LOOK)
    run.succeed("t1.1", elapsed_us=3_000_000)
    run.answer()
    # the recorded check says nothing of time, so that the call had as much as it wanted
    told = under(run, {"policy.tool_timeout_s": 2})
    assert (told.verdict, told.horizon) == ("would show the model something else", position_of(run, "tool_succeeded"))
    assert under(run, {"policy.tool_timeout_s": 3}).verdict == "unaffected"


def test_a_result_that_is_larger_than_allowed_would_have_been_refused(start: Start) -> None:
    run = start()
    run.calls(LOOK)
    run.succeed("t1.1", "x" * 100)
    run.answer()
    assert under(run, {"policy.max_result_bytes": 102}).verdict == "unaffected"
    assert under(run, {"policy.max_result_bytes": 101}).verdict == "would show the model something else"


def test_duplicates_are_blocked_or_let_through(start: Start) -> None:
    # given an action that was performed twice, where twice is allowed
    twice = start(policy=Policy(max_duplicate_actions=2))
    # and one that was blocked, where once is
    once = start()
    for run in (twice, once):
        run.calls(LOOK)
        run.succeed("t1.1")
        run.calls(LOOK)
    assert brief(under(twice, {"policy.max_duplicate_actions": 1})) == ("would be rejected", "tool_calls_accepted", "duplicate_action_blocked")
    assert brief(under(once, {"policy.max_duplicate_actions": 2})) == ("would go on", "duplicate_action_blocked", "tool_calls_accepted")


def test_a_cycle_that_is_seen_sooner_fails_the_run(start: Start) -> None:
    run = start(policy=Policy(max_duplicate_actions=9))
    for n in (1, 2):
        run.calls(LOOK)
        run.succeed(f"t{n}.1")
    told = under(run, {"policy.cycle_repeats": 2})
    assert (told.verdict, [change.derived for change in told.changes]) == ("would stop earlier", ["duplicate_action_blocked", "run_failed"])
    assert "policy.cycle_repeats=2 (was 3) (cycle)" in first(told).because


def test_refusals_end_the_run_or_are_told_to_the_model(start: Start) -> None:
    run = start()
    run.answer(refusal="I will not")
    told = under(run, {"policy.on_refusal": "observe"})
    assert brief(told) == ("would go on", "run_failed", "final_rejected")
    assert "policy.on_refusal" in first(told).because


def test_a_doubt_of_which_the_model_was_told_is_a_question_to_a_human(start: Start) -> None:
    run = start()
    run.calls(PAY)
    run.fail("t1.1", "timeout")
    told = under(run, {"policy.on_doubt": "ask"})
    assert brief(told) == ("would ask a human", "tool_closed", "(waits for a human)")
    assert told.horizon == first(told).position


def test_wrapping_up_or_not_shows_the_model_something_else(start: Start) -> None:
    run = turns(start(budgets=Budgets(max_turns=2)), 1)
    told = under(run, {"policy.wrap_up": False})
    assert (told.verdict, first(told).field) == ("would show the model something else", "data.wrap_up")


def test_an_approval_that_came_after_a_shorter_time_counts_for_nothing(start: Start) -> None:
    # given an approval after three seconds
    run = start()
    run.calls(SEND)
    run.detach()
    run.now += 3_000_000
    run.approve("t1.1")
    run.attach()
    run.succeed("t1.1")
    run.answer()
    assert under(run, {"policy.approval_expiry_s": 4}).verdict == "unaffected"
    assert brief(under(run, {"policy.approval_expiry_s": 2})) == ("would be rejected", "tool_started", "approval_expired")


@pytest.mark.parametrize(
    "changes", [{"policy.parallel_tools": 1}, {"policy.max_stuck_threads": 1}, {"policy.unknown_price": "free"}, {"policy.model_idle_timeout_s": 1}]
)
def test_what_no_recording_tells_is_assumed_and_said(start: Start, changes: dict[str, Any]) -> None:
    # given two calls that overlapped, the second of which ended first
    run = start()
    concurrent = [msgspec.structs.replace(act.check(f"t1.{n}"), concurrent=True) for n, act in enumerate((LOOK, SOUTH), 1)]
    proposed = tuple(f.ProposedCall(id=check.call, name="look", arguments_text=check.arguments) for check in concurrent)
    run.tell(f.ToolCallsRequested(calls=proposed), f.CallsChecked(checks=tuple(concurrent)))
    run.succeed("t1.2")
    run.succeed("t1.1")
    run.answer()
    told = under(run, changes)
    assert told.verdict == "unaffected"
    assert next(iter(changes)) in told.assumed[0]


def test_a_model_that_was_given_up_for_its_silence_would_have_been_waited_for(start: Start) -> None:
    run = start()
    run.tell(f.ModelFailed(error=f.ErrorInfo(type="idle_timeout", message="the model was silent", retryable=True)))
    assert under(run, {"policy.model_idle_timeout_s": 90}).verdict == "would go on"


# -- context


@pytest.mark.parametrize("changes", [{"context.observation_bytes": 600}, {"context.window_tokens": 1_000}])
def test_results_that_are_cut_show_the_model_something_else(start: Start, changes: dict[str, Any]) -> None:
    run = start(context=Context())
    run.calls(LOOK)
    run.succeed("t1.1", "page " * 2_000)
    run.answer()
    told = under(run, changes)
    assert (told.verdict, told.horizon) == ("would show the model something else", position_of(run, "model_requested", 1))
    assert next(iter(changes)) in first(told).because


def test_older_turns_that_give_way_sooner_show_the_model_something_else(start: Start) -> None:
    run = start(context=Context(window_tokens=100_000, keep_turns=1))
    for n in range(1, 11):
        run.calls(Act("look", f'{{"at":"{n}"}}'))
        run.succeed(f"t{n}.1", "page " * 300)
    told = under(run, {"context.window_tokens": 1_500})
    assert told.verdict == "would show the model something else"
    assert first(told).derived == "summary_requested"
    assert under(run, {"context.keep_turns": 3}).verdict == "unaffected"


def test_a_builder_that_shows_everything_changes_nothing_and_one_that_leaves_out_turns_does(start: Start) -> None:
    run = start(context=Context(keep_turns=1), tools=())
    for n in range(1, 5):
        run.calls(Act("look", f'{{"at":"{n}"}}'))
        run.succeed(f"t{n}.1")
    run.answer()
    assert under(run, {"context.relevant_turns": 9}).verdict == "unaffected"
    told = under(run, {"context.relevant_turns": 1})
    assert (told.verdict, first(told).derived) == ("would show the model something else", "context_chosen")
    assert "context.relevant_turns=1 (was none)" in first(told).because


# -- the agent's code


def checking(**changes: Any) -> Callable[..., Any]:
    """Today's code of the agent, which says something else of every call that would have been allowed."""

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        return [
            f.CallsChecked(checks=tuple(msgspec.structs.replace(check, **changes) for check in fact.checks)) if isinstance(fact, f.CallsChecked) else fact
            for fact in given
        ]

    return ask


def test_a_human_who_would_be_asked_is_taken_to_allow_it_and_the_run_goes_on(start: Start) -> None:
    # given two turns of one call each
    run = turns(start(), 2)
    # when today's code wants every call to be approved
    told = under(run, {}, checking(approval=True, approval_reason="it is careful now", digest=LOOK.digest))
    # then both are questions, what is assumed is said, and all of the recording counts
    assert told.verdict == "would ask a human"
    assert [(change.call_id, change.recorded, change.derived) for change in told.changes] == [
        ("t1.1", "tool_started", "approval_requested"),
        ("t2.1", "tool_started", "approval_requested"),
    ]
    assert [change.position for change in told.changes] == [position_of(run, "tool_started", n) for n in (0, 1)]
    assert told.horizon is None
    assert told.assumed == ("a human would have allowed look (t1.1)", "a human would have allowed look (t2.1)")


def test_what_comes_behind_a_question_is_still_decided_under_the_other_settings(start: Start) -> None:
    run = turns(start(policy=PLAIN), 3)
    told = under(run, {"budgets.max_turns": 1}, checking(approval=True, digest=LOOK.digest))
    assert [change.verdict for change in told.changes] == ["would ask a human", "would stop earlier"]
    assert (told.verdict, told.horizon, told.saved) == ("would ask a human", position_of(run, "model_requested", 1), None)


def test_a_call_that_would_be_refused_today_ends_the_evidence(start: Start) -> None:
    run = turns(start(), 2)
    told = under(run, {}, checking(kind="invalid_arguments", message="no such place"))
    assert brief(told) == ("would be rejected", "tool_calls_accepted", "tool_rejected")
    assert "the agent's tools" in first(told).because
    assert "(invalid_arguments): no such place" in first(told).because


def test_other_arguments_are_another_act(start: Start) -> None:
    told = under(turns(start(), 1), {}, checking(arguments='{"at":"west"}'))
    assert (told.verdict, first(told).field) == ("would act otherwise", "data.checks[0].arguments")


def test_a_human_who_would_not_be_asked_and_did_not_answer_in_time(start: Start) -> None:
    run = start(policy=Policy(approval_expiry_s=1))
    run.calls(SEND)
    run.detach()
    run.now += 2_000_000
    run.attach()
    run.answer()
    told = under(run, {}, checking(approval=False, digest=None))
    assert (told.verdict, told.horizon) == ("would go on", position_of(run, "approval_expired"))


@pytest.mark.parametrize("allowed", [True, False])
def test_a_human_who_would_not_be_asked_matters_only_where_they_refused(start: Start, allowed: bool) -> None:
    run = start()
    run.calls(SEND)
    run.detach()
    run.approve("t1.1") if allowed else run.deny("t1.1")
    run.attach()
    if allowed:
        run.succeed("t1.1")
    run.answer()
    told = under(run, {}, checking(approval=False, digest=None))
    assert told.verdict == "would go on"
    assert told.horizon == (None if allowed else position_of(run, "approval_denied"))


@pytest.mark.parametrize(("complaints", "verdict"), [((), "would stop earlier"), (("another word",), "would show the model something else")])
def test_other_words_of_a_validator(start: Start, complaints: tuple[str, ...], verdict: str) -> None:
    run = start()
    run.answer("one", complaints=("no",))
    run.answer("two")

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        return [f.AnswerChecked(validators=("polite",), complaints=complaints) if isinstance(fact, f.AnswerChecked) else fact for fact in given]

    told = under(run, {}, ask)
    assert told.verdict == verdict
    assert "the agent's validators polite" in first(told).because


def test_a_claim_that_would_be_turned_down_today(start: Start) -> None:
    run = start()
    run.answer()

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        return [f.AnswerChecked(validators=("polite",), complaints=("say please",)) if isinstance(fact, f.AnswerChecked) else fact for fact in given]

    told = under(run, {}, ask)
    assert brief(told) == ("would be rejected", "run_completed", "final_rejected")
    assert "(validator): say please" in first(told).because


@pytest.mark.parametrize("engine", [1, 2])
@pytest.mark.parametrize(
    ("tool", "verdict"),
    [({"approval": "always"}, "unaffected"), ({"retries": 9}, "unaffected"), ({"schema": {"type": "object"}}, "would show the model something else")],
)
def test_what_an_agent_declares_counts_as_far_as_the_model_sees_it(start: Start, engine: int, tool: dict[str, Any], verdict: str) -> None:
    look = f.ToolSetup(name="look", description="", schema={}, effect="read")
    run = turns(start(engine=engine, tools=(look,)), 1)

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        today = (msgspec.structs.replace(look, **tool),)
        return [
            msgspec.structs.replace(fact, setup=msgspec.structs.replace(fact.setup, tools=today)) if isinstance(fact, f.RunStarted) else fact for fact in given
        ]

    told = under(run, {}, ask)
    assert told.verdict == verdict
    if told.changes:
        assert (told.horizon, first(told).because.partition(" (")[0]) == (position_of(run, "model_requested"), "the agent's tools")


# -- forks


@pytest.mark.parametrize("engine", [1, 2])
@pytest.mark.parametrize("back", [0, 1, 3])
def test_a_fork_is_decided_again_from_the_beginning_of_its_parent(start: Start, engine: int, back: int) -> None:
    # given a run that was split off at its second request, where the results are in, or while the call runs; with more turns than its parent had
    parent = turns(start(policy=PLAIN, engine=engine, budgets=Budgets(max_turns=9)), 2)
    fork = parent.fork("other", position_of(parent, "model_requested", 1) - back, changes={"budgets.max_turns": 7})
    if back == 3:
        fork.succeed("t1.1")
    fork.calls(Act("look", '{"at":"elsewhere"}'))
    fork.succeed("t2.1")
    fork.answer()
    # when it is decided again under what it had, and under other limits
    assert under(fork, as_it_was(fork.run.begun)).verdict == "unaffected"
    assert under(fork, {"budgets.max_turns": 50}).verdict == "unaffected"
    # then a limit is met in the parent's part as in its own, in place of what its own settings say
    for limit in (1, 2):
        told = under(fork, {"budgets.max_turns": limit})
        assert (told.verdict, first(told).turn) == ("would stop earlier", limit + 1)
    assert "(was 7)" in first(told).because


# -- recordings that are broken


def test_a_recording_that_cannot_be_followed_is_believed_up_to_there(start: Start) -> None:
    run = turns(start(policy=PLAIN), 3)
    broken = [*run.rows[:12], (13, b"{}"), *run.rows[13:]]
    assert what_if(run.id, broken, run.payloads.__getitem__, {"budgets.max_turns": 99}).verdict == "cannot be told"
    # what would have come before is told all the same
    assert what_if(run.id, broken, run.payloads.__getitem__, {"budgets.max_turns": 1}).verdict == "would stop earlier"
    # and so it is where a record is missing, up to the batch that it belongs to
    missing = [*run.rows[:12], *run.rows[13:]]
    told = what_if(run.id, missing, run.payloads.__getitem__, {})
    assert (told.verdict, told.horizon) == ("cannot be told", run.records[12].batch - 1)
    assert "position 13 is missing" in told.evidence
