"""Pairing after a cancel: whenever it comes, every call has exactly one result, and the conversation goes on."""

import asyncio
import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from refold import Agent, NotPerformed, Policy, RetryableToolError, Store, fold, tool
from refold.events import facts as f
from refold.events.codec import Edge, Record, Stamp, Unreadable, write
from refold.events.words import CallId, RunId
from refold.runtime import ports as p
from refold.runtime.cli.main import perform


def cancel_at(store: Store, tag: str, *, nth: int = 1) -> Any:
    """A listener that cancels the run when the nth record of this type is stored."""
    left = [nth]

    def hear(what: Any) -> None:
        if isinstance(what, Record) and what.type == tag:
            left[0] -= 1
            if left[0] == 0:
                store.cancel_sync(what.run, "enough")

    return hear


def go_on(stage: Any, agent: Agent, run_id: str) -> p.Request:
    """The request that a new message of the user leads to."""
    agent.model = stage.scripted([{"text": "Hello again."}])
    result = agent.continue_run_sync(run_id, "Are you there?", store=stage.store, new_id=f"after-{run_id}")
    assert (result.status, result.answer) == ("completed", "Hello again.")
    (request,) = stage.requests()
    return request


def shape(request: p.Request) -> list[tuple[str, str]]:
    """Role, and what is said or what kind of result it is."""
    return [(message.role, message.kind if message.role == "tool" else message.text) for message in request.messages]


@pytest.mark.parametrize(("effect", "kind"), [("read", "cancelled"), ("idempotent", "cancelled"), ("side_effect", "in_doubt")])
def test_B001_a_cancelled_batch_of_parallel_calls_has_all_its_results(stage, results_of, effect, kind):
    # given four calls of one reply, all of them in flight
    begun: Counter[int] = Counter()
    all_begun = asyncio.Event()

    @tool(effect=effect, concurrent=True)
    async def work(n: int) -> str:
        """Works for long."""
        begun[n] += 1
        if len(begun) == 4:
            all_begun.set()
        await asyncio.sleep(60)
        raise AssertionError("never comes back")

    agent = stage.agent([{"text": "Four at once.", "calls": [{"name": "work", "arguments": {"n": n}} for n in range(4)]}], [work])

    async def scenario() -> Any:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await all_begun.wait()
        await stage.store.cancel("r", "enough")
        return await running

    # when the run is cancelled
    result = asyncio.run(scenario())
    # then the log has a result for each before it says that the run is over; of a side effect it says that nobody knows
    assert (result.status, result.reason, result.detail) == ("cancelled", "cancelled", "enough")
    assert {call: found[0] for call, found in results_of(result).items()} == {f"t1.{n}": kind for n in range(1, 5)}
    assert [record.type for record in result.records][-2:] == ["tool_results_injected", "run_cancelled"]
    # and the conversation goes on with exactly that, and performs nothing again
    assert shape(go_on(stage, agent, "r")) == [
        ("user", "Do it."),
        ("assistant", "Four at once."),
        *[("tool", kind)] * 4,
        ("user", "Are you there?"),
    ]
    assert begun == {0: 1, 1: 1, 2: 1, 3: 1}


def test_B002_a_call_that_was_cut_while_it_was_written_is_never_a_call(stage):
    # given a model that stops in the middle of the arguments of a call
    paused = asyncio.Event()

    class Pausing:
        spec = "pausing"

        async def stream(self, request: p.Request) -> Any:
            yield p.TextDelta(text="Editing")
            yield p.ToolCallOpened(index=0, name="edit", id="call_7")
            for piece in ('{"path": "a.txt", ', '"text": "one', "two"):
                yield p.ArgumentsDelta(index=0, text=piece)
            paused.set()
            await asyncio.Event().wait()

    @tool
    def edit(path: str, text: str) -> str:
        """Edits."""
        raise AssertionError("never runs")

    agent = Agent(model=Pausing(), tools=[edit])

    async def scenario() -> Any:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await paused.wait()
        await stage.store.cancel("r", "enough")
        return await running

    # when the run is cancelled then
    result = asyncio.run(scenario())
    # then the log keeps what had come, as what was interrupted, and no call is open
    assert result.status == "cancelled"
    (cut,) = [record.fact for record in result.records if isinstance(record.fact, f.ModelInterrupted)]
    assert (cut.cause, cut.text) == ("cancelled", "Editing")
    assert [(call.name, call.provider_id, call.arguments_text) for call in cut.calls] == [("edit", "call_7", '{"path": "a.txt", "text": "onetwo')]
    assert not [record for record in result.records if record.call]
    # and what the model is shown of it later is its text
    request = go_on(stage, agent, "r")
    assert shape(request) == [("user", "Do it."), ("assistant", "Editing"), ("user", "Are you there?")]
    assert not any(message.calls for message in request.messages)


