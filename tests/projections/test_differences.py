"""Two runs side by side: which turns belong together, what is another in them, and that nothing else is."""

import time
from collections.abc import Sequence
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold import Agent, Budgets, Policy, ScriptedModel, Store, diff, open_store, tool
from refold.events.codec import Record
from refold.projections.differences import Pair, differences
from refold.projections.turns import TurnView
from refold.runtime.diff import compare, course_of
from refold.runtime.journal import UnknownRun
from refold.runtime.transfer import import_file, parse

LOGS = sorted((Path(__file__).parents[1] / "logs").glob("v*/*.jsonl"))


def records(path: Path) -> list[Record]:
    store = open_store("memory:")
    return list(store.read(import_file(store, parse(path.read_bytes(), path.name))))


# -- runs of one agent


@tool(effect="read")
def look(at: str, far: bool = False) -> dict[str, Any]:
    """Looks."""
    return {"seen": at}


def looks(*places: str) -> list[dict[str, Any]]:
    return [{"calls": [{"name": "look", "arguments": {"at": place}}]} for place in places]


DONE = {"text": "Done."}


def run(store: Store, name: str, *turns: dict[str, Any], goal: str = "Look.", tools: Sequence[Any] = (look,), **settings: Any) -> str:
    agent = Agent(model=ScriptedModel(list(turns)), tools=list(tools), budgets=Budgets(**settings), instructions="You look around.")
    return agent.run_sync(goal, store=store, run_id=name).id


@pytest.fixture
def store() -> Store:
    return open_store("memory:")


def verdicts(pairs: Sequence[Pair]) -> list[tuple[int | None, int | None, str]]:
    return [(pair.left, pair.right, "minor" if pair.minor else pair.verdict) for pair in pairs]


def fields(pair: Pair) -> dict[str, tuple[Any, Any]]:
    return {difference.field: (difference.left, difference.right) for difference in pair.differences if not difference.minor}


def test_two_runs_that_did_the_same_are_the_same_whatever_their_ids_and_times(store: Store) -> None:
    run(store, "a", *looks("north", "south"), DONE)
    run(store, "b", *looks("north", "south"), DONE)
    found = diff(store, "a", "b")
    assert found.same
    assert verdicts(found.turns) == [(n, n, "same") for n in range(4)]
    assert (found.left.run_id, found.right.run_id, found.shared) == ("a", "b", None)


def test_the_models_own_spelling_of_arguments_and_ids_of_its_provider_are_no_difference(store: Store) -> None:
    # given calls that are the same to their tool, so that prompts are not the same and nobody decided otherwise
    run(store, "a", {"calls": [{"name": "look", "arguments": '{"at":"x"}', "id": "call_1"}], "usage": {"input_tokens": 10, "output_tokens": 1}}, DONE)
    run(
        store,
        "b",
        {"calls": [{"name": "look", "arguments": '{ "far": false, "at": "x" }', "id": "call_2"}], "usage": {"input_tokens": 10, "output_tokens": 1}},
        DONE,
    )
    found = diff(store, "a", "b")
    assert [pair.same_prompt for pair in found.turns] == [None, True, False]
    assert not any(fields(pair) for pair in found.turns)


def test_a_turn_more_in_one_run_does_not_make_the_rest_look_changed(store: Store) -> None:
    run(store, "a", *looks("north", "east", "south"), DONE)
    run(store, "b", *looks("north", "west", "east", "south"), DONE)
    found = diff(store, "a", "b")
    assert verdicts(found.turns) == [(0, 0, "same"), (1, 1, "same"), (None, 2, "only_right"), (2, 3, "minor"), (3, 4, "minor"), (4, 5, "minor")]
    (call,) = fields(found.turns[2]).values()
    assert call == (None, {"name": "look", "arguments": {"at": "west", "far": False}, "kind": "success", "result": {"seen": "west"}})


def test_what_was_decided_otherwise_is_said_field_by_field(store: Store) -> None:
    run(store, "a", {"text": "I look.", **looks("north")[0]}, {"text": "It is cold."})
    run(store, "b", {"text": "I look.", **looks("south")[0]}, {"text": "It is warm."})
    _, first, last = diff(store, "a", "b").turns
    assert first.same_prompt
    assert fields(first) == {"calls[0].arguments.at": ("north", "south"), "calls[0].result.seen": ("north", "south")}
    assert fields(last) == {"answer": ("It is cold.", "It is warm.")}


