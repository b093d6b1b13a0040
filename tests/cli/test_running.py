"""`run` and `resume`: results, exit codes, and what is said beside them."""

import importlib
import io
import re
import sys
from types import SimpleNamespace

import pytest

from refold.runtime import models
from refold.runtime.cli import exits, progress
from refold.runtime.cli.interrupts import Interruption
from refold.runtime.cli.render import Page

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}
SEND = {"calls": [{"name": "send", "arguments": {"to": "ann"}}]}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which year?"}}]}


@pytest.fixture
def told(monkeypatch):
    """Everything that tells of a run, in the order made; each with what it said was happening, record by record, and its notes."""
    made = []

    class Told(progress.Lines):
        def __init__(self, run):
            super().__init__(run)
            self.doing, self.notes, self.open = [], [], True
            made.append(self)

        def hear(self, what):
            super().hear(what)
            self.doing.append(self.story.doing())

        def note(self, text):
            self.notes.append(text)

        def close(self):
            self.open = False

    monkeypatch.setattr("refold.runtime.cli.driving.progress_for", lambda run, *, quiet: Told(run))
    return made


@pytest.fixture
def terminal(shell, monkeypatch):
    """A terminal where these lines are typed."""

    def sit(text):
        typed = io.StringIO(text)
        typed.isatty = lambda: True  # type: ignore[method-assign]
        shell("runs")
        monkeypatch.setattr("refold.runtime.cli.asking.sys", SimpleNamespace(stdin=typed, stderr=sys.stderr))

    return sit


def test_the_answer_is_on_standard_output_and_everything_else_is_not(shell):
    done = shell.run(LOOK, DONE)
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")
    assert "look" in done.err
    assert "this is no result" in done.err
    assert "\x1b" not in done.err


def test_quiet_says_nothing_but_the_answer(shell):
    done = shell.run(DONE, words=("--quiet",))
    assert (done.out, done.err) == ("All done.\n", "")


def test_json_is_one_document_of_the_documented_shape(shell):
    run = shell.run(LOOK, DONE, words=("--json",)).json
    assert run.keys() >= {"run_id", "status", "reason", "detail", "answer", "citations", "turns", "tool_calls", "usage", "position"}
    assert (run["run_id"], run["status"], run["answer"], run["tool_calls"]) == ("one", "completed", "All done.", 1)


@pytest.mark.parametrize(
    ("turns", "words", "code", "status"),
    [
        ([{"error": {"type": "auth", "message": "no", "retryable": False}}], (), exits.FAILED, "failed"),
        ([ASK, DONE], (), exits.WAITING, "waiting_for_user"),
        ([LOOK, DONE], ("--max-turns", "1", "--set", "policy.wrap_up=false"), exits.STOPPED, "stopped"),
        ([{**LOOK, "cost_usd": "0.02"}, DONE], ("--max-cost", "0.01", "--set", "policy.wrap_up=false"), exits.STOPPED, "stopped"),
        ([{**DONE, "delay_s": 60}], ("--timeout", "0.05"), exits.STOPPED, "stopped"),
    ],
)
def test_the_exit_code_says_how_it_ended(shell, turns, words, code, status):
    done = shell.run(*turns, words=("--json", *words))
    assert (done.code, done.json["status"]) == (code, status)


def test_a_goal_comes_from_a_file_or_from_standard_input(shell):
    shell.write("goal.txt", "What is (2 + 3) * 4?")
    assert "20" in shell("run", "@goal.txt", "--quiet").out
    assert "42" in shell("run", "-", "--quiet", stdin="What is 6 * 7?").out


def test_the_offline_model_says_what_it_is_where_nobody_chose_it(shell):
    assert "--model" in shell("run", "What is 6 * 7?").err.splitlines()[0]
    assert "writes nothing of its own" not in shell("run", "What is 6 * 7?", "--model", "offline").err


def test_an_ended_run_is_resumed_by_doing_nothing_and_naming_continue(shell):
    shell.run(DONE)
    before = shell("log", "one", "--json").out
    done = shell("resume", "one")
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")
    assert "refold continue one" in done.err
    assert shell("log", "one", "--json").out == before


def test_resume_finds_model_and_settings_in_the_record_and_code_by_name(shell, monkeypatch):
    # given a run that waits, with a limit of its own
    shell.run(ASK, LOOK, DONE, words=("--max-turns", "2"))
    shell("answer", "one", "2023")
    # then its code is not guessed
    assert "crew" in shell("resume", "one").error
    # when the project says where it is, then the rest is in the record
    shell.write("refold.toml", '[tool.refold.agents]\ncrew = "crew:agent"\n')
    done = shell("resume", "one", "--json")
    assert (done.code, done.json["turns"], done.json["reason"]) == (exits.STOPPED, 2, "max_turns")


