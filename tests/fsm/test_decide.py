"""The rules of the loop as trajectories: what was told, and what follows from it."""

from collections.abc import Callable

import pytest

from refold.events import facts as f
from refold.events.codec import Stamp
from refold.events.settings import Budgets, Policy
from refold.events.words import CallId, Digest
from refold.fsm.decide import decide, follow
from refold.fsm.effects import AskModel, RunTool, pending
from refold.fsm.machine import Illegal
from refold.projections.revisions import UnsupportedEngine
from refold.testing.trajectory import START, Act, Trajectory

Start = Callable[..., Trajectory]

LOOK = Act("look", '{"at":"north"}')
SOUTH = Act("look", '{"at":"south"}')
EDIT = Act("edit", effect="idempotent")
SEND = Act("send", effect="side_effect")
ASK = Act("ask_user", "Which year?")
LOOSE = Policy(max_duplicate_actions=99)


def told(run: Trajectory) -> list[str]:
    """What the next request will show that no request has shown, in short."""
    return [message.text or str(message.content) for message in run.run.fresh]


def end(run: Trajectory) -> tuple[str, str | None, str]:
    return run.run.status, run.run.reason, run.run.state


# -- a turn


def test_a_run_begins_with_a_request_in_its_first_batch(start: Start) -> None:
    run = start()
    assert run.tags == ["run_started", "driver_attached", "model_requested"]
    assert {record.batch for record in run.records} == {1}


def test_a_turn_with_one_call_is_exactly_two_batches(start: Start) -> None:
    run = start()
    assert run.calls(LOOK) == ["tool_calls_requested", "calls_checked", "tool_calls_accepted", "tool_started"]
    assert run.succeed("t1.1") == ["tool_succeeded", "tool_results_injected", "model_requested"]
    assert run.answer() == ["final_proposed", "answer_checked", "run_completed"]
    assert end(run) == ("completed", None, "done")


def test_calls_run_one_after_another_and_are_injected_in_call_order(start: Start) -> None:
    run = start()
    run.calls(LOOK, Act("nosuch", kind="unknown_tool"), SOUTH)
    assert run.tags[-3:] == ["tool_rejected", "tool_calls_accepted", "tool_started"]
    assert run.succeed("t1.1") == ["tool_succeeded", "tool_started"]
    assert run.found("tool_started").call == "t1.3"
    assert run.succeed("t1.3") == ["tool_succeeded", "tool_results_injected", "model_requested"]
    assert run.records[-2].fact == f.ToolResultsInjected(calls=(CallId("t1.1"), CallId("t1.2"), CallId("t1.3")))


def test_a_turn_whose_calls_are_all_refused_is_one_batch(start: Start) -> None:
    run = start()
    assert run.calls(Act("nosuch", kind="unknown_tool")) == [
        "tool_calls_requested",
        "calls_checked",
        "tool_rejected",
        "tool_calls_accepted",
        "tool_results_injected",
        "model_requested",
    ]


def test_what_is_pending_is_the_open_request_then_the_started_call(start: Start) -> None:
    run = start()
    assert [type(effect) for effect in pending(run.run)] == [AskModel]
    run.calls(LOOK)
    (effect,) = pending(run.run)
    assert isinstance(effect, RunTool)
    assert (effect.call, effect.name, effect.arguments, effect.attempt) == ("t1.1", "look", LOOK.arguments, 1)
    run.detach()
    assert pending(run.run) == ()


def test_notes_of_a_result_are_kept_before_the_results_are_shown(start: Start) -> None:
    run = start()
    run.calls(LOOK)
    notes = (f.Note(text="one"), f.Note(text="two", source_ids=("doc",)))
    assert run.succeed("t1.1", notes=notes) == ["tool_succeeded", "note_stored", "note_stored", "tool_results_injected", "model_requested"]


def test_nothing_follows_while_nobody_drives(start: Start) -> None:
    run = start(attach=False)
    assert run.tags == ["run_started"]
    assert run.say("hello") == ["user_said"]
    assert run.attach() == ["driver_attached", "model_requested"]
    assert run.detach() == ["driver_detached"]
    assert follow(run.run, Stamp(at=START, driver="nobody")) is None


def test_a_run_of_unknown_rules_is_not_decided() -> None:
    with pytest.raises(UnsupportedEngine, match="99"):
        Trajectory().start(engine=99)


