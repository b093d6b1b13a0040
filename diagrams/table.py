"""The machine as a table of states and events: what every fact does in every state, on one page.

A drawing shows the loop; this shows the gaps. It is the only format in which an illegal move can be seen: its cell is empty.
"""

from collections.abc import Callable

from refold.diagrams.picture import Picture, limiting, required
from refold.events.words import STATES
from refold.fsm.machine import Row

_HEAD = """\
# States and events

Generated from the table in `fsm/machine.py`; do not edit.

A cell names the state that the fact leads to, `self` where the run stays where it is; an empty cell is an illegal move.
An input fact is told by the world, a derived fact is concluded by the machine.
What a row *requires* is about structure: it is asked when deciding, and asserted when a log is folded or audited.
What *limits* a row is about budget and policy: it is asked when deciding alone, so that old logs fold after limits change.
"""


def table(picture: Picture) -> str:
    rows: dict[str, list[Row]] = {}
    for row in picture.rows:
        rows.setdefault(row.trigger, []).append(row)
    heads = ["event", "kind", *(_head(picture, state) for state in STATES), "requires", "limits"]
    lines = [_line(heads), _line(["---"] * len(heads)), *(_line(_cells(picture, of_trigger)) for of_trigger in rows.values())]
    return _HEAD + (f"\nHow often, and where: {picture.title}.\n" if picture.visits is not None else "") + "\n" + "\n".join(lines) + "\n"


def _head(picture: Picture, state: str) -> str:
    marks = ["initial"] * (state == picture.initial) + ["final"] * (state in picture.finals) + ["current"] * (state == picture.current)
    return f"{state} ({', '.join(marks)})" if marks else state


def _cells(picture: Picture, rows: list[Row]) -> list[str]:
    targets = {row.source: _target(picture, row) for row in rows}
    kinds = sorted({row.kind for row in rows})
    return [f"`{rows[0].trigger}`", ", ".join(kinds), *(targets.get(state, "") for state in STATES), _per_source(rows, required), _per_source(rows, limiting)]


def _target(picture: Picture, row: Row) -> str:
    count = picture.visited([row])
    return ("self" if row.destination == row.source else f"**{row.destination}**") + (f" {count}x" if count else "")


def _per_source(rows: list[Row], names: Callable[[Row], list[str]]) -> str:
    """The guards of a fact; where they differ by state, each with the states it is for."""
    sources: dict[str, list[str]] = {}
    for row in rows:
        sources.setdefault(", ".join(f"`{name}`" for name in names(row)), []).append(row.source)
    if len(sources) == 1:
        return next(iter(sources))
    return "<br>".join(f"from {', '.join(states)}: {guards or 'none'}" for guards, states in sources.items())


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
