"""Stop reasons: a refusal is an outcome, an unknown word stays what it is, and what was cut off is never carried out."""

from typing import Any

import pytest

from refold import Policy, tool
from refold.events import facts as f
from refold.runtime.cli import exits
from refold.testing.replies import APIS, Api, chunk, event

CHAT, RESPONSES, MESSAGES = APIS.values()
WHY = "It would do harm."
PERSISTENT = Policy(max_provider_retries=3, max_model_errors=3)
DONE = b"data: [DONE]\n\n"


def writer(ran: list[str]) -> Any:
    @tool(effect="read", repeatable=True)
    def write(path: str, content: str = "") -> str:
        """Writes."""
        ran.append(path)
        return f"SECRET of {path}"

    return write


def the(result: Any, kind: type[f.Fact]) -> list[Any]:
    return [record.fact for record in result.records if isinstance(record.fact, kind)]


def categorised() -> list[bytes]:
    """A refusal of Anthropic that names nothing but a category."""
    start = event("message_start", message={"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 11}})
    delta = {"stop_reason": "refusal", "stop_details": {"type": "refusal", "category": "cyber", "explanation": None}}
    return [start, event("message_delta", delta=delta, usage={"output_tokens": 1}), event("message_stop")]


DECLINED: dict[str, tuple[Api, list[bytes], str, str]] = {
    "messages: refusal": (MESSAGES, MESSAGES.declined(WHY), WHY, "refusal"),
    "messages: refusal with a category": (MESSAGES, categorised(), "cyber", "refusal"),
    "chat: refusal field with stop": (CHAT, CHAT.declined(WHY), WHY, "stop"),
    "chat: content_filter": (CHAT, CHAT.text(stop="content_filter"), "content filter", "content_filter"),
    "responses: refusal item": (RESPONSES, RESPONSES.declined(WHY), WHY, "completed"),
    "responses: content_filter": (RESPONSES, RESPONSES.text(stop="content_filter"), "content filter", "incomplete:content_filter"),
}


@pytest.mark.parametrize(("api", "reply", "why", "word"), DECLINED.values(), ids=DECLINED)
def test_B104_a_refusal_is_an_outcome_and_no_reason_to_try_again(wire, api, reply, why, word):
    # given a provider that declines with HTTP 200, and a run that would try again
    # when
    result = wire.play(api, [reply, api.text("never")], policy=PERSISTENT)
    # then one request was made, and the run ended as refused, with the provider's reason and a code of its own
    assert len(wire.requests) == 1
    assert (result.status, result.reason, result.answer) == ("failed", "refusal", None)
    assert why in result.detail
    assert exits.OF_STATUS[result.status] != 0
    assert the(result, f.RetryScheduled) == []
    (said,) = the(result, f.ModelOutput)
    assert said.provider_stop_reason == word


def test_B105_a_refusal_after_a_result_is_said_each_time_and_leaves_the_run_usable(wire, api):
    # given a call, and a refusal once its result is read
    ran: list[str] = []
    agent = wire.agent(api, [writer(ran)], policy=PERSISTENT)
    store = wire.stage.store
    wire.says(api.calls(("a", "write", ['{"path": "x"}'])), api.declined(WHY))
    # when
    first = agent.run_sync("Do it.", store=store)
    # then the user is told why, and the log has what was read before
    assert (first.status, first.reason, ran) == ("failed", "refusal", ["x"])
    assert WHY in first.detail
    types = [record.type for record in first.records]
    assert types.index("tool_succeeded") < types.index("tool_results_injected") < types.index("final_proposed") < types.index("run_failed")
    (read,) = the(first, f.ToolSucceeded)
    assert read.result == "SECRET of x"
    # and when the user speaks again, then the next refusal is told as well
    wire.says(api.declined("Still not."))
    second = agent.continue_run_sync(first.id, "Please.", store=store)
    assert (second.status, second.reason) == ("failed", "refusal")
    assert "Still not." in second.detail
    # and the run can be used: the model answers at last
    wire.says(api.text("Well then."))
    third = agent.continue_run_sync(second.id, "Something else.", store=store)
    assert (third.status, third.answer) == ("completed", "Well then.")
    # no request has an empty message of the assistant (the strict checker sees to it), and each shows the words of the user
    sent = [str(heard.json) for heard in wire.requests]
    assert len(sent) == 4
    assert "Please." in sent[2]
    assert "Please." in sent[3]
    assert "Something else." in sent[3]
    spoken = wire.requests[3].json.get("messages") or wire.requests[3].json["input"]
    assert [said for said in spoken if said.get("role") == "assistant" and not (said.get("content") or said.get("tool_calls"))] == []


def test_B105_a_run_that_observes_refusals_goes_on(wire, api):
    # given a run that is to go on where the model declines
    ran: list[str] = []
    replies = [api.calls(("a", "write", ['{"path": "x"}'])), api.declined(WHY), api.text("Something else.")]
    # when
    result = wire.play(api, replies, [writer(ran)], policy=Policy(on_refusal="observe"))
    # then the refusal is in the log, the model is told, and its answer is the next
    (rejected,) = the(result, f.FinalRejected)
    assert rejected.because == "refusal"
    assert (result.status, result.answer) == ("completed", "Something else.")


MEANT: dict[str, tuple[str, str]] = {
    "stop": ("completed", "stop"),
    "length": ("rejected", "length"),
    "tool_calls": ("completed", "tool_calls"),
    "function_call": ("completed", "tool_calls"),
    "content_filter": ("refused", "content_filter"),
    "model_length": ("rejected", "length"),
    "error": ("failed", ""),
    "pause_turn": ("paused", "pause"),
    "max_output_tokens": ("rejected", "length"),
    "": ("completed", "unknown"),
    "weird": ("completed", "unknown"),
}
"""What becomes of a text that ends with a word, and how the log maps it; null is the same as none."""


def ended(api: Api, word: str | None) -> list[bytes]:
    """A text that ends for this reason, in the form of the API; Responses says `completed`, or incomplete and why."""
    if api is CHAT:
        return [chunk({"content": "Half"}), chunk({}, word), DONE]
    if api is MESSAGES:
        return [MESSAGES.text("Half")[0], *[e for e in MESSAGES.text("Half", stop="WORD") if b"block" in e], *closing(word)]
    response: dict[str, Any] = {"id": "r", "status": "incomplete", "incomplete_details": {"reason": word}, "output": []}
    return [*[e for e in RESPONSES.text("Half") if b'completed"' not in e or b"output_item" in e], event("response.incomplete", response=response)]


def closing(word: str | None) -> list[bytes]:
    return [event("message_delta", delta={"stop_reason": word}, usage={"output_tokens": 3}), event("message_stop")]


@pytest.mark.parametrize("word", [*MEANT, None])
def test_B106_every_reason_to_stop_has_a_row_and_none_is_taken_for_success(wire, api, word):
    # given a text that ends for this reason, and an answer for whoever asks again
    fate, mapped = MEANT[word or ""]
    # when
    result = wire.play(api, [ended(api, word), api.text("Whole.")], policy=Policy(max_provider_retries=0))
    # then the log has the provider's own word beside what it means
    said = the(result, f.ModelOutput)
    if fate == "failed":
        (failed,) = the(result, f.ModelFailed)
        assert word in (failed.error.type, failed.error.code)
        assert failed.error.retryable
    else:
        assert said[0].stop_reason == mapped
        assert said[0].provider_stop_reason == (f"incomplete{f':{word}' if word else ''}" if api is RESPONSES else word or "")
        assert said[0].text == "Half"
    # and what follows is what that means
    match fate:
        case "completed":
            assert (result.status, result.answer) == ("completed", "Half")
        case "failed":
            assert (result.status, result.reason, result.answer) == ("failed", "max_provider_retries", None)
        case "refused":
            assert (result.status, result.reason) == ("failed", "refusal")
        case "rejected":
            assert [rejected.because for rejected in the(result, f.FinalRejected)] == ["length"]
            assert result.answer == "Whole."
        case _:
            assert (result.status, result.answer) == ("completed", "Whole.")


@pytest.mark.parametrize("word", ["", "weird", None])
def test_B106_nothing_said_for_an_unknown_reason_is_no_answer(wire, api, word):
    # given a reply that says nothing and ends for no known reason
    nothing = [e for e in ended(api, word) if b"Half" not in e]
    # when
    result = wire.play(api, [nothing] * 2, policy=Policy(max_model_errors=1))
    # then it is not done: the turn is invalid, and the run says so
    assert [fact.cause for fact in the(result, f.ModelInterrupted)] == ["invalid", "invalid"]
    assert (result.status, result.reason, result.answer) == ("failed", "max_model_errors", None)
    assert [fact.stop_reason for fact in the(result, f.ModelInterrupted)] == ["unknown", "unknown"]


CUT = {"openai.chat": "length", "openai.responses": "max_output_tokens", "anthropic.messages": "max_tokens"}
HALF = '{"path": "f", "content": "first half"}'


def test_B112_calls_of_a_truncated_reply_are_never_run_even_where_they_parse(wire, api):
    """The contract goes before the scenario: calls of a reply that was cut are no calls, so instead of a result each the model gets one word about all of them."""
    # given a reply cut at the limit, whose last call parses by luck, and a model that then sends smaller ones
    ran: list[str] = []
    cut = api.calls(("a", "write", ['{"path": "e", "content": "all"}']), ("b", "write", [HALF]), stop=CUT[api.name])
    smaller = api.calls(("c", "write", ['{"path": "e", "content": "1"}']))
    # when
    result = wire.play(api, [cut, smaller, api.text("done")], [writer(ran)])
    # then neither of the first was run, the model was told to send smaller ones, and the loop went on
    (interrupted,) = the(result, f.ModelInterrupted)
    assert interrupted.cause == "length"
    assert [call.arguments_text for call in interrupted.calls] == ['{"path": "e", "content": "all"}', HALF]
    assert ran == ["e"]
    assert "cut off at the output limit, so none of its calls was run; call again with smaller arguments" in wire.requests[1].body.decode()
    assert (result.status, result.answer) == ("completed", "done")


def test_B112_a_reply_that_is_cut_again_and_again_ends_the_run(wire, api):
    # given a model that never learns
    ran: list[str] = []
    cut = api.calls(("b", "write", [HALF]), stop=CUT[api.name])
    policy = Policy()
    # when
    result = wire.play(api, [cut] * 5, [writer(ran)])
    # then the run ends after the tries that the policy has for turns that come to nothing
    assert (result.status, result.reason) == ("failed", "max_model_errors")
    assert len(wire.requests) == policy.max_model_errors + 1
    assert "cut off at the output limit" in result.detail
    assert ran == []
