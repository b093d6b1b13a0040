"""Ids of calls: ours are by place and cannot collide; what providers give for ids never decides which result belongs to which call."""

import json
from typing import Any

from refold import Agent, ScriptedModel, tool
from refold.runtime import ports as p


def read_tool(ran: list[str], **options: Any) -> Any:
    @tool(effect="read", **options)
    def read(path: str) -> str:
        """Read."""
        ran.append(path)
        return f"CONTENT {path.upper()}"

    return read


def test_B021_two_calls_with_one_id_never_lose_a_result(stage):
    # given a response in which two different calls have the same id
    ran: list[str] = []
    twice = {"calls": [{"id": "k", "name": "read", "arguments": {"path": "a"}}, {"id": "k", "name": "read", "arguments": {"path": "b"}}]}
    once = {"calls": [{"id": "k", "name": "read", "arguments": {"path": "a"}}, {"id": "l", "name": "read", "arguments": {"path": "b"}}]}
    # when the model gives it, is told, and calls again
    result = stage.play([twice, once, {"text": "done"}], [read_tool(ran)])
    # then nothing of the first ran, the model was told why, and both results of the second are there, each with its call
    requests = stage.requests()
    assert ran == ["a", "b"]
    assert "two calls of the response have the id 'k'" in requests[1].messages[-1].text
    called, first, second = requests[2].messages[-3:]
    assert [json.loads(call.arguments_text)["path"] for call in called.calls] == ["a", "b"]
    assert [(message.call_id, message.content) for message in (first, second)] == [("t2.1", "CONTENT A"), ("t2.2", "CONTENT B")]
    assert result.status == "completed"


def test_B021_one_id_in_two_turns_is_two_calls(stage):
    # given a provider that begins to count anew in every response
    ran: list[str] = []
    turns = [{"calls": [{"id": "call_0", "name": "read", "arguments": {"path": path}}]} for path in "abc"]
    # when
    stage.play([*turns, {"text": "done"}], [read_tool(ran)])
    # then every result stands next to its own call, live and rebuilt (the stage compares every request with its log)
    messages = stage.requests()[-1].messages
    assert [message.content for message in messages if message.role == "tool"] == ["CONTENT A", "CONTENT B", "CONTENT C"]
    assert [call.id for message in messages for call in message.calls] == ["t1.1", "t2.1", "t3.1"]


def searches(with_id: str) -> list[list[p.Part]]:
    """A stream of two searches by a provider that gives no ids, or the same useless one."""
    calls: list[p.Part] = []
    for index, query in enumerate("AB"):
        calls += [
            p.ToolCallOpened(index=index, name="search", id=with_id),
            p.ArgumentsDelta(index=index, text='{"q":'),
            p.ArgumentsDelta(index=index, text=f'"{query}"}}'),
        ]
    return [[*calls, p.Finished(stop_reason="tool_calls")], [p.TextDelta(text="done"), p.Finished(stop_reason="stop")]]


def test_B023_calls_without_ids_are_two_calls_with_two_approvals(stage, results_of):
    # given a stream without ids, of two searches that need approval
    ran: list[str] = []

    @tool(effect="read", approval="always")
    def search(q: str) -> str:
        """Search."""
        ran.append(q)
        return f"found {q}"

    agent = Agent(model=stage.parts(*searches("")), tools=[search])
    waiting = agent.run_sync("Search.", store=stage.store)
    # when one of them is approved
    asked = [call for call in waiting.run.calls if call.phase == "waiting"]
    assert [json.loads(call.check.arguments) for call in asked] == [{"q": "A"}, {"q": "B"}]
    assert asked[0].approval != asked[1].approval
    stage.store.approve_sync(waiting.id, asked[1].id)
    half = agent.resume_sync(waiting.id, store=stage.store)
    # then that one runs, with its own arguments, and the other still waits
    assert ran == ["B"]
    assert half.status == "waiting_for_user"
    assert [call.id for call in half.run.calls if call.phase == "waiting"] == ["t1.1"]
    # and when the other is approved too, both results are there in call order
    stage.store.approve_sync(waiting.id)
    result = agent.resume_sync(waiting.id, store=stage.store)
    assert ran == ["B", "A"]
    assert list(results_of(result).values()) == [("success", "found A"), ("success", "found B")]


def test_B023_an_id_that_is_the_name_of_the_function_folds_nothing_into_one(stage):
    # given a provider whose id is the name of the function, for both
    ran: list[str] = []

    @tool(effect="read")
    def search(q: str) -> str:
        """Search."""
        ran.append(q)
        return q

    first, last = searches("search")
    # when it says so twice and then answers
    result = Agent(model=stage.parts(first, last), tools=[search]).run_sync("Search.", store=stage.store)
    # then nothing is folded together or half executed: the response is no legal turn, and both calls are in the log as they were
    interrupted = next(record for record in result.records if record.type == "model_interrupted")
    assert ran == []
    assert [call["arguments_text"] for call in interrupted.data["calls"]] == ['{"q":"A"}', '{"q":"B"}']
    assert result.answer == "done"


def test_B021_ids_of_ours_in_a_script_collide_with_nothing(stage):
    # given a model that uses our own ids, the wrong way round
    ran: list[str] = []
    turns = [
        {"calls": [{"id": "t1.2", "name": "read", "arguments": {"path": "a"}}, {"id": "t1.1", "name": "read", "arguments": {"path": "b"}}]},
        {"text": "done"},
    ]
    model: ScriptedModel = stage.scripted(turns)
    # when
    Agent(model=model, tools=[read_tool(ran)]).run_sync("Read.", store=stage.store)
    # then places decide
    assert [(m.call_id, m.content) for m in model.requests[1].messages if m.role == "tool"] == [("t1.1", "CONTENT A"), ("t1.2", "CONTENT B")]
