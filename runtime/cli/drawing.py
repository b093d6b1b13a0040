"""`diagram`: the machine as a picture on standard output, and the way of runs through it."""

from collections import Counter

from refold.diagrams.render import FORMATS, render
from refold.events.codec import read_line
from refold.events.lineage import history
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, Refused
from refold.runtime.cli.stores import opened


def diagram(options: o.Diagram) -> int:
    """Draw the machine; with runs, count how often each took each edge and mark where the last one stands."""
    if options.format not in FORMATS:
        raise Refused(f"--format {options.format}: it is one of {', '.join(FORMATS)}")
    visits: Counter[tuple[str, str, str]] = Counter()
    current: str | None = None
    if options.runs:
        with opened(options) as store:
            for name in options.runs:
                for row in history(store.log, store.find(name)):
                    line = read_line(row.state)
                    visits[line.source, line.type, line.target] += 1
                    current = line.target
    if len(options.runs) > 1:
        current = None  # several runs stand in several places
    drawn = render(options.format, visits=visits if options.runs else None, current=current)
    if options.json:
        output.document({"format": options.format, "drawing": drawn})
    else:
        output.line(drawn)
    return COMPLETED
