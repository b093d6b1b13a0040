"""`replay` over runs, files and whole stores, by itself and under other settings."""

import json
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from refold.runtime.cli import exits, several

DONE = {"text": "All done.", "usage": {"input_tokens": 100, "output_tokens": 10}}
LOOKS = [{"calls": [{"name": "look", "arguments": {"at": str(n)}}], "usage": {"input_tokens": 100, "output_tokens": 10}, "cost_usd": "0.01"} for n in range(3)]
TURNS = "budgets.max_turns=2"


@pytest.fixture
def both(shell):
    """A run of four turns and one of one."""
    shell.run(*LOOKS, DONE, words=("--run-id", "long"))
    shell.run(DONE, words=("--run-id", "short"))
    return shell


def exported(shell, run_id="long"):
    return shell.write(f"{run_id}.jsonl", shell("export", run_id).out)


def test_a_setting_is_told_at_its_position_with_what_it_saves_and_is_no_finding(both):
    done = both("replay", "long", "--set", TURNS)
    assert done.code == exits.COMPLETED
    summary, *details = done.out.splitlines()
    assert summary.startswith("run long  would stop earlier at position ")
    assert summary.endswith("(saving 2 turns, 220 tokens, 0.01 USD)")
    assert "budgets.max_turns=2 (was 12)" in details[0]
    assert any(line.strip().startswith("evidence: up to position") for line in details)
    assert any(line.startswith("    assumed: the words about the budget that is left, ") for line in details)


def test_what_only_a_model_could_say_is_left_open(both):
    words = ("replay", "short", "--set", "budgets.max_output_tokens=1")
    done = both(*words)
    assert done.code == exits.COMPLETED
    assert done.out.splitlines()[0].startswith("run short  cannot be told at position ")
    assert "stop_reason stop -> ?: budgets.max_output_tokens=1 (was 4096) (length)" in done.out
    assert both(*words, "--expect-identical").code == exits.FOUND


def test_the_json_says_the_same(both):
    (told,) = both("replay", "long", "--set", TURNS, "--json").json
    assert (told["run_id"], told["identical"], told["divergence"], told["verdict"]) == ("long", True, None, "would stop earlier")
    assert told["saved"]["turns"] == 2
    (change,) = told["changes"]
    assert change.keys() >= {"position", "turn", "call_id", "field", "recorded", "derived", "because"}
    assert told["horizon"] == change["position"]
    (told,) = both("replay", "long", "--set", "budgets.max_turns=99", "--json").json
    assert (told["verdict"], told["changes"], told["horizon"], told["saved"]) == ("unaffected", [], None, None)


def test_many_runs_are_a_line_each_and_one_for_all(both):
    lines = both("replay", "--all", "--set", TURNS).out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["long", "short"]
    assert lines[-1] == "2 runs: 1 would stop earlier (saving 2 turns, 220 tokens, 0.01 USD), 1 unaffected"
    assert both("replay", "short", "long").out.splitlines()[-1] == "2 runs: 2 identical"


def test_what_is_expected_to_be_identical_and_is_not_is_a_finding(both):
    assert both("replay", "--all", "--set", TURNS, "--expect-identical").code == exits.FOUND
    assert both("replay", "short", "--set", TURNS, "--expect-identical").code == exits.COMPLETED
    assert both("replay", "--all", "--expect-identical").code == exits.COMPLETED


def test_an_agent_of_today_is_compared_and_asked_what_it_would_have_decided(both):
    both.write(
        "today.py",
        (both.folder / "crew.py").read_text().replace('@tool(effect="read")', 'print("this is no result")\n\n@tool(effect="read", approval="always")'),
    )
    done = both("replay", "long", "--agent", "today:agent", "--json")
    (told,) = done.json
    assert (done.code, told["identical"], told["verdict"]) == (exits.FOUND, False, "would ask a human")
    assert [change["call_id"] for change in told["changes"]] == ["t1.1", "t2.1", "t3.1"]
    # with a setting it is a what-if alone
    done = both("replay", "long", "--agent", "today:agent", "--set", "budgets.max_turns=9", "--json")
    (told,) = done.json
    assert (done.code, told["identical"], len(told["changes"])) == (exits.COMPLETED, True, 3)
    assert both("replay", "long", "--agent", "crew:agent").code == exits.COMPLETED


def test_an_agent_with_another_schema_of_its_answer_is_told_by_that_schema(both):
    both.write("strict.py", (both.folder / "crew.py").read_text().replace('name="crew"', 'name="crew", answer_schema={"type": "object"}'))
    assert '    3: answer_schema nothing -> {"type":"object"}: the agent\'s answer_schema' in both("replay", "short", "--agent", "strict:agent").out


