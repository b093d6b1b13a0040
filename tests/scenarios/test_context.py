"""The window: what does not fit is shortened, once and in the open, or the run ends in words that say what did not fit."""

from typing import Any

import pytest

from refold import Agent, Budgets, Context, Policy, audit, tool
from refold.projections.messages import encode, tokens_of
from refold.runtime import ports as p
from refold.runtime.summaries import SUMMARISE

FREE = Budgets(max_turns=None, max_tool_calls=None, max_tokens=None, max_cost_usd=None, timeout_s=None)


@tool(effect="read", concurrent=True)
def look(at: int, size: int = 2_000) -> str:
    """Look."""
    return (f"page {at}. " * size)[:size]


def turn(*at: int, size: int = 2_000, **more: Any) -> dict[str, Any]:
    return {"calls": [{"name": "look", "arguments": {"at": n, "size": size}} for n in at], **more}


def tokens(request: p.Request) -> int:
    """What a request is estimated at, counted once more from everything that it shows."""
    shown = encode((request.instructions, [(tool.name, tool.description, tool.schema) for tool in request.tools])), *map(encode, request.messages)
    return tokens_of(sum(map(len, shown)))


def compactions(result: Any) -> list[Any]:
    return [record.fact for record in result.records if record.type == "context_compacted"]


# -- B125


SUMMARISER: dict[str, dict[str, Any]] = {
    "fails": {"error": {"type": "server_error", "message": "no", "retryable": True}},
    "says nothing": {"text": ""},
    "declines": {"refusal": "I will not."},
    "calls a tool": turn(99),
    "is cut off by a filter": {"text": "so", "stop_reason": "content_filter"},
}


def test_B125_the_request_for_a_summary_is_legal_and_its_summary_is_shown(stage):
    # given a history with parallel calls, and a model that is to summarise it (the strict provider looks at every request when the scenario ends)
    script = [
        turn(1, 2),
        turn(3, 4),
        turn(5, 6),
        {"text": "Six pages were read.", "usage": {"input_tokens": 70, "output_tokens": 7}},
        turn(7),
        {"text": "done"},
    ]
    # when the window is nearly full
    result = stage.play(script, [look], budgets=FREE, context=Context(window_tokens=4_000, compaction="model"))
    # then the model was asked for a summary, without tools, and the next request shows it, what the user said, and no call without its result
    assert result.answer == "done"
    asked = stage.requests()[3]
    assert (asked.tools, [message.role for message in asked.messages]) == ((), ["user"])
    assert asked.number == 4
    (compacted,) = compactions(result)
    assert (compacted.author, compacted.error) == ("model", "")
    assert "Six pages were read." in compacted.summary
    shown = stage.requests()[4].messages
    assert [(message.role, message.kind) for message in shown[:2]] == [("user", ""), ("user", "summary")]
    assert shown[1].text == compacted.summary
    # and it was paid for
    assert result.usage["reported"]["input_tokens"] == 70


@pytest.mark.parametrize("how", SUMMARISER)
def test_B125_without_a_summary_the_history_stays_and_the_run_goes_on_while_it_fits(stage, how):
    # given a summariser that gives none
    result = stage.play(
        [turn(1, 2), turn(3, 4), turn(5, 6), SUMMARISER[how], {"text": "done"}], [look], budgets=FREE, context=Context(window_tokens=4_000, compaction="model")
    )
    # then that is in the log, nothing was replaced, and the run went on with everything
    assert result.answer == "done"
    (failed,) = compactions(result)
    assert failed.error
    assert not failed.summary
    assert len(stage.requests()[-1].messages) == 1 + 3 + 3 + 3
    assert sum(message.kind == "summary" for message in stage.requests()[-1].messages) == 0


def test_B125_where_it_does_not_fit_the_summary_is_made_without_the_model_and_says_so(stage):
    # given a summariser that fails and a request that would be over the window
    script = [turn(1, 2, size=3_000), turn(3, 4, size=3_000), SUMMARISER["fails"], {"text": "done"}]
    result = stage.play(script, [look], budgets=FREE, context=Context(window_tokens=3_000, compaction="model"))
    # then
    assert result.answer == "done"
    assert [(each.author, bool(each.error)) for each in compactions(result)] == [("model", True), ("extractive", False)]


def test_B125_a_model_that_failed_twice_in_a_row_is_not_asked_again(stage):
    # given a summariser that never gives anything
    script = [turn(1, 2), turn(3), SUMMARISER["fails"], turn(4), SUMMARISER["fails"], turn(5), turn(6), {"text": "done"}]
    result = stage.play(script, [look], budgets=FREE, context=Context(window_tokens=3_000, compact_at=60, compaction="model"))
    # then
    assert result.answer == "done"
    authors = [each.author for each in compactions(result)]
    assert authors.count("model") == 2
    assert authors[2:] == ["extractive"] * len(authors[2:]) != []


# -- B126


def test_B126_when_the_fixed_part_is_too_large_no_summary_is_asked_for_and_the_end_says_why(stage):
    # given instructions that fill the window but for a little
    agent = Agent(
        model=stage.scripted([turn(n, size=100) for n in range(50)]),
        instructions="Be brief. " * 350,
        tools=[look],
        budgets=FREE,
        context=Context(window_tokens=1_000, compact_at=85, compaction="model"),
    )
    # when it runs
    result = agent.run_sync("Do it.", store=stage.store)
    # then it ends in words that name the fixed size and the limit, without one request for a summary that could not help
    assert (result.status, result.reason) == ("stopped", "window_tokens")
    assert "for instructions and tools" in result.detail
    assert "the window is 1000 tokens" in result.detail
    assert len(compactions(result)) <= 2