def test_with_the_same_prompt_two_requests_are_the_same_turn_whatever_came_of_it(store: Store) -> None:
    run(store, "a", *looks("north", "east", "south"), DONE)
    run(store, "b", *looks("north"), {"text": "Enough."})
    found = diff(store, "a", "b")
    assert verdicts(found.turns) == [(0, 0, "same"), (1, 1, "same"), (2, 2, "changed"), (3, None, "only_left"), (4, None, "only_left")]
    assert found.turns[2].same_prompt
    assert fields(found.turns[2])["answer"] == (None, "Enough.")


def test_goal_model_and_settings_are_turn_0(store: Store) -> None:
    @tool
    def send(to: str) -> str:
        """Sends."""
        return to

    run(store, "a", DONE, max_turns=5)
    run(store, "b", DONE, max_turns=6, goal="Look again.", tools=(look, send))
    begun, turn = diff(store, "a", "b").turns
    found = fields(begun)
    assert found["goal"] == ("Look.", "Look again.")
    assert found["settings.budgets.max_turns"] == (5, 6)
    assert found["tools.send"][0] is None
    assert found["tools.send"][1]["name"] == "send"
    # and that prompts are others since is no news
    assert not fields(turn)


def test_the_same_call_that_came_out_otherwise_is_another_outcome(store: Store) -> None:
    answers = iter(["sunny", "rainy"])

    @tool(effect="read")
    def weather(city: str) -> dict[str, str]:
        """The weather."""
        return {"city": city, "sky": next(answers)}

    for name in ("a", "b"):
        run(store, name, {"calls": [{"name": "weather", "arguments": {"city": "Ulm"}}]}, DONE, tools=(weather,))
    _, first, last = diff(store, "a", "b").turns
    assert fields(first) == {"calls[0].result.sky": ("sunny", "rainy")}
    assert (last.same_prompt, last.verdict) == (False, "same")


def test_errors_retries_and_how_a_run_ended_are_differences(store: Store) -> None:
    slow = {"error": {"type": "overloaded", "message": "too busy", "retryable": True, "retry_after_s": 0}}
    run(store, "a", slow, *looks("north"), DONE)
    run(store, "b", *looks("north"), *looks("south"), max_turns=2)
    _, first, last = diff(store, "a", "b").turns
    assert fields(first)["errors"] == (["overloaded: too busy"], None)
    assert fields(last)["ended"][1]["reason"] == "max_turns"


def test_cost_alone_is_a_change_and_marked_as_minor(store: Store) -> None:
    run(store, "a", {**DONE, "cost_usd": "0.01"})
    run(store, "b", {**DONE, "cost_usd": "0.03"})
    found = diff(store, "a", "b")
    assert not found.same
    assert [(d.field, d.left, d.right) for d in found.turns[1].differences] == [("cost_usd", "0.01", "0.03")]
    assert found.turns[1].minor


def test_a_continuation_begins_with_another_history(store: Store) -> None:
    agent = Agent(model=ScriptedModel([DONE]), tools=[look])
    first = agent.run_sync("Look.", store=store, run_id="a")
    Agent(model=ScriptedModel([DONE]), tools=[look]).continue_run_sync(first.id, "And now?", store=store, new_id="b")
    found = diff(store, "a", "b")
    assert fields(found.turns[0]).keys() == {"goal", "history"}
    assert found.right.origin is not None
    assert (found.right.origin.kind, found.right.origin.parent) == ("continuation", "a")


def test_a_run_and_its_own_beginning_share_their_records(store: Store) -> None:
    whole = list(store.read(run(store, "a", *looks("north", "south"), DONE)))
    at = next(record.position for record in whole if record.turn == 2)
    found = compare(course_of(whole[:at]), course_of(whole))
    assert found.shared is not None
    assert (found.shared.position, found.shared.turn) == (at, 2)


def requests(store: Store, name: str) -> list[int]:
    return [record.position for record in store.read(name) if record.type == "model_requested"]