def test_the_run_that_decide_was_given_stays_as_it_was(start: Start) -> None:
    run = start()
    before, position = run.run, run.run.position
    batch = decide(before, [f.ModelFailed(error=f.ErrorInfo(type="x", message="y"))], Stamp(at=START, driver="x"))
    assert batch.run.state == "done"
    assert (before.position, before.state) == (position, "streaming_model")


# -- facts from outside


def test_facts_from_outside_bring_nothing_about_by_themselves(start: Start) -> None:
    run = start()
    run.calls(ASK, Act("send", "1", effect="side_effect", approval=True), Act("send", "2", effect="side_effect", approval=True))
    assert run.say("hurry") == ["user_said"]
    assert run.approve("t1.2") == ["approval_granted"]
    assert run.deny("t1.3") == ["approval_denied"]
    assert run.tell(f.ClarificationReceived(call=CallId("t1.1"), text="2023", who="ann")) == ["clarification_received"]
    assert run.tell(f.LateOutcome(call=CallId("t1.1"), outcome="x")) == ["late_outcome"] if run.attempt("t1.1") else True
    assert run.cancel() == ["cancel_requested"]
    # only somebody who drives goes on
    assert run.attach()[0] == "driver_attached"
    assert run.run.state == "done"


def test_what_was_said_is_shown_behind_the_results_in_the_order_sent(start: Start) -> None:
    run = start()
    run.calls(LOOK)
    run.say("first")
    run.say("second")
    assert run.run.unheard == ("first", "second")
    run.succeed("t1.1")
    assert run.run.unheard == ()
    assert [entry.kind for entry in run.run.entries] == ["user", "assistant", "success", "user", "user"]


def test_a_message_that_is_in_the_log_before_an_answer_is_accepted_sends_the_run_on(start: Start) -> None:
    run = start()
    run.say("one more thing")
    assert run.answer("Done.") == ["final_proposed", "answer_checked", "final_rejected", "model_requested"]
    assert run.found("final_rejected").because == "user_said"
    # the answer became commentary, and nothing but the message follows it
    assert [entry.kind for entry in run.run.entries] == ["user", "assistant", "user"]
    run.answer()
    assert run.run.status == "completed"


# -- humans


def test_an_approval_lets_exactly_that_call_run_once(start: Start) -> None:
    run = start()
    act = Act("send", effect="side_effect", approval=True)
    assert run.calls(act)[-2:] == ["tool_calls_accepted", "approval_requested"]
    assert (run.run.status, pending(run.run)) == ("waiting_for_user", ())
    # what is granted is what was shown, nothing else
    with pytest.raises(Illegal, match="grants what was shown"):
        run.approve("t1.1", Digest("other"))
    assert run.approve("t1.1") == ["approval_granted"]
    assert run.run.status == "running"
    assert run.attach() == ["driver_attached", "tool_started"]
    with pytest.raises(Illegal):
        run.approve("t1.1")
    run.succeed("t1.1")
    assert run.kinds == [] or run.run.state == "streaming_model"


def test_a_denial_is_the_result_of_its_call(start: Start) -> None:
    run = start()
    run.calls(Act("send", effect="side_effect", approval=True))
    run.deny("t1.1", "Ann has moved")
    assert run.kinds == ["approval_denied"]
    assert run.attach() == ["driver_attached", "tool_results_injected", "model_requested"]
    with pytest.raises(Illegal):
        run.deny("t1.1")


def test_a_later_denial_wins_until_the_approval_is_used(start: Start) -> None:
    run = start()
    run.calls(Act("send", effect="side_effect", approval=True), Act("send", "2", effect="side_effect", approval=True))
    run.approve("t1.1")
    run.deny("t1.1", "changed my mind")
    run.approve("t1.2")
    assert run.attach() == ["driver_attached", "tool_started"]
    with pytest.raises(Illegal):
        run.deny("t1.2")
    run.succeed("t1.2")
    assert run.tags.count("tool_started") == 1


def test_an_approval_expires(start: Start) -> None:
    run = start(policy=Policy(approval_expiry_s=60))
    run.calls(Act("send", effect="side_effect", approval=True))
    assert run.found("approval_requested").expires_at == START + 60_000_000
    run.now += 59_999_999
    assert run.attach() == ["driver_attached"]
    run.now += 1
    assert run.attach() == ["driver_attached", "approval_expired", "tool_results_injected", "model_requested"]


