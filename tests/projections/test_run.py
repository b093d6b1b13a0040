"""The fold: what a run is after some of its facts."""

import gc
import time
from decimal import Decimal

import pytest

from refold.events import facts as f
from refold.events.codec import read
from refold.events.settings import Budgets, Policy
from refold.events.words import CallId
from refold.fsm.machine import empty, step
from refold.projections.run import Run
from refold.projections.transcript import said, waiting
from refold.testing.trajectory import Act, Trajectory

LOOK = Act("look", '{"at":"north"}')


def some_run() -> Trajectory:
    """A refused call, an approval, a large result, a crash, a message, a rejected answer and an accepted one."""
    run = Trajectory().start(price=f.Price(input="1", output="2"))
    run.calls(Act("nosuch", kind="unknown_tool"), LOOK, Act("send", effect="side_effect", approval=True), text="let me see", elapsed_us=5)
    run.succeed("t1.2", "x" * 9_000, source_ids=("report",), notes=(f.Note(text="noted"),), elapsed_us=7)
    run.approve("t1.3")
    run.attach()
    run.attach()
    run.say("in French")
    run.model_fails()
    run.answer("Oui", usage=f.Usage(input_tokens=100, output_tokens=10))
    run.answer("Non", complaints=("say why",))
    run.answer("Parce que", usage=f.Usage(input_tokens=300, cached_input_tokens=200, output_tokens=30))
    return run


def fold(run: Trajectory) -> list[Run]:
    """Every state of a run, from its bytes alone."""
    states = [empty(run.id)]
    for _, stored in run.rows:
        states.append(step(states[-1], read(stored, run.payloads.__getitem__)))
    return states


def test_folding_the_bytes_gives_the_run_that_was_lived() -> None:
    run = some_run()
    assert fold(run)[-1] == run.run
    assert (run.run.status, run.run.position, run.run.head) == ("completed", len(run.records), run.records[-1].digest)


def test_every_earlier_state_stays_what_it_was_while_the_run_goes_on() -> None:
    # given all states of a run, made in one go and sharing what grows
    run = some_run()
    states = fold(run)
    # then each equals a fold that stopped there
    for position in range(len(states)):
        alone = empty(run.id)
        for record in run.records[:position]:
            alone = step(alone, record)
        assert alone == states[position], position


def test_counters_are_sums_of_the_facts() -> None:
    spent = some_run().run.spent
    assert (spent.reported.input_tokens, spent.reported.cached_input_tokens, spent.reported.output_tokens) == (400, 200, 40)
    assert spent.estimated.total > 0
    # and an estimate costs what it would have cost
    assert Decimal(spent.cost_usd) == Decimal("0.00048") + (Decimal(spent.estimated.input_tokens) + 2 * spent.estimated.output_tokens) / 1_000_000
    assert (spent.active_us, spent.tool_calls, spent.model_errors) == (12, 2, 0)


def test_a_status_is_folded_and_never_a_state() -> None:
    run = Trajectory().start()
    assert run.run.status == "running"
    run.calls(Act("ask_user", "Which?"), LOOK)
    assert run.run.status == "running"  # a tool works
    run.succeed("t1.2")
    assert (run.run.status, run.run.state) == ("waiting_for_user", "executing_tools")
    run.tell(f.ClarificationReceived(call=CallId("t1.1"), text="that", who="ann"))
    assert run.run.status == "running"
    run.attach()
    run.answer()
    assert run.run.status == "completed"


def test_messages_are_made_once_and_in_the_order_of_requests() -> None:
    # given the messages that each fact adds
    run = some_run()
    states = fold(run)
    steps = zip(states[:-1], run.records, states[1:], strict=True)
    shown = [message for before, record, after in steps for message in said(before, record.fact, after)]
    # then calls come with their results in call order, and what the user said comes once, with the next turn's request
    assert [(message.role, message.kind) for message in shown] == [
        ("user", ""),
        ("assistant", ""),
        ("tool", "unknown_tool"),
        ("tool", "success"),
        ("tool", "in_doubt"),
        ("assistant", ""),
        ("user", ""),
        ("assistant", ""),
        ("user", "runtime"),
        ("assistant", ""),
    ]
    assert [call.id for call in shown[1].calls] == [message.call_id for message in shown[2:5]] == ["t1.1", "t1.2", "t1.3"]
    assert [shown[n].text for n in (0, 5, 6, 7, 9)] == ["Do it.", "Oui", "in French", "Non", "Parce que"]
    assert "say why" in shown[8].text


def test_what_the_user_said_waits_for_the_next_request() -> None:
    run = Trajectory().start()
    run.say("one")
    run.say("two")
    assert [message.text for message in waiting(run.run)] == ["one", "two"]


def test_another_attempt_shows_what_the_first_did_and_no_more() -> None:
    # given a message that arrives while a request is open, which then fails and is lost
    run = Trajectory().start()
    run.say("hurry")
    run.model_fails()
    run.attach()
    # then neither attempt shows it, and it still waits
    states = fold(run)
    assert [said(states[n], record.fact, states[n + 1]) for n, record in enumerate(run.records) if record.type == "model_requested"][1:] == [(), ()]
    assert run.run.unheard == ("hurry",)


def test_each_request_extends_the_digest_of_the_one_before() -> None:
    # given two runs that are alike up to a result
    digests = []
    for result in ("seen", "unseen"):
        run = Trajectory().start()
        run.calls(LOOK)
        run.succeed("t1.1", result)
        digests.append([record.fact.digest for record in run.records if isinstance(record.fact, f.ModelRequested)])
    # then so are their requests
    assert digests[0][0] == digests[1][0]
    assert digests[0][1] != digests[1][1]


def test_documents_that_were_read_are_found_by_id() -> None:
    run = some_run().run
    assert "report" in run.sources
    assert "rumour" not in run.sources


def test_a_driver_that_is_lost_leaves_its_calls_unknown() -> None:
    run = Trajectory().start()
    run.calls(LOOK)
    assert [call.phase for call in run.run.calls] == ["started"]
    # when somebody else attaches, before anything follows from it
    before = run.run
    run.attach()
    attached = next(record for record in reversed(run.records) if record.type == "driver_attached")
    after = step(before, attached)
    assert [call.phase for call in after.calls] == ["unknown"]
    assert (after.epoch, after.state) == (before.epoch + 1, "executing_tools")


@pytest.mark.slow
def test_a_long_fold_is_linear() -> None:
    def seconds(turns: int) -> float:
        run = Trajectory().start(budgets=Budgets(max_turns=None, max_tool_calls=None, max_tokens=None, max_cost_usd=None), policy=Policy())
        for turn in range(1, turns + 1):
            run.calls(Act("look", str(turn)))
            run.succeed(f"t{turn}.1", source_ids=(str(turn),))
        gc.collect()
        began = time.perf_counter()
        fold(run)
        return time.perf_counter() - began

    seconds(50)
    assert seconds(2_000) < 4 * 8 * seconds(250)
