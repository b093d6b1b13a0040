"""A fork under other limits than its parent: what was under way there is held to the fork's own, and it always comes to an end."""

from dataclasses import replace
from typing import Any

import pytest

from refold import Agent, Budgets, Context, Policy, ScriptedModel, audit, open_store, replay, tool
from refold.events.codec import Record
from refold.events.words import RunId
from refold.runtime.forking import fork
from refold.runtime.show import prompt
from refold.runtime.store import Store


@tool(effect="read", repeatable=True)
def look(size: int) -> str:
    """Looks."""
    return "x" * size


@tool(approval="always")
def send(to: str) -> str:
    """Sends."""
    return f"sent to {to}"


def calls(*sizes: int, **more: Any) -> dict[str, Any]:
    return {"calls": [{"name": "look", "arguments": {"size": size}} for size in sizes], **more}


def agent(*turns: dict[str, Any], **changes: Any) -> Agent:
    return Agent(**{"model": ScriptedModel(list(turns)), "tools": [look, send], "policy": Policy(wrap_up=False), **changes})


def records(store: Store, tag: str, run_id: str = "parent") -> list[Record]:
    return [record for record in store.read(run_id) if record.type == tag]


def sound(store: Store, run_id: str) -> None:
    assert audit(store, run_id).ok, audit(store, run_id)
    assert replay(store, run_id).divergence is None
    for request in records(store, "model_requested", run_id):
        assert prompt(store, run_id, request.position).digest == request.fact.digest  # type: ignore[union-attr]


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_calls_that_the_parent_had_accepted_are_held_to_the_forks_limit(most: int) -> None:
    # given a run of three calls in one turn, one of which waits for leave
    store = open_store("memory:")
    both = {"calls": [*calls(1, 2)["calls"], {"name": "send", "arguments": {"to": "ann"}}]}
    agent(both).run_sync("Look, and send.", store=store, run_id="parent")
    for at in range(records(store, "calls_checked")[0].position, store.journal("parent").run.position + 1):
        # when it is forked anywhere in that turn with fewer calls to make
        name = f"fork-{at}"
        run = agent({"text": "Enough."}, budgets=Budgets(max_tool_calls=most)).fork_sync("parent", at, store=store, new_id=name)
        if run.status == "waiting_for_user":
            store.approve_sync(name)
            run = agent({"text": "Enough."}).resume_sync(name, store=store)
        # then no more are begun, and it ends well; those that the parent had begun are the parent's
        inherited = [record.call for record in records(store, "tool_started", name) if record.run == "parent"]
        begun = {record.call for record in records(store, "tool_started", name)}
        assert run.status == "completed", (at, run.reason)
        assert len(begun) == run.run.spent.tool_calls == (min(3, max(most, len(inherited))) if inherited else 0)
        sound(store, name)


def test_repeated_calls_that_the_parent_had_accepted_are_held_to_the_forks_limit() -> None:
    # given a run that sent the same twice, which was allowed there
    store = open_store("memory:")
    twice = {"calls": [{"name": "look", "arguments": {"size": 1}}, {"name": "send", "arguments": {"to": "ann"}}]}
    parent = agent(twice, twice, {"text": "Done."}, policy=Policy(max_duplicate_actions=2))
    parent.run_sync("Send twice.", store=store, run_id="parent")
    for _ in range(2):
        store.approve_sync("parent")
        parent.resume_sync("parent", store=store)
    first, last = records(store, "calls_checked")[1].position, records(store, "run_completed")[0].position
    for at in range(first, last):
        # when it is forked anywhere from its second turn on by one that allows it once
        name = f"fork-{at}"
        strict = agent({"text": "Enough."})
        run = strict.fork_sync("parent", at, store=store, new_id=name)
        if run.status == "waiting_for_user":
            store.approve_sync(name)
            run = strict.resume_sync(name, store=store)
        # then it is sent no second time, unless the parent had begun to
        assert run.status == "completed", (at, run.reason)
        sends = [record.run for record in records(store, "tool_started", name) if record.call in ("t1.2", "t2.2")]
        assert set(sends) == {"parent"}, (at, sends)
        sound(store, name)


@pytest.mark.parametrize("turns", [2, 3, 4])
def test_a_cycle_that_is_none_to_the_parent_ends_a_fork_to_which_it_is_one(turns: int) -> None:
    # given a run that does the same again and again, which was allowed there
    store = open_store("memory:")
    again = {"calls": [{"name": "send", "arguments": {"to": "ann"}}]}
    agent(*[again] * 4, {"text": "Done."}, tools=[replace(send, approval="never")], policy=Policy(max_duplicate_actions=9, cycle_repeats=9)).run_sync(
        "Send.", store=store, run_id="parent"
    )
    at = records(store, "model_requested")[turns].position
    # when it is forked at a request, and just before it, by one to which three times are a cycle
    asking, resting = (agent({"text": "Done."}, tools=[replace(send, approval="never")]).fork_sync("parent", n, store=store) for n in (at, at - 1))
    # then both come to the same
    assert (asking.status, asking.reason) == (resting.status, resting.reason) == (("failed", "cycle") if turns > 2 else ("completed", None))
    for run in (asking, resting):
        sound(store, run.id)


