"""`diagram`: the machine as a picture on standard output, and the way of runs through it."""

import sys
from collections import Counter
from typing import Final

from refold.diagrams.render import FORMATS, render
from refold.events.codec import read_line
from refold.events.lineage import history
from refold.events.words import RunId
from refold.fsm.machine import EDGES, Illegal
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, Refused
from refold.runtime.cli.render import STATUS, Page, cut, one_line
from refold.runtime.cli.stores import opened
from refold.runtime.journal import NOT_FOLLOWED
from refold.runtime.store import Store

TITLE: Final = 120
"""Columns of the line that says which run is drawn."""


def diagram(options: o.Diagram) -> int:
    """Draw the machine; with runs, count how often each took each edge and mark where the last one stands."""
    if options.format not in FORMATS:
        raise Refused(f"--format {options.format}: it is one of {', '.join(FORMATS)}")
    visits: Counter[tuple[str, str, str]] = Counter()
    current: str | None = None
    title = ""
    if options.runs:
        with opened(options) as store:
            for name in options.runs:
                run_id = store.find(name)
                for row in history(store.log, run_id):
                    line = read_line(row.state)
                    edge = EDGES[line.source].get(line.type)
                    if edge is None or edge.target != line.target:
                        raise Illegal(line.source, line.type, f"the record says {line.source} -> {line.target}")
                    visits[line.source, line.type, line.target] += 1
                    current = line.target
                title = _title(store, run_id)
    if len(options.runs) > 1:
        current, title = None, f"{len(options.runs)} runs"  # several runs stand in several places
    drawn = render(options.format, visits=visits if options.runs else None, current=current, title=title)
    if options.json:
        output.document({"format": options.format, "drawing": drawn})
    else:
        output.line(drawn)
        if options.format == "mermaid" and Page().width is not None:
            typed = " ".join(("refold diagram", *options.runs, "--format svg > run.svg"))
            output.note("\n".join(Page(sys.stderr).paragraphs(f"this is Mermaid, for pages that draw it; for a picture: {typed}")))
    return COMPLETED


def _title(store: Store, run_id: RunId) -> str:
    """Which run is drawn, on one line; one that cannot be followed is drawn all the same."""
    try:
        run = store.journal(run_id).run
    except NOT_FOLLOWED:
        return f"run {run_id}"
    return cut(one_line(f"run {run.id} · {STATUS[run.status][0]} · {run.goal}"), TITLE)
