"""A run leaves the store as one file that verifies on its own, and any damage to file or store is found at its position."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from refold import Agent, ScriptedModel, audit, open_store, show, tool
from refold.runtime.store import Store
from refold.runtime.transfer import DamagedFile, OtherRun, export_lines, import_file, parse


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at} " + "." * (5_000 if at == "far" else 0)


def run_in(store: Store, run_id: str = "kept", answer: str = "Done.") -> None:
    turns: list[dict[str, Any]] = [{"calls": [{"name": "look", "arguments": {"at": "near"}}, {"name": "look", "arguments": {"at": "far"}}]}, {"text": answer}]
    Agent(model=ScriptedModel(turns), tools=[look]).run_sync("Look.", store=store, run_id=run_id)


@pytest.fixture
def exported() -> bytes:
    store = open_store("memory:")
    run_in(store)
    return b"".join(export_lines(store, "kept"))


def test_an_export_verifies_and_imports_as_the_same_run(exported: bytes) -> None:
    # given an export, in which a large value stands before the record that names it
    export = parse(exported, "kept.jsonl")
    assert export.verify().ok
    assert len(export.payloads) == 1
    # when it is imported into another store, twice
    other = open_store("memory:")
    assert import_file(other, export) == import_file(other, export) == "kept"
    # then it is the same run to the last byte, and whole
    assert b"".join(export_lines(other, "kept")) == exported
    assert audit(other, "kept").ok
    assert "." * 5_000 in str(show(other, "kept")["messages"])


def positions(exported: bytes) -> list[int]:
    """For every byte the position of the record it belongs to; a payload belongs to the record that names it."""
    found: list[int] = []
    position = 1
    for line in exported.splitlines(keepends=True):
        found += [position] * len(line)
        position += not line.startswith(b'{"payload"')
    return found


@pytest.mark.slow
def test_every_flipped_byte_of_an_export_is_found_at_its_position(exported: bytes) -> None:
    # given every byte of an export, except within long runs of the same one
    belongs = positions(exported)
    places = [n for n in range(len(exported)) if exported[n - 20 : n + 20].count(b".") < 30]
    for place in places:
        # when one bit of it is flipped
        changed = bytearray(exported)
        changed[place] ^= 1 << place % 8
        # then it does not verify, and the place is named; a line's end belongs to both its neighbours
        verified = parse(bytes(changed), "changed").verify()
        assert not verified.ok, place
        assert verified.broken_at in (belongs[place], belongs[place] + (exported[place : place + 1] == b"\n")), (place, verified)


@pytest.mark.parametrize("damage", ["drop", "swap", "double", "first", "blank", "tail", "payload", "nothing"])
def test_a_file_that_is_not_whole_is_refused_whole(exported: bytes, damage: str) -> None:
    lines = exported.splitlines(keepends=True)
    half = len(lines) // 2
    match damage:
        case "drop":
            del lines[half]
        case "swap":
            lines[half], lines[half + 1] = lines[half + 1], lines[half]
        case "double":
            lines.insert(half, lines[half])
        case "first":
            del lines[0]
        case "blank":
            lines.insert(half, b"\n")
        case "tail":
            lines[-1] = lines[-1].rstrip(b"\n")
        case "payload":
            lines = [line for line in lines if not line.startswith(b'{"payload"')]
        case "nothing":
            lines = []
    store = open_store("memory:")
    with pytest.raises(DamagedFile, match="nothing was imported"):
        import_file(store, parse(b"".join(lines), "damaged.jsonl"))
    assert store.runs() == []


def test_another_run_of_the_same_id_is_not_overwritten(exported: bytes) -> None:
    store = open_store("memory:")
    run_in(store, answer="Something else.")
    before = b"".join(export_lines(store, "kept"))
    with pytest.raises(OtherRun, match="a run kept, which is another one from position 1 on"):
        import_file(store, parse(exported, "kept.jsonl"))
    assert b"".join(export_lines(store, "kept")) == before


def test_of_a_run_that_is_there_in_part_it_is_said_which_has_more(exported: bytes) -> None:
    # given the first records of a run, and others of its id that part from it behind them
    lines = exported.splitlines(keepends=True)
    whole, half = parse(exported, "whole.jsonl"), parse(b"".join(lines[:5]), "half.jsonl")
    assert half.verify().ok
    # when the store has one of them, and the other is imported
    for first, second, words in (
        (half, whole, "ends at position 5, where the file goes on to position"),
        (whole, half, "ends at position 5, and goes on to position"),
    ):
        store = open_store("memory:")
        import_file(store, first)
        with pytest.raises(OtherRun, match=words) as refused:
            import_file(store, second)
        # then it is said which has more, and neither is called another run
        assert "another one" not in str(refused.value)
        assert len(list(store.read("kept"))) == len(first.rows)


def test_of_another_run_of_the_same_id_it_is_said_where_it_parts(exported: bytes) -> None:
    # given two runs with the same beginning
    store = open_store("memory:")
    import_file(store, parse(b"".join(exported.splitlines(keepends=True)[:5]), "half.jsonl"))
    store.cancel_sync("kept")
    with pytest.raises(OtherRun, match="which is another one from position 6 on: import the file into another store"):
        import_file(store, parse(exported, "kept.jsonl"))


@pytest.mark.slow
def test_every_flipped_byte_of_a_database_row_is_found_at_its_position(tmp_path: Path) -> None:
    # given a run in a database
    path = tmp_path / "log.db"
    store = open_store(f"sqlite:///{path}")
    run_in(store)
    store.close()
    database = sqlite3.connect(path, isolation_level=None)
    rows = database.execute("SELECT originator_version, state FROM stored_events WHERE originator_id = 'kept' ORDER BY originator_version").fetchall()
    store = open_store(f"sqlite:///{path}")
    for position, state in rows:
        # when one byte of one row is changed behind our back
        for place in range(len(state)):
            changed = bytearray(state)
            changed[place] ^= 1 << place % 8
            database.execute("UPDATE stored_events SET state = ? WHERE originator_id = 'kept' AND originator_version = ?", (bytes(changed), position))
            # then the audit names the record
            chain = audit(store, "kept").chain
            assert (chain.ok, chain.broken_at) == (False, position), (position, place, chain)
        database.execute("UPDATE stored_events SET state = ? WHERE originator_id = 'kept' AND originator_version = ?", (state, position))
    assert audit(store, "kept").ok
    store.close()
    database.close()


@pytest.mark.parametrize("column", ["originator_version", "topic", "originator_id"])
def test_a_row_whose_columns_disagree_with_its_record_is_found(tmp_path: Path, column: str) -> None:
    # given a row that was given another version, topic or stream
    path = tmp_path / "log.db"
    store = open_store(f"sqlite:///{path}")
    run_in(store)
    store.close()
    database = sqlite3.connect(path, isolation_level=None)
    value = {"originator_version": 99, "topic": "run_failed", "originator_id": "other"}[column]
    database.execute(f"UPDATE stored_events SET {column} = ? WHERE originator_id = 'kept' AND originator_version = 4", (value,))
    database.close()
    # when the run is audited, then the place is named
    store = open_store(f"sqlite:///{path}")
    chain = audit(store, "kept").chain
    assert (chain.ok, chain.broken_at) == (False, 4)
    store.close()


@pytest.mark.parametrize("value", ["5", "CAST(state AS TEXT)", "NULL", "1.5"])
def test_a_row_of_another_type_is_damage_and_no_fault_of_ours(tmp_path: Path, value: str) -> None:
    # given a row whose state is a number, a text or nothing
    path = tmp_path / "log.db"
    store = open_store(f"sqlite:///{path}")
    run_in(store)
    store.close()
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute(f"UPDATE stored_events SET state = {value} WHERE originator_id = 'kept' AND originator_version = 4")
    except sqlite3.IntegrityError:
        pytest.skip("the table refuses it")
    finally:
        database.close()
    # when the run is audited, then the place is named, unless the bytes are the same after all
    store = open_store(f"sqlite:///{path}")
    chain = audit(store, "kept").chain
    assert (chain.ok, chain.broken_at) == ((True, None) if "TEXT" in value else (False, 4))
    store.close()
