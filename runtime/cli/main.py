"""The command line's way in: find the command, read its options, perform it, and turn whatever goes wrong into one line.

Loads only the command that was typed; the others, the terminal and the log stay out until they are needed.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from refold.runtime.cli import output
from refold.runtime.cli.exits import COMPLETED, INTERRUPTED, USAGE, explain
from refold.runtime.cli.helping import help_of, help_of_all
from refold.runtime.cli.options import COMMANDS, Command, Common
from refold.runtime.cli.parsing import OPTION, Misused, options_of, parse


def main() -> int:
    """What the script `refold` calls. A thread of somebody's tool that never returns does not keep the process: everything that counts is durable."""
    code = perform(sys.argv[1:])
    if any(thread.is_alive() and not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)
    return code


def perform(words: Sequence[str]) -> int:
    """Perform what was typed and give the exit code. Never raises, unless REFOLD_DEBUG is set."""
    output.prepare()
    try:
        code = _performed([_decoded(word) for word in words])
        output.flush()
    except KeyboardInterrupt:
        output.complain("interrupted; nothing more was done")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("REFOLD_DEBUG"):
            raise
        code, line = explain(error)
        output.complain(line)
    return code


def _decoded(word: str) -> str:
    """A word as it was typed: the terminal speaks UTF-8 even where the locale does not say so."""
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return word


def _performed(words: list[str]) -> int:
    name, rest = _command(words)
    wants_help = any(word in ("--help", "-h") for word in (rest[: rest.index("--")] if "--" in rest else rest))
    if name == "help":
        name, rest, wants_help = (rest[0] if rest else ""), [], True
    if not name:
        return _without_command(rest, wants_help)
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        raise Misused(f"refold has no command {name!r}{f'; did you mean {near[0]}?' if near else ''} (refold --help lists them)")
    command = COMMANDS[name]
    if wants_help:
        output.line(help_of(name, command))
        return COMPLETED
    return _perform(command, parse(name, command.shape, rest))


def _perform(command: Command, options: Common) -> int:
    module, _, function = command.performed_by.partition(":")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until something drives, both signals end the command alike
    code = getattr(import_module(f"refold.runtime.cli.{module}"), function)(options)
    assert isinstance(code, int)
    return code


def _without_command(rest: list[str], wants_help: bool) -> int:
    if "--version" in rest:
        from refold import __version__

        output.line(f"refold {__version__}")
        return COMPLETED
    unknown = [word for word in rest if word not in ("--help", "-h", "--json")]
    if unknown and not wants_help:
        raise Misused(f"refold has no option {unknown[0]} of its own, and no command was given (refold --help lists them)")
    output.line(help_of_all())
    return COMPLETED if wants_help else USAGE


def _command(words: list[str]) -> tuple[str, list[str]]:
    """The command and the words without it: the first that is neither an option nor an option's value."""
    with_value = {name for command in COMMANDS.values() for option in options_of(command.shape).values() if option.metavar for name in option.names}
    skip = False
    for place, word in enumerate(words):
        if skip:
            skip = False
        elif word == "--":
            break
        elif OPTION.fullmatch(word):
            skip = word in with_value
        else:
            return word, words[:place] + words[place + 1 :]
    return "", words
