"""Replay and forks: what was is looked at without doing it again, and two ways from one place know nothing of each other."""

import json
from typing import Any

import pytest

from refold import Store, Tool, audit, fold, replay, show, tool
from refold.events.codec import Record
from refold.runtime.cli import exits
from refold.runtime.cli.main import perform
from refold.runtime.show import prompt
from refold.runtime.store import NotAsked

SENT: list[str] = []
LOOKED: list[str] = []


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    LOOKED.append(at)
    return f"saw {at}"


@tool(approval="always")
def send(to: str) -> str:
    """Sends."""
    SENT.append(to)
    return f"sent to {to}"


@tool
def note(text: str) -> str:
    """Writes down."""
    SENT.append(text)
    return f"noted {text}"


TOOLS: list[Tool] = [look, send, note]


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    SENT.clear()
    LOOKED.clear()


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


ANN = [call("look", at="north"), call("note", text="north"), call("send", to="ann"), {"text": "Ann knows."}]
BOB = [call("send", to="bob"), {"text": "Bob knows."}]


def first(records: list[Record], tag: str, nth: int = 0) -> Record:
    return [record for record in records if record.type == tag][nth]


def stored(store: Store, run_id: str) -> list[bytes]:
    return [record.stored for record in store.read(run_id)]


def said(store: Store, run_id: str) -> str:
    return json.dumps(show(store, run_id)["messages"])


# -- B184


@pytest.mark.parametrize("order", ["parent first", "fork first"])
def test_B184_two_branches_share_what_was_before_and_nothing_else(stage, tmp_path, twin, order):
    """The contract says where a fork begins: at the last place at or before the one that is named where the run rests. The eighth record of this run is the outcome
    of its first call, whose batch makes the next request too; named is the place behind it, where the results are in."""
    # given a run that waits for somebody to allow a letter, and a fork of it from before, with another message, that waits for that, too
    url = f"sqlite:///{tmp_path}/log.db"
    store = stage.another_store(url)
    stage.agent(ANN, TOOLS).run_sync("Tell somebody.", store=store, run_id="parent")
    at = first(list(store.read("parent")), "tool_results_injected").position
    assert at == 9
    stage.agent(BOB, TOOLS).fork_sync("parent", at, store=store, message="Tell Bob instead.", new_id="fork")
    asked = {name: show(store, name)["pending"][0] for name in ("parent", "fork")}
    assert {name: one["arguments"] for name, one in asked.items()} == {"parent": {"to": "ann"}, "fork": {"to": "bob"}}
    # when each is decided and driven to its end on a store opened for it, with a word of the same id for both
    for name in ("parent", "fork") if order == "parent first" else ("fork", "parent"):
        other = stage.another_store(url)
        before = stored(other, "fork" if name == "parent" else "parent")
        taken = other.approve_sync(name, who="ann", command_id="c1")
        assert (taken.again, taken.position) == (False, len(stored(other, name)))
        assert stored(other, "fork" if name == "parent" else "parent") == before
        stage.agent(ANN if name == "parent" else BOB, TOOLS).resume_sync(name, store=other)
    # then, reloaded, both have the same past, byte for byte, up to there
    reloaded = stage.another_store(url)
    parent, fork = list(reloaded.read("parent")), list(reloaded.read("fork"))
    assert [record.stored for record in parent[:at]] == [record.stored for record in fork[:at]]
    assert {record.run for record in parent} == {record.run for record in fork[:at]} == {"parent"}
    assert {record.run for record in fork[at:]} == {"fork"}
    # and nothing of one is in the other
    assert (show(reloaded, "parent")["answer"], show(reloaded, "fork")["answer"]) == ("Ann knows.", "Bob knows.")
    assert "bob" not in said(reloaded, "parent").lower()
    assert "ann" not in said(reloaded, "fork").lower()
    assert "noted" not in said(reloaded, "fork")
    # what was done before was done once, and what each did then it did once, under a key of its own
    assert LOOKED == ["north"]
    assert sorted(SENT) == ["ann", "bob", "north"]
    keys = [{record.fact.key for record in run[at:] if record.type == "tool_started"} for run in (parent, fork)]
    assert [len(each) for each in keys] == [2, 1]
    assert not keys[0] & keys[1]
    # and the one that was forked is what it would have been without
    alone = stage.another_store()
    stage.agent(ANN, TOOLS).run_sync("Tell somebody.", store=alone, run_id="parent")
    alone.approve_sync("parent", who="ann")
    stage.agent(ANN, TOOLS).resume_sync("parent", store=alone)
    assert twin(parent) == twin(list(alone.read("parent")))


