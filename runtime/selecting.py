"""Context builders: which of the older turns the next request shows. One of ours, which goes by common words, and those of users.

A consult like the others: it reads contents, so it is asked by the driver, and what it says is an input fact. One that raises, or gives anything but turns that
it may choose among, has chosen nothing, and the request shows everything.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from refold.events import facts as f
from refold.projections import context
from refold.projections.excerpts import text_of
from refold.projections.messages import Message
from refold.projections.run import Run
from refold.projections.transcript import Transcript
from refold.runtime import summaries
from refold.runtime.consults import Builder, describe

INSTEAD_MAX: Final = 4_096
"""Bytes of what stands where turns are left out."""


def choice(run: Run, transcript: Transcript, choosable: Sequence[int], name: str, builder: Builder | None) -> f.ContextChosen:
    """What a builder chose. `builder` is None where an agent names one that it does not have."""
    turns = {position: _messages(run, transcript, position) for position in choosable}
    try:
        if builder is None:
            raise LookupError(f"this agent has no context builder {name!r}")
        given = builder(run, turns)
        left_out = tuple(sorted(set(given)))
        if strange := [position for position in left_out if position not in turns]:
            raise ValueError(f"it leaves out {strange[0]!r}, which is no turn to choose")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - user code: whatever it raises, SystemExit too, the request is made
        return f.ContextChosen(builder=name, error=describe(error))
    return f.ContextChosen(builder=name, left_out=left_out, instead=_instead(run, transcript, left_out))


def _messages(run: Run, transcript: Transcript, position: int) -> tuple[Message, ...]:
    places = range(context.place_behind(run, position - 1), context.place_behind(run, position))
    return tuple(message for place in places for message in transcript.as_shown(place))


def _instead(run: Run, transcript: Transcript, left_out: tuple[int, ...]) -> str:
    """What stands in place of turns: the notes that were kept of them, since their results are gone."""
    if not left_out:
        return ""
    # A note belongs to the turn whose results were shown next.
    shown_at = {kept: context.place_behind(run, kept.position) for kept in transcript.notes}
    notes = [kept.note for kept, place in shown_at.items() if place < len(run.entries) and run.entries[place].position in left_out]
    return summaries.in_place_of(len(left_out), notes, INSTEAD_MAX)


class Relevant:
    """Shows those `most` of the older turns that have most in common with the goal, what the user just said, and what was decided last; rare words count more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._words: dict[tuple[str, int], frozenset[str]] = {}

    def __call__(self, run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
        wanted = words_of([run.goal, *run.unheard, *(_text(message) for message in run.fresh if message.role != "tool")])
        words = {position: self._known(run, position, messages) for position, messages in turns.items()}
        common = Counter(word for each in words.values() for word in each & wanted)
        weights = {word: math.log(1 + len(turns) / count) for word, count in common.items()}
        best = sorted(turns, key=lambda position: (sum(weights[word] for word in sorted(words[position] & wanted)), position), reverse=True)
        return best[self.most :]

    def _known(self, run: Run, position: int, messages: Sequence[Message]) -> frozenset[str]:
        key = (run.id, position)
        if key not in self._words:
            self._words[key] = words_of(map(_text, messages))
        return self._words[key]


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The words of texts, for comparing: of three letters and more, without case."""
    return frozenset(word for text in texts for word in _WORD.findall(text.casefold()))


_WORD: Final = re.compile(r"\w{3,}")


def _text(message: Message) -> str:
    """Everything that a message says."""
    calls = " ".join(f"{call.name} {call.arguments_text}" for call in message.calls)
    return f"{message.text} {calls}" if message.role != "tool" else f"{message.name} {text_of(message.content)}"
