"""A fork goes its own way from any record of a run: what its model is asked, what its tools may do again, and what is written for it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from refold import Agent, Budgets, Policy, ScriptedModel, audit, open_store, replay, show, tool
from refold.events import settings as recorded
from refold.events.codec import Record
from refold.events.lineage import OtherHistory, splits
from refold.events.storage import Row
from refold.events.words import RunId
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.driver import RunExists
from refold.runtime.forking import Asked, NoFork, fork
from refold.runtime.journal import loader
from refold.runtime.show import prompt
from refold.runtime.store import Store
from refold.runtime.transfer import export_lines, import_file, parse
from refold.testing.trajectory import Act, Trajectory

SENT: list[str] = []


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


@tool
def send(to: str) -> str:
    """Sends."""
    SENT.append(to)
    return f"sent to {to}"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


def agent(*turns: dict[str, Any], **changes: Any) -> AnyAgent:
    return Agent(**{"model": ScriptedModel(list(turns)), "tools": [look, send], "policy": Policy(wrap_up=False), **changes})


@pytest.fixture
def store() -> Store:
    SENT.clear()
    store = open_store("memory:")
    made = agent(call("look", at="north"), call("send", to="ann"), call("look", at="south"), {"text": "Done."})
    assert made.run_sync("Look around.", store=store, run_id="parent").status == "completed"
    return store


def records(store: Store, tag: str, run_id: str = "parent") -> list[Record]:
    return [record for record in store.read(run_id) if record.type == tag]


def sound(store: Store, run_id: str) -> None:
    assert audit(store, run_id).ok, audit(store, run_id)
    assert replay(store, run_id).divergence is None, replay(store, run_id).divergence
    lines = b"".join(export_lines(store, run_id))
    elsewhere = open_store("memory:")
    assert import_file(elsewhere, parse(lines, "export")) == run_id
    assert show(elsewhere, run_id) == show(store, run_id)
    for request in records(store, "model_requested", run_id):
        assert prompt(store, run_id, request.position).digest == request.fact.digest  # type: ignore[union-attr]


def test_a_fork_asks_its_own_model_with_what_was_said_until_then(store: Store) -> None:
    # given a fork at the third request, with another agent
    at = records(store, "model_requested")[2].position
    other = agent({"text": "I changed my mind."}, instructions="Be brief.", budgets=Budgets(max_turns=4))
    run = other.fork_sync("parent", at, store=store, new_id="child")
    # then its model answers with its first entry, and was shown the past and the new instructions
    assert (run.answer, run.turns, run.as_json()["forked_at"]) == ("I changed my mind.", 3, at)
    (request,) = other.model.requests  # type: ignore[union-attr]
    assert request.instructions == "Be brief."
    assert [message.content for message in request.messages if message.role == "tool"] == ["seen north", "sent to ann"]
    assert SENT == ["ann"]
    # and what is other is in its first record
    (forked,) = records(store, "run_forked", "child")
    assert set(forked.fact.changes) == {"instructions", "budgets.max_turns", "model"}  # type: ignore[union-attr]
    sound(store, "child")
    sound(store, "parent")


def test_a_side_effect_that_the_parent_performed_later_is_asked_for(store: Store) -> None:
    # given a fork before the letter was sent, whose model sends it too, and another
    at = records(store, "model_requested")[1].position
    other = agent(call("send", to="ann"), call("send", to="bob"), {"text": "Sent."})
    run = other.fork_sync("parent", at, store=store)
    # then a human is asked about the one that was sent, and told where
    assert run.status == "waiting_for_user"
    (asked,) = show(store, run.id)["pending"]
    assert (asked["name"], asked["arguments"]) == ("send", {"to": "ann"})
    started = records(store, "tool_started")[1].position
    assert asked["reason"] == f"run parent, from which this one was forked, performed it at {started}"
    # and the other is sent without a word
    store.approve_sync(run.id)
    assert other.resume_sync(run.id, store=store).answer == "Sent."
    assert SENT == ["ann", "ann", "bob"]
    sound(store, run.id)
    assert replay(store, run.id, other).divergence is None


def test_what_the_named_run_did_is_asked_for_where_it_inherited_the_place(store: Store) -> None:
    # given a fork that sent a letter of its own
    first = records(store, "model_requested")[0].position
    agent(call("send", to="dan"), {"text": "Sent."}).fork_sync("parent", first, store=store, new_id="child")
    # when that fork is forked at a place that it has from its parent, and the letter is to be sent again
    run = agent(call("send", to="dan"), {"text": "Sent."}).fork_sync("child", first, store=store)
    # then a human is asked
    assert run.status == "waiting_for_user"
    assert SENT == ["ann", "dan"]
    sound(store, run.id)


def test_a_fork_without_its_parent_asks_for_every_side_effect(store: Store) -> None:
    # given a fork that waits, taken to a store in which its parent is not
    first = records(store, "model_requested")[0].position
    asking = agent(call("ask_user", question="Now?"), call("send", to="ann"), {"text": "Sent."})
    run = asking.fork_sync("parent", first, store=store)
    elsewhere = open_store("memory:")
    import_file(elsewhere, parse(b"".join(export_lines(store, run.id)), "export"))
    # when it goes on there
    elsewhere.answer_sync(run.id, "Yes.")
    run = asking.resume_sync(run.id, store=elsewhere)
    # then it asks, and says why
    (asked,) = show(elsewhere, run.id)["pending"]
    assert "is not in this store" in asked["reason"]
    assert SENT == ["ann"]


def test_an_imported_fork_is_forked_from_what_it_had_changed(store: Store) -> None:
    # given a fork with a limit of its own, in a store without its parent
    at = records(store, "model_requested")[2].position
    agent(call("look", at="west"), {"text": "Seen."}, budgets=Budgets(max_turns=4)).fork_sync("parent", at, store=store, new_id="child")
    elsewhere = open_store("memory:")
    import_file(elsewhere, parse(b"".join(export_lines(store, "child")), "export"))
    # when it is forked by an agent with the limit that the parent had
    later = records(elsewhere, "model_requested", "child")[-1].position
    run = agent({"text": "Done."}).fork_sync("child", later, store=elsewhere)
    # then that holds
    assert show(elsewhere, "child")["budgets"]["max_turns"] == 4
    assert show(elsewhere, run.id)["budgets"]["max_turns"] == Budgets().max_turns
    sound(elsewhere, run.id)


def test_an_imported_fork_is_forked_where_it_is_still_its_parent(store: Store) -> None:
    # given a fork of a fork that was imported into a store without its parents
    first = agent({"text": "Done."}).fork_sync("parent", records(store, "model_requested")[1].position, store=store, edits={"t1.1": "nothing"}, new_id="first")
    second = agent({"text": "Done."}).fork_sync("first", first.run.position - 3, store=store, message="Sure?", new_id="second")
    elsewhere = open_store("memory:")
    import_file(elsewhere, parse(b"".join(export_lines(store, second.id)), "export"))
    places = [record.position for record in store.read("parent") if record.type == "tool_results_injected" and record.position <= first.run.forked_at]
    assert places
    for n, at in enumerate(places):
        # when it is forked where its records are still those of the parent
        run = agent({"text": "Otherwise."}).fork_sync("second", at, store=elsewhere, new_id=f"third-{n}")
        # then that goes on from there, in this store and in any other
        assert (run.status, run.answer) == ("completed", "Otherwise.")
        assert run.run.forked_from == "parent"
        assert [split.parent for split in splits(elsewhere.log, run.id, loader(elsewhere.log, run.id, many=False))] == ["parent"]
        sound(elsewhere, run.id)


def test_forks_of_a_fork_of_an_imported_fork_go_on(store: Store) -> None:
    # given a fork that was imported without its parent, and a fork of that where its records are still the parent's
    at = [record.position for record in store.read("parent") if record.type == "tool_results_injected"]
    agent({"text": "Done."}).fork_sync("parent", at[1], store=store, new_id="first")
    elsewhere = open_store("memory:")
    import_file(elsewhere, parse(b"".join(export_lines(store, "first")), "export"))
    agent(call("send", to="eve"), {"text": "Done."}).fork_sync("first", at[0], store=elsewhere, new_id="second")
    # when that is forked where its records are the parent's too
    run = agent(call("send", to="fay"), {"text": "Done."}).fork_sync("second", at[0], store=elsewhere, new_id="third")
    # then it goes on, as the same place of the parent
    assert run.run.forked_from == "parent"
    assert run.status in ("completed", "waiting_for_user")
    sound(elsewhere, "third")


def test_the_same_business_key_is_the_same_act(store: Store) -> None:
    # given a tool that names its act, and a run that did it
    done: list[str] = []

    @tool(key=lambda arguments: arguments["order"])
    def order(order: str, note: str) -> str:
        """Orders."""
        done.append(order)
        return "ordered"

    def ordering(note: str) -> AnyAgent:
        return agent(call("order", order="A1", note=note), {"text": "Done."}, tools=[order])

    ordering("first").run_sync("Order.", store=store, run_id="ordered")
    # when a fork does it with other words
    run = ordering("other").fork_sync("ordered", records(store, "model_requested", "ordered")[0].position, store=store)
    # then a human is asked
    assert (run.status, done) == ("waiting_for_user", ["A1"])


def test_what_may_be_repeated_is_done_unasked(store: Store) -> None:
    at = records(store, "model_requested")[1].position
    other = agent(call("send", to="ann"), {"text": "Sent."})
    run = asyncio.run(other.fork("parent", at, store=store, allow_repeat=True))
    assert (run.answer, SENT) == ("Sent.", ["ann", "ann"])
    sound(store, run.id)


def test_a_call_that_was_about_to_run_is_asked_for(store: Store) -> None:
    # given a run with two calls in a turn, of which the second sends
    made = agent({"calls": [{"name": "look", "arguments": {"at": "east"}}, {"name": "send", "arguments": {"to": "cem"}}]}, {"text": "Done."})
    made.run_sync("Do both.", store=store, run_id="both")
    before = records(store, "tool_started", "both")[0].position
    # when it is forked before the second was begun
    run = agent({"text": "Done."}).fork_sync("both", before, store=store)
    # then a human is asked
    assert run.status == "waiting_for_user"
    assert SENT == ["ann", "cem"]
    store.deny_sync(run.id, reason="It was sent.")
    run = agent({"text": "Done."}).resume_sync(run.id, store=store)
    assert (run.status, SENT) == ("completed", ["ann", "cem"])
    sound(store, run.id)


def test_a_call_that_was_about_to_run_runs_once_it_is_allowed(store: Store) -> None:
    # given a fork in which a human is asked about a call because its parent performed it later, and no rule of the tool wants that
    made = agent({"calls": [{"name": "look", "arguments": {"at": "east"}}, {"name": "send", "arguments": {"to": "cem"}}]}, {"text": "Done."})
    made.run_sync("Do both.", store=store, run_id="both")
    agent({"text": "Done."}).fork_sync("both", records(store, "tool_started", "both")[0].position, store=store, new_id="child")
    # when it is allowed
    store.approve_sync("child")
    run = agent({"text": "Done."}).resume_sync("child", store=store)
    # then that counts: the code of today would ask for nothing else
    assert (run.status, SENT) == ("completed", ["ann", "cem", "cem"])
    assert not records(store, "approval_denied", "child")
    sound(store, "child")


@pytest.mark.parametrize("there", [True, False], ids=["where its parent is", "where its parent is not"])
def test_a_call_that_was_about_to_run_is_asked_for_where_a_fork_that_never_ran_it_is_forked(store: Store, there: bool) -> None:
    # given a fork in which a call is denied that its parent performed later
    made = agent({"calls": [{"name": "look", "arguments": {"at": "east"}}, {"name": "send", "arguments": {"to": "cem"}}]}, {"text": "Done."})
    made.run_sync("Do both.", store=store, run_id="both")
    before = records(store, "tool_started", "both")[0].position
    agent({"text": "Done."}).fork_sync("both", before, store=store, new_id="child")
    store.deny_sync("child", reason="It was sent.")
    agent({"text": "Done."}).resume_sync("child", store=store)
    elsewhere = open_store("memory:")
    import_file(elsewhere, parse(b"".join(export_lines(store, "child")), "export"))
    # when that fork is forked at the same place, which it has from its parent
    run = agent({"text": "Done."}).fork_sync("child", before, store=store if there else elsewhere)
    # then a human is asked, whether or not anybody can tell what the parent did
    assert (run.status, SENT) == ("waiting_for_user", ["ann", "cem"])
    sound(store if there else elsewhere, run.id)


def test_an_approval_of_a_call_that_was_about_to_run_is_void_under_another_rule_of_its_tool(store: Store) -> None:
    made = agent({"calls": [{"name": "look", "arguments": {"at": "east"}}, {"name": "send", "arguments": {"to": "cem"}}]}, {"text": "Done."})
    made.run_sync("Do both.", store=store, run_id="both")
    agent({"text": "Done."}).fork_sync("both", records(store, "tool_started", "both")[0].position, store=store, new_id="child")
    store.approve_sync("child")

    @tool(name="send", approval="always")
    def careful(to: str) -> str:
        """Sends."""
        return send.handler(to)  # type: ignore[no-any-return]

    run = agent({"text": "Done."}, tools=[look, careful]).resume_sync("child", store=store)
    assert (run.status, SENT) == ("completed", ["ann", "cem"])
    assert "changed after a human was asked" in records(store, "approval_denied", "child")[0].data["reason"]


def test_nobody_is_asked_about_a_call_whose_tool_the_fork_does_not_have(store: Store) -> None:
    # given a run that waits for leave to order, a run that had it, and one that was about to send
    @tool(approval="always")
    def order(what: str) -> str:
        """Orders."""
        return f"ordered {what}"

    tools = [look, send, order]
    for name in ("waits", "allowed"):
        agent(call("order", what="tea"), {"text": "Done."}, tools=tools).run_sync("Order.", store=store, run_id=name)
    allowed = store.approve_sync("allowed").position
    both = {"calls": [{"name": "look", "arguments": {"at": "east"}}, {"name": "send", "arguments": {"to": "cem"}}]}
    agent(both, {"text": "Done."}).run_sync("Do both.", store=store, run_id="both")
    for name, at in (("waits", show(store, "waits")["position"]), ("allowed", allowed), ("both", records(store, "tool_started", "both")[0].position)):
        # when it is forked there by an agent without that tool
        other = agent({"text": "Then not."}, tools=[look])
        run = other.fork_sync(name, at, store=store, new_id=f"{name}.child")
        # then its model is told so, as of any tool that is not there, and nobody else is asked
        assert (run.status, run.answer) == ("completed", "Then not."), name
        (request,) = other.model.requests  # type: ignore[union-attr]
        assert "there is no tool" in json.dumps(request.messages[-1].content)
        assert "the tools are: look" in json.dumps(request.messages[-1].content)
        sound(store, run.id)
    assert SENT == ["ann", "cem"]


@pytest.mark.parametrize("nth", [1, 2])
def test_an_edited_result_is_shown_instead(store: Store, nth: int) -> None:
    # given a fork in which the first look saw something else, at the next request or one later
    at = records(store, "model_requested")[nth].position
    other = agent({"text": "A dragon."})
    run = other.fork_sync("parent", at, store=store, edits={"t1.1": {"seen": "a dragon"}}, message="Are you sure?")
    # then its model sees that, and the message behind it
    (request,) = other.model.requests  # type: ignore[union-attr]
    assert next(message.content for message in request.messages if message.role == "tool") == {"seen": "a dragon"}
    assert request.messages[-1].text == "Are you sure?"
    shown = show(store, run.id)
    assert "seen north" not in json.dumps(shown)
    assert "seen north" in json.dumps(show(store, "parent"))
    sound(store, run.id)


def test_an_edited_result_that_no_request_has_shown_is_shown_in_its_turn(store: Store) -> None:
    # given a fork behind the results of a turn, one of which is another
    at = records(store, "tool_results_injected")[0].position
    other = agent({"text": "A dragon."})
    run = other.fork_sync("parent", at, store=store, edits={"t1.1": {"seen": "a dragon"}})
    # then its request shows the goal, the call and that result
    (request,) = other.model.requests  # type: ignore[union-attr]
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[-1].content == {"seen": "a dragon"}
    sound(store, run.id)


def test_what_cannot_be_edited_is_said(store: Store) -> None:
    at = records(store, "model_requested")[1].position
    for name in ("t2.1", "t9.9", "nosuch"):
        with pytest.raises(NoFork, match=f"call {name} has no result at position {at} of run parent"):
            agent().fork_sync("parent", at, store=store, edits={name: 1})
    assert store.runs() == ["parent"]


def test_a_position_that_is_none_and_the_end_are_refused(store: Store) -> None:
    last = list(store.read("parent"))[-1].position
    for at, words in ((0, "it has 1 to"), (last + 1, "it has 1 to"), (last, "refold continue parent"), (1, "fork it at 3 or later")):
        with pytest.raises(NoFork, match=words):
            fork(store.log, "parent", at, RunId("child"))
    fork(store.log, "parent", 3, RunId("child"))
    with pytest.raises(RunExists):
        fork(store.log, "parent", 3, RunId("child"))


def test_a_fork_of_a_fork_at_a_record_of_its_parent_is_a_fork_of_that(store: Store) -> None:
    at = records(store, "model_requested")[2].position
    agent(call("look", at="child"), {"text": "Child."}).fork_sync("parent", at, store=store, new_id="child")
    made = fork(store.log, "child", records(store, "model_requested")[1].position, RunId("other"))
    assert made.parent == "parent"
    later = records(store, "model_requested", "child")[-1].position
    run = agent({"text": "Grandchild."}).fork_sync("child", later, store=store, new_id="grandchild")
    assert run.answer == "Grandchild."
    assert [record.run for record in store.read("grandchild") if record.type in ("run_started", "run_forked")] == ["parent", "child", "grandchild"]
    sound(store, "grandchild")


def test_a_fork_can_be_continued_and_a_continuation_forked(store: Store) -> None:
    at = records(store, "model_requested")[2].position
    agent({"text": "Child."}).fork_sync("parent", at, store=store, new_id="child")
    agent(call("look", at="west"), {"text": "Next."}).continue_run_sync("child", "And now?", store=store, new_id="next")
    at = records(store, "model_requested", "next")[1].position
    run = agent({"text": "Otherwise."}).fork_sync("next", at, store=store, edits={"t1.1": "nothing"}, new_id="otherwise")
    assert run.answer == "Otherwise."
    shown = json.dumps(show(store, "otherwise")["messages"])
    assert all(words in shown for words in ("seen north", "sent to ann", "And now?", "nothing"))
    assert "seen west" not in shown
    for name in ("child", "next", "otherwise"):
        assert audit(store, name).ok
        assert replay(store, name).divergence is None


def test_large_values_of_a_parent_are_found(store: Store) -> None:
    # given a run with a result that is stored beside its record
    made = agent(call("look", at="x" * 9_000), {"text": "Done."})
    made.run_sync("Look far.", store=store, run_id="far")
    at = records(store, "model_requested", "far")[1].position
    other = agent({"text": "I see."})
    run = other.fork_sync("far", at, store=store)
    assert "x" * 9_000 in json.dumps(show(store, run.id))
    sound(store, run.id)


def test_a_fork_whose_parent_is_not_there_says_so(store: Store) -> None:
    # given the records of a fork alone, in another store
    at = records(store, "model_requested")[2].position
    agent({"text": "Child."}).fork_sync("parent", at, store=store, new_id="child")
    elsewhere = open_store("memory:")
    elsewhere.log.append("child", at, store.log.read("child"), create=True)
    # then whoever reads it is told what is missing, and whoever audits it finds that
    words = "child is a fork of parent, which is not in this store: import it first"
    for look_at in (show, replay):
        with pytest.raises(OtherHistory, match=words):
            look_at(elsewhere, "child")
    audited = audit(elsewhere, "child")
    assert (audited.ok, audited.chain.ok, words in audited.chain.why) == (False, False, True)


def test_a_fork_of_a_long_run_is_one_small_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a run of many records
    long, log = Trajectory("long").start(budgets=recorded.Budgets(max_turns=None, max_tool_calls=None, max_tokens=None)), store.log
    for n in range(300):
        long.calls(Act("look", arguments=f'{{"at":{n}}}', effect="read"))
        long.succeed(f"t{n + 1}.1")
    log.append("long", 0, [Row(record.position, record.type, record.stored) for record in long.records], long.payloads, create=True)
    read = 0

    def counted(*place: Any) -> Iterator[Row]:
        nonlocal read
        for row in scan(*place):
            read += 1
            yield row

    scan = log.scan
    monkeypatch.setattr(log, "scan", counted)
    # when it is forked near its end
    made = fork(log, "long", len(long.records) - 10, RunId("short"), Asked({"budgets.max_turns": None}))
    # then one record was written, and the run was not read through
    assert read < len(long.records) / 10
    (row,) = log.read("short")
    assert len(row.state) < 2_000
    assert made.at == row.position - 1


def test_a_fork_of_a_run_that_waits_waits_for_itself(store: Store) -> None:
    # given a run that waits for a human
    made = agent({"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}, {"name": "send", "arguments": {"to": "dan"}}]}, {"text": "Done."})
    waiting = made.run_sync("Ask first.", store=store)
    assert waiting.status == "waiting_for_user"
    # when it is forked where it is, then the fork waits for the same answer
    forked = agent({"text": "Done."}).fork_sync(waiting.id, waiting.position, store=store)
    assert forked.status == "waiting_for_user"
    assert next(asked["kind"] for asked in show(store, forked.id)["pending"]) == "question"
    store.answer_sync(forked.id, "This one.")
    store.cancel_sync(forked.id)
    assert show(store, waiting.id)["status"] == "waiting_for_user"
    sound(store, forked.id)


def test_a_result_says_where_a_fork_was_split_off(store: Store) -> None:
    place = records(store, "tool_results_injected")[0].position
    run = agent({"text": "Otherwise."}).fork_sync("parent", place, store=store)
    assert (run.forked_from, run.forked_at) == ("parent", place) == (run.as_json()["forked_from"], run.as_json()["forked_at"])
    # and that of any other run that it was not
    run = agent({"text": "Done."}).run_sync("Do it.", store=store)
    assert (run.forked_from, run.forked_at) == (None, None)
    assert "forked_at" not in run.as_json()
