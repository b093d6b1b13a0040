"""The machine as a Mermaid state diagram, for pages that draw it themselves (a README, a wiki).

Rows that stay in a state are lines inside it, as UML writes internal transitions: as arrows they would bury the loop.
"""

from refold.diagrams.picture import Picture, label
from refold.events.words import STATES


def mermaid(picture: Picture) -> str:
    lines = [
        "stateDiagram-v2",
        f"    accTitle: {picture.title}",
        "    accDescr: Every row of the table. A line inside a state is a fact that stays there. In brackets what it requires, after within what limits it.",
        f"    [*] --> {picture.initial}",
    ]
    for state in STATES:
        lines.append(f"    {state} : {state}")  # The first line is the title.
        lines += [f"    {state} : {label(picture, row)}" for row in picture.internal(state)]
    for (source, target), rows in picture.arrows.items():
        lines += [f"    {source} --> {target} : {label(picture, row)}" for row in rows]
    lines += [f"    {state} --> [*]" for state in picture.finals]
    if picture.current is not None:
        lines.append("    classDef current fill:#fff3c4,color:#1f2328,stroke:#9a6700,stroke-width:4px")
        lines.append(f"    class {picture.current} current")
    return "\n".join(lines) + "\n"
