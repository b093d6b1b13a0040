"""The runs and files that a check goes through, one after the other: here, or by several processes.

Apart from the checks, because each of them says only what is done with one.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from refold.events.storage import StoreMissing
from refold.runtime.cli import options as o
from refold.runtime.cli.exits import FAILED, Refused, explain
from refold.runtime.cli.naming import is_file, no_folder
from refold.runtime.cli.stores import opened
from refold.runtime.store import Store, open_store

POOLED_MIN: Final = 50_000
"""Records that are worth starting other processes for, where nobody says how many there are to be."""
CHUNKS: Final = 8
"""Portions for each process: few enough to cost nothing, and enough that none is left with much more than the others."""

Told = dict[str, Any]
"""One run in the documented shape."""


class Named(NamedTuple):
    """A run of the store by its id, or an exported file by its name."""

    name: str
    file: bool


Check = Callable[[Named], Told]


# -- what is named


def store_of(options: o.Several, stack: ExitStack) -> Store | None:
    """The store, where a run of it is named. With --all there need be none."""
    if not options.all and all(map(is_file, options.runs)):
        return None
    try:
        with no_folder(*options.runs):
            return stack.enter_context(opened(options))
    except StoreMissing:
        if any(not is_file(name) for name in options.runs):
            raise
        return None


def every_named(options: o.Several, store: Store | None) -> list[Named]:
    """Everything that is named, each once, in that order; the other runs of the store behind it."""
    made = [Named(name, file=True) if is_file(name) else Named(_found(there(store), name), file=False) for name in options.runs]
    return list(dict.fromkeys([*made, *(Named(run_id, file=False) for run_id in (store.runs() if options.all and store is not None else ()))]))


def _found(store: Store, name: str) -> str:
    with no_folder(name):
        return store.find(name)


def there(store: Store | None) -> Store:
    """The store, which is opened wherever a run of it is named."""
    assert store is not None, "it is opened where a run is named"
    return store


# -- one after the other


def each(here: Check, ready: Callable[[Store | None], Check], options: o.Several, named: Sequence[Named], store: Store | None) -> Iterator[Told]:
    """What a check says of each, in order: the one of this process, or those that `ready` makes of the store in others, to which it is sent. Raises Refused."""
    jobs = _jobs(options, named, store)
    return map(here, named) if jobs == 1 else _by_others(partial(_begin, ready, options.store if store is not None else ""), named, jobs)


def _jobs(options: o.Several, named: Sequence[Named], store: Store | None) -> int:
    """How many processes there are to be; one is this process alone."""
    if len(named) < 2 or options.store.startswith("memory:") or Named("-", file=True) in named:
        return 1
    if options.jobs is not None:
        return min(options.jobs, len(named))
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(named)) if _is_much(named, store) else 1


def _is_much(named: Sequence[Named], store: Store | None) -> bool:
    """Whether the runs are long enough, together, that other processes save time."""
    records = 0
    for name, file in named:
        if not file:
            head = there(store).log.head(name)
            records += head[0] if head is not None else 0
        if records >= POOLED_MIN:
            return True
    return False


_here: list[Check] = []
"""What a process of the pool was begun with."""


def _begin(ready: Callable[[Store | None], Check], url: str) -> None:
    """The beginning of a process of the pool, which has a store of its own; it is ended by the one that began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _here.append(ready(open_store(url, create=False) if url else None))


def _perform(named: Named) -> Told | tuple[int, str]:
    """One run in a process of the pool; what ends the command comes back as its exit code and line, since not every exception can be sent."""
    try:
        return _here[0](named)
    except Exception as error:  # noqa: BLE001 - whatever it is, the command ends with one line
        return explain(error)


def _by_others(begin: Callable[[], None], named: Sequence[Named], jobs: int) -> Iterator[Told]:
    """Every run by a pool of processes, in order. Raises Refused."""
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=begin)
    try:
        with _uninterrupted():
            outcomes = pool.map(_perform, named, chunksize=max(1, len(named) // (jobs * CHUNKS)))
        for outcome in outcomes:
            if isinstance(outcome, tuple):
                raise Refused(outcome[1], outcome[0])
            yield outcome
    except BrokenProcessPool:
        raise Refused("one of the processes died; give it more memory, or go on in this one with --jobs 1", FAILED) from None
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C, from their first moment on: this one does, and ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
