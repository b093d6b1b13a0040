"""Where a request did not go on from the one before: a provider that caches prefixes reads everything behind that place again, and bills it.

Apart from the fold, because no decision reads it; it needs the records alone.
"""

from collections.abc import Iterable

import msgspec

from refold.events import facts as f
from refold.events.chain import NOTHING
from refold.events.codec import Record
from refold.projections.evolve import evolve
from refold.projections.messages import tokens_of
from refold.projections.prefix import Part, chained, parts
from refold.projections.run import Run


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose beginning is another than that of the request before.

    `position` is its record, `number` its ordinal; `part` names the first part that changed (`instructions`, `tools`, `message 3`), `because` why, as far as the
    records tell; `tokens` is an estimate of what the request before had shown from there on, which could have come from a cache.
    """

    position: int
    number: int
    part: str
    because: str
    tokens: int


def breaks(records: Iterable[Record]) -> list[Break]:
    """The breaks of a run, in order. Another attempt at a request shows what the first did."""
    found: list[Break] = []
    run: Run | None = None
    last: Run | None = None
    for record in records:
        before = run if run is not None else Run(id=record.run)
        run = evolve(before, record.fact, target=record.target, at=record.at, head=record.digest)
        if isinstance(record.fact, f.ModelRequested) and (run.turn != before.turn or before.asked == "inherited"):
            if last is not None and (broken := between(last, run)) is not None:
                found.append(broken)
            last = run
    return found


def between(last: Run, run: Run) -> Break | None:
    """Where the request that was just made parts from the one before; both runs are as their requests left them."""
    request = run.request
    assert request is not None
    if _goes_on(last, run, request):
        return None
    shown, now = parts(last, bare=last.bare), parts(run, bare=run.bare)
    first = next((n for n, (one, other) in enumerate(zip(shown, now, strict=False)) if one.digest != other.digest), min(len(shown), len(now)))
    if first == len(shown):
        return None
    return Break(
        position=run.position, number=request.number, part=shown[first].name, because=_because(last, run, shown[first]), tokens=_tokens(last, shown[:first])
    )


def _goes_on(last: Run, run: Run, request: f.ModelRequested) -> bool:
    """Whether the digest proves it, without looking at what was shown before."""
    if not run.rules.chains:
        return last.bare == run.bare  # nothing else could change then
    new = (entry.digest for entry in run.entries.since(len(last.entries)))
    return not last.past.left_out and chained(last.prefix, new) == request.digest != NOTHING


def _because(last: Run, run: Run, part: Part) -> str:
    if run.forked_from != last.forked_from or run.forked_at != last.forked_at:
        return f"the fork of {run.forked_from} at {run.forked_at} shows something else"
    if run.past.hidden != last.past.hidden:
        return "older turns gave way to a summary"
    if run.past.left_out != last.past.left_out:
        return "a context builder chose other turns"
    if part.name == "tools" and run.bare != last.bare:
        return "it offers no tools, since it is for an answer alone" if run.bare else "it offers tools again"
    return f"its {part.name} changed"


def _tokens(last: Run, same: list[Part]) -> int:
    """What the request before was estimated to read, without the parts that are the same."""
    assert last.request is not None
    return max(0, last.request.estimated_input_tokens - tokens_of(sum(part.size for part in same)))
