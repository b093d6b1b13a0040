"""An ended run is sealed: its head is signed, and whoever has the public key notices what is missing, changed or added, at the end too."""

import asyncio
import stat
from pathlib import Path

import pytest

from refold import Agent, ScriptedModel, audit, open_store, replay, show
from refold.events import facts as f
from refold.events.words import CallId
from refold.runtime.journal import Journal
from refold.runtime.sealing import SealError, new_key, public
from refold.runtime.store import Store
from refold.runtime.transfer import export_lines, parse

pytest.importorskip("cryptography", reason="the cryptography package is not installed")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """Two keys by name."""
    for name in ("ann", "bob"):
        new_key(tmp_path / name)
    return {name: tmp_path / name for name in ("ann", "bob", "ann.pub", "bob.pub")}


def file_of(store: Store) -> bytes:
    return b"".join(export_lines(store, "r"))


def add_late_outcome(store: Store) -> None:
    Journal(store.log, "r").load().command_sync(lambda _: (f.LateOutcome(call=CallId("t1.1"), outcome="it came back"),))


def test_a_sealed_run_is_what_it_was_and_its_file_is_held_against_the_key(looked: Store, keys: dict[str, Path]) -> None:
    # given a run that is sealed
    before = list(looked.read("r"))
    sealed = looked.seal_sync("r", key=keys["ann"])
    assert (sealed.position, sealed.again) == (len(before) + 1, False)
    # then one input fact was added to it, which replays, audits clean, and is shown
    assert [record.type for record in looked.read("r")][-2:] == ["run_completed", "sealed"]
    assert replay(looked, "r").divergence is None
    assert audit(looked, "r").ok
    who = public(keys["ann.pub"])
    assert show(looked, "r")["seals"] == [{"position": sealed.position, "key": who.id}]
    assert show(looked, "r")["status"] == "completed"
    # and its file passes with the public key, which is nowhere in it, and neither is the private one
    checked = parse(file_of(looked), "r").check([who])
    assert (checked.ok, [(seal.position, seal.verdict) for seal in checked.seals]) == (True, [(sealed.position, "ok")])
    halves = [line for name in ("ann", "ann.pub") for line in keys[name].read_text().splitlines() if not line.startswith("---")]
    assert not any(half in file_of(looked).decode() for half in halves)


def test_the_same_key_seals_once_and_another_one_beside_it(looked: Store, keys: dict[str, Path]) -> None:
    # given a run that two people sealed
    first = looked.seal_sync("r", key=keys["ann"])
    second = asyncio.run(looked.seal("r", key=keys["bob"].read_bytes()))
    assert (second.position, second.again) == (first.position + 1, False)
    # when both seal it again, then nothing is added
    assert looked.seal_sync("r", key=keys["ann"]) == (first.position, None, True)
    assert looked.seal_sync("r", key=keys["bob"]) == (second.position, None, True)
    assert len(list(looked.read("r"))) == second.position
    # and it passes with either of the public keys, and with both
    export = parse(file_of(looked), "r")
    for names in (["ann.pub"], ["bob.pub"], ["ann.pub", "bob.pub"]):
        assert export.check([public(keys[name]) for name in names]).ok
    assert [seal.verdict for seal in export.check([public(keys["ann.pub"])]).seals] == ["ok", "unknown key"]
    assert [seal.verdict for seal in export.check().seals] == ["not checked", "not checked"]


def test_a_file_that_was_cut_at_its_end_passes_alone_but_not_with_a_key_or_a_head(looked: Store, keys: dict[str, Path]) -> None:
    # given every beginning of a sealed file
    looked.seal_sync("r", key=keys["ann"])
    lines, who = file_of(looked).splitlines(keepends=True), public(keys["ann.pub"])
    head = show(looked, "r")["head"]
    for length in range(1, len(lines)):
        export = parse(b"".join(lines[:length]), "r")
        # then nothing in it tells that something is missing, and what is known from elsewhere does
        assert export.check().ok
        assert not export.check([who]).ok
        assert not export.check(head=head).ok
    assert parse(b"".join(lines), "r").check([who], head).ok


