"""What-if against the truth: the same script and tools run once more, live, under the other settings."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from refold import Agent, Budgets, Policy, ScriptedModel, Tool, ToolContext, open_store, replay, tool
from refold.events.codec import Record
from refold.events.words import Effect
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.replay import Replayed
from refold.runtime.settings import WrongSetting
from refold.runtime.store import Store
from refold.testing.strategies import Behaviour, agent_policies, behaviours, model_scripts


@dataclass
class Stage:
    """What the tools do in this example."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)


STAGE = Stage()


@tool(effect="read")
def look(topic: str, ctx: ToolContext) -> object:
    """Look something up."""
    return STAGE.behaviours["look"].act(ctx)


@tool(effect="idempotent", repeatable=True)
def put(name: str, ctx: ToolContext) -> object:
    """Set a value."""
    return STAGE.behaviours["put"].act(ctx)


TOOLS: Final[list[Tool]] = [look, put]
OTHER: Final[dict[str, tuple[Any, ...]]] = {
    "budgets.max_turns": (1, 2, 3, 12, None),
    "budgets.max_tool_calls": (0, 1, 3, None),
    "budgets.max_output_tokens": (1, 3, 5_000),
    "policy.on_tool_error": ("observe", "stop"),
    "policy.max_tool_retries": (0, 1, 2),
    "policy.max_model_errors": (0, 1, 3),
    "policy.max_provider_retries": (0, 1, 4),
    "policy.max_duplicate_actions": (1, 2, 3),
    "policy.cycle_repeats": (2, 3),
    "policy.cycle_lengths": ((), (1,), (1, 2, 3)),
    "policy.on_refusal": ("stop", "observe"),
    "policy.wrap_up": (True, False),
}
FREE: Final = {"max_tokens": None, "max_cost_usd": None, "timeout_s": None}


def others() -> st.SearchStrategy[dict[str, Any]]:
    """One or two other settings."""
    names = st.lists(st.sampled_from(sorted(OTHER)), min_size=1, max_size=2, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: st.sampled_from(OTHER[name]) for name in chosen}))


def lived(script: list[dict[str, Any]], budgets: dict[str, Any], policy: dict[str, Any]) -> tuple[Store, list[Record]]:
    store = open_store("memory:")
    made = Agent(ScriptedModel(script), "", TOOLS, Budgets(**FREE, **budgets), Policy(**policy), ask_user=False)
    made.run_sync("Do it.", store=store, run_id="one")
    return store, list(store.read("one"))


def fields_of(section: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {path.partition(".")[2]: value for path, value in changes.items() if path.startswith(section)}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=model_scripts(TOOLS), deeds=st.fixed_dictionaries({each.name: behaviours() for each in TOOLS}), policy=agent_policies(), changes=others())
def test_what_would_have_been_is_what_comes_when_it_is_lived(script, deeds, policy, changes) -> None:  # type: ignore[no-untyped-def]
    # given a run, and the same one under other settings
    STAGE.behaviours = deeds
    was = {name: getattr(policy, name) for name in policy.__dataclass_fields__} | {"approval_expiry_s": None}
    store, recorded = lived(script, {}, was)
    _, live = lived(script, fields_of("budgets", changes), was | fields_of("policy", changes))
    # when the first is asked what would have been
    told = replay(store, "one", changes=changes)
    assert told.identical
    # then both are the same up to the first change, and it is what came
    if not told.changes:
        assert [record.type for record in live] == [record.type for record in recorded]
        return
    first = told.changes[0]
    assert [record.type for record in live[: first.position - 1]] == [record.type for record in recorded[: first.position - 1]]
    if first.verdict == "cannot be told":
        return
    came = live[first.position - 1]
    assert first.derived == (came.type if first.field == "type" else came.call if first.field == "call" else came.data[first.field.removeprefix("data.")])
    if told.verdict == "would stop earlier":
        assert live[-1].turn <= recorded[-1].turn
        assert {"run_stopped", "run_failed", "run_completed"} & {record.type for record in live}


# -- the Python way


def finished() -> tuple[Store, AnyAgent]:
    turns = [{"calls": [{"name": "look", "arguments": {"topic": str(n)}}]} for n in range(3)]
    STAGE.behaviours = {"look": Behaviour("returns")}
    store = open_store("memory:")
    made = Agent(ScriptedModel([*turns, {"text": "Done."}]), "", TOOLS, policy=Policy(wrap_up=False))
    made.run_sync("Do it.", store=store, run_id="one")
    return store, made


def verdicts(told: Replayed) -> list[str]:
    return [change.verdict for change in told.changes]


def test_a_replay_with_changes_says_what_would_have_been_and_derives_the_run_as_it_was() -> None:
    store, _ = finished()
    told = replay(store, "one", changes={"budgets.max_turns": 2})
    assert (told.identical, told.verdict, verdicts(told)) == (True, "would stop earlier", ["would stop earlier"])
    assert told.as_json()["saved"]["turns"] == 2
    assert "verdict" not in replay(store, "one").as_json()


def test_todays_agent_is_a_what_if_too() -> None:
    # given an agent whose tool now wants an approval, and one that is as it was
    store, made = finished()

    @tool(effect="read", name="look", approval="always")
    def careful(topic: str, ctx: ToolContext) -> object:
        """Look something up."""
        return None

    told = replay(store, "one", Agent(ScriptedModel([]), "", [careful, put]))
    # then it diverges where the tool was declared, and a human would have been asked each time
    assert told.divergence is not None
    assert told.divergence.position == 1
    assert verdicts(told) == ["would ask a human"] * 3
    # and a setting ends it after the first of them
    told = replay(store, "one", Agent(ScriptedModel([]), "", [careful, put]), {"budgets.max_turns": 1})
    assert told.identical, "with changes, the run is derived by itself"
    assert verdicts(told) == ["would ask a human", "would stop earlier"]
    assert replay(store, "one", made).verdict == "unaffected"