def test_B184_budgets_are_counted_from_the_same_past_and_apart(stage):
    # given a run that made two calls, and a fork from behind the first
    stage.play(ANN, TOOLS, run_id="parent")
    at = first(list(stage.store.read("parent")), "tool_results_injected").position
    before = fold(stage.store.read("parent", upto=at)).spent
    fork = stage.agent([{"text": "Nobody."}], TOOLS).fork_sync("parent", at, store=stage.store, new_id="fork")
    # then the fork goes on from what was spent there, and what it spends is not the parent's
    parent = fold(stage.store.read("parent"))
    assert (before.tool_calls, fork.run.spent.tool_calls, parent.spent.tool_calls) == (1, 1, 2)
    assert (fork.run.turn, parent.turn) == (2, 3)
    spent = show(stage.store, "parent")["usage"]
    stage.agent([call("look", at="south"), {"text": "Nobody."}], TOOLS).fork_sync("parent", at, store=stage.store, new_id="other")
    assert show(stage.store, "parent")["usage"] == spent
    assert fold(stage.store.read("other")).spent.tool_calls == 2
    assert fold(stage.store.read("fork")).spent == fork.run.spent


def test_B184_a_question_that_was_open_is_open_in_both_and_answered_in_each(stage):
    # given a run that waits for an answer and for an approval, and two forks from right there
    turns = [{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}, {"name": "send", "arguments": {"to": "ann"}}]}, {"text": "done"}]
    waiting = stage.play(turns, TOOLS, run_id="parent")
    for name in ("left", "right"):
        stage.agent([{"text": "done"}], TOOLS).fork_sync("parent", waiting.position, store=stage.store, new_id=name)
    runs = ("parent", "left", "right")
    # when one is answered and allowed, another refused
    stage.store.answer_sync("left", "This one.")
    stage.store.approve_sync("left", "t1.2")
    stage.store.answer_sync("right", "That one.")
    stage.store.deny_sync("right", "t1.2", reason="Not now.")
    # then each has its own word, and the parent still waits for both
    assert [[asked["kind"] for asked in show(stage.store, name)["pending"]] for name in runs] == [["question", "approval"], [], []]
    with pytest.raises(NotAsked):
        stage.store.approve_sync("left", "t1.2")
    agent = stage.agent([{"text": "never"}, {"text": "done"}], TOOLS)
    for name, results in (("left", ["This one.", "sent to ann"]), ("right", ["That one.", {"error": "approval_denied", "message": "Not now."}])):
        assert agent.resume_sync(name, store=stage.store).status == "completed"
        told = [message["content"] for message in show(stage.store, name)["messages"] if message["role"] == "tool"]
        assert told == results
    assert SENT == ["ann"]
    assert show(stage.store, "parent")["status"] == "waiting_for_user"


def test_B184_an_allowance_that_the_parent_had_is_not_the_forks(stage):
    # given a call that was allowed and has not run yet
    stage.play(ANN[2:], TOOLS, run_id="parent")
    allowed = stage.store.approve_sync("parent").position
    # when the run is forked there and both go on
    fork = stage.agent(ANN[3:], TOOLS).fork_sync("parent", allowed, store=stage.store, new_id="fork")
    assert stage.agent(ANN[2:], TOOLS).resume_sync("parent", store=stage.store).status == "completed"
    # then it was allowed once and ran once: the fork asks for itself
    assert (fork.status, SENT) == ("waiting_for_user", ["ann"])


