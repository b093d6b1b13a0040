"""Any script, any behaviour of the tools, any settings, any crash point: the run ends as its twin, and no side effect takes place twice."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings, strategies as st

from refold import Agent, ScriptedModel, Tool, ToolContext, tool
from refold.events.memory import MemoryLog
from refold.events.words import RunId
from refold.projections.run import Call
from refold.runtime.store import Store
from refold.testing.crash import Outcome, Survived, Trial, losses, lost_a_request, survive
from refold.testing.strategies import TIGHT, Behaviour, agent_budgets, agent_policies, behaviours, crash_points, model_scripts


@dataclass
class Stage:
    """What the tools do in this example, and what they did."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    acts: Counter[str] = field(default_factory=Counter)

    def perform(self, name: str, ctx: ToolContext) -> object:
        """Act as the behaviour says; a deed that fails for good before anything happened leaves no trace."""
        behaviour = self.behaviours[name]
        if behaviour.deed != "knows nothing happened" and not (behaviour.deed == "fails at first" and behaviour.retryable and ctx.attempt < 2):
            self.acts[ctx.idempotency_key] += 1
        return behaviour.act(ctx)


STAGE = Stage()


@tool(effect="read")
def look(topic: str, ctx: ToolContext) -> object:
    """Look something up."""
    return STAGE.perform("look", ctx)


@tool(effect="idempotent", timeout_s=0.02)
async def put(name: str, ctx: ToolContext) -> object:
    """Set a value."""
    if STAGE.behaviours["put"].deed == "is late":
        await asyncio.sleep(5)
    return STAGE.perform("put", ctx)


@tool(timeout_s=0.02)
async def send(to: str, ctx: ToolContext) -> object:
    """Send a letter."""
    if STAGE.behaviours["send"].deed == "is late":
        await asyncio.sleep(5)
    return STAGE.perform("send", ctx)


@tool(approval="always")
def pay(amount: int, ctx: ToolContext) -> object:
    """Pay."""
    return STAGE.perform("pay", ctx)


TOOLS: list[Tool] = [look, put, send, pay]
SIDE_EFFECTS = {each.name for each in TOOLS if each.effect == "side_effect"}


def human(store: Store, run_id: RunId, call: Call) -> None:
    """Has the model told of doubts, answers questions, and approves every second call."""
    if call.phase == "doubt":
        store.resolve_sync(run_id, call.id, verdict="tell_model")
    elif call.approval is None:
        store.answer_sync(run_id, "2024", call=call.id)
    elif call.id.endswith(".2"):
        store.deny_sync(run_id, call.id, reason="not this one")
    else:
        store.approve_sync(run_id, call.id)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    script=model_scripts(TOOLS),
    deeds=st.fixed_dictionaries({each.name: behaviours() for each in TOOLS}),
    budgets=agent_budgets(),
    policy=agent_policies(),
    fate=crash_points(),
)
def test_a_run_ends_as_its_twin_whatever_it_is_made_of(script, deeds, budgets, policy, fate) -> None:  # type: ignore[no-untyped-def]
    # given
    trial = Trial(lambda: Agent(ScriptedModel(script), "", TOOLS, budgets, policy), human=human)
    STAGE.behaviours = deeds
    twin = survive(trial, MemoryLog())
    STAGE.acts.clear()
    # when
    survived = survive(trial, MemoryLog(), fate)
    # then
    # where a request was lost, a budget of tokens that is met soon is met sooner: what it may have used is not there any more
    if in_doubt(survived, twin.outcome) or (lost_a_request(survived) and budgets.max_tokens in TIGHT["max_tokens"]):
        assert list(losses(survived, survived.outcome)) == []
    else:
        assert list(losses(survived, twin.outcome)) == []
    keys = {record.fact.key for record in survived.records if record.type == "tool_started" and tool_of(survived, record.call) in SIDE_EFFECTS}
    assert {key: times for key, times in STAGE.acts.items() if key in keys and times > attempts(survived, key)} == {}


def in_doubt(survived: Survived, twin: Outcome) -> bool:
    """Whether a side effect is in doubt that the twin's was not: the model is told so, and what it says next may then be judged otherwise."""
    return sum(message.kind == "in_doubt" for message in survived.outcome.messages) > sum(message.kind == "in_doubt" for message in twin.messages)


def tool_of(survived: Survived, call_id: str | None) -> str:
    """The tool of a call."""
    return next(call.name for message in survived.outcome.messages for call in message.calls if call.id == call_id)


def attempts(survived: Survived, key: str) -> int:
    """How often the log says that a call was to be run: once, unless an attempt is known to have done nothing."""
    return len({record.fact.attempt for record in survived.records if record.type == "tool_started" and record.fact.key == key})
