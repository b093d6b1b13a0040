"""Recorded conversations driven through the whole loop: the responses of a real provider in order, its tools, and the results that they gave then."""

from collections.abc import Callable
from typing import Any

import pytest

from refold import Agent, Budgets, Policy, Tool, audit, open_store, replay
from refold.events import facts as f
from refold.runtime import models
from refold.runtime.tools import ToolContext
from refold.testing import strict
from refold.testing.loopback import Loopback, Reply

pytestmark = pytest.mark.slow  # dozens of recordings
DENIED = 'result="permission_denied"'
"""Some of these tools are asked for a password in clear; a run does not pass those on."""


def test_a_recorded_conversation_runs_through_the_loop(conversation: Any, server: Loopback) -> None:
    # given a server that answers as a real one did, and the tools of that conversation, which give what they gave
    exchanges = conversation.exchanges
    for exchange in exchanges:
        reply = exchange.reply()
        server.add(reply if exchange.status < 400 else type(reply)(reply.body, reply.status, {**reply.headers, "retry-after-ms": "1"}))
    server.add(Reply.events(b"".join(exchanges[0].api.text("That is all."))))  # for those that end with calls, or in the middle of an answer
    store = open_store("memory:")
    agent = Agent(
        models.resolve(exchanges[0].api.spec, base_url=exchanges[0].api.url(server), settings={"stream": exchanges[0].streamed}),
        instructions="Work on what the user asks.",
        tools=[
            Tool(name=name, description="As recorded.", schema=schema, handler=handler(conversation, server), effect="read", repeatable=True)
            for name, schema in tools(conversation).items()
        ],
        budgets=Budgets(max_tokens=None, max_cost_usd=None),
        policy=Policy(cycle_lengths=()),
        ask_user=False,
    )
    # when it is run, and continued with what the user said next, until everything was answered
    result = agent.run_sync(said(exchanges[0].asked) or "Begin.", store=store)
    ids = [result.id]
    while (answered := len(server.requests)) < len(exchanges):
        result = agent.continue_run_sync(result.id, said(exchanges[answered].asked) or "Go on.", store=store)
        ids.append(result.id)
        assert len(server.requests) > answered
    # then every request was one that a strict provider takes
    for heard in server.requests:
        strict.check(heard.path, heard.json)
    # every response is in the log as it was, and what it wanted back went back
    facts = [record.fact for run_id in ids for record in store.read(run_id)]
    answers = [fact for fact in facts if isinstance(fact, f.ModelOutput | f.ModelFailed)]
    assert len(answers) == len(server.requests)
    for fact, exchange in zip(answers, exchanges, strict=False):
        calls = () if isinstance(fact, f.ModelFailed) else fact.calls
        assert [(call.name, call.provider_id) for call in calls] == [(call["name"], call["id"]) for call in exchange.expect["tool_calls"]]
    check_results(conversation, server)
    # and the runs are sound
    for run_id in ids:
        assert audit(store, run_id).ok
        assert replay(store, run_id).divergence is None


def check_results(conversation: Any, server: Loopback) -> None:
    """Each result went back with its call, and what a real client sent back without reading it, we did too."""
    received = ""
    for n, (heard, exchange) in enumerate(zip(server.requests, conversation.exchanges, strict=False)):
        sent, recorded = results(heard.json), dict(results(exchange.asked))
        before = conversation.exchanges[n - 1].expect["tool_calls"] if n else []
        assert [call_id for call_id, _ in sent[len(sent) - len(before) :]] == [call["id"] for call in before]
        for call_id, ours in sent[len(sent) - len(before) :]:
            assert recorded.get(call_id, "") in ours or DENIED in ours
        unread = [item for item in opaque(exchange.asked) if item in received]
        assert opaque(heard.json)[-len(unread) :] == unread or not unread
        received += exchange.body.decode()


# -- what a recorded request holds, in the three forms


def tools(conversation: Any) -> dict[str, dict[str, Any]]:
    """The schemas of the functions that were offered, by name."""
    found: dict[str, dict[str, Any]] = {}
    for exchange in conversation.exchanges:
        for tool in exchange.asked.get("tools") or []:
            function = tool.get("function", tool)
            schema = function.get("parameters") or function.get("input_schema") or {}
            if tool.get("type", "function") in ("function", "custom") and function.get("name"):
                found[function["name"]] = {**schema, "type": "object"}
    return found


def handler(conversation: Any, server: Loopback) -> Callable[[dict[str, Any], ToolContext], str]:
    """Gives what the tool gave for the call in the same place of the same response."""

    def give(arguments: dict[str, Any], ctx: ToolContext) -> str:
        n = len(server.requests) - 1
        place = int(ctx.call_id.rpartition(".")[2]) - 1
        call = conversation.exchanges[n].expect["tool_calls"][place]
        later = conversation.exchanges[n + 1].asked if n + 1 < len(conversation.exchanges) else {}
        return dict(results(later)).get(call["id"], "nothing recorded")

    return give


def said(body: dict[str, Any]) -> str:
    """The last that the user said."""
    entries = body.get("messages") or body.get("input") or []
    texts = [text(entry.get("content")) for entry in entries if entry.get("role") == "user"]
    return next((each for each in reversed(texts) if each.strip()), "")


def results(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Every result: the id of its call, and its text."""
    found: list[tuple[str, str]] = []
    for entry in body.get("messages") or body.get("input") or []:
        if entry.get("role") == "tool":
            found.append((entry["tool_call_id"], text(entry["content"])))
        elif entry.get("type") == "function_call_output":
            found.append((entry["call_id"], text(entry["output"])))
        elif isinstance(entry.get("content"), list):
            found += [(block["tool_use_id"], text(block.get("content"))) for block in entry["content"] if block.get("type") == "tool_result"]
    return found


def opaque(body: dict[str, Any]) -> list[str]:
    """What only the provider can read."""
    found = []
    for entry in body.get("messages") or body.get("input") or []:
        if entry.get("type") == "reasoning":
            found.append(entry.get("encrypted_content") or text(entry.get("content")))
        elif isinstance(entry.get("content"), list):
            found += [block.get("signature") or block["data"] for block in entry["content"] if block.get("type") in ("thinking", "redacted_thinking")]
    return found


def text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""
