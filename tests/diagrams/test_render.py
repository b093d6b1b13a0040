"""The pictures of the machine: each format is read back into rows and compared with the table, so that none can lose or invent one."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

import pytest

from refold.diagrams import render as drawings
from refold.diagrams.picture import Picture
from refold.diagrams.render import FILES, FORMATS, render
from refold.events.words import STATES
from refold.fsm.machine import MACHINE, TABLE, Row

SVG: Final = "{http://www.w3.org/2000/svg}"
VISITS: Final = {
    ("idle", "model_requested", "streaming_model"): 1,
    ("streaming_model", "usage_updated", "streaming_model"): 1234567,
    ("streaming_model", "tool_calls_requested", "collecting_tool_requests"): 42,
    ("streaming_model", "run_cancelled", "done"): 1,
}


class Drawn(NamedTuple):
    """A row as a reader of the picture finds it."""

    source: str
    trigger: str
    target: str
    requires: tuple[str, ...]
    limits: tuple[str, ...]
    visits: int = 0


def of_row(row: Row) -> Drawn:
    return Drawn(row.source, row.trigger, row.destination, tuple(g.__name__ for g in row.requires), tuple(g.__name__ for g in row.limits))


def of_label(source: str, target: str, label: str) -> Drawn:
    match = re.fullmatch(r"(?:(\d+)x )?(\w+)(?: \[(?!within )([^]]+)\])?(?: \[within ([^]]+)\])?", label)
    assert match, label
    count, trigger, requires, limits = match.groups()
    return Drawn(
        source, trigger, target, tuple((requires or "").split(", ")) * bool(requires), tuple((limits or "").split(", ")) * bool(limits), int(count or 0)
    )


def read_mermaid(text: str) -> list[Drawn]:
    drawn = [of_label(state, state, label) for state, label in re.findall(r"^    (\w+) : (.+)$", text, re.MULTILINE) if label != state]
    return drawn + [of_label(*edge) for edge in re.findall(r"^    (\w+) --> (\w+) : (.+)$", text, re.MULTILINE)]


def read_dot(text: str) -> list[Drawn]:
    drawn = []
    for state, label in re.findall(r'^  (\w+) \[label="(\w+(?: \(current\))?\\n.*?)"', text, re.MULTILINE):
        head, _, inside = label.partition("\\n\\n")
        assert head.split()[0] == state
        drawn += [of_label(state, state, line) for line in inside.split("\\l") if line]
    return drawn + [
        of_label(source, target, label.replace("\\n", " ")) for source, target, label in re.findall(r'^  (\w+) -> (\w+) \[label="([^"]*)"', text, re.MULTILINE)
    ]


def read_svg(text: str) -> list[Drawn]:
    """By what is seen: a fact inside a box stays there, one after a line goes from the box it begins at to the box its tip touches."""
    drawn, ends = [], ("", "")
    boxes = boxes_of(text)
    for element in ElementTree.fromstring(text):
        style = element.get("class", "")
        if element.tag == f"{SVG}path" and style.startswith("edge"):
            begin = points_of(element.get("d", ""))[0]
        elif element.tag == f"{SVG}polygon":
            ends = at(boxes, begin), at(boxes, points_of(element.get("points", ""))[0])
        elif style == "fact":
            texts = [piece.text or "" for piece in element.iter(f"{SVG}text")]
            first = rectangle(next(element.iter(f"{SVG}text")))
            within = [state for state, box in boxes.items() if box.holds(first)]
            source, target = (within[0], within[0]) if within else ends
            drawn.append(of_label(source, target, " ".join(texts)))
    return drawn


READERS: Final[dict[str, Callable[[str], list[Drawn]]]] = {"mermaid": read_mermaid, "dot": read_dot, "svg": read_svg}


class Rectangle(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: "Rectangle") -> bool:
        return self.left <= other.left and self.top <= other.top and self.right >= other.right and self.bottom >= other.bottom

    def overlaps(self, other: "Rectangle") -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom


def points_of(path: str) -> list[tuple[int, int]]:
    numbers = [int(number) for number in re.findall(r"-?\d+", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def rectangle(text: ElementTree.Element) -> Rectangle:
    """Where a text lies, at most: no usual monospace font is wider than 0.61 of its size."""
    x, y, size = int(text.get("x", "")), int(text.get("y", "")), int(text.get("font-size", ""))
    return Rectangle(x, y - 0.85 * size, x + 0.61 * size * len(text.text or ""), y + 0.25 * size)


def boxes_of(text: str) -> dict[str, Rectangle]:
    root = ElementTree.fromstring(text)
    names = [element.text or "" for element in root.iter(f"{SVG}text") if element.get("class") == "state"]
    rects = [element for element in root.iter(f"{SVG}rect") if element.get("class", "").split()[0] == "box"]
    found = {}
    for name, rect in zip(names, rects, strict=True):
        x, y, width, height = (int(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        found[name] = Rectangle(x, y, x + width, y + height)
    return found


def at(boxes: dict[str, Rectangle], point: tuple[int, int]) -> str:
    """The box on whose border a point lies; nowhere for the marks of beginning and end."""
    x, y = point
    return next(
        (name for name, box in boxes.items() if box.holds(Rectangle(x, y, x, y)) and (x in (box.left, box.right) or y in (box.top, box.bottom))), "nowhere"
    )


def segments(text: str) -> list[Rectangle]:
    """The pieces of every line, as rectangles of no width."""
    lines = [points_of(path.get("d", "")) for path in ElementTree.fromstring(text).iter(f"{SVG}path") if path.get("class", "").startswith("edge")]
    return [Rectangle(min(a, c), min(b, d), max(a, c), max(b, d)) for line in lines for (a, b), (c, d) in pairwise(line)]


def cells(text: str) -> dict[str, dict[str, str]]:
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {line[0].strip("`"): dict(zip([name.split(" ")[0] for name in head], line, strict=True)) for line in lines}


@pytest.mark.parametrize("name", READERS)
def test_every_row_of_the_table_is_read_back_once_with_its_guards(name: str) -> None:
    drawn = READERS[name](render(name))
    assert sorted(drawn) == sorted(map(of_row, TABLE))


@pytest.mark.parametrize("name", READERS)
def test_what_is_drawn_is_what_the_machine_itself_would_do(name: str) -> None:
    moves = {(source, event.name, move.dest or source) for event in MACHINE.events.values() for source, (move,) in event.transitions.items()}
    assert {edge[:3] for edge in READERS[name](render(name))} == moves


@pytest.mark.parametrize("name", READERS)
def test_several_triggers_between_the_same_two_states_are_all_drawn(name: str) -> None:
    triggers = {edge.trigger for edge in READERS[name](render(name)) if (edge.source, edge.target) == ("streaming_model", "done")}
    assert triggers == {"run_completed", "run_stopped", "run_failed", "run_cancelled"}


@pytest.mark.parametrize("name", READERS)
def test_a_row_added_to_the_table_is_drawn_beside_its_neighbours(name: str) -> None:
    added = Row("approval_granted", "executing_tools", "injecting_tool_results", "input", TABLE[0].requires)
    drawn = READERS[name](FORMATS[name](Picture((*TABLE, added), "idle")))
    assert sorted(drawn) == sorted(map(of_row, (*TABLE, added)))


def test_the_table_has_one_line_for_each_event_and_a_cell_for_each_state() -> None:
    lines = cells(render("table"))
    for trigger in MACHINE.events:
        rows = {row.source: row for row in TABLE if row.trigger == trigger}
        line = lines.pop(trigger)
        for state in STATES:
            expected = "" if state not in rows else "self" if rows[state].destination == state else f"**{rows[state].destination}**"
            assert line[state] == expected, (trigger, state)
        assert line["kind"] == next(iter(rows.values())).kind
        for row in rows.values():
            assert all(f"`{guard.__name__}`" in line["requires"] for guard in row.requires)
            assert all(f"`{limit.__name__}`" in line["limits"] for limit in row.limits)
    assert not lines


def test_guards_that_differ_by_state_are_told_apart_in_the_table() -> None:
    line = cells(render("table"))["retry_scheduled"]
    assert line["requires"] == "from streaming_model: `request_failed`<br>from executing_tools: `attempt_failed`"


def test_where_a_run_begins_and_ends_is_marked_in_every_format() -> None:
    assert re.findall(r"^    (\[\*\] --> \w+|\w+ --> \[\*\])$", render("mermaid"), re.MULTILINE) == ["[*] --> idle", "done --> [*]"]
    dot = render("dot")
    assert "  initial -> idle;" in dot
    assert re.findall(r"^  (\w+) .*peripheries=2", dot, re.MULTILINE) == ["done"]
    assert re.findall(r"(\w+) \((initial|final)\)", render("table")) == [("idle", "initial"), ("done", "final")]

    svg = render("svg")
    boxes = boxes_of(svg)
    (inner,) = [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.get("class") == "final"]
    assert int(inner.get("x", "")) == boxes["done"].left + 4
    tips = [at(boxes, points_of(tip.get("points", ""))[0]) for tip in ElementTree.fromstring(svg).iter(f"{SVG}polygon")]
    assert tips.count("idle") == 1, "no row leads to idle: the one arrow is the beginning"
    assert tips.count("nowhere") == 1, "the end"


def test_a_kind_has_a_shape_and_not_only_a_colour() -> None:
    kinds = {row.trigger: row.kind for row in TABLE}
    for fact in ElementTree.fromstring(render("svg")).iter(f"{SVG}g"):
        if fact.get("class") == "fact":
            trigger = next(piece for piece in fact.iter(f"{SVG}text"))
            assert trigger.get("class") == kinds[trigger.text or ""]
            assert fact[0].get("class") == ("ring" if kinds[trigger.text or ""] == "input" else "diamond")


@pytest.mark.parametrize("visits", [None, VISITS])
def test_no_text_of_the_svg_overlaps_another_or_leaves_its_box_or_the_canvas(visits: dict[tuple[str, str, str], int] | None) -> None:
    svg = render("svg", visits=visits, current="executing_tools" if visits else None)
    root = ElementTree.fromstring(svg)
    canvas = Rectangle(*map(int, root.get("viewBox", "").split()))
    texts = [(element.text, rectangle(element)) for element in root.iter(f"{SVG}text")]
    boxes = boxes_of(svg)

    assert all(canvas.holds(each) for each in [*boxes.values(), *(place for _, place in texts)])
    assert not [(one, two) for n, (one, first) in enumerate(texts) for two, second in texts[n + 1 :] if first.overlaps(second)]
    assert not [(one, two) for one, first in boxes.items() for two, second in boxes.items() if one < two and first.overlaps(second)]
    assert not [(text, name) for text, place in texts for name, box in boxes.items() if place.overlaps(box) and not box.holds(place)]


@pytest.mark.parametrize("visits", [None, VISITS])
def test_no_line_of_the_svg_runs_through_a_text_or_a_box_or_another_line(visits: dict[tuple[str, str, str], int] | None) -> None:
    svg = render("svg", visits=visits)
    lines = segments(svg)
    texts = [rectangle(element) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    wide = [Rectangle(line.left - 2, line.top - 2, line.right + 2, line.bottom + 2) for line in lines]

    pairs = {(row.source, row.destination) for row in TABLE if row.destination != row.source}
    assert len(lines) == 2 + len(pairs) + 2, "beginning and end, one for each pair of states, and two corners"
    assert not [(line, text) for line in wide for text in texts if line.overlaps(text)]
    assert not [(line, box) for line in lines for box in boxes_of(svg).values() if line.overlaps(box)]
    assert not [(one, two) for n, one in enumerate(lines) for two in lines[n + 1 :] if one.overlaps(two)]


def test_the_loop_stands_in_its_six_places() -> None:
    boxes = boxes_of(render("svg"))
    assert set(boxes) == set(STATES)
    idle, streaming, collecting, executing, injecting, done = (boxes[state] for state in STATES)
    assert idle.right < streaming.left < streaming.right < collecting.left
    assert idle.top == streaming.top == collecting.top
    assert done.left == idle.left < injecting.left == streaming.left < executing.left == collecting.left
    assert executing.top > collecting.bottom
    assert injecting.top > streaming.bottom
    assert done.top > idle.bottom
    assert done.right < injecting.left < injecting.right < executing.left


def test_the_svg_can_be_read_aloud_and_loads_and_runs_nothing() -> None:
    svg = render("svg")
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    named = {element.get("id"): element.text or "" for element in root if element.tag in (f"{SVG}title", f"{SVG}desc")}
    assert root.get("aria-labelledby", "").split() == list(named)
    assert all(state in named["refold-machine-desc"] for state in STATES)
    assert not re.search(r"<script|<image|<foreignObject|href=|url\(|@import|@font-face|\son\w+=", svg)
    assert "prefers-color-scheme:dark" in svg
    assert min(int(element.get("font-size", "")) for element in root.iter(f"{SVG}text")) >= 12


@pytest.mark.parametrize("name", READERS)
def test_a_run_is_drawn_as_numbers_on_the_edges_it_took_and_on_no_other(name: str) -> None:
    drawn = READERS[name](render(name, visits=VISITS, current="executing_tools"))
    assert {edge[:3]: edge.visits for edge in drawn if edge.visits} == VISITS
    assert sorted(edge._replace(visits=0) for edge in drawn) == sorted(map(of_row, TABLE))


def test_the_state_a_run_is_in_is_marked_in_every_format_and_in_words_where_it_is_a_colour() -> None:
    assert "class executing_tools current" in render("mermaid", current="executing_tools")
    assert 'executing_tools [label="executing_tools (current)' in render("dot", current="executing_tools")
    assert "executing_tools (current)" in render("table", current="executing_tools")
    svg = ElementTree.fromstring(render("svg", current="executing_tools"))
    (here,) = [rect for rect in svg.iter(f"{SVG}rect") if rect.get("class") == "box here"]
    (word,) = [text for text in svg.iter(f"{SVG}text") if text.get("class") == "current"]
    box = boxes_of(render("svg", current="executing_tools"))["executing_tools"]
    assert (int(here.get("x", "")), int(here.get("y", ""))) == (box.left, box.top)
    assert box.holds(rectangle(word))


@pytest.mark.parametrize("name", FORMATS)
def test_which_run_is_drawn_is_said_in_every_format(name: str) -> None:
    drawn = render(name, visits=VISITS, title='run one · completed ·\n"a goal"')
    said = {"dot": 'run one · completed · \\"a goal\\"'}.get(name, 'run one · completed · "a goal"')
    assert said in drawn
    if name in READERS:
        assert len(READERS[name](drawn)) == len(TABLE)


def test_the_states_that_a_run_was_in_have_a_border_of_their_own() -> None:
    root = ElementTree.fromstring(render("svg", visits=VISITS, current="done"))
    names = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "state"]
    styles = [rect.get("class", "") for rect in root.iter(f"{SVG}rect") if rect.get("class", "").startswith("box")]
    assert dict(zip(names, styles, strict=True)) == {
        "idle": "box visited",
        "streaming_model": "box visited",
        "collecting_tool_requests": "box visited",
        "executing_tools": "box",
        "injecting_tool_results": "box",
        "done": "box here",
    }


def test_a_line_that_a_run_took_is_drawn_thicker() -> None:
    svg, dot = render("svg", visits=VISITS), render("dot", visits=VISITS)
    assert svg.count('class="edge visited"') == 3, "three of the four visited edges move the run"
    assert len(re.findall(r"penwidth=2.5", dot)) == 3


def test_visits_and_states_that_the_machine_does_not_have_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^the machine has no edge idle -> done on sealed$"):
        render("svg", visits={("idle", "sealed", "done"): 1})
    with pytest.raises(ValueError, match=r"^sleeping is no state; the states are idle, .*$"):
        render("dot", current="sleeping")
    with pytest.raises(ValueError, match=r"^sealed from done cannot be visited -1 times$"):
        render("mermaid", visits={("done", "sealed", "done"): -1})


def test_an_unknown_format_is_refused_in_one_line_that_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"^unknown format 'png'; the formats are mermaid, dot, svg, table$"):
        render("png")


def test_a_pair_of_states_without_a_route_is_an_error_and_not_a_missing_arrow() -> None:
    added = Row("run_failed", "executing_tools", "done", "derived")
    with pytest.raises(ValueError, match=r"^no route is laid from executing_tools to done$"):
        FORMATS["svg"](Picture((*TABLE, added), "idle"))


@pytest.mark.parametrize("file", FILES)
def test_the_committed_drawing_is_what_the_machine_would_be_drawn_as_today(file: str) -> None:
    committed = Path(drawings.__file__).with_name(file).read_text(encoding="utf-8")
    assert committed == render(FILES[file]), "stale: run python -m refold.diagrams.render"


def test_every_drawing_is_the_same_whatever_the_hash_seed_and_needs_no_graph_package_or_program() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('graphviz', 'pygraphviz', 'matplotlib', 'networkx')))\n"
        "from refold.diagrams.render import FORMATS, render\n"
        "sys.stdout.buffer.write('\\f'.join(map(render, FORMATS)).encode())\n"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PATH": ""}
        child = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, env=environment, timeout=60, check=True)
        assert child.stdout.decode() == "\f".join(map(render, FORMATS))
