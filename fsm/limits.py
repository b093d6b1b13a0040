"""Every reason to stop, decided in one place: asked before each request and each tool, and mid-stream where they apply.

A limit reads the run and the stamp and says what is used up, or nothing. The rule is the same everywhere: used up when spent >= limit.
"""

from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from refold.events import money
from refold.events.codec import Stamp
from refold.events.words import Reason
from refold.projections.messages import encode, tokens_of
from refold.projections.run import Run

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


def cost(run: Run, stamp: Stamp) -> Exceeded | None:
    limit = run.budgets.max_cost_usd
    if limit is None or not money.at_least(run.spent.cost_usd, limit):
        return None
    return Exceeded(reason="max_cost_usd", detail=f"the limit of {limit} USD is reached ({run.spent.cost_usd} were spent)")


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


BEFORE_TOOLS = (spent_tokens, cost, active_time, deadline)
"""What is asked before each call: a budget that is used up lets nothing begin."""


def tool_calls_left(run: Run) -> int | None:
    """How many more calls may be performed; None without a limit."""
    limit = run.budgets.max_tool_calls
    return None if limit is None else max(0, limit - run.spent.tool_calls)


def estimated_input(run: Run) -> int:
    """Tokens the next request would read: instructions, tools, everything shown before and what is new. Exact arithmetic on sizes, so that replay gives the same."""
    new = sum(len(encode(message)) for message in run.fresh) + sum(len(text.encode("utf-8", "replace")) + 24 for text in run.unheard)
    return tokens_of(run.size + new)


def output_limit(run: Run) -> int:
    """Tokens the next response may have: the setting, or what the budget leaves behind the estimated input."""
    most, limit = run.budgets.max_output_tokens, run.budgets.max_tokens
    return most if limit is None else max(0, min(most, limit - run.spent.tokens - estimated_input(run)))


def is_last_turn(run: Run) -> bool:
    """Whether the request after the next one would not fit, so that the next is for the answer; never the first turn."""
    if not run.policy.wrap_up or run.turn < 1:
        return False
    if run.budgets.max_turns is not None and run.turn + 1 >= run.budgets.max_turns:
        return True
    return run.told_limit > 0 or not _another_fits(run)


def _another_fits(run: Run) -> bool:
    """Whether the tokens reach for the next request and one more behind it, each with the shortest answer."""
    limit = run.budgets.max_tokens
    return limit is None or run.spent.tokens + 2 * (estimated_input(run) + _least_output(run)) <= limit


def _least_output(run: Run) -> int:
    return min(OUTPUT_TOKENS_MIN, run.budgets.max_output_tokens)


def micros(seconds: float) -> int:
    """Seconds as whole microseconds, without a detour over binary fractions."""
    return int(Decimal(str(seconds)) * 1_000_000)


def instant(text: str) -> int:
    """An RFC 3339 time as microseconds; without an offset it is UTC, wherever this runs."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(Decimal(str(moment.timestamp())) * 1_000_000)
