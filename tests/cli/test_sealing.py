"""`seal`, and `verify` with keys and heads: what is typed, what is said, and the exit codes."""

import sys

import pytest

from refold.runtime.cli import exits

DONE = {"text": "All done."}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}


@pytest.fixture
def keyed(shell):
    """A folder with two keys and a run that has ended."""
    pytest.importorskip("cryptography", reason="the cryptography package is not installed")
    for name in ("ann", "bob"):
        assert shell("seal", "--new-key", name).code == exits.COMPLETED
    shell.run(DONE)
    return shell


def test_a_run_is_sealed_once_and_its_file_says_by_whom(keyed):
    # given a run that is sealed, and its file
    made = keyed("seal", "last", "--key", "ann", "--json")
    assert made.code == exits.COMPLETED
    (sealed,) = made.json
    assert (sealed["run_id"], sealed["again"]) == ("one", False)
    keyed.write("run.jsonl", keyed("export", "one").out)
    # then verify says where, with and without the key, of the file and of the run in the store
    for name in ("run.jsonl", "one"):
        assert f"sealed at {sealed['position']}, which was not checked" in keyed("verify", name).out
        done = keyed("verify", name, "--key", "ann.pub")
        assert (done.code, f"sealed at {sealed['position']}, signature ok" in done.out) == (exits.COMPLETED, True)
    told = keyed("verify", "run.jsonl", "--key", "ann.pub", "--json").json
    assert (told["ok"], told["seals"]) == (True, [{"position": sealed["position"], "key": sealed["key"], "verdict": "ok"}])
    # and a key that did not seal it is missed
    done = keyed("verify", "run.jsonl", "--key", "bob.pub")
    assert (done.code, "there is no seal of key" in done.out, "by an unknown key" in done.out) == (exits.FOUND, True, True)
    # and sealing again says that it was sealed
    assert f"at position {sealed['position']}" in keyed("seal", "one", "--key", "ann").out
    assert sealed["key"] in keyed("show", "one").out
    assert sealed["key"] in keyed("log", "one").out
    assert sealed["key"] in keyed("audit", "one", "--json").out


def test_an_export_says_its_head_and_a_file_is_held_against_it(keyed):
    # given an export, whose head is said beside it, and a file that was cut
    exported = keyed("export", "one")
    head = keyed("show", "one", "--json").json["head"]
    assert head in exported.err
    assert head in exported.out.splitlines()[-1]
    keyed.write("run.jsonl", exported.out)
    keyed.write("cut.jsonl", "".join(exported.out.splitlines(keepends=True)[:-1]))
    # then the head is found in the one and missed in the other
    assert "the last one" in keyed("verify", "run.jsonl", "--head", head).out
    assert keyed("verify", "cut.jsonl").code == exits.COMPLETED
    assert keyed("verify", "cut.jsonl", "--head", head).code == exits.FOUND
    # and what came since is counted
    keyed("seal", "one", "--key", "ann")
    assert "1 record came after it" in keyed("verify", "-", "--head", head, stdin=keyed("export", "one").out).out
    assert keyed("verify", "run.jsonl", "--head", "short").code == exits.USAGE


def test_all_ended_runs_are_sealed_and_those_that_go_on_are_left_out(keyed):
    keyed.run(ASK, words=("--run-id", "two", "--no-input"))
    done = keyed("seal", "--all", "--key", "ann", "--json")
    assert (done.code, [one["run_id"] for one in done.json]) == (exits.COMPLETED, ["one"])
    assert "two has not ended" in done.err
    # when it is named, nothing is sealed
    refused = keyed("seal", "one", "two", "--key", "bob")
    assert (refused.code, "two has not ended" in refused.error) == (exits.USAGE, True)
    assert len(keyed("show", "one", "--json").json["seals"]) == 1


