"""How words become options."""

import re
from dataclasses import dataclass

import pytest

from refold.runtime.cli.helping import help_of, help_of_all
from refold.runtime.cli.main import _command
from refold.runtime.cli.options import AGENT, COMMANDS, LIMITS, OUTPUT, PEOPLE
from refold.runtime.cli.parsing import Misused, argument, option, parse, switch, whole_number


@dataclass(kw_only=True)
class Shape:
    run: str = argument("RUN", "a run")
    call: str = argument("CALL", "a call", optional=True)
    at: int | None = option("--at", "N", "a place", read=whole_number)
    settings: tuple[str, ...] = option("--set", "KEY=VALUE", "settings", many=True)
    quiet: bool = switch("--quiet -q", "less")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["last"], Shape(run="last")),
        (["last", "t1.1"], Shape(run="last", call="t1.1")),
        (["last", "--at", "3", "t1.1"], Shape(run="last", call="t1.1", at=3)),
        (["--at=3", "last"], Shape(run="last", at=3)),
        (["last", "--at", "-1"], Shape(run="last", at=-1)),
        (["-q", "last", "--set", "a=b", "--set", "c=d=e"], Shape(run="last", quiet=True, settings=("a=b", "c=d=e"))),
        (["--", "--at", "-q"], Shape(run="--at", call="-q")),
        (["-5 + 3", "-"], Shape(run="-5 + 3", call="-")),
        (["last", "--set", "--quiet"], Shape(run="last", settings=("--quiet",))),
    ],
)
def test_options_stand_anywhere_and_values_are_taken_as_they_are(words, wanted):
    assert parse("show", Shape, words) == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs RUN"),
        (["last", "--tag", "3"], "no option --tag (see"),
        (["last", "--att", "3"], "no option --att; did you mean --at?"),
        (["last", "--at"], "--at needs a value"),
        (["last", "--at", "soon"], "--at soon: a whole number"),
        (["last", "--at", "1", "--at", "2"], "given twice"),
        (["last", "--quiet=yes"], "--quiet takes no value"),
        (["last", "a", "b"], "does not take 'b'"),
    ],
)
def test_a_misuse_is_said_in_one_line(words, said):
    with pytest.raises(Misused) as caught:
        parse("show", Shape, words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--store", "memory:", "runs"], ("runs", ["--store", "memory:"])),
        (["--json", "show", "last"], ("show", ["--json", "last"])),
        (["--store=x", "run", "run"], ("run", ["--store=x", "run"])),
        (["--model", "offline", "run", "goal"], ("run", ["--model", "offline", "goal"])),
        (["--version"], ("", ["--version"])),
        ([], ("", [])),
    ],
)
def test_the_command_is_the_first_word_that_is_no_option_and_no_value(words, command):
    assert _command(words) == command


def test_help_fits_a_terminal_and_a_space_parts_each_term_from_its_meaning(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    pages = [help_of_all(), *(help_of(name, command) for name, command in COMMANDS.items())]
    assert [line for page in pages for line in page.splitlines() if len(line) > 80] == []
    assert [command.line for command in COMMANDS.values() if re.search(rf"\S{re.escape(command.line[:20])}", pages[0])] == []


def test_the_help_of_a_command_begins_with_its_own_options():
    groups = [line for line in help_of("approve", COMMANDS["approve"]).splitlines() if line and line[0] != " "]
    assert groups[-4:] == [PEOPLE, AGENT, LIMITS, OUTPUT]
    assert help_of("approve", COMMANDS["approve"]).index("--all") < help_of("approve", COMMANDS["approve"]).index("--no-input")