def test_B126_requests_for_summaries_count_against_the_budget(stage):
    # given a model whose summaries are dear, and a budget that the task alone would not use up
    class Dear:
        spec = "dear"
        summaries = turns = 0

        async def stream(self, request: p.Request) -> Any:
            if request.instructions == SUMMARISE:
                self.summaries += 1
                yield p.TextDelta(text="So far.")
                yield p.UsageUpdated(input_tokens=20_000, output_tokens=500)
            else:
                self.turns += 1
                yield p.ToolCallReady(index=0, name="look", arguments=f'{{"at": {self.turns}}}')
                yield p.UsageUpdated(input_tokens=100, output_tokens=10)
            yield p.Finished(stop_reason="stop")

    model = Dear()
    budgets = Budgets(max_turns=None, max_tokens=100_000, max_tool_calls=None, max_cost_usd=None)
    agent = Agent(model=model, tools=[look], budgets=budgets, context=Context(window_tokens=3_000, compact_at=60, compaction="model"))
    # when
    result = agent.run_sync("Do it.", store=stage.store)
    # then every one that was made is booked, and the run ends with the one that uses the budget up
    assert (result.status, result.reason) == ("stopped", "max_tokens")
    assert [each.author for each in compactions(result)] == ["model"] * model.summaries == ["model"] * 5
    assert result.usage["reported"] == {
        "input_tokens": 20_000 * 5 + 100 * model.turns,
        "cached_input_tokens": 0,
        "output_tokens": 500 * 5 + 10 * model.turns,
    }


# -- B127


def test_B127_what_the_summariser_reads_fits_and_the_run_goes_on(stage):
    # given a run without a window, whose history is three times as long as the one that it is continued with, with one result twice as long
    first = stage.play([turn(1, size=24_000), turn(2), turn(3), turn(4, size=8_000), {"text": "read"}], [look], budgets=FREE)
    # when it is continued
    agent = stage.agent([{"text": "Four pages."}, turn(5), {"text": "done"}], [look], budgets=FREE, context=Context(window_tokens=3_000, compaction="model"))
    result = agent.continue_run_sync(first.id, "And now?", store=stage.store)
    # then no request is over the window, that for the summary included, and the run comes to its answer
    assert result.answer == "done"
    assert "Four pages." in compactions(result)[0].summary
    assert all(tokens(request) <= 3_000 for request in stage.requests())
    assert stage.requests()[1].messages[-1].text == "And now?"


# -- B128


LONG: dict[str, Any] = {
    "lines": "all of it\n" * 500_000,
    "one line": "x" * 5_000_000,
    "base64": "QUJD" * 1_250_000,
    "JSON": [{"row": n, "text": "naïve \N{THUMBS UP SIGN}" * 40} for n in range(10_000)],
}


@pytest.mark.parametrize("kind", LONG)
def test_B128_a_giant_result_is_shown_by_its_ends_and_can_be_read_on(stage, kind):
    # given a tool that gives five megabytes
    @tool(effect="read")
    def dump() -> Any:
        """Everything."""
        return LONG[kind]

    # when the model reads on where the beginning ends
    said: list[p.Request] = []

    class Reads:
        spec = "reads"

        async def stream(self, request: p.Request) -> Any:
            said.append(request)
            if request.number == 1:
                yield p.ToolCallReady(index=0, name="dump", arguments="{}")
            elif request.number == 2:
                _, _, call = request.messages[-1].content["left_out"].partition('read_result(result="')
                result, start = call.partition('", start=')[0], call.partition("start=")[2].partition(")")[0]
                yield p.ToolCallReady(index=0, name="read_result", arguments=f'{{"result": "{result}", "start": {start}}}')
            else:
                yield p.TextDelta(text="done")
            yield p.Finished(stop_reason="stop")

    agent = Agent(model=Reads(), tools=[dump], budgets=FREE, context=Context(observation_bytes=4_000))
    result = agent.run_sync("Do it.", store=stage.store)
    # then it was shown a bounded excerpt, what it read follows on, and the log has the whole
    assert result.answer == "done"
    excerpt, piece = (request.messages[-1] for request in said[1:])
    assert len(encode(excerpt)) <= 4_000
    assert len(encode(piece)) <= 4_000
    (whole,) = (record.fact.result for record in result.records if record.type == "tool_succeeded" and record.call == "t1.1")
    assert whole == LONG[kind]
    text = whole if isinstance(whole, str) else encode(whole).decode()
    assert text.startswith(excerpt.content["beginning"] + piece.content["text"])
    assert text.endswith(excerpt.content["end"])


# -- B129


def test_B129_many_results_share_the_room_and_each_keeps_its_place(stage):
    # given seven results of 2,000 tokens and a window of 10,000
    script = [turn(*range(7), size=8_000), {"text": "done"}]
    budgets = Budgets(max_cost_usd=None, max_output_tokens=1_000)
    result = stage.play(script, [look], budgets=budgets, context=Context(window_tokens=10_000), policy=Policy(parallel_tools=7))
    # then the request fits, every call has its result in its order, and all have an equal share (the same in the log that is derived again: the stage looks)
    assert result.answer == "done"
    request = stage.requests()[1]
    assert tokens(request) <= 10_000
    shown = [message for message in request.messages if message.role == "tool"]
    assert [message.call_id for message in shown] == [f"t1.{n}" for n in range(1, 8)]
    sizes = [len(encode(message)) for message in shown]
    assert max(sizes) - min(sizes) < 50
    assert sum(sizes) > 25_000
    assert audit(stage.store, result.id).ok