@pytest.mark.parametrize("budgets", [Budgets(), Budgets(max_turns=50, max_tokens=None), Budgets(max_turns=None, max_tokens=None, max_cost_usd=None)])
def test_a_last_turn_of_the_parent_is_none_of_a_fork_that_is_given_more(budgets: Budgets) -> None:
    # given a run whose last turn, which was for the answer alone, brought calls
    store = open_store("memory:")
    policy = Policy()
    made = agent(calls(1), calls(2), budgets=Budgets(max_turns=2), policy=policy).run_sync("Look.", store=store, run_id="parent")
    assert made.reason == "max_turns"
    for at in range(records(store, "tool_calls_requested")[1].position, records(store, "run_stopped")[0].position):
        # when it is forked anywhere in that turn with more turns to make
        other = agent(calls(3), {"text": "Done."}, budgets=budgets, policy=policy)
        run = other.fork_sync("parent", at, store=store)
        # then it goes on as if there had been no last turn, its tools at hand
        assert (run.status, run.answer) == ("completed", "Done."), (at, run.reason)
        assert all(request.tools for request in other.model.requests)  # type: ignore[union-attr]
        sound(store, run.id)


@pytest.mark.parametrize("fails", [0, 1])
@pytest.mark.parametrize("most", [1, 2, 4, 12])
def test_a_fork_at_a_summary_is_held_to_its_own_turns_and_counts_attempts_on(at_once: None, most: int, fails: int) -> None:
    # given a run whose third request was more than the model could read, after it had failed before or at once
    store = open_store("memory:")
    again = [{"error": {"type": "overloaded", "message": "later", "retryable": True}}] * fails
    rest = {"context": Context(window_tokens=9_000, keep_turns=1), "policy": Policy(wrap_up=False, cycle_lengths=(), max_retry_wait_s=1_000)}
    parent = agent(calls(3_000), calls(3_001), calls(3_002), *again, {"stop_reason": "context_overflow", "text": "x"}, {"text": "Done."}, **rest)
    assert parent.run_sync("Look.", store=store, run_id="parent").status == "completed"
    for at in (records(store, "summary_requested")[0].position, records(store, "context_compacted")[0].position):
        # when it is forked where that one is about to be made again
        run = agent({"text": "Enough."}, budgets=Budgets(max_turns=most), **rest).fork_sync("parent", at, store=store)
        # then it is, as the attempt that it is, where that is a turn that the fork may make
        assert (run.status, run.reason) == (("completed", None) if most >= 4 else ("stopped", "max_turns"))
        sound(store, run.id)


def test_a_fork_asks_for_itself_by_its_own_estimate() -> None:
    # given a run whose provider reported much, and a fork at its second request by another model with a window that would be too small for that
    store = open_store("memory:")
    agent(calls(5, usage={"input_tokens": 9_000, "output_tokens": 5}), {"text": "Done."}).run_sync("Look.", store=store, run_id="parent")
    at = records(store, "model_requested")[1].position
    run = agent({"text": "Done."}, context=Context(window_tokens=8_000)).fork_sync("parent", at, store=store, new_id="child")
    # then its request is estimated without what another provider reported
    assert (run.status, run.answer) == ("completed", "Done.")
    sound(store, "child")
    # and where even that is too much, it is stopped
    narrow = agent({"text": "Done."}, context=Context(window_tokens=1_000), instructions="Be brief. " * 900).fork_sync("parent", at, store=store)
    assert (narrow.status, narrow.reason) == ("stopped", "window_tokens")
    sound(store, narrow.id)


def test_a_fork_that_is_cancelled_before_anybody_drives_it_asks_nothing() -> None:
    store = open_store("memory:")
    agent({"text": "Done."}).run_sync("Look.", store=store, run_id="parent")
    fork(store.log, "parent", records(store, "model_requested")[0].position, RunId("child"))
    store.cancel_sync("child")
    assert store.journal("child").run.status == "cancelled"
    assert [record.run for record in records(store, "model_requested", "child")] == ["parent"]
    sound(store, "child")


@pytest.mark.parametrize("excerpt", [None, 700, 1_000, 5_000])
@pytest.mark.parametrize("nth", [0, 1])
def test_an_edited_result_is_shown_as_long_as_the_fork_has_it(excerpt: int | None, nth: int) -> None:
    # given a fork that shows less, or more, of a result than its parent did, and a long result in place of one
    store = open_store("memory:")
    parent = agent(calls(10), calls(11), {"text": "Done."}, context=Context(observation_bytes=1_500))
    parent.run_sync("Look.", store=store, run_id="parent")
    at = records(store, "tool_calls_requested")[1].position - 1 if nth else records(store, "tool_results_injected")[0].position
    other = agent({"text": "Seen."}, context=Context(observation_bytes=excerpt))
    run = other.fork_sync("parent", at, store=store, edits={"t1.1": "L" * 3_000}, new_id="child")
    # then its model is shown what is recorded
    request = other.model.requests[0]  # type: ignore[union-attr]
    asked = next(record for record in records(store, "model_requested", "child") if record.run == "child")
    assert prompt(store, "child", asked.position).request.messages == request.messages
    (shown,) = [message.content for message in request.messages if message.role == "tool"]
    assert (shown == "L" * 3_000) == (excerpt in (None, 5_000))
    assert run.status == "completed"
    sound(store, "child")
