"""In-process crash at every append and every effect of every example, then resume: nothing acknowledged is lost, transcript and status equal the twin's."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from refold import Agent, Budgets, Context, NotPerformed, Policy, RetryableToolError, ScriptedModel, Tool, ToolContext, ToolResult, tool
from refold.events.log import open_log
from refold.events.memory import MemoryLog
from refold.projections.run import Call
from refold.runtime.store import Store
from refold.testing.crash import FATES, Outcome, Trial, fates, losses, lost_a_request, survive
from refold.testing.faults import Fault, Place


@dataclass
class World:
    """What tools act upon; it outlives every process."""

    acts: Counter[str] = field(default_factory=Counter)
    """By idempotency key, of side effects alone."""
    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The keys that a call was run under."""
    store: Store | None = None
    """Where people speak to the run."""

    def forget(self) -> None:
        """A new world, as far as its tools can tell."""
        self.store = None
        self.acts.clear()
        self.keys.clear()

    def seen(self, ctx: ToolContext) -> None:
        self.keys[ctx.call_id].add(ctx.idempotency_key)

    def act(self, ctx: ToolContext) -> None:
        self.acts[ctx.idempotency_key] += 1


class Busy(RetryableToolError, NotPerformed):
    """The other side was not reached."""


def made_for(world: World) -> list[Tool]:
    """One tool of each kind, acting on a world."""

    @tool(effect="read")
    def look(topic: str, ctx: ToolContext) -> ToolResult:
        """Look something up."""
        world.seen(ctx)
        return ToolResult(data={"topic": topic, "found": topic * 2}, source_ids=[f"doc-{topic}"], notes=[f"looked at {topic}", "and wrote it down"])

    @tool(effect="read")
    async def browse(topic: str, ctx: ToolContext) -> str:
        """Look something up that is long."""
        world.seen(ctx)
        return f"{topic} " * 3_000

    @tool(effect="idempotent")
    def put(name: str, value: int, ctx: ToolContext) -> str:
        """Set a value."""
        world.seen(ctx)
        return f"{name}={value}"

    @tool
    def send(to: str, ctx: ToolContext) -> str:
        """Send a letter."""
        world.seen(ctx)
        world.act(ctx)
        return f"sent to {to}"

    @tool
    async def post(to: str, ctx: ToolContext) -> str:
        """Send another letter."""
        world.seen(ctx)
        world.act(ctx)
        return f"posted to {to}"

    @tool(approval="always")
    def pay(amount: int, ctx: ToolContext) -> str:
        """Pay."""
        world.seen(ctx)
        world.act(ctx)
        return f"paid {amount}"

    def more_than_ten(arguments: dict[str, Any]) -> bool:
        return bool(arguments["amount"] > 10)

    @tool(approval=more_than_ten)
    def lend(amount: int, ctx: ToolContext) -> str:
        """Lend."""
        world.seen(ctx)
        world.act(ctx)
        return f"lent {amount}"

    @tool(effect="read", retries=2)
    def flaky(topic: str, ctx: ToolContext) -> str:
        """Works the second time."""
        world.seen(ctx)
        if ctx.attempt < 2:
            raise RetryableToolError("try again")
        return topic

    @tool(retries=1)
    def ring(to: str, ctx: ToolContext) -> str:
        """Ring somebody, who answers the second time."""
        world.seen(ctx)
        if ctx.attempt < 2:
            raise Busy("engaged")
        world.act(ctx)
        return f"spoke to {to}"

    @tool(effect="read")
    def broken(topic: str, ctx: ToolContext) -> str:
        """Fails."""
        world.seen(ctx)
        raise ValueError(f"no {topic}")

    @tool
    def breaks(to: str, ctx: ToolContext) -> str:
        """Acts, then fails."""
        world.seen(ctx)
        world.act(ctx)
        raise ValueError(f"{to} hung up")

    @tool(effect="idempotent", retries=1, timeout_s=0.01)
    async def slow(topic: str, ctx: ToolContext) -> str:
        """Is ready in time the second time."""
        world.seen(ctx)
        if ctx.attempt < 2:
            await asyncio.sleep(10)
        return topic

    @tool(effect="read")
    def overhear(topic: str, ctx: ToolContext) -> str:
        """Somebody says something meanwhile, and once only."""
        world.seen(ctx)
        if world.store is not None:
            world.store.say_sync(ctx.run_id, f"and {topic}?", command_id=ctx.idempotency_key)
        return topic

    @tool(effect="read")
    def odd(topic: str, ctx: ToolContext) -> Any:
        """Returns what nobody can store."""
        world.seen(ctx)
        return object()

    return [look, browse, put, send, post, pay, lend, flaky, ring, broken, breaks, slow, overhear, odd]


