"""The audit finds what no run may do, in logs that are otherwise in perfect order, and nothing in those of honest runs."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from refold.events import facts as f
from refold.events.chain import MARK, close
from refold.events.codec import Edge, Record, Stamp, write
from refold.events.settings import Budgets, Policy
from refold.events.words import CallId, Digest
from refold.fsm.audit import EVIDENCE_MAX, Audit, audit_rows, verify_rows
from refold.fsm.invariants import INVARIANTS
from refold.projections.run import replace
from refold.testing.forge import Forged, forge
from refold.testing.trajectory import Act, Trajectory

C1, C2 = CallId("t1.1"), CallId("t1.2")
LOOK = Act("look", '{"at":"north"}')
Step = f.Fact | Forged


# Facts as an honest log has them, to be put together dishonestly.


def begin(budgets: Budgets | None = None, policy: Policy | None = None) -> list[Step]:
    setup = f.Setup(engine=1, seed="seed", budgets=budgets or Budgets(), policy=policy or Policy())
    return [f.RunStarted(goal="Do it.", setup=setup), f.DriverAttached(epoch=1, who="tester", host="here"), request(1)]


def request(number: int, attempt: int = 1, most: int = 4_096) -> f.ModelRequested:
    return f.ModelRequested(number=number, attempt=attempt, digest=Digest("x" * 43), max_output_tokens=most, estimated_input_tokens=10)


def proposed(*calls: CallId, act: Act = LOOK) -> f.ToolCallsRequested:
    return f.ToolCallsRequested(calls=tuple(f.ProposedCall(id=call, name=act.name) for call in calls))


def checked(*calls: CallId, act: Act = LOOK) -> f.CallsChecked:
    return f.CallsChecked(checks=tuple(act.check(call) for call in calls))


def started(call: CallId, attempt: int = 1, *, key: str = "key") -> f.ToolStarted:
    return f.ToolStarted(call=call, attempt=attempt, key=key)


def not_done(call: CallId) -> f.ToolFailed:
    return f.ToolFailed(call=call, kind="execution_failed", message="busy", retryable=True, performed="no")


def asked(call: CallId, expires_at: int | None = None) -> f.ApprovalRequested:
    return f.ApprovalRequested(call=call, digest=PAY.digest, because="it pays", expires_at=expires_at)


def granted(call: CallId, digest: Digest | None = None) -> f.ApprovalGranted:
    return f.ApprovalGranted(call=call, digest=digest or PAY.digest, who="ann")


def denied(call: CallId) -> f.ApprovalDenied:
    return f.ApprovalDenied(call=call, reason="no", who="ann")


def attached(epoch: int) -> f.DriverAttached:
    return f.DriverAttached(epoch=epoch, who="tester", host="here")


def succeeded(call: CallId, attempt: int = 1) -> f.ToolSucceeded:
    return f.ToolSucceeded(call=call, result="fine", attempt=attempt)


def accepted(*calls: CallId) -> f.ToolCallsAccepted:
    return f.ToolCallsAccepted(calls=calls)


def injected(*calls: CallId) -> f.ToolResultsInjected:
    return f.ToolResultsInjected(calls=calls)


def turn(number: int, act: Act = LOOK) -> list[Step]:
    """A whole honest turn with one call, and the request after it."""
    call = CallId(f"t{number}.1")
    return [proposed(call, act=act), checked(call, act=act), accepted(call), started(call), succeeded(call), injected(call), request(number + 1)]


def spending(*, elapsed_us: int = 0, **usage: Any) -> list[Step]:
    """A turn whose request used something up."""
    asks = replace(proposed(C1), usage=f.Usage(**usage), elapsed_us=elapsed_us)
    return [asks, *turn(1)[1:]]


def rejected_claim(*, elapsed_us: int = 0, **usage: Any) -> list[Step]:
    """The same with an answer that is not accepted."""
    claim = f.FinalProposed(text="Done.", usage=f.Usage(**usage), elapsed_us=elapsed_us)
    return [claim, f.AnswerChecked(complaints=("no",)), f.FinalRejected(because="complaints", complaints=("no",))]


def rejected(call: CallId) -> f.ToolRejected:
    return f.ToolRejected(call=call, kind="unknown_tool", message="no")


def failed() -> f.ModelFailed:
    return f.ModelFailed(error=f.ErrorInfo(type="overloaded", message="later", retryable=True))


def retry(attempt: int) -> f.RetryScheduled:
    return f.RetryScheduled(attempt=attempt, delay_us=0, because="later")


def completed(answer_at: int) -> f.RunCompleted:
    return f.RunCompleted(answer_at=answer_at)


CLAIM: Final[list[Step]] = [f.FinalProposed(text="Done."), f.AnswerChecked()]
ONE_CALL: Final[list[Step]] = [proposed(C1), checked(C1), accepted(C1)]
LATE: Final = "1970-01-01T00:00:01.000003Z"
"""Behind the first request of a forged log, and before what comes of it."""
LOOSE: Final = Policy(max_duplicate_actions=99)
SEND: Final = Act("send", effect="side_effect", retries=1)
PAY: Final = Act("pay", effect="side_effect", approval=True)
ONE_SEND: Final[list[Step]] = [proposed(C1, act=SEND), checked(C1, act=SEND), accepted(C1)]
ONE_PAY: Final[list[Step]] = [proposed(C1, act=PAY), checked(C1, act=PAY), accepted(C1)]

VIOLATIONS: Final[list[tuple[str, str, list[Step], int]]] = [
    ("I1", "an outcome of a call that nobody started", [*begin(), *ONE_CALL, succeeded(C1), injected(C1), request(2)], 7),
    ("I1", "an outcome of another attempt", [*begin(), *ONE_CALL, started(C1), succeeded(C1, 2)], 8),
    ("I1", "a call that is started while nobody drives", [*begin(), *ONE_CALL, f.DriverDetached(epoch=1), started(C1)], 8),
    ("I1", "a late outcome of a call that never ran", [*begin(), f.LateOutcome(call=C1, outcome="it came back")], 4),
    ("I2", "a call that was never checked", [*begin(), proposed(C1), accepted(C1), started(C1)], 6),
    ("I2", "a call that was refused and ran", [*begin(), proposed(C1), checked(C1, act=Act("look", kind="invalid_arguments")), accepted(C1), started(C1)], 7),
    ("I2", "a call that runs with other arguments than it is known by", [*begin(), proposed(C1), checked(C1, act=PAY), accepted(C1)], 5),
    ("I2", "a call that was not accepted", [*begin(), proposed(C1, C2), checked(C1, C2), accepted(C1), started(C2)], 7),
    ("I3", "two results of one call", [*begin(), *ONE_CALL, started(C1), succeeded(C1), f.ToolClosed(call=C1, kind="cancelled", message="no")], 9),
    ("I3", "a result of a call of an earlier turn", [*begin(), *turn(1), f.ClarificationReceived(call=C1, text="again", who="ann")], 11),
    ("I3", "an end with a call that has no result", [*begin(), *ONE_CALL, f.CancelRequested(who="ann"), f.RunCancelled(who="ann")], 8),
    ("I3", "results that leave out a call", [*begin(), proposed(C1, C2), checked(C1, C2), accepted(C1, C2), started(C1), succeeded(C1), injected(C1)], 9),
    ("I3", "results in another order", [*begin(), proposed(C1, C2), checked(C1, C2), rejected(C1), rejected(C2), accepted(), injected(C2, C1)], 9),
    ("I4", "more turns than the budget has", [*begin(Budgets(max_turns=1)), *turn(1)], 10),
    ("I4", "a request out of number", [*begin(), *turn(1)[:-1], request(3)], 10),
    ("I4", "more attempts than the policy allows", [*begin(policy=Policy(max_provider_retries=0)), failed(), retry(2), request(2, 2)], 6),
    ("I4", "an attempt that is called the first", [*begin(), failed(), retry(2), request(2)], 6),
    ("I4", "more calls than the budget has", [*begin(Budgets(max_tool_calls=0)), *turn(1)], 7),
    ("I4", "a call after the tokens were used up", [*begin(Budgets(max_tokens=5_000)), *spending(input_tokens=4_000, output_tokens=1_000)], 7),
    ("I4", "a call after the money was used up", [*begin(Budgets(max_cost_usd="0.3")), *spending(cost_usd="0.3")], 7),
    ("I4", "a call after the time was used up", [*begin(Budgets(timeout_s=2)), *spending(elapsed_us=2_000_000)], 7),
    ("I4", "a call after the deadline", [*begin(Budgets(deadline=LATE)), *turn(1)], 7),
    ("I4", "a request after the tokens were used up", [*begin(Budgets(max_tokens=4_200)), *rejected_claim(input_tokens=4_200), request(2, most=0)], 7),
    ("I4", "a request after the money was used up", [*begin(Budgets(max_cost_usd="0.3")), *rejected_claim(cost_usd="0.4"), request(2)], 7),
    ("I4", "a request after the time was used up", [*begin(Budgets(timeout_s=0.5)), *rejected_claim(elapsed_us=500_000), request(2)], 7),
    ("I4", "a request after the deadline", [*begin(Budgets(deadline=LATE)), *rejected_claim(), request(2)], 7),
    (
        "I4",
        "a call that is tried more often than it may",
        [*begin(), *ONE_CALL, started(C1), f.ToolFailed(call=C1, kind="timeout", message="late"), started(C1, 2)],
        9,
    ),
    ("I5", "a stop for a limit that is not reached", [*begin(), *turn(1)[:-1], f.RunStopped(reason="max_turns", detail="really")], 10),
    ("I5", "a failure without a cause", [*begin(), failed(), f.RunFailed(reason="provider", detail="really")], 5),
    ("I5", "a cancellation that nobody asked for", [*begin(), f.ModelInterrupted(cause="cancelled"), f.RunCancelled()], 5),
    ("I5", "a request after the cancellation", [*begin(), f.CancelRequested(who="ann"), *turn(1)], 11),
    ("I6", "a side effect that was performed twice", [*begin(), *turn(1, SEND), *turn(2, SEND)], 15),
    ("I6", "a side effect that another one does not excuse", [*begin(), *turn(1, SEND), *turn(2, Act("write", effect="side_effect")), *turn(3, SEND)], 22),
    ("I6", "a reading that nothing made new", [*begin(), *turn(1), *turn(2, Act("look", '{"at":"south"}')), *turn(3)], 22),
    ("I7", "a request after three equal decisions", [*begin(policy=LOOSE), *turn(1), *turn(2), *turn(3)], 24),
    ("I8", "a call that nobody approved", [*begin(), *ONE_PAY, started(C1)], 7),
    ("I8", "a call that was approved as something else", [*begin(), *ONE_PAY, asked(C1), granted(C1, Digest("?" * 43))], 8),
    ("I8", "a call that was approved too late", [*begin(), *ONE_PAY, asked(C1, expires_at=1_000_001), granted(C1), started(C1)], 9),
    ("I8", "a call whose approval was taken back", [*begin(), *ONE_PAY, asked(C1), granted(C1), denied(C1), started(C1)], 10),
    ("I9", "an answer that was never checked", [*begin(), f.FinalProposed(text="Done."), completed(4)], 5),
    ("I9", "an answer that was found wrong", [*begin(), f.FinalProposed(text="Done."), f.AnswerChecked(complaints=("no",)), completed(4)], 6),
    ("I9", "another answer than the one that was checked", [*begin(), *CLAIM, completed(3)], 6),
    ("I9", "an answer of an earlier turn", [*begin(), *CLAIM, f.FinalRejected(complaints=("no",)), request(2), f.RunCompleted(answer_at=4)], 8),
    ("I10", "a record that begins elsewhere", [*begin(), Forged(f.UserSaid(text="hi", who="ann"), source="injecting_tool_results")], 4),
    ("I11", "a request while a call waits for its result", [*begin(), *ONE_CALL, Forged(request(2), target="streaming_model")], 7),
    ("I11", "a request after results that were never shown", [*begin(), *turn(1)[:-2], Forged(request(2), target="streaming_model")], 9),
    ("I12", "a request that may write more than is left", [*begin(Budgets(max_tokens=2_000))[:-1], request(1, most=2_000)], 3),
    ("I12", "a record of a turn that was not begun", [*begin(), Forged(f.UserSaid(text="hi", who="ann"), turn=2)], 4),
    ("I15", "a side effect that is begun again under another key", [*begin(), *ONE_SEND, started(C1), not_done(C1), started(C1, 2, key="other")], 9),
    ("I15", "two calls under one key", [*begin(), proposed(C1, C2, act=SEND), checked(C1, C2, act=SEND), accepted(C1, C2), started(C1), started(C2)], 8),
    ("I15", "a side effect that is begun again though it may have taken place", [*begin(), *ONE_SEND, started(C1), attached(2), started(C1)], 9),
]


def rows(records: Sequence[Record]) -> list[tuple[int, bytes]]:
    return [(record.position, record.stored) for record in records]


def nothing_stored(digest: Digest) -> bytes:
    raise KeyError(digest)


def audited(steps: Sequence[Step]) -> Audit:
    return audit_rows("forged", rows(forge(steps)), nothing_stored)


def failing(audit: Audit) -> dict[str, int | None]:
    return {invariant.id: invariant.broken_at for invariant in audit.invariants if not invariant.ok}


@pytest.mark.parametrize(("name", "steps", "position"), [pytest.param(name, steps, at, id=f"{name}: {what}") for name, what, steps, at in VIOLATIONS])
def test_what_no_run_may_do_is_reported_under_its_name_and_at_its_place(name: str, steps: list[Step], position: int) -> None:
    # given a log that breaks an invariant, with a chain in perfect order
    audit = audited(steps)
    # then that invariant and, but for what follows from it, no other is broken there
    assert audit.chain.ok
    assert not audit.ok
    broken = failing(audit)
    assert broken.get(name) == position, broken
    assert min(at for at in broken.values() if at is not None) == position
    (found,) = [invariant for invariant in audit.invariants if invariant.id == name]
    assert str(position) in str(found.evidence[0])


@pytest.mark.parametrize(("name", "steps"), [pytest.param(name, steps, id=f"{name}: {what}") for name, what, steps, _ in VIOLATIONS])
def test_a_violation_is_no_accident_of_the_rest_of_its_log(name: str, steps: list[Step]) -> None:
    # given the same log cut off before the violation
    position = failing(audited(steps))[name]
    assert position is not None
    # then nothing is wrong with it
    before = audited(steps[: position - 1])
    assert failing(before) == {}
    assert before.legal.ok or before.legal.broken_at is not None


def test_every_invariant_has_a_log_that_breaks_it_alone() -> None:
    alone = {name for name, _, steps, _ in VIOLATIONS if list(failing(audited(steps))) == [name]}
    assert alone == INVARIANTS.keys() - {"I13"}


# Honest runs, and what is left when their bytes are touched.


def whole_run() -> Trajectory:
    """A run with some of everything: a refused call, an approval, a retry, a crash, a rejected answer, a large result."""
    run = Trajectory().start(policy=Policy(max_duplicate_actions=2))
    run.calls(Act("nosuch", kind="unknown_tool"), Act("look", retries=1), Act("send", effect="side_effect", approval=True))
    run.fail("t1.2", retryable=True)
    run.succeed("t1.2", "x" * 10_000, notes=(f.Note(text="seen"),))
    run.approve("t1.3")
    run.detach()
    run.attach()
    run.attach()
    run.interrupt("invalid")
    run.answer(complaints=("no",))
    run.answer(usage=f.Usage(input_tokens=10, output_tokens=5, cost_usd="0.10"))
    assert run.run.status == "completed"
    return run


def test_an_honest_run_is_sound_and_every_invariant_has_its_evidence() -> None:
    # given
    run = whole_run()
    # when
    audit = run.audit()
    # then
    assert audit.ok
    assert audit.chain.ok
    assert audit.legal.ok
    assert audit.events == len(run.records)
    assert [invariant.id for invariant in audit.invariants] == list(INVARIANTS)
    evidence = {invariant.id: invariant.evidence for invariant in audit.invariants}
    assert "t1.2: checked at 5, started at 9" in evidence["I2"]
    assert all(evidence[name] for name in ("I1", "I2", "I3", "I4", "I9", "I10", "I11", "I12", "I13"))


def test_a_run_that_goes_on_is_sound_at_every_position() -> None:
    run = whole_run()
    for length in range(1, len(run.rows) + 1):
        audit = audit_rows(run.id, run.rows[:length], run.payloads.__getitem__)
        assert audit.ok, (length, audit)


def test_any_flipped_bit_is_found_at_its_record() -> None:
    # given a run, and each of its records with one bit flipped in some place
    run = whole_run()
    for index, (position, stored) in enumerate(run.rows):
        for place in {0, 9, len(stored) // 3, len(stored) // 2, len(stored) - 20, len(stored) - 1}:
            damaged = bytearray(stored)
            damaged[place] ^= 1 << (place % 7)
            changed = [*run.rows[:index], (position, bytes(damaged)), *run.rows[index + 1 :]]
            # when it is verified
            verified = verify_rows(run.id, changed, run.payloads.__getitem__)
            # then the chain breaks there, and what is before it holds
            assert (verified.ok, verified.broken_at, verified.events) == (False, position, len(run.rows))
            assert verified.head == (run.records[index - 1].digest if index else "")


@pytest.mark.parametrize(
    ("damage", "broken_at"),
    [
        ("a record is missing", 5),
        ("the first is missing", 1),
        ("two are swapped", 5),
        ("one is there twice", 6),
        ("one is written another way", 5),
        ("they are those of another run", 1),
        ("there are none", 1),
    ],
)
def test_records_that_are_missing_moved_or_foreign_are_found(damage: str, broken_at: int) -> None:
    run = whole_run()
    kept = run.rows
    match damage:
        case "a record is missing":
            del kept[4]
        case "the first is missing":
            del kept[0]
        case "two are swapped":
            kept[4], kept[5] = kept[5], kept[4]
        case "one is there twice":
            kept.insert(5, kept[4])
        case "one is written another way":
            kept[4] = (5, kept[4][1].replace(b'","', b'" ,"', 1))
        case "there are none":
            kept = []
        case _:
            pass
    name = "another" if damage == "they are those of another run" else run.id
    # the rows are numbered as they come, as the lines of a file are
    numbered = [(number, stored) for number, (_, stored) in enumerate(kept, 1)]
    verified = verify_rows(name, numbered, run.payloads.__getitem__)
    assert (verified.ok, verified.broken_at) == (False, broken_at)
    assert verified.why
    assert "\n" not in verified.why


def test_a_row_that_stands_at_another_place_is_found() -> None:
    run = whole_run()
    verified = verify_rows(run.id, [*run.rows[:4], (6, run.rows[4][1]), *run.rows[5:]], run.payloads.__getitem__)
    assert (verified.ok, verified.broken_at) == (False, 5)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_value_that_is_not_what_its_record_says_is_found(damage: str) -> None:
    # given a run whose large result was touched outside its records
    run = whole_run()
    (digest,) = run.payloads
    (position,) = [record.position for record in run.records if record.type == "tool_succeeded"]
    payloads = {} if damage == "missing" else {digest: b'"other"'}
    # then the record that names it does not hold
    verified = verify_rows(run.id, run.rows, payloads.__getitem__)
    assert (verified.ok, verified.broken_at) == (False, position)
    assert digest in verified.why


def test_a_record_whose_data_names_another_call_is_found() -> None:
    # given a record in a right chain, whose data speaks of another call than the record itself
    honest = forge([*begin(), *ONE_CALL, started(C1), f.LateOutcome(call=C1, outcome="it came back")])
    last = honest[-1]
    body = last.stored.rpartition(MARK)[0].replace(b'"data":{', b'"data":{"call":"t9.9",') + b"}"
    smuggled, _ = close(body, honest[-2].digest)
    verified = verify_rows("forged", [*rows(honest)[:-1], (last.position, smuggled)], nothing_stored)
    assert (verified.ok, verified.broken_at) == (False, last.position)
    assert "another" in verified.why


def test_legality_and_invariants_are_judged_up_to_where_the_chain_breaks() -> None:
    # given a run with a damaged record near its end
    run = whole_run()
    last = len(run.rows)
    damaged = [*run.rows[:-1], (last, run.rows[-1][1].replace(b"done", b"idle"))]
    # when
    audit = audit_rows(run.id, damaged, run.payloads.__getitem__)
    # then what is before it is judged and found good
    assert (audit.chain.ok, audit.chain.broken_at, audit.legal.ok) == (False, last, True)
    assert failing(audit) == {"I13": last}


def test_a_move_that_no_row_allows_is_illegal_at_its_place_and_the_rest_is_still_judged() -> None:
    # given a run that completes out of nowhere and is otherwise in order
    audit = audited([*begin(), *turn(1), *CLAIM, completed(11), f.DriverDetached(epoch=2)])
    # then its last note is illegal, because no such driver was there
    assert audit.chain.ok
    assert (audit.legal.ok, audit.legal.broken_at) == (False, 14)
    assert "own epoch" in audit.legal.why


@pytest.mark.parametrize(
    "fact", [succeeded(C1), not_done(C1), f.DriverDetached(epoch=1), f.DoubtResolved(call=C1, verdict="unknown", who="eve", by="reconcile")]
)
def test_what_the_driver_alone_may_say_is_said_by_no_other_process(fact: f.Fact) -> None:
    audit = audited([*begin(), *ONE_CALL, started(C1), Forged(fact, driver="eve@elsewhere:1")])
    assert (audit.chain.ok, audit.legal.ok, audit.legal.broken_at) == (True, False, 8)
    assert audit.legal.why == f"{fact.TAG} is said by eve@elsewhere:1, and forger drives"


@pytest.mark.parametrize("fact", [f.UserSaid(text="hi", who="ann"), f.CancelRequested(who="ann"), f.LateOutcome(call=C1, outcome="it came back"), attached(2)])
def test_whoever_comes_may_say_what_comes_from_outside(fact: f.Fact) -> None:
    assert audited([*begin(), *ONE_CALL, started(C1), Forged(fact, driver="ann@elsewhere:1")]).legal.ok


def test_a_batch_is_what_happened_and_then_what_follows() -> None:
    # given a batch that begins with what should have followed, and one in which something happened in between
    at_once = forge([*begin()[:2], Forged(request(1), begins=True)])
    assert audit_rows("forged", rows(at_once), nothing_stored).legal.broken_at == 3
    late = forge([*begin(), f.UserSaid(text="hi", who="ann")])
    together = [*late[:3], *forge_in_one_batch(late)]
    assert audit_rows("forged", rows(together), nothing_stored).legal.broken_at == 4


def forge_in_one_batch(records: Sequence[Record]) -> list[Record]:
    """The last record again, as if it belonged to the batch before."""
    last = records[-1]
    edge = Edge(fact=last.fact, source=last.source, target=last.target, turn=last.turn)
    stamp = Stamp(at=records[-2].at, driver=last.driver)
    record, _ = write(edge, run=last.run, position=last.position, batch=records[-2].batch, stamp=stamp, before=records[-2].digest)
    return [record]


def test_evidence_is_bounded_and_says_how_much_is_left_out() -> None:
    # given more turns than evidence has room for
    budgets = Budgets(max_turns=None, max_tool_calls=None, max_tokens=None)
    steps: list[Step] = begin(budgets)
    for number in range(1, EVIDENCE_MAX + 12):
        steps += turn(number, Act("look", f'{{"at":{number}}}'))
    # when
    (found,) = [invariant for invariant in audited(steps).invariants if invariant.id == "I2"]
    # then
    assert len(found.evidence) == EVIDENCE_MAX + 1
    assert found.evidence[-1] == "and 11 more"


def test_money_is_added_up_exactly_however_long_it_is() -> None:
    run = Trajectory().start()
    run.calls(LOOK, usage=f.Usage(cost_usd="0.1" + "0" * 60 + "1"))
    run.succeed("t1.1")
    run.answer(usage=f.Usage(cost_usd="0.2"))
    assert run.audit().ok
    assert run.run.spent.cost_usd == "0.3" + "0" * 60 + "1"


@pytest.mark.parametrize(
    "spent", [{"elapsed_us": -9_000_000_000}, {"cost_usd": "-100"}, *({each: -1} for each in ("input_tokens", "output_tokens", "cached_input_tokens"))]
)
def test_less_than_nothing_is_not_what_a_run_may_spend(spent: dict[str, Any]) -> None:
    # given a turn that gives back what was used up
    audit = audited([*begin(), *spending(**spent)])
    # then whatever rests on the sums cannot be judged from there on
    assert failing(audit) == {"I4": 4, "I5": 4, "I12": 4}


@pytest.mark.parametrize("amount", ["a lot", "", "NaN", "-Infinity", "1e999999999", "1e-999999999"])
def test_an_amount_that_is_none_is_reported_and_breaks_nothing(amount: str) -> None:
    audit = audited([*begin(), f.FinalProposed(text="Done.", usage=f.Usage(cost_usd=amount)), f.AnswerChecked(), completed(4)])
    assert (audit.legal.ok, audit.legal.broken_at) == (False, 4)
    assert failing(audit).keys() == {"I4", "I5", "I12"}


def test_a_fork_is_judged_over_its_whole_history() -> None:
    # given a run, and another that goes on from the middle of it
    parent = Trajectory("parent").start()
    parent.calls(LOOK)
    parent.succeed("t1.1")
    at = parent.run.position
    child = parent.fork("child")
    child.answer()
    # then its history is that of its parent and its own
    assert child.audit().ok
    assert child.audit().events == len(child.records)
    # and one that forks off a run it does not stand behind is found
    strange = Trajectory("strange")
    strange.run, strange.records = replace(parent.run, id=strange.id), list(parent.records)
    strange.tell(f.RunForked(parent=child.id, at=at, head=parent.run.head), strange.driver())
    assert strange.audit().chain.broken_at == at + 1
