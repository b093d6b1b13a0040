"""Determinism: a run that is resumed, rebuilt, replayed or looked at is the run that it was."""

import asyncio
import hashlib
import os
import random
import secrets
import subprocess
import sys
import uuid
from typing import Any

import msgspec
import pytest

from refold import audit, fold, replay, show, tool
from refold.diagrams.render import FORMATS, render
from refold.events import facts as f
from refold.events.storage import Row
from refold.fsm.machine import Illegal, empty, step
from refold.runtime import ports as p
from refold.runtime.show import prompt
from refold.runtime.transfer import export_lines
from refold.testing.trajectory import Act, Trajectory

TURNS = [
    {"calls": [{"name": "look", "arguments": {"at": 1}}, {"name": "look", "arguments": {"at": 2}}]},
    {"text": "Let me note that.", "calls": [{"name": "note", "arguments": {"text": "a"}}, {"name": "look", "arguments": {"at": "no"}}, {"name": "nothing"}]},
    {"text": ""},
    {"calls": [{"name": "note", "arguments": {"text": "b"}}, {"name": "look", "arguments": '{"at": '}]},
    {"text": "done"},
]


def tools(second_first: bool = False) -> list[Any]:
    """Two tools; with `second_first` the second of two concurrent calls ends before the first, as far as they run at once."""
    second = asyncio.Event()

    @tool(effect="read", concurrent=True)
    async def look(at: int) -> str:
        """Look."""
        if second_first and at == 1:
            await asyncio.wait({asyncio.ensure_future(second.wait())}, timeout=0.05)
        if at == 2:
            second.set()
        return f"saw {at}"

    @tool(effect="idempotent")
    def note(text: str) -> dict[str, str]:
        """Note."""
        return {"noted": text}

    return [look, note]


def ends_of_batches(records: Any) -> list[int]:
    last = {record.batch: record.position for record in records}
    return sorted(last.values())


def test_B028_a_resumed_run_sends_what_an_uninterrupted_one_sends(stage):
    # given a run with parallel calls, of which the second ends first, and a twin that is never interrupted
    twin = stage.agent(TURNS, tools())
    straight = twin.run_sync("Do it.", store=stage.another_store(), run_id="r")
    sent = {request.number: request for request in twin.model.requests}
    whole = stage.agent(TURNS, tools(second_first=True))
    result = whole.run_sync("Do it.", store=stage.store, run_id="r")
    assert {request.number: request for request in whole.model.requests} == sent
    first = [record.call for record in result.records if record.type == "tool_succeeded"][:2]
    assert first == ["t1.2", "t1.1"]
    # when its process dies behind any of its batches, the one with both results included, and another takes over
    for position in ends_of_batches(result.records)[:-1]:
        left = stage.cut("r", position)
        other = stage.agent(TURNS, tools())
        resumed = other.resume_sync("r", store=left)
        # then every request that it makes is, byte for byte, the one of the twin; but what it says of the budget counts what the lost request may have used
        assert (resumed.status, resumed.answer) == (straight.status, straight.answer)
        assert silent(other.model.requests) == silent([sent[request.number] for request in other.model.requests])


def test_B028_over_the_wire_the_bodies_are_the_same_to_the_last_byte(wire, api):
    # given a run of two parallel calls that ended in the other order, over one of the three APIs, and a twin in which they did not
    replies = [api.calls(("a", "look", ['{"at":', " 1}"]), ("b", "look", ['{"at": 2}'])), api.calls(("a", "note", ['{"text": "x"}'])), api.text("done")]
    straight = wire.agent(api, tools())
    wire.says(*replies)
    straight.run_sync("Do it.", store=wire.stage.another_store(), run_id="r")
    wire.says(*replies)
    result = wire.agent(api, tools(second_first=True)).run_sync("Do it.", store=wire.stage.store, run_id="r")
    sent, other = wire.requests[:3], wire.requests[3:]
    assert [heard.body for heard in sent] == [heard.body for heard in other]
    # when its process dies with both results stored, and the next request, the second or the third, is lost with it
    made = [record.position for record in result.records if record.type == "model_requested"]
    for number in (1, 2):
        wire.says(*replies[number:])
        resumed = wire.agent(api, tools()).resume_sync("r", store=wire.stage.cut("r", made[number]))
        # then what is sent is what the twin sent
        assert resumed.answer == "done"
        assert [heard.body for heard in wire.requests[number - 3 :]] == [heard.body for heard in sent[number:]]


def silent(requests: list[p.Request]) -> list[p.Request]:
    """Requests without what only they say."""
    return [msgspec.structs.replace(request, notice="") for request in requests]


def test_B158_ids_come_from_the_log_and_no_draw_of_a_new_version_moves_them(stage, monkeypatch, twin):
    # given a run that was begun and parked under one version
    turns = [
        {"calls": [{"name": "look", "arguments": {"at": 1}}, {"name": "ask_user", "arguments": {"question": "Which?"}}]},
        {"error": {"type": "overloaded", "message": "busy", "retryable": True, "retry_after_s": 0}},
        {"calls": [{"name": "note", "arguments": {"text": "a"}}]},
        {"text": "done"},
    ]
    waiting = stage.agent(turns, tools()).run_sync("Do it.", store=stage.store, run_id="r")
    stage.store.answer_sync("r", "this")
    begun = stage.cut("r", fold(stage.store.read("r")).position)
    before = stage.agent(turns, tools()).resume_sync("r", store=begun)
    # when a version that draws at random in many more places resumes it
    draws: list[float] = []

    def draw() -> float:
        draws.append(random.random() + uuid.uuid4().int + secrets.randbelow(10))
        return draws[-1]

    class Model:
        spec = "script"
        inner = stage.scripted(turns)

        async def stream(self, request: p.Request) -> Any:
            draw()
            async for part in self.inner.stream(request):
                draw()
                yield part

    @tool(effect="read", concurrent=True)
    async def look(at: int) -> str:
        """Look."""
        return f"saw {at}"

    @tool(effect="idempotent")
    def note(text: str) -> dict[str, str]:
        """Note."""
        draw()
        return {"noted": text}

    monkeypatch.setattr(p.RandomIds, "seed", lambda self: str(draw()))
    agent = stage.agent([], [look, note])
    agent.model = Model()
    random.seed(draw())
    after = agent.resume_sync("r", store=stage.store)
    # then every id, key and delay is the one that it would have been
    assert draws
    assert waiting.status == "waiting_for_user"
    assert twin(after.records) == twin(before.records)
    keys = [record.data["key"] for record in after.records if record.type == "tool_started"]
    assert len(set(keys)) == len(keys) == 2
    # and the old run replays under the new version as it was
    assert replay(stage.store, "r", agent).divergence is None