@pytest.fixture(scope="module")
def inhabited() -> tuple[World, list[Tool]]:
    """A world and its tools; declaring them anew for every process would take most of the time."""
    world = World()
    return world, made_for(world)


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def calls(*made: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"calls": list(made), **more}


def error(retryable: bool = True) -> dict[str, Any]:
    return {"error": {"type": "overloaded", "message": "come back later", "retryable": retryable, "retry_after_s": 0}}


def two_lines(run: object, answer: str, citations: tuple[str, ...]) -> list[str]:
    """Wants an answer of two lines."""
    return [] if "\n" in answer else ["it has one line"]


def fails(run: object, answer: str, citations: tuple[str, ...]) -> list[str]:
    """A validator with a bug."""
    raise ValueError("I cannot judge")


@dataclass(frozen=True)
class Example:
    """An agent as a script of its model, and what else it is made of."""

    script: tuple[dict[str, Any], ...]
    budgets: Budgets = Budgets()
    policy: Policy = Policy()
    validators: tuple[Any, ...] = ()
    context: Context = Context()
    humans: tuple[tuple[str, str], ...] = ()
    """By call: `approve`, a reason to deny, an answer."""

    def trial(self, tools: list[Tool]) -> Trial:
        def agent() -> Agent:
            return Agent(ScriptedModel(self.script), "Be brief.", tools, self.budgets, self.policy, self.validators, self.context)

        def human(store: Store, run_id: str, asked: Call) -> None:
            word = dict(self.humans)[asked.id]
            if asked.approval is None:
                store.answer_sync(run_id, word, call=asked.id)
            elif word == "approve":
                store.approve_sync(run_id, asked.id)
            else:
                store.deny_sync(run_id, asked.id, reason=word)

        return Trial(agent, human=human)


USAGE = {"usage": {"input_tokens": 100, "output_tokens": 20, "cached_input_tokens": 50}, "cost_usd": "0.01"}
ANSWER = {"text": "the answer", "chunks": 3}

