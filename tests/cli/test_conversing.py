"""`continue` and `chat`: a run that goes on from another."""

import pytest

from refold.runtime.cli import exits

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}
SEND = {"calls": [{"name": "send", "arguments": {"to": "ann"}}]}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which year?"}}]}
CREW = ("--agent", "crew:agent")


def texts(shown):
    return [message["text"] for message in shown["messages"] if message["role"] == "user"]


def test_a_continuation_begins_with_what_was_said_and_takes_what_is_not_given_from_the_record(shell):
    # given a run with its own limits and model
    shell.run(LOOK, DONE, words=("--max-turns", "7", "--set", "policy.max_tool_retries=3"))
    # when
    done = shell("continue", "one", "And the south?", *CREW, "--run-id", "two", "--set", "budgets.max_tool_calls=5", "--json")
    # then
    assert (done.code, done.json["run_id"], done.json["answer"]) == (exits.COMPLETED, "two", "All done.")
    shown = shell("show", "two", "--json").json
    assert texts(shown) == ["Do it.", "And the south?"]
    assert shown["model"] == "script:script.json"
    assert (shown["budgets"]["max_turns"], shown["budgets"]["max_tool_calls"]) == (7, 5)


def test_its_history_is_shown_whole_with_each_result_beside_its_own_call(shell):
    # given two runs whose calls have the same ids
    shell.run(LOOK, DONE)
    script = shell.script({"calls": [{"name": "look", "arguments": {"at": "south"}}]}, DONE)
    shell("continue", "one", "And the south?", *CREW, "--model", script, "--run-id", "two")
    # then
    out = shell("show", "two").out
    places = [out.index(words) for words in ("Do it.", "seen north", "All done.", 'at="south"', "seen south")]
    assert places == sorted(places)
    calls = [call for message in shell("show", "two", "--json").json["messages"] for call in message.get("calls", [])]
    assert [call["arguments"]["at"] for call in calls] == ["north", "south"]
    request = shell("show", "two", "--prompt", "--at", "2", "--json")
    assert request.code == exits.USAGE
    request = shell("show", "two", "--prompt", "--at", "3", "--json").json
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_run_that_has_not_ended_is_not_continued(shell):
    shell.run(SEND, DONE)
    done = shell("continue", "one", "Go on.", *CREW)
    assert done.code == exits.USAGE
    assert "refold resume one" in done.error
    assert len(shell("runs", "--json").json) == 1


@pytest.mark.parametrize("words", [("one", "  "), ("one", "-"), ("nobody", "hello")], ids=" ".join)
def test_a_continuation_that_cannot_be_is_none(shell, words):
    shell.run(DONE)
    assert shell("continue", *words, *CREW).code == exits.USAGE
    assert len(shell("runs", "--json").json) == 1


def test_a_stopped_run_goes_on_with_a_larger_budget_and_without_a_word(shell):
    shell.run(LOOK, DONE, words=("--max-turns", "1", "--set", "policy.wrap_up=false"))
    done = shell("continue", "one", *CREW, "--max-turns", "3", "--run-id", "two")
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")


# -- chat


def test_every_line_goes_on_from_the_one_before(shell):
    done = shell("chat", "--quiet", stdin="What is 6 * 7?\n\nWhat is 5 + 5?\n")
    assert done.code == exits.COMPLETED
    assert [line.split(" = ")[1] for line in done.out.splitlines()] == ["42", "10"]
    assert texts(shell("show", "last", "--json").json) == ["What is 6 * 7?", "What is 5 + 5?"]


def test_a_chat_as_json_is_one_list_of_runs(shell):
    runs = shell("chat", "--json", "--run-id", "first", stdin="What is 6 * 7?\nWhat is 5 + 5?\n").json
    assert [run["status"] for run in runs] == ["completed", "completed"]
    assert runs[0]["run_id"] == "first" != runs[1]["run_id"]


def test_the_next_line_answers_what_a_run_asks(shell):
    done = shell("chat", *CREW, "--model", shell.script(ASK, DONE), stdin="Do it.\n2023\n")
    assert (done.code, done.out) == (exits.COMPLETED, "All done.\n")
    assert "Which year?" in done.err
    assert [seen["data"] for seen in shell("show", "last", "--json").json["observations"]] == ["2023"]


@pytest.mark.parametrize(
    ("turns", "stdin", "words"),
    [([SEND, DONE], "Do it.\nyes\n", ()), ([ASK, DONE], "Do it.\n", ()), ([ASK, DONE], "Do it.\n2023\n", ("--no-input",))],
    ids=["an approval", "nobody left to ask", "nobody to be asked"],
)
def test_a_chat_that_waits_for_somebody_else_ends_and_says_what_to_type(shell, turns, stdin, words):
    done = shell("chat", *CREW, "--model", shell.script(*turns), *words, stdin=stdin)
    assert done.code == exits.WAITING
    assert "refold a" in done.err
    assert len(shell("runs", "--json").json) == 1


def test_a_chat_without_a_word_makes_nothing(shell):
    assert "nothing was said" in shell("chat", stdin="\n \n").error
    assert not (shell.folder / ".refold").exists()


def test_a_chat_exits_as_its_last_run_did(shell):
    broken = shell.script({"error": {"type": "auth", "message": "no", "retryable": False}})
    assert shell("chat", *CREW, "--model", broken, stdin="one\ntwo\n").code == exits.FAILED
    assert len(shell("runs", "--json").json) == 2
