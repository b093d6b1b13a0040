"""What a stream has used so far, and whether it may go on: by what its provider reported, and behind that by an estimate of what has come.

Apart from taking the stream in, because this is counted for every piece of it, a hundred thousand of them in one response.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from refold.events import facts as f, money
from refold.events.words import Reason
from refold.projections.messages import bytes_of, tokens_of
from refold.projections.spending import priced
from refold.runtime import ports as p

ENDLESS: Final = 2**63


@dataclass(frozen=True)
class Purse:
    """What one response may use: tokens and USD, None without a limit; and the price of a million tokens, None where there is none."""

    tokens: int | None = None
    usd: str | None = None
    price: f.Price | None = None


class Meter:
    """Counts the parts of one response."""

    def __init__(self, estimated_input: int, purse: Purse) -> None:
        self.begun = False
        """Whether anything came."""
        self._estimated_input, self._purse = estimated_input, purse
        self._reported = f.Usage()
        self._since = 0
        self._pieces: set[int] = set()
        """Calls whose arguments came in pieces."""
        self._limit, self._room = self._allowed()

    def take(self, part: p.Part) -> None:
        """One more part."""
        self.begun = True
        match part:
            case p.TextDelta(text=text) | p.ReasoningDelta(text=text) | p.Refusal(text=text):
                self._since += utf8_size(text)
            case p.ArgumentsDelta(index=index, text=text):
                self._pieces.add(index)
                self._since += utf8_size(text)
            case p.ToolCallReady(index=index, arguments=text) if index not in self._pieces:
                self._since += utf8_size(text)
            case p.UsageUpdated():
                self._reported, self._since = usage_of(part), 0
                self._limit, self._room = self._allowed()
            case _:
                pass

    @property
    def overspent(self) -> Reason | None:
        """The limit that the response has gone beyond."""
        return self._limit if self._since > self._room else None

    def unreported(self) -> f.Usage | None:
        """An estimate of what was used beyond what was reported; None where that is nothing."""
        read = 0 if self._reported.input_tokens else self._estimated_input
        written = tokens_of(self._since)
        return f.Usage(input_tokens=read, output_tokens=written, estimated=True) if read or written else None

    def _allowed(self) -> tuple[Reason, int]:
        """The limit that is met first, and how many more bytes of output it lets through."""
        used, purse = self._reported, self._purse
        if not used.input_tokens:
            used = msgspec.structs.replace(used, input_tokens=self._estimated_input)
        rooms: list[tuple[int, Reason]] = []
        if purse.tokens is not None:
            rooms.append((purse.tokens - used.input_tokens - used.written, "max_tokens"))
        if purse.usd is not None:
            left = money.subtract(purse.usd, used.cost_usd if used.cost_usd is not None else priced(used, purse.price))
            tokens = money.tokens_for(left, purse.price.output if purse.price is not None else "0")
            if tokens is not None:
                rooms.append((tokens, "max_cost_usd"))
        room, limit = min(rooms, default=(ENDLESS, "max_tokens"))
        return limit, bytes_of(room)


def usage_of(part: p.UsageUpdated) -> f.Usage:
    """A report as it is recorded: what the provider said."""
    return f.Usage(
        input_tokens=part.input_tokens,
        output_tokens=part.output_tokens,
        cached_input_tokens=part.cached_input_tokens,
        cache_write_tokens=part.cache_write_tokens,
        reasoning_tokens=part.reasoning_tokens,
        reasoning_beside=part.reasoning_beside,
        cost_usd=part.cost_usd,
    )


def utf8_size(text: str) -> int:
    """Bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
