"""What a move is made from: the run as it is, its tools, and hypothesis, which is asked for the rest.

Apart from the moves, because what comes of effects and what humans do are made from the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from refold.events.words import CallId
from refold.projections.run import Call, Run
from refold.testing.strategies import texts
from refold.testing.toolbox import KIT, Toolbox

T = TypeVar("T")


class Draw(Protocol):
    """How hypothesis is asked for a value."""

    def __call__(self, strategy: st.SearchStrategy[T], /) -> T: ...


@dataclass(frozen=True)
class Choice:
    """What a move is made from. `started` are the calls that were ever started, which a run does not remember."""

    draw: Draw
    run: Run
    started: Sequence[CallId]
    toolbox: Toolbox = KIT


def calls_in(run: Run, phases: Sequence[str], approval: bool | None = None) -> list[Call]:
    """The calls of the open turn in one of these phases; if it is given, only those that do or do not need an approval."""
    return [call for call in run.calls if call.phase in phases and (approval is None or approval == (call.approval is not None))]


def text_of(it: Choice) -> str:
    """Any text that can be stored."""
    return whole(it.draw(texts()))


def whole(text: str) -> str:
    """A text without halves of surrogate pairs, which no store takes."""
    return text.encode("utf-8", "replace").decode("utf-8")
