"""Drawings: what is drawn is the machine, every row of it and nothing else."""

import re
import sys

import pytest

from refold.diagrams.render import FORMATS, render
from refold.events.words import STATES
from refold.fsm.machine import MACHINE, TABLE, Row

Edge = tuple[str, str, str, tuple[str, ...], tuple[str, ...]]
"""Source, trigger, target, what it requires, what limits it."""


def edge(row: Row) -> Edge:
    return row.source, row.trigger, row.destination, tuple(guard.__name__ for guard in row.requires), tuple(limit.__name__ for limit in row.limits)


IN_CODE = {edge(row) for row in TABLE}


def labelled(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A label as it is written in every drawing: `trigger [requires] [within limits]`."""
    found = re.fullmatch(r"(\w+)(?: \[(?!within )([^\]]+)\])?(?: \[within ([^\]]+)\])?", text)
    assert found, text
    trigger, requires, limits = found.groups()
    return trigger, tuple(requires.split(", ")) if requires else (), tuple(limits.split(", ")) if limits else ()


def from_mermaid(text: str) -> set[Edge]:
    edges = set()
    for line in text.splitlines():
        if (arrow := re.fullmatch(r"    (\w+) --> (\w+) : (.+)", line)) is not None:
            source, target, label = arrow.groups()
        elif (inside := re.fullmatch(r"    (\w+) : (.+)", line)) is not None and inside[1] in STATES and inside[2] != inside[1]:
            source, target, label = inside[1], inside[1], inside[2]
        else:
            continue
        trigger, requires, limits = labelled(label)
        edges.add((source, trigger, target, requires, limits))
    return edges


def from_dot(text: str) -> set[Edge]:
    edges = set()
    for line in text.splitlines():
        if (arrow := re.match(r'  (\w+) -> (\w+) \[label="([^"]*)"', line)) is not None:
            trigger, requires, limits = labelled(arrow[3].replace("\\n", " "))
            edges.add((arrow[1], trigger, arrow[2], requires, limits))
        elif (node := re.match(r'  (\w+) \[label="\w+\\n\\n([^"]*)"', line)) is not None:
            for label in filter(None, node[2].split("\\l")):
                trigger, requires, limits = labelled(label)
                edges.add((node[1], trigger, node[1], requires, limits))
    return edges


def from_table(text: str) -> set[tuple[str, str, str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    heads = [head.split(" ")[0] for head in lines[0]]
    edges = set()
    for cells in (
        [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ):
        trigger = cells[0].strip("`")
        for state, cell in zip(heads, cells, strict=False):
            if state in STATES and cell:
                edges.add((state, trigger, state if cell == "self" else cell.strip("*")))
    return edges


@pytest.mark.parametrize(("name", "parse"), [("mermaid", from_mermaid), ("dot", from_dot)])
def test_B165_the_drawing_parsed_back_is_the_table(name, parse):
    # given the table of the machine, with several triggers between the same two states
    between = {(row.source, row.destination) for row in TABLE}
    assert len(between) < len(TABLE)
    # when it is drawn and the drawing is read
    drawn = parse(render(name))
    # then no row is missing, merged or invented, guards included
    assert drawn == IN_CODE


def test_B165_the_table_of_events_is_the_table_too():
    assert from_table(render("table")) == {(source, trigger, target) for source, trigger, target, _, _ in IN_CODE}


def test_B165_the_picture_names_every_row():
    # given the picture that needs no program to be drawn
    text = render("svg")
    # then each trigger stands in it as often as there are rows that move or states that keep it
    for row in TABLE:
        assert row.trigger in text
        assert all(guard.__name__ in text for guard in row.requires)


def test_B165_beginning_and_end_are_marked():
    # given where a run begins and the states that nothing leaves
    finals = [state for state in STATES if all(row.destination == row.source for row in TABLE if row.source == state)]
    assert (MACHINE.initial, finals) == ("idle", ["done"])
    # then each drawing says so
    assert "    [*] --> idle\n" in render("mermaid")
    assert "    done --> [*]\n" in render("mermaid")
    assert "  initial -> idle;" in render("dot")
    assert re.search(r"  done \[.*peripheries=2", render("dot"))
    assert "idle (initial)" in render("table")
    assert "done (final)" in render("table")


@pytest.mark.parametrize("name", FORMATS)
def test_B165_drawing_needs_no_graph_package_and_gives_the_same_bytes(name, monkeypatch):
    # given an interpreter without any package for graphs
    for package in ("graphviz", "pygraphviz", "networkx"):
        monkeypatch.setitem(sys.modules, package, None)
    # when it is drawn twice, then it is the same
    assert render(name) == render(name)


def test_B165_an_unknown_format_says_what_there_is():
    with pytest.raises(ValueError, match="the formats are mermaid, dot, svg, table"):
        render("png")
