"""What is reserved before a request: tokens and money, by an estimate that leans on what the provider reported."""

from decimal import Decimal
from typing import Any

import pytest

from refold.events import facts as f
from refold.events.settings import Budgets, Policy
from refold.fsm import limits
from refold.projections.prefix import parts
from refold.testing.trajectory import Act, Trajectory

from .conftest import Start

LOOK = Act("look", '{"at":"north"}')
EDIT = Act("edit", '{"at":"south"}', effect="idempotent")
PRICE = f.Price(input="3", output="15", cached_input="0.3", cache_write="3.75")
FREE: dict[str, Any] = {"max_tokens": None, "max_cost_usd": None}


def after_one_turn(start: Start, usage: f.Usage | None, result: str = "fine", **arguments: Any) -> tuple[Trajectory, f.ModelRequested, int]:
    """A run that made its second request, that request, and how many bytes it showed beyond the first."""
    run = start(**arguments)
    run.calls(LOOK, usage=usage)
    before = run.run.size
    run.succeed("t1.1", result)
    return run, run.found("model_requested"), run.run.size - before


# -- the estimate


def test_without_a_report_four_bytes_are_a_token(start: Start) -> None:
    run, request, _ = after_one_turn(start, None)
    assert request.estimated_input_tokens == -(-run.run.size // 4)
    # and the size is of exactly what is shown
    assert run.run.size == sum(part.size for part in parts(run.run, bare=False))


def test_what_the_provider_said_it_read_is_where_the_next_estimate_begins(start: Start) -> None:
    # given a provider that reads a token in three bytes, and has words of its own in front
    first = start(instructions="x" * 3_000)
    size = first.run.size
    first.calls(LOOK, usage=f.Usage(input_tokens=size // 3, output_tokens=5))
    # when much is shown for the first time
    first.succeed("t1.1", "y" * 9_000)
    # then the estimate is what it said, and a third of what is new
    new = first.run.size - size
    estimate = first.found("model_requested").estimated_input_tokens
    assert abs(estimate - (size // 3 + new / 3)) <= 2


@pytest.mark.parametrize("said", [0, 1, 10**12])
def test_a_provider_that_reports_nonsense_does_not_make_everything_fit_or_nothing(start: Start, said: int) -> None:
    # given a provider that reports nothing, next to nothing, or far too much of one long request
    run, request, new = after_one_turn(start, f.Usage(input_tokens=said), "z" * 40_000, instructions="x" * 40_000, budgets=Budgets(**FREE))
    # then the estimate is never less than a sixteenth of the bytes, and no more than what was said and half of what is new
    assert run.run.size // 16 <= request.estimated_input_tokens <= max(run.run.size // 4 + 1, said + new // 2 + 1)


def test_the_latest_report_counts(start: Start) -> None:
    run = start(instructions="x" * 4_000)
    for turn, tokens in enumerate((900, 1_300), 1):
        run.calls(Act("look", f'{{"at":{turn}}}'), usage=f.Usage(input_tokens=tokens))
        run.succeed(f"t{turn}.1")
    assert run.run.measured is not None
    assert run.run.measured.tokens == 1_300
    assert 1_300 < run.found("model_requested").estimated_input_tokens < 1_400


def test_an_estimate_of_ours_is_no_report(start: Start) -> None:
    run = start()
    run.calls(LOOK, usage=f.Usage(input_tokens=900, estimated=True))
    assert run.run.measured is None


# -- money


def test_the_output_limit_is_what_the_money_leaves(start: Start) -> None:
    # given a budget that reaches for about a thousand tokens of output
    run = start(price=PRICE, budgets=Budgets(max_cost_usd="0.016"))
    request = run.found("model_requested")
    # then the input is reserved at the dearest way to read it, and the output is what the rest pays
    reserved = request.estimated_input_tokens * Decimal("3.75") + request.max_output_tokens * 15
    assert 256 <= request.max_output_tokens < 4_096
    assert reserved <= Decimal("0.016") * 1_000_000 < reserved + 15


def test_a_request_that_would_cost_too_much_is_not_made(start: Start) -> None:
    # given a budget that the first turn leaves little of, and a large result
    run = start(price=PRICE, budgets=Budgets(max_cost_usd="0.02"), policy=Policy(wrap_up=False))
    run.calls(LOOK, usage=f.Usage(input_tokens=1_000, output_tokens=200))
    # when
    facts = run.succeed("t1.1", "y" * 20_000)
    # then the run stops with what it has spent, below the limit
    assert facts[-1] == "run_stopped"
    assert (run.run.status, run.run.reason) == ("stopped", "max_cost_usd")
    assert run.run.spent.cost_usd == "0.006"
    assert "the shortest answer to the next request would cost about" in run.run.detail


def test_a_reservation_of_just_what_is_left_is_made(start: Start) -> None:
    # given a budget that pays the input and the shortest answer to the last millionth
    reads = start(price=PRICE).found("model_requested").estimated_input_tokens
    exact = (reads * Decimal("3.75") + 256 * 15) / 1_000_000
    for budget, made in ((exact, True), (exact - Decimal("0.00000001"), False)):
        # when
        run = start(price=PRICE, budgets=Budgets(max_cost_usd=str(budget)))
        # then that request is made, and one that lacks a hundredth of that is not
        assert (run.run.state == "streaming_model") is made
        assert (run.run.reason == "max_cost_usd") is not made


def test_a_model_that_costs_nothing_is_not_limited_by_money(start: Start) -> None:
    run = start(price=f.Price(input="0", output="0"), budgets=Budgets(max_cost_usd="0.01"))
    assert run.found("model_requested").max_output_tokens == 4_096


def test_nothing_is_reserved_where_there_is_no_price(start: Start) -> None:
    run = start(budgets=Budgets(max_cost_usd="0.000001"))
    assert run.found("model_requested").max_output_tokens == 4_096


def test_the_last_turn_that_the_money_allows_is_for_the_answer(start: Start) -> None:
    # given money for about two requests
    run = start(price=PRICE, budgets=Budgets(max_cost_usd="0.02", max_tokens=None))
    run.calls(LOOK, usage=f.Usage(input_tokens=1_000, output_tokens=300))
    run.succeed("t1.1")
    assert run.found("model_requested").wrap_up
    # when it brings calls all the same
    run.calls(EDIT, usage=f.Usage(input_tokens=1_100, output_tokens=300))
    # then the run stops because of the money
    assert run.kinds == ["limit_reached"]
    assert (run.run.status, run.run.reason) == ("stopped", "max_cost_usd")


# -- attempts


def test_another_attempt_may_write_what_is_left_then(start: Start) -> None:
    # given a request whose stream broke after most of the budget
    run = start(budgets=Budgets(max_tokens=5_000))
    asked = run.found("model_requested")
    failed = f.ModelFailed(error=f.ErrorInfo(type="reset", message="", retryable=True), text="so", usage=f.Usage(input_tokens=40, output_tokens=4_000))
    # when it is made again
    assert run.tell(failed)[-2:] == ["retry_scheduled", "model_requested"]
    again = run.found("model_requested")
    # then it shows the same and may write less
    assert (again.digest, again.estimated_input_tokens) == (asked.digest, asked.estimated_input_tokens)
    assert again.max_output_tokens == 5_000 - 4_040 - again.estimated_input_tokens


def test_an_attempt_that_would_overshoot_is_not_made(start: Start) -> None:
    run = start(budgets=Budgets(max_tokens=4_200))
    failed = f.ModelFailed(error=f.ErrorInfo(type="reset", message="", retryable=True), text="so", usage=f.Usage(input_tokens=40, output_tokens=4_000))
    assert run.tell(failed)[-1] == "run_stopped"
    assert run.run.reason == "max_tokens"


# -- engine 1


def test_a_run_of_the_first_engine_goes_on_as_it_began(start: Start) -> None:
    run = start(engine=1, price=PRICE, budgets=Budgets(max_cost_usd="0.001"))
    assert run.found("model_requested").max_output_tokens == 4_096
    run.calls(LOOK, usage=f.Usage(input_tokens=10, output_tokens=1))
    run.succeed("t1.1")
    assert run.run.measured is None
    assert run.found("model_requested").estimated_input_tokens == limits.estimated_input(run.run)
