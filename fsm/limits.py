"""Every reason to stop, decided in one place: asked before each request and each tool, and mid-stream where they apply.

A limit reads the run and the stamp and says what is used up, or nothing. The rule is the same everywhere: used up when spent >= limit.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Final

import msgspec

from refold.events import facts as f, money
from refold.events.codec import Stamp
from refold.events.words import Reason
from refold.projections import context
from refold.projections.messages import encode, tokens_of
from refold.projections.run import Run

_EXACT: Final = Context(prec=28)
"""Of our own: how a program around us rounds its sums moves no limit."""
OUTPUT_TOKENS_MIN = 256
"""A request that could answer with fewer tokens than this is not made."""


class Exceeded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit that is used up: its name, and a sentence with its value and the count."""

    reason: Reason
    detail: str


def turns(run: Run, stamp: Stamp) -> Exceeded | None:
    limit = run.budgets.max_turns
    if limit is None or run.turn < limit:
        return None
    return Exceeded(reason="max_turns", detail=f"the limit of {limit} turns is reached ({run.turn} were made)")


def spent_tokens(run: Run, stamp: Stamp) -> Exceeded | None:
    limit, spent = run.budgets.max_tokens, run.spent.tokens
    if limit is None or spent < limit:
        return None
    return Exceeded(reason="max_tokens", detail=f"the limit of {limit} tokens is reached ({spent} were used)")


def tokens(run: Run, stamp: Stamp) -> Exceeded | None:
    limit, spent = run.budgets.max_tokens, run.spent.tokens
    if limit is None:
        return None
    if (exceeded := spent_tokens(run, stamp)) is not None:
        return exceeded
    left = limit - spent - estimated_input(run)
    if left < _least_output(run):
        return Exceeded(reason="max_tokens", detail=f"of {limit} tokens {spent} were used, and the next request alone would read about {estimated_input(run)}")
    return None


def window(run: Run, stamp: Stamp) -> Exceeded | None:
    """The window that was set: what a request reads, with room for the shortest answer."""
    room = _room_in_window(run)
    if room is None or room >= _least_output(run):
        return None
    return Exceeded(reason="window_tokens", detail=f"the next request would read about {estimated_input(run)} tokens, {context.in_words(run)}")


def spent_cost(run: Run, stamp: Stamp) -> Exceeded | None:
    limit = run.budgets.max_cost_usd
    if limit is None or not money.at_least(run.spent.cost_usd, limit):
        return None
    return Exceeded(reason="max_cost_usd", detail=f"the limit of {limit} USD is reached ({run.spent.cost_usd} were spent)")


def cost(run: Run, stamp: Stamp) -> Exceeded | None:
    if (exceeded := spent_cost(run, stamp)) is not None:
        return exceeded
    room = _room_in_money(run)
    if room is None or room >= _least_output(run):
        return None
    limit, spent = run.budgets.max_cost_usd, run.spent.cost_usd
    return Exceeded(
        reason="max_cost_usd", detail=f"of {limit} USD {spent} were spent, and the shortest answer to the next request would cost about {_least_cost(run)}"
    )


def active_time(run: Run, stamp: Stamp) -> Exceeded | None:
    limit = run.budgets.timeout_s
    if limit is None or run.spent.active_us < micros(limit):
        return None
    return Exceeded(reason="timeout_s", detail=f"the limit of {limit} s of active time is reached")


def deadline(run: Run, stamp: Stamp) -> Exceeded | None:
    limit = run.budgets.deadline
    if limit is None or stamp.at < instant(limit):
        return None
    return Exceeded(reason="deadline", detail=f"the deadline {limit} has passed")


def first_exceeded(limits: Iterable[Callable[[Run, Stamp], Exceeded | None]], run: Run, stamp: Stamp) -> Exceeded | None:
    """The first of some limits that is used up."""
    for limit in limits:
        if (exceeded := limit(run, stamp)) is not None:
            return exceeded
    return None


BEFORE_TOOLS = (spent_tokens, spent_cost, active_time, deadline)
"""What is asked before each call: a budget that is used up lets nothing begin."""


def tool_calls_left(run: Run) -> int | None:
    """How many more calls may be performed; None without a limit."""
    limit = run.budgets.max_tool_calls
    return None if limit is None else max(0, limit - run.spent.tool_calls)