def test_a_fork_shares_its_parents_past_and_parts_from_it_where_it_decides_otherwise(store: Store) -> None:
    run(store, "a", *looks("north", "south"), DONE)
    at = requests(store, "a")[1]
    Agent(model=ScriptedModel([{"text": "Enough."}]), tools=[look], instructions="You look around.").fork_sync("a", at, store=store, new_id="b")
    found = diff(store, "a", "b")
    assert found.shared is not None
    assert (found.shared.position, found.shared.turn) == (at, 2)
    assert found.right.origin is not None
    assert (found.right.origin.kind, found.right.origin.parent, found.right.origin.at) == ("fork", "a", at)
    assert verdicts(found.turns) == [(0, 0, "same"), (1, 1, "same"), (2, 2, "changed"), (3, None, "only_left")]
    assert found.turns[2].same_prompt


def test_what_a_fork_that_was_told_something_did_instead_stands_beside_it(store: Store) -> None:
    # given a fork that calls once where its parent called two tools, the second of them the same tool with other arguments
    other = {"calls": [{"name": "look", "arguments": {"at": "up"}}, {"name": "look", "arguments": {"at": "down"}}]}
    run(store, "a", *looks("north"), other, *looks("south"), DONE)
    again = Agent(model=ScriptedModel([*looks("east"), DONE]), tools=[look], instructions="You look around.")
    again.fork_sync("a", requests(store, "a")[1], store=store, new_id="b", message="Be quick.")
    # then the first turns that were decided apart are one turn
    assert verdicts(diff(store, "a", "b").turns)[2:4] == [(2, 2, "changed"), (3, None, "only_left")]


def test_what_a_fork_changed_is_in_the_turn_in_which_it_did(store: Store) -> None:
    # given forks of a run, where the results of its first turn are in, and in the request that shows them
    run(store, "a", *looks("north", "south"), DONE)
    shown = requests(store, "a")[1]
    for name, at in (("between", shown - 1), ("within", shown)):
        changed = Agent(model=ScriptedModel([*looks("south"), DONE]), tools=[look], instructions="Be brief.", budgets=Budgets(max_turns=5))
        changed.fork_sync("a", at, store=store, new_id=name, edits={"t1.1": {"seen": "a dragon"}}, message="Beware.")
        # then the result is another in the first turn, and the second was asked otherwise, and neither did the rest go another way
        found = diff(store, "a", name)
        assert fields(found.turns[1]) == {"calls[0].result.seen": ("north", "a dragon")}
        assert fields(found.turns[2]) == {
            "instructions": ("You look around.", "Be brief."),
            "said": (None, ["Beware."]),
            "settings.budgets.max_turns": (12, 5),
        }
        assert not found.turns[2].same_prompt
        assert [fields(pair) for pair in found.turns[3:]] == [{}]


def settled(store: Store, name: str) -> int:
    """Where the last results of a run are in."""
    return next(record.position for record in reversed(list(store.read(name))) if record.type == "tool_results_injected")


def test_a_turn_that_forks_of_forks_share_has_the_settings_it_was_made_under(store: Store) -> None:
    # given a run and three forks, each of the one before where its last results are in, and each otherwise in everything
    @tool(effect="read", name="look")
    def far(at: str, far: bool = True) -> dict[str, Any]:
        """Looks."""
        return {"seen": at}

    run(store, "f0", *looks("north"), DONE)
    for n, (tools, instructions) in enumerate([((far,), "Look far."), ((look,), "Be brief."), ((far,), "Be quick.")], 1):
        changed = Agent(
            model=ScriptedModel([*looks(f"place {n}"), DONE]),
            tools=list(tools),
            instructions=instructions,
            budgets=Budgets(max_turns=12 - n),
            policy=Policy(cycle_repeats=3 + n),
        )
        changed.fork_sync(f"f{n - 1}", settled(store, f"f{n - 1}"), store=store, new_id=f"f{n}")
    # when each is compared with each
    for left, right in permutations(["f0", "f1", "f2", "f3"], 2):
        found = diff(store, left, right)
        assert found.shared is not None
        # then what both share is the same, and the first turn behind the split says what was set otherwise in it
        shared = found.shared.turn
        assert verdicts(found.turns)[: shared + 1] == [(n, n, "same") for n in range(shared + 1)]
        behind = [field for pair in found.turns[shared + 1 :] for field in fields(pair)]
        assert {"instructions", "settings.budgets.max_turns", "settings.policy.cycle_repeats"} < set(behind)


