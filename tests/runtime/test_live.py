"""Live parts and committed records: one order, one cursor, any number of readers, and a run that waits for none of them."""

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from refold import Agent, Budgets, Policy, ScriptedModel, open_store, tool
from refold.events import facts as f
from refold.events.codec import Edge, Record, Stamp, write
from refold.events.storage import Row
from refold.events.words import Digest, RunId
from refold.projections.run import Run
from refold.runtime import live, ports as p
from refold.runtime.driver import RunExists
from refold.runtime.journal import UnknownRun
from refold.runtime.live import Cursor, Dropped, Feed, Live, Streamed, Tail
from refold.runtime.store import Store
from refold.testing.faults import FaultyLog

SECRET = "hush-hush 42"
CLOSING = f.ModelFailed | f.ModelInterrupted | f.FinalProposed | f.ToolCallsRequested


@pytest.fixture
def store() -> Iterator[Store]:
    opened = open_store("memory:")
    yield opened
    opened.close()


class Played:
    """A model that plays lists of parts, one for each request. What can be called is called between them, and awaited; an exception is raised."""

    spec = "played"

    def __init__(self, *turns: Sequence[Any]) -> None:
        self.turns = turns

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        for each in self.turns[request.number - 1]:
            if isinstance(each, Exception):
                raise each
            if isinstance(each, p.Part):
                yield each
            else:
                await each()


def words(count: int) -> list[p.Part]:
    return [p.TextDelta(text=f"word {n} ") for n in range(count)]


DONE = p.Finished(stop_reason="stop")


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return f"saw {at}"


async def everything(stream: AsyncIterator[Streamed]) -> list[Streamed]:
    return [streamed async for streamed in stream]


async def upto(stream: AsyncIterator[Streamed], wanted: Callable[[Streamed], bool]) -> list[Streamed]:
    """What a stream gives up to what is wanted."""
    found: list[Streamed] = []
    async for streamed in stream:
        found.append(streamed)
        if wanted(streamed):
            break
    return found


def records(stream: Sequence[Streamed]) -> list[Record]:
    return [each.what for each in stream if isinstance(each.what, Record)]


def dropped(stream: Sequence[Streamed]) -> int:
    return sum(each.what.parts for each in stream if isinstance(each.what, Dropped))


def parts(stream: Sequence[Streamed]) -> list[p.Part]:
    return [each.what for each in stream if isinstance(each.what, p.Part)]


def requests(stream: Sequence[Streamed]) -> list[tuple[list[Streamed], CLOSING]]:
    """The parts of each request, and the fact that it came to. Parts come nowhere else."""
    found: list[tuple[list[Streamed], CLOSING]] = []
    open_parts: list[Streamed] | None = None
    for each in stream:
        if isinstance(each.what, p.Part):
            assert open_parts is not None, f"{each} belongs to no request"
            open_parts.append(each)
        elif isinstance(each.what, Record) and isinstance(each.what.fact, f.ModelRequested):
            open_parts = []
        elif isinstance(each.what, Record) and isinstance(each.what.fact, CLOSING):
            assert open_parts is not None
            found.append((open_parts, each.what.fact))
            open_parts = None
    return found


# -- one order


def test_every_part_and_record_has_its_place_in_one_order(store):
    # given a run of two turns
    script = [{"calls": [{"name": "look", "arguments": {"at": "home"}}], "text": "I look.", "chunks": 3}, {"text": "Nobody is there.", "chunks": 4}]
    # when it is streamed
    stream = asyncio.run(everything(Agent(ScriptedModel(script), tools=[look]).stream("Look.", store=store, run_id="r")))
    # then the cursors go up, count the parts behind each record, and are (position, 0) for the record itself
    cursors = [each.cursor for each in stream]
    assert cursors == sorted(set(cursors))
    assert [each.cursor for each in stream if isinstance(each.what, Record)] == [(n, 0) for n in range(1, len(records(stream)) + 1)]
    assert all(after in ((before[0], before[1] + 1), (before[0] + 1, 0)) for before, after in pairwise(cursors))
    # and the records are those of the log
    assert [record.stored for record in records(stream)] == [record.stored for record in store.read("r")]
    assert [each.turn for each in stream if isinstance(each.what, Record)] == [f"t{record.turn}" for record in store.read("r")]