class Busy(RetryableToolError, NotPerformed):
    """Nothing was done, and another attempt may do it."""


POINTS = {
    "before attempt 1": ("tool_started", 0, "cancelled"),
    "during attempt 1": (1, 1, "execution_failed"),
    "during back-off": ("retry_scheduled", 1, "cancelled"),
    "during attempt 2": (2, 2, "success"),
    "while the results are injected": ("tool_results_injected", 2, "success"),
}
"""Where the cancel comes: with a record, or in the attempt of that number; how many attempts then begin, and what the call comes to."""


@pytest.mark.parametrize("effect", ["read", "side_effect"])
@pytest.mark.parametrize("point", POINTS)
def test_B003_wherever_a_cancel_meets_a_retried_call_it_has_one_result(stage, results_of, point, effect):
    # given a tool that fails once in a way that may be tried again, and then works
    when, expected, kind = POINTS[point]
    attempts: list[int] = []

    @tool(effect=effect, retries=2)
    def flaky() -> str:
        """Works the second time."""
        attempts.append(len(attempts) + 1)
        if attempts[-1] == when:
            stage.store.cancel_sync("r", "enough")
        if attempts[-1] == 1:
            raise Busy("later")
        return "worked"

    agent = stage.agent([{"calls": [{"name": "flaky"}]}, {"text": "never said"}], [flaky])
    # when the run is cancelled at that point
    if when in ("tool_started", "tool_results_injected"):
        store, heard = stage.meanwhile(str(when), lambda: stage.store.cancel_sync("r", "enough")), None
    else:
        store, heard = stage.store, cancel_at(stage.store, str(when))
    result = asyncio.run(agent.run("Do it.", store=store, run_id="r", heard=heard))
    # then no attempt began after the cancel, and those that did are in the log
    assert result.status == "cancelled"
    assert len(attempts) == expected
    types = [record.type for record in result.records]
    assert "tool_started" not in types[types.index("cancel_requested") :]
    assert types.count("tool_started") == expected + (point == "during back-off")
    # and the call has one result, which holds no doubt, since nothing was performed that was not reported
    assert {call: found[0] for call, found in results_of(result).items()} == {"t1.1": kind}
    assert shape(go_on(stage, agent, "r"))[2:] == [("tool", kind), ("user", "Are you there?")]


def test_B004_a_cancel_between_the_reply_and_its_first_tool_leaves_nothing_dangling(stage, results_of):
    # given a reply with two calls, and a cancel that is in the log just before it
    @tool
    def act(n: int) -> str:
        """Acts."""
        raise AssertionError("never runs")

    agent = stage.agent([{"calls": [{"name": "act", "arguments": {"n": n}} for n in (1, 2)]}], [act])
    store = stage.meanwhile("tool_calls_requested", lambda: stage.store.cancel_sync("r", "enough"))
    # when
    result = asyncio.run(agent.run("Do it.", store=store, run_id="r"))
    # then both calls are in the history, with results, and the conversation goes on
    assert result.status == "cancelled"
    assert [kind for kind, _ in results_of(result).values()] == ["cancelled", "cancelled"]
    assert shape(go_on(stage, agent, "r"))[2:] == [("tool", "cancelled"), ("tool", "cancelled"), ("user", "Are you there?")]


@pytest.mark.parametrize("effect", ["read", "idempotent", "side_effect"])
def test_B004_a_process_that_dies_between_the_reply_and_its_first_tool_runs_both_once(stage, results_of, effect):
    # given a run that died when its reply with two calls was stored
    ran: list[int] = []

    @tool(effect=effect)
    def act(n: int) -> str:
        """Acts."""
        ran.append(n)
        return f"did {n}"

    turns = [{"calls": [{"name": "act", "arguments": {"n": n}} for n in (1, 2)]}, {"text": "done"}]
    finished = stage.play(turns, [act], run_id="r", policy=Policy(on_doubt="ask"))
    before = next(record.position for record in finished.records if record.type == "tool_succeeded") - 1
    store = stage.cut("r", before)
    ran.clear()
    # when it is resumed
    agent = stage.agent(turns, [act])
    result = agent.resume_sync("r", store=store)
    if effect == "side_effect":  # its intent is in the log, and nobody can know that it did not act: a human says so
        assert (result.status, ran) == ("waiting_for_user", [2])
        store.resolve_sync("r", "t1.1", verdict="did_not_happen")
        result = agent.resume_sync("r", store=store)
    # then each ran once, and the model was not asked for them again
    assert (result.status, sorted(ran)) == ("completed", [1, 2])
    assert results_of(result) == {"t1.1": ("success", "did 1"), "t1.2": ("success", "did 2")}
    assert [request.number for request in stage.requests()] == [2]


