"""Whatever is changed in what is stored, replay names the place, the field and the class of the cause, and nothing before it."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from refold.events.codec import Unreadable
from refold.events.words import Digest
from refold.fsm import calls
from refold.fsm.divergence import Divergence
from refold.fsm.replay import replay_rows
from refold.testing.forge import rewritten
from refold.testing.trajectory import Trajectory

Rows = list[tuple[int, bytes]]
Reported = Callable[..., Divergence]


def at(log: Trajectory, position: int) -> bytes:
    return log.rows[position - 1][1]


def put(log: Trajectory, position: int, stored: bytes) -> Rows:
    """Other bytes in one place."""
    return [row if row[0] != position else (position, stored) for row in log.rows]


def flipped(log: Trajectory, position: int) -> Rows:
    changed = bytearray(at(log, position))
    changed[changed.index(b'"driver":"') + 10] ^= 1
    return put(log, position, bytes(changed))


def dropped(*positions: int) -> Callable[[Trajectory, int], Rows]:
    """Without the records at the place and so far behind it."""
    return lambda log, position: [row for row in log.rows if row[0] - position not in positions]


def swapped(log: Trajectory, position: int) -> Rows:
    one, other = at(log, position), at(log, position + 1)
    return [(n, {position: other, position + 1: one}.get(n, stored)) for n, stored in log.rows]


def doubled(log: Trajectory, position: int) -> Rows:
    return [row for each in log.rows for row in ((each, each) if each[0] == position else (each,))]


def said(old: str, new: str) -> Callable[[Trajectory, int], Rows]:
    """A forged record that says something else."""

    def change(body: bytes) -> bytes:
        assert old.encode() in body
        return body.replace(old.encode(), new.encode(), 1)

    return lambda log, position: rewritten(log.rows, position, change)


class Stored(NamedTuple):
    """What is done to the rows, and what is reported, at `place` or where `told` says."""

    change: Callable[[Trajectory, int], Rows]
    place: str
    field: str
    cause_class: str
    told: str = ""


STORED = {
    "a flipped bit of an input": Stored(flipped, "tool_succeeded", "digest", "environment"),
    "a flipped bit of what follows": Stored(flipped, "tool_started", "digest", "environment"),
    "a flipped bit of the last record": Stored(flipped, "driver_detached 2", "digest", "environment"),
    "no JSON at all": Stored(lambda log, position: put(log, position, b"\x00" * 9), "tool_started", "bytes", "environment"),
    "a position that is another": Stored(said('"position":', '"position":1'), "tool_started", "position", "environment"),
    "a record twice": Stored(doubled, "tool_started", "position", "environment"),
    "two records swapped": Stored(swapped, "retry_scheduled", "position", "environment"),
    "a derived record dropped": Stored(dropped(0), "tool_started", "type", "environment"),
    "an input dropped that another stands behind": Stored(dropped(0), "tool_calls_requested", "type", "environment"),
    "an input dropped that stands behind another": Stored(dropped(0), "calls_checked", "type", "environment"),
    "the only input of a batch dropped": Stored(dropped(0), "tool_succeeded 3", "type", "environment"),
    "a whole batch dropped": Stored(dropped(0), "user_said", "type", "environment"),
    "two batches dropped": Stored(dropped(0, 1), "approval_granted", "type", "environment"),
    "the beginning dropped": Stored(dropped(0), "run_started", "type", "environment"),
    "the end of the last batch but one dropped": Stored(dropped(0, 1), "run_completed", "type", "environment"),
    "a stamp that is another": Stored(said('"driver":"by hand"', '"driver":"forger"'), "tool_calls_accepted", "driver", "environment"),
    "a run that is another": Stored(said('"run":"played"', '"run":"other"'), "tool_started", "run", "environment"),
    "a clock that steps back": Stored(said('"at":1000000000000000', '"at":999999999999999'), "user_said", "at", "environment"),
    "a batch that is another": Stored(said('"batch":', '"batch":9'), "user_said", "batch", "environment"),
    "other bytes of the same": Stored(said('"data":{', '"data": {'), "tool_started", "digest", "environment"),
    "a state that is another": Stored(said('"to":"executing_tools"', '"to":"done"'), "tool_calls_accepted", "to", "code"),
    "a turn that is another": Stored(said('"turn":1', '"turn":2'), "tool_calls_requested", "turn", "code"),
    "a forged derived fact": Stored(said('"key":"', '"key":"x'), "tool_started", "data.key", "code"),
    "a forged result": Stored(said("cold", "warm"), "tool_succeeded", "data.text", "code", "note_stored"),
    "a forged answer of the user": Stored(said("This one.", "That one."), "clarification_received", "data.digest", "context", "model_requested 2"),
    "a forged limit": Stored(said('"max_turns":40', '"max_turns":9'), "run_started", "data.wrap_up", "policy or limit", "model_requested 11"),
    "a call that is not by its place": Stored(said('"id":"t1.1"', '"id":"c1.1"'), "tool_calls_requested", "data.calls[0].id", "adapter"),
    "calls of a response that was cut": Stored(said('"data":{', '"data":{"stop_reason":"length",'), "tool_calls_requested 2", "type", "adapter"),
    "an answer that says nothing": Stored(said("Not yet", " "), "final_proposed", "type", "adapter"),
    "a cut response that was whole": Stored(said('"cause":"invalid"', '"cause":"length"'), "model_interrupted", "data.cause", "adapter"),
    "a newer version": Stored(said('"v":1', '"v":2'), "tool_started", "data", "upcaster"),
    "a type of another version": Stored(said('"type":"tool_started"', '"type":"tool_dreamt"'), "tool_started", "data", "upcaster"),
    "a field more than this version knows": Stored(said('"key":', '"mood":"fine","key":'), "tool_started", "data.mood", "upcaster"),
    "a field more within a field": Stored(said('"text":"', '"mood":"fine","text":"'), "tool_succeeded", "data.notes[0].mood", "upcaster"),
    "a default that is spelled out": Stored(said('"key":', '"delay_us":0,"key":'), "tool_started", "digest", "environment"),
    "a default that is spelled out in place of another value": Stored(said('"approval":true', '"approval":false'), "calls_checked", "digest", "environment"),
    "a default that is spelled out before a field more": Stored(said('"key":', '"delay_us":0,"mood":"fine","key":'), "tool_started", "data.mood", "upcaster"),
    "a field more that is no value at all": Stored(said('"key":', '"mood":1e999,"key":'), "tool_started", "digest", "environment"),
    "data that this version does not know": Stored(said('"key":', '"name":'), "tool_started", "data", "upcaster"),
}


@pytest.mark.parametrize("planted", STORED.values(), ids=STORED)
def test_a_change_of_what_is_stored_is_reported_in_its_place(log: Trajectory, reported: Reported, planted: Stored) -> None:
    rows = planted.change(log, log.position_of(planted.place))
    reported(log, rows, log.position_of(planted.told or planted.place), planted.field, planted.cause_class)


def test_a_response_with_two_calls_of_one_id_contradicts_itself(log: Trajectory, reported: Reported) -> None:
    position = log.position_of("tool_calls_requested 3")
    rows = rewritten(log.rows, position, lambda body: body.replace(b'"name":"look"', b'"name":"look","provider_id":"c1"'))
    found = reported(log, rows, position, "type", "adapter")
    assert (found.recorded, found.derived) == ("tool_calls_requested", "model_interrupted")
    assert "c1" in found.cause


def test_a_derived_record_that_is_missing_is_said_and_comes_back(log: Trajectory) -> None:
    # given a log of which one derived record and, later, one input are gone
    gone, later = log.position_of("tool_started"), log.position_of("final_proposed")
    derived = log.replay([row for row in log.rows if row[0] not in (gone, later)])
    # then the first is named with its type, turn and call, and everything up to the second is there again
    found = derived.divergence
    assert found is not None
    assert (found.position, found.recorded, found.derived, found.turn, found.call_id) == (gone, None, "tool_started", 1, "t1.1")
    assert [record.stored for record in derived.records] == [stored for _, stored in log.rows[: later - 1]]


def test_an_input_that_is_missing_is_not_guessed(log: Trajectory) -> None:
    gone = log.position_of("calls_checked")
    found = log.replay(dropped(0)(log, gone)).divergence
    assert found is not None
    assert (found.recorded, found.derived) == (None, None)


@pytest.mark.parametrize("tag", ["approval_requested", "run_completed"])
def test_what_a_log_lacks_at_its_end_is_said(log: Trajectory, tag: str) -> None:
    # given a log that ends before a record that follows from its last inputs
    end = log.position_of(tag)
    derived = log.replay(log.rows[: end - 1])
    # then
    assert derived.divergence is not None
    assert (derived.divergence.position, derived.divergence.derived, derived.divergence.cause_class) == (end, tag, "environment")
    assert "the log ends here" in derived.divergence.cause
    assert derived.events == end - 1


def test_a_log_of_another_run_is_not_taken_for_this_one(log: Trajectory) -> None:
    found = replay_rows("another", log.rows, log.payloads.__getitem__).divergence
    assert found is not None
    assert (found.field, found.recorded, found.derived, found.cause_class) == ("run", "played", "another", "environment")


def test_a_payload_that_is_missing_or_changed_is_named(log: Trajectory) -> None:
    (digest,) = log.payloads
    position = next(record.position for record in log.records if digest.encode() in record.stored)
    for load, words in (({}.__getitem__, "missing"), (changed_value, "changed after it was written")):
        found = replay_rows(log.id, log.rows, load).divergence
        assert found is not None
        assert (found.position, found.field, found.cause_class) == (position, "data", "environment")
        assert words in found.cause


def changed_value(digest: Digest) -> bytes:
    raise Unreadable(f"the stored value {digest} is not what its digest says: it was changed after it was written")


def test_a_forger_who_forgets_the_chain_is_found_at_once(log: Trajectory, reported: Reported) -> None:
    # given a record that was changed and given a right digest of its own, and nothing chained to it
    position = log.position_of("tool_succeeded")
    changed = said("cold", "warm")(log, position)[position - 1]
    rows = [changed if row[0] == position else row for row in log.rows]
    # then the record behind it, which covers the old digest, is the first that does not hold
    found = reported(log, rows, position + 1, "digest", "environment")
    assert "or in the digest before" in found.cause


def test_an_earlier_difference_comes_before_what_is_broken_later_in_its_batch(log: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    # given another key of a call, and a flipped bit in a record of the next batch and of the same
    monkeypatch.setattr(calls, "key", lambda run, call: "k")
    started = log.position_of("tool_started")
    same_batch = [record.position for record in log.records if record.batch == log.records[started - 1].batch and record.position > started]
    for broken in (started + 1, *same_batch):
        found = log.replay(flipped(log, broken)).divergence
        assert found is not None
        assert (found.position, found.field) == (started, "data.key")
