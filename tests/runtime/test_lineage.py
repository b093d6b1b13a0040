"""A run of some id is not the parent that another names: its digest at the split tells."""

from collections.abc import Callable
from typing import Any

import pytest

from refold import Agent, ScriptedModel, audit, open_store, replay, show, tool
from refold.events.lineage import OtherHistory, splits
from refold.events.words import RunId
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.forking import fork
from refold.runtime.journal import loader
from refold.runtime.store import Store
from refold.runtime.transfer import export_lines, import_file, parse

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
    return Agent(**{"model": ScriptedModel(list(turns)), "tools": [look, send], **changes})


SENDING = (call("send", to="ann"), {"text": "Done."})
ASKING = (call("look", at="north"), call("ask_user", question="Go?"), *SENDING)


@pytest.fixture
def origin() -> Store:
    """A run `one` that looked, asked and sent; and `kid`, a fork of it where it asked."""
    SENT.clear()
    store = open_store("memory:")
    made = agent(*ASKING)
    made.run_sync("Do it.", store=store, run_id="one")
    store.answer_sync("one", "Yes.")
    assert made.resume_sync("one", store=store).status == "completed"
    agent(*SENDING).fork_sync("one", at(store, "one", "clarification_requested"), store=store, new_id="kid")
    return store


def at(store: Store, run_id: str, tag: str) -> int:
    return next(record.position for record in store.read(run_id) if record.type == tag)


def taken(store: Store, *run_ids: str, into: Store | None = None) -> Store:
    """Another store, into which runs of one were imported."""
    other = into or open_store("memory:")
    for run_id in run_ids:
        import_file(other, parse(b"".join(export_lines(store, run_id)), run_id))
    return other


def nobody(_: Store) -> Store:
    """A store without the parent."""
    return open_store("memory:")


def another(_: Store) -> Store:
    """A store in which the parent's id is that of another run, which is as long."""
    other = open_store("memory:")
    agent(*(call("look", at=str(n)) for n in range(8)), {"text": "Other."}).run_sync("Other.", store=other, run_id="one")
    return other


def a_short_one(_: Store) -> Store:
    """A store in which the parent's id is that of another run, which ended before the split."""
    other = open_store("memory:")
    agent({"text": "Short."}).run_sync("Short.", store=other, run_id="one")
    return other


def its_beginning(origin: Store) -> Store:
    """A store with the first records of the parent alone."""
    other = open_store("memory:")
    import_file(other, parse(b"".join(list(export_lines(origin, "one"))[:10]), "one"))
    return other


ABSENT = pytest.mark.parametrize("elsewhere", [nobody, another, a_short_one, its_beginning], ids=lambda made: made.__name__)
Made = Callable[[Store], Store]


# -- forks


@ABSENT
def test_an_imported_fork_goes_on_and_asks_where_its_parent_is_not_there(origin: Store, elsewhere: Made) -> None:
    store = taken(origin, "kid", into=elsewhere(origin))
    # when it is driven on to what its parent did
    store.answer_sync("kid", "Yes.")
    run = agent(*SENDING).resume_sync("kid", store=store)
    # then a human is asked, since nobody can tell what the parent did, and what that is not says nothing
    (asked,) = show(store, "kid")["pending"]
    assert asked["reason"] == "run one, from which this one was forked, is not in this store, and what it performed later is not known"
    assert SENT == ["ann"]
    store.approve_sync("kid")
    run = agent(*SENDING).resume_sync("kid", store=store)
    assert (run.status, SENT) == ("completed", ["ann", "ann"])
    assert audit(store, "kid").ok
    assert replay(store, "kid", agent(*SENDING)).divergence is None


@ABSENT
def test_an_imported_fork_is_forked_within_its_parents_records_whoever_has_the_parents_id(origin: Store, elsewhere: Made) -> None:
    store = taken(origin, "kid", into=elsewhere(origin))
    # when it is forked where its records are the parent's, and that fork is forked there again, and at a place of its own
    for run_id, of, tag in (("grandkid", "kid", "tool_results_injected"), ("other", "grandkid", "tool_results_injected")):
        run = agent(call("look", at="west"), {"text": "Otherwise."}).fork_sync(of, at(store, "kid", tag), store=store, new_id=run_id)
        assert (run.status, run.answer) == ("completed", "Otherwise.")
    agent({"text": "Last."}).fork_sync("other", list(store.read("other"))[-5].position, store=store, new_id="later")
    # then each has the records that it was shown, whole
    for run_id in ("grandkid", "other", "later"):
        assert audit(store, run_id).ok, audit(store, run_id)
        assert replay(store, run_id).divergence is None
        assert "seen north" in str(show(store, run_id)["messages"])
        assert splits(store.log, run_id, loader(store.log, run_id, many=False))[0].parent == "one"
        assert parse(b"".join(export_lines(store, run_id)), run_id).audit().ok


def test_a_fork_knows_what_its_parent_did_where_that_is_there(origin: Store) -> None:
    # given a store into which both were imported
    store = taken(origin, "one", "kid")
    # when the fork comes to what its parent did
    store.answer_sync("kid", "Yes.")
    agent(*SENDING).resume_sync("kid", store=store)
    # then it says where
    started = [record.position for record in origin.read("one") if record.type == "tool_started"][-1]
    (asked,) = show(store, "kid")["pending"]
    assert asked["reason"] == f"run one, from which this one was forked, performed it at {started}"


@pytest.mark.parametrize("elsewhere", [another, a_short_one], ids=lambda made: made.__name__)
def test_the_records_of_a_fork_alone_are_not_laid_over_those_of_another_run(origin: Store, elsewhere: Made) -> None:
    # given a fork without what it inherits, beside another run of its parent's id
    store = elsewhere(origin)
    rows = origin.log.read("kid")
    store.log.append("kid", rows[0].position - 1, rows, create=True)
    # then whoever reads it is told, and whoever audits it finds that
    words = "run kid is a fork of one, and the run one of this store is another, or ends before that: import both into a store without it"
    for read in (show, replay):
        with pytest.raises(OtherHistory, match=words):
            read(store, "kid")
    with pytest.raises(OtherHistory, match=words):
        fork(store.log, "kid", rows[-1].position, RunId("grandkid"))
    assert audit(store, "kid").chain.why == words
    assert store.runs() == ["one", "kid"]


def test_forks_that_name_each_other_are_a_damaged_store(origin: Store) -> None:
    # given two forks of one place, each of which is said to be the other's parent
    place = at(origin, "one", "clarification_requested")
    store = open_store("memory:")
    for run_id, named in (("kid", b"boy"), ("boy", b"kid")):
        stored = origin.log.read("kid")[0].state.replace(b'"parent":"one"', b'"parent":"none","named":"' + named + b'"')
        store.log.append(run_id, place, [origin.log.read("kid")[0]._replace(state=stored)], create=True)
    # then that is told
    with pytest.raises(OtherHistory, match="not in this store"):
        show(store, "kid")