EXAMPLES: dict[str, Example] = {
    "plain answer": Example(({**ANSWER, **USAGE},)),
    "one call of each effect": Example((calls(call("look", topic="a"), call("put", name="x", value=1), call("send", to="Ann"), **USAGE), {**ANSWER, **USAGE})),
    "turn after turn": Example(
        (calls(call("look", topic="a")), calls(call("send", to="Ann")), calls(call("post", to="Bob"), text="now Bob"), calls(call("browse", topic="b")), ANSWER)
    ),
    "failing and retried tools": Example(
        (
            calls(call("flaky", topic="a"), call("ring", to="Ann")),
            calls(call("broken", topic="b"), call("odd", topic="c")),
            calls(call("breaks", to="Bob")),
            ANSWER,
        )
    ),
    "a tool that is late": Example((calls(call("slow", topic="a")), ANSWER)),
    "refused calls among others": Example(
        (
            calls(
                call("nothing"),
                call("look", topic="a"),
                call("look", subject="b"),
                call("look", topic="a"),
                {"name": "put", "arguments": "{"},
                call("send", to="Ann"),
            ),
            calls(call("send", to="Ann"), call("look", topic="a")),
            ANSWER,
        )
    ),
    "approvals and a question": Example(
        (
            calls(call("pay", amount=3), call("ask_user", question="Which year?"), call("lend", amount=5), call("lend", amount=50)),
            calls(call("pay", amount=4), call("look", topic="a")),
            ANSWER,
        ),
        humans=(("t1.1", "approve"), ("t1.2", "2024"), ("t1.4", "too much"), ("t2.1", "approve")),
    ),
    "an approval and a question": Example(
        (calls(call("pay", amount=3), call("ask_user", question="Which year?")), ANSWER), humans=(("t1.1", "approve"), ("t1.2", "2024"))
    ),
    "turns that come to nothing": Example(
        (
            {"text": ""},
            calls({**call("look", topic="a"), "id": "1"}, {**call("look", topic="b"), "id": "1"}),
            calls(call("look", topic="c"), stop_reason="length"),
            {"text": "cut", "stop_reason": "length"},
            ANSWER,
        ),
        policy=Policy(max_model_errors=3),
    ),
    "too many turns that come to nothing": Example(({"text": ""}, {"text": " "}, {"text": ""}, ANSWER)),
    "a provider that fails for a while": Example((error(), error(), calls(call("look", topic="a")), error(), ANSWER)),
    "a provider that fails for good": Example((calls(call("send", to="Ann")), error(), error(), error()), policy=Policy(max_provider_retries=2)),
    "a provider that refuses": Example((calls(call("look", topic="a")), error(retryable=False))),
    "a rejected answer": Example(({"text": "one line"}, {"text": "two\nlines"}), validators=(two_lines,)),
    "a validator with a bug": Example((calls(call("look", topic="a")), ANSWER), validators=(two_lines, fails)),
    "a refusal": Example((calls(call("look", topic="a")), {"refusal": "I will not"})),
    "the last turn": Example((calls(call("look", topic="a")), calls(call("look", topic="b")), ANSWER), budgets=Budgets(max_turns=3)),
    "calls in the last turn": Example(
        (calls(call("send", to="a")), calls(call("send", to="b")), calls(call("send", to="c")), ANSWER), budgets=Budgets(max_turns=3)
    ),
    "calls over the limit": Example((calls(*(call("send", to=to) for to in "abc")), calls(call("look", topic="d")), ANSWER), budgets=Budgets(max_tool_calls=2)),
    "tokens used up": Example(
        (calls(call("look", topic="a"), **USAGE), calls(call("send", to="b"), **USAGE), ANSWER), budgets=Budgets(max_tokens=900, max_output_tokens=300)
    ),
    "money used up": Example((calls(call("look", topic="a"), **USAGE), calls(call("send", to="b"), **USAGE), ANSWER), budgets=Budgets(max_cost_usd="0.02")),
    "stop at the first failure": Example(
        (calls(call("look", topic="a"), call("broken", topic="b"), call("send", to="Ann")), ANSWER), policy=Policy(on_tool_error="stop")
    ),
    "a circle": Example(tuple(calls(call("look", topic="a")) for _ in range(6))),
    "the user speaks meanwhile": Example((calls(call("overhear", topic="a"), call("send", to="Ann")), calls(call("overhear", topic="b")), ANSWER)),
    "a long answer": Example(({**calls(call("look", topic="a"), text="so " * 30_000, chunks=9), **USAGE}, {"text": "word " * 24_000, "chunks": 12})),
    "older turns as a summary": Example(
        (*(calls(call("browse", topic=topic)) for topic in "abcd"), calls(call("send", to="Ann")), ANSWER), context=Context(window_tokens=4_000, keep_turns=1)
    ),
    "a model that summarises": Example(
        (calls(call("browse", topic="a")), calls(call("browse", topic="b")), {"text": "so far", **USAGE}, calls(call("send", to="Ann")), error(), ANSWER),
        context=Context(window_tokens=4_000, keep_turns=1, compaction="model"),
    ),
    "more than the model can read": Example(
        (
            calls(call("browse", topic="a")),
            calls(call("look", topic="b")),
            {"error": {"type": "context_overflow", "message": "too long"}},
            calls(call("send", to="Ann")),
            ANSWER,
        ),
        context=Context(keep_turns=1, relevant_turns=0),
    ),
    "the script runs out": Example((calls(call("look", topic="a")),)),
}


SOON = ("one call of each effect", "an approval and a question", "a provider that fails for a while")
"""Examples of the quick set."""


def cases() -> Iterator[Any]:
    """Every example with every fate that an append, an effect or a consult can meet."""
    for name in EXAMPLES:
        for place, fault in FATES:
            quick = name in SOON and place != "part"
            yield pytest.param(name, place, fault, marks=() if quick else pytest.mark.slow, id=f"{name}: {fault} at {place}")


@pytest.mark.parametrize(("name", "place", "fault"), list(cases()))
def test_a_run_that_was_crashed_anywhere_ends_as_its_twin(name: str, place: Place, fault: Fault, inhabited: tuple[World, list[Tool]]) -> None:
    # given
    world, tools = inhabited
    trial = EXAMPLES[name].trial(tools)
    twin = twin_of(name, trial, world)
    for fate in fates(place, fault):
        world.forget()
        log = MemoryLog()
        world.store = Store(log, "memory:")
        # when
        survived = survive(trial, log, fate)
        # then nothing is lost, but that a budget of tokens is used up sooner by a request that was made twice
        sooner = name == "tokens used up" and lost_a_request(survived)
        assert list(losses(survived, survived.outcome if sooner else twin)) == [], fate
        assert list(wrongs(world)) == [], fate


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SOON, "approvals and a question", "calls over the limit", "a long answer"])
@pytest.mark.parametrize(("place", "fault"), FATES[:4])
def test_a_run_on_disk_that_was_crashed_at_any_append_ends_as_its_twin(
    name: str, place: Place, fault: Fault, inhabited: tuple[World, list[Tool]], tmp_path: Path
) -> None:
    # given
    world, tools = inhabited
    trial = EXAMPLES[name].trial(tools)
    twin = twin_of(name, trial, world)
    for fate in fates(place, fault):
        world.forget()
        log = open_log(f"sqlite:///{tmp_path}/{fate.place}-{fate.nth}.db")
        # when
        survived = survive(trial, log, fate, own_loop=True)
        log.close()
        # then
        assert list(losses(survived, twin)) == [], fate
        assert list(wrongs(world)) == [], fate