def test_B159_looking_at_a_run_does_not_change_its_future(stage, twin):
    # given two runs of one script, one left alone and one looked at in every way while it runs
    def looking(store: Any) -> Any:
        def look_closely() -> None:
            for _ in range(10):  # in each of two calls
                run = fold(store.read("r"))
                show(store, "r")
                prompt(store, "r", 3)
                audit(store, "r")
                replay(store, "r")
                replay(store, "r", changes={"budgets.max_turns": 2})
                list(export_lines(store, "r"))
            for name in FORMATS:
                render(name, current=run.state)

        return look_closely

    looked, alone = stage.store, stage.another_store()
    heard: list[Any] = []

    def with_watch(watch: Any) -> list[Any]:
        look, _ = tools()

        @tool(effect="idempotent")
        def note(text: str) -> dict[str, str]:
            """Note."""
            watch()
            return {"noted": text}

        return [look, note]

    one = stage.agent(TURNS, with_watch(looking(looked)))
    other = stage.agent(TURNS, with_watch(lambda: None))
    # when both have ended
    first = asyncio.run(one.run("Do it.", store=looked, run_id="r", heard=heard.append))
    second = other.run_sync("Do it.", store=alone, run_id="r")
    # then events and requests are the same but for times and seeds
    assert heard
    assert twin(first.records) == twin(second.records)
    assert one.model.requests == other.model.requests


def interleaved(number: int) -> Trajectory:
    """A run in which a tool ends, a human approves, answers, speaks and cancels within one microsecond, in an order of its own; what is illegal there is refused."""
    order = random.Random(number)
    played = Trajectory(f"r{number}")
    played.start()
    played.calls(Act("look"), Act("send", effect="side_effect", approval=True), Act("ask_user", '{"question":"Which?"}'), Act("look", '{"at":2}', retries=1))
    moves: list[Any] = [
        lambda: played.say("be quick"),
        lambda: played.approve("t1.2") if played.run.call("t1.2") is not None else None,
        lambda: played.deny("t1.2"),
        lambda: played.tell(_answer()),
        lambda: played.succeed("t1.1"),
        lambda: played.fail("t1.4", retryable=True),
        lambda: played.succeed("t1.4"),
        lambda: played.succeed("t1.2"),
        lambda: played.cancel("enough"),
        played.attach,
        lambda: played.answer("All done."),
    ] * 2
    order.shuffle(moves)
    if number % 3:
        moves = [move for n, move in enumerate(moves) if n % 7 != 3]
    for move in moves:
        try:
            move()
        except Illegal:
            continue
    return played


def _answer() -> Any:
    return f.ClarificationReceived(call="t1.3", text="blue", who="ann")


FINGERPRINT = """
import hashlib, sys
from refold import open_store, replay
from refold.events.codec import Record
from refold.fsm.machine import empty, step

store, digest = open_store(sys.argv[1]), hashlib.sha256()
for run_id in store.runs():
    replayed = replay(store, run_id)
    assert replayed.divergence is None, replayed.divergence
    run = empty(run_id)
    for record in store.read(run_id):
        run = step(run, record)
        digest.update(f"{run.state} {run.status} {run.calls!r} {run.fresh!r} {run.spent!r}".encode())
    digest.update(record.digest.encode())
print(digest.hexdigest())
store.close()
"""


@pytest.mark.parametrize(
    ("runs", "processes"),
    [(20, 1), pytest.param(500, 10, marks=pytest.mark.slow)],
)
def test_B160_outside_facts_replay_in_the_order_of_the_log(stage, tmp_path, runs, processes):
    # given many orders in which the world may speak within one microsecond
    url = f"sqlite:///{tmp_path}/log.db"
    store = stage.another_store(url)
    digest, orders = hashlib.sha256(), set()
    for number in range(runs):
        played = interleaved(number)
        assert len({record.at for record in played.records}) == 1
        rows = [Row(record.position, record.type, record.stored) for record in played.records]
        store.log.append(played.id, 0, rows, played.payloads, create=True)
        orders.add(tuple(played.tags))
        run = empty(played.id)
        for record in played.records:
            run = step(run, record)
            digest.update(f"{run.state} {run.status} {run.calls!r} {run.fresh!r} {run.spent!r}".encode())
        digest.update(played.records[-1].digest.encode())
    assert len(orders) > runs // 2
    # when each is replayed in new processes, whose sets and dicts have other orders
    running = [
        subprocess.Popen([sys.executable, "-P", "-c", FINGERPRINT, url], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)})
        for seed in range(1, processes + 1)
    ]
    found = {process.communicate(timeout=120)[0].strip() for process in running}
    # then they all pass through the recorded states
    assert found == {digest.hexdigest()}
