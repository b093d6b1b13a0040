"""Whatever is changed in an agent, a replay with it names the place, the field and the class of the cause, and nothing before it; a replay without it reports nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import AfterValidator, Field

from refold import Agent, Budgets, Context, Policy, RetryableToolError, ScriptedModel, ToolContext, open_store, replay, tool
from refold.fsm import calls
from refold.fsm.replay import replay_rows
from refold.projections.messages import Message
from refold.projections.run import Run
from refold.runtime import replay as proofs, summaries
from refold.runtime.journal import loader
from refold.runtime.store import Store
from refold.runtime.tools import Tool


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


TURNS: list[dict[str, Any]] = [
    {"calls": [call("look", at="north"), call("look", at="south"), call("nosuch")], "text": "first"},
    {"calls": [call("put", key="k", value=1), call("send", to="ann", body="hello")]},
    {"error": {"type": "overloaded", "message": "busy", "retryable": True, "retry_after_s": 0.001}},
    {"text": ""},
    *[{"calls": [call("look", at=f"page {n}")]} for n in range(5)],
    {"text": "Both were seen"},
    {"text": "Both were seen."},
]


def look_at(at: str) -> str:
    return f"seen page {at}. " * 100


@tool(effect="read", concurrent=True)
def look(at: str) -> str:
    """Looks."""
    return look_at(at)


@tool(effect="idempotent", retries=2)
def put(key: str, value: int, ctx: ToolContext) -> int:
    """Puts a value."""
    if ctx.attempt == 1:
        raise RetryableToolError("busy")
    return value


def is_long(arguments: dict[str, Any]) -> bool:
    return len(arguments["body"]) > 3


@tool(approval=is_long)
def send(to: str, body: str) -> str:
    """Sends."""
    return f"sent to {to}"


def polite(run: Run, answer: str, citations: tuple[str, ...]) -> list[str]:
    return [] if answer.endswith(".") else ["end with a full stop"]


def all_but_one(run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
    return list(turns)[:1]


def made(**changes: Any) -> Agent:
    options: dict[str, Any] = {
        "model": ScriptedModel(TURNS),
        "instructions": "Be brief.",
        "tools": [look, put, send],
        "validators": [polite],
        "budgets": Budgets(max_turns=30),
        "context": Context(window_tokens=2_400, keep_turns=1),
        "context_builder": all_but_one,
        **changes,
    }
    return Agent(**options)


@pytest.fixture(scope="module")
def finished() -> tuple[Store, str]:
    store = open_store("memory:")
    agent = made()
    waiting = agent.run_sync("Look around, then send.", store=store, run_id="long")
    assert waiting.status == "waiting_for_user"
    store.approve_sync("long", who="ann")
    run = agent.resume_sync("long", store=store)
    assert run.status == "completed"
    tags = {record.type for record in store.read("long")}
    assert {"context_chosen", "context_compacted", "retry_scheduled", "model_error_observed", "final_rejected", "approval_granted"} <= tags
    return store, "long"


def position_of(store: Store, run_id: str, place: str) -> int:
    tag, _, nth = place.partition(" ")
    return [record.position for record in store.read(run_id) if record.type == tag][int(nth or 1) - 1]


class Planted(NamedTuple):
    """How the agent is another, and what is reported."""

    changes: Callable[[], dict[str, Any]]
    place: str
    field: str
    cause_class: str
    said: str = ""
    """A part of the cause."""


def with_tool(other: Tool) -> dict[str, Any]:
    return {"tools": [other if other.name == one.name else one for one in (look, put, send)]}


def renamed() -> dict[str, Any]:
    @tool(effect="read", concurrent=True, name="look")
    def other(where: str) -> str:
        """Looks."""
        return look_at(where)

    return with_tool(other)


def described() -> dict[str, Any]:
    @tool(effect="read", concurrent=True, name="look")
    def other(at: str) -> str:
        """Looks around."""
        return look_at(at)

    return with_tool(other)


def stricter() -> dict[str, Any]:
    @tool(effect="read", concurrent=True, name="look")
    def other(at: Annotated[str, Field(max_length=5)]) -> str:
        """Looks."""
        return look_at(at)

    return with_tool(other)


def choosier() -> dict[str, Any]:
    def northern(at: str) -> str:
        if at == "south":
            raise ValueError("not the south")
        return at

    @tool(effect="read", concurrent=True, name="look")
    def other(at: Annotated[str, AfterValidator(northern)]) -> str:
        """Looks."""
        return look_at(at)

    return with_tool(other)


def rewriting() -> dict[str, Any]:
    @tool(effect="read", concurrent=True, name="look")
    def other(at: Annotated[str, AfterValidator(str.upper)]) -> str:
        """Looks."""
        return look_at(at)

    return with_tool(other)


def harmful() -> dict[str, Any]:
    @tool(concurrent=True, name="look")
    def other(at: str) -> str:
        """Looks."""
        return look_at(at)

    return with_tool(other)


def sending(approval: Any = is_long, **more: Any) -> Callable[[], dict[str, Any]]:
    def changes() -> dict[str, Any]:
        @tool(approval=approval, name="send", **more)
        def other(to: str, body: str) -> str:
            """Sends."""
            return f"sent to {to}"

        return with_tool(other)

    return changes


def never(arguments: dict[str, Any]) -> bool:
    return False


def failing(arguments: dict[str, Any]) -> bool:
    raise RuntimeError("no rules today")


def named(name: str, function: Any) -> Any:
    """The same under another name."""

    def other(*arguments: Any) -> Any:
        return function(*arguments)

    other.__name__ = name
    return other


def unforgiving(run: Run, answer: str, citations: tuple[str, ...]) -> list[str]:
    return ["never good enough"]


def broken(run: Run, answer: str, citations: tuple[str, ...]) -> list[str]:
    raise RuntimeError("out of order")


def lenient(run: Run, answer: str, citations: tuple[str, ...]) -> list[str]:
    return []


def nothing_left_out(run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
    return []


AGENTS = {
    "a renamed parameter": Planted(renamed, "run_started", "data.setup.tools[0].schema.properties.at", "tool schema"),
    "another description": Planted(described, "run_started", "data.setup.tools[0].description", "tool schema"),
    "a stricter schema": Planted(stricter, "run_started", "data.setup.tools[0].schema.properties.at.maxLength", "tool schema"),
    "another effect": Planted(harmful, "run_started", "data.setup.tools[0].effect", "tool schema"),
    "a tool less": Planted(lambda: {"tools": [look, put]}, "run_started", "data.setup.tools[2].name", "tool schema"),
    "tools in another order": Planted(lambda: {"tools": [put, look, send]}, "run_started", "data.setup.tools[0].name", "tool schema"),
    "stricter than the schema says": Planted(choosier, "calls_checked", "data.checks[1].kind", "tool schema", "not the south"),
    "arguments that come out otherwise": Planted(rewriting, "calls_checked", "data.checks[0].arguments", "tool schema"),
    "an approval always": Planted(sending("always"), "run_started", "data.setup.tools[2].approval", "policy or limit"),
    "other retries": Planted(sending(retries=3), "run_started", "data.setup.tools[2].retries", "policy or limit"),
    "another time limit": Planted(sending(timeout_s=3), "run_started", "data.setup.tools[2].timeout_s", "policy or limit"),
    "a rule that lets it pass": Planted(sending(named("is_long", never)), "calls_checked 2", "data.checks[1].approval", "policy or limit"),
    "a rule of another name": Planted(sending(lambda arguments: is_long(arguments)), "calls_checked 2", "data.checks[1].approval_reason", "policy or limit"),
    "a rule that raises": Planted(sending(named("is_long", failing)), "calls_checked 2", "data.checks[1].kind", "policy or limit", "no rules today"),
    "another business key": Planted(sending(key=lambda arguments: arguments["to"]), "calls_checked 2", "data.checks[1].key", "code"),
    "a way to reconcile": Planted(sending(reconcile=lambda key: None), "calls_checked 2", "data.checks[1].reconcilable", "tool schema"),
    "a stricter validator": Planted(lambda: {"validators": [named("polite", unforgiving)]}, "answer_checked", "data.complaints[0]", "code", "validators"),
    "a validator that raises": Planted(lambda: {"validators": [named("polite", broken)]}, "answer_checked", "data.complaints[0]", "code", "out of order"),
    "a validator that lets it pass": Planted(lambda: {"validators": [named("polite", lenient)]}, "answer_checked", "data.complaints[0]", "code"),
    "a validator of another name": Planted(
        lambda: {"validators": [lambda run, answer, citations: polite(run, answer, citations)]}, "run_started", "data.setup.validators[0]", "code"
    ),
    "a schema of answers": Planted(lambda: {"answer_schema": {"type": "object"}}, "run_started", "data.setup.answer_schema", "code"),
    "other instructions": Planted(lambda: {"instructions": "Be very brief."}, "run_started", "data.setup.instructions", "context"),
    "another choice of turns": Planted(lambda: {"context_builder": named("all_but_one", nothing_left_out)}, "context_chosen", "data.left_out[0]", "context"),
    "a builder of another name": Planted(lambda: {"context_builder": nothing_left_out}, "run_started", "data.setup.context_builder", "context"),
    "no question to the user": Planted(lambda: {"ask_user": False}, "run_started", "data.setup.tools[4]", "tool schema"),
}


@pytest.mark.parametrize("planted", AGENTS.values(), ids=AGENTS)
def test_a_changed_agent_is_reported_where_it_tells(finished: tuple[Store, str], planted: Planted) -> None:
    store, run_id = finished
    # given an agent that was changed
    agent = made(**planted.changes())
    # when the run is replayed with it, then just that is reported
    found = replay(store, run_id, agent).divergence
    position = position_of(store, run_id, planted.place)
    assert found is not None
    assert (found.position, found.field, found.cause_class) == (position, planted.field, planted.cause_class), found
    assert found.cause.startswith(f"{planted.cause_class}: ")
    assert planted.said in found.cause
    assert "--agent" in found.hint
    # and nothing before it
    batch = next(record.batch for record in store.read(run_id) if record.position == position)
    if batch > 1:
        before = [row for row in proofs.stored_rows(store, run_id) if row[0] < batch]
        assert replay_rows(run_id, before, loader(store.log, run_id, many=True), proofs.asking_again(proofs.in_store(store, run_id), agent)).divergence is None
    # and without the agent nothing is
    assert replay(store, run_id).divergence is None


def test_the_agent_as_it_was_says_what_it_said(finished: tuple[Store, str]) -> None:
    store, run_id = finished
    assert replay(store, run_id, made()).divergence is None


def test_settings_of_today_are_not_those_of_the_run(finished: tuple[Store, str]) -> None:
    store, run_id = finished
    today = made(policy=Policy(max_tool_retries=5, on_tool_error="stop"), budgets=Budgets(max_turns=2), context=Context(window_tokens=9_000, keep_turns=1))
    assert replay(store, run_id, today).divergence is None


def test_another_summariser_is_reported_where_its_summary_is_another(finished: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store, run_id = finished
    extract = summaries.extract
    monkeypatch.setattr(summaries, "extract", lambda *arguments, **more: extract(*arguments, **more).replace("page", "leaf"))
    found = replay(store, run_id, made()).divergence
    assert found is not None
    assert (found.position, found.field, found.cause_class) == (position_of(store, run_id, "context_compacted"), "data.summary", "context")
    assert replay(store, run_id).divergence is None


def test_a_summary_of_today_that_would_not_be_taken_is_named_for_what_it_is(finished: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # given a summariser that makes nothing shorter
    store, run_id = finished
    monkeypatch.setattr(summaries, "extract", lambda *arguments, **more: "long " * 10_000)
    # then it is the summary that differs, not the rule which refuses it
    found = replay(store, run_id, made()).divergence
    assert found is not None
    assert (found.field, found.cause_class) == ("data.summary", "context")
    # and what is shown of it is what is around the difference
    assert len(str(found.derived)) < 300


def test_an_input_that_is_missing_is_no_riddle_for_the_agent(finished: tuple[Store, str]) -> None:
    # given logs that lack the response which an agent's verdict is about
    store, run_id = finished
    rows = list(proofs.stored_rows(store, run_id))
    for tag in ("tool_calls_requested", "final_proposed"):
        gone = position_of(store, run_id, tag)
        left = [row for row in rows if row[0] != gone]
        found = replay_rows(run_id, left, loader(store.log, run_id, many=True), proofs.asking_again(proofs.in_store(store, run_id), made())).divergence
        assert found is not None
        assert (found.position, found.cause_class) == (gone, "environment")


def test_a_redactor_that_finds_a_secret_in_arguments_is_policy(finished: tuple[Store, str]) -> None:
    store, run_id = finished
    found = replay(store, run_id, made(redactors=[lambda text: text.replace("hello", "[redacted]")])).divergence
    assert found is not None
    assert (found.position, found.field, found.cause_class) == (position_of(store, run_id, "calls_checked 2"), "data.checks[1].kind", "policy or limit")


KINDS: tuple[Literal["code", "context", "tool schema", "policy or limit"], ...] = ("code", "context", "tool schema", "policy or limit")


def test_every_class_that_an_agent_can_cause_is_in_the_table() -> None:
    assert {planted.cause_class for planted in AGENTS.values()} == set(KINDS)


# -- forks


def test_a_change_in_the_history_of_a_fork_is_reported_in_its_place(finished: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # given a fork that begins within what its parent appended together, where results were in
    store, run_id = finished
    at = position_of(store, run_id, "tool_results_injected 3")
    other = made(model=ScriptedModel([{"calls": [call("look", at="east")]}, {"text": "Seen."}]))
    fork = other.fork_sync(run_id, at, store=store, new_id="fork")
    assert fork.status == "completed"
    assert replay(store, "fork").divergence is None
    assert replay(store, "fork", other).divergence is None
    rows = list(proofs.stored_rows(store, "fork"))
    load = loader(store.log, "fork", many=True)

    def found(changed: list[tuple[int, bytes]]) -> tuple[int, str, str]:
        divergence = replay_rows("fork", changed, load).divergence
        assert divergence is not None
        return divergence.position, divergence.field, divergence.cause_class

    # when a bit is flipped, or a record is gone, before, at and behind where it begins, then it is named there
    for position in (at - 3, at, at + 1, at + 4):
        flipped = [row if row[0] != position else (position, row[1].replace(b'"at":', b'"aT":')) for row in rows]
        assert found(flipped) == (position, "bytes", "environment")
        assert found([row for row in rows if row[0] != position]) == (position, "type", "environment")
    # and rules that say something else are reported where they first tell, in the parent's part or in the fork's
    keys = calls.key
    with monkeypatch.context() as changed:
        changed.setattr(calls, "key", lambda run, call: "k")
        assert found(rows) == (position_of(store, "fork", "tool_started"), "data.key", "code")
    with monkeypatch.context() as changed:
        changed.setattr(calls, "key", lambda run, call: "k" if run.id == "fork" else keys(run, call))
        started = next(record.position for record in store.read("fork") if record.type == "tool_started" and record.position > at)
        assert found(rows) == (started, "data.key", "code")
