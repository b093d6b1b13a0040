"""What requests show of a run: small functions of it, one after the other, that need no content of the past.

Apart from the fold, because deciding, folding and making a request ask the same functions, and so cannot differ about a single byte.
The past is a list of entries; of what is new there is everything: it is cut to its share when it is shown first, and stays as it was shown.
"""

from collections.abc import Iterable
from typing import Final

from refold.events import facts as f
from refold.projections.excerpts import EXCERPT_MIN, fair_share, within
from refold.projections.messages import Counted, Message, bytes_of, counted, tokens_of, user
from refold.projections.prefix import HISTORY, as_entry, chained, entry_of, head, start
from refold.projections.run import Entry, Run, replace

NOTICE_BYTES: Final = 400
"""What is kept free for the words that each request ends with."""


# -- what is new


def news(run: Run) -> tuple[Counted, ...]:
    """What the next request shows for the first time, in order: the only messages whose content decisions have. Another attempt shows nothing new."""
    return cut_together(run, uncut(run))


def uncut(run: Run) -> tuple[Counted, ...]:
    """The same, each at the length that it may have by itself."""
    if run.state == "streaming_model":
        return ()
    return (*run.fresh_shown, *(counted(user(text)) for text in run.unheard))


def cut_together(run: Run, messages: tuple[Counted, ...]) -> tuple[Counted, ...]:
    """Results that each may be shown, and together would take more than there is room for, are cut to equal shares of it."""
    window = run.context.window_tokens if run.context is not None else None
    if window is None:
        return messages
    room = bytes_in(run, compact_at(run, window)) - NOTICE_BYTES - past_size(run) - sum(each.size for each in messages if each.message.role != "tool")
    share = fair_share((each.size for each in messages if each.message.role == "tool"), max(0, room))
    return messages if share is None else tuple(_cut(each, max(share, EXCERPT_MIN)) for each in messages)


def cut_each(run: Run, messages: Iterable[Message]) -> tuple[Counted, ...]:
    """Each result by no more than `observation_bytes` of it."""
    limit = run.context.observation_bytes if run.context is not None else None
    return tuple(counted(each) if limit is None else _cut(counted(each), limit) for each in messages)


def _cut(each: Counted, limit: int) -> Counted:
    """A result in `limit` bytes; anything else as it is."""
    return counted(within(each.message, limit)) if each.message.role == "tool" and each.size > limit else each


# -- how much it is


def past_size(run: Run) -> int:
    """Bytes of what the next request shows of the past, instructions and tools included."""
    return run.size if not run.past.left_out else base_size(run) + sum(entry.size for entry in run.shown_entries())


def next_size(run: Run) -> int:
    """Bytes of the next request."""
    return past_size(run) + sum(each.size for each in news(run))


def uncut_size(run: Run) -> int:
    """Bytes that the next request would have if results did not share the room there is."""
    return past_size(run) + sum(each.size for each in uncut(run))


def base_size(run: Run) -> int:
    """Bytes of what every request begins with."""
    return sum(part.size for part in head(run.begun, bare=False))


def in_words(run: Run) -> str:
    """What the next request is made of, by the estimate, and what it has to fit into."""
    base, past, everything = base_size(run), past_size(run), next_size(run)
    parts = ((base, "for instructions and tools"), (past - base, "for what was said before"), (everything - past, "for what is new"))
    return ", ".join(f"{tokens(run, size)} {what}" for size, what in parts) + f"; the window is {window(run)} tokens"


# -- tokens and the window


