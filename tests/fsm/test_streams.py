"""What is known of a response before it ends, and what one costs that never does."""

from decimal import Decimal

import pytest

from refold.events import facts as f
from refold.events.settings import Budgets
from refold.events.words import CallId
from refold.projections.run import Tokens
from refold.testing.trajectory import Act, Trajectory

from .conftest import Start

LOOK = Act("look", '{"at":"north"}')
PRICE = f.Price(input="3", output="15", cached_input="0.3")
HALF = (f.ProposedCall(id=CallId("t1.1"), name="look", arguments_text='{"at": "nor'),)


def checkpoint(text: str, **fields: object) -> f.StreamCheckpointed:
    return f.StreamCheckpointed(text=text, **fields)  # type: ignore[arg-type]


def asked(run: Trajectory) -> int:
    """What the open request is estimated to read."""
    assert run.run.request is not None
    return run.run.request.estimated_input_tokens


# -- while it comes


def test_a_report_on_the_way_counts_at_once_and_the_next_takes_its_place(start: Start) -> None:
    run = start(price=PRICE)
    # when a provider reports totals again and again
    run.tell(f.UsageUpdated(usage=f.Usage(input_tokens=1_000, output_tokens=1)))
    assert run.run.spent.reported == Tokens(input_tokens=1_000, output_tokens=1)
    run.tell(checkpoint("so far", usage=f.Usage(input_tokens=1_000, output_tokens=100)))
    assert run.run.spent.reported == Tokens(input_tokens=1_000, output_tokens=100)
    assert run.run.spent.cost_usd == "0.0045"
    # then the last word of the response settles it, once
    run.answer(usage=f.Usage(input_tokens=1_000, cached_input_tokens=900, output_tokens=120))
    assert run.run.spent.reported == Tokens(input_tokens=1_000, cached_input_tokens=900, output_tokens=120)
    assert (run.run.spent.cost_usd, run.run.spent.estimated.total) == ("0.00237", 0)


def test_what_was_written_down_costs_nothing_twice(start: Start) -> None:
    # given a response in checkpoints whose provider reports nothing
    run = start()
    for text in ("one " * 100, "two " * 100):
        run.tell(checkpoint(text))
    assert run.run.spent.tokens == 0
    reads = asked(run)
    # when it ends
    run.answer("one " * 100 + "two " * 100)
    # then it is estimated as a whole
    assert run.run.spent.estimated == Tokens(input_tokens=reads, output_tokens=200)


def test_the_next_request_knows_what_was_reported(start: Start) -> None:
    run = start(budgets=Budgets(max_tokens=10_000))
    run.tell(f.UsageUpdated(usage=f.Usage(input_tokens=20, output_tokens=2_000)))
    run.calls(LOOK, usage=f.Usage(input_tokens=20, output_tokens=7_000))
    run.succeed("t1.1")
    request = run.found("model_requested")
    assert request.max_output_tokens == 10_000 - 7_020 - request.estimated_input_tokens


def test_reasoning_counts_where_nothing_was_reported(start: Start) -> None:
    run = start()
    reads = asked(run)
    run.tell(f.FinalProposed(text="x" * 40, reasoning="y" * 400), f.AnswerChecked())
    assert run.run.spent.estimated == Tokens(input_tokens=reads, output_tokens=110)


def test_the_first_engine_takes_no_notice(start: Start) -> None:
    run = start(engine=1)
    run.tell(checkpoint("so far", usage=f.Usage(input_tokens=1_000)))
    run.tell(f.UsageUpdated(usage=f.Usage(input_tokens=1_000)))
    assert run.run.spent.tokens == 0
    run.attach()
    assert run.run.spent.tokens == 0


# -- when its process dies


