"""Command lines as typed fields: a dataclass declares arguments and options, and `parse` fills it from argv.

Apart from the commands, because how words are read is one matter for all of them: options anywhere, one line for whatever is wrong, and nothing loaded that is slow.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar

OPTION: Final = re.compile(r"--?[A-Za-z][^\s=]*(=.*)?", re.DOTALL)
"""What is meant as an option; `-`, `-5 + 3` and `- a list` are not."""

T = TypeVar("T")


class Misused(Exception):
    """A command line that says nothing that can be done: one line that says why, and what to type instead."""


@dataclass(frozen=True)
class Argument:
    """A word in its place. `many` takes all that follow, `optional` may be left out."""

    metavar: str
    help: str
    optional: bool = False
    many: bool = False


@dataclass(frozen=True)
class Option:
    """A word with dashes. Without `metavar` it is a switch; `many` collects; `read` makes the value and raises ValueError with what was expected."""

    names: tuple[str, ...]
    metavar: str
    help: str
    group: str
    many: bool = False
    read: Callable[[str], object] = str
    value: object = True
    """What a switch sets."""


def argument(metavar: str, text: str, *, optional: bool = False, many: bool = False) -> Any:
    """A field that is a word in its place."""
    spec = {"word": Argument(metavar, text, optional, many)}
    return dataclasses.field(default=(), metadata=spec) if many else dataclasses.field(default="", metadata=spec)


def option(
    names: str, metavar: str, text: str, *, group: str = "Options", many: bool = False, read: Callable[[str], object] = str, default: object = None
) -> Any:
    """A field that is an option with a value; `names` are separated by spaces."""
    spec = {"word": Option(tuple(names.split()), metavar, text, group, many, read)}
    return dataclasses.field(default=(), metadata=spec) if many else dataclasses.field(default=default, metadata=spec)


def switch(names: str, text: str, *, group: str = "Options") -> Any:
    """A field that an option sets to true."""
    return dataclasses.field(default=False, metadata={"word": Option(tuple(names.split()), "", text, group)})


def whole_number(text: str) -> int:
    """Raises ValueError."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError("a whole number is wanted")
    return int(text)


def parse(command: str, shape: type[T], words: Sequence[str]) -> T:
    """The words of one command as an instance of `shape`. Raises Misused."""
    options, arguments = options_of(shape), arguments_of(shape)
    by_name = {name: (field, spec) for field, spec in options.items() for name in spec.names}
    values: dict[str, Any] = {}
    loose: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            loose += rest
        elif not OPTION.fullmatch(word):
            loose.append(word)
        else:
            name, mark, text = word.partition("=")
            if name not in by_name:
                raise Misused(f"refold {command} has no option {name}{_nearest(name, by_name)} (see refold {command} --help)")
            field, spec = by_name[name]
            _take(values, field, spec, name, text if mark else None, rest)
    _place(command, arguments, loose, values)
    return shape(**values)


def _take(values: dict[str, Any], field: str, spec: Option, name: str, text: str | None, rest: Iterable[str]) -> None:
    """One option and, where it has one, its value."""
    if not spec.metavar:
        if text is not None:
            raise Misused(f"{name} takes no value")
        values[field] = spec.value
        return
    if text is None:
        text = next(iter(rest), None)
    if text is None:
        raise Misused(f"{name} needs a value: {name} {spec.metavar}")
    try:
        made = spec.read(text)
    except ValueError as error:
        raise Misused(f"{name} {text}: {error}") from None
    if spec.many:
        values[field] = (*values.get(field, ()), made)
    elif field in values and values[field] != made:
        raise Misused(f"{name} is given twice, as {values[field]} and as {made}")
    else:
        values[field] = made


def _place(command: str, arguments: Mapping[str, Argument], loose: list[str], values: dict[str, Any]) -> None:
    """The words that are no options, in their places."""
    for field, spec in arguments.items():
        if spec.many and (loose or spec.optional):
            values[field], loose = tuple(loose), []
        elif loose:
            values[field], loose = loose[0], loose[1:]
        elif not spec.optional:
            raise Misused(f"refold {command} needs {spec.metavar}: refold {command} {usage(arguments.values())}")
    if loose:
        raise Misused(
            f"refold {command} does not take {loose[0]!r}: refold {command} {usage(arguments.values())}".rstrip(": ") + "; put several words in quotes"
        )


def usage(arguments: Iterable[Argument]) -> str:
    """The places of a command, as help shows them."""
    return " ".join((f"[{spec.metavar}]" if spec.optional else spec.metavar) + "..." * spec.many for spec in arguments if spec.metavar)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def options_of(shape: type[Any]) -> dict[str, Option]:
    """Field to option, in the order declared."""
    return {field.name: word for field in dataclasses.fields(shape) if isinstance(word := field.metadata.get("word"), Option)}


def arguments_of(shape: type[Any]) -> dict[str, Argument]:
    """Field to argument, in the order declared."""
    return {field.name: word for field in dataclasses.fields(shape) if isinstance(word := field.metadata.get("word"), Argument)}
