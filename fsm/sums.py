"""What the records of a run add up to, counted once more by other code than the fold's, so that the two check each other.

Apart from the invariants that compare, because several of them read the same sums.
"""

from fractions import Fraction
from typing import Final

import msgspec

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.money import exact
from refold.events.words import CallId
from refold.projections import forking
from refold.projections.revisions import rules_of

MILLION: Final = 1_000_000
NOTHING_PAID: Final = Fraction(0)


class Sums(msgspec.Struct, kw_only=True):
    """What the records add up to so far."""

    turns: int = 0
    requests: int = 0
    attempt: int = 0
    compacted: int = 0
    """Compactions without which the open request could not be made again."""
    summary: f.Usage | None = None
    """What a request for a summary that has had no response is estimated at."""
    calls: int = 0
    started: dict[CallId, int] = {}
    """Attempts of the calls of the open turn."""
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    cost_usd: Fraction = NOTHING_PAID
    active_us: int = 0
    asked: bool = False
    """Whether a request has had no response."""
    lost: bool = False
    """Whether its process was."""
    estimate: int = 0
    price: f.Price | None = None
    settles: bool = False
    """Whether what is known of a stream counts under the run's rules, and what a lost request is estimated at."""
    reserves: bool = False
    on_the_way: f.Usage | None = None
    """What the open response reported so far."""
    streamed: int = 0
    """Bytes of it that were written down,"""
    since: int = 0
    """and those behind its last report."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.estimated_tokens


def count(sums: Sums, record: Record) -> None:
    """Add one record, the frequent ones first. Raises ArithmeticError, ValueError or MsgspecError for amounts that are none."""
    match record.fact:
        case f.ModelRequested(estimated_input_tokens=estimate):
            sums.requests += not sums.lost
            anew = record.source != "streaming_model"
            sums.turns += anew
            sums.attempt = 1 if anew else sums.attempt + (not sums.lost)
            sums.asked, sums.lost, sums.estimate = True, False, estimate
            if anew:
                sums.started, sums.compacted = {}, 0
        case f.ToolStarted(call=call):
            sums.calls += call not in sums.started
            sums.started[call] = sums.started.get(call, 0) + 1
        case f.ToolSucceeded(elapsed_us=elapsed_us) | f.ToolFailed(elapsed_us=elapsed_us):
            _took(sums, elapsed_us)
        case f.ToolCallsRequested() | f.FinalProposed() | f.ModelInterrupted() as output:
            unreported = output.unreported if isinstance(output, f.ModelInterrupted) else None
            said = _bytes(output) if sums.settles else sum(map(len, map(_encoded, (output.text, *(call.arguments_text for call in output.calls)))))
            _book(sums, output.usage, unreported, said, output.elapsed_us)
        case f.RunStarted(setup=setup) | f.RunContinued(setup=setup):
            sums.price = setup.price
            sums.settles, sums.reserves = rules_of(setup.engine).settles, rules_of(setup.engine).reserves
        case f.DriverAttached(switched=switched):
            if sums.asked and not sums.lost:
                _book_lost(sums)
            if sums.summary is not None:  # asked for again, under its number
                _add(sums, sums.summary)
                sums.requests -= 1
                sums.summary = None
            sums.lost = sums.asked
            sums.price = switched.price if switched is not None else sums.price
        case f.RunForked(changes=changes):  # what was on its way is on its way elsewhere, and was asked for there
            sums.on_the_way, sums.streamed, sums.since = None, 0, 0
            sums.requests -= sums.summary is not None
            sums.summary, sums.lost = None, sums.asked
            sums.attempt = 1 if sums.asked else sums.attempt
            if forking.MODEL in changes:
                price = changes[forking.MODEL].get("price")
                sums.price = msgspec.convert(price, f.Price) if price is not None else None
        case f.UsageUpdated(usage=usage):
            sums.on_the_way, sums.since = usage, 0
        case f.StreamCheckpointed(usage=usage) as checkpoint:
            sums.streamed += _bytes(checkpoint)
            sums.since += _bytes(checkpoint)
            if usage is not None:
                sums.on_the_way, sums.since = usage, 0
        case f.ModelFailed() as failed:
            _book(sums, failed.usage, failed.unreported, _bytes(failed) if sums.settles else len(_encoded(failed.text)), failed.elapsed_us)
        case f.SummaryRequested(number=number, estimated_input_tokens=estimate):
            sums.requests += number is not None
            sums.summary = f.Usage(input_tokens=estimate, estimated=True) if number is not None else None
        case f.ContextCompacted(usage=usage, unreported=unreported, elapsed_us=elapsed_us):
            sums.compacted += record.source == "streaming_model"
            sums.summary = None
            _took(sums, elapsed_us)
            for each in (usage, unreported):
                if each is not None:
                    _add(sums, each)
        case _:
            pass


COUNTED: Final = frozenset(
    fact.TAG
    for fact in (
        *(f.RunStarted, f.RunContinued, f.RunForked, f.DriverAttached, f.ModelRequested, f.UsageUpdated, f.StreamCheckpointed, f.ModelFailed),
        *(f.ToolCallsRequested, f.FinalProposed, f.ModelInterrupted, f.SummaryRequested, f.ContextCompacted, f.ToolStarted, f.ToolSucceeded, f.ToolFailed),
    )
)
"""The types of records that add to the sums: all others need not be counted."""


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _bytes(fact: f.StreamCheckpointed | f.ModelFailed | f.ModelOutput) -> int:
    """How much a model wrote."""
    arguments = "".join(call.arguments_text for call in fact.calls)
    return len(_encoded(fact.text + fact.reasoning + arguments + getattr(fact, "refusal", "")))


def _book(sums: Sums, usage: f.Usage | None, unreported: f.Usage | None, said: int, elapsed_us: int) -> None:
    sums.asked = sums.lost = False
    sums.on_the_way, sums.streamed, sums.since = None, 0, 0
    _took(sums, elapsed_us)
    nothing = usage is not None and (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (0, 0, None)
    if sums.settles and nothing and said:
        usage = None
    if usage is None and unreported is None:
        unreported = f.Usage(input_tokens=sums.estimate, output_tokens=(said + 3) // 4, estimated=True, cost_usd=None if sums.settles else "0")
    for each in (usage, unreported):
        if each is not None:
            _add(sums, each)


def _book_lost(sums: Sums) -> None:
    """A request whose process is gone: at least what is known of it."""
    known = sums.on_the_way or f.Usage()
    read = max(sums.estimate, known.input_tokens)
    written = max((sums.streamed + 3) // 4, _written(known) + (sums.since + 3) // 4)
    sums.on_the_way, sums.streamed, sums.since = None, 0, 0
    if sums.settles:
        _add(sums, msgspec.structs.replace(known, input_tokens=read, output_tokens=written, reasoning_beside=False, estimated=True))


def on_the_way(sums: Sums) -> Sums:
    """The sums with what the open response reported."""
    added = msgspec.structs.replace(sums)
    if sums.settles and sums.on_the_way is not None:
        _add(added, sums.on_the_way)
    return added


def _took(sums: Sums, elapsed_us: int) -> None:
    if elapsed_us < 0:
        raise ValueError(f"{elapsed_us} us is no time")
    sums.active_us += elapsed_us


def _add(sums: Sums, usage: f.Usage) -> None:
    if min(usage.input_tokens, usage.cached_input_tokens, usage.output_tokens, usage.reasoning_tokens) < 0:
        raise ValueError("fewer tokens than none were used")
    if usage.estimated:
        sums.estimated_tokens += usage.input_tokens + _written(usage)
    else:
        sums.input_tokens += usage.input_tokens
        sums.cached_input_tokens += usage.cached_input_tokens
        sums.output_tokens += _written(usage)
    cost = exact(usage.cost_usd) if usage.cost_usd is not None else _priced(usage, sums.price)
    if cost < 0:
        raise ValueError("less money than none was spent")
    if cost:  # fractions are slow to add
        sums.cost_usd += cost


def _written(usage: f.Usage) -> int:
    return usage.output_tokens + usage.reasoning_beside * usage.reasoning_tokens


def _priced(usage: f.Usage, price: f.Price | None) -> Fraction:
    if price is None:
        return NOTHING_PAID
    fresh = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)
    classes = (
        (fresh, price.input),
        (usage.cached_input_tokens, price.cached_input or price.input),
        (usage.cache_write_tokens, price.cache_write or price.input),
        (_written(usage), price.output),
    )
    return sum((tokens * exact(each) for tokens, each in classes), NOTHING_PAID) / MILLION