def test_a_call_may_be_allowed_with_other_arguments(start: Start) -> None:
    run = start()
    run.calls(Act("send", '{"to":"ann"}', effect="side_effect", approval=True))
    other = Act("send", '{"to":"bob"}', effect="side_effect", approval=True)
    call = CallId("t1.1")
    assert run.tell(f.CallSuperseded(call=call, check=other.check(call), who="ann")) == ["call_superseded"]
    assert run.attach() == ["driver_attached", "tool_started"]
    (effect,) = pending(run.run)
    assert isinstance(effect, RunTool)
    assert effect.arguments == '{"to":"bob"}'


@pytest.mark.parametrize("wrong", ["another call", "arguments that were refused"])
def test_a_call_is_not_replaced_by_what_may_not_run(start: Start, wrong: str) -> None:
    run = start()
    run.calls(Act("send", effect="side_effect", approval=True))
    call = CallId("t1.1")
    check = SEND.check("t1.2") if wrong == "another call" else Act("send", kind="invalid_arguments").check(call)
    with pytest.raises(Illegal, match="may run instead"):
        run.tell(f.CallSuperseded(call=call, check=check, who="ann"))


def test_a_question_waits_and_its_answer_is_the_result_of_the_call(start: Start) -> None:
    run = start()
    assert run.calls(ASK, LOOK)[-2:] == ["clarification_requested", "tool_started"]
    assert run.succeed("t1.2") == ["tool_succeeded"]
    assert run.run.status == "waiting_for_user"
    run.tell(f.ClarificationReceived(call=CallId("t1.1"), text="2023", who="ann"))
    run.attach()
    assert [call for call in run.tags if call == "tool_started"] == ["tool_started"]
    assert [entry.kind for entry in run.run.entries] == ["user", "assistant", "success", "success"]


# -- tools that fail


def test_a_retryable_error_is_tried_again_under_the_same_key(start: Start) -> None:
    run = start()
    run.calls(Act("look", retries=2))
    keys = {run.found("tool_started").key}
    for attempt in (2, 3):
        assert run.fail("t1.1", retryable=True) == ["tool_failed", "retry_scheduled", "tool_started"]
        started = run.found("tool_started")
        assert started.attempt == attempt
        assert started.delay_us == run.found("retry_scheduled").delay_us > 0
        keys.add(started.key)
    assert len(keys) == 1
    assert run.fail("t1.1", retryable=True) == ["tool_failed", "tool_closed", "tool_results_injected", "model_requested"]
    assert run.run.spent.tool_calls == 1


def test_an_ordinary_error_is_an_observation(start: Start) -> None:
    run = start()
    run.calls(Act("look", retries=5))
    assert run.fail("t1.1") == ["tool_failed", "tool_closed", "tool_results_injected", "model_requested"]


def test_an_error_ends_the_run_where_the_policy_says_stop(start: Start) -> None:
    run = start(policy=Policy(on_tool_error="stop"))
    run.calls(LOOK, SOUTH, Act("send", effect="side_effect", approval=True))
    assert run.fail("t1.1") == ["tool_failed", "tool_closed", "tool_closed", "tool_closed", "tool_results_injected", "run_failed"]
    assert run.kinds == ["execution_failed", "cancelled", "cancelled"]
    assert end(run) == ("failed", "on_tool_error", "done")


@pytest.mark.parametrize(
    ("act", "performed", "follows", "kind"),
    [
        (Act("look", retries=1), "unknown", ["tool_closed"], "timeout"),
        (Act("edit", effect="idempotent", retries=1), "unknown", ["retry_scheduled", "tool_started"], None),
        (Act("send", effect="side_effect", retries=1), "unknown", ["tool_in_doubt", "tool_closed"], "in_doubt"),
        (Act("send", effect="side_effect", retries=1), "no", ["tool_closed"], "timeout"),
    ],
    ids=["read", "idempotent", "side effect", "side effect that did not happen"],
)
def test_after_a_timeout_the_effect_decides(start: Start, act: Act, performed: str, follows: list[str], kind: str | None) -> None:
    run = start()
    run.calls(act, Act("ask_user"))
    assert run.tell(f.ToolFailed(call=CallId("t1.1"), kind="timeout", message="late", performed=performed)) == ["tool_failed", *follows]  # type: ignore[arg-type]
    assert run.kinds[0] == kind


def test_a_side_effect_that_raised_is_never_run_again(start: Start) -> None:
    run = start()
    run.calls(Act("send", effect="side_effect", retries=5))
    assert run.fail("t1.1", retryable=True) == ["tool_failed", "tool_closed", "tool_results_injected", "model_requested"]