def test_files_are_derived_without_store_and_code_also_from_standard_input(both):
    name, told = exported(both), both("replay", "long", "--set", TURNS, "--json").json[0]
    for words, stdin in (((name,), ""), (("-",), (both.folder / name).read_text())):
        done = both("replay", *words, "--set", TURNS, "--json", "--store", "memory:", stdin=stdin)
        assert done.json == [{**told, "file": words[0]}]
    # runs and files may stand side by side
    assert [one["run_id"] for one in both("replay", name, "short", "--json").json] == ["long", "short"]
    assert both("replay", name, "--agent", "crew:agent").code == exits.COMPLETED


def test_a_damaged_or_foreign_file_says_where_and_takes_nothing_from_the_others(both):
    lines = (both.folder / exported(both)).read_text().splitlines(keepends=True)
    record = json.loads(lines[0])
    strange = json.dumps({**record, "data": {"goal": {"$payload": []}}}) + "\n"
    record["data"]["setup"]["engine"] = 99
    damaged = {
        "cut": "".join(lines)[:-5],
        "short": "".join(lines[:5]),
        "without": "".join(lines[:9] + lines[10:]),
        "foreign": "hello\n",
        "nothing": "",
        "noise": "\x00\xff\n{}\n[]\n",
        "strange": strange,
        "future": json.dumps(record) + "\n",
        "lines": "\n".join(json.dumps({**json.loads(line), "data": {}}) for line in lines) + "\n",
    }
    names = [both.write(f"{name}.jsonl", text) for name, text in damaged.items()]
    for words in ((), ("--set", TURNS), ("--set", TURNS, "--agent", "crew:agent")):
        done = both("replay", *names, "long", *words, "--json")
        assert (done.code, done.err) == (exits.FOUND, "")
        told = done.json
        assert [one["identical"] for one in told] == [False] * len(names) + [True]
        assert all(one["divergence"]["cause"].partition(":")[0] in ("environment", "code") for one in told[:-1])
        assert all(("verdict" in one) == bool(words) for one in told)
        assert both("replay", *names, "long", *words).out.splitlines()[-1].startswith(f"{len(names) + 1} runs: ")
    # what is proved before the damage counts, and no more
    assert {one["verdict"] for one in told[:-1]} == {"would stop earlier", "cannot be told"}
    assert dict(zip(damaged, (one["verdict"] for one in told), strict=False))["nothing"] == "cannot be told"


def _table(database):
    """Where the records are, of any layout that the recorder may have."""
    (table,) = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%events%'")]
    return table


def test_a_run_of_the_store_that_was_tampered_with_is_told_with_the_others(both):
    with sqlite3.connect(both.folder / ".refold" / "log.db") as database:
        database.execute(f"UPDATE {_table(database)} SET state = ? WHERE originator_id = 'long' AND originator_version = 6", (b"{}",))
    done = both("replay", "--all", "--set", TURNS, "--json")
    assert done.code == exits.FOUND
    assert [(one["run_id"], one["identical"], one["verdict"]) for one in done.json] == [("long", False, "cannot be told"), ("short", True, "unaffected")]


@pytest.mark.parametrize("words", [(), ("--expect-identical",)], ids=len)
def test_what_would_come_of_a_damaged_file_is_a_finding_that_says_where_it_breaks(both, words):
    # given a file that is whole up to some record, behind the change that a setting makes or in front of it
    lines = (both.folder / exported(both)).read_text().splitlines(keepends=True)
    for at in (4, len(lines) - 2):
        both.write("damaged.jsonl", "".join([*lines[:at], "{}\n", *lines[at + 1 :]]))
        # when it is asked what would have been
        done = both("replay", "damaged.jsonl", "--set", "budgets.max_turns=3", *words)
        # then that is no clean answer, as it is none without the setting
        assert done.code == both("replay", "damaged.jsonl").code == both("verify", "damaged.jsonl").code == exits.FOUND
        assert f"diverges at position {at + 1}" in done.out
        assert f"position {at + 1}, bytes" in done.out


