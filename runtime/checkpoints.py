"""Writes down a long stream while it comes, beside it: what it said since the last time, and what its provider reported.

Apart from taking the stream in, because nothing here may slow it down: what is due is appended by a task of its own, one append at a time.
It is told what was shown, so that what is written has no secret in it that came in two pieces.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from refold.events import facts as f
from refold.events.words import CallId
from refold.runtime import ports as p
from refold.runtime.metering import usage_of, utf8_size
from refold.runtime.text import whole

INTERVAL_S: Final = 2.0
BYTES: Final = 32_768
"""A checkpoint comes so long after the first thing that it holds, or as soon as it would hold so much."""
MATERIAL: Final = 4
"""A report alone is written down when it is a quarter more than the last one."""

Append = Callable[[Sequence[f.Input]], Awaitable[None]]


class Checkpoints:
    """The checkpoints of one response in turn `turn`. `broken` is done, with the error, once one could not be written."""

    def __init__(self, turn: int, append: Append) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turn, self._append = turn, append
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, p.ToolCallOpened] = {}
        self._places: dict[int, int] = {}
        """Index to place: calls are counted as they are opened, as in the response that they will be of."""
        self._arguments: dict[int, list[str]] = {}
        self._in_pieces: set[int] = set()
        self._bytes = 0
        self._usage: f.Usage | None = None
        self._written = 0
        """Tokens of the last report that was written down."""
        self._all = False
        """Whether nothing more comes, so that what there is need not wait."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def take(self, part: p.Part) -> None:
        """One more part, as it was shown."""
        match part:
            case p.TextDelta(text=text):
                self._more(self._text, text)
            case p.ReasoningDelta(text=text):
                self._more(self._reasoning, text)
            case p.ToolCallOpened(index=index):
                self._calls[index] = part
                self._argue(index, "")
            case p.ArgumentsDelta(index=index, text=text):
                self._in_pieces.add(index)
                self._argue(index, text)
            case p.ToolCallReady(index=index, name=name, arguments=text, id=provider_id) if index not in self._in_pieces:
                self._calls[index] = p.ToolCallOpened(index=index, name=name, id=provider_id)
                self._argue(index, text)
            case p.UsageUpdated():
                self._usage = usage_of(part)
                self._soon()
            case _:
                pass

    async def close(self, *, rest: bool = False) -> None:
        """Wait until everything that was handed over is stored, also where that is cancelled meanwhile.

        What was not is in the response itself, unless there will be none: then the `rest` is written too. Raises what the store raised.
        """
        if rest:
            self._all = True
            self._write()
        self.stop()
        cancelled: asyncio.CancelledError | None = None
        while self._writing is not None and not self._writing.done():
            try:
                await asyncio.wait({self._writing})
            except asyncio.CancelledError as error:
                cancelled = error
        if self.broken.done():
            self.broken.result()
        if cancelled is not None:
            raise cancelled

    def stop(self) -> None:
        """Begin nothing more by the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _argue(self, index: int, text: str) -> None:
        """More of the arguments of one call."""
        self._places.setdefault(index, len(self._places) + 1)
        self._more(self._arguments.setdefault(index, []), text)

    def _more(self, pieces: list[str], text: str) -> None:
        pieces.append(text)
        self._bytes += utf8_size(text)
        self._soon()

    def _soon(self) -> None:
        if self._bytes >= BYTES:
            self._write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._write)

    def _write(self) -> None:
        """Hand over what is due; where the last append is still under way, it goes on with this one."""
        self.stop()
        if not self.broken.done() and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write_all())
            self._writing.add_done_callback(self._written_or_broken)

    async def _write_all(self) -> None:
        while (fact := self._due()) is not None:
            await self._append((fact,))
            if self._bytes < BYTES and not self._all:
                break  # what came meanwhile has its own time
        if self._bytes and self._timer is None:
            self._soon()

    def _due(self) -> f.StreamCheckpointed | f.UsageUpdated | None:
        """What was said since the last time, with the latest report; a report alone where it says much more than the last."""
        usage = self._usage
        tokens = usage.input_tokens + usage.written if usage is not None else 0
        if not self._bytes and not self._arguments:
            if usage is None or tokens * MATERIAL < self._written * (MATERIAL + 1) or tokens == self._written:
                return None
            self._written, self._usage = tokens, None
            return f.UsageUpdated(usage=usage)
        fact = f.StreamCheckpointed(text=_joined(self._text), reasoning=_joined(self._reasoning), calls=self._pieces(), usage=usage)
        self._text, self._reasoning, self._arguments = [], [], {}
        self._bytes, self._written, self._usage = 0, tokens or self._written, None
        return fact

    def _pieces(self) -> tuple[f.ProposedCall, ...]:
        """What came of calls, each by its place among those that were opened."""
        return tuple(
            f.ProposedCall(
                id=CallId(f"t{self._turn}.{self._places[index]}"),
                name=whole(call.name) if (call := self._calls.get(index)) is not None else "",
                arguments_text=_joined(pieces),
                provider_id=whole(call.id) if call is not None else "",
            )
            for index, pieces in sorted(self._arguments.items(), key=lambda item: self._places[item[0]])
        )

    def _written_or_broken(self, writing: "asyncio.Task[None]") -> None:
        error = None if writing.cancelled() else writing.exception()
        if error is not None and not self.broken.done():
            self.broken.set_exception(error)
            self.broken.exception()  # whoever closes raises it


def _joined(pieces: list[str]) -> str:
    return whole("".join(pieces))
