"""A divergence as people read it, like a good error of a compiler: where, both values with what differs marked, why, and what to do.

Apart from the commands, because whatever derives a log again says where it parts in the same words.
"""

from typing import Any, Final, NamedTuple

from refold.fsm.divergence import ABSENT, SHOWN_MAX, TYPE, Divergence
from refold.runtime.cli.render import Page, compact, cut, one_line, padded, visible, width_of

INDENT: Final = " " * 4
LABEL: Final = 10
"""Columns of `recorded` and the like."""
TOLD_MAX: Final = 800
"""Columns of a sentence, which may hold what somebody's code said."""

WORDS: Final = (TYPE, "bytes")
"""Fields whose value is shown without quotes,"""
WHOLE: Final = (*WORDS, "digest", "signature", "key")
"""and those of which a part means nothing."""


def lines(divergence: Divergence, page: Page) -> list[str]:
    """The report of one divergence, as wide as the page."""
    place = [f"position {divergence.position}", *([f"turn {divergence.turn}"] if divergence.turn else [])]
    place += [f"call {divergence.call_id}"] if divergence.call_id is not None else []
    told = [("cause", divergence.cause), ("nearest", divergence.nearest.words if divergence.nearest is not None else ""), ("help", divergence.hint)]
    return [
        *_told("at", ", ".join([*place, divergence.field]), page),
        *_values(divergence, page),
        *(line for label, words in told if words for line in _told(label, words, page)),
    ]


def _told(label: str, words: str, page: Page) -> list[str]:
    """A sentence behind its label, wrapped under itself."""
    first, *rest = page.paragraphs(one_line(words, TOLD_MAX), INDENT + " " * LABEL)
    return [INDENT + page.paint(padded(label, LABEL), "dim") + first.lstrip(), *rest]


# -- both values


class _Value(NamedTuple):
    """A value in one line: what it shares with the other at both ends, and what is its own."""

    label: str
    colour: str
    before: str
    own: str
    behind: str

    @property
    def width(self) -> int:
        return LABEL + width_of(self.before + self.own + self.behind)

    def shown(self, page: Page) -> str:
        return page.paint(padded(self.label, LABEL), "dim") + self.before + page.paint(self.own, self.colour) + self.behind

    @property
    def mark(self) -> str:
        """What stands below it; nothing where all of it is another."""
        return " " * (LABEL + width_of(self.before)) + "^" * max(1, width_of(self.own)) if self.before.strip('"…') or self.behind.strip('"') else ""


def _values(divergence: Divergence, page: Page) -> list[str]:
    """Side by side where there is room, else one below the other."""
    field, room = divergence.field.rpartition(".")[2], page.room(len(INDENT) + LABEL)
    left, right = (_text(value, plain=field in WORDS) for value in (divergence.recorded, divergence.derived))
    old, new = (("", cut(left, room - 1), ""), ("", cut(right, room - 1), "")) if field in WHOLE else _parted(left, right, room)
    recorded, derived = _Value("recorded", "red", *old), _Value("derived", "green", *new)
    gap = " " * 4
    if len(INDENT) + recorded.width + len(gap) + derived.width <= page.room(0, 80):
        marks = padded(recorded.mark, recorded.width) + gap + derived.mark
        return [f"{INDENT}{recorded.shown(page)}{gap}{derived.shown(page)}", *([INDENT + marks.rstrip()] if marks.strip() else [])]
    return [INDENT + line for value in (recorded, derived) for line in (value.shown(page), value.mark) if line]


def _text(value: Any, *, plain: bool) -> str:
    """A value on one line, exactly: nothing of it is folded away that might be what differs."""
    if value is None:
        return "nothing"
    if isinstance(value, str) and (plain or value == repr(ABSENT) or _is_beginning(value)):
        return visible(value).replace("\n", "\\n").replace("\t", "\\t")
    return visible(compact(value))


def _is_beginning(text: str) -> bool:
    """Whether it is what a divergence shows of a long object or list: JSON already, without its end."""
    return len(text) > SHOWN_MAX and text.startswith(("{", "[")) and text.endswith("...")


def _parted(left: str, right: str, room: int) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """Both texts in three: what they begin with alike, what differs, what they end with alike; cut to the room around what differs."""
    shared = min(len(left), len(right))
    before = next((n for n in range(shared) if left[n] != right[n]), shared)
    behind = next((n for n in range(shared - before) if left[-1 - n] != right[-1 - n]), shared - before)
    start = max(0, before - room // 3) if max(width_of(left), width_of(right)) > room else 0
    first, second = (_fitted(text, start, before, len(text) - behind, room) for text in (left, right))
    return first, second


def _fitted(text: str, start: int, before: int, end: int, room: int) -> tuple[str, str, str]:
    head = ("…" if start else "") + text[start:before]
    own = cut(text[before:end], max(8, room - width_of(head) - 1)) if text[before:end] else ""
    left = room - width_of(head + own)
    return head, own, cut(text[end:], left - 1) if left > 1 and not own.endswith("…") else ""
