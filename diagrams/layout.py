"""Where everything of the SVG lies: six fixed places, sized by what stands in them, and one route for each pair of states.

Apart from the markup, so that a test can ask for the rectangles. Whole numbers only: the same bytes on every machine.
"""

from typing import Final, NamedTuple

from refold.diagrams.picture import Picture, limiting, required
from refold.events.words import State
from refold.fsm.machine import Row

LINE: Final = 17
"""Pixels from one line of facts to the next; they are written in 12 pixels."""
HEAD: Final = 40
PAD: Final = 14
TOP: Final = 84
MARGIN: Final = 60
WRAP: Final = 27
"""Characters of a line of guards, unless one name alone is longer."""

Point = tuple[int, int]
Pair = tuple[State, State]


class Line(NamedTuple):
    """A piece of text with its baseline."""

    x: int
    y: int
    style: str
    words: str


class Entry(NamedTuple):
    """One row of the table, drawn: the mark of its kind and its lines."""

    row: Row
    mark: Point
    lines: tuple[Line, ...]


class Box(NamedTuple):
    """A state, with the rows that stay in it; `rule` is the line between its own and those of every live state."""

    state: State
    x: int
    y: int
    width: int
    height: int
    entries: tuple[Entry, ...]
    rule: int | None

    @property
    def right(self) -> int:
        return self.x + self.width

    @property
    def bottom(self) -> int:
        return self.y + self.height


class Arrow(NamedTuple):
    """The rows from one state to another: one line, a label that lists them all."""

    pair: Pair
    points: tuple[Point, ...]
    entries: tuple[Entry, ...]


class Layout(NamedTuple):
    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def arrange(picture: Picture) -> Layout:
    """Three columns: idle above done, the model above the injected results, collecting above executing. The loop runs clockwise."""
    arrows = picture.arrows
    count = max((len(_count(picture, row)) for row in picture.rows), default=0)
    labels = {pair: _Label(picture, rows, count) for pair, rows in arrows.items()}
    boxes = _boxes(picture, labels, count)
    routes = _routes(boxes, labels)
    if missing := arrows.keys() - routes.keys():
        raise ValueError(f"no route is laid from {' and from '.join(f'{source} to {target}' for source, target in sorted(missing))}")
    drawn = tuple(Arrow(pair, points, labels[pair].at(*corner)) for pair, (points, corner) in routes.items() if pair in arrows)
    width = max(box.right for box in boxes.values()) + MARGIN
    return Layout(width, max(box.bottom for box in boxes.values()), tuple(boxes.values()), drawn)


def text_width(words: str) -> int:
    """Of 12 pixel monospace, a little more than the widest of the usual fonts takes (0.602 of its size)."""
    return (len(words) * 74 + 9) // 10


class _Label:
    """The rows of an arrow as a list that can be put anywhere: each trigger with its guards below it."""

    def __init__(self, picture: Picture, rows: list[Row], count: int) -> None:
        self._picture, self._rows, self._count = picture, rows, count
        self.height = sum((1 + len(_guards(row))) * LINE for row in rows)
        self.width = max(line.x + text_width(line.words) for entry in self.at(0, 0) for line in entry.lines)

    def at(self, x: int, y: int) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        for row in self._rows:
            entry = _entry(self._picture, row, (x, y), self._count, None)
            entries.append(entry)
            y += (1 + len(_guards(row))) * LINE
        return tuple(entries)


def _boxes(picture: Picture, labels: dict[Pair, _Label], count: int) -> dict[State, Box]:
    def box(state: State, x: int, y: int, width: int) -> Box:
        return _box(picture, state, (x, y), width, count)

    def gap(*pairs: Pair, least: int = 0) -> int:
        return max((labels[pair].height for pair in pairs if pair in labels), default=0) + least

    def aisle(*pairs: Pair) -> int:
        return max((labels[pair].width for pair in pairs if pair in labels), default=0) + 56

    def wide(*states: State) -> int:
        return max(_width(picture, state, count) for state in states)

    left, middle, right = wide("idle", "done"), wide("streaming_model", "injecting_tool_results"), wide("collecting_tool_requests", "executing_tools")
    middle_x = MARGIN + left + aisle(("idle", "streaming_model"), ("streaming_model", "done"), ("injecting_tool_results", "done"))
    right_x = middle_x + middle + aisle(("streaming_model", "collecting_tool_requests"), ("executing_tools", "injecting_tool_results"))
    idle = box("idle", MARGIN, TOP, left)
    streaming = box("streaming_model", middle_x, TOP, middle)
    collecting = box("collecting_tool_requests", right_x, TOP, right)
    between = gap(("injecting_tool_results", "streaming_model"), ("streaming_model", "injecting_tool_results"), least=44)
    injecting = box("injecting_tool_results", middle_x, streaming.bottom + between, middle)
    executing = box("executing_tools", right_x, collecting.bottom + gap(("collecting_tool_requests", "executing_tools"), least=44), right)
    done = box("done", MARGIN, max(injecting.y, idle.bottom + gap(("idle", "done"), least=44)), left)
    return {each.state: each for each in (idle, streaming, collecting, executing, injecting, done)}