def test_B184_what_a_branch_does_later_reaches_no_other(stage):
    # given a fork, a fork of that, and a second one from the same place
    stage.play(ANN, TOOLS, run_id="parent")
    stage.store.approve_sync("parent")
    at = first(list(stage.store.read("parent")), "tool_results_injected").position
    stage.agent([call("look", at="east"), call("send", to="eve"), {"text": "Eve knows."}], TOOLS).fork_sync("parent", at, store=stage.store, new_id="east")
    behind = first(list(stage.store.read("east")), "tool_results_injected", 1).position
    stage.agent([{"text": "Nobody knows."}], TOOLS).fork_sync("east", behind, store=stage.store, message="Tell nobody.", new_id="east.2")
    stage.agent([call("look", at="west"), {"text": "Enough."}], TOOLS).fork_sync("parent", at, store=stage.store, new_id="west")
    before = {name: stored(stage.store, name) for name in stage.store.runs()}
    # when the parent and the first fork go on
    stage.agent(ANN, TOOLS).resume_sync("parent", store=stage.store)
    stage.store.approve_sync("east")
    stage.agent([call("look", at="east"), call("send", to="eve"), {"text": "Eve knows."}], TOOLS).resume_sync("east", store=stage.store)
    # then nothing of it is in the others, and each says only what it saw
    for name in ("east.2", "west"):
        assert stored(stage.store, name) == before[name]
    seen = {name: [m["content"] for m in show(stage.store, name)["messages"] if m["role"] == "tool"] for name in before}
    assert seen == {
        "parent": ["saw north", "noted north", "sent to ann"],
        "east": ["saw north", "saw east", "sent to eve"],
        "east.2": ["saw north", "saw east"],
        "west": ["saw north", "saw west"],
    }
    assert LOOKED == ["north", "east", "west"]
    assert SENT == ["north", "ann", "eve"]


CREW = '''
from pathlib import Path
from refold import Agent, tool

@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    with Path("looked.txt").open("a") as lines:
        lines.write(f"{at}\\n")
    return f"saw {at}"

@tool(approval="always")
def send(to: str) -> str:
    """Sends."""
    with Path("sent.txt").open("a") as lines:
        lines.write(f"{to}\\n")
    return f"sent to {to}"

agent = Agent(tools=[look, send])
'''


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Commands in a folder; each opens the store anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REFOLD_STORE", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "branching_crew.py").write_text(CREW, encoding="utf-8")
    monkeypatch.setenv("REFOLD_AGENT", "branching_crew:agent")

    def perform_here(*words: str, script: list[dict[str, Any]] | None = None) -> tuple[int, str]:
        if script is not None:
            (tmp_path / f"{words[0]}.json").write_text(json.dumps(script))
            words = (*words, "--model", f"script:{tmp_path}/{words[0]}.json", "--no-input", "--quiet")
        capsys.readouterr()
        code = perform(words)
        return code, capsys.readouterr().out

    return perform_here


def test_B184_on_the_command_line_branches_part_and_stay_apart(typed, tmp_path):
    # given a run that waits, and a fork from before that says something else
    assert typed("run", "Tell somebody.", "--run-id", "parent", script=[ANN[0], *ANN[2:]])[0] == exits.WAITING
    assert typed("fork", "parent", "--at", "9", "--say", "Tell Bob.", "--run-id", "fork", script=BOB)[0] == exits.WAITING
    # when both are allowed and driven on
    for name in ("fork", "parent"):
        assert typed("approve", name, "--resume", "--quiet")[0] == exits.COMPLETED
    # then their logs have nine lines in common, and everything can be proved
    parent, fork = (typed("log", name, "--json")[1].splitlines() for name in ("parent", "fork"))
    assert parent[:9] == fork[:9]
    assert not set(parent[9:]) & set(fork[9:])
    assert json.loads(fork[9])["type"] == "run_forked"
    answers = {run["run_id"]: json.loads(typed("show", run["run_id"], "--json")[1])["answer"] for run in json.loads(typed("runs", "--json")[1])}
    assert answers == {"parent": "Ann knows.", "fork": "Bob knows."}
    assert (tmp_path / "looked.txt").read_text().split() == ["north"]
    assert (tmp_path / "sent.txt").read_text().split() == ["bob", "ann"]
    assert typed("replay", "--all")[0] == typed("audit", "--all")[0] == typed("doctor")[0] == 0


# -- B185


@pytest.fixture
def finished(stage) -> Store:
    """The store with a run that asked for an approval, got it, and ended."""
    stage.play(ANN[2:], TOOLS, run_id="r")
    stage.store.approve_sync("r")
    assert stage.agent(ANN[2:], TOOLS).resume_sync("r", store=stage.store).status == "completed"
    return stage.store


