"""Crash recovery: a run goes on where it was, wherever it was left."""

from collections import Counter
from itertools import pairwise
from typing import Any

from refold import tool
from refold.events.memory import MemoryLog
from refold.testing.crash import RUN, Trial, losses, survive
from refold.testing.faults import Fate


def test_B046_resuming_goes_on_behind_what_was_asked_and_asks_nothing_again(stage):
    # given a run of six requests and five calls, which pauses at the fourth
    ran: Counter[int] = Counter()

    def fourth(arguments: dict[str, Any]) -> bool:
        return bool(arguments["n"] == 4)

    @tool(approval=fourth)
    def act(n: int) -> str:
        """Acts."""
        ran[n] += 1
        return f"did {n}"

    turns = [*({"calls": [{"name": "act", "arguments": {"n": n}}]} for n in range(1, 6)), {"text": "done"}]
    stage.play(turns, [act], run_id="r")
    first = [request.number for request in stage.requests()]
    # when it is approved and resumed in another process
    stage.store.approve_sync("r")
    result = stage.agent(turns, [act]).resume_sync("r", store=stage.store)
    # then the next request is the fifth, there are six in all, and every call ran once
    assert first == [1, 2, 3, 4]
    assert [request.number for request in stage.requests()] == [5, 6]
    assert (result.status, result.turns) == ("completed", 6)
    assert ran == dict.fromkeys(range(1, 6), 1)


def three_steps(stage: Any, ran: Counter[str]) -> Any:
    """An agent of some thirty records: reads at once, a retry, a rejected answer."""

    @tool(effect="read", concurrent=True)
    async def look(at: str) -> str:
        """Looks."""
        ran[at] += 1
        return f"saw {at}"

    @tool(effect="idempotent")
    def put(name: str) -> str:
        """Puts."""
        ran[name] += 1
        return f"{name} is there"

    def polite(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
        return [] if "please" in answer else ["say please"]

    turns = [
        {"calls": [{"name": "look", "arguments": {"at": at}} for at in ("left", "right")]},
        {"calls": [{"name": "put", "arguments": {"name": "cup"}}]},
        {"text": "done"},
        {"text": "done, please"},
    ]
    return stage.agent(turns, [look, put], validators=[polite])


def test_B147_a_run_that_was_left_between_any_two_batches_is_driven_to_the_same_end(stage):
    # given a run of some thirty records, and what is left of it behind each batch
    ran: Counter[str] = Counter()
    twin = three_steps(stage, ran).run_sync("Do it.", store=stage.store, run_id="r")
    records = twin.records
    ends = [record.position for record, after in pairwise(records) if after.batch != record.batch]
    assert len(records) >= 25
    assert len(ends) >= 6
    for end in ends:
        store = stage.cut("r", end)
        # when a fresh worker takes it up
        result = three_steps(stage, ran).resume_sync("r", store=store)
        # then it comes to the end that its twin came to, and nobody holds it
        assert (result.status, result.answer, result.turns, result.tool_calls) == (twin.status, twin.answer, twin.turns, twin.tool_calls), end
        assert (result.run.driver, store.log.holder("r")) == (None, None)
        head = store.log.head("r")
        # and once more changes nothing
        assert three_steps(stage, ran).resume_sync("r", store=store).status == "completed"
        assert store.log.head("r") == head


def test_B147_a_worker_that_dies_behind_any_append_leaves_a_run_that_the_next_one_ends(stage):
    # given a worker that dies behind its nth append, for every n
    def world() -> Any:
        return three_steps(stage, Counter())

    twin = survive(Trial(world), MemoryLog()).outcome
    nth, came = 1, True
    while came:
        # when a fresh worker takes the run up
        log = MemoryLog()
        survived = survive(Trial(world), log, Fate("appended", nth))
        # then nothing is lost against the twin, and nobody holds it
        assert list(losses(survived, twin)) == [], nth
        assert log.holder(RUN) is None
        nth, came = nth + 1, survived.fate.came
    assert nth > 6
    stage.models.clear()  # their logs are not on this stage
