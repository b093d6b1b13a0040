"""Whatever is changed, in the rules, in what is stored or in what reads it, replay names the place, the field and the class of the cause, and nothing before it.

One long run, played by hand: humans, parallel calls, retries of a request and of a tool, a turn that was none, a duplicate, a lost driver, a doubt, a compaction, a rejected answer.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from refold.events import chain, facts as f, settings
from refold.events.codec import UPCASTERS, Unreadable
from refold.events.words import CallId, Digest
from refold.fsm import answers, calls, compaction, decide, guards, limits, machine, timing
from refold.fsm.divergence import Divergence
from refold.fsm.replay import Derived, replay_rows
from refold.projections import evolve, revisions
from refold.projections.run import Run
from refold.testing.trajectory import Act, Trajectory

LOOK, SEND, PUT, PAY = (
    Act("look", '{"at":"north"}'),
    Act("send", '{"to":"ann"}', effect="side_effect", approval=True),
    Act("put", '{"value":1}', effect="idempotent", retries=2),
    Act("pay", '{"amount":3}', effect="side_effect"),
)
LARGE = "page " * 2_000


def played() -> Trajectory:
    """The run."""
    run = Trajectory().start(context=settings.Context(window_tokens=6_000, keep_turns=1), budgets=settings.Budgets(max_turns=40))
    # 1: a read, an approval and a question in one turn; the driver lets go, and another takes over
    run.calls(LOOK, SEND, Act("ask_user", '{"question":"Which?"}'), text="first", usage=f.Usage(input_tokens=300, output_tokens=30))
    run.succeed("t1.1", {"seen": "north"}, notes=(f.Note(text="it was cold"), f.Note(text="and dark")), source_ids=("north",))
    run.detach()
    run.approve("t1.2")
    run.tell(f.ClarificationReceived(call=CallId("t1.3"), text="This one.", who="ann"))
    run.attach()
    run.succeed("t1.2", "sent")
    # 2: a provider that fails twice, and a tool that fails once
    run.model_fails()
    run.model_fails(retry_after_s=2)
    run.calls(PUT, elapsed_us=1_000)
    run.fail("t2.1", retryable=True, performed="no")
    run.succeed("t2.1", 1)
    # 3 and 4: no turn at all, then a duplicate beside a tool that there is not
    run.interrupt("invalid")
    run.calls(LOOK, Act("look", '{"at":"north"}'), Act("nosuch", kind="unknown_tool"))
    run.succeed("t4.1", {"seen": "north"})
    # 5: a side effect whose process is lost; what the user says meanwhile
    run.calls(PAY)
    run.say("and be quick")
    run.attach()
    # 6 to 8: long results, which give way to a summary
    for turn, page in ((6, "a"), (7, "b"), (8, "c")):
        run.calls(Act("read", f'{{"page":"{page}"}}'))
        run.succeed(f"t{turn}.1", page * 2_000 if turn < 8 else LARGE)
    while (asked := run.run.past.asked) is not None:
        run.tell(f.ContextCompacted(since=asked.since, upto=asked.upto, summary="Pages were read.", author=asked.author, digest=asked.digest))
    # 9: an answer that does not stand, then one that does
    run.answer("Not yet", complaints=("end with a full stop",))
    run.answer("All done.", usage=f.Usage(input_tokens=900, output_tokens=9))
    run.detach()
    return run


@pytest.fixture(scope="module")
def log() -> Trajectory:
    run = played()
    assert run.run.status == "completed"
    assert {"summary_requested", "tool_in_doubt", "duplicate_action_blocked", "final_rejected", "retry_scheduled"} <= set(run.tags)
    assert run.payloads
    return run


Rows = list[tuple[int, bytes]]


def replayed(log: Trajectory, rows: Iterable[tuple[int, bytes]] | None = None) -> Derived:
    return replay_rows(log.id, log.rows if rows is None else rows, log.payloads.__getitem__)


def position_of(log: Trajectory, place: str) -> int:
    """`retry_scheduled`, or `retry_scheduled 3` for the third one."""
    tag, _, nth = place.partition(" ")
    return [record.position for record in log.records if record.type == tag][int(nth or 1) - 1]


def assert_reported(log: Trajectory, rows: Rows, position: int, field: str, cause_class: str) -> Divergence:
    """Just this is reported, and nothing of the batches before it."""
    found = replayed(log, rows).divergence
    assert found is not None
    assert (found.position, found.field, found.cause_class) == (position, field, cause_class), found
    assert found.cause.startswith(f"{cause_class}: ")
    assert found.hint
    batch = next(record.batch for record in log.records if record.position == position)
    if batch > 1:
        assert replayed(log, [row for row in rows if row[0] < batch]).divergence is None
    return found


def test_without_a_change_nothing_is_reported(log: Trajectory) -> None:
    derived = replayed(log)
    assert derived.divergence is None
    assert derived.events == len(log.rows)
    assert [record.stored for record in derived.records] == [stored for _, stored in log.rows]


# -- the rules


class Code(NamedTuple):
    """What is changed in the rules, and what is reported: where, which field, of which class, with which nearest place."""

    plant: Callable[[pytest.MonkeyPatch], None]
    place: str
    field: str
    cause_class: str
    nearest: str = ""


def patched(where: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(where, name, value)


def wrapped(where: Any, name: str, change: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A rule that goes on from what it was: `change(before, *arguments)`."""
    before = getattr(where, name)
    return patched(where, name, lambda *arguments: change(before, *arguments))


