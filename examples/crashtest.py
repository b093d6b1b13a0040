"""An agent to be killed: tools that read, set and act, calls that overlap, an approval, a question, and a tail of forty turns.

    refold certify examples.crashtest:agent
    refold certify examples.crashtest:short      the same with a tail of two turns

Its tools act on a folder of their own for each run, which is there only while the agent is certified.
"""

import os
from pathlib import Path
from typing import Any

from refold import Agent, Budgets, NotPerformed, RetryableToolError, ScriptedModel, ToolContext, ToolResult, tool


def world(name: str) -> Path:
    """A file of this run's world."""
    return Path(os.environ.get("REFOLD_CERTIFY", ".")) / name


@tool(effect="read", concurrent=True)
def look(topic: str) -> ToolResult:
    """Look something up."""
    return ToolResult(data={"topic": topic, "found": topic.upper()}, source_ids=[f"doc-{topic}"], notes=[f"looked at {topic}"])


@tool(effect="read", concurrent=True)
async def browse(topic: str) -> str:
    """Look something up that is long."""
    return f"{topic} " * 3_000


@tool(effect="idempotent", concurrent=True)
def put(name: str, value: int) -> str:
    """Set a value."""
    return f"{name}={value}"


@tool
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@tool(concurrent=True)
async def post(to: str) -> str:
    """Send another letter."""
    return f"posted to {to}"


@tool(approval="always")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def more_than_ten(arguments: dict[str, Any]) -> bool:
    """Whether a human is asked before something is lent."""
    return bool(arguments["amount"] > 10)


@tool(approval=more_than_ten)
def lend(amount: int) -> str:
    """Lend."""
    return f"lent {amount}"


class Engaged(RetryableToolError, NotPerformed):
    """The other side was not reached."""


@tool(retries=1)
def ring(to: str, ctx: ToolContext) -> str:
    """Ring somebody, who answers the second time."""
    if ctx.attempt < 2:
        raise Engaged("engaged")
    return f"spoke to {to}"


@tool
def fax(to: str) -> str:
    """Acts, and then fails."""
    raise RetryableToolError(f"{to} hung up")


def booked(key: str) -> str:
    """What the other side says became of a booking."""
    if world(f"booked-{key}").exists():
        return "booked"
    raise NotPerformed("there is no such booking")


@tool(reconcile=booked, key=lambda arguments: f"room {arguments['room']}")
def book(room: int, ctx: ToolContext) -> str:
    """Book a room; whether that was done can be looked up."""
    if "REFOLD_CERTIFY" in os.environ:
        world(f"booked-{ctx.idempotency_key}").touch()
    return "booked"


def two_words(run: object, answer: str, citations: tuple[str, ...]) -> list[str]:
    """Wants an answer of two words."""
    return [] if len(answer.split()) == 2 else ["it is not two words"]


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    """A call as a script has it."""
    return {"name": name, "arguments": arguments}


def turn(*calls: dict[str, Any]) -> dict[str, Any]:
    """A turn of calls, with what a provider would report."""
    return {"calls": list(calls), "usage": {"input_tokens": 100, "output_tokens": 20}, "cost_usd": "0.001"}


def script(tail: int) -> list[dict[str, Any]]:
    """What the model says; `tail` turns that take little each."""
    rest = [turn(call("send" if n % 4 == 3 else "put", **({"to": f"friend {n}"} if n % 4 == 3 else {"name": f"x{n}", "value": n}))) for n in range(tail)]
    return [
        turn(call("look", topic="a"), call("browse", topic="b"), call("put", name="x", value=1), call("post", to="Ann")),
        turn(call("pay", amount=3), call("ask_user", question="Which year?"), call("lend", amount=5), call("lend", amount=50)),
        {"error": {"type": "overloaded", "message": "come back later", "retryable": True, "retry_after_s": 0}},
        turn(call("ring", to="Bob"), call("fax", to="Eve"), call("book", room=7)),
        turn(call("pay", amount=4), call("pay", amount=5)),
        *rest,
        {"text": "one two three"},
        {"text": "all done", "usage": {"input_tokens": 100, "output_tokens": 2}},
    ]


def made(tail: int) -> Agent:
    """The agent with so long a tail."""
    return Agent(
        model=ScriptedModel(script(tail)),
        instructions="Do as you are told.",
        tools=[look, browse, put, send, post, pay, lend, ring, fax, book],
        validators=[two_words],
        budgets=Budgets(max_turns=60, max_tool_calls=100),
        name="crashtest",
    )


agent = made(40)
short = made(2)
