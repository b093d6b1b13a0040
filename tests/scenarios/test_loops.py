"""Loops: a model that goes in circles is told, blocked and ended by the runtime, and healthy runs are not."""

import asyncio
import json
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from refold import Agent, Budgets, Policy, fold, show, tool
from refold.events import facts as f
from refold.runtime import ports as p
from refold.runtime.cli.main import perform
from refold.runtime.store import NotAsked
from refold.testing.trajectory import Act, Trajectory


def look_tool(ran: list[str], **options: Any) -> Any:
    @tool(effect="read", **options)
    def look(at: str) -> dict[str, Any]:
        """Look."""
        ran.append(at)
        return {"seen": at, "shown_at": len(ran)}

    return look


def look(at: Any, text: str = "") -> dict[str, Any]:
    return {"calls": [{"name": "look", "arguments": at if isinstance(at, str) and at.startswith("{") else {"at": at}}], **({"text": text} if text else {})}


def test_B073_identical_calls_are_told_then_blocked_then_end_the_run(stage, results_of):
    # given default settings and a model that repeats one call for ever, though a field for display differs each time
    ran: list[str] = []
    # when
    result = stage.play([look("a")] * 200, [look_tool(ran)])
    # then it runs once, the repeat is refused with a reason, and the run ends for looping
    results = results_of(result)
    assert ran == ["a"]
    assert [kind for kind, _ in results.values()] == ["success", "duplicate_action", "duplicate_action"]
    assert "already ran 1 time" in results["t2.1"][1]["message"]
    assert "change the plan" in results["t2.1"][1]["message"]
    assert (result.status, result.reason, result.turns) == ("failed", "cycle", 3)
    assert "repeated 3 times" in result.detail
    # and the log has the evidence
    blocked = [record for record in result.records if record.type == "duplicate_action_blocked"]
    assert [record.data["times"] for record in blocked] == [1, 3]


def test_B073_on_the_command_line_a_loop_is_a_failure(tmp_path, monkeypatch, capsys):
    # given the same on the command line
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"calls": [{"name": "calculate", "arguments": {"expression": "1 + 1"}}]}] * 200))
    # when
    code = perform(["run", "Count.", "--model", f"script:{script}", "--json", "--quiet"])
    result = json.loads(capsys.readouterr().out)
    # then it fails, with the reason
    assert (code, result["status"], result["reason"], result["tool_calls"]) == (1, "failed", "cycle", 1)


def test_B073_a_repeatable_tool_is_left_alone(stage):
    # given a tool that is meant to be repeated, such as one that waits
    ran: list[str] = []
    # when it is called five times and then the model answers
    result = stage.play([look("a")] * 5 + [{"text": "done"}], [look_tool(ran, repeatable=True)])
    # then nothing is blocked
    assert (result.status, len(ran)) == ("completed", 5)


def test_B076_after_a_loop_the_user_can_still_talk_and_counting_starts_again(stage):
    # given a model that was blocked for repeating itself, and a user who says so before it repeats again
    ran: list[str] = []
    turns = [look("a"), look("a"), look("a"), {"text": "done"}]

    class Model:
        spec = "told"
        inner = stage.scripted(turns)

        def stream(self, request: p.Request) -> Any:
            if request.turn == 2:
                stage.store.say_sync("told", "try another way")
            return self.inner.stream(request)

    # when the model calls the same tool with the same arguments once more
    result = Agent(model=Model(), tools=[look_tool(ran)]).run_sync("Do it.", store=stage.store, run_id="told")
    # then the call runs, since the user spoke, and the run is done
    assert ran == ["a", "a"]
    assert result.status == "completed"


def test_B076_a_run_that_ended_in_a_loop_says_how_to_go_on(stage):
    # given a run that was ended for looping
    ended = stage.play([look("a")] * 3, [look_tool([])])
    assert ended.reason == "cycle"
    # when the user speaks to it
    with pytest.raises(NotAsked, match=f"refold continue {ended.id}"):
        stage.store.say_sync(ended.id, "try another way")
    # then nothing was appended, and the way to go on was named