def row_changed(trigger: str, **changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        table = tuple(row._replace(**changes) if row.trigger == trigger else row for row in machine.TABLE)
        built = machine.build(table)
        edges = machine.compile_rows(built, table)
        for where, name, value in ((machine, "MACHINE", built), (machine, "EDGES", edges), (decide, "EDGES", edges)):
            monkeypatch.setattr(where, name, value)

    return plant


def settings_read(name: str, **changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Code that reads another setting than the one that is recorded."""
    return patched(Run, name, property(lambda run: replace(getattr(run.begun, name), **changes)))


def beyond_seven_turns(run: Run, stamp: Any) -> limits.Exceeded | None:
    return limits.Exceeded(reason="max_turns", detail="seven are enough") if run.turn >= 7 else None


def no_more_calls(run: Run, stamp: Any) -> limits.Exceeded | None:
    return limits.Exceeded(reason="timeout_s", detail="too late") if run.turn >= 2 else None


def reads_first(before: Any, run: Run, stamp: Any) -> Any:
    """Calls that nobody is asked about start before the humans are asked."""
    accepted = next((call for call in run.calls if call.phase == "accepted" and call.check is not None and call.check.effect == "read"), None)
    asks = accepted is not None and accepted.name == "ask_user"
    return calls.start(run, accepted) if accepted is not None and not asks and not run.calls[0].started else before(run, stamp)


CODE = {
    "a longer first delay": Code(patched(timing, "FIRST_DELAY_US", 600_000), "retry_scheduled", "data.delay_us", "code"),
    "a longer delay of tools": Code(patched(timing, "FIRST_TOOL_DELAY_US", 60_000), "retry_scheduled 3", "data.delay_us", "code"),
    "another idempotency key": Code(patched(calls, "key", lambda run, call: "k"), "tool_started", "data.key", "code"),
    "other words to the model": Code(patched(answers, "_to_model", lambda fault: "Try again."), "model_error_observed", "data.message", "code"),
    "other words of a doubt": Code(patched(calls, "DOUBT", "nobody knows"), "tool_closed", "data.message", "code"),
    "a stricter guard of a rule": Code(row_changed("tool_started", requires=(guards.may_start, guards.cancel_requested)), "tool_started", "type", "code"),
    "a stricter guard of an input": Code(row_changed("approval_granted", requires=(guards.cancel_requested,)), "approval_granted", "type", "code"),
    "an edge that leads elsewhere": Code(row_changed("model_error_observed", target="idle"), "model_error_observed", "to", "code"),
    "reads start before humans are asked": Code(
        wrapped(calls, "executing", reads_first), "approval_requested", "type", "policy or limit", "the recorded approval_requested follows at"
    ),
    "an answer is taken whatever the validators say": Code(
        wrapped(answers, "_claimed", lambda before, run, output, verdict: before(run, output, f.AnswerChecked())),
        "final_rejected",
        "type",
        "code",
    ),
    "a limit of turns": Code(row_changed("model_requested", limits=(beyond_seven_turns,)), "model_requested 10", "type", "policy or limit"),
    "a limit that a call does not pass": Code(row_changed("tool_started", limits=(no_more_calls,)), "tool_started 3", "type", "policy or limit"),
    "the last turn comes sooner": Code(
        wrapped(limits, "is_last_turn", lambda before, run: run.turn >= 4), "model_requested 7", "data.wrap_up", "policy or limit"
    ),
    "fewer tokens for an answer": Code(
        wrapped(limits, "output_limit", lambda before, run: before(run) - 1), "model_requested", "data.max_output_tokens", "policy or limit"
    ),
    "another estimate": Code(
        wrapped(limits, "estimated_input", lambda before, run: before(run) + 1), "model_requested", "data.estimated_input_tokens", "policy or limit"
    ),
    "fewer attempts of a request": Code(settings_read("policy", max_provider_retries=1), "retry_scheduled 2", "type", "policy or limit"),
    "no patience for a provider": Code(settings_read("policy", max_retry_wait_s=1), "retry_scheduled 2", "type", "policy or limit"),
    "approvals that expire": Code(settings_read("policy", approval_expiry_s=60), "approval_requested", "data.expires_at", "policy or limit"),
    "no patience for turns that are none": Code(settings_read("policy", max_model_errors=0), "model_requested 6", "type", "policy or limit"),
    "doubts that a human settles": Code(settings_read("policy", on_doubt="ask"), "tool_closed", "type", "policy or limit"),
    "duplicates are let through": Code(
        settings_read("policy", max_duplicate_actions=9), "duplicate_action_blocked", "type", "policy or limit", "the derived tool_rejected stands at"
    ),
    "a budget of calls": Code(settings_read("budgets", max_tool_calls=3), "duplicate_action_blocked", "type", "policy or limit"),
    "the runtime's words are shown otherwise": Code(
        wrapped(evolve, "told", lambda before, text: before(text.upper())), "model_requested 6", "data.digest", "context"
    ),
    "results are shown otherwise": Code(
        wrapped(evolve, "failure", lambda before, kind, message: {"error": message}), "model_requested 7", "data.digest", "context"
    ),
    "no compaction": Code(patched(compaction, "due", lambda run: None), "summary_requested", "type", "context"),
    "shorter summaries": Code(patched(compaction, "SUMMARY_MAX", 300), "summary_requested", "data.bytes_max", "context"),
}


@pytest.mark.parametrize("planted", CODE.values(), ids=CODE)
def test_a_change_of_the_rules_is_reported_where_it_tells(log: Trajectory, planted: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    # given rules that were changed
    with monkeypatch.context() as changed:
        planted.plant(changed)
        # when the run is replayed, then just that is reported
        found = assert_reported(log, log.rows, position_of(log, planted.place), planted.field, planted.cause_class)
    assert (found.nearest.words if found.nearest is not None else "").startswith(planted.nearest)
    # and without the change nothing is
    assert replayed(log).divergence is None


# -- what is stored


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


def forged(log: Trajectory, position: int, change: Callable[[bytes], bytes]) -> Rows:
    """A change by somebody who can compute digests: every record behind it is chained anew."""
    rows: Rows = []
    before = chain.NOTHING
    for n, stored in log.rows:
        body = stored.rpartition(chain.MARK)[0]
        changed, before = chain.close((change(body) if n == position else body) + b"}", before)
        rows.append((n, changed))
    return rows


def said(old: str, new: str) -> Callable[[Trajectory, int], Rows]:
    """A forged record that says something else."""

    def change(body: bytes) -> bytes:
        assert old.encode() in body
        return body.replace(old.encode(), new.encode(), 1)

    return lambda log, position: forged(log, position, change)


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
    "data that this version does not know": Stored(said('"key":', '"name":'), "tool_started", "data", "upcaster"),
}


@pytest.mark.parametrize("planted", STORED.values(), ids=STORED)
def test_a_change_of_what_is_stored_is_reported_in_its_place(log: Trajectory, planted: Stored) -> None:
    rows = planted.change(log, position_of(log, planted.place))
    assert_reported(log, rows, position_of(log, planted.told or planted.place), planted.field, planted.cause_class)


def test_a_response_with_two_calls_of_one_id_contradicts_itself(log: Trajectory) -> None:
    position = position_of(log, "tool_calls_requested 3")
    rows = forged(log, position, lambda body: body.replace(b'"name":"look"', b'"name":"look","provider_id":"c1"'))
    found = assert_reported(log, rows, position, "type", "adapter")
    assert (found.recorded, found.derived) == ("tool_calls_requested", "model_interrupted")
    assert "c1" in found.cause


def test_a_derived_record_that_is_missing_is_said_and_comes_back(log: Trajectory) -> None:
    # given a log of which one derived record and, later, one input are gone
    gone, later = position_of(log, "tool_started"), position_of(log, "final_proposed")
    derived = replayed(log, [row for row in log.rows if row[0] not in (gone, later)])
    # then the first is named with its type, turn and call, and everything up to the second is there again
    found = derived.divergence
    assert found is not None
    assert (found.position, found.recorded, found.derived, found.turn, found.call_id) == (gone, None, "tool_started", 1, "t1.1")
    assert [record.stored for record in derived.records] == [stored for _, stored in log.rows[: later - 1]]


def test_an_input_that_is_missing_is_not_guessed(log: Trajectory) -> None:
    gone = position_of(log, "calls_checked")
    found = replayed(log, dropped(0)(log, gone)).divergence
    assert found is not None
    assert (found.recorded, found.derived) == (None, None)


@pytest.mark.parametrize("tag", ["approval_requested", "run_completed"])
def test_what_a_log_lacks_at_its_end_is_said(log: Trajectory, tag: str) -> None:
    # given a log that ends before a record that follows from its last inputs
    end = position_of(log, tag)
    derived = replayed(log, log.rows[: end - 1])
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


def test_a_forger_who_forgets_the_chain_is_found_at_once(log: Trajectory) -> None:
    # given a record that was changed and given a right digest of its own, and nothing chained to it
    position = position_of(log, "tool_succeeded")
    changed = said("cold", "warm")(log, position)[position - 1]
    rows = [changed if row[0] == position else row for row in log.rows]
    # then the record behind it, which covers the old digest, is the first that does not hold
    found = assert_reported(log, rows, position + 1, "digest", "environment")
    assert "or in the digest before" in found.cause


def test_an_earlier_difference_comes_before_what_is_broken_later_in_its_batch(log: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    # given another key of a call, and a flipped bit in a record of the next batch and of the same
    monkeypatch.setattr(calls, "key", lambda run, call: "k")
    started = position_of(log, "tool_started")
    same_batch = [record.position for record in log.records if record.batch == log.records[started - 1].batch and record.position > started]
    for broken in (started + 1, *same_batch):
        found = replayed(log, flipped(log, broken)).divergence
        assert found is not None
        assert (found.position, found.field) == (started, "data.key")


# -- older versions


def versioned(monkeypatch: pytest.MonkeyPatch, fact: type[f.Fact], upcaster: Callable[[dict[str, Any]], dict[str, Any]] | None) -> None:
    """Today's version of a fact is the next one."""
    monkeypatch.setattr(fact, "VERSION", 2)
    if upcaster is not None:
        monkeypatch.setitem(UPCASTERS, (fact.TAG, 1), upcaster)


ALL = tuple(dict.fromkeys(type(record.fact) for record in played().records))


def test_facts_of_older_versions_that_come_to_the_same_are_identical(log: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a version in which every fact has been changed, with upcasters
    for fact in ALL:
        versioned(monkeypatch, fact, lambda data: data)
    # when the log of the version before is replayed, then nothing is reported, and what is stored is what goes on
    derived = replayed(log)
    assert derived.divergence is None
    assert derived.run.head == log.run.head


class Upcast(NamedTuple):
    fact: type[f.Fact]
    upcaster: Callable[[dict[str, Any]], dict[str, Any]] | None
    place: str
    field: str


UPCASTS = {
    "a wrong one of what follows": Upcast(f.ToolStarted, lambda data: {**data, "delay_us": 5}, "tool_started", "data.delay_us"),
    "a wrong one of an input": Upcast(f.ToolSucceeded, lambda data: {**data, "result": "nothing"}, "model_requested 2", "data.digest"),
    "one that loses complaints": Upcast(f.AnswerChecked, lambda data: {}, "final_rejected", "type"),
    "none": Upcast(f.CallsChecked, None, "calls_checked", "data"),
    "one that fails": Upcast(f.CallsChecked, lambda data: {"checks": data["calls"]}, "calls_checked", "data"),
}


@pytest.mark.parametrize("planted", UPCASTS.values(), ids=UPCASTS)
def test_a_wrong_upcaster_is_reported_where_it_tells(log: Trajectory, planted: Upcast, monkeypatch: pytest.MonkeyPatch) -> None:
    versioned(monkeypatch, planted.fact, planted.upcaster)
    found = assert_reported(log, log.rows, position_of(log, planted.place), planted.field, "upcaster")
    assert f"{planted.fact.TAG}" in found.cause


def test_where_a_limit_decides_otherwise_on_an_older_fact_both_are_said(log: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    # given an upcaster that lets actions repeat
    versioned(monkeypatch, f.CallsChecked, lambda data: {"checks": [{**check, "repeatable": True} for check in data["checks"]]})
    # then what shows is that a duplicate was let through, and that the fact it follows from is an older one
    found = assert_reported(log, log.rows, position_of(log, "duplicate_action_blocked"), "type", "policy or limit")
    assert "calls_checked" in found.cause
    assert "version 1" in found.cause


# -- the next number of the rules


def test_a_log_is_replayed_under_its_own_number_and_a_new_one_under_the_next(log: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a version whose next number words a doubt otherwise
    following = revisions.ENGINE + 1
    monkeypatch.setitem(revisions.RULES, following, revisions.RULES[revisions.ENGINE])  # type: ignore[arg-type, index]  # a mapping to everybody else
    monkeypatch.setattr(decide, "SUPPORTED", frozenset(revisions.RULES))
    settle = calls._settle

    def settled(run: Run, call: Any, stamp: Any) -> Any:
        fact = settle(run, call, stamp)
        doubt = isinstance(fact, f.ToolClosed) and fact.kind == "in_doubt" and run.begun.engine >= following
        return msgspec.structs.replace(fact, message="nobody knows whether it took place") if doubt else fact

    monkeypatch.setattr(calls, "_settle", settled)
    # when a run is played under each, then both replay identically, and say what their number says
    monkeypatch.setattr("refold.testing.trajectory.ENGINE", following)
    newer = played()
    assert replayed(log).divergence is None
    assert replayed(newer).divergence is None
    words = [next(record.fact for record in each.records if isinstance(record.fact, f.ToolClosed)).message for each in (log, newer)]
    assert words == [calls.DOUBT, "nobody knows whether it took place"]
    # and one that claims the other number is reported where the rules part
    older = said(f'"engine":{following}', f'"engine":{revisions.ENGINE}')(newer, 1)
    found = assert_reported(newer, older, position_of(newer, "tool_closed"), "data.message", "code")
    assert (found.recorded, found.derived) == (words[1], words[0])
    # and where only the old number is known, the new one is not guessed
    monkeypatch.setattr(decide, "SUPPORTED", frozenset((revisions.ENGINE,)))
    with pytest.raises(revisions.UnsupportedEngine, match=f"engine {following}"):
        replayed(newer)
    assert replayed(log).divergence is None