def test_the_budgets_of_a_run_cannot_be_changed_by_resuming_it(shell):
    shell.run(ASK, DONE)
    shell("answer", "one", "2023")
    assert "refold continue" in shell("resume", "one", "--agent", "crew:agent", "--max-turns", "3").error


def test_approve_grants_the_named_tool_and_the_log_says_who(shell):
    done = shell.run(SEND, DONE, words=("--approve", "send"))
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")
    (granted,) = shell("log", "one", "--json", "--types", "approval_granted").out.splitlines()
    assert '"who":"--approve"' in granted


def test_a_waiting_run_says_what_to_type(shell):
    done = shell.run({"calls": [*SEND["calls"], *ASK["calls"]]}, DONE)
    assert "refold approve one t1.1" in done.err
    assert "refold deny one t1.1 --reason TEXT" in done.err
    assert "refold answer one --call t1.2 TEXT" in done.err


FAILS = {"error": {"type": "auth", "message": "no", "retryable": False}}


@pytest.mark.parametrize(("turns", "words"), [([FAILS], ()), ([LOOK, DONE], ("--max-turns", "1", "--set", "policy.wrap_up=false"))], ids=["failed", "stopped"])
def test_a_run_that_did_not_come_to_its_end_says_how_to_go_on_from_it_with_its_agent(shell, turns, words):
    assert shell.run(*turns, words=words).err.splitlines()[-1] == "go on from it with: refold continue one MESSAGE --agent crew:agent"
    # and so does the same run when it is resumed, with a place for the agent where nothing here leads to its code
    assert shell("resume", "one").err.strip().endswith("go on from it with: refold continue one MESSAGE --agent MODULE:NAME")


def test_at_a_terminal_a_waiting_run_asks_and_goes_on(shell, terminal):
    # given a terminal where somebody types a denial, its reason, and an answer
    terminal("what?\nn\nAnn has moved\n2023\n")
    done = shell.run({"calls": [*SEND["calls"], *ASK["calls"]]}, DONE)
    # then the run ends, and the log has both
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")
    results = {o["call_id"]: o for o in shell("show", "one", "--json").json["observations"]}
    assert results["t1.1"]["error_type"] == "approval_denied"
    assert "Ann has moved" in results["t1.1"]["error_message"]
    assert results["t1.2"]["data"] == "2023"


SENTENCE = "a sentence of several words, " * 4


def test_what_is_asked_and_what_is_wrong_fit_the_terminal_and_keep_their_indent(shell, terminal, narrow):
    # given a call to be approved and a question, each with more than a line
    letter = {"calls": [{"name": "send", "arguments": {"to": "ann", "body": f"Dear Ann,\n{SENTENCE}"}}]}
    terminal(f"y\n{SENTENCE}\n")
    done = shell.run({"calls": [*letter["calls"], {"name": "ask_user", "arguments": {"question": SENTENCE}}]}, DONE)
    # then both are shown in full, the arguments as the model wrote them
    asked = done.err[done.err.index("\nsend waits") :]
    assert "    to: ann\n    body:\n        Dear Ann,\n        a sentence of several words, a\n        sentence" in asked
    assert " ".join(asked.split()).count(SENTENCE.strip()) == 2
    assert [line for line in asked.splitlines() if len(line) > 40 and not line.startswith(">")] == []
    # and so is an error
    lines = shell("resume", "nobody-who-has-a-rather-short-name-or-a-long-one").err.splitlines()
    assert len(lines) > 1


def test_what_went_wrong_is_told_in_full(narrow):
    lines = progress.in_full(f"turn 2  ✗ send: {SENTENCE}and then it broke", Page())
    assert lines[0].startswith("turn 2  ✗ send: a sentence")
    assert {line[:8] for line in lines[1:]} == {" " * 8}
    assert lines[-1].endswith("it broke")
    assert max(map(len, lines)) <= 40


def test_a_reason_is_not_cut_before_it_is_said(shell):
    # given a tool that fails with many words, the last of which count
    shell.write(
        "fails.py",
        f"from refold import Agent, tool\n@tool(effect='read')\ndef look() -> str:\n    'Looks.'\n    raise ValueError({SENTENCE * 2 + 'and then it broke'!r})\nagent = Agent(tools=[look])\n",
    )
    done = shell("run", "x", "--agent", "fails:agent", "--model", shell.script({"calls": [{"name": "look", "arguments": {}}]}, DONE))
    # then
    (line,) = [line for line in done.err.splitlines() if "✗" in line]
    assert line.endswith("and then it broke")


