"""Runs that came from another store without those that they began from, or beside others of the same id: nobody is kept from the rest."""

import pytest

from refold import open_store
from refold.runtime.cli import exits

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which year?"}}]}
OTHER = ("--store", "sqlite:///other.db")
CREW = ("--agent", "crew:agent")


@pytest.fixture
def other(shell):
    """The same folder, with another store in which there is a run of its own, one that goes on from a run that is not there, and one that does and waits."""
    shell.run(LOOK, DONE)
    assert shell("continue", "one", "More.", "--run-id", "two", *CREW, "--model", shell.script(DONE)).code == exits.COMPLETED
    assert shell("continue", "one", "Ask.", "--run-id", "asks", *CREW, "--model", shell.script(ASK, DONE)).code == exits.WAITING
    shell.run(DONE, words=("--run-id", "mine", *OTHER))
    for name in ("two", "asks"):
        shell.write(f"{name}.jsonl", shell("export", name).out)
    assert shell("import", "two.jsonl", "asks.jsonl", *OTHER).code == exits.COMPLETED
    return lambda *words: shell(*words, *OTHER)


def test_a_run_without_the_one_that_it_goes_on_from_is_a_run_like_any_other(other):
    assert [(row["run_id"], row["status"]) for row in other("runs", "--json").json] == [
        ("mine", "completed"),
        ("two", "completed"),
        ("asks", "waiting_for_user"),
    ]
    assert [asked["run_id"] for asked in other("pending", "--json").json] == ["asks"]
    assert [(one["run_id"], one["kind"]) for one in other("doctor", "--json").json] == [("asks", "question")]
    for words in (("show", "two"), ("log", "two"), ("diagram", "two"), ("audit", "--all"), ("replay", "--all"), ("verify", "two"), ("export", "two")):
        assert other(*words).code == exits.COMPLETED, words
    assert "run two · completed · More." in other("diagram", "two").out
    # and whoever would need what was said before is told what is missing
    for words in (
        ("answer", "asks", "2024", "--resume", *CREW),
        ("continue", "two", "And?", *CREW),
        ("fork", "two", "--at", "3", *CREW),
        ("show", "two", "--prompt", "--at", "3"),
    ):
        done = other(*words)
        assert (done.code, done.err.splitlines()[-1]) == (exits.USAGE, "refold: the run goes on from one, which is not in this store: import it first"), words
    assert len(other("runs", "--json").json) == 3
    assert other("cancel", "asks").code == exits.COMPLETED


def test_a_run_without_the_one_that_it_goes_on_from_is_sealed(other):
    pytest.importorskip("cryptography", reason="the cryptography package is not installed")
    other("seal", "--new-key", "ann")
    assert other("seal", "two", "--key", "ann").code == exits.COMPLETED
    done = other("seal", "--all", "--key", "ann", "--json")
    assert (done.code, [(one["run_id"], one["again"]) for one in done.json]) == (exits.COMPLETED, [("mine", False), ("two", True)])
    assert other("verify", "two", "--key", "ann.pub").code == exits.COMPLETED


def test_the_records_of_a_fork_alone_are_listed_as_damaged_and_keep_nobody_from_the_others(shell, other):
    fork_alone(shell)
    # then the others are listed, and it is said what is the matter with that one
    why = "run kid is a fork of one, which is not in this store: import it first"
    listed = {row["run_id"]: row for row in other("runs", "--json").json}
    assert (listed.keys(), listed["kid"]["status"], listed["kid"]["detail"]) == ({"mine", "two", "asks", "kid"}, "damaged", why)
    assert [asked["run_id"] for asked in other("pending", "--json").json] == ["asks"]
    found = other("doctor", "--json")
    assert (found.code, [(one["run_id"], one["kind"]) for one in found.json]) == (exits.FOUND, [("asks", "question"), ("kid", "broken_chain")])
    assert found.json[-1]["why"] == f"cannot be followed: {why}"
    for words in (("show", "kid"), ("diagram", "kid"), ("verify", "kid"), ("export", "kid")):
        assert (other(*words).code, other(*words).error) == (exits.USAGE, f"refold: {why}"), words
    assert other("audit", "--all").code == exits.FOUND


def test_where_a_fork_is_without_its_parent_the_others_are_sealed(shell, other):
    pytest.importorskip("cryptography", reason="the cryptography package is not installed")
    fork_alone(shell)
    other("seal", "--new-key", "ann")
    done = other("seal", "--all", "--key", "ann")
    assert (done.code, "sealed run two" in done.out) == (exits.FOUND, True)
    assert "run kid is damaged and was not sealed (run kid is a fork of one, which is not in this store: import it first)" in done.err


def fork_alone(shell):
    """The records of a fork without those that it inherits, in the other store."""
    store, elsewhere = open_store("sqlite:///.refold/log.db"), open_store("sqlite:///other.db")
    at = [record.position for record in store.read("one") if record.type == "model_requested"][1]
    assert shell("fork", "one", "--at", str(at), "--run-id", "kid", *CREW, "--model", shell.script(DONE)).code == exits.COMPLETED
    elsewhere.log.append("kid", at, store.log.read("kid"), create=True)
    store.close()
    elsewhere.close()
