"""What a request begins with, as a chain of digests: of the instructions, of the tools as they are shown, and of each message.

Apart from the fold, because deciding, folding and rebuilding a prompt ask the same few functions. A request whose chain goes on from that of the one before
shows all of it unchanged; where two chains part, the digests alone tell which part is another.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from refold.events import facts as f
from refold.events.chain import NOTHING, digest_of
from refold.events.words import Digest
from refold.projections.messages import Counted, Message, counted, encode
from refold.projections.run import Entry, Run

HISTORY = "history"
"""The kind of the entry that stands for everything a parent said and saw."""


class Part(NamedTuple):
    """A part of a request: `name` in words, its digest and its bytes."""

    name: str
    digest: Digest
    size: int


def chained(before: Digest, digests: Iterable[Digest]) -> Digest:
    """A chain extended by some links."""
    for digest in digests:
        before = digest_of(f"{before}{digest}".encode("ascii"))
    return before


def head(setup: f.Setup, *, bare: bool) -> tuple[Part, Part]:
    """Instructions and tools, as every request of a run begins; a `bare` one shows no tools."""
    return _part("instructions", setup.instructions), _part("tools", () if bare else [(tool.name, tool.description, tool.schema) for tool in setup.tools])


def _part(name: str, shown: Any) -> Part:
    encoded = encode(shown)
    return Part(name, digest_of(encoded), len(encoded))


def start(setup: f.Setup, *, bare: bool) -> Digest:
    """The chain in front of the first message."""
    return chained(NOTHING, (part.digest for part in head(setup, bare=bare)))


def entry_of(message: Message, position: int) -> Entry:
    """A message as the run remembers it."""
    return as_entry(counted(message), position)


def as_entry(shown: Counted, position: int) -> Entry:
    """A message that was counted, as the run remembers it."""
    return Entry(position=position, kind=shown.message.kind or shown.message.role, size=shown.size, digest=shown.digest)


def next_digest(run: Run, news: Iterable[Counted], *, bare: bool) -> Digest:
    """The digest of the next request, which shows what is still shown of the past and `news` behind it."""
    return chained(past_digest(run, bare=bare), [new.digest for new in news])


def past_digest(run: Run, *, bare: bool) -> Digest:
    """The chain of what the next request shows of the past: the one that is kept, where nothing is left out and the tools are as they were."""
    if bare == run.bare and not run.past.left_out:
        return run.prefix
    return chained(start(run.begun, bare=bare), (entry.digest for entry in run.shown_entries()))


def parts(run: Run, *, bare: bool) -> list[Part]:
    """Every part of the last request, in order."""
    messages = (
        Part("the transcript of the parent" if entry.kind == HISTORY else f"message {n}", entry.digest, entry.size)
        for n, entry in enumerate(run.shown_entries(), 1)
    )
    return [*head(run.begun, bare=bare), *messages]