def test_B185_at_a_place_in_the_past_the_run_is_as_it_was_there(stage, finished):
    # given where it was asked, where it was decided, and the end
    records = list(finished.read("r"))
    asked, granted, end = first(records, "approval_requested").position, first(records, "approval_granted").position, len(records)
    bytes_before, requests = stored(finished, "r"), [len(model.requests) for model in stage.models]
    # when the state is folded and shown there
    there = {at: show(finished, "r", at) for at in (asked, granted - 1, granted, end)}
    folded = {at: fold(finished.read("r", upto=at)) for at in there}
    # then it is open from where it was asked up to where it was decided, then it is decided, and in the end all is done
    assert [[one["call_id"] for one in view["pending"]] for view in there.values()] == [["t1.1"], ["t1.1"], [], []]
    assert [view["status"] for view in there.values()] == ["waiting_for_user", "waiting_for_user", "running", "completed"]
    assert [[call.phase for call in run.calls] for run in folded.values()][:3] == [["waiting"], ["waiting"], ["ready"]]
    assert [view["answer"] for view in there.values()] == [None, None, None, "Ann knows."]
    assert [run.status for run in folded.values()] == [view["status"] for view in there.values()]
    # and the same as when it was there: nobody looked at what came later
    for at, view in there.items():
        assert view == show(stage.cut("r", at), "r")
    # and looking asked nobody, did nothing and wrote nothing
    assert stored(finished, "r") == bytes_before
    assert [len(model.requests) for model in stage.models] == requests
    assert SENT == ["ann"]


def test_B185_every_kind_of_replay_is_read_only(stage, finished):
    # given the finished run, and an agent whose tools and model would be heard
    before, head = stored(finished, "r"), finished.log.head("r")
    agent = stage.agent([{"text": "never asked"}], TOOLS)
    # when it is replayed to each position, as it is, with its agent and with other settings
    for record in list(finished.read("r")):
        fold(finished.read("r", upto=record.position))
        show(finished, "r", record.position)
        if record.type == "model_requested":
            prompt(finished, "r", record.position)
    for options in ({}, {"agent": agent}, {"changes": {"budgets.max_turns": 1}}, {"agent": agent, "changes": {"policy.max_tool_retries": 0}}):
        replayed = replay(finished, "r", **options)
        assert replayed.divergence is None
    assert audit(finished, "r").ok
    # and nothing was asked, done or written
    assert not agent.model.requests
    assert SENT == ["ann"]
    assert (stored(finished, "r"), finished.log.head("r"), finished.runs()) == (before, head, ["r"])


def test_B185_who_wants_the_question_asked_again_forks(stage, finished):
    # given the place where it was asked
    at = first(list(finished.read("r")), "approval_requested").position
    before = stored(finished, "r")
    # when the run is forked there
    agent = stage.agent([{"text": "Nobody knows."}], TOOLS)
    fork = agent.fork_sync("r", at, store=finished, new_id="fork")
    # then it is asked again, and the decision that is in the log of the parent is not the fork's
    assert (fork.status, SENT) == ("waiting_for_user", ["ann"])
    assert [one["call_id"] for one in show(finished, "fork")["pending"]] == ["t1.1"]
    finished.deny_sync("fork", reason="Once was enough.")
    assert agent.resume_sync("fork", store=finished).answer == "Nobody knows."
    assert (stored(finished, "r"), SENT) == (before, ["ann"])


def test_B185_on_the_command_line(typed, tmp_path):
    # given a finished run with an approval
    assert typed("run", "Tell Ann.", "--run-id", "r", script=ANN[2:])[0] == exits.WAITING
    assert typed("approve", "r", "--resume", "--quiet")[0] == exits.COMPLETED
    log = typed("log", "r", "--json")[1]
    at = {record["type"]: record["position"] for record in map(json.loads, log.splitlines())}
    # when it is shown where it was asked, where it was decided and at its end, and replayed
    shown = [json.loads(typed("show", "r", "--at", str(at[tag]), "--json")[1]) for tag in ("approval_requested", "approval_granted", "run_completed")]
    codes = [typed("replay", "r")[0], typed("replay", "r", "--agent", "branching_crew:agent")[0], typed("replay", "r", "--set", "budgets.max_turns=1")[0]]
    # then it is open, decided, done, and not one record more is there
    assert [(view["status"], len(view["pending"])) for view in shown] == [("waiting_for_user", 1), ("running", 0), ("completed", 0)]
    assert codes == [0, 0, 0]
    assert json.loads(typed("pending", "--json")[1]) == []
    assert typed("log", "r", "--json")[1] == log
    assert (tmp_path / "sent.txt").read_text().split() == ["ann"]