def test_a_head_that_was_known_earlier_is_found_with_what_came_since(looked: Store, keys: dict[str, Path]) -> None:
    # given the head of a run before it was sealed
    known, at = show(looked, "r")["head"], show(looked, "r")["position"]
    looked.seal_sync("r", key=keys["ann"])
    # then the file contains it, and says where
    checked = parse(file_of(looked), "r").check(head=known)
    assert (checked.ok, checked.head_at, checked.events) == (True, at, at + 1)
    # and a head that is none of its digests is missed
    missing = parse(file_of(looked), "r").check(head="x" * 43)
    assert (missing.ok, missing.head_at) == (False, None)
    assert "missing at the end" in missing.why


def test_what_comes_behind_a_seal_is_signed_by_nobody_until_it_is_sealed_again(looked: Store, keys: dict[str, Path]) -> None:
    # given a tool that came back after the seal
    sealed = looked.seal_sync("r", key=keys["ann"])
    add_late_outcome(looked)
    who = public(keys["ann.pub"])
    checked = parse(file_of(looked), "r").check([who])
    assert (checked.ok, checked.broken_at) == (False, sealed.position + 1)
    # when it is sealed again, then all of it is signed
    again = looked.seal_sync("r", key=keys["ann"])
    assert (again.position, again.again) == (sealed.position + 2, False)
    assert parse(file_of(looked), "r").check([who]).ok


@pytest.mark.parametrize("forged", ["another run", "another position", "another head", "another key", "another algorithm", "no signature"])
def test_a_seal_that_the_key_did_not_make_over_these_records_is_bad(looked: Store, keys: dict[str, Path], forged: str) -> None:
    # given a record that claims to be the seal of a key, in a chain that holds
    from refold.runtime.sealing import Private

    run, who, key = looked.journal("r").run, public(keys["ann.pub"]), Private(keys["bob" if forged == "another key" else "ann"])
    seal = {
        "another run": key.seal(type(run.id)("s"), run.position, run.head),
        "another position": key.seal(run.id, run.position - 1, run.head),
        "another head": key.seal(run.id, run.position, type(run.head)("x" * 43)),
    }.get(forged, key.seal(run.id, run.position, run.head))
    algorithm, signature = "rsa" if forged == "another algorithm" else seal.algorithm, "?" if forged == "no signature" else seal.signature
    looked.journal("r").command_sync(lambda _: (f.Sealed(algorithm=algorithm, key=who.id, signature=signature),))
    # then it is found, and does not count when the key seals for good
    checked = parse(file_of(looked), "r").check([who])
    assert (checked.ok, checked.broken_at, [seal.verdict for seal in checked.seals]) == (False, run.position + 1, ["bad"])
    assert not looked.seal_sync("r", key=keys["ann"]).again


def test_a_run_that_goes_on_is_not_sealed(keys: dict[str, Path]) -> None:
    store = open_store("memory:")
    Agent(model=ScriptedModel([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}])).run_sync("Ask.", store=store, run_id="r")
    with pytest.raises(SealError, match="run r has not ended"):
        store.seal_sync("r", key=keys["ann"])


def test_a_new_key_is_for_its_owner_alone_and_overwrites_nothing(tmp_path: Path) -> None:
    # given a new key
    made = new_key(tmp_path / "key")
    private, other = (tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert public(tmp_path / "key.pub").id == made.id
    # when one of that name is wanted again, also where only a half of it is there
    with pytest.raises(SealError, match="already"):
        new_key(tmp_path / "key")
    assert ((tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()) == (private, other)
    (tmp_path / "key.pub").unlink()
    with pytest.raises(SealError, match="already"):
        new_key(tmp_path / "key")
    # then nothing was written, not even beside it
    assert (tmp_path / "key").read_bytes() == private
    assert not (tmp_path / "key.pub").exists()
