"""Help for a person: one line for each command, options in groups, examples."""

import shutil
import textwrap
from collections.abc import Iterable
from typing import Final

from refold.runtime.cli.options import COMMANDS, OUTPUT, Command
from refold.runtime.cli.parsing import Option, arguments_of, options_of, usage

INTRODUCTION: Final = "refold runs LLM agents as a state machine over an append-only log: every run can be watched, stopped, resumed, replayed and checked."
RUNS: Final = "RUN is a run's id, the beginning of one, or `last`. Options stand before or after the command."
CODES: Final = (
    "0 completed, or nothing found · 1 failed, or something found · 2 wrong usage, bad input or unknown run · 3 waiting for a human · "
    "4 the store is unavailable, or another process drives the run · 5 stopped by a limit · 6 cancelled · 130 interrupted"
)
EXAMPLES: Final = (
    ('refold run "Find the growth rate between 2023 and 2024." --docs reports', "answer from documents, with citations"),
    ('refold run "Plan the release." --agent team:agent --max-turns 20', "your own agent"),
    ("refold pending", "who waits for me?"),
    ("refold approve last --resume", "allow it, and go on"),
    ('refold continue last "And before that?"', "a run whose history begins with the last one's"),
    ("refold show last --at 12", "the run as it was after record 12"),
    ("refold audit last", "what holds, with evidence"),
)


def help_of_all() -> str:
    """What `refold --help` prints."""
    width = _width()
    lines = [*_wrapped(INTRODUCTION, width), "", "usage: refold COMMAND [options]"]
    for chapter in dict.fromkeys(command.chapter for command in COMMANDS.values()):
        lines += ["", chapter]
        for name, command in COMMANDS.items():
            if command.chapter == chapter:
                lines += _entry(f"{name} {usage(arguments_of(command.shape).values())}".strip(), command.line, 22, width)
    lines += ["", "For every command"]
    for option in options_of(COMMANDS["runs"].shape).values():
        if option.group == OUTPUT:
            lines += _entry(_spelled(option), option.help, 22, width)
    lines += [
        *_entry("--help, --version", "of refold, or of one command", 22, width),
        "",
        *_wrapped(RUNS, width),
        "",
        "Exit codes",
        *_wrapped(CODES, width, "  "),
        "",
        "Examples",
    ]
    for typed, meaning in EXAMPLES:
        lines += [f"  {typed}", f"      {meaning}"]
    return "\n".join(lines)


def help_of(name: str, command: Command) -> str:
    """What `refold COMMAND --help` prints."""
    width = _width()
    arguments = arguments_of(command.shape)
    lines = [
        f"usage: refold {name} {usage(arguments.values())}".rstrip() + " [options]",
        "",
        *_wrapped(command.line[0].upper() + command.line[1:] + ".", width),
    ]
    if arguments:
        lines.append("")
        for argument in filter(lambda argument: argument.metavar, arguments.values()):
            lines += _entry(argument.metavar, argument.help, 26, width)
    own = command.shape.__annotations__
    options = [option for _field, option in sorted(options_of(command.shape).items(), key=lambda each: each[0] not in own)]  # its own come first
    for group in sorted(dict.fromkeys(option.group for option in options), key=lambda group: group == OUTPUT):
        lines += ["", group]
        for option in options:
            if option.group == group:
                lines += _entry(_spelled(option), option.help, 26, width)
    return "\n".join(lines)


def _spelled(option: Option) -> str:
    return ", ".join(sorted(option.names, key=len)) + (f" {option.metavar}" if option.metavar else "")


def _entry(term: str, text: str, column: int, width: int) -> Iterable[str]:
    """A term and what it means, beside it where it fits, else below."""
    first = f"  {term} ".ljust(column)
    body = textwrap.wrap(text, max(20, width - column))
    if len(first) > column or not body:
        return [f"  {term}", *(" " * column + part for part in body)]
    return [first + body[0], *(" " * column + part for part in body[1:])]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)


def _width() -> int:
    return min(100, max(40, shutil.get_terminal_size((80, 24)).columns))