def test_results_of_one_tool_are_told_apart_and_the_time_they_took_is_not_cut(shell):
    # given two calls of one tool in a turn, then one alone
    places = ["n" * 300, "south"]
    err = shell.run({"calls": [{"name": "look", "arguments": {"at": at}} for at in places]}, LOOK, DONE).err
    # then
    first, second, alone = [line for line in err.splitlines() if "✓" in line]
    assert re.match(r' +✓ look at="n+… \(0\.\d\d s\): seen n+…$', first)
    assert re.match(r' +✓ look at="south" \(0\.\d\d s\): seen south$', second)
    assert re.match(r" +✓ look \(0\.\d\d s\): seen north$", alone)


def test_how_to_leave_is_said_once_before_the_first_question(shell, terminal):
    terminal("2023\n2024\n")
    assert shell.run(ASK, ASK, DONE).err.count("Ctrl-C ends the run, Ctrl-D leaves it for later.") == 1
    terminal("")
    done = shell.run(SEND, DONE, words=("--run-id", "two", "--on-interrupt", "park"))
    assert "Ctrl-C leaves the run to be resumed, and so does Ctrl-D." in done.err
    assert "Allow it? [y/n, Ctrl-D: later]" in done.err
    assert done.code == exits.WAITING


def test_a_rule_without_a_name_is_not_called_by_one(shell):
    # given an approval that a lambda asks for
    shell.write(
        "rules.py",
        "from refold import Agent, tool\n@tool(approval=lambda a: True)\ndef pay(amount: int) -> str:\n    'Pays.'\n    return ''\nagent = Agent(tools=[pay])\n",
    )
    done = shell("run", "x", "--agent", "rules:agent", "--model", shell.script({"calls": [{"name": "pay", "arguments": {"amount": 5}}]}))
    # then
    assert "a rule of the tool asks for approval of these arguments" in done.err
    assert "lambda" not in done.err
    for command in (("log", "last"), ("pending",)):
        out = shell(*command).out
        assert "a rule of the tool asks" in out
        assert "lambda" not in out


def test_nobody_is_asked_without_input(shell, terminal):
    terminal("2023\n")
    assert shell.run(ASK, DONE, words=("--no-input",)).code == exits.WAITING


def test_after_an_answer_it_is_told_what_happens_now(shell, terminal, told):
    # given a run that asks, and somebody who answers
    terminal("2023\n")
    shell.run(ASK, DONE)
    # then whoever tells of it afterwards knows the answer, and follows
    before, after = told
    assert before.doing[-1] == "waiting for a human"
    assert "asking script:script.json" in after.doing
    assert after.story.run.turn == 2
    assert after.doing[-1] == "done"


def test_in_a_chat_too_it_is_told_what_happens_after_an_answer(shell, told):
    shell("chat", "--agent", "crew:agent", "--model", shell.script(ASK, DONE), stdin="Do it.\n2023\n")
    assert "asking script:script.json" in told[1].doing