def test_a_call_has_the_id_of_the_log_before_it_is_in_the_log(store):
    # given two calls whose arguments come by turns, under indices of the provider's own, in the second turn
    calling = [
        p.ToolCallOpened(index=3, name="look", id="a"),
        p.ArgumentsDelta(index=3, text='{"at":'),
        p.ToolCallOpened(index=8, name="look", id="b"),
        p.ArgumentsDelta(index=8, text='{"at": "b"}'),
        p.ArgumentsDelta(index=3, text='"a"}'),
        p.ToolCallReady(index=8, name="look", arguments='{"at": "b"}', id="b"),
        p.Finished(stop_reason="tool_calls"),
    ]
    first = [p.ToolCallReady(index=0, name="look", arguments='{"at": "x"}'), p.Finished(stop_reason="tool_calls")]
    agent = Agent(Played(first, calling, [*words(1), DONE]), tools=[look])
    # when
    stream = asyncio.run(everything(agent.stream("Look.", store=store)))
    # then each part says which call it is about, and the record agrees
    _, (streamed, fact), _ = requests(stream)
    assert [(each.turn, each.call, each.index) for each in streamed] == [
        ("t2", "t2.1", 1),
        ("t2", "t2.1", 1),
        ("t2", "t2.2", 2),
        ("t2", "t2.2", 2),
        ("t2", "t2.1", 1),
        ("t2", "t2.2", 2),
        ("t2", None, None),
    ]
    assert isinstance(fact, f.ToolCallsRequested)
    assert [(call.id, call.provider_id, call.arguments_text) for call in fact.calls] == [("t2.1", "a", '{"at":"a"}'), ("t2.2", "b", '{"at": "b"}')]
    # and so do the records of what became of them
    assert [(each.call, each.index) for each in stream if isinstance(each.what, Record) and each.what.type == "tool_succeeded"] == [
        ("t1.1", 1),
        ("t2.1", 1),
        ("t2.2", 2),
    ]


# -- the records cover what was streamed

LETTERS = st.sampled_from(
    ["a", "hush", "-hush 42", SECRET, "api_key=", "zz-12345678", " ", "\n", "é", "\U0001f600", "\ud83d", "\ude00", "bearer ", "password: "]
)
TEXTS = st.lists(LETTERS, min_size=1, max_size=3).map("".join)
PLAIN = st.text('bc{}" :', min_size=1, max_size=4)
PIECES = st.one_of(
    TEXTS.map(lambda text: p.TextDelta(text=text)),
    TEXTS.map(lambda text: p.TextDelta(text=text)),
    TEXTS.map(lambda text: p.ReasoningDelta(text=text)),
    TEXTS.map(lambda text: p.Refusal(text=text)),
    st.builds(p.ArgumentsDelta, index=st.integers(0, 2), text=PLAIN),
    st.builds(p.ToolCallReady, index=st.integers(0, 2), name=st.just("look"), arguments=PLAIN),
    st.just(p.UsageUpdated(input_tokens=5, output_tokens=1)),
    st.just(p.OpaqueItem(item={"kept": 1})),
)
OPENED = [p.ToolCallOpened(index=index, name="look") for index in range(3)]
TRY_AGAIN = p.ModelError("overloaded", "later", retryable=True, retry_after_s=0)
ENDS: list[list[Any]] = [
    [DONE],
    [p.Finished(stop_reason="length")],
    [TRY_AGAIN],
    [TRY_AGAIN],
    [],
    [ValueError("a bug of the adapter")],
    [p.Malformed(reason="two messages in one"), DONE],
    [p.UsageUpdated(input_tokens=10**7, output_tokens=1), p.TextDelta(text="too much"), DONE],
    [DONE, p.TextDelta(text="behind the end")],
]


