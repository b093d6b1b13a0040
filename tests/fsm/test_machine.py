"""The machine of `transitions` and its compiled rows are one grammar; nothing moves that it does not allow."""

import random
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from transitions import MachineError

from refold.events import facts as f, settings as recorded
from refold.events.codec import FACTS, Stamp
from refold.events.words import STATES, CallId, RunId, State
from refold.fsm import machine
from refold.fsm.machine import EDGES, MACHINE, TABLE, Cursor, Illegal, Refused, Row, build, compile_rows, empty, fire, fire_compiled
from refold.testing.trajectory import START, Act, Trajectory

STAMP = Stamp(at=START, driver="tester")
LOOK = Act("look", '{"at":"north"}')
PAIRS = list(product(STATES, FACTS))


class Free:
    """What `transitions` moves, where nothing is folded."""

    def __init__(self, state: str) -> None:
        self.state, self.taken = state, 0


def guarded_by(answer: bool) -> Any:
    """The machine of the same rows, in which every guard gives the same answer and the hook only counts."""

    def count(event: Any) -> None:
        event.model.taken += 1

    built = build(TABLE)
    built.before_state_change = [count]
    for event in built.events.values():
        for (transition,) in event.transitions.values():
            for condition in transition.conditions:
                condition.func = lambda _event: answer
    return built


def moved(engine: Any, state: str, trigger: str) -> tuple[bool, str, int]:
    model = Free(state)
    try:
        done = engine.events[trigger].trigger(model, fact=None)
    except MachineError:
        done = False
    return done, model.state, model.taken


def test_machine_and_compiled_rows_agree_on_every_state_and_trigger() -> None:
    # given guards that always hold, and guards that never do
    open_doors, shut_doors = guarded_by(True), guarded_by(False)
    # then a pair moves exactly where there is a row, to where the row says, through the hook once
    for state, trigger in PAIRS:
        row = EDGES[state].get(trigger)
        expected = (True, row.target, 1) if row is not None else (False, state, 0)
        assert moved(open_doors, state, trigger) == expected, (state, trigger)
        free = row is not None and not row.requires and not row.limits
        assert moved(shut_doors, state, trigger) == (expected if free else (False, state, 0)), (state, trigger)


def test_the_rows_are_guarded_alike_in_both() -> None:
    for state, trigger in PAIRS:
        row = EDGES[state].get(trigger)
        transitions = MACHINE.events[trigger].transitions.get(state, [])
        names = [condition.func.__name__ for transition in transitions for condition in transition.conditions]
        assert names == ([guard.__name__ for guard in (*row.requires, *row.limits)] if row is not None else [])


def outcome(move: Any, run: Any, fact: f.Fact) -> tuple[Any, ...]:
    cursor = Cursor(run, STAMP)
    try:
        move(cursor, fact)
    except (Illegal, Refused) as error:
        return type(error), str(error), cursor.state, cursor.run, cursor.edges
    return "moved", "", cursor.state, cursor.run, cursor.edges


def played(seed: int) -> Trajectory:
    """A run of random but legal moves."""
    choose = random.Random(seed)
    run = Trajectory().start()
    for number in range(40):
        if run.run.state == "done":
            break
        started = [call.id for call in run.run.calls if call.phase == "started"]
        waiting = [call.id for call in run.run.calls if call.phase == "waiting"]
        word = choose.choice(["attach", "say", *["go on"] * 6, *["cancel"] * (choose.random() < 0.1)])
        if word == "say":
            run.say("hello")
        elif word == "cancel":
            run.cancel()
        elif word == "go on" and started:
            end_call(run, started[0], choose)
        elif word == "go on" and waiting:
            run.approve(waiting[0]) if choose.random() < 0.5 else run.deny(waiting[0])
        elif word == "go on" and run.run.asked == "yes":
            respond(run, number, choose)
        else:
            run.attach()
    return run


def end_call(run: Trajectory, call: str, choose: random.Random) -> None:
    match choose.randrange(3):
        case 0:
            run.fail(call, retryable=True)
        case 1:
            run.fail(call, "timeout")
        case _:
            run.succeed(call)


