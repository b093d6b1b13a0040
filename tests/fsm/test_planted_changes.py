"""Whatever is changed in the rules or in what reads older versions, replay names the place, the field and the class of the cause, and nothing before it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from refold.events import facts as f
from refold.events.codec import UPCASTERS
from refold.events.settings import Policy
from refold.fsm import answers, calls, compaction, decide, guards, limits, machine, timing
from refold.fsm.divergence import Divergence
from refold.projections import evolve, revisions
from refold.projections.run import Run
from refold.testing.forge import rewritten
from refold.testing.trajectory import Act, Trajectory

Reported = Callable[..., Divergence]


def test_without_a_change_nothing_is_reported(log: Trajectory) -> None:
    derived = log.replay()
    assert derived.divergence is None
    assert derived.events == len(log.rows)
    assert [record.stored for record in derived.records] == [stored for _, stored in log.rows]


# -- the rules


class Code(NamedTuple):
    """What is changed in the rules, and what is reported: where, which field, of which class, with which nearest place."""

    plant: Callable[[pytest.MonkeyPatch], None]
    place: str
    field: str
    cause_class: str
    nearest: str = ""


def patched(where: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(where, name, value)


def wrapped(where: Any, name: str, change: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A rule that goes on from what it was: `change(before, *arguments)`."""
    before = getattr(where, name)
    return patched(where, name, lambda *arguments: change(before, *arguments))


