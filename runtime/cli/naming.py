"""What a check is about, as it is named: runs of the store, every run, exported files.

Apart from the stores, because those that only drive runs or show them need nothing of exports.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from refold.events.storage import StoreMissing
from refold.runtime import transfer
from refold.runtime.cli.exits import Refused
from refold.runtime.journal import UnknownRun
from refold.runtime.store import Store


def some_named(names: Sequence[str], every: bool, command: str) -> None:
    """Raises Refused where nothing is named."""
    if not names and not every:
        raise Refused(f"refold {command} needs a RUN, or --all for every run of the store")


def chosen(store: Store, names: Sequence[str], every: bool) -> list[str]:
    """The ids of the runs that are named, each once. Raises UnknownRun, Ambiguous."""
    return list(dict.fromkeys([*(store.find(name) for name in names), *(store.runs() if every else ())]))


def is_file(name: str) -> bool:
    """Whether a word is an exported file and not a run: ids have no slash, and files that are looked for have a suffix or are there."""
    return name == "-" or "/" in name or name.endswith(".jsonl") or Path(name).is_file()


@contextmanager
def no_folder(*names: str) -> Iterator[None]:
    """What is neither a run nor a file may be a folder, in which nothing is looked for. Raises Refused."""
    try:
        yield
    except (UnknownRun, StoreMissing):
        for name in names:
            if name and Path(name).is_dir():
                raise _is_folder(name) from None
        raise


def _is_folder(name: str) -> Refused:
    return Refused(f"{name} is a folder: name the file in it that refold export wrote")


def exported(name: str) -> transfer.Export:
    """A file taken apart; - is standard input. Raises Refused where it cannot be read."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except IsADirectoryError:
        raise _is_folder(name) from None
    except OSError as error:
        raise Refused(f"the file {name} cannot be read ({error.strerror})") from None
    return transfer.parse(data, "standard input" if name == "-" else name)