def test_B076_a_continuation_counts_afresh():
    # given a run that continues one that looped
    played = Trajectory("again")
    ended = Trajectory("first")
    ended.start()
    setup = ended.run.begun
    played.tell(
        f.RunContinued(
            parent=ended.id,
            at=ended.run.position,
            head=ended.run.head,
            goal="try another way",
            message="try another way",
            transcript=ended.run.head,
            size=10,
            setup=setup,
        ),
        f.DriverAttached(epoch=1, who="w", host="h"),
    )
    # when the model makes the same call once more
    tags = played.calls(Act("look", '{"at":"a"}'))
    # then it starts
    assert "tool_started" in tags
    assert played.run.decisions != ()


def test_B077_asking_what_a_run_does_changes_nothing(stage, twin):
    # given two runs that go the same way, one of them looked at all the time
    def looked_at(store: Any) -> Any:
        @tool(effect="read", repeatable=True)
        def look(at: str) -> str:
            """Look."""
            for _ in range(100):
                records = list(store.read("r"))
                fold(records)
                show(store, "r")
            return at

        return look

    @tool(effect="read", repeatable=True, name="look")
    def not_looked_at(at: str) -> str:
        """Look."""
        return at

    turns = [look("a"), look("a"), look("b"), look("a"), {"text": "done"}]
    watched, alone = stage.store, stage.another_store()
    # when
    one = stage.agent(turns, [looked_at(watched)]).run_sync("Do it.", store=watched, run_id="r")
    other = stage.agent(turns, [not_looked_at]).run_sync("Do it.", store=alone, run_id="r")
    # then they have the same events
    assert twin(one.records) == twin(other.records)


SAME = ('{"at": "a", "deep": 1}', '{"deep":1,"at":"a"}', ' {\n"at" : "\\u0061" ,"deep":1 } ')


def test_B078_words_key_order_and_spaces_do_not_hide_a_repeat(stage, results_of):
    # given the same call in three spellings, each with another sentence before it
    ran: list[Any] = []

    @tool(effect="read")
    def look(at: str, deep: float) -> str:
        """Look."""
        ran.append((at, deep))
        return at

    turns = [{"text": f"Attempt {n}, this time for real.", "calls": [{"name": "look", "arguments": text}]} for n, text in enumerate(SAME)]
    # when
    result = stage.play(turns, [look])
    # then it ran once and the loop was seen
    assert ran == [("a", 1.0)]
    assert result.reason == "cycle"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"at": "a", "deep": 1}', '{"at": "a", "deep": 1.0}', True),  # a number of the tool's type is one value, however it is written
        (
            '{"at": "\\u00e9", "deep": 1}',
            '{"at": "e\\u0301", "deep": 1}',
            False,
        ),  # normal forms of a text are different texts: a file system may tell them apart
        ('{"at": "a", "deep": 1}', '{"at": "a ", "deep": 1}', False),
        ('{"at": "a", "deep": 1}', '{"at": "A", "deep": 1}', False),
        ('{"at": "a", "deep": 1}', '{"at": "a", "deep": 1.0000000000000002}', False),
    ],
)
def test_B078_different_values_are_never_merged(stage, results_of, one, other, same):
    # given two calls that are almost alike
    ran: list[Any] = []

    @tool(effect="read")
    def look(at: str, deep: float) -> str:
        """Look."""
        ran.append((at, deep))
        return at

    # when
    stage.play([{"calls": [{"name": "look", "arguments": one}]}, {"calls": [{"name": "look", "arguments": other}]}, {"text": "done"}], [look])
    # then only what has the same value counts as the same
    assert len(ran) == (1 if same else 2)


def test_B114_a_call_cut_by_the_length_limit_again_and_again_ends_the_run(stage):
    # given a model whose call is cut off every time
    ran: list[str] = []
    cut = {"calls": [{"name": "look", "arguments": '{"at": "a'}], "stop_reason": "length", "usage": {"input_tokens": 100, "output_tokens": 50}}
    # when it may take fifty turns
    result = stage.play([cut] * 50, [look_tool(ran)], budgets=Budgets(max_turns=50))
    # then it stops after three, nothing ran, and what was spent is visible
    assert ran == []
    assert (result.status, result.reason, result.turns) == ("failed", "max_model_errors", 3)
    assert "cut off at the output limit" in result.detail
    assert result.usage["reported"]["output_tokens"] == 150
    # and the model was told in between
    assert "none of its calls was run" in stage.requests()[1].messages[-1].text


