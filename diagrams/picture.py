"""What every drawing shows: the rows of the table, where a run begins and ends, and what one run did over them.

Apart from the formats, so that each of them writes the same facts and none reads the machine on its own.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from refold.events.words import STATES, State
from refold.fsm.machine import MACHINE, TABLE, Row

EdgeKey = tuple[str, str, str]
"""Source, trigger, target."""


class Picture(NamedTuple):
    """The table, and over it the visits of each edge and the current state, where a run is drawn; `title` says which."""

    rows: tuple[Row, ...]
    initial: State
    visits: Mapping[EdgeKey, int] | None = None
    current: State | None = None
    title: str = "The machine of a run"

    @property
    def finals(self) -> tuple[State, ...]:
        """The states that no row leaves."""
        left = {row.source for row in self.rows if row.destination != row.source}
        return tuple(state for state in STATES if state not in left)

    @property
    def arrows(self) -> dict[tuple[State, State], list[Row]]:
        """The rows that move, by the two states they join; no row is lost where several join the same two."""
        joined: dict[tuple[State, State], list[Row]] = {}
        for row in self.rows:
            if row.destination != row.source:
                joined.setdefault((row.source, row.destination), []).append(row)
        return joined

    def internal(self, state: State) -> list[Row]:
        """The rows that stay in a state: first its own, then those that every live state has."""
        rows = [row for row in self.rows if row.source == row.destination == state]
        everywhere = self.everywhere
        return [row for row in rows if row.trigger not in everywhere] + [row for row in rows if row.trigger in everywhere]

    @property
    def everywhere(self) -> frozenset[str]:
        """The triggers that stay in place in every live state."""
        staying = [{row.trigger for row in self.rows if row.source == row.destination == state} for state in STATES if state not in self.finals]
        return frozenset(set.intersection(*staying))

    def visited(self, rows: Iterable[Row]) -> int:
        """How often a run took these edges; 0 where no run is drawn."""
        visits = self.visits or {}
        return sum(visits.get((row.source, row.trigger, row.destination), 0) for row in rows)

    def passed(self, state: State) -> bool:
        """Whether a run that is drawn was in this state."""
        return bool(self.visited(row for row in self.rows if state in (row.source, row.destination)))


def picture(visits: Mapping[EdgeKey, int] | None, current: str | None, title: str = "") -> Picture:
    """The machine, with what a run did and, on one line, which run that is. Raises ValueError where that names an edge or a state that the machine does not have."""
    edges = {(row.source, row.trigger, row.destination) for row in TABLE}
    for key, count in (visits or {}).items():
        if key not in edges:
            source, trigger, target = key
            raise ValueError(f"the machine has no edge {source} -> {target} on {trigger}")
        if count < 0:
            raise ValueError(f"{key[1]} from {key[0]} cannot be visited {count} times")
    here = next((state for state in STATES if state == current), None)
    if here is None and current is not None:
        raise ValueError(f"{current} is no state; the states are {', '.join(STATES)}")
    initial = next(state for state in STATES if state == MACHINE.initial)
    made = Picture(TABLE, initial, visits, here)
    return made._replace(title=" ".join(title.split())) if title else made


def required(row: Row) -> list[str]:
    return [requires.__name__ for requires in row.requires]


def limiting(row: Row) -> list[str]:
    return [limit.__name__ for limit in row.limits]


def guards(row: Row) -> list[str]:
    """`[begun, next_number]` is what the row requires, `[within turns, cost]` what limits it."""
    requires, limits = ", ".join(required(row)), ", ".join(limiting(row))
    return [f"[{requires}]"] * bool(requires) + [f"[within {limits}]"] * bool(limits)


def label(picture: Picture, row: Row, between: str = " ") -> str:
    """One row: `3x model_failed [open_request]`, the number only where a run took it."""
    count = picture.visited([row])
    return between.join([f"{count}x {row.trigger}" if count else row.trigger, *guards(row)])