@st.composite
def turns(draw: Any) -> list[Any]:
    """The parts of a response, which may end in every way."""
    pieces = draw(st.lists(PIECES, max_size=12))
    calls = OPENED if any(isinstance(piece, p.ArgumentsDelta | p.ToolCallReady) for piece in pieces) else []
    return [*calls, *pieces, *draw(st.sampled_from(ENDS))]


@given(st.lists(turns(), min_size=1, max_size=4), st.booleans())
def test_what_was_streamed_of_a_request_is_what_is_written_of_it(script, own):
    # given a script in which secrets and characters come in pieces and streams end as they may, with and without redactors of the application
    redactors = [lambda text: text.replace("a", "*")] if own else []
    with patch.dict(os.environ, {"NO_VENDOR_API_KEY": SECRET}):
        model, at_once = Played(*script, *[[*words(2), DONE]] * 40), Policy(max_retry_wait_s=0)
        agent = Agent(model, tools=[look], policy=at_once, budgets=Budgets(max_turns=6), redactors=redactors)
        store = open_store("memory:")
        # when
        stream = asyncio.run(everything(agent.stream("Do it.", store=store, run_id="r")))
    # then all of it comes, and the fact of each request holds exactly the texts that were shown
    assert dropped(stream) == 0
    assert [record.stored for record in records(stream)] == [record.stored for record in store.read("r")]
    for streamed, fact in requests(stream):
        shown = [each.what for each in streamed]
        assert "".join(part.text for part in shown if isinstance(part, p.TextDelta)) == fact.text
        if not isinstance(fact, f.ModelFailed):
            assert "".join(part.text for part in shown if isinstance(part, p.ReasoningDelta)) == fact.reasoning
            assert "".join(part.text for part in shown if isinstance(part, p.Refusal)) == fact.refusal
            assert arguments(streamed) == [call.arguments_text for call in fact.calls]
            assert not isinstance(fact, f.ToolCallsRequested) or [call.id for call in fact.calls] == sorted({each.call for each in streamed if each.call})
    store.close()


def arguments(streamed: Sequence[Streamed]) -> list[str]:
    """The arguments of each call as a screen puts them together."""
    texts: dict[int, str] = {}
    for each in streamed:
        if isinstance(each.what, p.ToolCallReady):
            texts[each.index or 0] = each.what.arguments
        elif isinstance(each.what, p.ToolCallOpened | p.ArgumentsDelta):
            texts[each.index or 0] = texts.get(each.index or 0, "") + getattr(each.what, "text", "")
    return [texts[index] for index in sorted(texts)]


def test_what_was_streamed_before_a_cancellation_is_what_is_written(store):
    # given a model that is cut off in the middle of a character and of what may be a secret
    async def cancel() -> None:
        await store.cancel("r", "enough")
        await asyncio.Event().wait()

    agent = Agent(Played([p.TextDelta(text="It is \ud83d"), p.TextDelta(text="\ude00, and password: abc"), cancel]))
    # when
    stream = asyncio.run(everything(agent.stream("Do it.", store=store, run_id="r")))
    # then
    ((streamed, fact),) = requests(stream)
    assert isinstance(fact, f.ModelInterrupted)
    assert fact.text == "It is \U0001f600, and password: abc"
    assert "".join(part.text for part in parts(streamed) if isinstance(part, p.TextDelta)) == fact.text
    assert records(stream)[-1].type == "run_cancelled"


def test_a_screen_can_tell_the_new_attempt_from_the_old(store):
    # given a stream that breaks and is whole the second time
    agent = Agent(Played([p.TextDelta(text="Hello wo"), TRY_AGAIN], [p.TextDelta(text="Hello "), p.TextDelta(text="world"), DONE]))
    # when a screen begins its text anew at every request
    screen, seen = "", []
    for each in asyncio.run(everything(agent.stream("Greet.", store=store))):
        if isinstance(each.what, Record) and isinstance(each.what.fact, f.ModelRequested):
            screen = ""
        if isinstance(each.what, p.TextDelta):
            screen += each.what.text
        seen.append(each.what.type if isinstance(each.what, Record) else screen)
    # then it never shows one behind the other
    assert screen == "Hello world"
    assert seen[seen.index("Hello wo") :] == [
        "Hello wo",
        "model_failed",
        "retry_scheduled",
        "model_requested",
        "Hello ",
        "Hello world",
        "Hello world",
        "final_proposed",
        "answer_checked",
        "run_completed",
    ]