def test_a_side_effect_that_says_it_did_not_happen_may_be_tried_again(start: Start) -> None:
    run = start()
    run.calls(Act("send", effect="side_effect", retries=1))
    assert run.fail("t1.1", retryable=True, performed="no") == ["tool_failed", "retry_scheduled", "tool_started"]


# -- a driver that was lost


def test_a_request_that_was_lost_is_repeated_under_its_number(start: Start) -> None:
    run = start()
    first = run.found("model_requested")
    assert run.attach() == ["driver_attached", "model_requested"]
    assert run.found("model_requested") == first
    assert (run.run.turn, run.run.number) == (1, 1)


def test_a_lost_attempt_keeps_its_number_and_waits_no_more(start: Start) -> None:
    run = start()
    run.model_fails()
    second = run.found("model_requested")
    assert (second.number, second.attempt) == (2, 2)
    run.attach()
    assert (run.found("model_requested").number, run.found("model_requested").attempt, run.found("model_requested").delay_us) == (2, 2, 0)


@pytest.mark.parametrize("act", [LOOK, EDIT], ids=["read", "idempotent"])
def test_a_harmless_call_that_was_cut_is_run_again_under_the_same_key(start: Start, act: Act) -> None:
    run = start()
    run.calls(act)
    first = run.found("tool_started")
    assert run.attach() == ["driver_attached", "tool_started"]
    assert run.found("tool_started") == first
    run.succeed("t1.1")
    assert run.run.spent.tool_calls == 1


def test_a_side_effect_that_was_cut_is_in_doubt_and_not_run_again(start: Start) -> None:
    run = start()
    run.calls(SEND, LOOK)
    assert run.attach() == ["driver_attached", "tool_in_doubt", "tool_closed", "tool_started"]
    assert run.kinds == ["in_doubt", None]
    run.succeed("t1.2")
    # and it counts as performed: the model cannot do it again
    run.calls(SEND)
    assert run.tags.count("duplicate_action_blocked") == 1


def test_calls_that_never_began_run_after_a_crash_as_before(start: Start) -> None:
    run = start()
    run.calls(LOOK, SOUTH)
    run.succeed("t1.1")
    assert run.attach() == ["driver_attached", "tool_started"]
    assert run.found("tool_started").call == "t1.2"


def test_a_cut_call_is_not_run_again_when_time_is_up(start: Start) -> None:
    # given a call that was cut, in a run whose deadline passes meanwhile
    run = start(budgets=Budgets(deadline="2001-09-09T01:46:50Z"), policy=Policy())
    run.calls(LOOK)
    run.now += 100_000_000
    # then it gets its result, and the run stops
    assert run.attach() == ["driver_attached", "tool_closed", "tool_results_injected", "run_stopped"]
    assert end(run) == ("stopped", "deadline", "done")


# -- the same thing again


def test_an_identical_action_is_blocked_and_the_way_out_is_named(start: Start) -> None:
    run = start()
    run.calls(LOOK)
    run.succeed("t1.1")
    assert run.calls(LOOK, SOUTH)[2] == "duplicate_action_blocked"
    blocked = run.found("duplicate_action_blocked")
    assert (blocked.call, blocked.times) == ("t2.1", 1)
    assert "repeatable=True" in blocked.message
    assert "plan" in blocked.message


def test_two_identical_calls_of_one_turn_run_once(start: Start) -> None:
    run = start()
    run.calls(LOOK, LOOK)
    run.succeed("t1.1")
    assert run.tags.count("tool_started") == run.tags.count("duplicate_action_blocked") == 1


def test_what_failed_may_be_tried_again(start: Start) -> None:
    run = start()
    run.calls(LOOK)
    run.fail("t1.1")
    assert run.calls(LOOK)[-1] == "tool_started"


def test_a_reading_may_be_repeated_once_something_else_was_written(start: Start) -> None:
    run = start()
    for turn, act, blocked in [(1, LOOK, False), (2, EDIT, False), (3, LOOK, False), (4, SOUTH, False), (5, LOOK, True)]:
        assert ("duplicate_action_blocked" in run.calls(act)) is blocked, turn
        if not blocked:
            run.succeed(f"t{turn}.1")


def test_an_action_does_not_excuse_its_own_repetition(start: Start) -> None:
    run = start()
    run.calls(EDIT)
    run.succeed("t1.1")
    assert "duplicate_action_blocked" in run.calls(EDIT)
    # but another write does
    run.calls(Act("edit", "2", effect="idempotent"))
    run.succeed("t3.1")
    assert "duplicate_action_blocked" not in run.calls(EDIT)
    run.succeed("t4.1")