SCHEMA: Final = {"type": "object"}


@pytest.mark.parametrize(("recorded", "today"), [(None, SCHEMA), (SCHEMA, None), (SCHEMA, {"type": "string"})])
def test_another_schema_of_the_answer_is_what_differs_and_not_a_digest_that_is_the_same(recorded: dict[str, Any] | None, today: dict[str, Any] | None) -> None:
    # given a run, and an agent that is as it was but for the schema of its answer, which no digest of a request covers
    store = open_store("memory:")
    Agent(ScriptedModel([{"text": "Done."}]), "", TOOLS, answer_schema=recorded).run_sync("Do it.", store=store, run_id="one")
    told = replay(store, "one", Agent(ScriptedModel([]), "", TOOLS, answer_schema=today))
    # then both schemas are told, where they are first sent
    (change,) = told.changes
    assert (change.position, change.field, change.recorded, change.derived) == (3, "answer_schema", recorded, today)
    assert (told.verdict, told.as_json()["changes"][0]["derived"]) == ("would show the model something else", today)
    # and where the request shows something else besides, it is another by its digest
    (change,) = replay(store, "one", Agent(ScriptedModel([]), "Be brief.", TOOLS, answer_schema=today)).changes
    assert change.field == "data.digest"
    assert change.recorded != change.derived


@pytest.mark.parametrize(("effect", "verdict"), [("read", "would show the model something else"), ("side_effect", "unaffected")])
def test_a_call_that_is_given_up_sooner_says_so_to_the_model_where_it_is_told_that(effect: Effect, verdict: str) -> None:
    # given a tool that never returns, and the run with it under two limits
    async def hang(_arguments: dict[str, Any], _ctx: ToolContext) -> object:
        return await asyncio.Event().wait()

    def timed_out_after(seconds: float) -> Store:
        store = open_store("memory:")
        hanging = Tool(name="hang", description="", schema={"type": "object"}, handler=hang, effect=effect)
        script = ScriptedModel([{"calls": [{"name": "hang", "arguments": {}}]}, {"text": "Done."}])
        Agent(script, "", [hanging], policy=Policy(tool_timeout_s=seconds)).run_sync("Do it.", store=store, run_id="one")
        return store

    store, live = timed_out_after(0.02), timed_out_after(0.01)
    told = replay(store, "one", changes={"policy.tool_timeout_s": 0.01})
    # then what the model is told of it is what it was told
    closed = [next(record.data["message"] for record in each.read("one") if record.type == "tool_closed") for each in (store, live)]
    assert (told.verdict, closed[0] == closed[1]) == (verdict, not told.changes)
    for change in told.changes:
        assert [change.recorded, change.derived] == closed
        assert change.because.startswith("policy.tool_timeout_s=0.01 (was 0.02) (timeout)")


@pytest.mark.parametrize(("leaves_out", "verdict"), [(0, "unaffected"), (1, "would show the model something else"), (None, "unaffected")])
def test_todays_context_builder_is_asked_also_where_none_was(leaves_out: int | None, verdict: str) -> None:
    # given a run of seven turns whose requests showed everything, and an agent with a builder
    turns = [{"calls": [{"name": "look", "arguments": {"topic": str(n)}}]} for n in range(6)]
    STAGE.behaviours = {"look": Behaviour("returns")}
    store = open_store("memory:")
    Agent(ScriptedModel([*turns, {"text": "Done."}]), "", TOOLS).run_sync("Do it.", store=store, run_id="one")

    def chosen(_run: object, turns: Mapping[int, object]) -> list[int]:
        if leaves_out is None:
            raise RuntimeError("it fails, and the request shows everything")
        return sorted(turns)[:leaves_out]

    # then only what it leaves out makes a difference
    told = replay(store, "one", Agent(ScriptedModel([]), "", TOOLS, context_builder=chosen))
    assert told.verdict == verdict
    if told.changes:
        assert told.changes[0].derived == "context_chosen"
        assert "the agent's context_builder" in told.changes[0].because


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgets.max_turn": 3}, "did you mean budgets.max_turns"),
        ({"budgets.max_turns": 0}, "greater than or equal to 1"),
        ({"policy.on_tool_error": "panic"}, "'observe' or 'stop'"),
        ({"model.temperature": 0}, "fork"),
    ],
)
def test_settings_that_are_none_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    store, _ = finished()
    with pytest.raises(WrongSetting, match=words):
        replay(store, "one", changes=changes)


def test_what_a_run_and_its_fork_save_themselves_is_what_was_paid_for_beyond_the_end_wherever_it_was_split_off() -> None:
    store, _ = finished()
    again = {"calls": [{"name": "look", "arguments": {"topic": "another"}}]}
    for at in (record.position for record in store.read("one") if record.type in ("model_requested", "tool_results_injected", "tool_succeeded")):
        # given a fork of a run of four turns
        fork = f"fork{at}"
        Agent(ScriptedModel([again, {"text": "Done."}]), "", TOOLS, policy=Policy(wrap_up=False)).fork_sync("one", at, store=store, new_id=fork)
        # when both would end behind their second turn
        told = [replay(store, name, changes={"budgets.max_turns": 2}).saved_own for name in ("one", fork)]
        # then each response behind it counts once, with the run that asked for it
        asked = [record for name in ("one", fork) for record in store.read(name) if record.run == name and record.turn > 2]
        assert sum(saved.turns for saved in told if saved is not None) == sum(record.type in ("tool_calls_requested", "final_proposed") for record in asked)