@pytest.mark.parametrize(("effect", "second"), [("read", "cancelled"), ("side_effect", "in_doubt")])
def test_B005_a_cancelled_batch_tells_what_was_done_from_what_ran_and_what_never_began(stage, results_of, effect, second):
    # given three calls in a row: one is done, one runs, one waits its turn
    begun = asyncio.Event()

    @tool(effect=effect)
    async def step(n: int) -> str:
        """Takes a step."""
        if n == 1:
            return "the first result"
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError("never comes back")

    agent = stage.agent([{"calls": [{"name": "step", "arguments": {"n": n}} for n in (1, 2, 3)]}], [step])

    async def scenario() -> Any:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await begun.wait()
        await stage.store.cancel("r", "enough")
        return await running

    # when the run is cancelled
    result = asyncio.run(scenario())
    # then the three are told apart
    results = results_of(result)
    assert results["t1.1"] == ("success", "the first result")
    assert results["t1.2"][0] == second
    assert results["t1.3"][0] == "cancelled"
    assert "before this call ran" in results["t1.3"][1]["message"]
    assert "before this call ran" not in results["t1.2"][1]["message"]
    # and the model sees them in the order of its calls
    told = [message for message in go_on(stage, agent, "r").messages if message.role == "tool"]
    assert [(message.call_id, message.kind) for message in told] == [("p.t1.1", "success"), ("p.t1.2", second), ("p.t1.3", "cancelled")]


def test_B006_a_cancelled_call_without_a_reason_hides_nothing(stage, tmp_path, monkeypatch, capsys):
    # given a run with some twenty records, cancelled by nobody for no reason while a call waits
    @tool(approval="always")
    def send(to: str) -> str:
        """Sends."""
        raise AssertionError("never runs")

    @tool(effect="read")
    def look(at: int) -> str:
        """Looks."""
        return f"saw {at}"

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REFOLD_STORE", raising=False)
    turns = [*({"calls": [{"name": "look", "arguments": {"at": n}}]} for n in (1, 2)), {"calls": [{"name": "send", "arguments": {"to": "ann"}}]}]
    store = stage.another_store("sqlite:///.refold/log.db")
    agent = stage.agent(turns, [look, send])
    agent.run_sync("Do it.", store=store, run_id="odd")
    store.cancel_sync("odd", "", who="")
    records = list(store.read("odd"))
    assert len(records) >= 20
    assert fold(records).status == "cancelled"
    # when it is listed, shown, drawn, replayed, audited, exported
    capsys.readouterr()
    for words in (["runs"], ["show", "odd"], ["log", "odd"], ["replay", "odd"], ["audit", "odd"], ["diagram", "odd"]):
        assert perform([*words, "--json"] if words[0] in ("log", "show") else words) == 0, words
        out = capsys.readouterr().out
        if words[0] == "log":
            assert [json.loads(line)["position"] for line in out.splitlines()] == list(range(1, len(records) + 1))
        if words[0] == "show":
            (waited,) = [message for message in json.loads(out)["messages"] if message.get("call_id") == "t3.1"]
            assert (waited["kind"], waited["content"]["error"]) == ("cancelled", "cancelled")
            assert waited["content"]["message"].strip()
    assert perform(["export", "odd"]) == 0
    # then all of it is there, and what was exported is whole
    exported = tmp_path / "odd.jsonl"
    exported.write_text(capsys.readouterr().out, encoding="utf-8")
    assert perform(["verify", str(exported)]) == 0


def test_B006_what_could_not_be_read_again_is_refused_before_it_is_stored():
    # given a result of a kind that no reader knows
    odd = f.ToolClosed(call=CallId("t1.1"), kind="", message="")  # type: ignore[arg-type]
    edge = Edge(fact=odd, source="executing_tools", target="executing_tools", turn=1)
    # when it is to be written
    with pytest.raises(Unreadable):
        write(edge, run=RunId("r"), position=1, batch=1, stamp=Stamp(at=1, driver="x"), before="")  # type: ignore[arg-type]
    # then only a proper one is
    proper = msgspec.structs.replace(edge, fact=msgspec.structs.replace(odd, kind="cancelled"))
    record, _ = write(proper, run=RunId("r"), position=1, batch=1, stamp=Stamp(at=1, driver="x"), before="")  # type: ignore[arg-type]
    assert record.type == "tool_closed"