def test_a_side_effect_counts_over_the_whole_run(start: Start) -> None:
    run = start()
    for turn, act in enumerate((SEND, EDIT), 1):
        run.calls(act)
        run.succeed(f"t{turn}.1")
    assert "duplicate_action_blocked" in run.calls(SEND)


def test_a_message_of_the_user_starts_the_counts_again(start: Start) -> None:
    run = start()
    run.calls(SEND, LOOK)
    run.succeed("t1.1")
    run.succeed("t1.2")
    run.say("again, please")
    assert "duplicate_action_blocked" not in run.calls(SEND, LOOK)
    run.succeed("t2.1")
    run.succeed("t2.2")


def test_a_tool_that_may_repeat_is_left_out_of_both(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=50))
    for turn in range(1, 9):
        run.calls(Act("poll", repeatable=True))
        run.succeed(f"t{turn}.1")
    assert run.run.status == "running"


@pytest.mark.parametrize("period", ["A", "AB", "ABC"])
def test_a_cycle_of_decisions_ends_the_run(start: Start, period: str) -> None:
    run = start(budgets=Budgets(max_turns=60), policy=LOOSE)
    turns = period * 3
    for turn, city in enumerate(turns, 1):
        tags = run.calls(Act("look", city))
        if turn < len(turns):
            run.succeed(f"t{turn}.1")
    assert tags[2:] == ["duplicate_action_blocked", "tool_calls_accepted", "tool_results_injected", "run_failed"]
    assert end(run) == ("failed", "cycle", "done")


def test_a_longer_period_is_no_cycle(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=60), policy=LOOSE)
    for turn, city in enumerate("ABCD" * 3, 1):
        run.calls(Act("look", city))
        run.succeed(f"t{turn}.1")
    assert run.run.status == "running"


def test_rejected_answers_are_decisions_too(start: Start) -> None:
    run = start(policy=Policy(wrap_up=False))
    for _ in range(2):
        assert run.answer("It is 20.", complaints=("say degrees",))[-1] == "model_requested"
    assert run.answer("It is 20.", complaints=("say degrees",))[-2:] == ["final_rejected", "run_failed"]
    assert end(run) == ("failed", "cycle", "done")


def test_a_message_of_the_user_ends_a_cycle(start: Start) -> None:
    run = start(policy=LOOSE)
    for turn in (1, 2):
        run.calls(LOOK)
        run.succeed(f"t{turn}.1")
    run.say("go on")
    assert run.calls(LOOK)[-1] == "tool_started"


# -- budgets


def test_the_last_turn_is_for_the_answer(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=2))
    assert not run.found("model_requested").wrap_up
    run.calls(LOOK)
    run.succeed("t1.1")
    assert run.found("model_requested").wrap_up
    assert run.calls(SOUTH, ASK)[2:] == ["tool_rejected", "tool_rejected", "tool_calls_accepted", "tool_results_injected", "run_stopped"]
    assert run.kinds == ["limit_reached", "limit_reached"]
    assert end(run) == ("stopped", "max_turns", "done")


def test_an_answer_in_the_last_turn_completes_the_run(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=2))
    run.calls(LOOK)
    run.succeed("t1.1")
    run.answer()
    assert end(run) == ("completed", None, "done")
    assert run.run.detail


def test_a_single_turn_is_not_a_wrap_up_and_its_calls_are_answered(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=1))
    assert not run.found("model_requested").wrap_up
    run.calls(LOOK)
    assert run.succeed("t1.1") == ["tool_succeeded", "tool_results_injected", "run_stopped"]
    assert end(run) == ("stopped", "max_turns", "done")


@pytest.mark.parametrize("wrap_up", [True, False])
def test_calls_over_the_limit_are_refused_and_the_model_gets_one_more_request(start: Start, wrap_up: bool) -> None:
    run = start(budgets=Budgets(max_tool_calls=1), policy=Policy(wrap_up=wrap_up))
    run.calls(LOOK, ASK, SOUTH)
    assert [call.kind for call in run.run.calls] == [None, None, "limit_reached"]
    run.tell(f.ClarificationReceived(call=CallId("t1.2"), text="2023", who="ann"))
    assert run.succeed("t1.1")[-1] == "model_requested"
    assert run.found("model_requested").wrap_up is wrap_up
    run.calls(SOUTH)
    assert end(run) == ("stopped", "max_tool_calls", "done")


