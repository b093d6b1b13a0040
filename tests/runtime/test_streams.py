"""A response on its way: written down beside, cut where it goes too far, closed at once when nobody wants it, and paid for whatever becomes of it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest

from refold import Agent, Budgets, Policy, ScriptedModel, Store, audit, open_store, replay, tool
from refold.events import facts as f
from refold.events.memory import MemoryLog
from refold.events.storage import StoreUnavailable, Submission
from refold.projections.run import Run
from refold.projections.spending import priced
from refold.runtime import asking, checkpoints, ports as p
from refold.runtime.agent import UnknownPrice
from refold.runtime.metering import Meter, Purse, usage_of
from refold.runtime.result import Result
from refold.testing.faults import Fate, FaultyLog

DONE = (p.TextDelta(text="done"), p.Finished(stop_reason="stop"))


class Streams:
    """A model that streams given parts, one list for each request; the last list is played again when there are no more. `closed` counts streams that were let go."""

    spec = "streams"

    def __init__(self, *turns: Sequence[p.Part | Exception | asyncio.Event | Callable[[], object]]) -> None:
        self.turns, self.requests, self.closed = turns, [], 0
        self.given = 0

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        self.requests.append(request)
        try:
            for each in self.turns[min(len(self.requests), len(self.turns)) - 1]:
                if isinstance(each, Exception):
                    raise each
                if isinstance(each, asyncio.Event):
                    await each.wait()
                elif isinstance(each, p.Part):
                    self.given += 1
                    yield each
                    await asyncio.sleep(0)
                else:
                    each()
        finally:
            self.closed += 1


def never() -> asyncio.Event:
    return asyncio.Event()


def texts(text: str, times: int) -> list[p.Part]:
    return [p.TextDelta(text=text)] * times


def check(store: Store, run_id: str = "r") -> Run:
    """Whatever came over it, the log is whole; gives the run."""
    audited = audit(store, run_id)
    assert audited.ok, [invariant for invariant in audited.invariants if not invariant.ok] or (audited.legal, audited.chain)
    assert replay(store, run_id).divergence is None
    return store.journal(run_id).run


def facts_of(store: Store, kind: type[Any]) -> list[Any]:
    return [record.fact for record in store.read("r") if isinstance(record.fact, kind)]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - a log has no event to wait for
            await asyncio.sleep(0.001)


# -- checkpoints


@pytest.mark.parametrize("own_loop", [True, False])
def test_a_long_stream_is_written_down_as_it_comes(own_loop: bool) -> None:
    # given a stream of 200 KB: reasoning, text, and the arguments of a call that has no tool
    store = open_store("memory:")
    model = Streams(
        [
            *[p.ReasoningDelta(text="r" * 1_000)] * 60,
            *texts("t" * 1_000, 60),
            p.ToolCallOpened(index=7, name="nosuch", id="x"),
            *[p.ArgumentsDelta(index=7, text="a" * 1_000)] * 80,
            p.ToolCallReady(index=7, name="nosuch", arguments="a" * 80_000, id="x"),
            p.UsageUpdated(input_tokens=100, output_tokens=50_000),
            p.Finished(stop_reason="tool_calls"),
        ],
        DONE,
    )
    # when
    result = asyncio.run(Agent(model=model).run("Do it.", store=store, run_id="r", own_loop=own_loop))
    # then each 32 KiB of it are in the log before its end, in order
    assert result.status == "completed"
    written = facts_of(store, f.StreamCheckpointed)
    sizes = [len(each.text + each.reasoning + "".join(call.arguments_text for call in each.calls)) for each in written]
    assert len(written) == 6
    assert all(checkpoints.BYTES <= size <= checkpoints.BYTES + 2_000 for size in sizes), sizes
    assert "".join(each.reasoning for each in written) == "r" * 60_000
    assert "".join(each.text for each in written) == "t" * 60_000
    pieces = [call for each in written for call in each.calls]
    assert {(call.id, call.name, call.provider_id) for call in pieces} == {("t1.1", "nosuch", "x")}
    types = [record.type for record in store.read("r")]
    assert types.index("tool_calls_requested") > max(n for n, type_ in enumerate(types) if type_ == "stream_checkpointed")
    # and nothing counts twice
    assert check(store).spent.reported.output_tokens == 50_000


def test_a_slow_stream_is_written_down_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an interval that passes while the model says nothing
    monkeypatch.setattr(checkpoints, "INTERVAL_S", 0.001)
    store = open_store("memory:")
    wait = asyncio.Event()
    model = Streams([p.TextDelta(text="so"), p.UsageUpdated(input_tokens=90, output_tokens=1), wait, p.TextDelta(text=" far"), p.Finished(stop_reason="stop")])

    async def scenario() -> Result:
        running = asyncio.ensure_future(Agent(model=model).run("Do it.", store=store, run_id="r"))
        # when
        await until(lambda: model.requests and facts_of(store, f.StreamCheckpointed))
        wait.set()
        return await running

    assert asyncio.run(scenario()).answer == "so far"
    # then it is there with what was reported
    (first, *_) = facts_of(store, f.StreamCheckpointed)
    assert (first.text, first.usage) == ("so", f.Usage(input_tokens=90, output_tokens=1))
    check(store)


def test_a_report_without_a_word_is_written_down_where_it_says_much_more_than_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model that thinks in silence and reports again and again
    monkeypatch.setattr(checkpoints, "INTERVAL_S", 0.0005)
    store = open_store("memory:")
    counts = [*range(1_000, 2_000, 2), 4_000, 4_000]
    steps: list[Any] = []
    for count in counts:
        steps.append(p.UsageUpdated(input_tokens=count, output_tokens=0))

    class Thinking(Streams):
        async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
            for step in steps:
                yield step
                written = len(facts_of(store, f.UsageUpdated))
                if step.input_tokens in (1_000, 4_000):
                    await until(lambda: len(facts_of(store, f.UsageUpdated)) > written or written > 1)  # noqa: B023 - awaited here
            for part in DONE:
                yield part

    # when
    asyncio.run(Agent(model=Thinking()).run("Do it.", store=store, run_id="r"))
    # then few of them are facts, and the first and the last great step are
    reported = [fact.usage.input_tokens for fact in facts_of(store, f.UsageUpdated)]
    assert reported[0] == 1_000
    assert reported[-1] == 4_000
    assert len(reported) <= 6
    check(store)


class SlowLog(FaultyLog):
    """A log whose checkpoints are stored when it is told so."""

    def __init__(self) -> None:
        super().__init__(MemoryLog())
        self.waiting: list[tuple[Submission, Future[None]]] = []

    def _submit(self, submission: Submission) -> "Future[None]":
        if submission.rows[0].type != "stream_checkpointed":
            return super()._submit(submission)
        future: Future[None] = Future()
        self.waiting.append((submission, future))
        return future

    def store(self) -> None:
        submission, future = self.waiting.pop(0)
        super()._submit(submission).result()
        future.set_result(None)


@pytest.mark.parametrize("own_loop", [True, False])
def test_the_stream_does_not_wait_for_a_slow_store_and_its_end_does(own_loop: bool) -> None:
    # given a store that takes its time, and a stream of several checkpoints
    log = SlowLog()
    store = Store(log, "memory:")
    model = Streams([*texts("t" * 10_000, 20), p.Finished(stop_reason="stop")])

    async def scenario() -> Result:
        running = asyncio.ensure_future(Agent(model=model).run("Do it.", store=store, run_id="r", own_loop=own_loop))
        # when the whole stream has come
        await until(lambda: model.closed and log.waiting)
        # then nothing of it is stored, and the run waits for that
        assert model.given == 21
        assert [record.type for record in store.read("r")][-1] == "model_requested"
        assert not running.done()
        # and goes on behind it, with what had come meanwhile in one piece
        while not running.done():
            await until(lambda: log.waiting or running.done())
            if log.waiting:
                log.store()
        return await running

    assert asyncio.run(scenario()).answer == "t" * 200_000
    assert len("".join(fact.text for fact in facts_of(store, f.StreamCheckpointed))) == 200_000
    check(store)


def test_a_store_that_fails_in_the_middle_of_a_stream_ends_the_run_and_lets_the_stream_go() -> None:
    # given a store that fails at the first checkpoint of an endless stream
    memory = MemoryLog()
    log = FaultyLog(memory, Fate("append", 2, "unavailable"))
    model = Streams([*texts("t" * 20_000, 2), never()])
    # when
    with pytest.raises(StoreUnavailable):
        asyncio.run(Agent(model=model).run("Do it.", store=Store(log, "memory:"), run_id="r"))
    log.close()
    # then nobody streams any more, and the next process goes on
    assert model.closed == 1
    store = Store(memory, "memory:")
    result = Agent(model=Streams(DONE)).resume_sync("r", store=store)
    assert (result.status, result.answer) == ("completed", "done")
    assert check(store).spent.estimated.total > 0


def test_somebody_who_takes_over_in_the_middle_of_a_stream_ends_it() -> None:
    # given a stream that another driver attaches to, unseen
    store = open_store("memory:")

    def take_over() -> None:
        journal = store.journal("r")
        journal.command_sync(lambda run: (f.DriverAttached(epoch=run.epoch + 1, who="another", host="there"),))

    model = Streams([p.TextDelta(text="t" * 10_000), take_over, *texts("t" * 30_000, 2), never()])
    # when its next checkpoint is due
    result = asyncio.run(Agent(model=model).run("Do it.", store=store, run_id="r"))
    # then the run is the other's, and nothing was appended
    assert result.lost
    assert model.closed == 1
    assert [record.type for record in store.read("r")][-2:] == ["driver_attached", "model_requested"]


def test_what_people_say_meanwhile_does_not_disturb(stage_store: Store) -> None:
    # given somebody who says something between two checkpoints
    store = stage_store
    model = Streams(
        [p.TextDelta(text="t" * 40_000), lambda: store.say_sync("r", "hurry"), p.TextDelta(text="t" * 40_000), p.Finished(stop_reason="stop")], DONE
    )
    # when
    result = asyncio.run(Agent(model=model).run("Do it.", store=store, run_id="r"))
    # then both are in the log, and the message is answered
    types = [record.type for record in store.read("r")]
    assert types.count("stream_checkpointed") == 2
    assert (result.answer, types.count("user_said")) == ("done", 1)
    check(store)


@pytest.fixture
def stage_store() -> Store:
    return open_store("memory:")


def test_a_run_that_is_parked_in_the_middle_of_a_stream_keeps_what_came() -> None:
    # given a stream that has said little, with a report
    store = open_store("memory:")
    reached = asyncio.Event()
    model = Streams([p.UsageUpdated(input_tokens=700, output_tokens=1), p.TextDelta(text="so far"), reached.set, never()], DONE)

    async def scenario() -> None:
        running = asyncio.ensure_future(Agent(model=model).run("Do it.", store=store, run_id="r"))
        await reached.wait()
        # when the task that drives it is cancelled
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()

    asyncio.run(scenario())
    # then it is in the log, and who goes on knows what it cost
    assert [record.type for record in store.read("r")][-2:] == ["stream_checkpointed", "driver_detached"]
    assert model.closed == 1
    result = Agent(model=model).resume_sync("r", store=store)
    assert result.answer == "done"
    spent = check(store).spent
    assert (spent.estimated.input_tokens >= 700, spent.estimated.output_tokens >= 2) == (True, True)


def test_a_call_has_the_same_id_in_every_checkpoint_and_in_the_end_whatever_its_index() -> None:
    # given a stream that opens its calls out of the order of their indexes, each long enough for a checkpoint
    def call(index: int, name: str) -> list[p.Part]:
        text = f'{{"text": "{"x" * checkpoints.BYTES}"}}'
        return [p.ToolCallOpened(index=index, name=name, id=name), p.ArgumentsDelta(index=index, text=text)]

    store = open_store("memory:")
    turn = [*call(1, "first"), *call(0, "second"), p.Finished(stop_reason="tool_calls")]
    # when
    Agent(model=Streams(turn, DONE)).run_sync("Do it.", store=store, run_id="r")
    # then
    (output,) = facts_of(store, f.ToolCallsRequested)
    assert [(each.id, each.name) for each in output.calls] == [("t1.1", "first"), ("t1.2", "second")]
    ids = {(each.id, each.name) for written in facts_of(store, f.StreamCheckpointed) for each in written.calls}
    assert ids == {("t1.1", "first"), ("t1.2", "second")}


@pytest.mark.parametrize("between", [[], [p.UsageUpdated(input_tokens=5, output_tokens=5)]], ids=["by a checkpoint", "by a report"])
def test_a_secret_that_is_parted_is_in_no_checkpoint(monkeypatch: pytest.MonkeyPatch, between: list[p.Part]) -> None:
    # given a secret that comes in two pieces, just where a checkpoint is due, or with a report between them
    monkeypatch.setenv("SOME_API_KEY", "hush-hush-hush")
    store = open_store("memory:")
    model = Streams([p.TextDelta(text="t" * 40_000 + " hush-hu"), *between, p.TextDelta(text="sh-hush " + "t" * 40_000), p.Finished(stop_reason="stop")])
    heard: list[str] = []
    # when
    asyncio.run(
        Agent(model=model).run("Do it.", store=store, run_id="r", heard=lambda what: heard.append(what.text) if isinstance(what, p.TextDelta) else None)
    )
    # then no part of it is written or shown
    assert len(facts_of(store, f.StreamCheckpointed)) == 2
    assert all(b"hush" not in row.state for row in store.log.read("r"))
    assert b"hush" not in b"".join(store.log.payloads("r").values())
    assert "hush" not in "".join(heard)


# -- limits


def test_ten_thousand_deltas_without_a_report_are_cut_at_the_budget() -> None:
    # given a budget of tokens that a stream without reports goes beyond, of a provider that does not keep to the output limit
    store = open_store("memory:")
    budget = 5_000
    model = Streams([*texts("word ", 10_000), p.Finished(stop_reason="stop")])
    # when
    result = asyncio.run(Agent(model=model, budgets=Budgets(max_tokens=budget)).run("Do it.", store=store, run_id="r"))
    # then it is cut within a twentieth of the estimate, with what it said
    assert (result.status, result.reason) == ("stopped", "max_tokens")
    (cut,) = facts_of(store, f.ModelInterrupted)
    assert (cut.cause, cut.limit, cut.usage) == ("limit", "max_tokens", None)
    spent = check(store).spent
    assert budget <= spent.tokens <= budget * 1.05
    assert spent.reported.total == 0
    assert model.closed == 1
    assert model.given < 5_000


def test_a_stream_is_cut_where_its_reports_and_what_came_since_go_beyond_the_budget() -> None:
    # given a provider that reports half-way
    store = open_store("memory:")
    model = Streams([p.UsageUpdated(input_tokens=1_000, output_tokens=1_000), *texts("x" * 40, 1_000), p.Finished(stop_reason="stop")])
    # when
    result = asyncio.run(Agent(model=model, budgets=Budgets(max_tokens=3_000)).run("Do it.", store=store, run_id="r"))
    # then what it reported is that, and the rest is an estimate
    assert result.reason == "max_tokens"
    spent = check(store).spent
    assert spent.reported.total == 2_000
    assert 1_000 <= spent.estimated.total <= 1_020


def test_an_answer_that_is_whole_stands_though_its_last_report_goes_beyond_the_budget() -> None:
    store = open_store("memory:")
    model = Streams([p.TextDelta(text="the answer"), p.UsageUpdated(input_tokens=900, output_tokens=200), p.Finished(stop_reason="stop")])
    result = asyncio.run(Agent(model=model, budgets=Budgets(max_tokens=1_000)).run("Do it.", store=store, run_id="r"))
    assert (result.status, result.answer) == ("completed", "the answer")
    check(store)


def prices(monkeypatch: pytest.MonkeyPatch, price: f.Price | None) -> None:
    """A price list with one price for everything."""
    made = ModuleType("refold.runtime.prices")
    made.price_of = lambda *_: price  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)


def test_a_stream_is_cut_where_it_would_cost_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a dollar for a million tokens, and a tenth of a cent
    prices(monkeypatch, f.Price(input="1", output="1", source="a list"))
    store = open_store("memory:")
    model = Streams([*texts("word " * 4, 10_000), p.Finished(stop_reason="stop")])
    model.priced = True  # type: ignore[attr-defined]
    # when
    result = asyncio.run(Agent(model=model, budgets=Budgets(max_cost_usd="0.001")).run("Do it.", store=store, run_id="r"))
    # then about a thousand tokens came, and the price is in the record
    assert (result.status, result.reason) == ("stopped", "max_cost_usd")
    run = check(store)
    assert 1_000 <= run.spent.tokens <= 1_050
    assert run.begun.price == f.Price(input="1", output="1", source="a list")


def test_a_report_that_comes_behind_a_long_text_is_booked_before_it_is_judged() -> None:
    # given a text that is more than the budget by the estimate, and a report that says how few tokens it was
    reported = p.UsageUpdated(input_tokens=10, output_tokens=500)
    model = Streams([p.TextDelta(text="    return x\n" * 1_000), reported, p.Finished(stop_reason="stop")])
    # when
    result = Agent(model=model, budgets=Budgets(max_tokens=3_000)).run_sync("Do it.", store=open_store("memory:"))
    # then
    assert (result.status, result.usage["reported"]["output_tokens"], result.usage["estimated"]["output_tokens"]) == ("completed", 500, 0)


def test_a_run_that_goes_on_with_another_model_costs_from_then_on_what_that_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a run of a cheap model that waits for a human
    of = {"shop:cheap": f.Price(input="1", output="1"), "shop:dear": f.Price(input="1000", output="1000")}
    made = ModuleType("refold.runtime.prices")
    made.price_of = lambda spec, *_: of[spec]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    store, usage = open_store("memory:"), {"input_tokens": 90, "output_tokens": 10}

    def agent(spec: str) -> Agent:
        model = ScriptedModel([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}], "usage": usage}, {"text": "That.", "usage": usage}])
        model.spec, model.priced = spec, True  # type: ignore[attr-defined]
        return Agent(model=model)

    agent("shop:cheap").run_sync("Do it.", store=store, run_id="r")
    store.answer_sync("r", "that one")
    # when it is resumed with a dear one
    result = agent("shop:dear").resume_sync("r", store=store)
    # then each response costs what its model costs, and the record names the switch
    assert (result.status, result.usage["cost_usd"]) == ("completed", "0.1001")
    assert [record.fact.switched for record in result.records if isinstance(record.fact, f.DriverAttached)][-1] == f.ModelSetup(
        model="shop:dear", price=of["shop:dear"]
    )
    check(store)


def test_an_unknown_price_with_a_budget_of_money_is_refused_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    prices(monkeypatch, None)
    store = open_store("memory:")
    model = Streams(DONE)
    model.priced, model.spec = True, "somebody:something"  # type: ignore[attr-defined]
    # when
    with pytest.raises(UnknownPrice) as raised:
        Agent(model=model).run_sync("Do it.", store=store)
    # then one line names the ways out, and there is no run
    assert "somebody:something" in str(raised.value)
    assert "--set policy.unknown_price=free" in str(raised.value)
    assert "--set budgets.max_cost_usd=none" in str(raised.value)
    assert store.runs() == []
    # and both of them are
    for ways in ({"policy": Policy(unknown_price="free")}, {"budgets": Budgets(max_cost_usd=None)}):
        assert Agent(model=model, **ways).run_sync("Do it.", store=store).status == "completed"  # type: ignore[arg-type]


def test_a_price_of_nothing_is_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    prices(monkeypatch, f.Price(input="0", output="0"))
    model = Streams(DONE)
    model.priced = True  # type: ignore[attr-defined]
    result = Agent(model=model).run_sync("Do it.", store=open_store("memory:"))
    assert (result.status, result.usage["cost_usd"]) == ("completed", "0")


# -- ends


def test_a_cancelled_stream_is_closed_at_once_and_paid_for() -> None:
    # given a stream that hangs in the middle of a call
    store = open_store("memory:")
    reached = asyncio.Event()
    said = (p.UsageUpdated(input_tokens=700, output_tokens=1), p.ReasoningDelta(text="Hm."), p.TextDelta(text="I will "))
    half = (p.ToolCallOpened(index=0, name="look", id="c1"), p.ArgumentsDelta(index=0, text='{"at": "nor'))
    model = Streams([*said, *half, reached.set, never()], DONE)

    async def scenario() -> Result:
        running = asyncio.ensure_future(Agent(model=model).run("Do it.", store=store, run_id="r"))
        await reached.wait()
        # when somebody cancels
        await store.cancel("r", "enough")
        result = await running
        assert model.closed == 1
        return result

    assert asyncio.run(scenario()).status == "cancelled"
    # then what it said is there, half the call included, and what it cost
    (cut,) = facts_of(store, f.ModelInterrupted)
    assert (cut.cause, cut.text, cut.reasoning) == ("cancelled", "I will ", "Hm.")
    assert [(call.id, call.name, call.arguments_text, call.provider_id) for call in cut.calls] == [("t1.1", "look", '{"at": "nor', "c1")]
    spent = check(store).spent
    assert spent.reported.input_tokens == 700
    assert spent.estimated.output_tokens == -(-len('Hm.I will {"at": "nor') // 4)
    # and a run that goes on from there shows its text as the assistant's, and no call
    asyncio.run(Agent(model=model).continue_run("r", "And now?", store=store))
    shown = model.requests[-1].messages
    assert [(message.role, message.text, message.kind, message.calls) for message in shown] == [
        ("user", "Do it.", "", ()),
        ("assistant", "I will ", "interrupted", ()),
        ("user", "And now?", "", ()),
    ]


def test_a_stream_that_does_not_let_go_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model whose clean-up hangs
    monkeypatch.setattr(asking, "GRACE_S", 0.01)
    store = open_store("memory:")
    reached, let_go = asyncio.Event(), asyncio.Event()

    class Clinging:
        spec = "clinging"

        async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
            try:
                yield p.TextDelta(text="so")
                reached.set()
                await asyncio.Event().wait()
            finally:
                await let_go.wait()

    async def scenario() -> Result:
        running = asyncio.ensure_future(Agent(model=Clinging()).run("Do it.", store=store, run_id="r"))
        await reached.wait()
        await store.cancel("r")
        result = await asyncio.wait_for(running, 10)
        let_go.set()
        return result

    # when, then
    assert asyncio.run(scenario()).status == "cancelled"


@pytest.mark.parametrize("policy", [Policy(), Policy(model_idle_timeout_s=0.001)], ids=["patient", "impatient"])
def test_a_stream_that_said_that_it_is_at_its_end_and_never_closes_is_complete(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    monkeypatch.setattr(asking, "GRACE_S", 0.02)
    model = Streams([p.TextDelta(text="the answer"), p.Finished(stop_reason="stop"), never()])
    result = Agent(model=model, policy=policy).run_sync("Do it.", store=open_store("memory:"))
    assert (result.status, result.answer, model.closed, len(model.requests)) == ("completed", "the answer", 1, 1)


def test_a_model_that_cannot_even_begin_has_failed() -> None:
    class Unable:
        spec = "unable"

        def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
            raise RuntimeError("no connection pool")

    result = Agent(model=Unable()).run_sync("Do it.", store=open_store("memory:"))
    assert (result.status, result.reason) == ("failed", "provider")
    assert "no connection pool" in result.detail


def test_a_stream_that_breaks_keeps_what_came_apart_from_the_retry() -> None:
    store = open_store("memory:")
    reset = p.ModelError("connection", "reset by peer", retryable=True, retry_after_s=0, code="ECONNRESET")
    half = (p.ToolCallOpened(index=3, name="look"), p.ArgumentsDelta(index=3, text='{"at": "nor'))
    model = Streams([p.ReasoningDelta(text="Hm."), p.TextDelta(text="Hello wo"), *half, reset], DONE)
    # when
    result = asyncio.run(Agent(model=model).run("Do it.", store=store, run_id="r"))
    # then
    assert (result.answer, result.tool_calls) == ("done", 0)
    (failed,) = facts_of(store, f.ModelFailed)
    assert (failed.text, failed.reasoning, failed.error.mid_stream) == ("Hello wo", "Hm.", True)
    assert [(call.id, call.name, call.arguments_text) for call in failed.calls] == [("t1.1", "look", '{"at": "nor')]
    assert failed.usage == f.Usage()
    assert failed.unreported is not None
    assert failed.unreported.output_tokens == -(-len('Hm.Hello wo{"at": "nor') // 4)
    assert [message.role for message in model.requests[-1].messages] == ["user"]
    check(store)


def test_a_refusal_of_the_server_costs_nothing() -> None:
    store = open_store("memory:")
    busy = p.ModelError("overloaded", "busy", retryable=True, retry_after_s=0, http_status=529)
    asyncio.run(Agent(model=Streams([busy], DONE)).run("Do it.", store=store, run_id="r"))
    (failed,) = facts_of(store, f.ModelFailed)
    assert (failed.usage, failed.unreported, failed.error.mid_stream) == (f.Usage(), None, False)
    spent = check(store).spent
    assert spent.estimated.output_tokens == 1


def test_a_silent_stream_is_paid_for() -> None:
    store = open_store("memory:")
    policy = Policy(model_idle_timeout_s=0.01)
    asyncio.run(Agent(model=Streams([never()], DONE), policy=policy).run("Do it.", store=store, run_id="r"))
    (failed,) = facts_of(store, f.ModelFailed)
    assert failed.error.type == "idle_timeout"
    assert failed.unreported is not None
    assert failed.unreported.input_tokens > 0
    check(store)


def test_a_provider_that_counts_nothing_is_estimated() -> None:
    store = open_store("memory:")
    model = Streams([p.TextDelta(text="x" * 400), p.UsageUpdated(input_tokens=0, output_tokens=0), p.Finished(stop_reason="stop")])
    result = asyncio.run(Agent(model=model).run("Do it.", store=store, run_id="r"))
    assert result.usage["estimated"]["output_tokens"] == 100


def test_a_pause_is_sent_back_as_it_was_said() -> None:
    # given a provider that pauses in the middle of something of its own
    search = {"api": "somebody", "item": {"type": "server_tool_use", "id": "s1"}}
    model = Streams([p.TextDelta(text="I look."), p.OpaqueItem(item=search), p.Finished(stop_reason="pause", provider_stop_reason="pause_turn")], DONE)
    # when
    result = Agent(model=model).run_sync("Do it.", store=open_store("memory:"))
    # then it is asked to go on from just there: its words are the last of the request, and nothing of ours stands behind them
    assert (result.status, result.answer, result.turns) == ("completed", "done", 2)
    last = model.requests[1].messages[-1]
    assert (last.role, last.text, last.kind, last.opaque) == ("assistant", "I look.", "paused", (search,))
    assert model.requests[0].notice
    assert not model.requests[1].notice


def test_a_pause_that_brings_calls_is_a_turn_with_calls() -> None:
    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "seen"

    call = p.ToolCallReady(index=0, name="look", arguments="{}")
    result = Agent(model=Streams([call, p.Finished(stop_reason="pause")], DONE), tools=[look]).run_sync("Do it.", store=open_store("memory:"))
    assert (result.status, result.tool_calls) == ("completed", 1)


# -- the meter


@pytest.mark.parametrize(
    ("purse", "limit"),
    [
        (Purse(tokens=100), "max_tokens"),
        (Purse(usd="0.0001", price=f.Price(input="1", output="1")), "max_cost_usd"),
        (Purse(tokens=100, usd="0.0002", price=f.Price(input="1", output="2")), "max_tokens"),
        (Purse(tokens=10_000, usd="0.0001", price=f.Price(input="1", output="1")), "max_cost_usd"),
    ],
)
def test_the_meter_lets_through_just_what_is_left(purse: Purse, limit: str) -> None:
    # given an estimate of 40 tokens of input, and what pays for 60 of output
    meter = Meter(40, purse)
    # when exactly that comes, and a byte more
    meter.take(p.TextDelta(text="x" * 240))
    assert meter.overspent is None
    meter.take(p.ReasoningDelta(text="y"))
    # then
    assert meter.overspent == limit
    assert meter.unreported() == f.Usage(input_tokens=40, output_tokens=61, estimated=True)


def test_the_meter_believes_a_report_and_estimates_what_comes_behind() -> None:
    meter = Meter(40, Purse(tokens=100))
    meter.take(p.TextDelta(text="x" * 230))
    meter.take(p.UsageUpdated(input_tokens=10, output_tokens=20))
    meter.take(p.ArgumentsDelta(index=0, text="é" * 20))
    meter.take(p.ToolCallReady(index=0, name="look", arguments="é" * 20))
    assert meter.unreported() == f.Usage(output_tokens=10, estimated=True)
    assert meter.overspent is None


def test_a_report_of_money_is_believed_too() -> None:
    meter = Meter(40, Purse(usd="0.01"))
    meter.take(p.UsageUpdated(input_tokens=10, output_tokens=20, cost_usd="0.01"))
    meter.take(p.TextDelta(text="x" * 9_000))
    assert meter.overspent is None  # without a price nobody knows what a word costs
    meter.take(p.UsageUpdated(input_tokens=10, output_tokens=2_300, cost_usd="0.0100001"))
    assert meter.overspent == "max_cost_usd"


def test_nothing_limits_where_nothing_is_limited() -> None:
    meter = Meter(0, Purse())
    meter.take(p.TextDelta(text="x" * 1_000_000))
    assert meter.overspent is None
    assert Meter(0, Purse()).unreported() is None


def test_a_cache_that_is_counted_beside_the_input_is_recorded_so_and_never_makes_a_price_negative() -> None:
    # given a provider that reports more from its cache than it says was read
    said = p.UsageUpdated(input_tokens=100, cached_input_tokens=500, cache_write_tokens=70)
    # when it answers
    result = Agent(model=Streams([p.TextDelta(text="a"), said, p.Finished(stop_reason="stop")])).run_sync("Do it.", store=open_store("memory:"))
    # then its word is kept, and each class of tokens costs what it costs
    assert result.usage["reported"] == {"input_tokens": 100, "cached_input_tokens": 500, "output_tokens": 0}
    assert priced(usage_of(said), f.Price(input="10", output="20", cached_input="1", cache_write="2")) == "0.00064"
