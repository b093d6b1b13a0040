"""Every value of every golden log, changed, with every digest behind it made anew: what follows from the inputs names the record that does not, and an input never blames what stands before it.

What an input says is nobody's to check but the seal's; a forged one is found where something else follows from it.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from refold import Agent, Budgets, ScriptedModel, open_store, tool
from refold.events import facts as f
from refold.events.chain import close
from refold.events.codec import FACTS
from refold.events.words import Digest
from refold.fsm.replay import replay_rows
from refold.projections.revisions import UnsupportedEngine
from refold.runtime.transfer import export_lines, parse

LOGS: Final = sorted(Path(__file__).parent.glob("v*/*.jsonl"))
OF_THE_RECORD: Final = ("from", "to", "turn", "call", "type", "at", "driver")
BY_THE_CHAIN: Final = (("data", "head"),)
"""What a forger of a fork makes anew with the chain."""
BY_THE_AUDIT: Final = (" driver", ".arguments", ".signature", " data.calls.*.name")
"""What nothing follows from, and the audit alone notices: who says so, and under which name a call with its arguments is counted."""


class Forgery(NamedTuple):
    """What is changed, where, and how the file is made."""

    what: str
    position: int
    derived: bool
    made: Callable[[], bytes]


def values(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Everything in a JSON value that can be changed by itself: what is in no object, and lists as such."""
    if isinstance(value, dict):
        if "$payload" not in value:
            for key, each in value.items():
                yield from values(each, (*path, key))
        return
    yield path, value
    for place, each in enumerate(value if isinstance(value, list) else ()):
        yield from values(each, (*path, place))


def otherwise(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value[:-1]}{'b' if value[-1:] != 'b' else 'c'}" if len(value) > 20 else f"{value}x"
        case list():
            return value[:-1] if value else ["x"]
        case _:
            return "x"


def forged(lines: list[Any], at: int, path: tuple[str | int, ...], value: Any) -> bytes:
    """The lines with another value at a path of one of them."""
    record = json.loads(json.dumps(lines[at]))
    holder: Any = record
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return chained([*lines[:at], record, *lines[at + 1 :]])


def chained(lines: list[Any]) -> bytes:
    """The lines as a file whose chain is right; payloads are bytes."""
    made, before = [], Digest("")
    for line in lines:
        if isinstance(line, dict):
            data = {**line["data"], "head": before} if line["type"] == f.RunForked.TAG else line["data"]
            body = {name: data if name == "data" else value for name, value in line.items() if name != "digest"}
            stored, before = close(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), before)
        made.append(stored if isinstance(line, dict) else line)
    return b"".join(line + b"\n" for line in made)


def forgeries(source: bytes) -> Iterator[Forgery]:
    """Each value of each record, changed."""
    lines = [line if line.startswith(b'{"payload"') else json.loads(line) for line in source.splitlines()]
    assert chained(lines) == source
    for place, record in enumerate(lines):
        if not isinstance(record, dict):
            continue
        of_record = [((name,), record[name]) for name in OF_THE_RECORD if name in record]
        for where, value in (*of_record, *values(record["data"], ("data",))):
            if where in BY_THE_CHAIN and record["type"] == f.RunForked.TAG:
                continue
            what = f"{record['type']} {'.'.join('*' if isinstance(key, int) else key for key in where)}"
            made = partial(forged, lines, place, where, otherwise(value))
            yield Forgery(what, record["position"], not FACTS[record["type"]].INPUT, made)


def first_and_last(source: bytes) -> list[Forgery]:
    """Of each kind of value the first that is changed and the last: a long log says most things again and again."""
    kinds: dict[str, list[Forgery]] = {}
    for forgery in forgeries(source):
        kinds.setdefault(forgery.what, []).append(forgery)
    return [forgery for found in kinds.values() for forgery in dict.fromkeys((found[0], found[-1]))]


def assert_named(forgery: Forgery) -> None:
    export = parse(forgery.made(), forgery.what)
    audit = export.audit()
    blamed = [verdict.broken_at for verdict in (audit.chain, audit.legal, *audit.invariants) if verdict.broken_at is not None]
    try:
        found = replay_rows(export.run_id, export.rows, export.load).divergence
    except UnsupportedEngine:
        assert not audit.ok, forgery
        return
    if found is None:
        assert audit.ok or forgery.what.endswith(BY_THE_AUDIT), forgery
    else:
        assert not audit.ok, forgery
        assert min(found.position, *blamed) >= forgery.position, (forgery, audit)
    if forgery.derived:
        assert found is not None, forgery
        assert found.position == forgery.position, (forgery, found)


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


@tool
def send(to: str) -> str:
    """Sends."""
    return f"sent to {to}"


def gone_on() -> tuple[bytes, bytes]:
    """A fork of a fork with everything that one can change, and a continuation of it."""
    first = {"calls": [{"name": "look", "arguments": {"at": "north"}}, {"name": "send", "arguments": {"to": "ann"}}]}
    store, done = open_store("memory:"), {"text": "Done."}
    Agent(ScriptedModel([first, done]), "", [look, send]).run_sync("Look.", store=store, run_id="parent")
    at = next(record.position for record in store.read("parent") if record.type == "tool_started")
    other = Agent(ScriptedModel([done]), "Be brief.", [look, send], Budgets(max_turns=7))
    other.fork_sync("parent", at, store=store, message="Sure?", new_id="early")
    store.deny_sync("early", reason="It was sent.")
    other.resume_sync("early", store=store)
    at = next(record.position for record in store.read("early") if record.type == "tool_results_injected")
    other.fork_sync("early", at, store=store, edits={"t1.1": "a dragon"}, new_id="late")
    other.continue_run_sync("late", "And now?", store=store, new_id="next")
    late, after = (b"".join(export_lines(store, name)) for name in ("late", "next"))
    return late, after


def test_a_forged_record_is_named_and_none_before_it() -> None:
    # given one forgery of each value that a type of record can have
    once = {forgery.what: forgery for source in (*(path.read_bytes() for path in LOGS), *gone_on()) for forgery in forgeries(source)}
    assert len(once) > 300
    # when each is judged, then it is found in its place
    for forgery in once.values():
        assert_named(forgery)


@pytest.mark.slow
@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_forged_record_is_named_and_none_before_it(path: Path) -> None:
    for forgery in first_and_last(path.read_bytes()):
        assert_named(forgery)


@pytest.mark.slow
def test_every_forged_record_of_what_goes_on_is_named_and_none_before_it() -> None:
    for source in gone_on():
        for forgery in forgeries(source):
            assert_named(forgery)
