"""Logs that earlier versions wrote still verify, fold to what they folded to, audit clean and replay byte for byte under their own rules."""

import json
from pathlib import Path

import pytest

from refold import audit, fold, open_store, replay, show
from refold.events.words import STATES
from refold.projections.revisions import SUPPORTED
from refold.runtime.sealing import public
from refold.runtime.transfer import export_lines, import_file, parse

LOGS = sorted(Path(__file__).parent.glob("v*/*.jsonl"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_log_means_today_what_it_meant(path: Path) -> None:
    # given a log as an earlier version exported it
    data = path.read_bytes()
    export = parse(data, path.name)
    assert export.verify().ok
    # when it is imported
    store = open_store("memory:")
    run_id = import_file(store, export)
    # then it shows what it showed, audits clean, replays identically and exports to the same bytes
    expected = json.loads(path.with_suffix(".shown.json").read_text(encoding="utf-8"))
    shown = show(store, run_id)
    assert {key: shown[key] for key in expected} == expected
    assert audit(store, run_id).ok, audit(store, run_id)
    assert replay(store, run_id).divergence is None
    assert b"".join(export_lines(store, run_id)) == data


def begun_under(path: Path) -> int:
    """The number of the rules that a log began with."""
    store = open_store("memory:")
    engine: int = fold(store.read(import_file(store, parse(path.read_bytes(), path.name)))).begun.engine
    return engine


def test_every_log_is_of_the_engine_of_its_folder_and_every_number_has_its_logs() -> None:
    made_under = {path: begun_under(path) for path in LOGS}
    assert {path.parent.name for path in LOGS} == {f"v{engine}" for engine in SUPPORTED}
    assert all(path.parent.name == f"v{engine}" for path, engine in made_under.items())
    # and none is looked at by nobody
    folder = Path(__file__).parent
    assert {path.with_suffix("").stem for path in folder.glob("v*/*")} == {path.stem for path in LOGS}


def test_there_is_one_for_every_way_to_end_and_every_state() -> None:
    shown = [json.loads(path.with_suffix(".shown.json").read_text(encoding="utf-8")) for path in LOGS]
    assert {one["status"] for one in shown} == {"waiting_for_user", "completed", "stopped", "failed", "cancelled"}
    records = [json.loads(line) for path in LOGS for line in path.read_text(encoding="utf-8").splitlines()]
    assert {record.get("to") for record in records if "to" in record} == set(STATES)


def test_the_seal_of_a_golden_log_is_that_of_its_key() -> None:
    pytest.importorskip("cryptography", reason="the cryptography package is not installed")
    key = public(b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n")
    checked = parse((Path(__file__).parent / "v2" / "sealed.jsonl").read_bytes(), "sealed").check([key])
    assert (checked.ok, [seal.verdict for seal in checked.seals]) == (True, ["ok"])