def test_an_interruption_is_said_by_whoever_tells_of_the_run_now(shell, terminal, told, monkeypatch):
    # given a run that went on after an answer
    given = []
    monkeypatch.setattr("refold.runtime.cli.driving.Interruption", lambda *words: given.append(words) or Interruption(*words))
    terminal("2023\n")
    shell.run(ASK, DONE)
    before, after = told
    # when a signal comes
    *_, note, leave = given[0]
    note("ending")
    after.open = True
    leave()
    # then the one that was there before the answer neither says it nor is what is closed
    assert (before.notes, after.notes) == ([], ["ending"])
    assert not after.open


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", " \u200b"), "goal is empty"),
        (("run", "@nothing.txt"), "nothing.txt"),
        (("run", "x", "--run-id", "../x"), "no run id"),
        (("run", "x", "--agent", "nothing:agent"), "no module nothing"),
        (("run", "x", "--agent", "crew:other"), "crew:other is no Agent but of type int"),
        (("run", "x", "--agent", "crew:missing"), "its agents are agent"),
        (("run", "x", "--agent", "exits:agent"), "SystemExit"),
        (("run", "x", "--agent", "raises:agent"), "not today"),
        (("run", "x", "--agent", "syntax:agent"), "line 1"),
        (("run", "x", "--agent", "crew"), "MODULE:NAME"),
        (("run", "x", "--agent", "../term/team.py:agent"), "such as team:agent, and run where team.py lies"),
        (("run", "x", "--agent", "./team:crew"), "such as team:crew, and run where team.py lies"),
        (("run", "x", "--agent", "crew.py:agent"), "such as crew:agent, and run where crew.py lies"),
        (("run", "x", "--agent", "crew.py"), "such as crew:agent, and run where crew.py lies"),
        (("run", "x", "--agent", "crew:agent", "--docs", "."), "--docs"),
        (("run", "x", "--model", "gtp:5"), "gtp"),
        (("run", "x", "--model", "gtp:5"), "script:FILE"),
        (("run", "x", "--model", "gpt-4o"), "did you mean openai:gpt-4o?"),
        (("run", "x", "--model", "claude-5"), "did you mean anthropic:claude-5?"),
        (("run", "x", "--max-turns", "many"), "--max-turns many"),
        (("run", "x", "--approve", "nothing"), "--approve nothing"),
        (("run", "x", "--on-interrupt", "explode"), "cancel, park"),
        (("rnu", "x"), "did you mean run?"),
        (("--frob",), "--frob"),
    ],
)
def test_a_refused_command_is_one_line_and_makes_no_store(shell, words, said):
    shell.write("exits.py", "raise SystemExit(3)\n")
    shell.write("raises.py", "raise RuntimeError('not\\ntoday')\n")
    shell.write("syntax.py", "def (:\n")
    done = shell(*words)
    assert (done.code, done.out) == (exits.USAGE, "")
    assert said in done.error
    assert not (shell.folder / ".refold").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("continue", "ended", "And?"),
        ("fork", "ended", "--at", "3"),
        ("resume", "waiting"),
        ("approve", "waiting", "--resume"),
        ("approve", "waiting", "--arguments", "{}"),
    ],
    ids=" ".join,
)
def test_two_words_for_one_thing_are_refused_by_every_command_that_takes_them(shell, words):
    # given a run that has ended and one that waits
    shell.run(LOOK, DONE, words=("--run-id", "ended"))
    shell.run({"calls": [{"name": "send", "arguments": {"to": "ann"}}]}, DONE, words=("--run-id", "waiting"))
    # then it is not guessed which agent is meant
    done = shell(*words, "--agent", "crew:agent", "--docs", ".", "--quiet")
    assert (done.code, "give one of the two" in done.err) == (exits.USAGE, True)
    assert len(shell("runs", "--json").json) == 2


@pytest.mark.parametrize("words", [("run", "x"), ("continue", "one"), ("fork", "one", "--at", "3")], ids=" ".join)
def test_a_limit_that_is_given_twice_must_be_given_the_same(shell, words):
    shell.run(LOOK, DONE)
    both = (*words, "--agent", "crew:agent", "--model", shell.script(DONE), "--max-turns", "3", "--run-id", "two")
    done = shell(*both, "--set", "budgets.max_turns=6")
    assert (done.code, "--max-turns 3 and --set budgets.max_turns=6 say different things" in done.error) == (exits.USAGE, True)
    done = shell(*both, "--set", "budgets.max_turns=3", "--set", "budgets.max_turns=6")
    assert (done.code, "--set budgets.max_turns=3 and --set budgets.max_turns=6 say different things" in done.error) == (exits.USAGE, True)
    assert shell(*both, "--set", "budgets.max_turns=3", "--set", "budgets.max_turns=3").code == exits.COMPLETED


def test_a_run_id_that_is_taken_is_refused_and_the_run_is_left_alone(shell):
    shell.run(DONE)
    before = shell("log", "one", "--json").out
    assert "one" in shell.run(LOOK, DONE).error
    assert shell("log", "one", "--json").out == before


def test_every_failure_that_is_foreseen_is_a_class_that_exists():
    for name in (*exits.WRONG, *exits.BUSY, *exits.BROKEN):
        module, _, found = name.partition(":")
        assert issubclass(getattr(importlib.import_module(f"refold.{module}"), found), Exception)


@pytest.mark.parametrize("words", [("--base-url", "http://localhost:1"), ("--set", "model.stream=false")], ids=" ".join)
@pytest.mark.parametrize("model", ["offline", "script:script.json"])
def test_what_a_model_on_this_machine_cannot_use_is_refused(shell, model, words):
    shell.script(DONE)
    done = shell("run", "Do it.", "--agent", "crew:agent", "--model", model, *words)
    assert done.code == exits.USAGE
    assert words[0] in done.error
    assert not (shell.folder / ".refold").exists()


def test_the_offline_model_has_no_name_behind_it(shell):
    done = shell("run", "Do it.", "--model", "offline:small")
    assert done.code == exits.USAGE
    assert "offline:small" in done.error


def test_help_names_the_models_that_there_are_and_no_others(shell):
    out = shell("run", "--help").out
    spelled = {kind for kind in ("offline", "script", "openai", "openai-chat", "anthropic", "deepseek") if f"{kind}:" in out or kind == "offline"}
    assert spelled == set(models.available())
