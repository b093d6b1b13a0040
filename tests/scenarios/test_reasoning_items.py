"""Reasoning items: what a provider wants back goes back to it alone, as it came, however often the model is changed in between."""

import json
from typing import Any

import pytest

from refold import tool
from refold.events import facts as f
from refold.projections.run import Run
from refold.testing.replies import APIS, Api, chunk, event

CHAT, RESPONSES, MESSAGES = APIS.values()
SEALED = "gAAA+opaque/of=="
DONE = b"data: [DONE]\n\n"


@tool(effect="read", repeatable=True)
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


ARGUMENTS = '{"at": "home"}'
ITEM = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I look first."}], "encrypted_content": SEALED}
THINKING = {"type": "thinking", "thinking": "I look first.", "signature": SEALED}
REDACTED = {"type": "redacted_thinking", "data": f"{SEALED}2"}
DETAIL = {"type": "reasoning.encrypted", "data": SEALED, "format": "some-v1", "index": 0}


def reasoned(api: Api) -> list[bytes]:
    """A call behind reasoning that is sealed, in the form of the API."""
    if api is CHAT:
        call = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": ARGUMENTS}}
        return [chunk({"reasoning": "I look first.", "reasoning_details": [DETAIL]}), chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), DONE]
    if api is RESPONSES:
        call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": ARGUMENTS, "status": "completed"}
        response = {"id": "r1", "status": "completed", "output": [ITEM, call], "usage": {"input_tokens": 11, "output_tokens": 7}}
        done = [event("response.output_item.done", output_index=n, item=item) for n, item in enumerate((ITEM, call))]
        return [*done, event("response.completed", response=response)]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": "I look first."}, {"type": "signature_delta", "signature": SEALED}],
        ),
        (REDACTED, []),
        ({"type": "tool_use", "id": "call_1", "name": "look", "input": {}}, [{"type": "input_json_delta", "partial_json": ARGUMENTS}]),
    ]
    made = [event("message_start", message={"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 11}})]
    for n, (block, deltas) in enumerate(blocks):
        made.append(event("content_block_start", index=n, content_block=block))
        made += [event("content_block_delta", index=n, delta=delta) for delta in deltas]
        made.append(event("content_block_stop", index=n))
    return [*made, event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 7}), event("message_stop")]


def sealed(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything in a request that only one provider can read, in order."""
    found: list[dict[str, Any]] = []
    for entry in body.get("messages") or body["input"]:
        if entry.get("type") == "reasoning":
            found.append(entry)
        found += entry.get("reasoning_details", [])
        if isinstance(entry.get("content"), list):
            found += [block for block in entry["content"] if block["type"] in ("thinking", "redacted_thinking")]
    return found


WANTED: dict[str, list[dict[str, Any]]] = {CHAT.name: [DETAIL], RESPONSES.name: [ITEM], MESSAGES.name: [THINKING, REDACTED]}
SWITCHES = [(first, second) for first in APIS.values() for second in APIS.values()]


@pytest.mark.parametrize(("first", "second"), SWITCHES, ids=[f"{a.name} to {b.name}" for a, b in SWITCHES])
def test_B122_thinking_goes_back_to_the_model_it_is_from_and_to_no_other(wire, first, second):
    # given a run of one provider whose reasoning is sealed
    store = wire.stage.store
    name = "other-model" if second is first else "test-model"
    wire.says(reasoned(first), first.text("It is home."))
    begun = wire.agent(first, [look]).run_sync("Where is it?", store=store)
    assert sealed(wire.requests[1].json) == WANTED[first.name]
    # when it goes on with another provider, or another model of the same
    wire.says(second.text("As I said."))
    other = wire.agent(second, [look])
    other.model = wire.model(second, name)
    switched = other.continue_run_sync(begun.id, "Sure?", store=store)
    # then its request is legal (the strict checker sees to it), holds what was said and seen, and nothing that is sealed
    asked = wire.requests[2]
    assert sealed(asked.json) == []
    assert SEALED not in json.dumps(asked.json)
    for said in ("Where is it?", "seen home", "It is home.", "Sure?"):
        assert said in json.dumps(asked.json)
    # the log still holds it, and says that the model is another
    (called,) = [record.fact for record in begun.records if isinstance(record.fact, f.ToolCallsRequested)]
    kept = json.dumps([dict(item) for item in called.opaque])
    assert SEALED in kept
    assert (called.opaque[0]["api"], called.reasoning) == (first.name, "I look first.")
    assert models_of(switched.run, switched.records) == [wire.model(second, name).spec]
    assert models_of(begun.run, begun.records) == [wire.model(first).spec]
    # and when the first is asked again, then it gets back what it gave, unchanged
    wire.says(first.text("Still so."))
    back = wire.agent(first, [look]).continue_run_sync(switched.id, "And now?", store=store)
    assert back.answer == "Still so."
    assert sealed(wire.requests[3].json) == WANTED[first.name]
    assert "As I said." in json.dumps(wire.requests[3].json)


@pytest.mark.parametrize(("first", "second"), [(MESSAGES, RESPONSES), (RESPONSES, CHAT), (CHAT, MESSAGES)], ids=["messages", "responses", "chat"])
def test_B122_a_run_that_is_resumed_with_another_provider_sends_it_nothing_that_is_sealed(wire, first, second):
    # given a run of one provider that waits for an approval behind its reasoning
    store = wire.stage.store

    @tool(effect="read", approval="always", repeatable=True)
    def look(at: str) -> str:
        """Looks."""
        return f"seen {at}"

    wire.says(reasoned(first))
    waiting = wire.agent(first, [look]).run_sync("Where is it?", store=store)
    assert waiting.status == "waiting_for_user"
    store.approve_sync(waiting.id)
    # when it is resumed with another
    wire.says(second.text("At home."))
    result = wire.agent(second, [look]).resume_sync(waiting.id, store=store)
    # then that one gets a legal request, which holds the call and its result, and nothing of the first's that is sealed
    assert (result.status, result.answer) == ("completed", "At home.")
    asked = json.dumps(wire.requests[1].json)
    assert SEALED not in asked
    assert "seen home" in asked
    # the log says with which model the run went on
    (switched,) = [fact.switched for record in result.records if isinstance(fact := record.fact, f.DriverAttached) and fact.switched is not None]
    assert (switched.model, switched.base_url) == (wire.model(second).spec, wire.model(second).base_url)
    assert result.run.begun.model == switched.model
    # and the first gets its own back, unchanged, when it goes on
    wire.says(first.text("Still so."))
    wire.agent(first, [look]).continue_run_sync(waiting.id, "Sure?", store=store)
    assert sealed(wire.requests[2].json) == WANTED[first.name]


def models_of(run: Run, records: Any) -> list[str]:
    """The models that the records of a run name."""
    named = [record.fact.setup.model for record in records if isinstance(record.fact, f.RunStarted | f.RunContinued)]
    assert run.begun.model == named[-1]
    return named
