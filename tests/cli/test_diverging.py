"""The report of a divergence in a terminal: where, both values with what differs marked, why, and what to do; and runs that no rules of this version fit."""

import re
from typing import Any

import pytest

from refold.fsm import causes
from refold.fsm.divergence import ABSENT, Difference, Divergence, Nearest, diverges
from refold.projections import revisions
from refold.runtime.cli import exits
from refold.runtime.cli.diverging import lines
from refold.runtime.cli.render import Page, width_of

DONE = {"text": "All done."}
LOOK = {"calls": [{"name": "look", "arguments": {"at": "north"}}]}
LONG = "the limit of {} turns is reached ({} were made), and the last one brought calls instead of an answer, which nobody read to its end"


def page(width: int | None, *, coloured: bool = False) -> Page:
    made = Page()
    made.width, made.coloured = width, coloured
    return made


def found(**fields: Any) -> Divergence:
    given: dict[str, Any] = {"position": 41, "field": "type", "recorded": "model_requested", "derived": "run_stopped", "cause": "policy or limit: a limit"}
    return Divergence(**{**given, "cause_class": "policy or limit", "hint": "Undo it.", **fields})


def test_it_says_where_what_why_the_nearest_and_what_to_do() -> None:
    nearest = Nearest(type="run_stopped", position=57, log="recorded")
    assert lines(found(turn=3, call_id="t3.1", nearest=nearest), page(80)) == [
        "    at        position 41, turn 3, call t3.1, type",
        "    recorded  model_requested    derived   run_stopped",
        "    cause     policy or limit: a limit",
        "    nearest   the derived run_stopped stands at 57 in the recorded log",
        "    help      Undo it.",
    ]


def test_where_there_is_no_room_they_stand_one_below_the_other() -> None:
    shown = lines(found(), page(50))
    assert shown[1:3] == ["    recorded  model_requested", "    derived   run_stopped"]


def test_what_differs_of_short_values_is_marked_beside_one_another() -> None:
    assert lines(found(field="data.delay_us", recorded=750_000, derived=500_000), page(80))[1:3] == [
        "    recorded  750000    derived   500000",
        "              ^^                  ^^",
    ]


@pytest.mark.parametrize("width", [50, 80, 100])
def test_what_differs_of_long_values_is_shown_and_marked_and_no_line_is_too_long(width: int) -> None:
    shown = lines(found(field="data.detail", recorded=LONG.format(4, 4), derived=LONG.format(3, 3), cause=f"code: {LONG}", hint=LONG), page(width))
    assert all(width_of(line) <= width for line in shown)
    recorded, marks, derived, same = shown[1:5] if not shown[2].startswith("    derived") else ("",) * 4
    place = marks.index("^")
    assert (recorded[place], derived[place]) == ("4", "3")
    assert marks == same


def test_wide_characters_are_marked_below_themselves() -> None:
    shown = lines(found(field="data.text", recorded="検索する", derived="検索した"), page(80))
    assert shown[1:3] == ['    recorded  "検索する"    derived   "検索した"', "                   ^^^^                    ^^^^"]


def test_nothing_that_differs_is_folded_away_and_nothing_hidden_is_printed() -> None:
    shown = "\n".join(lines(found(field="data.text", recorded="a  b\n\x1b[31m", derived="a b\n\x1b[31m"), page(None)))
    assert '"a  b\\n' in shown
    assert "\x1b" not in shown


def test_the_beginning_of_a_long_value_is_shown_as_the_value_that_it_is() -> None:
    # given what a divergence shows of a tool that one agent lacks, and of a text that is as long
    tool, text = {"name": "ask_user", "description": "Ask. " * 60}, 'He said "no". ' * 20
    for value, begins in ((tool, '{"name":"ask_user","description":"Ask. Ask. '), ([tool], '[{"name":"ask_user",'), (text, '"He said \\"no\\". ')):
        told = diverges(1, Difference("data.setup.tools[0]", value, ABSENT), causes.changed("it is another"))
        recorded, derived = lines(told, page(80))[1:3]
        assert recorded.startswith(f"    recorded  {begins}")
        assert derived == "    derived   (absent)"


def test_a_record_that_one_log_lacks_is_nothing() -> None:
    assert lines(found(recorded=None), page(80))[1] == "    recorded  nothing    derived   run_stopped"


def test_colours_are_where_they_are_wanted() -> None:
    coloured = "\n".join(lines(found(field="data.delay_us", recorded=750_000, derived=500_000), page(80, coloured=True)))
    assert "\x1b[31m75\x1b[0m0000" in coloured
    assert "\x1b[32m50\x1b[0m0000" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured).splitlines() == lines(found(field="data.delay_us", recorded=750_000, derived=500_000), page(80))


# -- the command


def test_replay_tells_and_its_json_has_the_same(shell, monkeypatch):
    # given rules in which a call gets another key
    shell.run(LOOK, DONE)
    monkeypatch.setattr("refold.fsm.calls.key", lambda run, call: "k")
    # when the run is replayed, for people and for programs
    told, done = shell("replay", "one"), shell("replay", "one", "--json")
    # then
    assert (told.code, done.code) == (exits.FOUND, exits.FOUND)
    assert told.out.startswith("run one  diverges at position 7\n    at        position 7, turn 1, call t1.1, data.key\n")
    (replayed,) = done.json
    divergence = replayed["divergence"]
    assert (divergence["position"], divergence["turn"], divergence["call_id"], divergence["field"]) == (7, 1, "t1.1", "data.key")
    assert (divergence["derived"], divergence["cause_class"], divergence["nearest"]) == ("k", "code", None)
    assert divergence["cause"].startswith("code: ")
    assert divergence["hint"]


def test_a_run_of_rules_that_are_not_known_is_said_and_the_others_are_replayed(shell, monkeypatch):
    # given a run, and one that was made by a version which knew the next number of the rules
    following = revisions.ENGINE + 1
    shell.run(LOOK, DONE)
    with monkeypatch.context() as newer:
        newer.setattr("refold.fsm.decide.SUPPORTED", revisions.SUPPORTED | {following})
        newer.setattr("refold.runtime.agent.ENGINE", following)
        shell.run(LOOK, DONE, words=("--run-id", "newer"))
        assert shell("replay", "newer").code == exits.COMPLETED
    # when that one is replayed, then it is one line
    done = shell("replay", "newer")
    assert done.code == exits.USAGE
    assert f"engine {following}" in done.error
    assert "newer" in done.error
    # and where all are, the other one is told too
    done = shell("replay", "--all")
    assert done.code == exits.USAGE
    assert "run one  identical" in done.out
    assert f"engine {following}" in done.error
    verdicts = {one["run_id"]: one["identical"] for one in shell("replay", "--all", "--json").json}
    assert verdicts == {"one": True, "newer": None}
    # and it is shown nevertheless
    assert shell("show", "newer").code == exits.COMPLETED