# -- going on where one stopped


def test_a_reader_goes_on_behind_any_cursor(store):
    # given a run that is in the middle of its second stream
    reached, may_end = asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        reached.set()
        await may_end.wait()

    calling = [*words(3), p.ToolCallReady(index=0, name="look", arguments='{"at": "x"}'), p.Finished(stop_reason="tool_calls")]
    agent = Agent(Played(calling, [*words(4), pause, *words(2), DONE]), tools=[look])

    async def scenario() -> tuple[list[Streamed], list[tuple[Cursor, list[Streamed]]], list[Streamed]]:
        first = asyncio.ensure_future(everything(agent.stream("Look.", store=store, run_id="r")))
        await reached.wait()
        known = await upto(store.watch("r"), lambda each: each.what == p.TextDelta(text="word 3 ") and each.turn == "t2")
        # when readers come that had stopped at each place so far
        again = [(each.cursor, asyncio.ensure_future(everything(store.watch("r", after=each.cursor)))) for each in known]
        may_end.set()
        return await first, [(cursor, await reader) for cursor, reader in again], known

    stream, again, known = asyncio.run(scenario())
    # then each gets what it had not seen, as the first reader got it, up to the end of the run
    assert known == stream[: len(known)]
    assert len(again) == len(known) > 10
    for cursor, rest in again:
        assert rest == [each for each in stream if each.cursor > cursor]


def test_a_run_that_has_ended_is_read_from_the_log(store):
    # given
    agent = Agent(ScriptedModel([{"text": "one two three", "chunks": 3}]))
    stream = asyncio.run(everything(agent.stream("Count.", store=store, run_id="r")))
    last = stream[-1].cursor
    for each in stream:
        # when
        rest = asyncio.run(everything(store.watch("r", after=each.cursor)))
        # then its records are there, behind any cursor, its parts are not, and the reader is not kept waiting
        assert [(again.cursor, again.turn) for again in rest] == [(n.cursor, n.turn) for n in stream if n.cursor > each.cursor and isinstance(n.what, Record)]
    assert asyncio.run(everything(store.watch("r", after=(last[0] + 7, 3)))) == []


def test_a_reader_that_stopped_in_the_notes_behind_the_end_is_not_kept_waiting(store):
    # given a run with a note behind its end
    Agent(ScriptedModel([{"calls": [{"name": "look", "arguments": {"at": "x"}}]}, {"text": "done"}]), tools=[look]).run_sync("Do it.", store=store, run_id="r")
    end = store.journal("r").run.position
    store.journal("r").command_sync(lambda _: (f.LateOutcome(call="t1.1", outcome="it returned"),))
    # when
    rest = asyncio.run(everything(store.watch("r", after=(end, 0))))
    # then
    assert [record.type for record in records(rest)] == ["late_outcome"]


def test_who_watches_a_run_that_is_not_there_is_told(store):
    with pytest.raises(UnknownRun, match="no run nobody"):
        asyncio.run(everything(store.watch("nobody")))


def test_who_streams_a_run_that_is_there_is_told_and_shown_nothing_of_it(store):
    # given
    agent = Agent(ScriptedModel([{"text": "mine"}]))
    agent.run_sync("Mine.", store=store, run_id="r")
    seen: list[Streamed] = []

    async def another() -> None:
        async for each in agent.stream("Yours.", store=store, run_id="r"):
            seen.append(each)

    # when, then
    with pytest.raises(RunExists, match="already a run r"):
        asyncio.run(another())
    assert seen == []