def row_changed(trigger: str, **changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        table = tuple(row._replace(**changes) if row.trigger == trigger else row for row in machine.TABLE)
        built = machine.build(table)
        edges = machine.compile_rows(built, table)
        for where, name, value in ((machine, "MACHINE", built), (machine, "EDGES", edges), (decide, "EDGES", edges)):
            monkeypatch.setattr(where, name, value)

    return plant


def settings_read(name: str, **changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Code that reads another setting than the one that is recorded."""
    return patched(Run, name, property(lambda run: replace(getattr(run.begun, name), **changes)))


def beyond_seven_turns(run: Run, stamp: Any) -> limits.Exceeded | None:
    return limits.Exceeded(reason="max_turns", detail="seven are enough") if run.turn >= 7 else None


def no_more_calls(run: Run, stamp: Any) -> limits.Exceeded | None:
    return limits.Exceeded(reason="timeout_s", detail="too late") if run.turn >= 2 else None


def reads_first(before: Any, run: Run, stamp: Any) -> Any:
    """Calls that nobody is asked about start before the humans are asked."""
    accepted = next((call for call in run.calls if call.phase == "accepted" and call.check is not None and call.check.effect == "read"), None)
    asks = accepted is not None and accepted.name == "ask_user"
    return calls.start(run, accepted) if accepted is not None and not asks and not run.calls[0].started else before(run, stamp)


def no_rules(*_: Any) -> Any:
    raise KeyError("typo")


def divides(*_: Any) -> Any:
    return 1 // 0


CODE = {
    "a rule that raises": Code(patched(calls, "key", no_rules), "tool_started", "type", "code"),
    "a rule that divides by nothing": Code(patched(answers, "_claimed", divides), "final_rejected", "type", "code"),
    "a fold of an input that raises": Code(patched(evolve, "_succeeded", no_rules), "tool_succeeded", "type", "code"),
    "a fold of what follows that raises": Code(patched(evolve, "_injected", divides), "tool_results_injected", "type", "code"),
    "a longer first delay": Code(patched(timing, "FIRST_DELAY_US", 600_000), "retry_scheduled", "data.delay_us", "code"),
    "a longer delay of tools": Code(patched(timing, "FIRST_TOOL_DELAY_US", 60_000), "retry_scheduled 3", "data.delay_us", "code"),
    "another idempotency key": Code(patched(calls, "key", lambda run, call: "k"), "tool_started", "data.key", "code"),
    "other words to the model": Code(patched(answers, "_to_model", lambda fault: "Try again."), "model_error_observed", "data.message", "code"),
    "other words of a doubt": Code(patched(calls, "DOUBT", "nobody knows"), "tool_closed", "data.message", "code"),
    "a stricter guard of a rule": Code(row_changed("tool_started", requires=(guards.may_start, guards.cancel_requested)), "tool_started", "type", "code"),
    "a stricter guard of an input": Code(row_changed("approval_granted", requires=(guards.cancel_requested,)), "approval_granted", "type", "code"),
    "an edge that leads elsewhere": Code(row_changed("model_error_observed", target="idle"), "model_error_observed", "to", "code"),
    "reads start before humans are asked": Code(
        wrapped(calls, "executing", reads_first), "approval_requested", "type", "policy or limit", "the recorded approval_requested follows at"
    ),
    "an answer is taken whatever the validators say": Code(
        wrapped(answers, "_claimed", lambda before, run, output, verdict: before(run, output, f.AnswerChecked())),
        "final_rejected",
        "type",
        "code",
    ),
    "a limit of turns": Code(row_changed("model_requested", limits=(beyond_seven_turns,)), "model_requested 10", "type", "policy or limit"),
    "a limit that a call does not pass": Code(row_changed("tool_started", limits=(no_more_calls,)), "tool_started 3", "type", "policy or limit"),
    "the last turn comes sooner": Code(
        wrapped(limits, "is_last_turn", lambda before, run: run.turn >= 4), "model_requested 7", "data.wrap_up", "policy or limit"
    ),
    "fewer tokens for an answer": Code(
        wrapped(limits, "output_limit", lambda before, run: before(run) - 1), "model_requested", "data.max_output_tokens", "policy or limit"
    ),
    "another estimate": Code(
        wrapped(limits, "estimated_input", lambda before, run: before(run) + 1), "model_requested", "data.estimated_input_tokens", "policy or limit"
    ),
    "fewer attempts of a request": Code(settings_read("policy", max_provider_retries=1), "retry_scheduled 2", "type", "policy or limit"),
    "no patience for a provider": Code(settings_read("policy", max_retry_wait_s=1), "retry_scheduled 2", "type", "policy or limit"),
    "approvals that expire": Code(settings_read("policy", approval_expiry_s=60), "approval_requested", "data.expires_at", "policy or limit"),
    "no patience for turns that are none": Code(settings_read("policy", max_model_errors=0), "model_requested 6", "type", "policy or limit"),
    "doubts that a human settles": Code(settings_read("policy", on_doubt="ask"), "tool_closed", "type", "policy or limit"),
    "duplicates are let through": Code(
        settings_read("policy", max_duplicate_actions=9), "duplicate_action_blocked", "type", "policy or limit", "the derived tool_rejected stands at"
    ),
    "a budget of calls": Code(settings_read("budgets", max_tool_calls=3), "duplicate_action_blocked", "type", "policy or limit"),
    "the runtime's words are shown otherwise": Code(
        wrapped(evolve, "told", lambda before, text: before(text.upper())), "model_requested 6", "data.digest", "context"
    ),
    "results are shown otherwise": Code(
        wrapped(evolve, "failure", lambda before, kind, message: {"error": message}), "model_requested 7", "data.digest", "context"
    ),
    "no compaction": Code(patched(compaction, "due", lambda run: None), "summary_requested", "type", "context"),
    "shorter summaries": Code(patched(compaction, "SUMMARY_MAX", 300), "summary_requested", "data.bytes_max", "context"),
}


@pytest.mark.parametrize("planted", CODE.values(), ids=CODE)
def test_a_change_of_the_rules_is_reported_where_it_tells(log: Trajectory, reported: Reported, planted: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    # given rules that were changed
    with monkeypatch.context() as changed:
        planted.plant(changed)
        # when the run is replayed, then just that is reported
        found = reported(log, log.rows, log.position_of(planted.place), planted.field, planted.cause_class)
    assert (found.nearest.words if found.nearest is not None else "").startswith(planted.nearest)
    # and without the change nothing is
    assert log.replay().divergence is None


@pytest.mark.parametrize("reads", ["stop", "observe"])
def test_calls_that_are_closed_after_an_error_or_not_are_the_policys(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a turn whose first call failed, under either policy
    run = Trajectory().start(policy=Policy(on_tool_error="observe" if reads == "stop" else "stop"))
    run.calls(Act("look"), Act("find"))
    run.fail("t1.1")
    # when the rules read the other one
    settings_read("policy", on_tool_error=reads)(monkeypatch)
    found = run.replay().divergence
    # then
    assert found is not None
    assert {found.recorded, found.derived} == {"tool_started", "tool_closed"}
    assert (found.cause_class, found.position) == ("policy or limit", 10)


# -- older versions


def versioned(monkeypatch: pytest.MonkeyPatch, fact: type[f.Fact], upcaster: Callable[[dict[str, Any]], dict[str, Any]] | None) -> None:
    """Today's version of a fact is the next one."""
    monkeypatch.setattr(fact, "VERSION", 2)
    if upcaster is not None:
        monkeypatch.setitem(UPCASTERS, (fact.TAG, 1), upcaster)


def test_facts_of_older_versions_that_come_to_the_same_are_identical(log: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a version in which every fact has been changed, with upcasters
    for fact in dict.fromkeys(type(record.fact) for record in log.records):
        versioned(monkeypatch, fact, lambda data: data)
    # when the log of the version before is replayed, then nothing is reported, and what is stored is what goes on
    derived = log.replay()
    assert derived.divergence is None
    assert derived.run.head == log.run.head


class Upcast(NamedTuple):
    fact: type[f.Fact]
    upcaster: Callable[[dict[str, Any]], dict[str, Any]] | None
    place: str
    field: str


UPCASTS = {
    "a wrong one of what follows": Upcast(f.ToolStarted, lambda data: {**data, "delay_us": 5}, "tool_started", "data.delay_us"),
    "a wrong one of an input": Upcast(f.ToolSucceeded, lambda data: {**data, "result": "nothing"}, "model_requested 2", "data.digest"),
    "one that loses complaints": Upcast(f.AnswerChecked, lambda data: {}, "final_rejected", "type"),
    "none": Upcast(f.CallsChecked, None, "calls_checked", "data"),
    "one that fails": Upcast(f.CallsChecked, lambda data: {"checks": data["calls"]}, "calls_checked", "data"),
}


@pytest.mark.parametrize("planted", UPCASTS.values(), ids=UPCASTS)
def test_a_wrong_upcaster_is_reported_where_it_tells(log: Trajectory, reported: Reported, planted: Upcast, monkeypatch: pytest.MonkeyPatch) -> None:
    versioned(monkeypatch, planted.fact, planted.upcaster)
    found = reported(log, log.rows, log.position_of(planted.place), planted.field, "upcaster")
    assert f"{planted.fact.TAG}" in found.cause


def test_where_a_limit_decides_otherwise_on_an_older_fact_both_are_said(log: Trajectory, reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    # given an upcaster that lets actions repeat
    versioned(monkeypatch, f.CallsChecked, lambda data: {"checks": [{**check, "repeatable": True} for check in data["checks"]]})
    # then what shows is that a duplicate was let through, and that the fact it follows from is an older one
    found = reported(log, log.rows, log.position_of("duplicate_action_blocked"), "type", "policy or limit")
    assert "calls_checked" in found.cause
    assert "version 1" in found.cause


# -- the next number of the rules


def test_a_log_is_replayed_under_its_own_number_and_a_new_one_under_the_next(
    log: Trajectory, play: Callable[[], Trajectory], reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a version whose next number words a doubt otherwise
    following = revisions.ENGINE + 1
    monkeypatch.setitem(revisions.RULES, following, revisions.RULES[revisions.ENGINE])  # type: ignore[arg-type, index]  # a mapping to everybody else
    monkeypatch.setattr(decide, "SUPPORTED", frozenset(revisions.RULES))
    settle = calls._settle

    def settled(run: Run, call: Any, stamp: Any) -> Any:
        fact = settle(run, call, stamp)
        doubt = isinstance(fact, f.ToolClosed) and fact.kind == "in_doubt" and run.begun.engine >= following
        return msgspec.structs.replace(fact, message="nobody knows whether it took place") if doubt else fact

    monkeypatch.setattr(calls, "_settle", settled)
    # when a run is played under each, then both replay identically, and say what their number says
    monkeypatch.setattr("refold.testing.trajectory.ENGINE", following)
    newer = play()
    assert log.replay().divergence is None
    assert newer.replay().divergence is None
    words = [next(record.fact for record in each.records if isinstance(record.fact, f.ToolClosed)).message for each in (log, newer)]
    assert words == [calls.DOUBT, "nobody knows whether it took place"]
    # and one that claims the other number is reported where the rules part
    older = rewritten(newer.rows, 1, lambda body: body.replace(f'"engine":{following}'.encode(), f'"engine":{revisions.ENGINE}'.encode(), 1))
    found = reported(newer, older, newer.position_of("tool_closed"), "data.message", "code")
    assert (found.recorded, found.derived) == (words[1], words[0])
    # and where only the old number is known, the new one is not guessed
    monkeypatch.setattr(decide, "SUPPORTED", frozenset((revisions.ENGINE,)))
    with pytest.raises(revisions.UnsupportedEngine, match=f"engine {following}"):
        newer.replay()
    assert log.replay().divergence is None
