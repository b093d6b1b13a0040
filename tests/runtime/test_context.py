"""Context in real runs: what requests show over hundreds of turns, on request, after an overflow, and in a run that goes on from another."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from threading import current_thread, main_thread
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold import Agent, Budgets, Context, ScriptedModel, Store, audit, open_store, replay, show, tool
from refold.events import facts as f
from refold.events.chain import NOTHING, digest_of
from refold.events.memory import MemoryLog
from refold.events.storage import Row
from refold.fsm.machine import empty, step
from refold.projections.breaks import breaks
from refold.projections.excerpts import handle_of
from refold.projections.messages import Message, encode, tokens_of
from refold.projections.prefix import chained, start
from refold.projections.run import Run
from refold.projections.transcript import Transcript
from refold.runtime import ports as p
from refold.runtime.cli.main import perform
from refold.runtime.journal import inherited
from refold.runtime.ports import Request
from refold.runtime.requests import request_of
from refold.runtime.result import Result
from refold.runtime.show import prompt
from refold.runtime.store import NotAsked
from refold.runtime.tools import ToolResult

FREE = Budgets(max_turns=None, max_tool_calls=None, max_tokens=None, max_cost_usd=None, timeout_s=None)


@tool(effect="read")
def look(at: int, size: int = 1_000) -> str:
    """Look."""
    return (f"page {at}. " * size)[:size]


@tool(effect="read")
def find(at: str) -> ToolResult:
    """Find something worth a note."""
    return ToolResult(data=f"{at} " * 200, source_ids=[at], notes=[f"{at} was found"])


def turn(*at: int, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": "look", "arguments": {"at": n, **arguments}} for n in at]}


def found(at: str) -> dict[str, Any]:
    return {"calls": [{"name": "find", "arguments": {"at": at}}]}


DONE = {"text": "done"}


def play(turns: Sequence[dict[str, Any]], *, store: Store | None = None, goal: str = "Do it.", **options: Any) -> tuple[Store, Result, list[Request]]:
    store, model = store or open_store("memory:"), ScriptedModel(turns)
    result = Agent(model=model, tools=[look, find], budgets=FREE, **options).run_sync(goal, store=store)
    return store, result, model.requests


def facts_of(store: Store, run_id: str, kind: type) -> list[Any]:
    return [record.fact for record in store.read(run_id) if isinstance(record.fact, kind)]


def sound(store: Store, run_id: str, sent: Sequence[Request]) -> list[f.ModelRequested]:
    """Every request that was sent can be made again, has the recorded digest and estimate, splits no call from its result, and shows the goal; the requests."""
    assert audit(store, run_id).ok
    assert replay(store, run_id).divergence is None
    run, transcript, made = empty(run_id), Transcript(), {}
    for record in store.read(run_id):
        before, run = run, step(run, record)
        if isinstance(record.fact, f.RunContinued):
            transcript = inherited(store.log, record.fact)
        transcript.take(before, record.fact, run)
        if isinstance(record.fact, f.ModelRequested):
            made[record.fact.number] = (record.fact, request_of(run, transcript), run)
    asked = [request for request in sent if request.number in made]
    for request in asked:
        fact, again, at = made[request.number]
        assert encode(again) == encode(request)
        assert digest_of_prompt(at, request) == fact.digest
        paired(request.messages)
    return [fact for fact, _, _ in made.values()]


def digest_of_prompt(run: Run, request: Request) -> str:
    """The digest of what a request shows, from its messages alone; what a parent said is one link for each block."""
    begun = start(run.begun, bare=not request.tools)
    messages, links = list(request.messages), []
    for entry in run.shown_entries():
        shown = [messages.pop(0)]
        while entry.kind == "history" and sum(len(encode(message)) for message in shown) < entry.size:
            shown.append(messages.pop(0))
        digests = [digest_of(encode(message)) for message in shown]
        links.append(chained(NOTHING, digests) if entry.kind == "history" else digests[0])
    assert not messages
    return chained(begun, links)


def paired(messages: Sequence[Message]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.calls]
    assert not waiting


# -- hundreds of turns


@pytest.mark.slow
def test_five_hundred_turns_with_20_kb_each_fit_into_a_window_of_32_000_tokens() -> None:
    # given
    turns = [turn(n, size=20_000) for n in range(500)]
    # when
    store, result, sent = play([*turns, DONE], context=Context(window_tokens=32_000))
    # then the run completes, every prompt has its digest, and none is over the window
    assert result.answer == "done"
    assert len(sent) == 501
    requests = sound(store, result.id, sent)
    assert max(request.estimated_input_tokens for request in requests) <= 32_000
    assert all(request.messages[0].text == "Do it." for request in sent)
    # and the log has grown by as much in the second half as in the first
    sizes = [len(record.stored) for record in store.read(result.id)]
    payloads = sum(len(value) for value in store.log.payloads(result.id).values())
    half = sum(sizes[: len(sizes) // 2])
    assert 0.9 < half / (sum(sizes) - half) < 1.1
    assert payloads < 500 * 20_100 + 170 * 16_500


def test_older_turns_give_way_and_the_latest_stay() -> None:
    store, result, sent = play([*(turn(n) for n in range(40)), DONE], context=Context(window_tokens=4_000, keep_turns=2))
    # then every request shows the goal, a summary once there is one, and then whole turns, the latest two at least
    requests = sound(store, result.id, sent)
    assert max(request.estimated_input_tokens for request in requests) <= 3_200
    compacted = facts_of(store, result.id, f.ContextCompacted)
    assert len(compacted) > 3
    assert [each.since for each in compacted] == [None, *(each.upto for each in compacted[:-1])]
    last = sent[-1].messages
    assert [(message.role, message.kind) for message in last[:2]] == [("user", ""), ("user", "summary")]
    for place, request in enumerate(sent[2:], 2):
        assert [message.call_id for message in request.messages if message.role == "tool"][-2:] == [f"t{place - 1}.1", f"t{place}.1"]
    # and each summary is named as what broke the prefix
    assert {broken.because for broken in breaks(store.read(result.id))} == {"older turns gave way to a summary"}
    assert len(breaks(store.read(result.id))) == len(compacted)
    # and the transcript has everything
    assert [message["call_id"] for message in show(store, result.id)["messages"] if message["role"] == "tool"] == [f"t{n}.1" for n in range(1, 41)]


def test_without_a_window_requests_show_everything_and_grow_by_what_is_new() -> None:
    store, result, sent = play([turn(1, size=20_000), turn(2), DONE])
    sound(store, result.id, sent)
    assert not facts_of(store, result.id, f.ContextCompacted)
    for shorter, longer in pairwise(sent):
        assert longer.messages[: len(shorter.messages)] == shorter.messages


def test_what_the_user_says_stays_when_its_turn_is_gone() -> None:
    # given a message to a run that goes on
    store = open_store("memory:")
    model = ScriptedModel([turn(1), {"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, *(turn(n) for n in range(2, 12)), DONE])
    agent = Agent(model=model, tools=[look], budgets=FREE, context=Context(window_tokens=2_000, keep_turns=1))
    waiting = agent.run_sync("Do it.", store=store)
    store.say_sync(waiting.id, "But never on a Sunday.")
    store.answer_sync(waiting.id, "This.")
    # when its turn is long compacted
    result = agent.resume_sync(waiting.id, store=store)
    # then every request shows it still, once
    assert result.answer == "done"
    sound(store, result.id, model.requests)
    for request in model.requests[2:]:
        assert [message.text for message in request.messages if message.role == "user" and not message.kind] == ["Do it.", "But never on a Sunday."]


def test_notes_are_shown_where_their_results_are_gone() -> None:
    store, result, sent = play([found("oak"), found("elm"), *(turn(n) for n in range(8)), DONE], context=Context(window_tokens=2_000, keep_turns=1))
    sound(store, result.id, sent)
    summary = next(message for message in sent[-1].messages if message.kind == "summary")
    assert "- oak was found" in summary.text
    assert "- elm was found" in summary.text


def test_a_long_result_is_cut_when_it_is_first_shown_and_stays_so() -> None:
    store, result, sent = play([turn(1, size=9_000), turn(2), DONE], context=Context(observation_bytes=2_000))
    sound(store, result.id, sent)
    cut, later = (request.messages[2] for request in sent[1:])
    assert cut == later
    assert len(encode(cut)) <= 2_000
    # and people see the whole
    assert show(store, result.id)["messages"][2]["content"] == look(1, 9_000)


@pytest.mark.parametrize(("arguments", "words"), [({"result": "nothing"}, "there is no result"), ({"result": "", "start": 10**9}, "9,000 characters")])
def test_reading_on_where_there_is_nothing_says_so(arguments: dict[str, Any], words: str) -> None:
    from refold.projections.excerpts import handle_of

    given = arguments if arguments["result"] else {**arguments, "result": handle_of(look(1, 9_000))}
    _, result, sent = play([turn(1, size=9_000), {"calls": [{"name": "read_result", "arguments": given}]}, DONE], context=Context(observation_bytes=2_000))
    assert result.answer == "done"
    assert sent[2].messages[-1].kind == "execution_failed"
    assert words in sent[2].messages[-1].content["message"]


def test_the_tool_that_reads_on_is_there_only_where_results_may_be_cut() -> None:
    _, _, plain = play([DONE])
    _, _, cut = play([DONE], context=Context(observation_bytes=2_000))
    assert [tool.name for tool in plain[0].tools] == ["look", "find", "ask_user"]
    assert [tool.name for tool in cut[0].tools] == ["look", "find", "read_result", "ask_user"]


def test_a_tool_of_the_same_name_is_refused() -> None:
    @tool(effect="read")
    def read_result() -> str:
        """Mine."""
        return ""

    with pytest.raises(ValueError, match="read_result"):
        Agent(tools=[read_result])


# -- the end of what can be done


def test_what_fits_in_no_way_stops_the_run_and_the_end_says_what_it_is() -> None:
    store, result, sent = play([DONE], goal="Do all of it. " * 500, context=Context(window_tokens=1_000))
    assert (result.status, result.reason, sent) == ("stopped", "window_tokens", [])
    assert "for what is new" in result.detail
    assert audit(store, result.id).ok
    assert replay(store, result.id).divergence is None


def test_without_compaction_results_are_cut_to_what_is_left_and_then_the_run_stops() -> None:
    store, result, sent = play([*(turn(n, size=3_000) for n in range(40)), DONE], context=Context(window_tokens=3_000, compaction="off"))
    assert (result.status, result.reason) == ("stopped", "window_tokens")
    requests = sound(store, result.id, sent)
    assert len(requests) > 4
    assert not facts_of(store, result.id, f.ContextCompacted)


OVERFLOW = {"error": {"type": "context_overflow", "message": "prompt is too long", "retryable": False}}


def test_an_overflow_is_answered_by_one_compaction_and_the_request_is_made_again() -> None:
    # given a model that reads less than anybody said
    store, result, sent = play([*(turn(n) for n in range(6)), OVERFLOW, DONE])
    # then older turns gave way, and the same turn was asked again, shorter
    assert result.answer == "done"
    requests = sound(store, result.id, sent)
    assert len(facts_of(store, result.id, f.ContextCompacted)) == 1
    first, again = requests[-2:]
    assert (again.number, again.attempt) == (first.number + 1, 2)
    assert again.estimated_input_tokens < first.estimated_input_tokens
    assert sent[-1].messages[-1].call_id == "t6.1"


def test_a_third_overflow_ends_the_run_and_so_does_one_that_nothing_can_be_done_about() -> None:
    _, result, sent = play([*(turn(n) for n in range(6)), *[OVERFLOW] * 5])
    assert (result.status, result.reason, len(sent)) == ("failed", "provider", 9)
    assert "prompt is too long" in result.detail
    _, result, sent = play([OVERFLOW, DONE])
    assert (result.status, result.reason, len(sent)) == ("failed", "provider", 1)


def test_what_was_too_long_once_is_kept_away_from() -> None:
    # given a run that overflowed
    store, _, sent = play([*(turn(n) for n in range(10)), OVERFLOW, *(turn(n) for n in range(10, 30)), DONE])
    # then later requests stay below what was too much
    requests = sound(store, store.runs()[0], sent)
    too_much = requests[10].estimated_input_tokens
    assert max(request.estimated_input_tokens for request in requests[11:]) < too_much


def test_a_response_that_ran_into_the_window_is_followed_by_a_compaction() -> None:
    store, result, sent = play([*(turn(n) for n in range(6)), {"text": "It is", "stop_reason": "context_overflow"}, DONE])
    assert result.answer == "done"
    sound(store, result.id, sent)
    assert len(facts_of(store, result.id, f.ContextCompacted)) == 1


# -- on request


def test_somebody_asks_for_a_compaction_and_the_next_request_has_it() -> None:
    # given a run that waits for a human
    store = open_store("memory:")
    model = ScriptedModel([*(turn(n) for n in range(5)), {"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, DONE])
    agent = Agent(model=model, tools=[look], budgets=FREE)
    waiting = agent.run_sync("Do it.", store=store)
    # when somebody wants older turns to go, twice by the same command, and answers
    first = store.compact_sync(waiting.id, command_id="c1")
    assert store.compact_sync(waiting.id, command_id="c1") == first._replace(again=True)
    store.answer_sync(waiting.id, "This.")
    result = agent.resume_sync(waiting.id, store=store)
    # then
    assert result.answer == "done"
    sound(store, result.id, model.requests)
    assert len(facts_of(store, result.id, f.ContextCompacted)) == 1
    assert [message.call_id for message in model.requests[-1].messages if message.role == "tool"] == ["t4.1", "t5.1", "t6.1"]


def test_a_compaction_is_refused_where_there_is_none() -> None:
    store, result, _ = play([DONE])
    with pytest.raises(NotAsked, match="has ended"):
        store.compact_sync(result.id)
    store, waiting, _ = play([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}], context=Context(compaction="off"))
    with pytest.raises(NotAsked, match="compaction=off"):
        store.compact_sync(waiting.id)


# -- a summary that is on its way


def until_the_summary(script: Sequence[dict[str, Any]]) -> tuple[Store, str, Agent, ScriptedModel]:
    """A run whose process died when it had asked for a summary, and an agent to drive it on."""
    context = Context(window_tokens=4_000, keep_turns=1, compaction="model")
    whole, result, _ = play(script, context=context)
    at = next(record.position for record in whole.read(result.id) if record.type == "summary_requested")
    store, rows = open_store("memory:"), list(whole.log.scan(result.id, 0, at))
    store.log.append(result.id, 0, [Row(row.position, row.type, row.state) for row in rows], whole.log.payloads(result.id), create=True)
    model = ScriptedModel(script)
    return store, result.id, Agent(model=model, tools=[look, find], budgets=FREE, context=context), model


SCRIPT = [*(turn(n, size=2_000) for n in range(6)), {"text": "Six pages."}, turn(6), DONE]


def test_a_summary_whose_process_died_is_asked_for_again_under_its_number_and_costs_its_estimate() -> None:
    # given
    store, run_id, agent, model = until_the_summary(SCRIPT)
    # when it is driven on
    result = agent.resume_sync(run_id, store=store)
    # then no entry of the script is skipped or played twice, and what the lost request may have read is an estimate
    assert result.answer == "done"
    sound(store, run_id, model.requests)
    first, again = facts_of(store, run_id, f.SummaryRequested)
    assert first == again
    assert [request.number for request in model.requests] == [7, 8, 9]
    assert result.usage["estimated"]["input_tokens"] > 2 * first.estimated_input_tokens > 0
    assert len(facts_of(store, run_id, f.ContextCompacted)) == 1


def test_the_request_for_a_summary_can_be_made_again() -> None:
    store, run_id, _, _ = until_the_summary(SCRIPT)
    _, _, sent = play(SCRIPT, context=Context(window_tokens=4_000, keep_turns=1, compaction="model"))
    assert prompt(store, run_id).request == sent[6]


def test_a_run_that_is_cancelled_while_a_summary_is_made_ends_and_has_booked_it() -> None:
    # given a model that never ends its summary
    store = open_store("memory:")

    class Slow:
        spec = "slow"

        async def stream(self, request: Request) -> Any:
            if request.tools:
                yield p.ToolCallReady(index=0, name="look", arguments=f'{{"at": {request.number}, "size": 2000}}')
                yield p.Finished(stop_reason="tool_calls")
            else:
                yield p.TextDelta(text="So far")
                await store.cancel(store.runs()[0])
                await asyncio.sleep(30)

    agent = Agent(model=Slow(), tools=[look], budgets=FREE, context=Context(window_tokens=4_000, keep_turns=1, compaction="model"))
    # when somebody cancels
    result = agent.run_sync("Do it.", store=store)
    # then
    assert result.status == "cancelled"
    assert audit(store, result.id).ok
    (compacted,) = facts_of(store, result.id, f.ContextCompacted)
    assert "cancelled" in compacted.error
    assert compacted.unreported.input_tokens > 0


# -- replay with the agent


def test_replay_with_the_agent_asks_builders_again_and_makes_summaries_again() -> None:
    # given a run with a builder, which was compacted
    def old_ones(run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
        return list(turns)[:1]

    def no_ones(run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
        return []

    context = Context(window_tokens=2_000, keep_turns=1, compact_at=60)
    store, result, _ = play([*(turn(n) for n in range(12)), DONE], context=context, context_builder=old_ones)
    assert facts_of(store, result.id, f.ContextCompacted)
    # when its code is the same, then nothing differs, whatever context the agent would begin with today
    same = Agent(tools=[look, find], context_builder=old_ones)
    assert replay(store, result.id, agent=same).divergence is None
    # and when it chooses otherwise, that is what is named
    no_ones.__name__ = old_ones.__name__
    divergence = replay(store, result.id, agent=Agent(tools=[look, find], context_builder=no_ones)).divergence
    assert divergence is not None
    assert divergence.cause == "context: the agent's context builder chooses other turns"
    assert divergence.field.startswith("data.left_out")


# -- whatever is said


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from((10, 500, 3_000, 20_000))), max_size=8),
    st.builds(
        Context,
        window_tokens=st.sampled_from((None, 1_500, 3_000, 8_000)),
        observation_bytes=st.sampled_from((None, 700, 2_500)),
        compact_at=st.sampled_from((30, 80, 100)),
        keep_turns=st.integers(1, 3),
        compaction=st.sampled_from(("off", "extractive", "model")),
        relevant_turns=st.sampled_from((None, 0, 2)),
    ),
    st.sampled_from(("Do it.", "Do it. " * 300)),
)
def test_every_request_is_whole_and_fits_or_is_not_made(turns: list[tuple[int, int]], context: Context, goal: str) -> None:
    # given any calls, results and settings, and a model that summarises when it is asked to
    sent: list[Request] = []

    class Talks:
        spec = "talks"

        async def stream(self, request: Request) -> Any:
            sent.append(request)
            at = sum(each.instructions == "" for each in sent) - 1
            if request.instructions:
                yield p.TextDelta(text="So far.")
            elif at < len(turns):
                for index in range(turns[at][0]):
                    yield p.ToolCallReady(index=index, name="look", arguments=f'{{"at": {at}{index}, "size": {turns[at][1]}}}')
            else:
                yield p.TextDelta(text="done")
            yield p.Finished(stop_reason="stop")

    store = open_store("memory:")
    result = Agent(model=Talks(), tools=[look], budgets=FREE, context=context).run_sync(goal, store=store)
    # then it ends with its answer, or because a request would not fit
    assert result.answer == "done" or (result.status, result.reason) == ("stopped", "window_tokens")
    # and every request fits, shows the goal and no half turn, and can be made again
    requests = sound(store, result.id, sent)
    assert all(request.estimated_input_tokens <= (context.window_tokens or 10**9) for request in requests)
    assert all(request.messages[0].text == goal for request in sent if not request.instructions)
    assert all(tokens_of(sum(len(encode(message)) for message in request.messages)) <= (context.window_tokens or 10**9) for request in sent)


# -- context builders


def test_of_older_turns_those_are_shown_that_have_to_do_with_the_goal() -> None:
    # given a run over trees and pages
    turns = [found("oak"), *(turn(n) for n in range(3)), found("elm"), *(turn(n) for n in range(3, 6)), DONE]
    store, result, sent = play(turns, goal="Compare oak and elm.", context=Context(relevant_turns=2, keep_turns=1))
    # then what has to do with the goal is still there, and what is not is named, with its notes
    sound(store, result.id, sent)
    shown = [message.call_id for message in sent[-1].messages if message.role == "tool"]
    assert shown == ["t1.1", "t5.1", "t8.1"]
    (instead,) = [message.text for message in sent[-1].messages if message.kind == "summary"]
    assert instead == "5 earlier turns are not shown here."
    # and each choice is in the log
    assert [each.builder for each in facts_of(store, result.id, f.ContextChosen)] == ["relevant"] * 7


def test_notes_of_turns_that_are_left_out_are_shown() -> None:
    def no_trees(run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
        return [position for position, messages in turns.items() if any(message.name == "find" for message in messages)]

    store, result, sent = play([found("oak"), *(turn(n) for n in range(3)), DONE], context=Context(keep_turns=1), context_builder=no_trees)
    sound(store, result.id, sent)
    assert "- oak was found" in next(message.text for message in sent[-1].messages if message.kind == "summary")
    assert facts_of(store, result.id, f.RunStarted)[0].setup.context_builder == "no_trees"


@pytest.mark.parametrize("given", [ValueError("no"), SystemExit(3), [4_711], "all", None, [None]])
def test_a_builder_that_fails_has_chosen_nothing(given: Any) -> None:
    def broken(run: Run, turns: Mapping[int, Sequence[Message]]) -> Any:
        if isinstance(given, BaseException):
            raise given
        return given

    store, result, sent = play([*(turn(n) for n in range(4)), DONE], context=Context(keep_turns=1), context_builder=broken)
    # then the requests show everything, and the log says why
    assert result.answer == "done"
    sound(store, result.id, sent)
    assert len(sent[-1].messages) == 9
    choices = facts_of(store, result.id, f.ContextChosen)
    assert choices
    assert all(choice.error and not choice.left_out for choice in choices)


def test_an_agent_without_the_builder_of_a_run_shows_everything() -> None:
    # given a run with a builder that waits
    def mine(run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
        return list(turns)

    store = open_store("memory:")
    script = [turn(1), turn(2), {"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, DONE]
    options: dict[str, Any] = {"tools": [look], "budgets": FREE, "context": Context(keep_turns=1)}
    waiting = Agent(model=ScriptedModel(script), context_builder=mine, **options).run_sync("Do it.", store=store)
    store.answer_sync(waiting.id, "This.")
    # when an agent drives it on that has none
    model = ScriptedModel(script)
    result = Agent(model=model, **options).resume_sync(waiting.id, store=store)
    # then
    assert result.answer == "done"
    assert len(model.requests[-1].messages) == 7
    assert "has no context builder 'mine'" in facts_of(store, result.id, f.ContextChosen)[-1].error


def test_a_choice_holds_for_one_request() -> None:
    # given a builder that leaves out everything, but only when it is first asked
    asked = [0]

    def once(run: Run, turns: Mapping[int, Sequence[Message]]) -> list[int]:
        asked[0] += 1
        return list(turns) if asked[0] == 1 else []

    store, result, sent = play([*(turn(n) for n in range(4)), DONE], context=Context(keep_turns=1), context_builder=once)
    sound(store, result.id, sent)
    assert [len(request.messages) for request in sent] == [1, 3, 4, 7, 9]  # the goal, a summary and the latest turn in the third


# -- a run that goes on from another


def test_a_continuation_begins_with_what_its_parent_would_have_shown() -> None:
    # given a run that was compacted and whose results were cut
    store, parent, sent = play(
        [*(turn(n, size=3_000) for n in range(8)), {"text": "It is page 7."}], context=Context(window_tokens=3_000, observation_bytes=2_000, keep_turns=2)
    )
    assert facts_of(store, parent.id, f.ContextCompacted)
    # when it is continued, and reads on in a result of the parent
    handle = sent[-1].messages[-1].content["left_out"].partition('result="')[2].partition('"')[0]
    model = ScriptedModel([{"calls": [{"name": "read_result", "arguments": {"result": handle, "start": 2_500}}]}, {"text": "So it is."}])
    agent = Agent(model=model, tools=[look, find], budgets=FREE, context=Context(window_tokens=3_000, observation_bytes=2_000, keep_turns=2))
    result = agent.continue_run_sync(parent.id, "Are you sure?", store=store)
    # then its first request shows what the last of its parent did, the answer, and what the user says now
    assert result.answer == "So it is."
    sound(store, result.id, model.requests)
    first = model.requests[0].messages
    assert [message.text for message in first[: len(sent[-1].messages)]] == [message.text for message in sent[-1].messages]
    assert [message.content for message in first if message.role == "tool"] == [message.content for message in sent[-1].messages if message.role == "tool"]
    assert [message.text for message in first[-2:]] == ["It is page 7.", "Are you sure?"]
    assert model.requests[1].messages[-1].content["text"] == look(7, 3_000)[2_500:]


class Watched(MemoryLog):
    """A log that knows which streams were read, up to where, and whether the main thread did it, in which the event loop is."""

    def __init__(self) -> None:
        super().__init__()
        self.scans: list[tuple[str, int | None, bool]] = []

    def scan(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Row]:
        self.scans.append((run_id, upto, current_thread() is main_thread()))
        return super().scan(run_id, after, upto)


def reading(text: str, **more: Any) -> dict[str, Any]:
    return {"calls": [{"name": "read_result", "arguments": {"result": handle_of(text), **more}}]}


def test_what_runs_before_hold_is_read_beside_the_event_loop_and_up_to_where_they_were_left() -> None:
    # given a run, one that continues it, and one that continues that
    log = Watched()
    store, context = Store(log, "memory:"), Context(observation_bytes=2_000)
    _, first, _ = play([turn(1, size=9_000), DONE], store=store, context=context)
    settings: dict[str, Any] = {"tools": [look, find], "budgets": FREE, "context": context}
    second = Agent(model=ScriptedModel([DONE]), **settings).continue_run_sync(first.id, "Go on.", store=store)
    began: list[int] = []
    model = ScriptedModel([reading(look(1, 9_000), start=5), DONE])
    # when the last of them reads on in a result of the first
    heard = lambda what: began.append(len(log.scans)) if isinstance(what, p.Finished) else None  # noqa: E731 - a listener
    asyncio.run(Agent(model=model, **settings).continue_run(second.id, "And now?", store=store, heard=heard))
    # then it has it, and no parent was read by the event loop, or beyond its end
    assert model.requests[1].messages[-1].content["text"].startswith(look(1, 9_000)[5:500])
    of_parents = [(run_id, upto) for run_id, upto, _ in log.scans[began[0] :] if run_id in (first.id, second.id) and upto is not None]
    assert set(of_parents) == {(second.id, second.position), (first.id, first.position)}
    assert not any(in_loop for run_id, _, in_loop in log.scans[began[0] :] if run_id in (first.id, second.id))


def test_a_fork_reads_nothing_that_came_behind_where_it_was_split_off() -> None:
    # given a run with two results, and a fork of it from before the second
    context = Context(observation_bytes=2_000)
    store, first, _ = play([turn(1, size=9_000), turn(2, size=9_000), DONE], context=context)
    split = next(record.position for record in store.read(first.id) if record.type == "tool_results_injected")
    model = ScriptedModel([reading(look(1, 9_000)), reading(look(2, 9_000)), DONE])
    agent = Agent(model=model, tools=[look, find], budgets=FREE, context=context)
    # when it, and then a run that continues it, read on in both
    forked = agent.fork_sync(first.id, split, store=store)
    again = ScriptedModel([reading(look(1, 9_000)), reading(look(2, 9_000)), DONE])
    continued = Agent(model=again, tools=[look, find], budgets=FREE, context=context).continue_run_sync(forked.id, "Go on.", store=store)
    # then they have the first result, and know of no second
    for run_id in (forked.id, continued.id):
        had, none = [record for record in store.read(run_id) if record.type in ("tool_succeeded", "tool_failed")][-2:]
        assert (had.type, none.type) == ("tool_succeeded", "tool_failed")
        assert "there is no result" in none.fact.message


def test_a_long_conversation_stays_within_the_window_and_keeps_its_latest_exchange() -> None:
    # given a conversation, each message a run of its own
    store, context = open_store("memory:"), Context(window_tokens=2_000, keep_turns=2)
    model = ScriptedModel([{"text": "first " * 100}])
    last = Agent(model=model, tools=[look], budgets=FREE, context=context).run_sync("Say something.", store=store)
    for n in range(20):
        model = ScriptedModel([turn(n), {"text": f"answer {n} " * 60}])
        last = Agent(model=model, tools=[look], budgets=FREE, context=context).continue_run_sync(last.id, f"Message {n}.", store=store)
        requests = sound(store, last.id, model.requests)
        # then every request fits and shows the message before and its answer
        assert max(request.estimated_input_tokens for request in requests) <= 2_000
        texts = " ".join(message.text for message in model.requests[0].messages)
        assert f"Message {n}." in texts
        assert (f"answer {n - 1} " * 60 if n else "first ") in texts
    assert [record.type for record in last.records].count("context_compacted") <= 2


# -- the command line


def test_the_prompt_of_any_position_can_be_shown(tmp_path: Any, capsys: Any) -> None:
    # given a run with summaries in a file
    url = f"sqlite:///{tmp_path / 'log.db'}"
    context = Context(window_tokens=2_000, keep_turns=1, compaction="model")
    store, result, sent = play([*(turn(n, size=1_700) for n in range(3)), {"text": "Three pages."}, DONE], store=open_store(url), context=context)
    asked = [record.position for record in store.read(result.id) if record.type in ("model_requested", "summary_requested")]
    store.close()
    assert len(asked) == 5
    for position, request in zip(asked, sent, strict=True):
        # when
        assert perform(["show", result.id, "--at", str(position), "--prompt", "--json", "--store", url]) == 0
        # then it is what was sent
        shown = json.loads(capsys.readouterr().out)
        assert {key: value for key, value in shown.items() if key != "digest"} == json.loads(encode(request))
    assert perform(["show", result.id, "--store", url]) == 0
    assert "is shown as a summary" in capsys.readouterr().out
    assert perform(["show", result.id, "--at", str(asked[3]), "--prompt", "--store", url]) == 0
    assert "You keep the record of an agent's work short." in capsys.readouterr().out
    assert perform(["log", result.id, "--types", "context_compacted,summary_requested", "--store", url]) == 0
    assert "by the model: Earlier turns are shown as this summary." in " ".join(capsys.readouterr().out.split())


def test_a_compaction_is_asked_for_from_the_command_line(tmp_path: Any, capsys: Any) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    _, waiting, _ = play([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}], store=open_store(url))
    assert perform(["compact", waiting.id, "--command-id", "c1", "--store", url]) == 0
    assert f"asked run {waiting.id} to show its older turns as a summary" in capsys.readouterr().out
    assert perform(["compact", waiting.id, "--command-id", "c1", "--json", "--store", url]) == 0
    assert json.loads(capsys.readouterr().out)["again"]


def test_settings_reach_a_run_from_the_command_line(tmp_path: Any, capsys: Any) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "done"}]')
    url = f"sqlite:///{tmp_path / 'log.db'}"
    settings = ["context.window_tokens=32000", "context.compaction=model", "context.keep_turns=5"]
    assert perform(["run", "Do it.", "--model", f"script:{script}", "--store", url, *(word for each in settings for word in ("--set", each))]) == 0
    (begun,) = facts_of(open_store(url), open_store(url).find("last"), f.RunStarted)
    assert (begun.setup.context.window_tokens, begun.setup.context.compaction, begun.setup.context.keep_turns) == (32_000, "model", 5)
    capsys.readouterr()
    assert perform(["run", "Do it.", "--model", f"script:{script}", "--store", url, "--set", "context.window_tokens=12"]) == 2
    assert "context.window_tokens=12" in capsys.readouterr().err
