"""Two runs, turn by turn: which are the same, what is another in those that are not, and which one of the two alone has.

Turns are brought together by what the model decided, so that a turn more in one of the runs does not make all behind it look changed.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, Final, Literal

import msgspec

from refold.events.words import Digest
from refold.projections.turns import TurnView, encoded

MINOR: Final = ("reasoning", "usage", "cost_usd")
"""Fields from which nothing follows in the run."""
MOST: Final = 8
"""A value that differs in more places than this is one difference."""
CELLS: Final = 40_000
"""Turns between two that are the same are brought together by their likeness while there are no more pairs of them than this, and by their order where there are."""
DEPTH: Final = 20
"""How often what lies between two turns is looked at again for turns that are there once."""
LEVELS: Final = 20
"""How deep in a value a difference is looked for."""

Places = tuple[int | None, int | None]
Verdict = Literal["same", "changed", "only_left", "only_right"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that is another, by its path in the turn (`calls[0].arguments.city`, `settings.budgets.max_turns`); None where there is none."""

    field: str
    left: Any
    right: Any

    @property
    def minor(self) -> bool:
        return self.field.split(".")[0] in MINOR


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of each run, by number (0 is what the runs began with), or of one alone. `same_prompt` is whether both requests showed the same, None where there are not two."""

    left: int | None
    right: int | None
    verdict: Verdict
    same_prompt: bool | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def minor(self) -> bool:
        """Whether both went the same way, at another price."""
        return self.verdict == "changed" and all(difference.minor for difference in self.differences)


def shared(left: Sequence[tuple[Digest, int]], right: Sequence[tuple[Digest, int]]) -> int:
    """How many records two histories have in common; each record's digest covers all before it."""
    first, last = 0, min(len(left), len(right))
    while first < last:
        middle = (first + last + 1) // 2
        if left[middle - 1][0] == right[middle - 1][0]:
            first = middle
        else:
            last = middle - 1
    return first


def differences(left: Sequence[TurnView], right: Sequence[TurnView], *, forked: bool = False) -> tuple[Pair, ...]:
    """The turns of two runs side by side, in order; each list begins with turn 0. Runs are `forked` where they share a past."""
    made: list[Pair] = []
    if forked:
        place = 1 + _common(left[1:], right[1:])
        for view in (*left[place : place + 1], *right[place : place + 1]):
            view.parted = True
    explained = False  # once something differs, all later prompts do, and that is no news
    here, there = left[0], right[0]
    for n, m in [(0, 0), *_shifted(_aligned_alike(left[1:], right[1:]), 1, 1)]:
        one, other = None if n is None else left[n], None if m is None else right[m]
        here, there = one or here, other or there
        if one is None or other is None:
            made.append(_alone(one, other, _set_otherwise(here, there, (here if one else there).changed)))
            explained = True
            continue
        pair = _pair(one, other, explained)
        made.append(pair)
        explained = explained or (pair.verdict != "same" and not pair.minor) or one.prompt != other.prompt or one.unshown != other.unshown
    return tuple(made)


# -- which turns belong together


def _aligned_alike(left: Sequence[TurnView], right: Sequence[TurnView]) -> Iterator[Places]:
    """The same pairs whichever of the two comes first: where several ways are as good, one and the same is taken."""
    if [turn.decision for turn in left] <= [turn.decision for turn in right]:
        return aligned(left, right)
    return ((n, m) for m, n in aligned(right, left))


def aligned(left: Sequence[TurnView], right: Sequence[TurnView], depth: int = DEPTH) -> Iterator[Places]:
    """Places in both, in order. In time that grows with the number of turns: what both have once holds the rest in place, as in a patience diff."""
    head = _common(left, right)
    tail = _common(left[head:][::-1], right[head:][::-1])
    yield from ((n, n) for n in range(head))
    ends = len(left) - tail, len(right) - tail
    yield from _shifted(_middle(left[head : ends[0]], right[head : ends[1]], depth), head, head)
    yield from ((ends[0] + n, ends[1] + n) for n in range(tail))


def _common(left: Sequence[TurnView], right: Sequence[TurnView]) -> int:
    """How many decisions both begin with."""
    return next((n for n, (one, other) in enumerate(zip(left, right, strict=False)) if one.decision != other.decision), min(len(left), len(right)))


def _middle(left: Sequence[TurnView], right: Sequence[TurnView], depth: int) -> Iterator[Places]:
    anchors = _anchors(left, right) if depth else []
    if not anchors:
        yield from _alike(left, right) if len(left) * len(right) <= CELLS else _in_order(left, right)
        return
    n = m = 0
    for at, other_at in [*anchors, (len(left), len(right))]:
        yield from _shifted(aligned(left[n:at], right[m:other_at], depth - 1), n, m)
        if at < len(left):
            yield at, other_at
        n, m = at + 1, other_at + 1


def _anchors(left: Sequence[TurnView], right: Sequence[TurnView]) -> list[tuple[int, int]]:
    """The longest ascending row of decisions that each run made once."""
    here, there = Counter(turn.decision for turn in left), Counter(turn.decision for turn in right)
    places = {turn.decision: m for m, turn in enumerate(right) if there[turn.decision] == 1}
    both = [(n, places[turn.decision]) for n, turn in enumerate(left) if here[turn.decision] == 1 and turn.decision in places]
    ends: list[int] = []  # the lowest place at which a row of each length can end,
    rows: list[int] = []  # which of `both` that is,
    before = [-1] * len(both)  # and what stands before each in its row
    for k, (_, m) in enumerate(both):
        length = bisect_left(ends, m)
        ends[length : length + 1], rows[length : length + 1] = [m], [k]
        before[k] = rows[length - 1] if length else -1
    row: list[tuple[int, int]] = []
    k = rows[-1] if rows else -1
    while k >= 0:
        row.append(both[k])
        k = before[k]
    return row[::-1]