def test_a_reader_sees_a_run_through_its_wait_for_a_human(store):
    # given a run that waits, and a reader of it
    @tool(approval="always")
    def send(text: str) -> str:
        """Sends."""
        return "sent"

    asked, listens = asyncio.Event(), asyncio.Event()
    turns_ = [[p.ToolCallReady(index=0, name="send", arguments='{"text": "hi"}'), p.Finished(stop_reason="tool_calls")], [listens.wait, *words(3), DONE]]
    agent = Agent(Played(*turns_), tools=[send])

    async def reader() -> list[Streamed]:
        def noted(each: Streamed) -> bool:
            if isinstance(each.what, Record) and each.what.type == "driver_detached":
                asked.set()
            if isinstance(each.what, Record) and each.what.type == "model_requested" and asked.is_set():
                listens.set()  # the model speaks to one that reads along: who comes too late misses parts, and may
            return False

        return await upto(store.watch("r"), noted)

    async def scenario() -> list[Streamed]:
        running = asyncio.ensure_future(agent.run("Send.", store=store, run_id="r"))
        assert (await running).status == "waiting_for_user"
        reading = asyncio.ensure_future(reader())
        await asked.wait()
        # when it is approved and driven on
        await store.approve("r")
        await agent.resume("r", store=store)
        return await reading

    stream = asyncio.run(scenario())
    # then the reader sees it all, and the parts of what was streamed while it read
    assert [record.stored for record in records(stream)] == [record.stored for record in store.read("r")]
    assert [part.text for part in parts(stream) if isinstance(part, p.TextDelta)] == ["word 0 ", "word 1 ", "word 2 "]
    assert [each.turn for each in stream if isinstance(each.what, p.TextDelta)] == ["t2"] * 3


def test_a_reader_elsewhere_gets_the_records_as_they_are_stored(tmp_path):
    # given a run in one store, and a reader that has its own, as another process would
    url = f"sqlite:///{tmp_path}/log.db"
    store, elsewhere = open_store(url), open_store(url)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        begun.set()
        await may_end.wait()

    agent = Agent(Played([*words(2), pause, DONE]))

    async def scenario() -> list[Streamed]:
        running = asyncio.ensure_future(agent.run("Do it.", store=store, run_id="r"))
        await begun.wait()
        reading = elsewhere.watch("r")
        early = await upto(reading, lambda each: isinstance(each.what, Record) and each.what.type == "model_requested")
        rest = asyncio.ensure_future(everything(elsewhere.watch("r", after=early[-1].cursor)))
        may_end.set()
        await running
        return early + await rest

    # when
    stream = asyncio.run(scenario())
    # then it has every record, no part, and came to its end with the run
    assert parts(stream) == []
    assert [record.stored for record in records(stream)] == [record.stored for record in store.read("r")]
    store.close()
    elsewhere.close()


def test_a_tail_is_read_without_an_event_loop(store):
    # given a run, and one who follows it from its beginning
    tail, agent = Tail(store.log, "r"), Agent(ScriptedModel([{"text": "done"}]))
    agent.run_sync("Do it.", store=store, run_id="other")
    agent.run_sync("Do it.", store=store, run_id="r")
    # when everything is read
    rows = tail.read(0)
    assert not tail.ended
    assert tail.read(rows[-1].position) == []
    # then it knows that nothing more comes, and whether anything was appended to the store
    assert [row.state for row in rows] == [record.stored for record in store.read("r")]
    assert tail.ended
    assert not tail.moved()
    agent.run_sync("Do it.", store=store, run_id="third")
    assert tail.moved()


def test_an_end_that_is_stored_while_a_tail_looks_is_not_passed_over(store):
    # given a run that ends just behind the look at what is new
    agent = Agent(ScriptedModel([{"text": "done"}]))
    agent.run_sync("Do it.", store=store, run_id="twin")
    rows = store.log.read("twin")

    class Late(FaultyLog):
        def head(self, run_id: str) -> tuple[int, bytes] | None:
            if (found := self.log.head(run_id)) is not None and found[0] == 2:
                self.log.append("r", 2, rows[2:])
            return self.log.head(run_id)

    store.log.append("r", 0, rows[:2], create=True)
    tail = Tail(Late(store.log), "r")
    # when
    assert tail.read(2) == []
    # then it is read next
    assert not tail.ended
    assert tail.moved()
    assert tail.read(2) == rows[2:]
    assert tail.read(rows[-1].position) == []
    assert tail.ended