def estimated_input(run: Run) -> int:
    """Tokens the next request would read: instructions, tools, everything shown before and what is new. Exact arithmetic on sizes, so that replay gives the same."""
    if run.rules.reserves:
        return _calibrated_input(run)
    new = sum(len(encode(message)) for message in run.fresh) + sum(len(text.encode("utf-8", "replace")) + 24 for text in run.unheard)
    return tokens_of(run.size + new)


def _calibrated_input(run: Run) -> int:
    """The same at the rate that the provider counts at."""
    if run.request is not None and run.asked != "inherited":  # another attempt at the same; a fork makes its parent's request as its own
        return run.request.estimated_input_tokens
    return context.tokens(run, context.next_size(run))


def output_limit(run: Run) -> int:
    """Tokens the next response may have: the setting, or what window, tokens and money leave behind the estimated input."""
    rooms = [room for room in (_room_in_window(run), _room_in_tokens(run), _room_in_money(run)) if room is not None]
    return max(0, min([run.budgets.max_output_tokens, *rooms]))


def _room_in_window(run: Run) -> int | None:
    """Output tokens that the window leaves; None where none was set."""
    limit = run.context.window_tokens if run.context is not None else None
    return None if limit is None else limit - estimated_input(run)


def _room_in_tokens(run: Run) -> int | None:
    """Output tokens that the budget of tokens leaves; None without a limit."""
    limit = run.budgets.max_tokens
    return None if limit is None else limit - run.spent.tokens - estimated_input(run)


def _room_in_money(run: Run) -> int | None:
    """Output tokens that the budget of money leaves; None without a limit, or without a price, since then nothing can be reserved."""
    limit, price = run.budgets.max_cost_usd, run.begun.price
    if limit is None or price is None or not run.rules.reserves:
        return None
    left = money.subtract(limit, money.add(run.spent.cost_usd, _input_cost(run, price)))
    return money.tokens_for(left, price.output)


def _input_cost(run: Run, price: f.Price) -> str:
    """What the estimated input may cost: at the dearest way to read it, since nobody knows before what a cache holds."""
    return money.per_million(estimated_input(run), money.largest(price.input, price.cache_write or "0", price.cached_input or "0"))


def _least_cost(run: Run) -> str:
    """What the next request costs at least, by the estimate; nothing where there is no price."""
    price = run.begun.price
    return "0" if price is None else money.add(_input_cost(run, price), money.per_million(_least_output(run), price.output))


def scarcer(run: Run) -> Exceeded:
    """Which of tokens and money was at its end when a last turn was asked for, in words for a run that ends because of it."""
    in_tokens, in_money = _room_in_tokens(run), _room_in_money(run)
    spent, words = run.spent, "and the last turn they allowed brought calls instead of an answer"
    if in_money is not None and (in_tokens is None or in_money < in_tokens):
        return Exceeded(reason="max_cost_usd", detail=f"of {run.budgets.max_cost_usd} USD {spent.cost_usd} were spent, {words}")
    return Exceeded(reason="max_tokens", detail=f"of {run.budgets.max_tokens} tokens {spent.tokens} were used, {words}")


def is_last_turn(run: Run) -> bool:
    """Whether the request after the next one would not fit, so that the next is for the answer; never the first turn."""
    if not run.policy.wrap_up or run.turn < 1:
        return False
    if run.budgets.max_turns is not None and run.turn + 1 >= run.budgets.max_turns:
        return True
    return run.told_limit > 0 or not _another_fits(run)


def _another_fits(run: Run) -> bool:
    """Whether tokens and money reach for the next request and one more behind it, each with the shortest answer."""
    limit = run.budgets.max_tokens
    if limit is not None and run.spent.tokens + 2 * (estimated_input(run) + _least_output(run)) > limit:
        return False
    most = run.budgets.max_cost_usd
    if most is None or not run.rules.reserves:
        return True
    return money.at_least(most, money.add(run.spent.cost_usd, money.add(_least_cost(run), _least_cost(run))))


def _least_output(run: Run) -> int:
    return min(OUTPUT_TOKENS_MIN, run.budgets.max_output_tokens)


def micros(seconds: float) -> int:
    """Seconds as whole microseconds, without a detour over binary fractions."""
    return int(_EXACT.multiply(Decimal(str(seconds)), 1_000_000))


def instant(text: str) -> int:
    """An RFC 3339 time as microseconds; without an offset it is UTC, wherever this runs."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return micros(moment.timestamp())
