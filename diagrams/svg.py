"""The machine as an SVG picture, drawn without any program beside Python; the places are those of `layout`.

It brings its own background and both colour schemes, no fonts and no scripts, and tells kinds apart by shape as well as by colour.
"""

from typing import Final
from xml.sax.saxutils import escape

from refold.diagrams.layout import HEAD, LINE, MARGIN, Arrow, Box, Entry, Layout, Line, Point, arrange, text_width
from refold.diagrams.picture import Picture

_LEGEND: Final = 96
"""Pixels of the strip below the boxes."""

_NAMED: Final = 'role="img" aria-labelledby="refold-machine-title refold-machine-desc"'

_STYLE: Final = """\
.canvas{fill:#ffffff}.box{fill:#f6f8fa;stroke:#57606a;stroke-width:1.5}.final{fill:none;stroke:#57606a;stroke-width:1.5}
.rule{stroke:#c4cad1;stroke-width:1}.edge{fill:none;stroke:#57606a;stroke-width:1.75;stroke-linejoin:round}.tip{fill:#57606a}
.visited{stroke:#9a6700;stroke-width:3.5}.tip.visited{fill:#9a6700;stroke:none}.box.visited{stroke-width:2}.here{stroke:#9a6700;stroke-width:4}
text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;fill:#1f2328}
.title,.state{font-weight:bold}.note,.requires{fill:#4b535c}.input{fill:#0550ae}.derived{fill:#8a1f8f}.limits{fill:#953800}.count,.current{fill:#7d4e00;font-weight:bold}
.ring{fill:none;stroke:#0550ae;stroke-width:1.75}.diamond{fill:#8a1f8f}
@media (prefers-color-scheme:dark){.canvas{fill:#0d1117}.box{fill:#161b22;stroke:#8b949e}.final{stroke:#8b949e}.rule{stroke:#3d444d}.edge{stroke:#8b949e}
.tip{fill:#8b949e}.visited,.here{stroke:#e3b341}.tip.visited{fill:#e3b341}text{fill:#e6edf3}.note,.requires{fill:#b1bac4}.input{fill:#79c0ff}.derived{fill:#e2a5f0}.limits{fill:#ffa657}
.count,.current{fill:#e3b341}.ring{stroke:#79c0ff}.diamond{fill:#e2a5f0}}
"""


def svg(picture: Picture) -> str:
    layout = arrange(picture)
    width, height = layout.width, layout.height + _LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" {_NAMED}>',
        f'<title id="refold-machine-title">{escape(picture.title)}</title>',
        f'<desc id="refold-machine-desc">{escape(_description(picture))}</desc>',
        f"<style>\n{_STYLE}</style>",
        f'<rect class="canvas" width="{width}" height="{height}" rx="10"/>',
        *_heading(picture),
        *(part for box in layout.boxes for part in _box(picture, box)),
        *(part for arrow in layout.arrows for part in _arrow(picture, arrow)),
        *_legend(picture, layout),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _description(picture: Picture) -> str:
    """The loop in words, for those who cannot see it: the arrows one after another, and how many facts stay in each state."""
    arrows = "; ".join(f"{source} to {target} on {', '.join(row.trigger for row in rows)}" for (source, target), rows in picture.arrows.items())
    here = f" The run is in {picture.current}." if picture.current else ""
    return f"A run begins in {picture.initial} and ends in {' or '.join(picture.finals)}. It moves from {arrows}. All other facts stay in their state.{here}"


def _heading(picture: Picture) -> list[str]:
    moving = sum(len(rows) for rows in picture.arrows.values())
    staying = len(picture.rows) - moving
    return [
        _text(MARGIN, 38, "title", picture.title, 18),
        _text(
            MARGIN, 60, "note", f"Every fact of the log is one of {len(picture.rows)} rows: {moving} move the run along an arrow, {staying} stay in a state."
        ),
    ]


