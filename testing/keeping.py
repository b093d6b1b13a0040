"""Keeps every run that is made while it lasts, whole or damaged, as a file each that `refold.testing.anywhere` can replay: `with Keeper(folder): ...`.

Apart from the stores, which know nothing of it: it takes what they hold when they are closed, when it is told to flush, and where another process left a file.
A file is named by its bytes, so that the same log is there once. `made.tsv` says which test made it, `missed.tsv` what could not be kept, and why.
"""

import functools
import hashlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

from refold.events import payloads as large
from refold.events.codec import read_line
from refold.events.lineage import ancestors, history
from refold.events.log import open_log
from refold.events.memory import MemoryLog
from refold.events.sqlite import SqliteLog
from refold.events.storage import Log
from refold.events.words import Digest
from refold.runtime.transfer import MIDDLE, PREFIX
from refold.testing.trajectory import Trajectory

TEST: Final = "PYTEST_CURRENT_TEST"
"""The variable in which pytest says which test is at work, in the processes too that the test starts."""
SQLITE: Final = b"SQLite format 3\0"


class Keeper:
    """Keeps runs in a folder, which is made. Any number of processes may keep into one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: list[tuple[str, weakref.ref[Any], type, dict[str, Any]]] = []
        """What lives in memory alone: the test, the object, and what is in it, which stays when the object goes."""
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for kind in (MemoryLog, Trajectory):
            self._hooks.enter_context(mock.patch.object(kind, "__init__", self._holding(kind.__init__)))
        for store in _closable():
            self._hooks.enter_context(mock.patch.object(store, "close", self._closing(store.close)))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()
        self.flush()

    def flush(self) -> None:
        """Keep what is in memory, and let go of what nobody else holds."""
        for test, _, kind, inside in self._held:
            again: Any = object.__new__(kind)
            vars(again).update(inside)
            self._keep(again, test)
        self._held = [held for held in self._held if held[1]() is not None]

    def sweep(self, folder: Path) -> None:
        """Keep the runs of every SQLite file in a folder: what processes wrote that were not watched, or were killed. Works on copies."""
        for path in sorted(folder.rglob("*")):
            test = f"left in {path.relative_to(folder).parent}"
            with self._noting(test, path.name), tempfile.TemporaryDirectory() as copies:
                if path.is_symlink() or not path.is_file() or not _begins(path, SQLITE):
                    continue
                for suffix in ("", "-wal"):
                    if Path(f"{path}{suffix}").exists():
                        shutil.copyfile(f"{path}{suffix}", f"{copies}/log.db{suffix}")
                log = open_log(f"sqlite:///{copies}/log.db", create=False)
                self._keep(log, test)
                log.close()

    # -- hooks

    def _holding(self, made: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(made)
        def hold(this: Any, *args: Any, **kwargs: Any) -> None:
            made(this, *args, **kwargs)
            self._held.append((os.environ.get(TEST, ""), weakref.ref(this), type(this), vars(this)))

        return hold

    def _closing(self, closed: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(closed)
        def close(this: Any) -> None:
            self._keep(this, os.environ.get(TEST, ""))
            closed(this)

        return close

    # -- keeping

    def _keep(self, made: Log | Trajectory, test: str) -> None:
        if isinstance(made, Trajectory):
            if made.records:
                self._write(_lines((record.stored for record in made.records), made.payloads), test)
            return
        if isinstance(made, MemoryLog):
            made._closed = False
        with self._noting(test, type(made).__name__):
            for run_id in made.runs():
                with self._noting(test, run_id):
                    self._write(_lines_of(made, run_id), test)

    def _noting(self, test: str, what: str) -> "_Noting":
        return _Noting(self.folder, test, what)

    def _write(self, lines: Iterable[bytes], test: str) -> None:
        data = b"\n".join([*lines, b""])
        name = hashlib.sha256(data).hexdigest()[:32]
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            ours = path.with_suffix(f".{os.getpid()}")
            ours.write_bytes(data)
            ours.replace(path)
            _note(self.folder / "made.tsv", name, test)


class _Noting:
    """What goes wrong within is noted: a test that breaks its store goes on as if nobody kept anything."""

    def __init__(self, folder: Path, *of: str) -> None:
        self._folder, self._of = folder, of

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, Exception):
            return False
        _note(self._folder / "missed.tsv", *self._of, f"{type(error).__name__}: {error}")
        return True


def _note(path: Path, *columns: str) -> None:
    line = "\t".join(column.encode("unicode_escape").decode("ascii") for column in columns)
    with path.open("ab") as file:
        file.write(f"{line}\n".encode("ascii"))


def _closable() -> Iterator[type[Log]]:
    yield SqliteLog
    try:
        from refold.events.postgres import PostgresLog
    except ImportError:
        return
    yield PostgresLog


def _begins(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def _lines_of(log: Log, run_id: str) -> Iterator[bytes]:
    """The lines of an export, of a damaged run too: it is to be judged elsewhere, not believed here."""
    payloads: dict[Digest, bytes] = {}
    for stream in (*(stretch.run_id for stretch in ancestors(log, run_id)), run_id):
        payloads |= log.payloads(stream)
    return _lines((row.state for row in history(log, run_id)), payloads)


def _lines(stored: Iterable[bytes], payloads: Mapping[Digest, bytes]) -> Iterator[bytes]:
    left = dict(payloads)
    for record in stored:
        for digest in _named(record):
            if digest in left:
                yield PREFIX + digest.encode("ascii") + MIDDLE + left.pop(digest) + b"}"
        yield record


def _named(record: bytes) -> list[Digest]:
    try:
        return list(large.references(bytes(read_line(record).data)))
    except Exception:  # noqa: BLE001 - whatever it is, it names nothing
        return []


def main() -> None:
    """`python -m refold.testing.keeping FOLDER SCRIPT [WORD...]`: keep every run that a script makes."""
    import runpy

    folder, script, *words = sys.argv[1:]
    sys.argv = [script, *words]
    with Keeper(Path(folder)):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
