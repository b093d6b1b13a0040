"""What a fork inherits and what it does not, as decisions see it: given a run, when it is forked at a place, then ..."""

from typing import Any

import pytest

from refold.events import facts as f
from refold.events.settings import Budgets, Policy
from refold.events.words import CallId
from refold.fsm.replay import replay_rows
from refold.testing.trajectory import Act, Trajectory

LOOK = Act("look", effect="read")
PAY = Act("pay", effect="side_effect")
USAGE = f.Usage(input_tokens=100, output_tokens=10)


@pytest.fixture
def parent() -> Trajectory:
    return Trajectory("parent").start(budgets=Budgets(max_turns=5))


def sound(child: Trajectory) -> Trajectory:
    """What holds of every fork, over its whole history."""
    audit = child.audit()
    assert audit.ok, audit
    replayed = replay_rows(child.id, child.rows, child.payloads.__getitem__)
    assert replayed.divergence is None, replayed.divergence
    return child


def test_the_request_that_was_open_is_made_anew_under_its_number(parent: Trajectory) -> None:
    # given a run whose second request was sent, and cost something on its way
    parent.calls(LOOK, usage=USAGE)
    parent.succeed("t1.1")
    at = parent.run.position
    parent.tell(f.StreamCheckpointed(text="Half an answer", usage=f.Usage(input_tokens=50, output_tokens=3)))
    # when it is forked there, before or while it was answered
    for child in (parent.fork("child", at), parent.fork("other")):
        # then the same request is made, and what it cost the parent is not the fork's
        assert child.last[-1].TAG == "model_requested"
        asked = child.run.request
        assert asked is not None
        assert (asked.number, asked.attempt, child.run.turn) == (2, 1, 2)
        assert (child.run.spent.tokens, child.run.streaming) == (110, None)
        child.answer(usage=USAGE)
        assert child.run.spent.tokens == 220
        sound(child)


def test_where_the_results_are_in_the_next_request_is_derived_anew(parent: Trajectory) -> None:
    # given a run in which results went in and the next request was made, in one batch
    parent.calls(LOOK)
    parent.succeed("t1.1")
    injected = next(record.position for record in parent.records if record.type == "tool_results_injected")
    # when it is forked between the two
    child = parent.fork("child", injected)
    # then the fork makes the request
    assert child.last[-1].TAG == "model_requested"
    child.answer()
    sound(child)


def test_a_side_effect_that_was_under_way_is_in_doubt_and_a_read_runs_again_under_its_key(parent: Trajectory) -> None:
    # given a run in the middle of a call
    parent.calls(LOOK)
    key = parent.found("tool_started").key
    # when it is forked, then the call is begun again under the same key
    child = parent.fork("child")
    assert child.found("tool_started").key == key
    child.succeed("t1.1")
    child.answer()
    sound(child)
    # and a side effect is in doubt
    parent.succeed("t1.1")
    parent.calls(PAY)
    other = parent.fork("other")
    assert "tool_in_doubt" in [fact.TAG for fact in other.last]
    sound(other)


def test_what_the_parent_did_later_is_asked_for(parent: Trajectory) -> None:
    # given a run that waited for one call, and paid afterwards
    parent.calls(LOOK, PAY)
    at = parent.run.position
    parent.succeed("t1.1")
    parent.succeed("t1.2")
    # when it is forked before it paid
    child = parent.fork("child", at, performed=(CallId("t1.2"),))
    # then a human is asked first, and may allow it once
    assert "performed" in child.found("approval_requested").because
    child.succeed("t1.1")
    assert child.run.waits
    child.approve("t1.2")
    child.attach()
    assert child.last[-1].TAG == "tool_started"
    child.succeed("t1.2")
    child.answer()
    sound(child)
    # and nobody is where that is allowed
    free = parent.fork("free", at, performed=(CallId("t1.2"),), allow_repeat=True)
    free.succeed("t1.1")
    assert free.last[-1].TAG == "tool_started"
    sound(free)


def test_a_grant_that_the_parent_used_later_is_not_used_again(parent: Trajectory) -> None:
    # given two calls that a human allowed, of which the second waits for the first
    pay = Act("pay", effect="side_effect", approval=True)
    parent.calls(pay, Act("pay", arguments='{"n":2}', effect="side_effect", approval=True))
    parent.approve("t1.1")
    parent.approve("t1.2")
    parent.attach()
    at = parent.run.position
    parent.succeed("t1.1")
    parent.succeed("t1.2")
    # when the run is forked before the second was performed
    child = parent.fork("child", at, performed=(CallId("t1.2"),))
    # then the first is in doubt, and the second is asked for again
    assert [(call.phase, call.kind) for call in child.run.calls] == [("closed", "in_doubt"), ("waiting", None)]
    sound(child)


@pytest.mark.parametrize("place", ["shown by an earlier request", "shown by none yet", "of the open turn"])
def test_an_edited_result_is_what_the_fork_shows(parent: Trajectory, place: str) -> None:
    # given a run with a result
    parent.calls(LOOK, Act("look", arguments='{"at":"south"}', effect="read"))
    parent.succeed("t1.1", "seen north")
    if place == "of the open turn":
        at, edit = parent.run.position, f.Edit(call=CallId("t1.1"), name="look", result="seen a dragon")
    parent.succeed("t1.2")
    if place == "shown by none yet":
        at = next(record.position for record in parent.records if record.type == "tool_results_injected")
        edit = f.Edit(call=CallId("t1.1"), name="look", result="seen a dragon")
    if place == "shown by an earlier request":
        at, edit = parent.run.position, f.Edit(call=CallId("t1.1"), name="look", result="seen a dragon", place=2)
    before = parent.run.request
    # when it is forked with another result
    child = parent.fork("child", at, edits=(edit,))
    plain = parent.fork("plain", at)
    if place == "of the open turn":
        for each in (child, plain):
            each.succeed("t1.2")
    # then its next request shows something else than the parent's did
    asked, same = child.run.request, plain.run.request
    assert asked is not None
    assert same is not None
    assert before is not None
    assert asked.digest != same.digest == before.digest
    child.answer()
    sound(child)