def _alike(left: Sequence[TurnView], right: Sequence[TurnView]) -> Iterator[Places]:
    """The pairs that have most in common, by the best sum over all ways to bring both together."""
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for n in range(len(left) - 1, -1, -1):
        for m in range(len(right) - 1, -1, -1):
            best[n][m] = max(best[n + 1][m + 1] + _likeness(left[n], right[m]), best[n + 1][m], best[n][m + 1])
    n = m = 0
    while n < len(left) or m < len(right):
        if n < len(left) and m < len(right) and best[n][m] == best[n + 1][m + 1] + _likeness(left[n], right[m]):
            yield n, m
            n, m = n + 1, m + 1
        elif m == len(right) or (n < len(left) and best[n][m] == best[n + 1][m]):
            yield n, None
            n += 1
        else:
            yield None, m
            m += 1


def _likeness(one: TurnView, other: TurnView) -> int:
    """The same decision outweighs everything; the same prompt or past, whatever came of it, is the same turn; then the same tools."""
    if one.decision == other.decision:
        return 1_000
    if one.prompt == other.prompt != "" or (one.parted and other.parted):
        return 4
    return 3 if one.shape == other.shape else 1


def _in_order(left: Sequence[TurnView], right: Sequence[TurnView]) -> Iterator[Places]:
    return zip_longest(range(len(left)), range(len(right)))


def _shifted(pairs: Iterator[Places], n: int, m: int) -> Iterator[Places]:
    return ((None if one is None else one + n, None if other is None else other + m) for one, other in pairs)


# -- what is another in two turns


def _alone(one: TurnView | None, other: TurnView | None, settings: Sequence[Difference]) -> Pair:
    """A turn that one of the runs has alone: all that is in it differs, and the settings that became others in it from those that the other run has there."""
    found = (*settings, *_turn(one.fields if one else {}, other.fields if other else {}))
    return Pair(left=one.number if one else None, right=other.number if other else None, verdict="only_left" if one else "only_right", differences=found)


def _pair(one: TurnView, other: TurnView, explained: bool) -> Pair:
    same_prompt = one.prompt == other.prompt if one.number and other.number else None
    changed = one.changed | other.changed
    found = _set_otherwise(one, other, changed)
    if encoded(one.fields) != encoded(other.fields):
        found += _turn(one.fields, other.fields)
    if same_prompt is False and not explained and not any(d.field.split("[")[0] in SHOWN or d.field in changed for d in found):
        found.insert(0, Difference(field="prompt", left=one.prompt, right=other.prompt))
    return Pair(left=one.number, right=other.number, verdict="changed" if found else "same", same_prompt=same_prompt, differences=tuple(found))


def _set_otherwise(one: TurnView, other: TurnView, changed: set[str]) -> list[Difference]:
    """The settings among these that are others in the two."""
    return [found for name in sorted(changed) for found in _value(name, one.settings.get(name), other.settings.get(name))]


SHOWN: Final = ("said", "summary", "context", "wrap_up")
"""Fields that are shown to the model by the request of their turn."""


def _turn(left: dict[str, Any], right: dict[str, Any]) -> Iterator[Difference]:
    """The fields of two turns; calls one by one."""
    for name in sorted(left.keys() | right.keys(), key=lambda name: (ORDER.get(name.split(".")[0], len(FIRST)), name)):
        one, other = left.get(name), right.get(name)
        if name == "calls":
            for n, (call, its) in enumerate(zip_longest(one or (), other or ())):
                yield from _call(f"calls[{n}]", call, its)
        elif name == "usage":
            yield from _parts(name, one or {}, other or {}, LEVELS)
        else:
            yield from _value(name, one, other)


FIRST: Final = ("goal", "history", "said", "summary", "context", "wrap_up", "errors", "model", "commentary", "calls", "answer")
ORDER: Final = {name: place for place, name in enumerate(FIRST)} | {name: len(FIRST) + 1 for name in MINOR}
"""Fields as they come about in a turn, the others in between."""


def _call(path: str, one: dict[str, Any] | None, other: dict[str, Any] | None) -> Iterator[Difference]:
    """Two calls in one place: of one tool field by field, else as a whole."""
    if one is None or other is None or one["name"] != other["name"]:
        yield from _value(path, one, other, 0)
        return
    for name in sorted(one.keys() | other.keys()):
        yield from _value(f"{path}.{name}", one.get(name), other.get(name), 0 if name == "result" and one["kind"] != other["kind"] else LEVELS)


def _value(path: str, one: Any, other: Any, levels: int = LEVELS) -> list[Difference]:
    """Where two JSON values differ: in their parts so many levels down, while these are few."""
    if encoded(one) == encoded(other):
        return []
    found: list[Difference] = []
    if levels and ((isinstance(one, dict) and isinstance(other, dict)) or (isinstance(one, list) and isinstance(other, list))):
        found = list(islice(_parts(path, one, other, levels - 1), MOST + 1))
    return found if 0 < len(found) <= MOST else [Difference(field=path, left=one, right=other)]


def _parts(path: str, one: Any, other: Any, levels: int) -> Iterator[Difference]:
    if isinstance(one, dict):
        for name in sorted(one.keys() | other.keys()):
            place = f"{path}.{name}" if PLAIN.fullmatch(name) else f"{path}[{encoded(name).decode()}]"
            yield from _value(place, one.get(name), other.get(name), levels)
    else:
        for n, (part, its) in enumerate(zip_longest(one, other)):
            yield from _value(f"{path}[{n}]", part, its, levels)


PLAIN: Final = re.compile(r"[\w$-]+")
