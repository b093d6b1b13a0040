"""What an agent of today would have decided otherwise: its tools, its schemas and its validators are asked again about what was recorded."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from refold.events import facts as f
from refold.events.settings import Budgets, Policy
from refold.testing.trajectory import Act, Trajectory

Start = Callable[..., Trajectory]

LOOK = Act("look", '{"at":"north"}')
SEND = Act("send", effect="side_effect", approval=True)
PUT = Act("put", effect="idempotent")
PLAIN = Policy(wrap_up=False)


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
    run = start(turns=2)
    # when today's code wants every call to be approved
    told = run.what_if({}, checking(approval=True, approval_reason="it is careful now", digest=LOOK.digest))
    # then both are questions, what is assumed is said, and all of the recording counts
    assert told.verdict == "would ask a human"
    assert [(change.call_id, change.recorded, change.derived) for change in told.changes] == [
        ("t1.1", "tool_started", "approval_requested"),
        ("t2.1", "tool_started", "approval_requested"),
    ]
    assert [change.position for change in told.changes] == [run.position_of("tool_started"), run.position_of("tool_started 2")]
    assert told.horizon is None
    assert told.assumed == ("a human would have allowed look (t1.1)", "a human would have allowed look (t2.1)")


def test_each_call_of_a_turn_is_named_by_what_is_said_of_it(start: Start) -> None:
    # given a turn of two calls, and one in which a human is asked about the second
    run, mixed = start(), start()
    run.calls(LOOK, Act("look", '{"at":"south"}'))
    run.succeed("t1.1")
    run.succeed("t1.2")
    run.answer()
    mixed.calls(LOOK, SEND)
    # when both are to be approved
    told, other = (each.what_if({}, checking(approval=True, digest=LOOK.digest)) for each in (run, mixed))
    # then each is named, and what is recorded there is only said to be of the call that it is of
    assert [(change.position, change.call_id, change.recorded) for change in told.changes] == [(7, "t1.1", "tool_started"), (7, "t1.2", None)]
    assert ["which want t1.1 to be" in told.changes[0].because, "which want t1.2 to be" in told.changes[1].because] == [True, True]
    assert [(change.call_id, change.recorded) for change in other.changes] == [("t1.1", None)]


@pytest.mark.parametrize("changes", [{}, {"policy.max_provider_retries": 7}])
def test_what_is_said_of_a_call_is_to_blame_for_the_whole_turn(start: Start, changes: dict[str, Any]) -> None:
    # given a turn whose second call begins when the first has ended
    run = start()
    run.calls(LOOK, PUT)
    run.succeed("t1.1")
    run.succeed("t1.2")
    run.calls(Act("look", '{"at":"south"}'))
    run.succeed("t2.1")
    run.answer()

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        return [keyed(fact) if isinstance(fact, f.CallsChecked) else fact for fact in given]

    def keyed(fact: f.CallsChecked) -> f.CallsChecked:
        return f.CallsChecked(checks=tuple(msgspec.structs.replace(check, key="k") if check.effect == "idempotent" else check for check in fact.checks))

    # when today's tool has a business key, whatever setting without effect is changed beside it
    told = run.what_if(changes, ask)
    # then it is the tool that would be told another key
    assert (told.verdict, told.changes[0].position) == ("would act otherwise", run.position_of("tool_started 2"))
    assert told.changes[0].because == "the agent's tools, which say something else of t1.2 today (tool_started)"


def test_what_comes_behind_a_question_is_still_decided_under_the_other_settings(start: Start) -> None:
    run = start(policy=PLAIN, turns=3)
    told = run.what_if({"budgets.max_turns": 1}, checking(approval=True, digest=LOOK.digest))
    assert [change.verdict for change in told.changes] == ["would ask a human", "would stop earlier"]
    assert (told.verdict, told.horizon, told.saved) == ("would ask a human", run.position_of("model_requested 2"), None)


def test_a_call_that_would_be_refused_today_ends_the_evidence(start: Start) -> None:
    run = start(turns=2)
    told = run.what_if({}, checking(kind="invalid_arguments", message="no such place"))
    assert (told.verdict, told.changes[0].recorded, told.changes[0].derived) == ("would be rejected", "tool_calls_accepted", "tool_rejected")
    assert "the agent's tools" in told.changes[0].because
    assert "(invalid_arguments): no such place" in told.changes[0].because


@pytest.mark.parametrize(("turns", "verdict"), [(1, "unaffected"), (9, "would show the model something else")])
def test_other_words_to_the_model_count_once_a_request_shows_them(start: Start, turns: int, verdict: str) -> None:
    # given a call that was refused, in the last turn or not
    run = start(policy=PLAIN, budgets=Budgets(max_turns=turns))
    run.calls(Act("look", kind="invalid_arguments"))
    if turns > 1:
        run.answer()
    # when it is refused in other words
    told = run.what_if({}, checking(message="no such place"))
    assert told.verdict == verdict
    for change in told.changes:
        assert (change.field, change.call_id, change.derived) == ("data.message", "t1.1", "no such place")
        assert (change.position, told.horizon) == (run.position_of("tool_rejected"), run.position_of("model_requested 2"))


def test_other_words_are_told_also_where_their_request_is_another_by_a_setting(start: Start) -> None:
    # given a call that was refused, and an answer
    run = Trajectory().start(budgets=Budgets(max_turns=9))
    run.calls(Act("look", kind="invalid_arguments"))
    run.answer()
    # when it is refused in other words today, and the next request is the last under other settings
    told = run.what_if({"budgets.max_turns": 2}, checking(message="no such place"))
    # then both are told
    assert [(change.field, change.call_id) for change in told.changes] == [("data.message", "t1.1"), ("data.wrap_up", None)]


def test_what_comes_before_a_request_that_shows_other_words_is_proved(start: Start) -> None:
    # given a turn of a call that was refused and of one that was performed
    run = start()
    run.calls(Act("look", kind="invalid_arguments"), LOOK)
    run.succeed("t1.2")
    run.answer()

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        return [f.CallsChecked(checks=tuple(map(today, fact.checks))) if isinstance(fact, f.CallsChecked) else fact for fact in given]

    def today(check: f.Check) -> f.Check:
        refused = check.kind != "success"
        return msgspec.structs.replace(check, message="no such place") if refused else msgspec.structs.replace(check, approval=True, digest=LOOK.digest)

    # when the first is refused in other words today, and a human is asked about the second
    told = run.what_if({}, ask)
    # then both are told, in their order, up to the request that shows the words
    assert [(change.position, change.verdict) for change in told.changes] == [
        (run.position_of("tool_rejected"), "would show the model something else"),
        (run.position_of("tool_started"), "would ask a human"),
    ]
    assert (told.verdict, told.horizon) == ("would show the model something else", run.position_of("model_requested 2"))


def test_other_arguments_are_another_act(start: Start) -> None:
    told = start(turns=1).what_if({}, checking(arguments='{"at":"west"}'))
    assert (told.verdict, told.changes[0].field) == ("would act otherwise", "data.checks[0].arguments")


def test_a_human_who_would_not_be_asked_and_did_not_answer_in_time(start: Start) -> None:
    run = start(policy=Policy(approval_expiry_s=1))
    run.calls(SEND)
    run.detach()
    run.now += 2_000_000
    run.attach()
    run.answer()
    told = run.what_if({}, checking(approval=False, digest=None))
    assert (told.verdict, told.horizon) == ("would go on", run.position_of("approval_expired"))


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
    told = run.what_if({}, checking(approval=False, digest=None))
    assert told.verdict == "would go on"
    assert told.horizon == (None if allowed else run.position_of("approval_denied"))


@pytest.mark.parametrize(("complaints", "verdict"), [((), "would stop earlier"), (("another word",), "would show the model something else")])
def test_other_words_of_a_validator(start: Start, complaints: tuple[str, ...], verdict: str) -> None:
    run = start()
    run.answer("one", complaints=("no",))
    run.answer("two")

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        return [f.AnswerChecked(validators=("polite",), complaints=complaints) if isinstance(fact, f.AnswerChecked) else fact for fact in given]

    told = run.what_if({}, ask)
    assert told.verdict == verdict
    assert "the agent's validators polite" in told.changes[0].because


def test_a_claim_that_would_be_turned_down_today(start: Start) -> None:
    run = start()
    run.answer()

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        return [f.AnswerChecked(validators=("polite",), complaints=("say please",)) if isinstance(fact, f.AnswerChecked) else fact for fact in given]

    told = run.what_if({}, ask)
    assert (told.verdict, told.changes[0].recorded, told.changes[0].derived) == ("would be rejected", "run_completed", "final_rejected")
    assert "(validator): say please" in told.changes[0].because


@pytest.mark.parametrize("engine", [1, 2])
@pytest.mark.parametrize(
    ("tool", "verdict"),
    [({"approval": "always"}, "unaffected"), ({"retries": 9}, "unaffected"), ({"schema": {"type": "object"}}, "would show the model something else")],
)
def test_what_an_agent_declares_counts_as_far_as_the_model_sees_it(start: Start, engine: int, tool: dict[str, Any], verdict: str) -> None:
    look = f.ToolSetup(name="look", description="", schema={}, effect="read")
    run = start(engine=engine, tools=(look,), turns=1)

    def ask(_run: Any, given: list[f.Input]) -> list[f.Input]:
        today = (msgspec.structs.replace(look, **tool),)
        return [
            msgspec.structs.replace(fact, setup=msgspec.structs.replace(fact.setup, tools=today)) if isinstance(fact, f.RunStarted) else fact for fact in given
        ]

    told = run.what_if({}, ask)
    assert told.verdict == verdict
    if told.changes:
        assert (told.horizon, told.changes[0].because.partition(" (")[0]) == (run.position_of("model_requested"), "the agent's tools")