def tokens(run: Run, size: int) -> int:
    """Tokens of so many bytes: what the provider said it read last, and what came since at its rate, which is held between half and twice the plain estimate.

    Never so few that a provider which reports next to nothing makes everything fit.
    """
    measured = run.measured
    if measured is None:
        return tokens_of(size)
    rate, of = _rate(measured.tokens, measured.size)
    return max(measured.tokens - (measured.size - size) * rate // of, -(-size // 16))


def bytes_in(run: Run, tokens: int) -> int:
    """The most bytes that are estimated at no more than so many tokens."""
    measured = run.measured
    if measured is None:
        return bytes_of(tokens)
    rate, of = _rate(measured.tokens, measured.size)
    return max(0, min(measured.size - -(-(measured.tokens - tokens) * of // rate), tokens * 16))


def _rate(tokens: int, size: int) -> tuple[int, int]:
    """Tokens for bytes, as a fraction."""
    return (1, 8) if tokens * 8 < size else (1, 2) if tokens * 2 > size else (tokens, size)


def window(run: Run) -> int | None:
    """Tokens that the model can read, as far as is known: as it was set, or as an overflow showed."""
    setting, showed = run.context.window_tokens if run.context is not None else None, run.past.overflow
    if setting is None or showed is None:
        return showed if setting is None else setting
    return min(setting, showed)


def compact_at(run: Run, tokens: int) -> int:
    """Tokens of a window at which a compaction is due."""
    assert run.context is not None
    return tokens * run.context.compact_at // 100


def has_overflowed(run: Run) -> bool:
    """Whether the open request turned out to be more than the model can read, before it answered or while it did."""
    if run.asked == "failed":
        return run.failure is not None and run.failure.error.overflow
    output = run.open.output if run.open is not None else None
    return run.asked == "answered" and isinstance(output, f.ModelInterrupted) and output.cause == "overflow"


# -- how facts change it


def inherited(run: Run, fact: f.RunContinued) -> Run:
    """What a parent said and saw is past, in blocks that no request of this run showed first."""
    blocks = fact.shown or (f.Block(position=0, digest=fact.transcript, size=fact.size, messages=0),)
    entries = [Entry(position=block.position, kind=HISTORY, size=block.size, digest=block.digest) for block in blocks]
    return retold(replace(run, entries=run.entries.add(*entries)))


def requested(run: Run, fact: f.ModelRequested, position: int) -> Run:
    """What is new is past, as it is shown now."""
    entries = [as_entry(new, position) for new in news(run)]
    size = run.size + sum(entry.size for entry in entries) if run.rules.reserves else bytes_of(fact.estimated_input_tokens)
    after = replace(
        run, entries=run.entries.add(*entries), past=replace(run.past, chosen=False, wanted=False), bare=fact.wrap_up, size=size, prefix=fact.digest
    )
    return retold(after) if run.past.left_out else after


def requested_anew(run: Run, fact: f.ModelRequested) -> Run:
    """A fork makes the open request of its parent itself: it shows what that showed, with or without tools as the fork's limits have it."""
    after = replace(run, bare=fact.wrap_up, prefix=fact.digest)
    return retold(after) if run.past.left_out else after


def answered(run: Run) -> Run:
    """The model answered, or went beyond what it can read."""
    if has_overflowed(run):
        return overflowed(run)
    return replace(run, past=replace(run.past, compactions=0)) if run.past.compactions else run


def overflowed(run: Run) -> Run:
    """The model can read less than the open request was estimated at."""
    assert run.request is not None
    known = [tokens for tokens in (run.past.overflow, run.request.estimated_input_tokens) if tokens is not None]
    return replace(run, past=replace(run.past, overflow=min(known)))


def chosen(run: Run, fact: f.ContextChosen, position: int) -> Run:
    """What the next request shows was chosen; nothing is left out where the builder failed."""
    instead = entry_of(summary_message(fact.instead), position) if fact.left_out and fact.instead else None
    return replace(run, past=replace(run.past, left_out=fact.left_out, instead=instead, chosen=True))


def compacted(run: Run, fact: f.ContextCompacted, position: int) -> Run:
    """Older turns are shown as a summary, and the digest of what is shown begins anew; what the user said stays."""
    past = replace(run.past, asked=None, compactions=run.past.compactions + 1, wanted=False)
    if fact.error:
        return replace(run, past=replace(past, failed=past.failed + 1))
    hidden = place_behind(run, fact.upto)
    pinned = (*past.pinned, *(place for place in range(past.hidden, hidden) if run.entries[place].kind == "user"))
    left_out = tuple(at for at in past.left_out if at > fact.upto)
    summary = entry_of(summary_message(fact.summary), position)
    past = replace(past, hidden=hidden, pinned=pinned, summary=summary, left_out=left_out, instead=past.instead if left_out else None, failed=0)
    return retold(replace(run, past=past))


def retold(run: Run) -> Run:
    """Size and digest of what is retained of the past, added up anew."""
    retained = replace(run, past=replace(run.past, left_out=(), instead=None))
    kept = list(retained.shown_entries())
    prefix = chained(start(run.begun, bare=run.bare), (entry.digest for entry in kept))
    return replace(run, prefix=prefix, size=base_size(run) + sum(entry.size for entry in kept))


def place_behind(run: Run, position: int) -> int:
    """The place of the first entry that a request behind `position` showed first."""
    low, high = 0, len(run.entries)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if run.entries[middle].position <= position else (low, middle)
    return low


def replaced(run: Run, upto: int) -> list[Entry]:
    """What a compaction up to `upto` would take away: the summary before, and what requests up to there showed, but for what the user said."""
    before = [run.past.summary] if run.past.summary is not None else []
    return before + [run.entries[place] for place in range(run.past.hidden, place_behind(run, upto)) if run.entries[place].kind != "user"]


def summary_message(text: str) -> Message:
    """A summary as requests show it: in the user's place, as providers know no other, and marked as no word of the user's."""
    return Message(role="user", text=text, kind="summary")
