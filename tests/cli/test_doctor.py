"""`doctor`: what needs a person, and the size of the store."""

import sqlite3

import pytest

from refold import Agent, open_store
from refold.events import facts as f
from refold.projections import revisions
from refold.runtime.cli import exits
from refold.runtime.journal import Journal
from refold.runtime.store import attach

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}
SEND = {"calls": [{"name": "send", "arguments": {"to": "ann"}}]}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which year?"}}]}
PAY = {"calls": [{"name": "pay", "arguments": {"amount": 5}}]}
PROJECT = '[tool.refold.agents]\ncrew = "crew:agent"\n'


def begun(run_id, *, detached=False):
    """A run whose driver attached and was heard of no more."""
    store = open_store("sqlite:///.refold/log.db")
    journal = Journal(store.log, run_id)
    journal.command_sync(lambda run: (f.RunStarted(goal="Do it.", setup=Agent(name="gone").declared()), attach(run)))
    if detached:
        journal.command_sync(lambda run: (f.DriverDetached(epoch=run.epoch, why="parked"),))
    store.close()


def kinds(done):
    return {(one["run_id"], one["kind"]) for one in done.json}


def test_a_store_that_is_not_there_needs_nobody(shell):
    done = shell("doctor", "--json")
    assert (done.code, done.json) == (exits.COMPLETED, [])
    assert shell("doctor").code == exits.COMPLETED
    assert not (shell.folder / ".refold").exists()


def test_where_all_is_well_only_sizes_are_told(shell):
    shell.run(LOOK, DONE)
    done = shell("doctor", "--json")
    assert (done.code, done.json) == (exits.COMPLETED, [])
    out = shell("doctor").out
    assert "nothing needs anybody" in out
    assert "of 1 run" in out
    assert "log.db" in out


def test_what_waits_for_a_human_is_named_with_the_line_to_type(shell):
    # given
    shell.run(SEND, DONE, words=("--run-id", "sends"))
    shell.run(ASK, DONE, words=("--run-id", "asks"))
    shell.run(PAY, DONE, words=("--run-id", "pays", "--set", "policy.on_doubt=ask"))
    # when
    done = shell("doctor", "--json")
    # then
    assert done.code == exits.FOUND
    assert kinds(done) == {("sends", "approval"), ("asks", "question"), ("pays", "doubt")}
    assert all(one["since"] and one["why"] and one["status"] == "waiting_for_user" for one in done.json)
    out = shell("doctor").out
    assert "refold approve sends t1.1" in out
    assert "refold resolve pays t1.1 --happened" in out


def test_a_dead_driver_and_a_parked_run_are_told_apart_and_one_that_is_driven_is_neither(shell):
    # given
    begun("dead")
    begun("parked", detached=True)
    begun("driven")
    store = open_store("sqlite:///.refold/log.db")
    with store.log.hold("driven", "ann@there:7", 30):
        # when
        done = shell("doctor", "--json")
    store.close()
    # then
    assert done.code == exits.FOUND
    assert kinds(done) == {("dead", "dead_driver"), ("parked", "parked")}
    assert "refold resume dead" in shell("doctor").out


def test_a_dead_drivers_run_is_ended_by_cancelling_it(shell):
    begun("dead")
    assert shell("cancel", "dead").code == exits.COMPLETED
    assert shell("doctor", "--json").json == []


def test_a_run_of_rules_that_are_not_known_is_named(shell, monkeypatch):
    # given an ended run and one that waits
    shell.run(DONE, words=("--run-id", "ended"))
    shell.run(ASK, DONE, words=("--run-id", "asks"))
    # when this version knows other rules alone
    monkeypatch.setattr("refold.runtime.cli.doctor.SUPPORTED", frozenset({revisions.ENGINE + 1}))
    done = shell("doctor", "--json")
    # then
    assert {("ended", "unsupported_engine"), ("asks", "unsupported_engine")} <= kinds(done)
    assert [one["run_id"] for one in done.json if one["kind"] == "unsupported_engine" and one["needs_person"]] == ["asks"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("to: str", "to: str, urgent: bool = False", "another schema"),
        ('approval="always"', 'effect="read"', "another effect and approval"),
        ("[look, send", "[look", "send is gone"),
    ],
    ids=["a schema", "a policy", "a tool"],
)
def test_an_agent_that_changed_under_a_waiting_run_is_named(shell, before, after, said):
    # given
    shell.write("refold.toml", PROJECT)
    shell.run(ASK, DONE)
    assert kinds(shell("doctor", "--json")) == {("one", "question")}
    # when
    shell.write("crew.py", (shell.folder / "crew.py").read_text().replace(before, after))
    shell.forget()
    # then
    changed = [one for one in shell("doctor", "--json").json if one["kind"] == "changed_agent"]
    assert len(changed) == 1
    assert said in changed[0]["why"]


def test_an_agent_whose_code_is_not_found_is_no_finding(shell):
    shell.run(ASK, DONE)
    assert kinds(shell("doctor", "--json")) == {("one", "question")}


def test_documents_that_have_gone_are_named(shell):
    # given
    shell.write("reports/a.md", "# A\nIt was 3.")
    shell("run", "What was it?", "--docs", "reports", "--model", shell.script(ASK, DONE))
    # when
    (shell.folder / "reports" / "a.md").unlink()
    (shell.folder / "reports").rmdir()
    # then
    assert [one["kind"] for one in shell("doctor", "--json").json] == ["question", "changed_agent"]
    assert "index" in shell("doctor").out


def test_a_broken_chain_is_found_where_it_breaks(shell):
    # given
    shell.run(LOOK, DONE)
    with sqlite3.connect(shell.folder / ".refold" / "log.db") as connection:
        connection.execute("UPDATE stored_events SET state = CAST(replace(CAST(state AS TEXT), 'Do it.', 'Do ti.') AS BLOB) WHERE originator_version = 1")
    connection.close()
    # when
    done = shell("doctor", "--json")
    # then
    assert (done.code, kinds(done)) == (exits.FOUND, {("one", "broken_chain")})
    assert "position 1" in done.json[0]["why"]


@pytest.mark.parametrize("words", [("cancel", "asks"), ("say", "asks", "Hello?"), ("answer", "asks", "Blue."), ("compact", "asks")])
def test_a_word_to_a_run_of_rules_that_are_not_known_is_kept_for_whoever_knows_them(shell, monkeypatch, words):
    shell.run(ASK, DONE, words=("--run-id", "asks"))
    before = shell("export", "asks").out
    # given a version that knows other rules alone
    for place in ("runtime.cli.humans", "runtime.store", "fsm.decide"):
        monkeypatch.setattr(f"refold.{place}.SUPPORTED", frozenset({revisions.ENGINE + 1}))
    # when somebody says something to the run
    done = shell(*words)
    # then that is one record more, and nothing was derived from it
    assert done.code == (exits.UNAVAILABLE if words[0] == "cancel" else exits.COMPLETED)
    assert words[0] != "cancel" or "a driver of the version that made it ends it" in done.error
    after = shell("export", "asks").out
    assert after.startswith(before)
    assert len(after.splitlines()) == len(before.splitlines()) + 1