def test_a_lost_request_costs_what_it_was_estimated_to_read_and_what_was_written_down(start: Start) -> None:
    run = start(price=PRICE)
    reads = asked(run)
    run.tell(checkpoint("x" * 400, calls=HALF, reasoning="y" * 40))
    # when another process takes over
    facts = run.attach()
    # then that is an estimate, and the same request is made again under its number
    written = -(-(400 + 40 + len(HALF[0].arguments_text)) // 4)
    assert facts == ["driver_attached", "model_requested"]
    assert run.found("model_requested").number == 1
    assert run.run.spent.estimated == Tokens(input_tokens=reads, output_tokens=written)
    assert Decimal(run.run.spent.cost_usd) == Decimal(reads * 3 + written * 15) / 1_000_000
    # and the second attempt costs what it costs
    run.answer(usage=f.Usage(input_tokens=100, output_tokens=10))
    assert (run.run.spent.reported.total, run.run.spent.estimated.total) == (110, reads + written)


def test_a_lost_request_costs_at_least_what_was_reported_and_all_of_it_is_an_estimate(start: Start) -> None:
    # given a provider that reported more than was estimated, and text behind that
    run = start()
    run.tell(checkpoint("x" * 400, usage=f.Usage(input_tokens=5_000, output_tokens=300)))
    run.tell(checkpoint("y" * 80))
    # when its process dies
    run.attach()
    # then reported usage is that of responses, as if nothing had happened
    assert run.run.spent.reported.total == 0
    assert run.run.spent.estimated == Tokens(input_tokens=5_000, output_tokens=320)


def test_a_request_is_lost_as_often_as_its_process_dies(start: Start) -> None:
    run = start()
    reads = asked(run)
    for times in (1, 2, 3):
        run.attach()
        assert run.run.spent.estimated.total == times * reads


def test_a_lost_request_that_leaves_too_little_is_not_made_again(start: Start) -> None:
    run = start(budgets=Budgets(max_tokens=2_000))
    run.tell(checkpoint("x" * 7_000))
    assert run.attach() == ["driver_attached", "run_stopped"]
    assert run.run.reason == "max_tokens"


# -- when it is cut, or breaks


def test_a_stream_that_was_cut_costs_what_was_reported_and_apart_from_that_the_rest(start: Start) -> None:
    run = start()
    run.cancel("enough")
    run.interrupt(
        "cancelled", text="x" * 400, calls=HALF, usage=f.Usage(input_tokens=900, output_tokens=1), unreported=f.Usage(output_tokens=100, estimated=True)
    )
    assert run.run.spent.reported == Tokens(input_tokens=900, output_tokens=1)
    assert run.run.spent.estimated == Tokens(output_tokens=100)


def test_what_was_reported_before_the_stream_was_cut_is_not_counted_again(start: Start) -> None:
    run = start()
    run.tell(f.UsageUpdated(usage=f.Usage(input_tokens=900, output_tokens=1)))
    run.interrupt("limit", limit="max_tokens", usage=f.Usage(input_tokens=900, output_tokens=40))
    assert (run.run.spent.reported.total, run.run.spent.estimated.total) == (940, 0)


def test_an_attempt_that_failed_before_anything_came_costs_nothing(start: Start) -> None:
    run = start()
    run.tell(f.ModelFailed(error=f.ErrorInfo(type="overloaded", message="", retryable=True, http_status=529), usage=f.Usage()))
    assert run.run.spent.tokens == 0


def test_both_attempts_count_where_the_first_broke(start: Start) -> None:
    run = start()
    broke = f.ModelFailed(
        error=f.ErrorInfo(type="reset", message="", retryable=True, mid_stream=True),
        text="Hello wo",
        calls=HALF,
        usage=f.Usage(input_tokens=100, output_tokens=1),
        unreported=f.Usage(output_tokens=5, estimated=True),
    )
    assert run.tell(broke) == ["model_failed", "retry_scheduled", "model_requested"]
    run.answer("Hello world", usage=f.Usage(input_tokens=100, output_tokens=11))
    assert (run.run.spent.reported.total, run.run.spent.estimated.total) == (212, 5)
    # and the text of the first is in no message
    assert [message.text for message in run.run.fresh] == ["Hello world"]


# -- what of it the model sees later


def test_what_a_cancelled_stream_said_is_in_the_history_as_interrupted(start: Start) -> None:
    # given a stream that was cancelled in the middle of a call
    run = start()
    run.cancel("enough")
    run.interrupt("cancelled", text="I will look", calls=HALF, opaque=({"signature": "of half a thought"},))
    # then its text is kept and marked, the half call is none, and what only its provider can read is left out
    (message,) = run.run.fresh
    assert (message.role, message.text, message.kind, message.calls, message.opaque) == ("assistant", "I will look", "interrupted", (), ())


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_cancelled_stream_that_said_nothing_leaves_no_message(start: Start, text: str) -> None:
    run = start()
    run.cancel("enough")
    run.interrupt("cancelled", text=text)
    assert run.run.fresh == ()


# -- pauses and overflows


def test_a_pause_is_gone_on_with_and_is_no_error(start: Start) -> None:
    run = start()
    # when a provider pauses, with something that only it can read
    facts = run.interrupt("paused", text="Searching", opaque=({"search": 1},), usage=f.Usage(input_tokens=30, output_tokens=5))
    # then what was said is the assistant's message, whole, and the model is asked again
    assert facts == ["model_interrupted", "model_paused", "model_requested"]
    assert [entry.kind for entry in run.run.entries] == ["user", "paused"]
    assert (run.run.turn, run.run.spent.model_errors) == (2, 0)
    run.answer()
    assert run.run.status == "completed"


def test_a_pause_before_anything_was_said_keeps_what_only_the_provider_can_read(start: Start) -> None:
    run = start()
    run.cancel()  # which comes first
    assert run.interrupt("paused", opaque=({"search": 1},))[-1] == "run_cancelled"
    run = start()
    assert run.interrupt("paused", opaque=({"search": 1},))[-1] == "model_requested"
    assert [entry.kind for entry in run.run.entries] == ["user", "paused"]


def test_pauses_are_bounded_by_turns(start: Start) -> None:
    run = start(budgets=Budgets(max_turns=3))
    for _ in range(2):
        assert run.interrupt("paused", text="still searching")[-1] == "model_requested"
    assert run.interrupt("paused", text="still searching")[-1] == "run_stopped"
    assert run.run.reason == "max_turns"


def test_a_request_that_the_model_cannot_read_fails_in_those_words(start: Start) -> None:
    for end in (
        lambda run: run.interrupt("overflow"),
        lambda run: run.tell(
            f.ModelFailed(error=f.ErrorInfo(type="invalid_request_error", message="213,462 tokens", code="context_length_exceeded", overflow=True))
        ),
    ):
        run = start()
        end(run)
        assert (run.run.status, run.run.reason) == ("failed", "provider")
        assert run.run.detail.startswith("the request was longer than the model's window")
