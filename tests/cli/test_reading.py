"""`show`, `log`, `runs`, `pending`: looking changes nothing and creates nothing."""

import json
import re
from itertools import chain, repeat

import pytest

from refold import open_store
from refold.runtime.cli import exits, render

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}
ASK = {"calls": [{"name": "ask_user", "arguments": {"question": "Which year?"}}]}
SEND = {"calls": [{"name": "send", "arguments": {"to": "ann"}}]}


@pytest.mark.parametrize("command", ["runs", "pending", "doctor"])
def test_lists_of_a_store_that_is_not_there_are_empty(shell, command):
    done = shell(command, "--json")
    assert (done.code, done.json) == (exits.COMPLETED, [])
    assert not (shell.folder / ".refold").exists()


@pytest.mark.parametrize("command", ["show", "log", "audit", "replay", "export", "resume", "say"])
def test_a_run_of_a_store_that_is_not_there_is_one_line(shell, command):
    done = shell(command, "last", *(["hello"] if command == "say" else []))
    assert done.code == exits.USAGE
    assert done.error
    assert not (shell.folder / ".refold").exists()


def test_runs_are_listed_in_the_order_started_and_by_status(shell):
    shell.run(DONE)
    shell.run(SEND, DONE, words=("--run-id", "two"))
    assert [(row["run_id"], row["status"]) for row in shell("runs", "--json").json] == [("one", "completed"), ("two", "waiting_for_user")]
    assert [row["run_id"] for row in shell("--json", "runs", "--status", "completed").json] == ["one"]
    assert "two" in shell("runs").out


def test_a_run_is_named_by_a_unique_beginning_or_last(shell):
    shell.run(DONE, words=("--run-id", "alpha-1"))
    shell.run(DONE, words=("--run-id", "alpha-2"))
    assert shell("show", "last", "--json").json["run_id"] == "alpha-2"
    assert shell("show", "alpha-1", "--json").json["run_id"] == "alpha-1"
    assert "alpha-1, alpha-2" in shell("show", "al").error


def test_log_prints_the_stored_bytes_and_a_line_for_people(shell):
    shell.run(LOOK, DONE)
    lines = shell("log", "one", "--json").out.splitlines()
    assert [json.loads(line)["position"] for line in lines] == list(range(1, len(lines) + 1))
    words = shell("log", "one").out.splitlines()
    assert len(words) == len(lines)
    (result,) = [line for line in words if "tool_succeeded" in line]
    assert "seen north" in result


def test_the_log_says_the_date_first_and_again_where_another_day_begins(shell, monkeypatch):
    # given a run over the end of a day
    shell.run(LOOK, DONE)
    days = chain(["2026-03-01", "2026-03-01"], repeat("2026-03-02"))
    monkeypatch.setattr("refold.runtime.cli.reading.day", lambda _at: next(days))
    # then
    words = shell("log", "one").out.splitlines()
    assert [number for number, line in enumerate(words) if "2026-03-0" in line] == [0, 2]
    assert words[0].endswith("2026-03-01 Do it.")


def test_a_run_that_nobody_drives_is_listed_as_parked(shell):
    # given a run that could go on
    shell.run(ASK, DONE)
    shell("answer", "one", "2023")
    # then people see that nobody does, and programs the documented status
    assert "parked" in shell("runs").out
    assert [row["status"] for row in shell("runs", "--json").json] == ["running"]
    # and not where somebody drives it
    store = open_store("sqlite:///.refold/log.db", create=False)
    with store.log.hold("one", "ann@there:7", 30):
        assert "running" in shell("runs").out
    store.close()


def test_a_run_that_waits_is_shown_with_the_lines_to_type(shell):
    shell.run({"calls": [*SEND["calls"], *ASK["calls"]]}, DONE)
    out = shell("show", "one").out
    assert "refold approve one t1.1" in out
    assert "refold answer one --call t1.2 TEXT" in out
    last = len(shell("log", "one", "--json").out.splitlines())
    assert "refold approve" not in shell("show", "one", "--at", str(last)).out  # the past cannot be settled


def test_since_when_a_driver_is_there_reads_as_a_sentence(shell):
    shell.run(LOOK, DONE)
    assert re.search(r"^driver  .*, process \d+, attached \d+ s ago$", shell("show", "one", "--at", "3").out, re.MULTILINE)


def test_log_can_be_narrowed_to_types_and_widened_to_large_values(shell):
    shell.run({"calls": [{"name": "look", "arguments": {"at": "n" * 10_000}}]}, DONE)
    (line,) = shell("log", "one", "--json", "--types", "tool_succeeded").out.splitlines()
    assert "n" * 5_000 not in line
    (line,) = shell("log", "one", "--json", "--types", "tool_succeeded", "--full").out.splitlines()
    assert json.loads(line)["data"]["result"] == "seen " + "n" * 10_000
    assert "did you mean tool_succeeded?" in shell("log", "one", "--types", "tool_succeded").error


def test_following_an_ended_run_ends(shell):
    shell.run(DONE)
    assert shell("log", "one", "--follow").code == exits.COMPLETED


@pytest.mark.parametrize("at", ["0", "-1", "999", "soon"])
def test_a_position_that_is_not_there_is_named(shell, at):
    shell.run(DONE)
    done = shell("show", "one", "--at", at)
    assert done.code == exits.USAGE
    assert at in done.error


def test_the_prompt_of_a_request_is_shown_as_it_was(shell):
    shell.run(LOOK, DONE)
    second = [json.loads(line)["position"] for line in shell("log", "one", "--json", "--types", "model_requested").out.splitlines()][1]
    request = shell("show", "one", "--prompt", "--at", str(second), "--json").json
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool"]
    assert "--at" in shell("show", "one", "--prompt").error


def test_what_waits_is_listed_with_the_line_to_type(shell):
    shell.run(SEND, DONE)
    (asked,) = shell("pending", "--json").json
    assert (asked["run_id"], asked["call_id"], asked["kind"], asked["arguments"]["to"]) == ("one", "t1.1", "approval", "ann")
    assert "refold approve one t1.1" in shell("pending").out


def test_escapes_in_what_people_and_models_say_are_shown_and_not_passed_on(shell):
    shell("run", "clear \x1b[2J \u202eevil", "--agent", "crew:agent", "--model", shell.script({"text": "red \x1b[31m"}))
    for command in ("runs", "show last", "log last"):
        out = shell(*command.split()).out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "\\x1b[2J" in out


def test_text_is_cut_by_columns_and_not_by_characters():
    assert render.cut("測試測試", 5) == "測試…"
    assert render.width_of(render.cut("e\u0301" * 10, 5)) == 5
    assert render.cut("short", 5) == "short"


def test_a_run_that_waits_is_not_painted_as_one_that_failed(monkeypatch):
    page = render.Page()
    monkeypatch.setattr(page, "coloured", True)
    _, waiting, failed = page.table(("RUN", "STATUS", "GOAL"), [("one", "waiting_for_user", "g"), ("two", "failed", "g")])
    assert "\x1b[36mwaiting" in waiting
    assert "\x1b[31mfailed" in failed
    assert waiting.endswith("  g")


def test_when_an_approval_expires_is_said(shell):
    shell.run(SEND, DONE, words=("--set", "policy.approval_expiry_s=7200"))
    assert "expires in 1 h" in shell("pending").out