def _box(picture: Picture, box: Box) -> list[str]:
    here = " here" if box.state == picture.current else " visited" if picture.passed(box.state) else ""
    parts = [f'<rect class="box{here}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8"/>']
    if box.state in picture.finals:
        parts.append(f'<rect class="final" x="{box.x + 4}" y="{box.y + 4}" width="{box.width - 8}" height="{box.height - 8}" rx="5"/>')
    parts.append(_text(box.x + 14, box.y + 26, "state", box.state, 15))
    if box.state == picture.current:
        parts.append(_text(box.right - 14 - text_width("current"), box.y + 26, "current", "current"))
    if box.rule is not None:
        parts.append(f'<path class="rule" d="M{box.x + 14} {box.rule}H{box.right - 14}"/>')
    middle = box.y + HEAD // 2
    if box.state == picture.initial:
        parts += [f'<circle class="tip" cx="{box.x - 38}" cy="{middle}" r="7"/>', *_line(((box.x - 31, middle), (box.x, middle)), "")]
    if box.state in picture.finals:
        parts += [f'<circle class="edge" cx="{box.x - 38}" cy="{middle}" r="9"/>', f'<circle class="tip" cx="{box.x - 38}" cy="{middle}" r="5"/>']
        parts += _line(((box.x, middle), (box.x - 29, middle)), "")
    return [*parts, *(_entry(entry) for entry in box.entries)]


def _arrow(picture: Picture, arrow: Arrow) -> list[str]:
    visited = " visited" if picture.visited([entry.row for entry in arrow.entries]) else ""
    return [*_line(arrow.points, visited), *(_entry(entry) for entry in arrow.entries)]


def _line(points: tuple[Point, ...], visited: str) -> list[str]:
    """A line and its head; the line ends inside the head, so that a thick one does not stick out of the tip."""
    (from_x, from_y), (x, y) = points[-2:]
    along_x, along_y = (x > from_x) - (x < from_x), (y > from_y) - (y < from_y)
    back_x, back_y = x - 10 * along_x, y - 10 * along_y
    corners = " ".join(f"{a} {b}" for a, b in (*points[:-1], (back_x, back_y)))
    head = f"{x},{y} {back_x + 5 * along_y},{back_y + 5 * along_x} {back_x - 5 * along_y},{back_y - 5 * along_x}"
    return [f'<path class="edge{visited}" d="M{corners}"/>', f'<polygon class="tip{visited}" points="{head}"/>']


def _entry(entry: Entry) -> str:
    """One row of the table as a group: its mark and its texts."""
    return f'<g class="fact">{_mark(entry.row.kind, entry.mark)}{"".join(map(_words, entry.lines))}</g>'


def _mark(kind: str, at: Point) -> str:
    x, y = at
    if kind == "input":
        return f'<circle class="ring" cx="{x}" cy="{y}" r="3.5"/>'
    return f'<path class="diamond" d="M{x} {y - 5}L{x + 5} {y}L{x} {y + 5}L{x - 5} {y}Z"/>'


def _words(line: Line) -> str:
    return _text(line.x, line.y, line.style, line.words)


def _text(x: int, y: int, style: str, words: str, size: int = 12) -> str:
    return f'<text class="{style}" x="{x}" y="{y}" font-size="{size}">{escape(words)}</text>'


def _legend(picture: Picture, layout: Layout) -> list[str]:
    """What the marks, brackets and numbers mean, side by side below the boxes."""
    notes = [
        ("input", "input fact", "told by the world:", "a person, a model, a tool"),
        ("derived", "derived fact", "concluded by the machine", "from the facts before it"),
        ("requires", "[required]", "structure: asked when deciding,", "asserted when folding and auditing"),
        ("limits", "[within limits]", "budget and policy: asked when", "deciding, never of an old log"),
        ("rule", "below a line", "facts that every live", "state takes alike"),
    ]
    if picture.visits is not None:
        notes.append(("count", "3x", "how often the edge", "was taken"))
    parts, x, y = [], MARGIN, layout.height + 40
    for style, words, *sentences in notes:
        if style in {"input", "derived"}:
            parts.append(_mark(style, (x + 6, y - 4)))
            x += 16
        parts.append(_text(x, y, "note" if style == "rule" else style, words))
        parts += [_text(x, y + (place + 1) * LINE, "note", sentence) for place, sentence in enumerate(sentences)]
        x += max(text_width(sentence) for sentence in (words, *sentences)) + 44
    return [f'<g class="legend">{"".join(parts)}</g>']