def test_tokens_stop_the_next_request(start: Start) -> None:
    run = start(budgets=Budgets(max_tokens=10_000))
    assert run.calls(LOOK, usage=f.Usage(input_tokens=9_000, output_tokens=1_000))[-1] == "run_stopped"
    assert end(run) == ("stopped", "max_tokens", "done")


def test_a_request_that_would_overshoot_is_not_made(start: Start) -> None:
    run = start(budgets=Budgets(max_tokens=10_000))
    run.calls(LOOK, usage=f.Usage(input_tokens=9_000))
    assert run.succeed("t1.1", "x" * 4_000)[-1] == "run_stopped"
    assert end(run) == ("stopped", "max_tokens", "done")


def test_the_output_limit_is_what_the_budget_leaves(start: Start) -> None:
    run = start(budgets=Budgets(max_tokens=10_000))
    run.calls(LOOK, usage=f.Usage(input_tokens=20, output_tokens=7_980))
    run.succeed("t1.1")
    request = run.found("model_requested")
    assert request.max_output_tokens == 10_000 - 8_000 - request.estimated_input_tokens < 4_096


def test_cost_is_exact_and_stops_when_it_is_used_up(start: Start) -> None:
    run = start(budgets=Budgets(max_cost_usd="0.3"))
    for turn, act in enumerate((LOOK, SOUTH), 1):
        run.calls(act, usage=f.Usage(cost_usd="0.1"))
        run.succeed(f"t{turn}.1")
    # a call that is proposed with the last of it does not begin any more
    assert run.calls(EDIT, usage=f.Usage(cost_usd="0.10"))[-1] == "run_stopped"
    assert run.run.spent.cost_usd == "0.3"
    assert end(run) == ("stopped", "max_cost_usd", "done")


def test_prices_are_those_of_the_run(start: Start) -> None:
    run = start(price=f.Price(input="3", output="15", cached_input="0.3"))
    run.calls(LOOK, usage=f.Usage(input_tokens=1_000, cached_input_tokens=400, output_tokens=10))
    assert run.run.spent.cost_usd == "0.00207"


def test_active_time_closes_what_did_not_run_and_stops(start: Start) -> None:
    run = start(budgets=Budgets(timeout_s=2))
    run.calls(LOOK, SOUTH, elapsed_us=500_000)
    run.now += 3_600_000_000  # waiting does not count
    assert run.succeed("t1.1", elapsed_us=1_500_000) == ["tool_succeeded", "tool_closed", "tool_results_injected", "run_stopped"]
    assert run.kinds == ["success", "limit_reached"]
    assert end(run) == ("stopped", "timeout_s", "done")


def test_a_deadline_is_absolute(start: Start) -> None:
    run = start(budgets=Budgets(deadline="2001-09-09T01:46:41"))
    run.calls(LOOK)
    run.now += 1_000_000
    assert run.succeed("t1.1")[-1] == "run_stopped"
    assert end(run) == ("stopped", "deadline", "done")


def test_a_response_that_was_cut_by_a_limit_stops_the_run(start: Start) -> None:
    run = start()
    assert run.interrupt("limit", limit="max_tokens", text="so far") == ["model_interrupted", "run_stopped"]
    assert end(run) == ("stopped", "max_tokens", "done")
    assert told(run)[-1] == "so far"


def test_no_limits_are_no_limits(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=None, max_tool_calls=None, max_tokens=None, max_cost_usd=None, timeout_s=None))
    for turn in range(1, 20):
        run.calls(Act("look", str(turn)), usage=f.Usage(input_tokens=10**9, cost_usd="1000"))
        run.succeed(f"t{turn}.1", elapsed_us=10**9)
    assert run.run.status == "running"


# -- turns that came to nothing


def test_an_invalid_turn_is_told_to_the_model_and_counted(start: Start) -> None:
    run = start(policy=Policy(max_model_errors=2))
    for _ in range(2):
        assert run.interrupt("invalid") == ["model_interrupted", "model_error_observed", "model_requested"]
    assert run.interrupt("invalid") == ["model_interrupted", "model_error_observed", "run_failed"]
    assert end(run) == ("failed", "max_model_errors", "done")
    assert run.run.turn == 3


def test_a_good_turn_starts_the_count_of_invalid_ones_again(start: Start) -> None:
    run = start(policy=Policy(max_model_errors=1))
    for turn in (2, 4, 6):
        run.interrupt("invalid")
        run.calls(Act("look", str(turn)))
        run.succeed(f"t{turn}.1")
    assert run.run.status == "running"


