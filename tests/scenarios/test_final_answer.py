"""Final answers: a run is completed by an answer that stands, and by nothing else."""

from typing import Any

import pytest
from pydantic import BaseModel

from refold import Agent, Budgets, Policy, ToolResult, answer_is, cites_read_documents, tool
from refold.runtime import ports as p


def test_B172_an_answer_that_cites_nothing_is_fine_where_citing_is_optional(stage):
    # given no validator, and an answer without citations of a run that used no source
    # when
    result = stage.play([{"text": "Four."}])
    # then it stands
    assert (result.status, result.answer, result.citations) == ("completed", "Four.", [])


def test_B172_an_answer_that_cites_nothing_is_turned_down_with_words_where_citing_is_required(stage):
    # given the rule that answers cite, and a run that read nothing
    # when the model answers without a source, then says that there is none
    result = stage.play([{"text": "Four."}, {"text": "The documents do not answer this."}], validators=[cites_read_documents])
    # then the model was asked to cite, and saying that no source exists is accepted
    told = stage.requests()[1].messages[-1]
    assert told.role == "user"
    assert "names no document" in told.text
    assert (result.status, result.answer) == ("completed", "The documents do not answer this.")


def test_B172_citing_what_was_read_is_accepted(stage):
    # given a source that was read
    @tool(effect="read")
    def read() -> ToolResult:
        """Read."""
        return ToolResult(data="4", source_ids=["sums"])

    # when
    result = stage.play([{"calls": [{"name": "read"}]}, {"text": "Four [sums]."}], [read], validators=[cites_read_documents])
    # then
    assert (result.status, [cited["doc_id"] for cited in result.citations]) == ("completed", ["sums"])


class Rate(BaseModel):
    percent: float
    years: list[int]


def test_B173_a_structured_answer_that_is_never_valid_ends_at_a_limit(stage):
    # given four turns (one answer and three repairs) and a model whose object is invalid in ever new ways
    turns = [{"text": f'{{"percent": "about {n}", "years": "{"x" * 50_000}"}}', "usage": {"input_tokens": 10, "output_tokens": 10}} for n in range(20)]
    # when
    result = stage.play(turns, validators=[answer_is(Rate)], budgets=Budgets(max_turns=4, max_tokens=None))
    # then there were 1 + 3 requests, no success, and every attempt is in the log and counted
    requests = stage.requests()
    assert (len(requests), result.status, result.reason, result.answer) == (4, "stopped", "max_turns", None)
    assert [record.type for record in result.records].count("final_rejected") == 4
    assert result.usage["reported"]["output_tokens"] == 40
    # and what each attempt adds beside the answer itself is small, and says what is wrong
    told = requests[1].messages[-1].text
    assert "percent" in told
    assert "years" in told
    assert len(told) < 2_000


def test_B173_the_same_invalid_answer_again_and_again_is_a_cycle(stage):
    # given a model that repeats one invalid object
    # when it may take fifty turns
    result = stage.play([{"text": '{"percent": "lots"}'}] * 50, validators=[answer_is(Rate)], budgets=Budgets(max_turns=50))
    # then the run fails after three
    assert (result.status, result.reason, result.turns, result.answer) == ("failed", "cycle", 3, None)


def test_B173_a_validator_that_raises_fails_the_run_and_is_named(stage):
    # given a validator with a bug
    class NotReady(Exception):
        pass

    def strict_rule(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
        raise NotReady("no connection to the rule book")

    # when
    result = stage.play([{"text": "Four."}], validators=[strict_rule])
    # then the answer does not stand, and the run says whose fault it is
    assert (result.status, result.reason, result.answer) == ("failed", "validator", None)
    assert "strict_rule" in result.detail
    assert "NotReady" in result.detail


def test_B173_a_valid_answer_ends_the_repairs(stage):
    # given a model that gets it right the second time
    # when
    result = stage.play([{"text": '{"percent": "4"}'}, {"text": '{"percent": 4, "years": [2023, 2024]}'}], validators=[answer_is(Rate)])
    # then
    assert (result.status, result.turns) == ("completed", 2)


EMPTY: dict[str, dict[str, Any]] = {
    "nothing": {"text": ""},
    "blank": {"text": " \n\t "},
    "zero width": {"text": "\u200b\u2060"},
    "only reasoning": {"reasoning": "The answer is four."},
    "reasoning and blank": {"reasoning": "The answer is four.", "text": "\n"},
}


@pytest.mark.parametrize("validators", [[], [lambda run, answer, citations: []]], ids=["plain", "validated"])
@pytest.mark.parametrize("case", EMPTY)
def test_B174_an_empty_answer_is_never_a_success(stage, case, validators):
    # given a model that answers with nothing
    # when
    result = stage.play([EMPTY[case]] * 12, validators=validators)
    # then it is told twice, and then the run fails; reasoning is not promoted
    assert (result.status, result.reason, result.answer, result.turns) == ("failed", "max_model_errors", None, 3)
    assert "the response was empty" in stage.requests()[1].messages[-1].text
    assert not any("four" in message.text for request in stage.requests() for message in request.messages)


def test_B174_after_the_nudge_an_answer_is_an_answer(stage):
    # given a model that answers when it is told
    # when
    result = stage.play([{"text": ""}, {"text": "Four."}])
    # then
    assert (result.status, result.answer) == ("completed", "Four.")


@pytest.mark.parametrize(
    "entry", [{"refusal": "I cannot help with that."}, {"text": "", "stop_reason": "refusal"}, {"text": "I cannot.", "stop_reason": "refusal"}]
)
def test_B174_a_refusal_is_no_answer(stage, entry):
    # given a model that declines in the field for it
    # when
    result = stage.play([entry])
    # then the run failed for that reason
    assert (result.status, result.reason, result.answer) == ("failed", "refusal", None)


def test_B174_a_model_that_declined_may_be_asked_to_do_a_part(stage):
    # given the policy to tell the model
    # when it then answers
    result = stage.play([{"refusal": "I cannot help with that."}, {"text": "This part I can do."}], policy=Policy(on_refusal="observe"))
    # then that is the answer
    assert (result.status, result.answer) == ("completed", "This part I can do.")


def test_B174_a_stream_without_any_part_but_its_end_is_empty_too(stage):
    # given a model that only says that it is finished
    model = stage.parts([p.Finished(stop_reason="stop")])
    # when
    result = Agent(model=model).run_sync("Do it.", store=stage.store)
    # then
    assert (result.status, result.reason) == ("failed", "max_model_errors")