def test_a_fork_is_asked_with_all_that_it_inherits_and_one_without_its_parent_is_a_finding(both):
    # given a fork of the long run, and its export
    at = next(line["position"] for line in map(json.loads, both("log", "long", "--json").out.splitlines()) if line["type"] == "tool_results_injected")
    model = "script:" + both.write("other.json", json.dumps([*LOOKS, DONE]))
    assert both("fork", "long", "--at", str(at), "--run-id", "child", "--agent", "crew:agent", "--model", model, "--no-input").code == exits.COMPLETED
    (told,) = both("replay", "child", "--set", TURNS, "--json").json
    assert (told["identical"], told["verdict"]) == (True, "would stop earlier")
    assert told["events"] == json.loads(both("log", "child", "--json").out.splitlines()[-1])["position"]
    name = exported(both, "child")
    assert both("replay", name, "--set", TURNS, "--json").json == [{**told, "file": name}]
    assert both("replay", "child", "--agent", "crew:agent").code == exits.COMPLETED
    # when its parent is lost
    with sqlite3.connect(both.folder / ".refold" / "log.db") as database:
        database.execute(f"DELETE FROM {_table(database)} WHERE originator_id = 'long'")
    # then that is said of it, and the others are told all the same
    done = both("replay", "--all", "--set", TURNS, "--json")
    assert {one["run_id"]: one["verdict"] for one in done.json} == {"short": "unaffected", "child": "cannot be told"}
    assert "import it first" in done.json[-1]["divergence"]["cause"]


def fork(shell, run_id, number, child, *turns):
    """A fork where the results of a run's turn are in."""
    at = [line["position"] for line in map(json.loads, shell("log", run_id, "--json").out.splitlines()) if line["type"] == "tool_results_injected"][number - 1]
    words = ("--agent", "crew:agent", "--model", "script:" + shell.write(f"{child}.json", json.dumps(turns)), "--no-input")
    assert shell("fork", run_id, "--at", str(at), "--run-id", child, *words).code == exits.COMPLETED


def test_what_forks_inherit_is_saved_once_in_the_total(both):
    # given a run of four turns, a fork of it behind the second, and a fork of that one behind the third: eight turns that were paid for, six of them cost something
    fork(both, "long", 2, "child", *LOOKS[:2], DONE)
    fork(both, "child", 3, "grandchild", DONE)
    # when it is asked what a limit of one turn would have saved in all
    done = both("replay", "--all", "--set", "budgets.max_turns=1", "--set", "policy.wrap_up=false")
    # then each run says what it saves of its history, and the total counts what each made itself
    lines = {line.split()[1]: line for line in done.out.splitlines()}
    assert "(saving 3 turns, 330 tokens, 0.02 USD)" in lines["long"]
    assert "(saving 4 turns, 440 tokens, 0.03 USD)" in lines["child"]
    assert "(saving 3 turns, 330 tokens, 0.02 USD)" in lines["grandchild"]
    total = "4 runs: 3 would stop earlier (saving 7 turns, 770 tokens, 0.04 USD, without what forks inherited), 1 unaffected"
    assert done.out.splitlines()[-1] == total
    # also where they are files, and where the parent is not asked
    names = [exported(both, name) for name in ("long", "child", "grandchild")]
    assert both("replay", *names, "short", "--set", "budgets.max_turns=1", "--set", "policy.wrap_up=false").out.splitlines()[-1] == total
    told = both("replay", "child", "grandchild", "--set", "budgets.max_turns=1", "--set", "policy.wrap_up=false", "--json").json
    assert [(one["saved"]["turns"], one["saved_own"]["turns"]) for one in told] == [(4, 3), (3, 1)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "budgets.max_turn=3"), "did you mean budgets.max_turns"),
        (("--set", "budgets.max_turns"), "SECTION.FIELD=VALUE"),
        (("--set", "budgets.max_turns=none=1"), "budgets.max_turns"),
        (("--set", "model.temperature=1"), "fork"),
        (("--set", "budget.max_turns=3"), "did you mean budgets.max_turns?"),
        (("--set", "budgets.foo=1"), "there is no such setting; those of budgets are max_turns, max_tool_calls, "),
        (("--set", "foo.bar=1"), "there is no such setting; the sections are budgets, policy, context and model"),
        (("--set", "policy.cycle_lengths=1,x"), "--set policy.cycle_lengths=1,x: "),
        (("--set", TURNS, "--set", "budgets.max_turns=5"), f"--set {TURNS} and --set budgets.max_turns=5 say different things: give one of the two"),
        (("--jobs", "0"), "1 or more"),
        (("--agent", "crew:nobody"), "nobody"),
    ],
)
def test_what_cannot_be_asked_is_one_line(both, words, says):
    done = both("replay", "long", *words)
    assert done.code == exits.USAGE
    assert says in done.error


