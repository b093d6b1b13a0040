"""The machine in the DOT language, for graph programs; written by hand, so that none is needed to write it.

Rows that stay in a state are lines of its node, the others are one edge each. An input fact is drawn solid, a derived one dashed.
"""

from refold.diagrams.picture import Picture, label
from refold.events.words import STATES, State

_FONT = 'fontname="monospace"'
_BREAK = "\\n"


def dot(picture: Picture) -> str:
    lines = [
        "digraph machine {",
        f'  graph [label="{_quoted(picture.title)}\\nsolid: input fact, dashed: derived fact; lines in a state stay there", rankdir=TB, nodesep=0.6, ranksep=0.8, {_FONT}];',
        f"  node [shape=box, style=rounded, margin=0.15, {_FONT}];",
        f"  edge [fontsize=11, {_FONT}];",
        '  initial [shape=point, width=0.2, label=""];',
        *[_node(picture, state) for state in STATES],
        f"  initial -> {picture.initial};",
    ]
    for (source, target), rows in picture.arrows.items():
        for row in rows:
            style = "solid" if row.kind == "input" else "dashed"
            width = ", penwidth=2.5" if picture.visited([row]) else ""
            lines.append(f'  {source} -> {target} [label="{label(picture, row, _BREAK)}", style={style}{width}];')
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _node(picture: Picture, state: State) -> str:
    inside = "".join(f"{label(picture, row)}\\l" for row in picture.internal(state))
    final = ", peripheries=2" if state in picture.finals else ""
    current = ', penwidth=4, color="#9a6700"' if state == picture.current else ""
    return f'  {state} [label="{state}{" (current)" if current else ""}\\n\\n{inside}"{final}{current}];'
