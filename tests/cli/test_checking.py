"""`replay`, `audit`, `export`, `verify`, `import`, `diagram`: what can be proved of a run."""

import pytest

from refold.runtime.cli import exits

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}


def test_a_run_replays_identically_and_its_audit_is_clean(shell):
    shell.run(LOOK, DONE)
    assert [one["identical"] for one in shell("replay", "one", "--json").json] == [True]
    assert "identical" in shell("replay", "--all").out
    (audited,) = shell("audit", "one", "--json").json
    assert audited["ok"]
    assert "I11" in shell("audit", "--all").out


def test_an_export_verifies_is_audited_and_is_imported_elsewhere(shell):
    shell.run(LOOK, DONE)
    exported = shell("export", "one").out
    shell.write("run.jsonl", exported)
    assert shell("verify", "-", stdin=exported).code == exits.COMPLETED
    assert shell("audit", "run.jsonl", "--json").json[0]["ok"]
    # when it is taken into another store, twice, then it is the same run
    for _ in range(2):
        assert shell("import", "run.jsonl", "--store", "sqlite:///other.db").code == exits.COMPLETED
    assert shell("export", "one", "--store", "sqlite:///other.db").out == exported
    assert len(shell("runs", "--json", "--store", "sqlite:///other.db").json) == 1


def test_a_damaged_file_is_found_and_not_imported(shell):
    shell.run(LOOK, DONE)
    lines = shell("export", "one").out.splitlines(keepends=True)
    shell.write("damaged.jsonl", "".join(lines[:4] + lines[5:]))
    done = shell("verify", "damaged.jsonl", "--json")
    assert (done.code, done.json["ok"], done.json["broken_at"]) == (exits.FOUND, False, 5)
    assert shell("audit", "damaged.jsonl").code == exits.FOUND
    assert "damaged.jsonl" in shell("import", "damaged.jsonl", "--store", "sqlite:///other.db").error
    assert not (shell.folder / "other.db").exists()


@pytest.mark.parametrize(("text", "events", "why"), [("", 0, "there are no records"), ("hello\n", 1, "not a record")], ids=["empty", "foreign"])
def test_a_file_that_holds_no_record_is_known_by_its_name_and_proves_nothing(shell, text, events, why):
    shell.write("hollow.jsonl", text)
    done = shell("audit", "hollow.jsonl", "--json")
    (audited,) = done.json
    assert (done.code, audited["run_id"], audited["ok"], audited["events"]) == (exits.FOUND, "hollow.jsonl", False, events)
    assert (audited["chain"]["broken_at"], why in audited["chain"]["why"]) == (1, True)
    # nothing is derived again from nothing
    again = next(each for each in audited["invariants"] if each["id"] == "I14")
    assert (again["ok"], again["broken_at"]) == (False, 1)
    # and in words it is named too, as it is where it comes by standard input
    assert shell("audit", "hollow.jsonl").out.startswith(f"run hollow.jsonl  broken  {events} record{'s' * (events != 1)}\n")
    assert shell("audit", "-", stdin=text).out.startswith("run standard input  broken")


@pytest.mark.parametrize("command", ["verify", "import", "audit"])
def test_a_file_that_is_not_there_is_one_line(shell, command):
    done = shell(command, "nothing.jsonl")
    assert done.code == exits.USAGE
    assert "nothing.jsonl" in done.error


@pytest.mark.parametrize("command", ["audit", "verify", "replay", "diff", "import"])
@pytest.mark.parametrize("there", [True, False], ids=["beside a store", "without a store"])
def test_a_folder_is_called_one(shell, command, there):
    shell.run(DONE, words=() if there else ("--store", "memory:"))
    for name in ("exports", "exports/", "./exports", "no-such"):
        shell.write("exports/run.jsonl", "")
        done = shell(command, name, *(["one"] if command == "diff" else []))
        assert done.code == exits.USAGE, name
        assert ("is a folder" in done.error) == (name != "no-such")


def test_a_run_that_is_called_like_a_folder_is_that_run(shell):
    shell.run(DONE, words=("--run-id", "exports"))
    shell.write("exports/run.jsonl", "")
    for command in ("audit", "verify", "replay"):
        assert shell(command, "exports").code == exits.COMPLETED
    assert "there is no run no-such" in shell("audit", "exports", "no-such").error


@pytest.mark.parametrize("command", ["replay", "audit"])
def test_a_check_of_nothing_is_refused_and_of_an_empty_store_finds_nothing(shell, command):
    assert "--all" in shell(command).error
    assert shell(command, "--all", "--json").json == []


@pytest.mark.parametrize(("name", "begins"), [("mermaid", "stateDiagram"), ("dot", "digraph"), ("svg", "<svg")])
def test_the_machine_is_drawn_with_and_without_a_run(shell, name, begins):
    shell.run(LOOK, DONE)
    assert begins in shell("diagram", "--format", name).out
    assert shell("diagram", "one", "--format", name).out != shell("diagram", "--format", name).out
    # which run it is, and of several how many, is said
    assert "run one · completed · Do it." in shell("diagram", "one", "--format", name).out
    assert "2 runs" in shell("diagram", "one", "one", "--format", name).out
    assert "mermaid" in shell("diagram", "--format", "picture").error


def test_a_drawing_that_is_text_says_in_a_terminal_how_to_have_a_picture(shell, narrow):
    shell.run(DONE)
    assert "refold diagram one --format svg > run.svg" in " ".join(shell("diagram", "one").err.split())
    assert shell("diagram", "one", "--format", "svg").err == ""
