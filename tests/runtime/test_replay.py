"""A log can be derived again from its input facts alone; whatever was changed is named at its position."""

import builtins
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from refold import Agent, Budgets, Policy, ScriptedModel, open_store, replay, tool
from refold.fsm import guards, limits
from refold.fsm.machine import MACHINE, TABLE, build, compile_rows
from refold.fsm.replay import replay_rows
from refold.runtime.agent import Agent as AnyAgent
from refold.runtime.journal import loader
from refold.runtime.store import Store


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"seen {at}"


def polite(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
    return [] if answer.endswith(".") else ["end with a full stop"]


def agent(**changes: Any) -> AnyAgent:
    turns = [
        {"calls": [{"name": "look", "arguments": {"at": "north"}}, {"name": "nosuch"}], "text": "first"},
        {"calls": [{"name": "look", "arguments": {"at": "x" * 6000}}]},
        {"text": "Both were seen"},
        {"text": "Both were seen."},
    ]
    made = {"model": ScriptedModel(turns), "tools": [look], "validators": [polite], **changes}
    return Agent(**made)


@pytest.fixture
def finished() -> Iterator[tuple[Store, str]]:
    store, handler = open_store("memory:"), look.handler
    run = agent().run_sync("Look around.", store=store)
    assert run.status == "completed"
    yield store, run.id
    object.__setattr__(look, "handler", handler)


def rows(store: Store, run_id: str) -> list[tuple[int, bytes]]:
    return [(row.position, row.state) for row in store.log.read(run_id)]


def position_of(store: Store, run_id: str, fact: str, nth: int = 0) -> int:
    return [record.position for record in store.read(run_id) if record.type == fact][nth]


def test_a_replay_is_identical_and_touches_nothing_of_the_world(finished: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store, run_id = finished

    # given a world in which sockets, clocks, random numbers, files and tools raise
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("replay touched the world")

    for module, names in (
        (socket, ("socket", "create_connection")),
        (time, ("time", "time_ns", "monotonic", "monotonic_ns", "sleep")),
        (random, ("random", "randint")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    monkeypatch.setattr(builtins, "open", forbidden)
    object.__setattr__(look, "handler", forbidden)
    # when the run is replayed
    replayed = replay(store, run_id)
    # then it comes out the same
    assert replayed.divergence is None
    assert replayed.events == len(rows(store, run_id))


def test_the_derived_records_can_be_deleted_and_come_back_byte_for_byte(finished: tuple[Store, str]) -> None:
    # given a log of which only the input facts are left
    store, run_id = finished
    whole = rows(store, run_id)
    inputs = {record.position for record in store.read(run_id) if record.fact.INPUT}
    left = [(position, state) for position, state in whole if position in inputs]
    assert 0 < len(left) < len(whole)
    # when it is replayed
    derived = replay_rows(run_id, left, loader(store.log, run_id, many=True))
    # then the whole log is there again, and what was missing is said
    assert [(record.position, record.stored) for record in derived.records] == whole
    assert derived.divergence is not None
    assert derived.divergence.position == min(position for position, _ in whole if position not in inputs)


@pytest.mark.parametrize("apart", [29, pytest.param(3, marks=pytest.mark.slow)])
def test_every_changed_byte_of_every_record_is_reported_at_its_position(finished: tuple[Store, str], apart: int) -> None:
    store, run_id = finished
    whole = rows(store, run_id)
    load = loader(store.log, run_id, many=True)
    for n, (position, state) in enumerate(whole):
        # given one byte changed, at several places of each record
        for place in range(0, len(state), apart):
            changed = bytearray(state)
            changed[place] ^= 1
            tampered = [*whole[:n], (position, bytes(changed)), *whole[n + 1 :]]
            # when it is replayed, then that record is named
            divergence = replay_rows(run_id, tampered, load).divergence
            assert divergence is not None, (position, place)
            assert divergence.position == position, (position, place, divergence)


def test_a_changed_limit_is_reported_where_it_decides_otherwise(finished: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # given code in which three turns are one too many
    store, run_id = finished

    def stricter(run: Any, stamp: Any) -> limits.Exceeded | None:
        return limits.Exceeded(reason="max_turns", detail="changed") if run.turn >= 3 else None

    changed = tuple(row._replace(limits=(stricter, *row.limits)) if row.trigger == "model_requested" else row for row in TABLE)
    plant(monkeypatch, changed)
    # when the run of four turns is replayed, then the third is the last
    divergence = replay(store, run_id).divergence
    assert divergence is not None
    assert divergence.position == position_of(store, run_id, "model_requested", 3)
    assert (divergence.field, divergence.recorded, divergence.derived) == ("type", "model_requested", "run_stopped")
    assert divergence.cause.startswith("policy or limit")


def test_a_changed_guard_is_reported_where_the_log_breaks_it(finished: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # given code in which no handler may start
    store, run_id = finished
    changed = tuple(row._replace(requires=(*row.requires, guards.cancel_requested)) if row.trigger == "tool_started" else row for row in TABLE)
    plant(monkeypatch, changed)
    divergence = replay(store, run_id).divergence
    assert divergence is not None
    assert abs(divergence.position - position_of(store, run_id, "tool_started")) <= 4
    assert "tool_started" in divergence.cause


def plant(monkeypatch: pytest.MonkeyPatch, table: Any) -> None:
    from refold.fsm import decide, machine

    built = build(table)
    monkeypatch.setattr(machine, "MACHINE", built)
    edges = compile_rows(built, table)
    monkeypatch.setattr(machine, "EDGES", edges)
    monkeypatch.setattr(decide, "EDGES", edges)
    assert built is not MACHINE


def test_a_changed_validator_is_reported_where_it_judges_otherwise(finished: tuple[Store, str]) -> None:
    # given an agent whose validator, of the same name, asks for more
    store, run_id = finished

    def strict(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
        return ["never good enough"]

    strict.__name__ = "polite"
    divergence = replay(store, run_id, agent(validators=[strict])).divergence
    assert divergence is not None
    assert divergence.position == position_of(store, run_id, "answer_checked")
    assert divergence.field == "data.complaints[0]"
    assert divergence.recorded == "end with a full stop"
    assert "validators" in divergence.cause


def test_a_changed_tool_schema_is_reported_where_it_was_declared(finished: tuple[Store, str]) -> None:
    # given an agent whose tool of the same name takes other arguments
    store, run_id = finished

    @tool(effect="read", name="look")
    def other(at: int) -> str:
        """Looks."""
        return str(at)

    divergence = replay(store, run_id, agent(tools=[other])).divergence
    assert divergence is not None
    assert divergence.position == 1
    assert divergence.field.startswith("data.setup.tools[0].schema")
    assert divergence.cause.startswith("tool schema")


def test_the_same_agent_asked_again_says_the_same(finished: tuple[Store, str]) -> None:
    store, run_id = finished
    assert replay(store, run_id, agent()).divergence is None


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": Policy(on_tool_error="stop")},
        {"budgets": Budgets(max_turns=2)},
        {"budgets": Budgets(max_tool_calls=1)},
        {"policy": Policy(max_duplicate_actions=3, cycle_repeats=2)},
        {"validators": []},
    ],
    ids=["stop", "turns", "calls", "cycle", "plain"],
)
def test_runs_of_many_settings_replay_identically(changes: dict[str, Any]) -> None:
    store = open_store("memory:")
    run = agent(**changes).run_sync("Look around.", store=store)
    assert replay(store, run.id).divergence is None