def _routes(boxes: dict[State, Box], labels: dict[Pair, _Label]) -> dict[Pair, tuple[tuple[Point, ...], Point]]:
    """For each pair of states the corners of its line, and where its label begins."""
    idle, streaming, collecting = boxes["idle"], boxes["streaming_model"], boxes["collecting_tool_requests"]
    executing, injecting, done = boxes["executing_tools"], boxes["injecting_tool_results"], boxes["done"]

    def across(start: Box, end: Box, y: int) -> tuple[tuple[Point, ...], Point]:
        begin, tip = (start.right, end.x) if start.x < end.x else (start.x, end.right)
        return ((begin, y), (tip, y)), (min(begin, tip) + 24, y + 8)

    def down(start: Box, end: Box, x: int) -> tuple[tuple[Point, ...], Point]:
        begin, tip, middle = (start.bottom, end.y, end.y) if start.y < end.y else (start.y, end.bottom, start.y)
        label = labels.get((start.state, end.state))
        space = abs(tip - begin) - (label.height if label else 0)
        return ((x, begin), (x, tip)), (x + 12, middle - abs(tip - begin) + space // 2)

    first = labels.get(("idle", "streaming_model"))
    leaves = streaming.y + HEAD // 2 + (first.height if first else 0) + 36
    lane = done.right + 28
    up = labels.get(("injecting_tool_results", "streaming_model"))
    return {
        ("idle", "streaming_model"): across(idle, streaming, idle.y + HEAD // 2),
        ("streaming_model", "collecting_tool_requests"): across(streaming, collecting, streaming.y + HEAD // 2),
        ("collecting_tool_requests", "executing_tools"): down(collecting, executing, collecting.x + 40),
        ("executing_tools", "injecting_tool_results"): across(executing, injecting, max(executing.y, injecting.y) + HEAD // 2),
        ("injecting_tool_results", "streaming_model"): down(injecting, streaming, streaming.x + 20),
        ("streaming_model", "injecting_tool_results"): down(streaming, injecting, streaming.x + 48 + (up.width if up else 0)),
        ("idle", "done"): down(idle, done, idle.x + 40),
        ("streaming_model", "done"): (
            ((streaming.x, leaves), (lane, leaves), (lane, done.y + HEAD // 2), (done.right, done.y + HEAD // 2)),
            (lane + 12, leaves + 12),
        ),
        ("injecting_tool_results", "done"): across(injecting, done, max(injecting.y, done.y) + HEAD + 20),
    }


def _box(picture: Picture, state: State, corner: Point, width: int, count: int) -> Box:
    x, top = corner
    rows, guards_x, rule = picture.internal(state), x + _guards_x(picture, state, count), None
    y, entries = top + HEAD, list[Entry]()
    for row in rows:
        if rule is None and entries and row.trigger in picture.everywhere:
            rule = y + 7
            y += 14
        entries.append(_entry(picture, row, (x + PAD, y), count, guards_x))
        y += max(1, len(_guards(row))) * LINE
    return Box(state, x, top, width, y - top + PAD, tuple(entries), rule)


def _guards_x(picture: Picture, state: State, count: int) -> int:
    longest = max(len(row.trigger) for row in picture.internal(state))
    return PAD + _indent(count) + text_width("m" * (longest + 1)) + 6


def _width(picture: Picture, state: State, count: int) -> int:
    guards = [line for row in picture.internal(state) for _, line in _guards(row)]
    return _guards_x(picture, state, count) + max(map(text_width, guards), default=0) + PAD


def _indent(count: int) -> int:
    """Room for the visits, where a run is drawn, and for the mark."""
    return (text_width("0" * count) + 8 if count else 0) + 16


def _entry(picture: Picture, row: Row, corner: Point, count: int, guards_x: int | None) -> Entry:
    """A row at a corner: its guards from `guards_x` on beside the trigger, or below it where that is None."""
    x, y = corner
    base, trigger_x = y + 13, x + _indent(count)
    visits = _count(picture, row)
    lines = [Line(x + text_width("0" * (count - len(visits))), base, "count", visits)] if visits else []
    lines.append(Line(trigger_x, base, row.kind, row.trigger))
    guard_x, guard_y = (guards_x, base) if guards_x is not None else (trigger_x, base + LINE)
    lines += [Line(guard_x, guard_y + place * LINE, style, words) for place, (style, words) in enumerate(_guards(row))]
    return Entry(row, (trigger_x - 10, base - 4), tuple(lines))


def _count(picture: Picture, row: Row) -> str:
    count = picture.visited([row])
    return f"{count}x" if count else ""


def _guards(row: Row) -> list[tuple[str, str]]:
    """The guards in lines of limited length, each with its style."""
    return [("requires", line) for line in _wrap("[", required(row))] + [("limits", line) for line in _wrap("[within ", limiting(row))]


def _wrap(opening: str, names: list[str]) -> list[str]:
    lines: list[str] = []
    for place, name in enumerate(names):
        piece = (opening if not place else "") + name + ("]" if place == len(names) - 1 else ",")
        if lines and len(lines[-1]) + 1 + len(piece) <= WRAP:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines
