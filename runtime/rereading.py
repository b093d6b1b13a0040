"""`read_result`: the built-in tool that reads on in a result of which a request shows only an excerpt.

Apart from the tools that users make, because it reads what the run itself recorded: nothing outside is touched, and a forked, resumed or continued run reads the same.
It is no coroutine: to look through the logs of runs before takes time, which is not that of the event loop.
"""

from collections.abc import Iterator
from typing import Final

from refold.events import facts as f
from refold.events.codec import read
from refold.events.lineage import OtherHistory, history
from refold.events.settings import Context
from refold.projections.excerpts import EXCERPT_MIN, READ_RESULT, fitting, handle_of, text_of
from refold.projections.messages import bytes_of
from refold.runtime.journal import Journal, loader, parent_of
from refold.runtime.tools import NotPerformed, Tool, tool

AROUND: Final = 300
"""Bytes of a piece that are not its text."""


def offered(context: Context | None) -> bool:
    """Whether results may be shown by an excerpt, so that there is something to read on in."""
    return context is not None and (context.window_tokens is not None or context.observation_bytes is not None)


def reader(journal: Journal | None = None) -> Tool:
    """The tool, for the run whose journal it is; without one, as a model is shown it."""

    def read_result(result: str, start: int = 0) -> dict[str, str | int | None]:
        """Read on in a result of which only a part was shown. `result` is its name as given there, `start` the character to begin at; `next` says where to go on."""
        assert journal is not None, "only a run has results to read"
        text = next((text for text in _results(journal) if handle_of(text) == result), None)
        if text is None:
            raise NotPerformed(f"there is no result {result[:40]!r}: name one as it is named where it is shown in part")
        if not 0 <= start < len(text):
            raise NotPerformed(f"the result has {len(text):,} characters, numbered from 0: there is none at {start}")
        end = fitting(text, start, piece_bytes(journal.run.context))
        return {"text": text[start:end], "start": start, "next": end if end < len(text) else None, "characters": len(text)}

    return tool(effect="read", name=READ_RESULT, repeatable=True)(read_result)


def piece_bytes(context: Context | None) -> int:
    """Bytes of text that are read at once: so many that no excerpt has to be made of the piece."""
    limits = [context.observation_bytes, bytes_of(context.window_tokens) // 8 if context.window_tokens is not None else None] if context is not None else []
    return max(EXCERPT_MIN // 2, min((limit for limit in limits if limit is not None), default=bytes_of(4_000)) - AROUND)


def _results(journal: Journal) -> Iterator[str]:
    """What results say, the latest first; those of the runs that this one goes on from behind its own, as they were when it began."""
    while True:
        for message in reversed(journal.transcript.messages):
            if message.role == "tool":
                yield text_of(message.content)
        begun = read(next(history(journal.log, journal.id)).state, loader(journal.log, journal.id, many=False)).fact
        if not isinstance(begun, f.RunContinued):
            return
        try:
            journal = parent_of(journal.log, begun)
        except OtherHistory:
            return