def test_what_was_set_otherwise_for_a_turn_that_one_run_has_alone_is_said_in_it(store: Store) -> None:
    # given a fork under other limits that makes a turn more, and then ends as its parent did
    run(store, "a", *looks("north"), DONE)
    longer = Agent(model=ScriptedModel([*looks("south"), DONE]), tools=[look], instructions="You look around.", budgets=Budgets(max_turns=6))
    longer.fork_sync("a", settled(store, "a"), store=store, new_id="b")
    # then the limits are said of the turn that has no other beside it
    found = diff(store, "a", "b")
    assert verdicts(found.turns)[2:] == [(None, 2, "only_right"), (2, 3, "minor")]
    assert fields(found.turns[2])["settings.budgets.max_turns"] == (12, 6)


def test_an_unknown_run_is_said_so(store: Store) -> None:
    with pytest.raises(UnknownRun, match="nobody"):
        diff(store, run(store, "a", DONE), "nobody")


# -- logs of every kind of run


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_run_is_the_same_as_itself(path: Path) -> None:
    held = records(path)
    found = compare(course_of(held), course_of(held))
    assert found.same
    assert [pair.left for pair in found.turns] == list(range(found.left.turns + 1))


def mirrored(pairs: Sequence[Pair]) -> list[Any]:
    other = {"only_left": "only_right", "only_right": "only_left"}
    return [(p.right, p.left, other.get(p.verdict, p.verdict), p.same_prompt, [(d.field, d.right, d.left) for d in p.differences]) for p in pairs]


@pytest.mark.parametrize(("one", "other"), list(pairwise(LOGS)), ids=lambda path: path.stem)
def test_whichever_run_comes_first_the_differences_are_the_same(one: Path, other: Path) -> None:
    left, right = records(one), records(other)
    straight = compare(course_of(left), course_of(right)).turns
    assert mirrored(compare(course_of(right), course_of(left)).turns) == [
        (p.left, p.right, p.verdict, p.same_prompt, [(d.field, d.left, d.right) for d in p.differences]) for p in straight
    ]


# -- alignment alone


def views(decisions: Sequence[str]) -> list[TurnView]:
    return [TurnView(number=0), *(TurnView(number=n, decision=word, shape=word[:1], fields={"answer": word}) for n, word in enumerate(decisions, 1))]


words = st.lists(st.sampled_from(["a1", "a2", "b1", "b2", "c"]), max_size=12)


@given(words, words)
def test_every_turn_has_its_place_once_and_in_order(left: list[str], right: list[str]) -> None:
    pairs = differences(views(left), views(right))
    assert [pair.left for pair in pairs if pair.left is not None] == list(range(len(left) + 1))
    assert [pair.right for pair in pairs if pair.right is not None] == list(range(len(right) + 1))
    assert all((pair.verdict == "same") == (pair.left is not None and pair.right is not None and not pair.differences) for pair in pairs)
    assert mirrored(differences(views(right), views(left))) == [
        (p.left, p.right, p.verdict, p.same_prompt, [(d.field, d.left, d.right) for d in p.differences]) for p in pairs
    ]


@given(words, st.data())
def test_a_run_with_a_turn_more_has_just_that_turn_alone(decisions: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(decisions)))
    pairs = differences(views(decisions), views([*decisions[:place], "new", *decisions[place:]]))
    assert [pair.verdict for pair in pairs if pair.verdict != "same"] == ["only_right"]


LONG = 10_000


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([f"a{n}" for n in range(LONG)], [f"b{n}" for n in range(LONG)]),
        (["poll"] * LONG, ["x", *["poll"] * LONG, "y"]),
        (["x", *["poll"] * LONG], [*["poll"] * LONG, "y"]),
        ([f"a{n}" for n in range(LONG)], [f"a{n}" if n % 2 else f"b{n}" for n in range(LONG)]),
        ([f"a{n // 2}" for n in range(LONG)], [f"a{LONG - n}" for n in range(LONG)]),
        (["ab"[n * n % 7 % 2] for n in range(LONG)], ["ab"[n * n % 11 % 2] for n in range(LONG)]),
    ],
    ids=["nothing in common", "the same over and over", "shifted by one", "every second", "the other way round", "two words"],
)
def test_long_runs_are_aligned_in_a_moment(left: list[str], right: list[str]) -> None:
    began = time.process_time()
    pairs = differences(views(left), views(right))
    assert sum(pair.left is not None for pair in pairs) == len(left) + 1
    assert time.process_time() - began < 10  # a comparison of each with each takes minutes
