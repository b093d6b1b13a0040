"""Every golden log can be forked everywhere: the fork begins where the run rests, goes on by itself, and is as sound as any other run."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import audit, open_store, replay, show
from refold.events import facts as f
from refold.events.codec import Record
from refold.events.words import RunId
from refold.fsm.effects import AskModel, ChooseContext, Effect, Reconcile, RunTool, Summarise, pending
from refold.projections.revisions import rules_of
from refold.projections.run import Run
from refold.runtime.forking import Asked, NoFork, fork
from refold.runtime.journal import Journal
from refold.runtime.show import prompt
from refold.runtime.store import Store, attach
from refold.runtime.transfer import export_lines, import_file, parse

LOGS = sorted(path for path in Path(__file__).parent.glob("v*/*.jsonl") if path.stem != "continued")  # whose history begins in another file
STEPS_MAX = 30


SOME = pytest.mark.parametrize("places", ["the first and the last", pytest.param("all", marks=pytest.mark.slow)])
EVERY_LOG = pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")


@EVERY_LOG
def test_a_golden_log_is_forked_where_it_rests_and_nowhere_else(path: Path) -> None:
    # given a log
    store, run_id, records = _imported(path)
    begun: dict[int, f.Fact] = {}
    for at in range(1, len(records) + 1):
        # when it is forked at a position
        try:
            made = fork(store.log, run_id, at, RunId(f"fork-{at}"))
        except NoFork:
            assert _rest_before(records, at) is None
            continue
        # then the fork begins where the run rests, and as every other does for which that is the place
        assert made.at == _rest_before(records, at)
        fact = next(store.read(made.run_id, after=made.at)).fact
        assert begun.setdefault(made.at, fact) == fact
    assert begun or len({record.batch for record in records}) == 1  # it ended at once, and rested nowhere


@SOME
@EVERY_LOG
def test_a_fork_of_a_golden_log_goes_on_and_is_sound(path: Path, places: str) -> None:
    # given a log
    store, run_id, records = _imported(path)
    before = b"".join(export_lines(store, run_id))
    for at in _rests(records, places):
        # when it is forked and driven on
        made = fork(store.log, run_id, at, RunId(f"fork-{at}"))
        journal = _driven(store, made.run_id)
        # then it comes to its end and is sound
        assert journal.run.state == "done" or journal.run.waits
        assert audit(store, made.run_id).ok, (at, audit(store, made.run_id))
        assert replay(store, made.run_id).divergence is None, (at, replay(store, made.run_id).divergence)
        shown = show(store, made.run_id)
        _assert_paired(shown["messages"])
        # and wherever it is taken, it is the same
        elsewhere = open_store("memory:")
        lines = b"".join(export_lines(store, made.run_id))
        import_file(elsewhere, parse(lines, "fork"))
        assert b"".join(export_lines(elsewhere, made.run_id)) == lines
        assert show(elsewhere, made.run_id) == shown
        assert audit(elsewhere, made.run_id).ok
    # and the parent is what it was
    assert b"".join(export_lines(store, run_id)) == before


def _imported(path: Path) -> tuple[Store, RunId, list[Record]]:
    store = open_store("memory:")
    run_id = RunId(import_file(store, parse(path.read_bytes(), path.name)))
    return store, run_id, list(store.read(run_id))


def _comparable(path: Path) -> tuple[Store, RunId, list[Record]]:
    """A run of which nothing else hangs on what its results say."""
    store, run_id, records = _imported(path)
    if _contents_decide(records):
        pytest.skip("what this run shows, or whether it goes on, hangs on its results")
    return store, run_id, records


def _rests(records: list[Record], places: str) -> list[int]:
    """Where a run rests."""
    found = sorted({rest for at in range(1, len(records) + 1) if (rest := _rest_before(records, at)) is not None})
    return found if places == "all" else sorted({*found[:1], *found[-1:]})


@SOME
@EVERY_LOG
def test_an_edited_result_is_all_that_the_next_request_shows_otherwise(path: Path, places: str) -> None:
    # given a log, forked where it rests
    store, run_id, records = _comparable(path)
    compared = 0
    called = [call.id for record in records if isinstance(record.fact, f.ToolCallsRequested) for call in record.fact.calls]
    for at in _rests(records, places):
        plain = _first_request(store, fork(store.log, run_id, at, RunId(f"plain-{at}")).run_id)
        for call in called:
            # when one result is another in a second fork
            try:
                made = fork(store.log, run_id, at, RunId(f"edited-{at}-{call.replace('.', '-')}"), Asked(edits={call: "another"}))
            except NoFork:
                continue
            # then the first requests of the two show the same but for that
            compared += 1
            edited = _first_request(store, made.run_id)
            assert edited == [{**message, "kind": "success", "content": "another"} if message.get("call_id") == call else message for message in plain]
    assert compared or not any(record.type == "tool_results_injected" for record in records)


@SOME
@EVERY_LOG
def test_a_message_to_a_fork_is_all_that_its_next_request_adds(path: Path, places: str) -> None:
    # given a log, forked where it rests
    store, run_id, records = _comparable(path)
    compared = 0
    for at in _rests(records, places):
        # when the user says something to a second fork
        try:
            made = fork(store.log, run_id, at, RunId(f"told-{at}"), Asked(message="Look twice."))
        except NoFork:
            continue
        # then its first request shows what that of the other does, and the message behind it
        plain = _first_request(store, fork(store.log, run_id, at, RunId(f"plain-{at}")).run_id)
        if not plain:
            continue  # some end or wait where they are forked
        compared += 1
        assert _first_request(store, made.run_id) == [*plain, {"role": "user", "text": "Look twice."}], at
    assert compared or records[-1].turn == 0  # one that was over its deadline never asks


def _contents_decide(records: list[Record]) -> bool:
    """Whether the size or the kind of a result decides what else happens: which turns give way, what can be paid, and whether the run ends.

    Of runs of the first rules nothing can be shown otherwise at all.
    """
    facts = [record.fact for record in records]
    setups = [fact.setup for fact in facts if isinstance(fact, f.RunStarted | f.RunContinued)]
    return (
        any(isinstance(fact, f.SummaryRequested) or (isinstance(fact, f.RunStopped) and fact.reason in ("max_tokens", "max_cost_usd")) for fact in facts)
        or any(setup.context is not None and setup.context.window_tokens is not None for setup in setups)
        or any(setup.policy.on_tool_error == "stop" or not rules_of(setup.engine).chains for setup in setups)
    )


def _first_request(store: Store, run_id: str) -> list[dict[str, Any]]:
    """The messages of the first request that a fork makes by itself, driven on until then; none where it makes none."""
    _driven(store, run_id)
    asked = next((record for record in store.read(run_id) if record.run == run_id and isinstance(record.fact, f.ModelRequested)), None)
    return json.loads(msgspec.json.encode(prompt(store, run_id, asked.position).request.messages)) if asked is not None else []


def _rest_before(records: list[Record], at: int) -> int | None:
    """The last position where the run rests: the end of a batch, or results that are in; none behind its end."""
    rests = {record.position for record, after in pairwise(records) if after.batch != record.batch or record.target == "injecting_tool_results"}
    if records[-1].target != "done":
        rests.add(records[-1].position)
    found = max((position for position in rests if position <= at), default=None)
    return None if found is None or records[found - 1].target == "done" or records[at - 1].target == "done" else found


def _driven(store: Store, run_id: str) -> Journal:
    """The run, driven on by a world in which everything goes well."""
    journal = Journal(store.log, run_id).load()
    journal.command_sync(lambda run: (attach(run),))
    for _ in range(STEPS_MAX):
        effects = pending(journal.run)
        if not effects:
            return journal
        journal.command_sync(lambda run, effect=effects[0]: _outcome(run, effect))  # type: ignore[misc]
    raise AssertionError("the fork does not come to its end")


def _outcome(run: Run, effect: Effect) -> tuple[f.Input, ...]:
    match effect:
        case AskModel():
            return f.FinalProposed(text="Enough."), f.AnswerChecked()
        case RunTool(call=call, attempt=attempt):
            return (f.ToolSucceeded(call=call, result="fine", attempt=attempt),)
        case Reconcile(call=call):
            return (f.DoubtResolved(call=call, verdict="happened", result="it did", by="reconcile"),)
        case ChooseContext():
            return (f.ContextChosen(builder="fork"),)
        case Summarise(asked=asked):
            return (f.ContextCompacted(since=asked.since, upto=asked.upto, summary="Short.", author=asked.author, digest=asked.digest),)


def _assert_paired(messages: list[dict[str, object]]) -> None:
    left = json.loads(json.dumps(messages))
    while left:
        calls = left.pop(0).get("calls") or []
        assert [left.pop(0)["call_id"] for _ in calls] == [call["id"] for call in calls]
