"""Every picture of the machine, by the name of its format; run as a module, it writes the committed ones into this folder.

Apart from the formats, so that a new one is a function and a line here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from refold.diagrams.dot import dot
from refold.diagrams.mermaid import mermaid
from refold.diagrams.picture import EdgeKey, Picture, picture
from refold.diagrams.svg import svg
from refold.diagrams.table import table

FORMATS: Final[Mapping[str, Callable[[Picture], str]]] = {"mermaid": mermaid, "dot": dot, "svg": svg, "table": table}

FILES: Final[Mapping[str, str]] = {"machine.mmd": "mermaid", "machine.dot": "dot", "machine.svg": "svg", "events.md": "table"}
"""The committed drawings and their formats."""


def render(format: str, *, visits: Mapping[EdgeKey, int] | None = None, current: str | None = None, title: str = "") -> str:  # noqa: A002 - the command line calls it so
    """The machine as text, the same bytes each time. A run is drawn over it: `visits` by (source, trigger, target), `current` its state, `title` which run it is.

    Raises ValueError for an unknown format, and for visits or a state that the machine does not have.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; the formats are {', '.join(FORMATS)}")
    return FORMATS[format](picture(visits, current, title))


def main() -> None:
    for name, of_format in FILES.items():
        path = Path(__file__).with_name(name)
        path.write_text(render(of_format), encoding="utf-8", newline="\n")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
