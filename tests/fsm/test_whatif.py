"""What would have been decided otherwise: under other limits and policies, at which position, why, and how far the recording proves it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from refold.events import facts as f
from refold.events.settings import Budgets, Context, Policy
from refold.events.words import Effect
from refold.fsm import calls
from refold.fsm.whatif import Change, Saved, WhatIf, what_if
from refold.testing.trajectory import Act, Trajectory

Start = Callable[..., Trajectory]

LOOK = Act("look", '{"at":"north"}')
SOUTH = Act("look", '{"at":"south"}')
SEND = Act("send", effect="side_effect", approval=True)
PAY = Act("pay", effect="side_effect")
PLAIN = Policy(wrap_up=False)
USAGE = f.Usage(input_tokens=100, output_tokens=10, cost_usd="0.001")


def first(told: WhatIf) -> Change:
    return told.changes[0]


def brief(told: WhatIf) -> tuple[str, Any, Any]:
    return told.verdict, first(told).recorded, first(told).derived


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
    run = start(policy=PLAIN, turns=3)
    # when it is decided again under a limit
    told = run.what_if(changes)
    # then it ends in place of a request, and what came after is saved
    assert brief(told) == ("would stop earlier", "model_requested", "run_stopped")
    assert reason in first(told).because
    assert told.horizon == first(told).position
    turn = first(told).turn - 1
    usd = {0: "0.004", 1: "0.003", 2: "0.002"}[turn]
    assert told.saved == Saved(turns=4 - turn, tokens=110 * (4 - turn), cost_usd=usd)


def test_money_that_is_spent_by_a_response_lets_none_of_its_calls_run(start: Start) -> None:
    run = start(policy=PLAIN, turns=3)
    told = run.what_if({"budgets.max_cost_usd": "0.0015"})
    assert brief(told) == ("would stop earlier", "tool_started", "tool_closed")
    assert [change.derived for change in told.changes] == ["tool_closed", "run_stopped"]
    assert "budgets.max_cost_usd=0.0015 (was 1) (max_cost_usd)" in first(told).because
    assert told.saved == Saved(turns=2, tokens=220, cost_usd="0.002")


def test_a_last_turn_that_is_asked_for_sooner_is_the_end_and_counts_as_it_was_recorded(start: Start) -> None:
    run = start(turns=3)
    told = run.what_if({"budgets.max_turns": 2})
    assert (told.verdict, first(told).field, told.saved) == ("would stop earlier", "data.wrap_up", Saved(turns=2, tokens=220, cost_usd="0.002"))
    assert first(told).because.startswith("budgets.max_turns=2 (was 12)")
    assert told.horizon == run.position_of("model_requested 2")


def test_a_last_turn_where_the_recorded_run_ended_anyway_only_looks_different_to_the_model(start: Start) -> None:
    run = start(turns=1)
    told = run.what_if({"budgets.max_turns": 2})
    assert (told.verdict, told.saved) == ("would show the model something else", None)


def test_active_time_that_is_up_while_the_model_answers_cuts_the_answer(start: Start) -> None:
    # given an answer, one with calls, one that was no turn and one that broke, each of which took two seconds
    answered, called, invalid, broke = (start() for _ in range(4))
    answered.tell(f.FinalProposed(text="Done.", elapsed_us=2_000_000), f.AnswerChecked())
    called.calls(LOOK, elapsed_us=2_000_000)
    invalid.interrupt("invalid", elapsed_us=2_000_000)
    broke.tell(f.ModelFailed(error=f.ErrorInfo(type="stream_broken", message="it broke", retryable=True), elapsed_us=2_000_000))
    for run, tag in ((answered, "final_proposed"), (called, "tool_calls_requested"), (invalid, "model_interrupted"), (broke, "model_failed")):
        # then less time cuts it there, and more does not
        told = run.what_if({"budgets.timeout_s": 1})
        assert told.verdict == "would stop earlier"
        assert told.saved == Saved(turns=run.run.turn - 1, tokens=0, cost_usd="0")
        assert (told.horizon, first(told).recorded, first(told).derived) == (run.position_of(tag), tag, "run_stopped")
        assert "budgets.timeout_s=1 (was 120) (timeout_s)" in first(told).because
        assert run.what_if({"budgets.timeout_s": 3}).verdict == "unaffected"


def test_time_that_is_up_while_a_response_was_cut_by_another_limit_ends_the_run_by_that(start: Start) -> None:
    run = start()
    run.interrupt("limit", limit="max_tokens", elapsed_us=2_000_000)
    told = run.what_if({"budgets.timeout_s": 1})
    assert (told.verdict, first(told).field, first(told).recorded, first(told).derived) == ("would act otherwise", "data.limit", "max_tokens", "timeout_s")


@pytest.mark.parametrize("effect", ["read", "idempotent", "side_effect"])
@pytest.mark.parametrize(("name", "less", "more"), [("timeout_s", 1, 3), ("deadline", "2001-09-09T01:46:41Z", "2001-09-09T01:46:43Z")])
def test_time_that_is_up_while_a_tool_runs_gives_up_the_call_and_ends_the_run(start: Start, effect: Effect, name: str, less: Any, more: Any) -> None:
    # given a call that took two seconds
    run = start()
    run.calls(Act("look", effect=effect))
    run.now += 2_000_000
    run.succeed("t1.1", elapsed_us=2_000_000)
    run.answer(usage=USAGE)
    # then with less time it fails, whatever it gave, and the run ends
    told = run.what_if({f"budgets.{name}": less})
    assert brief(told) == ("would stop earlier", "tool_succeeded", "tool_failed")
    assert f"budgets.{name}={less}" in first(told).because
    assert "given up after 1 s" in first(told).because
    assert (told.horizon, told.saved) == (run.position_of("tool_succeeded"), Saved(turns=1, tokens=110, cost_usd="0.001"))
    assert run.what_if({f"budgets.{name}": more}).verdict == "unaffected"


@pytest.mark.parametrize("effect", ["read", "side_effect"])
def test_behind_a_call_that_active_time_cut_nothing_is_known_where_there_is_more(start: Start, effect: Effect) -> None:
    run = start(budgets=Budgets(timeout_s=1))
    run.calls(Act("look", effect=effect))
    run.fail("t1.1", "timeout", elapsed_us=1_000_000)
    assert run.tags[-1] == "run_stopped"
    told = run.what_if({"budgets.timeout_s": None})
    assert (told.verdict, first(told).field, told.horizon) == ("would go on", "data.kind", run.position_of("tool_failed"))
    assert "budgets.timeout_s=none (was 1) (timeout_s)" in first(told).because
    assert run.what_if({"budgets.timeout_s": 0.5}).verdict == "unaffected"


def test_calls_that_overlap_each_have_the_active_time_that_is_left_when_they_begin(start: Start) -> None:
    # given two calls that began together and took two seconds each
    run = start()
    checks = tuple(msgspec.structs.replace(act.check(f"t1.{n}"), concurrent=True) for n, act in enumerate((LOOK, SOUTH), 1))
    proposed = tuple(f.ProposedCall(id=check.call, name="look", arguments_text=check.arguments) for check in checks)
    run.tell(f.ToolCallsRequested(calls=proposed), f.CallsChecked(checks=checks))
    run.succeed("t1.1", elapsed_us=2_000_000)
    run.succeed("t1.2", elapsed_us=2_000_000)
    run.answer()
    # then three seconds are enough for both, and used up behind them
    assert brief(run.what_if({"budgets.timeout_s": 3})) == ("would stop earlier", "model_requested", "run_stopped")
    assert brief(run.what_if({"budgets.timeout_s": 1})) == ("would stop earlier", "tool_succeeded", "tool_failed")


def test_a_report_on_the_way_that_goes_beyond_a_limit_cuts_the_stream_there(start: Start) -> None:
    run = start()
    run.tell(f.UsageUpdated(usage=f.Usage(input_tokens=900, output_tokens=200)))
    run.answer(usage=f.Usage(input_tokens=900, output_tokens=300))
    told = run.what_if({"budgets.max_tokens": 1_000})
    assert (told.verdict, told.horizon) == ("would stop earlier", run.position_of("usage_updated"))
    assert told.saved == Saved(turns=0, tokens=100, cost_usd="0")


def test_fewer_calls_refuse_the_later_ones(start: Start) -> None:
    run = start()
    run.calls(LOOK, SOUTH)
    run.succeed("t1.1")
    run.succeed("t1.2")
    run.answer()
    told = run.what_if({"budgets.max_tool_calls": 1})
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
        assert run.what_if({"budgets.max_output_tokens": 500}).verdict == "unaffected"
        assert ended_at(run, run.what_if({"budgets.max_output_tokens": 499})) == tag


def test_a_higher_output_limit_matters_where_the_answer_was_cut_and_how_is_not_known(start: Start) -> None:
    run = start()
    run.answer(stop_reason="length", usage=f.Usage(input_tokens=10, output_tokens=4_096))
    assert ended_at(run, run.what_if({"budgets.max_output_tokens": 8_000})) == "final_proposed"


def test_a_limit_that_is_lifted_lets_the_run_go_on(start: Start) -> None:
    # given a run that was stopped after one turn, and one whose stream was cut
    stopped = start(budgets=Budgets(max_turns=1), policy=PLAIN)
    stopped.calls(LOOK)
    stopped.succeed("t1.1")
    cut = start(budgets=Budgets(max_tokens=2_000))
    cut.interrupt("limit", limit="max_tokens", usage=f.Usage(input_tokens=1_000, output_tokens=1_100))
    # when there is more
    told = stopped.what_if({"budgets.max_turns": 5})
    # then both go on
    assert brief(told) == ("would go on", "run_stopped", "model_requested")
    assert first(told).because == "budgets.max_turns=5 (was 1) (max_turns): the limit of 1 turns is reached (1 were made)"
    assert cut.what_if({"budgets.max_tokens": 9_000}).verdict == "would go on"
    assert cut.what_if({"budgets.max_tokens": 2_050}).verdict == "unaffected"


@pytest.mark.parametrize(
    ("was", "changes"),
    [
        (Budgets(max_cost_usd="0.0005"), {"budgets.max_cost_usd": "1"}),
        (Budgets(max_tokens=350), {"budgets.max_tokens": 9_000}),
        (Budgets(timeout_s=1), {"budgets.timeout_s": None}),
        (Budgets(deadline="2001-09-09T01:46:41Z"), {"budgets.deadline": None}),
    ],
)
def test_a_limit_that_is_lifted_is_named_by_what_it_said(start: Start, was: Budgets, changes: dict[str, Any]) -> None:
    # given a run that ended in place of a request behind an answer that was turned down
    run = start(budgets=was, policy=PLAIN)
    run.now += 3_000_000
    run.tell(f.FinalProposed(text="No.", elapsed_us=1_000_000, usage=USAGE), f.AnswerChecked(complaints=("no",)))
    assert run.tags[-1] == "run_stopped"
    (path,) = changes
    told = run.what_if(changes)
    assert brief(told) == ("would go on", "run_stopped", "model_requested")
    assert first(told).because.endswith(f"({path.partition('.')[2]}): {run.last[-1].detail}")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("path", "less", "derived", "code"),
    [("budgets.max_cost_usd", "0.0005", "tool_closed", "max_cost_usd"), ("budgets.max_tool_calls", 0, "tool_rejected", "limit_reached")],
)
def test_a_call_that_a_limit_keeps_from_running_is_explained_by_that_and_the_end_by_its_own(
    start: Start, path: str, less: Any, derived: str, code: str
) -> None:
    # given a response that used up tokens, so that the run ended behind its call
    run = start(policy=PLAIN, budgets=Budgets(max_tokens=350))
    run.calls(LOOK, usage=USAGE)
    run.succeed("t1.1")
    assert run.run.reason == "max_tokens"
    # when another limit does not even let the call run
    told = run.what_if({path: less})
    # then
    assert [change.derived for change in told.changes] == [derived, "run_stopped"]
    assert [change.because.startswith(f"{path}={less} (was ") for change in told.changes] == [True, True]
    assert [f"({reason}): " in change.because for change, reason in zip(told.changes, (code, "max_tokens"), strict=True)] == [True, True]


def test_two_last_turns_differ_by_what_they_show(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=2), context=Context())
    run.calls(LOOK)
    run.succeed("t1.1", "page " * 2_000)
    run.answer()
    told = run.what_if({"context.observation_bytes": 600})
    assert first(told).because == "context.observation_bytes=600 (was none) (context): the request shows something else"
    assert "(wrap_up): it is not the last turn" in first(run.what_if({"policy.wrap_up": False})).because


SPENT = f.Usage(input_tokens=5_000, output_tokens=10, cost_usd="0.37")


@pytest.mark.parametrize(
    ("was", "changes"),
    [
        (Budgets(max_cost_usd="0.2"), {"budgets.max_cost_usd": "0.35"}),
        (Budgets(max_cost_usd="0.35"), {"budgets.max_cost_usd": "0.2"}),
        (Budgets(max_tokens=3_000), {"budgets.max_tokens": 4_000}),
        (Budgets(deadline="2001-09-09T01:46:50Z"), {"budgets.deadline": "2001-09-09T01:46:55Z"}),
    ],
)
def test_another_number_in_words_that_no_request_shows_is_nothing(start: Start, was: Budgets, changes: dict[str, Any]) -> None:
    # given a run that was stopped by a limit, which closed the calls of its last response
    run = start(budgets=was)
    run.now += 60_000_000
    run.calls(LOOK, SOUTH, usage=SPENT)
    assert run.tags[-2:] == ["tool_results_injected", "run_stopped"]
    # then one that is used up just as well changes nothing that anybody sees
    told = run.what_if(changes)
    assert (told.verdict, told.changes, told.horizon) == ("unaffected", (), None)


def test_a_run_that_ends_in_the_same_place_for_another_reason_does_not_end_earlier(start: Start) -> None:
    run = start(budgets=Budgets(max_tokens=3_000))
    run.calls(LOOK, usage=SPENT)
    told = run.what_if({"budgets.max_tokens": None, "budgets.max_cost_usd": "0.2"})
    assert (told.verdict, first(told).field, first(told).recorded, first(told).derived) == ("would act otherwise", "data.reason", "max_tokens", "max_cost_usd")


# -- policies


def test_a_policy_that_stops_on_an_error_ends_the_run_with_it(start: Start) -> None:
    run = start()
    run.calls(LOOK, SOUTH)
    run.fail("t1.1")
    run.succeed("t1.2")
    run.answer()
    told = run.what_if({"policy.on_tool_error": "stop"})
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
    told = run.what_if(changes)
    assert brief(told) == ("would stop earlier", "retry_scheduled", "model_error_observed")
    assert f"policy.{name}" in first(told).because


def test_more_attempts_at_a_request_go_on_where_it_was_given_up(start: Start) -> None:
    run = start(policy=Policy(max_provider_retries=0))
    run.model_fails()
    assert brief(run.what_if({"policy.max_provider_retries": 1})) == ("would go on", "model_error_observed", "retry_scheduled")


def test_fewer_invalid_turns_fail_the_run(start: Start) -> None:
    run = start(policy=PLAIN)
    run.interrupt("invalid")
    run.answer()
    assert brief(run.what_if({"policy.max_model_errors": 0})) == ("would stop earlier", "model_requested", "run_failed")


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
    told = run.what_if({"policy.max_tool_retries": 0})
    # then the first is given up at once
    assert brief(told) == ("would show the model something else", "retry_scheduled", "tool_closed")
    assert first(told).call_id == "t1.1"


def test_attempts_that_are_used_up_close_the_call_and_the_policy_of_errors_ends_the_run(start: Start) -> None:
    tools = (f.ToolSetup(name="look", description="", schema={}, effect="read"),)
    run = start(policy=Policy(on_tool_error="stop"), tools=tools)
    run.calls(Act("look", retries=1))
    run.fail("t1.1", retryable=True)
    told = run.what_if({"policy.max_tool_retries": 0})
    assert [change.derived for change in told.changes] == ["tool_closed", "run_failed"]
    assert ["(execution_failed): it went" in told.changes[0].because, "(on_tool_error): look (t1.1)" in told.changes[1].because] == [True, True]


def test_a_call_that_took_longer_than_its_time_would_have_been_given_up(start: Start) -> None:
    run = start(tools=(f.ToolSetup(name="look", description="", schema={}, effect="read"),))
    run.calls(LOOK)
    run.succeed("t1.1", elapsed_us=3_000_000)
    run.answer()
    # the recorded check says nothing of time, so that the call had as much as it wanted
    told = run.what_if({"policy.tool_timeout_s": 2})
    assert (told.verdict, told.horizon) == ("would show the model something else", run.position_of("tool_succeeded"))
    assert run.what_if({"policy.tool_timeout_s": 3}).verdict == "unaffected"


def test_a_result_that_is_larger_than_allowed_would_have_been_refused(start: Start) -> None:
    run = start()
    run.calls(LOOK)
    run.succeed("t1.1", "x" * 100)
    run.answer()
    assert run.what_if({"policy.max_result_bytes": 102}).verdict == "unaffected"
    assert run.what_if({"policy.max_result_bytes": 101}).verdict == "would show the model something else"


def test_duplicates_are_blocked_or_let_through(start: Start) -> None:
    # given an action that was performed twice, where twice is allowed
    twice = start(policy=Policy(max_duplicate_actions=2))
    # and one that was blocked, where once is
    once = start()
    for run in (twice, once):
        run.calls(LOOK)
        run.succeed("t1.1")
        run.calls(LOOK)
    assert brief(twice.what_if({"policy.max_duplicate_actions": 1})) == ("would be rejected", "tool_calls_accepted", "duplicate_action_blocked")
    assert brief(once.what_if({"policy.max_duplicate_actions": 2})) == ("would go on", "duplicate_action_blocked", "tool_calls_accepted")


def test_a_call_that_is_refused_for_another_reason_tells_the_model_something_else(start: Start) -> None:
    # given a duplicate that was blocked, and one that was beyond the limit of calls
    blocked, beyond = start(), start(budgets=Budgets(max_tool_calls=1))
    for run in (blocked, beyond):
        run.calls(LOOK)
        run.succeed("t1.1")
        run.calls(LOOK)
        run.answer()
    # then each would be the other
    told, back = blocked.what_if({"budgets.max_tool_calls": 1}), beyond.what_if({"budgets.max_tool_calls": 9})
    assert brief(told) == ("would show the model something else", "duplicate_action_blocked", "tool_rejected")
    assert brief(back) == ("would show the model something else", "tool_rejected", "duplicate_action_blocked")


def test_a_cycle_that_is_seen_sooner_fails_the_run(start: Start) -> None:
    run = start(policy=Policy(max_duplicate_actions=9))
    for n in (1, 2):
        run.calls(LOOK)
        run.succeed(f"t{n}.1")
    told = run.what_if({"policy.cycle_repeats": 2})
    assert (told.verdict, [change.derived for change in told.changes]) == ("would stop earlier", ["duplicate_action_blocked", "run_failed"])
    assert "policy.cycle_repeats=2 (was 3) (cycle)" in first(told).because


def test_refusals_end_the_run_or_are_told_to_the_model(start: Start) -> None:
    run = start()
    run.answer(refusal="I will not")
    told = run.what_if({"policy.on_refusal": "observe"})
    assert brief(told) == ("would go on", "run_failed", "final_rejected")
    assert "policy.on_refusal" in first(told).because


def test_a_doubt_of_which_the_model_was_told_is_a_question_to_a_human(start: Start) -> None:
    run = start()
    run.calls(PAY)
    run.fail("t1.1", "timeout")
    told = run.what_if({"policy.on_doubt": "ask"})
    assert brief(told) == ("would ask a human", "tool_closed", "(waits for a human)")
    assert told.horizon == first(told).position


def test_wrapping_up_or_not_shows_the_model_something_else(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=2), turns=1)
    told = run.what_if({"policy.wrap_up": False})
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
    assert run.what_if({"policy.approval_expiry_s": 4}).verdict == "unaffected"
    assert brief(run.what_if({"policy.approval_expiry_s": 2})) == ("would be rejected", "tool_started", "approval_expired")


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
    told = run.what_if(changes)
    assert told.verdict == "unaffected"
    assert next(iter(changes)) in told.assumed[0]


def test_a_model_that_was_given_up_for_its_silence_would_have_been_waited_for(start: Start) -> None:
    run = start()
    run.tell(f.ModelFailed(error=f.ErrorInfo(type="idle_timeout", message="the model was silent", retryable=True)))
    assert run.what_if({"policy.model_idle_timeout_s": 90}).verdict == "would go on"


# -- context


@pytest.mark.parametrize("changes", [{"context.observation_bytes": 600}, {"context.window_tokens": 1_000}])
def test_results_that_are_cut_show_the_model_something_else(start: Start, changes: dict[str, Any]) -> None:
    run = start(context=Context())
    run.calls(LOOK)
    run.succeed("t1.1", "page " * 2_000)
    run.answer()
    told = run.what_if(changes)
    assert (told.verdict, told.horizon) == ("would show the model something else", run.position_of("model_requested 2"))
    assert next(iter(changes)) in first(told).because
    assert [assumed for assumed in told.assumed if "read_result" in assumed and "by its length" in assumed]


def test_older_turns_that_give_way_sooner_show_the_model_something_else(start: Start) -> None:
    run = start(context=Context(window_tokens=100_000, keep_turns=1))
    for n in range(1, 11):
        run.calls(Act("look", f'{{"at":"{n}"}}'))
        run.succeed(f"t{n}.1", "page " * 300)
    told = run.what_if({"context.window_tokens": 1_500})
    assert told.verdict == "would show the model something else"
    assert first(told).derived == "summary_requested"
    assert run.what_if({"context.keep_turns": 3}).verdict == "unaffected"


def test_a_builder_that_shows_everything_changes_nothing_and_one_that_leaves_out_turns_does(start: Start) -> None:
    run = start(context=Context(keep_turns=1), tools=())
    for n in range(1, 5):
        run.calls(Act("look", f'{{"at":"{n}"}}'))
        run.succeed(f"t{n}.1")
    run.answer()
    assert run.what_if({"context.relevant_turns": 9}).verdict == "unaffected"
    told = run.what_if({"context.relevant_turns": 1})
    assert (told.verdict, first(told).derived) == ("would show the model something else", "context_chosen")
    assert "context.relevant_turns=1 (was none)" in first(told).because


def test_what_a_builder_would_choose_that_is_the_agents_cannot_be_told_without_the_agent(start: Start) -> None:
    run = start(context=Context(keep_turns=9), context_builder="mine", turns=3)
    told = run.what_if({"context.keep_turns": 1})
    assert (told.verdict, first(told).derived) == ("cannot be told", "context_chosen")
    assert "context.keep_turns=1 (was 9) (context): the agent's mine would be asked" in first(told).because


# -- forks


@pytest.mark.parametrize("engine", [1, 2])
@pytest.mark.parametrize("back", [0, 1, 3])
def test_a_fork_is_decided_again_from_the_beginning_of_its_parent(forked: Start, engine: int, back: int) -> None:
    # given a run that was split off at its second request, where the results are in, or while the call runs
    fork = forked(engine=engine, back=back)
    # when it is decided again under other limits
    assert fork.what_if({"budgets.max_turns": 50}).verdict == "unaffected"
    # then a limit is met in the parent's part as in its own, in place of what its own settings say
    for limit in (1, 2):
        told = fork.what_if({"budgets.max_turns": limit})
        assert (told.verdict, first(told).turn) == ("would stop earlier", limit + 1)
    assert "(was 7)" in first(told).because


# -- recordings that are broken


def test_a_recording_that_cannot_be_followed_is_believed_up_to_there(start: Start) -> None:
    run = start(policy=PLAIN, turns=3)
    broken = [*run.rows[:12], (13, b"{}"), *run.rows[13:]]
    assert what_if(run.id, broken, run.payloads.__getitem__, {"budgets.max_turns": 99}).verdict == "cannot be told"
    # what would have come before is told all the same
    assert what_if(run.id, broken, run.payloads.__getitem__, {"budgets.max_turns": 1}).verdict == "would stop earlier"
    # and so it is where a record is missing, up to the batch that it belongs to
    missing = [*run.rows[:12], *run.rows[13:]]
    told = what_if(run.id, missing, run.payloads.__getitem__, {})
    assert (told.verdict, told.horizon) == ("cannot be told", run.records[12].batch - 1)
    assert "position 13 is missing" in told.evidence


@pytest.mark.parametrize("damaged", [7, 8])
def test_what_is_whole_before_the_damage_counts(start: Start, damaged: int) -> None:
    # given a run whose first call, or what it gave, is damaged
    run = start(policy=PLAIN, turns=1)
    assert run.tags[6:8] == ["tool_started", "tool_succeeded"]
    broken = [*run.rows[: damaged - 1], (damaged, b"{}"), *run.rows[damaged:]]
    told = what_if(run.id, broken, run.payloads.__getitem__, {"budgets.max_cost_usd": "0.0005"})
    # then the call that would have been closed is known where its record is whole, and nothing is told of it where it is not
    if damaged == 8:
        assert (brief(told), told.horizon) == (("would stop earlier", "tool_started", "tool_closed"), 7)
    else:
        assert (told.verdict, told.changes, told.horizon) == ("cannot be told", (), 6)
    assert what_if(run.id, broken, run.payloads.__getitem__, {}).horizon == damaged - 1


def test_inputs_that_are_whole_before_a_damaged_one_of_their_batch_derive_nothing(start: Start) -> None:
    # given a response whose checks are damaged, and a run whose driver is
    run = start(policy=PLAIN, turns=1)
    for damaged in (2, 5):
        broken = [*run.rows[: damaged - 1], (damaged, b"{}"), *run.rows[damaged:]]
        told = what_if(run.id, broken, run.payloads.__getitem__, {"budgets.max_turns": 1, "budgets.timeout_s": 1})
        assert (told.verdict, told.changes, told.horizon) == ("cannot be told", (), damaged - 1)


def test_rules_that_raise_are_followed_up_to_where_they_do(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(turns=1)

    def key(*_: Any) -> str:
        raise KeyError("typo")

    monkeypatch.setattr(calls, "key", key)
    told = run.what_if({"budgets.max_turns": 9})
    assert (told.verdict, told.horizon) == ("cannot be told", run.position_of("tool_started") - 1)
    assert "the rules of today raise KeyError: 'typo'" in told.evidence