def test_a_setting_may_be_given_twice_as_the_same_and_no_lengths_of_cycles_are_none(both):
    assert both("replay", "long", "--set", TURNS, "--set", " budgets.max_turns = 2 ").out == both("replay", "long", "--set", TURNS).out
    for nothing in ("none", "[]", ""):
        assert both("replay", "long", "--set", f"policy.cycle_lengths={nothing}", "--json").json[0]["verdict"] == "unaffected"


# -- by several processes


@pytest.mark.slow
def test_several_processes_say_the_same_in_the_same_order(both):
    words = ("replay", "--all", exported(both), "--set", TURNS, "--agent", "crew:agent", "--json")
    assert both(*words, "--jobs", "2").out == both(*words, "--jobs", "1").out


def test_many_records_are_worth_several_processes_and_few_are_not(both, monkeypatch):
    asked = []
    monkeypatch.setattr(several, "_by_others", lambda begin, named, jobs: asked.append(jobs) or iter(()))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    both("replay", "--all")
    assert asked == []
    monkeypatch.setattr(several, "POOLED_MIN", 10)
    both("replay", "--all")
    both("replay", "--all", "--jobs", "9")
    both("replay", "long")
    assert asked == [2, 2]


def test_audits_of_several_are_a_line_each_but_for_what_is_broken(both):
    # given two sound runs of a store, one of them as a file too, and a file that was cut
    name = exported(both)
    cut = both.write("cut.jsonl", (both.folder / name).read_text()[:-9])
    # when all are audited, then the broken one alone is told in full, and the last line counts them
    for jobs in ("1", "2"):
        done = both("audit", "--all", name, cut, "--jobs", jobs)
        assert done.code == exits.FOUND
        assert [line.split("  ")[1] for line in done.out.splitlines() if line.startswith("run ")] == ["ok", "broken", "ok", "ok"]
        assert done.out.count("I11") == 1
        assert done.out.splitlines()[-1] == "4 runs: 3 ok, 1 broken"
    # and as JSON each is told whole, in that order
    told = both("audit", "--all", name, cut, "--json").json
    assert [(one["run_id"], one.get("file"), len(one["invariants"])) for one in told] == [
        *(("long", name, 15), ("long", cut, 15)),
        *(("long", None, 15), ("short", None, 15)),
    ]


def test_a_fork_whose_parent_is_gone_is_broken_and_keeps_nobody_from_the_others(both):
    # given a fork whose parent was taken out of the store
    assert both("fork", "long", "--at", "3", "--run-id", "child", "--model", both.script({"text": "Done."}), "--agent", "crew:agent").code == exits.COMPLETED
    with sqlite3.connect(both.folder / ".refold" / "log.db") as database:
        database.execute(f"DELETE FROM {_table(database)} WHERE originator_id = 'long'")
    # when all are audited, then that is said of it, and the others are told all the same
    done = both("audit", "--all", "--json")
    assert (done.code, {one["run_id"]: one["ok"] for one in done.json}) == (exits.FOUND, {"short": True, "child": False})
    assert "import it first" in done.json[-1]["chain"]["why"]


@pytest.mark.slow
def test_what_is_wrong_in_another_process_is_one_line(both):
    name = exported(both)
    done = both("replay", name, "nothing.jsonl", "--jobs", "2")
    assert done.code == exits.USAGE
    assert "nothing.jsonl" in done.error


KILLS = "import os, signal\nfrom crew import agent\nif __import__('multiprocessing').parent_process() is not None:\n    os.kill(os.getpid(), signal.{})\n"


@pytest.mark.slow
def test_a_process_that_dies_is_one_line(both):
    both.write("deadly.py", KILLS.format("SIGKILL"))
    done = both("replay", "--all", "--agent", "deadly:agent", "--jobs", "2")
    assert done.code == exits.FAILED
    assert "died" in done.error


@pytest.mark.slow
def test_an_interruption_ends_all_of_them_and_is_one_line(both):
    # given a replay whose processes take for ever to begin, and say when they do
    both.write(
        "slow.py",
        "import os, time\nfrom crew import agent\nif __import__('multiprocessing').parent_process() is not None:\n    os.write(2, b'began')\n    time.sleep(600)\n",
    )
    command = [sys.executable, "-P", "-m", "refold", "replay", "--all", "--agent", "slow:agent", "--jobs", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    process = subprocess.Popen(
        command, cwd=both.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    assert process.stderr.read(10) == b"beganbegan"
    # when the terminal interrupts every process of the group
    os.killpg(process.pid, signal.SIGINT)
    # then all of them end: who reads their standard error comes to its end too
    _, err = process.communicate(timeout=30)
    assert process.returncode == exits.INTERRUPTED
    assert err.decode().splitlines() == ["refold: interrupted; nothing more was done"]