@pytest.mark.parametrize(("place", "fault"), FATES)
def test_a_run_that_is_cancelled_from_within_and_crashed_anywhere_ends_as_cancelled(place: Place, fault: Fault, inhabited: tuple[World, list[Tool]]) -> None:
    # given
    world, tools = inhabited

    @tool(effect="read")
    def hang_up(topic: str, ctx: ToolContext) -> str:
        """Cancels the run it is called by."""
        if world.store is not None:
            world.store.cancel_sync(ctx.run_id, "enough", command_id="cancel")
        return topic

    example = Example((calls(call("send", to="Ann"), call("hang_up", topic="a"), call("send", to="Bob")), ANSWER))
    for fate in fates(place, fault):
        world.forget()
        log = MemoryLog()
        world.store = Store(log, "memory:")
        # when
        survived = survive(example.trial([*tools, hang_up]), log, fate)
        # then
        assert (survived.outcome.status, survived.outcome.reason) == ("cancelled", "cancelled"), fate
        assert list(losses(survived, survived.outcome)) == [], fate
        assert list(wrongs(world)) == [], fate
        assert len(world.acts) <= 1, fate


def test_every_example_ends_as_its_name_says(inhabited: tuple[World, list[Tool]]) -> None:
    # given
    world, tools = inhabited
    world.forget()
    # when
    survived = {name: survive(example.trial(tools), MemoryLog()) for name, example in EXAMPLES.items()}
    ends = {name: each.outcome for name, each in survived.items()}
    # then
    assert {name for name, each in survived.items() if any(record.type == "context_compacted" for record in each.records)} == {
        "older turns as a summary",
        "a model that summarises",
        "more than the model can read",
    }
    assert {name: (end.status, end.reason) for name, end in ends.items() if end.status != "completed"} == {
        "too many turns that come to nothing": ("failed", "max_model_errors"),
        "a provider that fails for good": ("failed", "max_provider_retries"),
        "a provider that refuses": ("failed", "provider"),
        "a validator with a bug": ("failed", "validator"),
        "a refusal": ("failed", "refusal"),
        "calls in the last turn": ("stopped", "max_turns"),
        "calls over the limit": ("stopped", "max_tool_calls"),
        "tokens used up": ("stopped", "max_tokens"),
        "money used up": ("stopped", "max_cost_usd"),
        "stop at the first failure": ("failed", "on_tool_error"),
        "a circle": ("failed", "cycle"),
        "the script runs out": ("failed", "provider"),
    }
    assert {name: sorted({message.kind for message in end.messages if message.role == "tool"}) for name, end in ends.items() if name in MIXED} == MIXED


MIXED = {
    "failing and retried tools": ["execution_failed", "invalid_result", "success"],
    "a tool that is late": ["success"],
    "refused calls among others": ["duplicate_action", "invalid_arguments", "success", "unknown_tool"],
    "approvals and a question": ["approval_denied", "success"],
    "calls over the limit": ["limit_reached", "success"],
    "stop at the first failure": ["cancelled", "execution_failed", "success"],
}
"""The kinds of results that some examples are there for."""

TWINS: dict[str, Outcome] = {}


def twin_of(name: str, trial: Trial, world: World) -> Outcome:
    """What the example comes to when nothing happens to it; asked once."""
    if name not in TWINS:
        log = MemoryLog()
        world.store = Store(log, "memory:")
        TWINS[name] = survive(trial, log).outcome
    return TWINS[name]


def wrongs(world: World) -> Iterator[str]:
    """What the world must never have seen."""
    yield from (f"a side effect took place {times} times under {key}" for key, times in world.acts.items() if times > 1)
    yield from (f"call {call_id} ran under {len(keys)} keys" for call_id, keys in world.keys.items() if len(keys) > 1)