def test_calls_that_were_cut_by_length_are_an_invalid_turn(start: Start) -> None:
    run = start()
    assert run.interrupt("length", text="I will")[-1] == "model_requested"
    assert [entry.kind for entry in run.run.entries] == ["user", "assistant", "runtime"]


def test_an_answer_that_was_cut_by_length_is_rejected(start: Start) -> None:
    run = start()
    run.answer("It is", stop_reason="length")
    assert run.found("final_rejected").because == "length"
    assert run.run.status == "running"


@pytest.mark.parametrize("how", ["a refusal", "a stop reason", "a filter"])
@pytest.mark.parametrize("policy", ["stop", "observe"])
def test_a_refusal_ends_the_run_or_is_observed_by_policy(start: Start, how: str, policy: str) -> None:
    run = start(policy=Policy(on_refusal=policy))  # type: ignore[arg-type]
    if how == "a filter":
        run.interrupt("filtered")
    else:
        run.answer("", refusal="I will not." if how == "a refusal" else "", stop_reason="stop" if how == "a refusal" else "refusal")
    assert end(run) == (("failed", "refusal", "done") if policy == "stop" else ("running", None, "streaming_model"))


def test_a_rejected_answer_stays_and_the_model_is_told_why(start: Start) -> None:
    run = start()
    run.answer("It is 20.", complaints=("say degrees",))
    assert [entry.kind for entry in run.run.entries] == ["user", "assistant", "runtime"]
    run.answer("It is 20 degrees.")
    assert run.run.status == "completed"


def test_a_validator_that_fails_ends_the_run(start: Start) -> None:
    run = start()
    assert run.answer(error="cites: KeyError")[-2:] == ["final_rejected", "run_failed"]
    assert end(run) == ("failed", "validator", "done")
    assert "cites" in run.run.detail


def test_an_answer_without_evidence_says_so(start: Start) -> None:
    run = start()
    run.answer("I do not know.", no_evidence=True)
    assert end(run) == ("completed", "no_evidence", "done")


# -- providers that fail


def test_a_provider_that_fails_is_asked_again_within_the_same_turn(start: Start) -> None:
    run = start()
    assert run.model_fails() == ["model_failed", "retry_scheduled", "model_requested"]
    request = run.found("model_requested")
    assert (request.number, request.attempt, run.run.turn) == (2, 2, 1)
    assert request.delay_us == run.found("retry_scheduled").delay_us


def test_attempts_are_limited(start: Start) -> None:
    run = start(policy=Policy(max_provider_retries=2))
    for _ in range(2):
        assert run.model_fails()[-1] == "model_requested"
    assert run.model_fails() == ["model_failed", "model_error_observed", "run_failed"]
    assert end(run) == ("failed", "max_provider_retries", "done")


def test_a_failure_that_cannot_be_retried_ends_the_run_at_once(start: Start) -> None:
    run = start()
    assert run.model_fails(retryable=False) == ["model_failed", "run_failed"]
    assert end(run) == ("failed", "provider", "done")


def test_the_provider_says_how_long_to_wait_and_waits_are_limited(start: Start) -> None:
    run = start(policy=Policy(max_retry_wait_s=120))
    run.model_fails(retry_after_s=0.1)
    assert run.found("retry_scheduled").delay_us == 100_000
    run.model_fails(retry_after_s=119)
    assert run.model_fails(retry_after_s=1) == ["model_failed", "model_error_observed", "run_failed"]


def test_delays_double_with_a_jitter_that_depends_on_the_seed_alone(start: Start) -> None:
    delays = []
    for seed in ("one", "one", "two"):
        run = start(seed=seed)
        delays.append([run.found("retry_scheduled").delay_us for _ in range(4) if run.model_fails()])
    assert delays[0] == delays[1] != delays[2]
    for attempt, delay in enumerate(delays[0]):
        assert 250_000 << attempt <= delay <= 500_000 << attempt


# -- cancellation


def test_a_cancelled_run_ends_with_who_and_why(start: Start) -> None:
    run = start()
    run.cancel("no longer needed")
    run.interrupt("cancelled", text="so far")
    assert end(run) == ("cancelled", "cancelled", "done")
    assert (run.found("run_cancelled").who, run.run.detail) == ("ann", "no longer needed")
    assert told(run)[-1] == "so far"


def test_cancelling_before_anything_was_asked(start: Start) -> None:
    run = start(attach=False)
    run.cancel()
    assert run.attach() == ["driver_attached", "run_cancelled"]