def stored(store: Store, position: int, text: str = "said") -> Record:
    """A record that is in the log."""
    edge = Edge(fact=f.UserSaid(text=text, who="me"), source="idle", target="idle", turn=0)
    record, payloads = write(edge, run=RunId("r"), position=position, batch=position, stamp=Stamp(at=1, driver="me"), before=Digest(""))
    create = store.log.head("r") is None
    store.log.append("r", position - 1, [Row(position, record.type, record.stored)], payloads, create=create)
    return record


def test_a_run_that_begins_behind_its_parent_is_read_from_its_own_beginning(store):
    # given a run whose own records begin at 101, driven on from 102
    stored(store, 101)
    stored(store, 102)

    async def scenario() -> list[Streamed]:
        with store.live.on_air(Run(id=RunId("r"), position=102), None) as feed:
            reading = asyncio.ensure_future(upto(store.watch("r"), lambda each: each.cursor[0] == 103))
            feed(p.TextDelta(text="a"))
            feed(stored(store, 103))
            return await reading

    # when it is read from the very beginning, then nothing is missing, and nobody waits for what never was
    assert [each.cursor for each in asyncio.run(asyncio.wait_for(scenario(), 20))] == [(101, 0), (102, 0), (102, 1), (103, 0)]


# -- readers that are slow, many, or gone


@pytest.mark.parametrize("limit", ["count", "bytes"])
def test_a_reader_that_does_not_read_misses_parts_and_no_record_and_is_told(store, monkeypatch, limit):
    # given bounds that are soon reached, and a reader that reads one thing and then nothing until the run has ended
    monkeypatch.setattr(live, *(("KEPT_MAX", 10) if limit == "count" else ("KEPT_BYTES_MAX", 5_000)))
    calling = [*words(50), p.ToolCallReady(index=0, name="look", arguments='{"at": "x"}'), p.Finished(stop_reason="tool_calls")]
    agent = Agent(Played(calling, [*words(200), DONE]), tools=[look])

    async def scenario() -> list[Streamed]:
        found: list[Streamed] = []
        async for each in agent.stream("Look.", store=store, run_id="r"):
            found.append(each)
            if len(found) == 1:
                # when the run goes on to its end without it
                await upto(store.watch("r"), lambda each: isinstance(each.what, Record) and each.what.type == "run_completed")
        return found

    stream = asyncio.run(scenario())
    # then it has every record, the newest parts, and the number of the others where they would have stood
    assert [record.stored for record in records(stream)] == [record.stored for record in store.read("r")]
    assert len(parts(stream)) + dropped(stream) == 253
    assert dropped(stream) > 200
    assert parts(stream)[-1] == DONE
    cursors = [each.cursor for each in stream]
    assert cursors == sorted(set(cursors))
    for before, each in pairwise(stream):
        if isinstance(each.what, Dropped):
            assert each.cursor == (before.cursor[0], before.cursor[1] + each.what.parts)
            assert each.turn == before.turn


@given(st.lists(st.sampled_from(["part", "part", "part", "record", "large", "read", "join"]), max_size=60), st.integers(1, 6))
def test_however_readers_lag_each_gets_every_record_once_and_every_part_or_its_number(steps, kept):
    # given a driver that keeps very little, and readers that come and read when they like
    store, feed = open_store("memory:"), Feed()
    readers: list[list[Streamed]] = [[]]
    came: list[Cursor] = []

    async def read_on(seen: list[Streamed]) -> None:
        while seen[-1].cursor != came[-1] if seen else came:
            seen += await feed.more(store.log, "r", seen[-1].cursor if seen else (0, 0)) or []

    async def scenario() -> None:
        position = index = 0
        for step in steps:
            if step == "read":
                await read_on(readers[0])
            elif step == "join":
                readers.append([])
            elif step == "part":
                index += 1
                feed(p.TextDelta(text="a"))
                came.append((position, index))
            else:
                position, index = position + 1, 0
                feed(stored(store, position, "said" if step == "record" else "x" * 10_000))
                came.append((position, 0))
        feed.close()
        for seen in readers:
            # when all of them read to the end
            await read_on(seen)
            assert await feed.more(store.log, "r", came[-1] if came else (0, 0)) is None

    with patch.object(live, "KEPT_MAX", kept):
        asyncio.run(scenario())
    # then each has every cursor that there was, once and in order: as what stood there, or in the number of what was dropped
    for seen in readers:
        covered: list[Cursor] = []
        for each in seen:
            position, index = each.cursor
            covered += [(position, index - n) for n in reversed(range(each.what.parts))] if isinstance(each.what, Dropped) else [each.cursor]
            assert isinstance(each.what, Record) == (index == 0)
        assert covered == came
        assert [record.stored for record in records(seen)] == [row.state for row in store.log.read("r")]
    store.close()