def test_a_damaged_run_is_not_sealed(keyed):
    import sqlite3

    with sqlite3.connect(keyed.folder / ".refold/log.db") as database:
        database.execute("UPDATE stored_events SET state = replace(state, 'All done.', 'All gone.')")
    database.close()
    done = keyed("seal", "--all", "--key", "ann")
    assert (done.code, "one is damaged and was not sealed" in done.error) == (exits.FOUND, True)
    assert keyed("verify", "one").code == exits.FOUND


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["seal", "one"], "--key"),
        (["seal", "--key", "ann"], "--all"),
        (["seal", "one", "--key", "nothing"], "nothing"),
        (["seal", "one", "--key", "ann.pub"], "private"),
        (["seal", "one", "--key", "crew.py"], "no private key"),
        (["seal", "no-such", "--key", "ann"], "no-such"),
        (["seal", "one", "--new-key", "cat"], "--new-key"),
        (["seal", "--new-key", "ann"], "already"),
        (["seal", "--new-key", "no/such/folder"], "no/such/folder"),
        (["verify", "one", "--key", "ann"], "public"),
        (["verify", "one", "--key", "nothing"], "nothing"),
        (["verify", "one", "--key", "crew.py"], "no public key"),
        (["verify", "no-such"], "no-such"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_one_line(keyed, words, named):
    done = keyed(*words)
    assert done.code == exits.USAGE
    assert named in done.error


@pytest.mark.parametrize("words", [["seal", "one", "--key", "ann"], ["seal", "--new-key", "cat"], ["verify", "one", "--key", "ann.pub"]], ids=" ".join)
def test_without_the_extra_the_line_to_type_is_said(keyed, monkeypatch, words):
    # given a machine without the library
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    # when a key is used, then one line says what to install, and without a key nothing is missed
    done = keyed(*words)
    assert (done.code, "pip install 'refold[seal]'" in done.error) == (exits.USAGE, True)
    assert keyed("verify", "one").code == exits.COMPLETED


def test_records_behind_a_seal_are_said_by_doctor_and_show(keyed):
    from refold import open_store
    from refold.events import facts as f

    # given a run to which a note came after it was sealed
    keyed("seal", "one", "--key", "ann")
    assert keyed("doctor").code == exits.COMPLETED
    store = open_store("sqlite:///.refold/log.db")
    store.journal("one").command_sync(lambda _: (f.Erased(who="ann"),))
    store.close()
    # then both say so, and sealing it again settles it
    assert [one["kind"] for one in keyed("doctor", "--json").json] == ["behind_seal"]
    assert "1 record came after it" in keyed("show", "one").out
    assert keyed("seal", "one", "--key", "ann").code == exits.COMPLETED
    assert keyed("doctor").code == exits.COMPLETED


def test_an_import_of_what_is_there_says_so(keyed):
    keyed.write("run.jsonl", keyed("export", "one").out)
    assert "already there" in keyed("import", "run.jsonl").out
    assert keyed("import", "run.jsonl", "--json").json == [{"run_id": "one", "already_there": True}]
    assert keyed("import", "run.jsonl", "--json", "--store", "sqlite:///other.db").json == [{"run_id": "one", "already_there": False}]


def test_of_a_sealed_copy_and_one_that_is_not_it_is_said_which_has_more(keyed):
    # given a run as it was before it was sealed, and behind
    end = keyed("show", "one", "--json").json["position"]
    keyed.write("bare.jsonl", keyed("export", "one").out)
    keyed("seal", "one", "--key", "ann")
    keyed.write("sealed.jsonl", keyed("export", "one").out)
    # when one is imported where the other is
    done = keyed("import", "bare.jsonl")
    said = f"the store already has a run one, which holds all of the file, that ends at position {end}, and goes on to position {end + 1}: there is nothing to import"
    assert (done.code, done.error) == (exits.USAGE, f"refold: bare.jsonl: nothing was imported: {said}")
    other = ("--store", "sqlite:///other.db")
    assert keyed("import", "bare.jsonl", *other).code == exits.COMPLETED
    done = keyed("import", "sealed.jsonl", *other)
    assert (done.code, f"which ends at position {end}, where the file goes on to position {end + 1}" in done.error) == (exits.USAGE, True)
    # and where both are imported together, neither is
    done = keyed("import", "bare.jsonl", "sealed.jsonl", "--store", "sqlite:///third.db")
    assert (done.code, "bare.jsonl holds another run one, or more or less of it" in done.error) == (exits.USAGE, True)
    assert not (keyed.folder / "third.db").exists()
