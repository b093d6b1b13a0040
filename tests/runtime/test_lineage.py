"""A run of some id is not the parent that another names: its digest at the split, or at the end that was gone on from, tells. What is not there keeps from what needs it, and from nothing else."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from refold import Agent, Context, ScriptedModel, ToolResult, audit, diff, open_store, replay, show, tool
from refold.events import facts as f
from refold.events.chain import MARK
from refold.events.codec import Edge, Stamp, encoded, read, read_line
from refold.events.lineage import OtherHistory, splits
from refold.events.words import RunId
from refold.projections.run import replace
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.forking import fork
from refold.runtime.journal import loader
from refold.runtime.sealing import new_key
from refold.runtime.show import prompt
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
    """A run `one` that looked, asked and sent; `kid`, a fork of it where it asked; and `two`, which goes on from it."""
    SENT.clear()
    store = open_store("memory:")
    made = agent(*ASKING)
    made.run_sync("Do it.", store=store, run_id="one")
    store.answer_sync("one", "Yes.")
    assert made.resume_sync("one", store=store).status == "completed"
    agent(*SENDING).fork_sync("one", at(store, "one", "clarification_requested"), store=store, new_id="kid")
    agent(call("look", at="south"), {"text": "More."}).continue_run_sync("one", "More.", store=store, new_id="two")
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
    words = "run kid is a fork of one, and the run one of this store is another, ends before that or is damaged there: see refold audit one, or import both into a store without it"
    for verb in (show, replay):
        with pytest.raises(OtherHistory, match=words):
            verb(store, "kid")
    with pytest.raises(OtherHistory, match=words):
        fork(store.log, "kid", rows[-1].position, RunId("grandkid"))
    assert audit(store, "kid").chain.why == words
    assert store.runs() == ["one", "kid"]


@pytest.mark.parametrize("where", ["its digest", "its beginning"])
def test_a_parent_that_is_damaged_at_the_split_is_no_other_run(tmp_path: Path, origin: Store, where: str) -> None:
    # given a fork whose parent has one byte changed in the very record that it was split off at
    store = taken(origin, "one", into=open_store(f"sqlite:///{tmp_path}/s.db"))
    split = at(store, "one", "tool_results_injected")
    agent({"text": "Else."}).fork_sync("one", split, store=store, new_id="kid")
    with closing(sqlite3.connect(tmp_path / "s.db")) as db, db:
        (state,) = db.execute("SELECT state FROM stored_events WHERE originator_id = 'one' AND originator_version = ?", (split,)).fetchone()
        place = -5 if where == "its digest" else 0
        changed = bytearray(state)
        changed[place] ^= 1
        db.execute("UPDATE stored_events SET state = ? WHERE originator_id = 'one' AND originator_version = ?", (bytes(changed), split))
    # then the audit of the fork finds it where it is
    assert audit(store, "kid").chain.broken_at == audit(store, "one").chain.broken_at == split


def test_forks_that_name_each_other_are_a_damaged_store(origin: Store) -> None:
    # given two forks, each of which has the record behind which the other is said to begin
    kid = origin.log.read("kid")[0]
    line = read_line(kid.state)
    fact = read(kid.state, origin.log.payload).fact
    assert isinstance(fact, f.RunForked)
    store = taken(origin, "one")
    for run_id, position, split in (
        ("kid", kid.position, replace(fact, parent=RunId("boy"), named=RunId("one"))),
        ("boy", kid.position + 1, replace(fact, parent=RunId("kid"), named=RunId("one"), at=kid.position, head=line.digest)),
    ):
        edge = Edge(fact=split, source=line.source, target=line.target, turn=line.turn)
        body, _ = encoded(edge, run=RunId(run_id), position=position, batch=position, stamp=Stamp(at=line.at, driver=line.driver))
        stored = body[:-1] + MARK + line.digest.encode() + b'"}'  # under the digest that is looked for, which nobody has checked yet
        store.log.append(run_id, position - 1, [kid._replace(position=position, state=stored)], create=True)
    # then that is told
    with pytest.raises(OtherHistory, match="which is a fork of it: the store is damaged"):
        show(store, "kid")


@ABSENT
def test_a_comparison_says_who_is_a_fork_of_whom_and_of_nobody_else(origin: Store, elsewhere: Made) -> None:
    store = elsewhere(origin)
    if elsewhere is nobody:
        taken(origin, "one", into=store)
    taken(origin, "kid", "two", into=store)
    for child in ("kid", "two"):
        found = diff(store, "one", child)
        assert (found.left.from_other, found.right.from_other) == (False, elsewhere is nobody)


# -- continuations


@ABSENT
def test_a_continuation_is_read_without_its_parent_and_not_driven_on(origin: Store, elsewhere: Made) -> None:
    # given one that has ended and one that waits
    agent(call("ask_user", question="Which?"), {"text": "That."}).continue_run_sync("one", "Ask.", store=origin, new_id="waits")
    store = taken(origin, "two", "waits", into=elsewhere(origin))
    before = list(store.runs())
    # then their own records are enough for much, and a human's word is taken
    for run_id in ("two", "waits"):
        assert show(store, run_id)["run_id"] == run_id
        assert audit(store, run_id).ok
        assert replay(store, run_id).divergence is None
        assert store.journal(run_id).run.position == list(store.read(run_id))[-1].position
    store.answer_sync("waits", "This.")
    end = store.journal("waits").run.position
    # and what is to show a model the past says that it is missing, and leaves nothing behind
    words = "the run goes on from one, "
    words += (
        "which is not in this store: import it first"
        if elsewhere is nobody
        else "and the run one of this store is another, ends before that or is damaged there: "
    )
    asked = at(store, "two", "model_requested")
    for verb in (
        lambda: agent({"text": "That."}).resume_sync("waits", store=store),
        lambda: agent({"text": "That."}).continue_run_sync("two", "More.", store=store, new_id="three"),
        lambda: agent({"text": "That."}).fork_sync("two", asked, store=store, new_id="three"),
        lambda: prompt(store, "two", asked),
    ):
        with pytest.raises(OtherHistory, match=words):
            verb()
    assert (store.runs(), store.journal("waits").run.position) == (before, end)
    # and it can be ended all the same
    store.cancel_sync("waits")
    assert store.journal("waits").run.status == "cancelled"


def test_a_continuation_goes_on_once_its_parent_is_there(origin: Store) -> None:
    agent(call("ask_user", question="Which?"), {"text": "That."}).continue_run_sync("one", "Ask.", store=origin, new_id="waits")
    store = taken(origin, "waits")
    store.answer_sync("waits", "This.")
    taken(origin, "one", into=store)
    run = agent({"text": "None."}, {"text": "That."}).resume_sync("waits", store=store)
    assert (run.status, run.answer) == ("completed", "That.")
    assert "seen north" in str(show(store, "waits")["messages"])


def test_a_continuation_of_one_whose_own_parent_is_missing_says_which(origin: Store) -> None:
    # given the last two of three runs
    agent(call("ask_user", question="Which?"), {"text": "That."}).continue_run_sync("two", "Ask.", store=origin, new_id="three")
    store = taken(origin, "two", "three")
    # then the first is named
    assert audit(store, "three").ok
    store.answer_sync("three", "This.")
    with pytest.raises(OtherHistory, match="goes on from one, which is not in this store"):
        agent({"text": "That."}).resume_sync("three", store=store)


def test_a_continuation_of_a_run_that_is_damaged_is_read_without_it(origin: Store) -> None:
    # given a store in which a record of the parent before the end is none
    store = open_store("memory:")
    rows = origin.log.read("one")
    store.log.append("one", 0, [*rows[:4], rows[4]._replace(state=b"none"), *rows[5:]], create=True)
    taken(origin, "two", into=store)
    # then that of the run which goes on from it is enough for much
    assert store.journal("two").run.status == "completed"
    assert show(store, "two")["answer"] == "More."
    with pytest.raises(OtherHistory, match=r"goes on from one, which cannot be followed: .* at position 5"):
        agent({"text": "That."}).continue_run_sync("two", "More.", store=store)


def test_what_came_behind_the_end_of_a_parent_changes_nothing_of_what_was_handed_on(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the cryptography package is not installed")

    @tool(effect="read")
    def note() -> ToolResult:
        """Notes."""
        return ToolResult(data="noted", notes=["It is cold."])

    # given a run that goes on from one with a note
    store, settings = open_store("memory:"), {"tools": [note], "context": Context(window_tokens=32_000)}
    agent(call("note"), {"text": "Noted."}, **settings).run_sync("Note.", store=store, run_id="first")
    agent({"text": "Done."}, **settings).continue_run_sync("first", "More.", store=store, new_id="second")
    before = store.journal("second").transcript.notes
    assert before
    # when the first is sealed
    new_key(tmp_path / "key")
    store.seal_sync("first", key=tmp_path / "key")
    # then the note stands where it stood
    assert store.journal("second").transcript.notes == before
