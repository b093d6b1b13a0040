"""`fork`: what is typed, what is refused, and what is said of where a fork begins."""

import json

import pytest

from refold import open_store
from refold.runtime.cli import exits

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}
SEND = {"calls": [{"name": "send", "arguments": {"to": "ann"}}]}


@pytest.fixture
def requests(shell) -> list[int]:
    """A run of the crew that has ended, and where it asked its model."""
    shell.run(LOOK, {"calls": [{"name": "look", "arguments": {"at": "south"}}]}, DONE)
    records = [json.loads(line) for line in shell("log", "one", "--json").out.splitlines()]
    return [record["position"] for record in records if record["type"] == "model_requested"]


def fork(shell, at, *words, turns=(DONE,)):
    named = () if "--run-id" in words else ("--run-id", "two")
    return shell("fork", "one", "--at", str(at), "--agent", "crew:agent", "--model", shell.script(*turns), *named, *words)


def test_a_fork_says_where_it_begins_and_is_a_run_like_any_other(shell, requests):
    # given a place within a batch
    done = fork(shell, requests[1] - 2, "--json")
    # then the fork begins at the last place before where the run rests
    assert done.code == exits.COMPLETED
    assert (done.json["run_id"], done.json["answer"], done.json["forked_from"]) == ("two", "All done.", "one")
    at = done.json["forked_at"]
    assert f"run two is a fork of one at {at}, the last place before {requests[1] - 2} where it rests" in done.err
    # and it is shown, listed, logged and proved with its history
    assert f"fork of one at {at}" in " ".join(shell("show", "two").out.split())
    assert [run["run_id"] for run in shell("runs", "--json").json] == ["one", "two"]
    assert [json.loads(line)["position"] for line in shell("log", "two", "--json").out.splitlines()] == list(range(1, done.json["position"] + 1))
    assert shell("replay", "two").code == shell("audit", "two").code == 0
    assert "run_forked" in shell("diagram", "two").out
    assert shell("doctor").code == 0
    shell.write("two.jsonl", shell("export", "two").out)
    assert shell("verify", "two.jsonl").code == shell("audit", "two.jsonl").code == 0
    assert shell("import", "two.jsonl", "--store", "sqlite:///other.db").code == 0
    assert shell("show", "two", "--json", "--store", "sqlite:///other.db").json == shell("show", "two", "--json").json
    assert shell("replay", "two", "--store", "sqlite:///other.db").code == 0
    assert shell("audit", "--all", "--store", "sqlite:///other.db").code == 0
    assert shell("log", "two", "--full", "--json", "--store", "sqlite:///other.db").code == 0


def test_a_place_in_front_of_the_split_is_shown_as_one_of_the_fork_that_was_asked_for(shell):
    # given a fork of a run in which a letter waited to be approved
    shell.run(LOOK, SEND, DONE, words=("--approve", "send"))
    records = [json.loads(line) for line in shell("log", "one", "--json").out.splitlines()]
    waiting = next(record["position"] for record in records if record["type"] == "approval_requested")
    at = fork(shell, len(records) - 3, "--json").json["forked_at"]
    assert at > waiting
    # when it is shown where its parent waited, then that is a place of the fork, and whose record stands there is said
    there, parents = (shell("show", name, "--at", str(waiting), "--json").json for name in ("two", "one"))
    assert (there["run_id"], there["recorded_in"], [asked["run_id"] for asked in there["pending"]]) == ("two", "one", ["two"])
    assert {**there, "run_id": "one", "pending": parents["pending"]} == parents
    page = shell("show", "two", "--at", str(waiting)).out
    assert page.startswith("run two  waiting\n")
    assert "record  of run one, from which run two went another way later" in page
    # and behind the split all is the fork's own
    own = shell("show", "two", "--json").json
    assert (own["run_id"], own["recorded_in"]) == ("two", "two")
    assert "went another way" not in shell("show", "two").out + shell("show", "one", "--at", str(waiting)).out