def test_a_message_is_in_the_request_that_is_made_anew_or_in_the_next(parent: Trajectory) -> None:
    # given a run that asks, and one that runs a tool
    asking = parent.fork("asking", message="Look south.")
    # then the request that is made anew shows the message, and nothing is left to hear
    assert (asking.run.unheard, len(asking.run.entries)) == ((), 2)
    asking.answer()
    assert asking.run.status == "completed"
    sound(asking)
    parent.calls(LOOK)
    running = parent.fork("running", message="Look south.")
    assert running.run.unheard == ("Look south.",)
    running.succeed("t1.1")
    assert running.run.unheard == ()
    sound(running)


def test_other_limits_hold_from_the_fork_on(parent: Trajectory) -> None:
    # given a run in its last turn, which was asked for an answer alone
    for n in range(4):
        parent.calls(Act("look", arguments=f'{{"at":{n}}}', effect="read"))
        parent.succeed(f"t{n + 1}.1")
    assert parent.run.request is not None
    assert parent.run.request.wrap_up
    # when it is forked with more turns
    child = parent.fork("child", changes={"budgets.max_turns": 9, "policy.on_tool_error": "stop"})
    # then its request offers tools again
    assert child.run.request is not None
    assert not child.run.request.wrap_up
    assert (child.run.budgets.max_turns, child.run.policy.on_tool_error) == (9, "stop")
    child.calls(Act("look", arguments='{"at":9}', effect="read"))
    child.fail("t5.1")
    assert child.run.reason == "on_tool_error"
    sound(child)
    # and one with fewer turns stops before it asks
    fewer = parent.fork("fewer", changes={"budgets.max_turns": 2})
    assert fewer.run.reason == "max_turns"
    sound(fewer)


def test_another_model_counts_its_requests_from_the_fork(parent: Trajectory) -> None:
    parent.calls(LOOK)
    parent.succeed("t1.1")
    price = {"input": "1", "output": "1000", "source": "test"}
    child = parent.fork("child", changes={"model": {"model": "script:other.json", "price": price}})
    assert (child.run.number, child.run.numbered_from, child.run.begun.model) == (2, 1, "script:other.json")
    child.answer(usage=f.Usage(input_tokens=0, output_tokens=2))
    assert child.run.spent.cost_usd == "0.002"
    sound(child)


def test_other_instructions_and_tools_are_in_every_request(parent: Trajectory) -> None:
    parent.calls(LOOK)
    parent.succeed("t1.1")
    tool: dict[str, Any] = {"name": "put", "description": "Puts.", "schema": {"type": "object"}, "effect": "read"}
    child = parent.fork("child", changes={"instructions": "Be brief.", "tools": [tool]})
    assert child.run.begun.instructions == "Be brief."
    assert [made.name for made in child.run.begun.tools] == ["put"]
    assert child.run.request is not None
    assert parent.run.request is not None
    assert child.run.request.digest != parent.run.request.digest
    child.answer()
    sound(child)


def test_a_cancellation_is_its_parents_alone(parent: Trajectory) -> None:
    # given a run that was cancelled, and whose driver has not noticed yet
    parent.cancel()
    # when it is forked
    child = parent.fork("child")
    child.answer()
    assert child.run.status == "completed"
    sound(child)


def test_what_a_driver_had_let_go_is_taken_up(parent: Trajectory) -> None:
    parent.detach()
    child = parent.fork("child")
    assert child.last[-1].TAG == "model_requested"
    child.answer()
    sound(child)


def test_a_fork_of_a_fork_has_the_history_of_both(parent: Trajectory) -> None:
    parent.calls(LOOK)
    child = parent.fork("child")
    child.succeed("t1.1")
    grandchild = child.fork("grandchild", changes={"policy.wrap_up": False}, message="And now?")
    grandchild.answer()
    assert (grandchild.run.status, grandchild.run.forked_from, grandchild.run.turn) == ("completed", "child", 2)
    assert [record.run for record in grandchild.records if record.type == "run_forked"] == ["child", "grandchild"]
    sound(grandchild)


def test_settings_that_a_fork_may_change_are_audited(parent: Trajectory) -> None:
    # given a fork under a limit of its own
    parent.calls(LOOK)
    parent.succeed("t1.1")
    child = parent.fork("child", changes={"policy.max_provider_retries": 0})
    child.model_fails()
    assert child.run.reason == "max_provider_retries"
    assert Policy().max_provider_retries > 0
    sound(child)


def test_an_end_for_an_error_that_the_fork_does_not_put_up_with_has_its_cause(parent: Trajectory) -> None:
    # given a run whose call failed, which its policy put up with
    parent.calls(LOOK)
    parent.fail("t1.1")
    injected = next(record.position for record in parent.records if record.type == "tool_results_injected")
    # when it is forked there under a policy that does not
    child = parent.fork("child", injected, changes={"policy.on_tool_error": "stop"})
    assert child.run.reason == "on_tool_error"
    sound(child)