def test_a_part_that_is_larger_than_the_bound_is_shown_to_who_reads(store, monkeypatch):
    # given
    monkeypatch.setattr(live, "KEPT_BYTES_MAX", 1_000)
    agent = Agent(Played([p.TextDelta(text="x" * 100_000), DONE]))
    # when
    seen: list[int] = []
    asyncio.run(agent.run("Do it.", store=store, heard=lambda what: seen.append(len(what.text)) if isinstance(what, p.TextDelta) else None))
    feed = Feed()
    feed(p.TextDelta(text="x" * 100_000))
    # then it is kept until something newer comes
    assert seen == [100_000]
    assert parts(asyncio.run(feed.more(store.log, "r", (0, 0)))) == [p.TextDelta(text="x" * 100_000)]


def test_a_large_value_is_read_from_the_log_in_its_place(store):
    # given a tool whose result is stored beside its record
    @tool(effect="read")
    def read_all() -> str:
        """Reads."""
        return "x" * 50_000

    agent = Agent(
        Played([p.ToolCallReady(index=0, name="read_all", arguments="{}"), p.Finished(stop_reason="tool_calls")], [*words(2), DONE]), tools=[read_all]
    )
    # when
    stream = asyncio.run(everything(agent.stream("Read.", store=store, run_id="r")))
    # then
    assert [record.fact for record in records(stream)] == [record.fact for record in store.read("r")]
    assert dropped(stream) == 0
    assert len(parts(stream)) == 5


def test_several_readers_in_several_loops_see_the_same(store):
    # given a run in a thread of its own, which waits in its stream until all readers have come
    arrived = threading.Barrier(4)
    agent = Agent(Played([*words(3), lambda: asyncio.to_thread(arrived.wait), *words(300), DONE]))
    begun = threading.Event()
    driving = threading.Thread(
        target=lambda: asyncio.run(agent.run("Do it.", store=store, run_id="r", heard=lambda what: begun.set() if isinstance(what, p.Part) else None))
    )
    seen: list[list[Streamed]] = []

    def read() -> None:
        async def reading() -> None:
            stream = store.watch("r")
            early = await upto(stream, lambda each: isinstance(each.what, p.Part))
            await asyncio.to_thread(arrived.wait)
            seen.append(early + await everything(stream))

        asyncio.run(reading())

    # when
    driving.start()
    assert begun.wait(10)
    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    for thread in [*readers, driving]:
        thread.join(30)
    # then
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert len(parts(seen[0])) == 304
    assert [record.stored for record in records(seen[0])] == [record.stored for record in store.read("r")]


def endless() -> Agent:
    """An agent whose model streams until it is stopped."""

    class Endless:
        spec = "endless"

        async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
            while True:
                yield p.TextDelta(text="on and ")
                await asyncio.sleep(0)

    return Agent(Endless())


async def leave_by_breaking(stream: Any) -> None:
    async for each in stream:
        if isinstance(each.what, p.Part):
            break


async def leave_by_raising(stream: Any) -> None:
    try:
        async for each in stream:
            if isinstance(each.what, p.Part):
                raise OSError("the screen is gone")
    except OSError:
        return