def test_results_are_edited_as_text_or_as_a_value(shell, requests):
    shell.write("text.txt", "a dragon\n")
    shell.write("value.json", '{"seen": ["a", "dragon"]}')
    done = fork(shell, requests[2], "--edit", "t1.1=text.txt", "--edit", "t2.1=value.json", "--say", "Look again.")
    assert done.code == exits.COMPLETED
    said = shell("show", "two", "--json").json["messages"]
    assert [message["content"] for message in said if message["role"] == "tool"] == ["a dragon", {"seen": ["a", "dragon"]}]
    assert "Look again." in [message.get("text") for message in said]
    observed = shell("show", "two", "--json").json["observations"]
    assert [(each["data"], each["source"]) for each in observed] == [("a dragon", "human"), ({"seen": ["a", "dragon"]}, "human")]


def test_settings_hold_for_the_fork(shell, requests):
    done = fork(shell, requests[1], "--set", "budgets.max_turns=2", "--set", "policy.wrap_up=false", "--json", turns=(LOOK, DONE))
    assert (done.code, done.json["reason"]) == (exits.STOPPED, "max_turns")
    assert shell("show", "two", "--json").json["budgets"]["max_turns"] == 2
    assert shell("show", "one", "--json").json["budgets"]["max_turns"] != 2


def test_what_the_parent_sent_later_is_asked_for(shell):
    # given a run that sent a letter
    shell.run(SEND, DONE, words=("--approve", "send"))
    records = [json.loads(line) for line in shell("log", "one", "--json").out.splitlines()]
    at = next(record["position"] for record in records if record["type"] == "approval_granted")
    # when it is forked where that had been allowed and was not done yet
    done = fork(shell, at)
    # then it is asked for again
    assert done.code == exits.WAITING
    assert "performed it later" in done.err
    assert shell("approve", "two", "--resume", "--agent", "crew:agent").code == exits.COMPLETED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fork", "one"), "--at N"),
        (("fork", "one", "--at", "0"), "run one has no position 0: it has 1 to"),
        (("fork", "one", "--at", "999"), "run one has no position 999: it has 1 to"),
        (("fork", "one", "--at", "2"), "fork it at 3 or later"),
        (("fork", "nosuch", "--at", "3"), "there is no run nosuch"),
        (("fork", "one", "--at", "x"), "whole number"),
        (("fork", "one", "--at", "3", "--say", ""), "empty"),
        (("fork", "one", "--at", "3", "--edit", "t1.1"), "CALL=FILE"),
        (("fork", "one", "--at", "3", "--edit", "t1.1=nosuch.txt"), "nosuch.txt"),
        (("fork", "one", "--at", "3", "--edit", "t1.1=broken.json"), "not JSON"),
        (("fork", "one", "--at", "3", "--edit", "t9.1=text.txt"), "t9.1"),
        (("fork", "one", "--at", "3", "--run-id", "one"), "already a run one"),
        (("fork", "one", "--at", "3", "--set", "budgets.max_turns=many"), "max_turns"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(shell, requests, words, said):
    shell.write("broken.json", "{")
    shell.write("text.txt", "text")
    done = shell(*words, "--agent", "crew:agent", "--quiet")
    assert done.code == exits.USAGE
    assert said in done.error
    assert [run["run_id"] for run in shell("runs", "--json").json] == ["one"]


def test_an_id_that_somebody_else_took_first_is_taken_and_no_fork_is_said_to_be_made(shell, requests):
    # given a fork that somebody drives
    fork(shell, requests[1])
    store = open_store("sqlite:///.refold/log.db", create=False)
    with store.log.hold("two", "ann@there:7", 30):
        # when another is to have its id
        done = fork(shell, requests[1])
    # then it is told that, and by whom it is driven
    assert (done.code, "there is already a run two, driven by ann@there:7 since" in done.error) == (exits.USAGE, True)
    # and of one that nobody drives it is not said that somebody does
    done = fork(shell, requests[1])
    assert (done.code, done.error) == (exits.USAGE, "refold: there is already a run two; choose another id")
    # when somebody takes over what was made in this moment
    with store.log.hold("three", "ann@there:7", 30):
        done = fork(shell, requests[1], "--run-id", "three")
    # then it is driven by them, and was made all the same
    assert (done.code, "run three is driven by ann@there:7 since" in done.error) == (exits.UNAVAILABLE, True)
    assert shell("show", "three").code == exits.COMPLETED
    store.close()


def test_the_end_is_no_place_to_fork(shell, requests):
    end = shell("show", "one", "--json").json["position"]
    assert "refold continue one" in shell("fork", "one", "--at", str(end), "--agent", "crew:agent").error