def respond(run: Trajectory, number: int, choose: random.Random) -> None:
    match choose.randrange(5):
        case 0:
            run.answer(complaints=(str(number),))
        case 1:
            run.interrupt("invalid")
        case 2:
            run.model_fails()
        case _:
            run.calls(Act("look", str(number), retries=1), Act("send", str(number), effect="side_effect", approval=choose.random() < 0.5))


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_to_fire_do_the_same_on_every_step_of_a_random_run(seed: int) -> None:
    # given a run, and for each of its states every fact that it ever had
    run = played(seed)
    facts = {record.type: record.fact for record in run.records}
    state = empty(RunId(run.id))
    for record in run.records:
        for fact in (record.fact, *facts.values()):
            # then both move alike, or refuse in the same words
            assert outcome(fire, state, fact) == outcome(fire_compiled, state, fact), (record.position, fact.TAG)
        state = machine.step(state, record)
    assert run.audit().ok


def test_what_fails_in_the_hook_leaves_everything_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a hook that cannot do its work
    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(machine, "evolve", full)
    run = Trajectory(now=1).run
    for move in (fire, fire_compiled):
        cursor = Cursor(run, STAMP)
        # when a legal fact is fired
        with pytest.raises(OSError, match="no space left"):
            move(cursor, f.RunStarted(goal="", setup=setup()))
        # then nothing has moved
        assert (cursor.state, cursor.run, cursor.edges) == ("idle", run, [])


def setup() -> f.Setup:
    return f.Setup(engine=1, seed="", budgets=recorded.Budgets(), policy=recorded.Policy())


def test_an_illegal_move_names_state_trigger_and_what_would_be_legal() -> None:
    run = Trajectory().start()
    before = run.run
    with pytest.raises(Illegal) as caught:
        run.tell(f.ToolSucceeded(call=CallId("t1.1"), result=1))
    error = caught.value
    assert (error.state, error.trigger) == ("streaming_model", "tool_succeeded")
    assert error.legal == sorted(EDGES["streaming_model"])
    assert all(word in str(error) for word in ("streaming_model", "tool_succeeded", "final_proposed", "tool_calls_requested"))
    # and nothing is appended
    assert run.run is before


def test_a_move_whose_structure_does_not_fit_says_what_it_requires() -> None:
    run = Trajectory().start()
    with pytest.raises(Illegal, match="run_started is not legal in streaming_model"):
        run.tell(f.RunStarted(goal="again", setup=setup()))
    with pytest.raises(Illegal, match="it requires next epoch"):
        run.tell(f.DriverAttached(epoch=7, who="x", host="y"))


def test_done_takes_nothing_but_notes() -> None:
    assert EDGES["done"].keys() == {"late_outcome", "driver_detached", "sealed", "erased"}
    assert {row.target for row in EDGES["done"].values()} == {"done"}


def test_the_model_is_asked_only_from_idle_or_after_results() -> None:
    entries = {
        (state, trigger)
        for state, trigger in PAIRS
        if state != "streaming_model" and trigger in EDGES[state] and EDGES[state][trigger].target == "streaming_model"
    }
    assert entries == {("idle", "model_requested"), ("injecting_tool_results", "model_requested")}


def test_every_fact_is_a_row_and_every_row_a_fact() -> None:
    assert {row.trigger for row in TABLE} == FACTS.keys() == MACHINE.events.keys()
    assert {cls.TAG for cls in get_args(f.Fact)} == FACTS.keys()
    assert {row.kind == "input" for row in TABLE if FACTS[row.trigger].INPUT} == {True}
    assert {row.kind == "derived" for row in TABLE if not FACTS[row.trigger].INPUT} == {True}


NOWHERE: Any = "nowhere"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ((*TABLE, Row("user_said", NOWHERE, None, "input")), "names a state that does not exist"),
        ((*TABLE[:-1], TABLE[-1]._replace(target=NOWHERE)), "nowhere"),
        ((*TABLE, TABLE[3]), "two rows for"),
        ((*TABLE, Row("made_up", "idle", None, "input")), "made_up is the tag of no fact"),
        (tuple(row for row in TABLE if row.trigger != "tool_started"), "no row for tool_started"),
    ],
    ids=["unknown source", "dangling edge", "duplicate row", "unknown fact", "missing fact"],
)
def test_a_table_that_is_not_whole_is_refused(table: tuple[Row, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(table)


def test_a_callback_beside_the_hook_is_refused_when_rows_are_compiled() -> None:
    built = build(TABLE)
    built.events["user_said"].transitions["idle"][0].before.append("something")
    with pytest.raises(AssertionError, match="callback beside the hook"):
        compile_rows(built, TABLE)


def test_a_record_that_says_another_edge_than_the_table_is_not_folded() -> None:
    run = Trajectory().start()
    record = run.records[-1]
    other: State = "done"
    with pytest.raises(Illegal, match="idle -> done"):
        machine.step(machine.step(machine.step(empty(run.id), run.records[0]), run.records[1]), msgspec.structs.replace(record, target=other))