@pytest.mark.parametrize("response", ["answer", "failure", "calls", "nothing"])
def test_whatever_a_cancelled_request_still_brings_ends_the_run(start: Start, response: str) -> None:
    run = start()
    run.cancel()
    match response:
        case "answer":
            assert run.answer()[-1] == "run_cancelled"
        case "failure":
            assert run.model_fails() == ["model_failed", "run_cancelled"]
        case "calls":
            assert run.calls(LOOK, SEND)[2:] == ["tool_calls_accepted", "tool_closed", "tool_closed", "tool_results_injected", "run_cancelled"]
        case _:
            assert run.attach() == ["driver_attached", "run_cancelled"]
    assert run.run.status == "cancelled"


def test_cancelling_in_the_middle_of_calls_gives_each_its_result(start: Start) -> None:
    # given a call that is done, one that runs, one that waits for a human and one that does not run yet
    run = start()
    run.calls(LOOK, SEND, Act("send", "2", effect="side_effect", approval=True), ASK, SOUTH)
    run.succeed("t1.1")
    run.cancel()
    assert run.run.state == "executing_tools"
    # when the one that runs is stopped
    run.fail("t1.2", "cancelled")
    # then all have results, and the run has ended
    assert run.kinds == ["success", "in_doubt", "cancelled", "cancelled", "cancelled"]
    assert end(run) == ("cancelled", "cancelled", "done")


def test_a_cancelled_run_that_waits_ends_when_somebody_attaches(start: Start) -> None:
    run = start()
    run.calls(Act("send", effect="side_effect", approval=True))
    run.detach()
    run.cancel()
    assert run.attach() == ["driver_attached", "tool_closed", "tool_results_injected", "run_cancelled"]


def test_cancelling_during_the_delay_of_a_retry_closes_the_call_once(start: Start) -> None:
    run = start()
    run.calls(Act("look", retries=3))
    run.fail("t1.1", retryable=True)
    run.cancel()
    assert run.fail("t1.1", "cancelled", performed="no") == ["tool_failed", "tool_closed", "tool_results_injected", "run_cancelled"]


def test_cancelling_after_a_crash_runs_nothing_again(start: Start) -> None:
    run = start()
    run.calls(LOOK, SEND)
    run.cancel()
    assert run.attach() == ["driver_attached", "tool_closed", "tool_closed", "tool_results_injected", "run_cancelled"]
    assert run.kinds == ["cancelled", "cancelled"]


def test_two_cancellations_are_one(start: Start) -> None:
    run = start()
    run.cancel("first")
    run.cancel("second")
    run.interrupt("cancelled")
    assert run.run.detail == "first"


# -- the end


def test_an_ended_run_takes_only_notes(start: Start) -> None:
    run = start()
    run.answer()
    before = run.run
    failure = f.ModelFailed(error=f.ErrorInfo(type="x", message="y"))
    refused: list[f.Input] = [f.UserSaid(text="x", who="ann"), f.CancelRequested(who="ann"), run.driver(), failure]
    for fact in refused:
        with pytest.raises(Illegal, match="is not legal in done"):
            run.tell(fact)
    assert run.detach() == ["driver_detached"]
    assert run.tell(f.Sealed(algorithm="ed25519", key="k", signature="s")) == ["sealed"]
    assert (run.run.status, run.run.reason, run.run.state) == (before.status, before.reason, "done")


def test_a_command_is_remembered_by_its_id(start: Start) -> None:
    run = start()
    run.tell(f.UserSaid(text="x", who="ann", command_id="c1"))
    assert run.run.commands.places("c1") == [4]
    assert "c2" not in run.run.commands


@pytest.mark.parametrize(("asked_s", "delay_us"), [(0, 0), (0.0015, 1_500), (2.000001, 2_000_001), (120, 120_000_000)])
def test_what_the_provider_asked_for_is_waited_to_the_microsecond(start: Start, asked_s: float, delay_us: int) -> None:
    run = start(policy=Policy(max_retry_wait_s=120))
    run.model_fails(retry_after_s=asked_s)
    assert run.found("retry_scheduled").delay_us == run.found("model_requested").delay_us == delay_us


@pytest.mark.parametrize("asked_s", [120.000001, 3_600, 10**9])
def test_more_patience_than_there_is_ends_the_attempts(start: Start, asked_s: float) -> None:
    run = start(policy=Policy(max_retry_wait_s=120))
    assert run.model_fails(retry_after_s=asked_s) == ["model_failed", "model_error_observed", "run_failed"]
    assert run.run.reason == "max_provider_retries"