async def leave_by_closing(stream: Any) -> None:
    async with aclosing(stream):
        await leave_by_breaking(stream)


async def leave_before_anything_came(stream: Any) -> None:
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})


LEAVING = [leave_by_breaking, leave_by_raising, leave_by_closing, leave_before_anything_came]


@pytest.mark.parametrize("leave", LEAVING)
def test_a_run_whose_listener_leaves_is_cancelled_where_that_was_asked_for(store, leave):
    # given a run that would not end by itself
    async def scenario() -> list[Streamed]:
        # when its listener goes away
        await leave(endless().stream("Go on.", store=store, run_id="r", on_disconnect="cancel"))
        gc.collect()
        return await everything(store.watch("r"))

    # then it is cancelled
    assert records(asyncio.run(asyncio.wait_for(scenario(), 20)))[-1].type == "run_cancelled"


@pytest.mark.parametrize("leave", LEAVING[:3])
def test_it_is_cancelled_too_where_the_program_ends_with_its_listener(store, leave):
    asyncio.run(leave(endless().stream("Go on.", store=store, run_id="r", on_disconnect="cancel")))
    assert store.journal("r").run.status == "cancelled"


@pytest.mark.parametrize("leave", LEAVING)
def test_a_run_whose_listener_leaves_goes_on_otherwise(store, leave):
    # given a run that waits in its stream
    may_end = asyncio.Event()
    agent = Agent(Played([*words(2), may_end.wait, *words(2), DONE]))

    async def scenario() -> list[Streamed]:
        # when its listener goes away
        await leave(agent.stream("Go on.", store=store, run_id="r"))
        gc.collect()
        await asyncio.sleep(0)
        may_end.set()
        return await everything(store.watch("r"))

    # then it comes to its end
    assert records(asyncio.run(asyncio.wait_for(scenario(), 20)))[-1].type == "run_completed"


def test_a_listener_that_raises_is_told_nothing_more_and_the_run_goes_on(store):
    # given a listener that fails at the first part
    heard: list[Any] = []

    def hear(what: Any) -> None:
        heard.append(what)
        if isinstance(what, p.Part):
            raise BrokenPipeError("the terminal is gone")

    reported: list[Any] = []

    async def scenario() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        return await Agent(Played([*words(3), DONE])).run("Do it.", store=store, heard=hear)

    # when
    result = asyncio.run(scenario())
    # then the run does not mind, and the fault is reported where asyncio reports faults
    assert (result.status, result.answer) == ("completed", "word 0 word 1 word 2 ")
    assert isinstance(heard[-1], p.Part)
    assert len(reported) == 1
    assert isinstance(reported[0], BrokenPipeError)


def test_who_is_refused_the_wheel_takes_no_reader_from_who_drives(store):
    # given a run that is driven, and one who tries to drive it too
    air, run = Live(), Agent(ScriptedModel([{"text": "done"}])).run_sync("Do it.", store=store, run_id="r").run
    record = next(store.read("r"))
    with air.on_air(run, None) as driving:
        driving(record)
        # when, then readers are shown what the first one does
        with air.on_air(run, None):
            assert air.feed("r") is driving
        # and where the second takes over, what that one does
        with air.on_air(run, None) as second:
            second(record)
            assert air.feed("r") is second
        assert air.feed("r") is driving
    assert air.feed("r") is None
    assert driving.closed


def test_a_reader_whose_loop_is_closed_is_forgotten(store):
    # given one that waits in a loop of its own, which is then closed
    feed = Feed()
    loop = asyncio.new_event_loop()
    reading = loop.create_task(feed.more(store.log, "r", (0, 0)))
    loop.run_until_complete(asyncio.sleep(0))
    reading.cancel()
    loop.run_until_complete(asyncio.wait({reading}))
    loop.close()
    # when something comes, then nobody minds, and another reader gets it
    feed(p.TextDelta(text="a"))

    async def another() -> Any:
        return await feed.more(store.log, "r", (0, 0))

    assert parts(asyncio.run(another())) == [p.TextDelta(text="a")]
