"""When older turns give way to a summary, which of them, and who writes it; and when a context builder is asked what the next request shows.

Apart from the context itself, because here it is decided when something is to be done about it, there what is shown. Entries are enough for both.
"""

from typing import Final

import msgspec

from refold.events import facts as f, money
from refold.events.chain import NOTHING
from refold.projections import context
from refold.projections.prefix import chained
from refold.projections.run import Run

SUMMARY_MAX: Final = 16_384
"""Bytes of a summary."""
SUMMARY_MIN: Final = 256
"""A compaction whose summary could not have so many would gain too little."""
WORDS_AROUND: Final = 4_000
"""Bytes that the instructions of a summary take, and then some."""
TRIES_MAX: Final = 2
"""Compactions in a row that may fail, and those for one request that cannot be made without."""


def due(run: Run) -> f.SummaryRequested | None:
    """The summary that must be made before the next request; None where none is wanted, none would gain anything, or it was tried."""
    if run.context is None or run.context.compaction == "off" or not _wanted(run):
        return None
    tries = TRIES_MAX if context.has_overflowed(run) or _too_long(run) else 1
    if run.past.compactions >= tries or (upto := _upto(run)) is None:
        return None
    window, entries = context.window(run), context.replaced(run, upto)
    replaced = sum(entry.size for entry in entries)
    bytes_max = min(replaced // 2, SUMMARY_MAX if window is None else min(SUMMARY_MAX, context.bytes_in(run, window) // 8))
    if bytes_max < SUMMARY_MIN:
        return None
    asked = f.SummaryRequested(
        since=run.entries[run.past.hidden - 1].position if run.past.hidden else None,
        upto=upto,
        author="extractive",
        digest=chained(NOTHING, (entry.digest for entry in entries)),
        bytes_max=bytes_max,
    )
    reads = _read_by_model(run, replaced)
    return msgspec.structs.replace(asked, author="model", number=run.number + 1, estimated_input_tokens=reads) if _model_may(run, reads, bytes_max) else asked


def _wanted(run: Run) -> bool:
    """Whether the next request is to be shorter: the provider found the last one too long, somebody asked for it, or the window is nearly full."""
    if context.has_overflowed(run):
        return True
    if run.asked != "no":
        return False
    window = context.window(run)
    return run.past.wanted or (window is not None and context.tokens(run, context.uncut_size(run)) > context.compact_at(run, window))


def _too_long(run: Run) -> bool:
    """Whether the next request would not fit into the window that was set."""
    assert run.context is not None
    window = run.context.window_tokens
    return window is not None and context.tokens(run, context.uncut_size(run)) > window


def _upto(run: Run) -> int | None:
    """The position up to which turns give way. The latest `keep_turns` stay, as far as they fit into half of what there is; one that the model has not answered always."""
    assert run.context is not None
    turns, window = _turns(run), context.window(run)
    room: int | None = None
    if window is not None:
        summary = run.past.summary.size if run.past.summary is not None else 0
        fixed = run.size - summary - sum(size for _, size in turns)
        room = context.bytes_in(run, context.compact_at(run, window)) // 2 - fixed - (context.uncut_size(run) - context.past_size(run))
    always = int(context.has_overflowed(run))
    most = max(always, run.context.keep_turns - _news_is_a_turn(run))
    for kept in range(most):
        if not turns or (room is not None and kept >= always and turns[-1][1] > room):
            break
        _, size = turns.pop()
        room = None if room is None else room - size
    return turns[-1][0] if turns else None


def _turns(run: Run) -> list[tuple[int, int]]:
    """The turns that are shown, oldest first: the position of the request that showed each first, and the bytes that it would give up; what the user said stays."""
    made: dict[int, int] = {}
    for entry in run.entries.since(run.past.hidden):
        if entry.kind != "user":
            made[entry.position] = made.get(entry.position, 0) + entry.size
    return list(made.items())


def _news_is_a_turn(run: Run) -> int:
    """1 where what no request has shown yet is more than words of the user."""
    return int(any(message.role != "user" for message in run.fresh))


# -- who writes it


def _read_by_model(run: Run, replaced: int) -> int:
    """What a model that summarises reads at most, with the words around it."""
    window, all_of_it = context.window(run), context.tokens(run, replaced + WORDS_AROUND)
    return all_of_it if window is None else min(all_of_it, context.compact_at(run, window))


def _model_may(run: Run, reads: int, bytes_max: int) -> bool:
    """Whether the model is to summarise: as was chosen, unless it failed to, or tokens and money would not reach for that and as much again for the task."""
    assert run.context is not None
    if run.context.compaction != "model" or run.past.failed >= TRIES_MAX or (run.past.failed and run.past.compactions):
        return False
    writes, limit, usd, price = context.tokens(run, bytes_max), run.budgets.max_tokens, run.budgets.max_cost_usd, run.begun.price
    if limit is not None and run.spent.tokens + 2 * (reads + writes) > limit:
        return False
    if usd is None or price is None:
        return True
    cost = money.add(money.per_million(2 * reads, price.input), money.per_million(2 * writes, price.output))
    return money.at_least(usd, money.add(run.spent.cost_usd, cost))


# -- context builders


def chooses(run: Run) -> bool:
    """Whether a context builder is to be asked: where one is named, once for each request, and where it has a choice."""
    named = run.context is not None and (run.begun.context_builder or run.context.relevant_turns is not None)
    return bool(named) and run.asked == "no" and not run.past.chosen and bool(choosable(run))


def choosable(run: Run) -> tuple[int, ...]:
    """The turns that a context builder may leave out, by position: all that are still shown but for the latest."""
    assert run.context is not None
    positions = [position for position, _ in _turns(run)]
    return tuple(positions[: max(0, len(positions) + _news_is_a_turn(run) - run.context.keep_turns)])