def test_B188_repeating_a_refused_call_escalates_and_never_ends_as_a_success(stage, results_of):
    # given a call that passes the schema and fails a rule, ten times, and then a claim; the answer needs the tool to have succeeded

    def even(n: int) -> int:
        if n % 2:
            raise ValueError("must be even")
        return n

    @tool(effect="read")
    def take(n: Annotated[int, AfterValidator(even)]) -> int:
        """Take."""
        return n

    def took_something(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
        return [] if len(run.actions) else ["take must have succeeded once"]

    turns = [{"calls": [{"name": "take", "arguments": {"n": 3}}]}] * 10 + [{"text": "done"}]
    # when
    result = stage.play(turns, [take], validators=[took_something])
    # then the words change from the second time on, and the run fails long before the claim
    results = results_of(result)
    first, second = results["t1.1"][1]["message"], results["t2.1"][1]["message"]
    assert [kind for kind, _ in results.values()] == ["invalid_arguments"] * 3
    assert "do not repeat" not in first
    assert "2 times" in second
    assert "do not repeat it" in second
    assert (result.status, result.reason) == ("failed", "cycle")


def test_B188_different_refusals_are_different_kinds(stage, results_of):
    # given a call of an unknown tool, one that is denied, one that is invalid and one that fails
    @tool(approval="always")
    def send(to: str) -> str:
        """Send."""
        return "sent"

    @tool(effect="read")
    def broken(at: str) -> str:
        """Break."""
        raise ValueError("no such place")

    calls = [
        {"name": "frobnicate", "arguments": {}},
        {"name": "send", "arguments": {"to": "x"}},
        {"name": "broken", "arguments": {"at": 1}},
        {"name": "broken", "arguments": {"at": "y"}},
    ]
    agent = stage.agent([{"calls": calls}, {"text": "done"}], [send, broken])
    # when the human refuses
    waiting = agent.run_sync("Go.", store=stage.store)
    stage.store.deny_sync(waiting.id, reason="not to x")
    result = agent.resume_sync(waiting.id, store=stage.store)
    # then each is told in its own words, and only one of them speaks of permission
    results = results_of(result)
    assert [kind for kind, _ in results.values()] == ["unknown_tool", "approval_denied", "invalid_arguments", "execution_failed"]
    assert "there is no tool 'frobnicate'" in results["t1.1"][1]["message"]
    assert "send" in results["t1.1"][1]["message"]
    assert [("approv" in content["message"] or "permi" in content["message"]) for _, content in results.values()] == [False] * 4
    assert results["t1.2"][1]["message"] == "not to x"


def test_B188_a_claim_without_the_required_success_is_not_accepted(stage):
    # given a model that only ever claims
    def took_something(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
        return [] if len(run.actions) else ["take must have succeeded once"]

    # when
    result = stage.play([{"text": f"done {n}"} for n in range(20)], [], validators=[took_something], policy=Policy(wrap_up=False))
    # then it is never a success
    assert (result.status, result.answer) == ("stopped", None)


def test_B073_a_cycle_of_two_is_seen_too(stage):
    # given two calls in turn, though each has another result in between
    ran: list[str] = []
    # when
    result = stage.play([look("a"), look("b")] * 100, [look_tool(ran)])
    # then
    assert (result.reason, ran) == ("cycle", ["a", "b"])
    assert result.turns == 6


def test_B077_a_run_is_not_ended_by_being_asked(stage):
    # given a run that waits for a human and is asked for its state a thousand times
    agent = stage.agent([{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "done"}])
    waiting = agent.run_sync("Do it.", store=stage.store)
    before = waiting.position
    for _ in range(200):
        fold(stage.store.read(waiting.id))
        show(stage.store, waiting.id)
        stage.store.runs()
        asyncio.run(agent.resume(waiting.id, store=stage.store))
    # then nothing was appended
    assert fold(stage.store.read(waiting.id)).position == before
