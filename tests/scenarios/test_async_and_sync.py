"""Async and sync: nothing blocks the loop, nothing is tied to a loop that is gone, and what was cancelled is quiet."""

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from refold import Agent, Policy, fold, tool
from refold.runtime import ports as p

HOST = contextvars.ContextVar("HOST", default="nobody")


def test_B072_a_blocking_tool_does_not_hold_up_other_runs(stage, results_of):
    # given two runs in one loop: one in a sync tool that blocks, one that streams
    seen: list[str] = []
    begun, release = threading.Event(), threading.Event()

    @tool(effect="read", concurrent=True)
    def block(n: int) -> str:
        """Block."""
        seen.append(HOST.get())
        begun.set()
        release.wait(10)
        return f"waited {n}"

    blocking = stage.agent([{"calls": [{"name": "block", "arguments": {"n": n}} for n in (1, 2)]}, {"text": "done"}], [block])
    streaming = stage.agent([{"text": "word " * 200, "chunks": 200}])
    gaps: list[float] = []

    async def listen() -> None:
        last = time.perf_counter()
        async for _ in streaming.stream("Talk.", store=stage.store):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    async def scenario() -> Any:
        HOST.set("the host")
        running = asyncio.ensure_future(blocking.run("Block.", store=stage.store))
        assert await asyncio.to_thread(begun.wait, 10)
        # when the second streams while the first blocks
        await listen()
        assert not running.done()
        release.set()
        return await running

    result = asyncio.run(scenario())
    # then the stream came through without waiting, the tools ended, and they saw what the host had set
    assert len(gaps) > 200
    assert max(gaps) < 0.2
    assert [kind for kind, _ in results_of(result).values()] == ["success", "success"]
    assert set(seen) == {"the host"}


class LoopBound:
    """A model with a client that belongs to the loop in which it was made, as HTTP clients do: made anew for each stream."""

    spec = "bound"

    def __init__(self, script: Any) -> None:
        self.script = script
        self.answered = 0

    async def stream(self, request: p.Request) -> Any:
        lock = asyncio.Lock()
        async with lock:
            async for part in self.script.stream(request):
                yield part
        self.answered += 1


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_B166_blocking_runs_can_follow_one_another_from_any_thread(stage, kind, tmp_path):
    # given one agent and one store
    @tool(effect="read")
    async def look(at: int) -> str:
        """Look."""
        return f"saw {at}"

    store = stage.store if kind == "memory" else stage.another_store(f"sqlite:///{tmp_path}/log.db")
    model = LoopBound(stage.scripted([{"calls": [{"name": "look", "arguments": {"at": 1}}]}, {"text": "done"}]))
    agent = Agent(model=model, tools=[look])
    # when it is run three times in a row, from two threads at once, and through the async API in between
    statuses = [agent.run_sync("Do it.", store=store).status for _ in range(3)]
    with ThreadPoolExecutor(2) as pool:
        statuses += [result.status for result in pool.map(lambda _: agent.run_sync("Do it.", store=store), range(4))]

    async def both() -> list[Any]:
        return await asyncio.gather(*(agent.run("Do it.", store=store) for _ in range(3)))

    statuses += [result.status for result in asyncio.run(both())]
    statuses.append(agent.run_sync("Do it.", store=store).status)
    # then all of them end well, and no request was made twice
    assert statuses == ["completed"] * 11
    assert model.answered == 22
    assert len(store.runs()) == 11


def test_B166_inside_a_running_loop_the_error_names_the_other_way(stage):
    # given a notebook, whose loop runs
    agent = stage.agent([{"text": "done"}, {"text": "done"}])

    async def cell() -> Any:
        with pytest.raises(RuntimeError, match=r"await agent\.run\("):
            agent.run_sync("Do it.", store=stage.store)
        with pytest.raises(RuntimeError, match=r"await agent\.resume\("):
            agent.resume_sync("r", store=stage.store)
        # when it does what the error says
        return await agent.run("Do it.", store=stage.store)

    # then that works, and the attempt left nothing behind
    assert asyncio.run(cell()).status == "completed"
    assert len(stage.store.runs()) == 1


def test_B168_cancelled_runs_leave_no_task_behind_and_no_load(stage):
    # given runs that are cancelled in a stream that stalls
    class Stalled:
        spec = "stalled"

        async def stream(self, request: p.Request) -> Any:
            yield p.TextDelta(text="Well")
            await asyncio.Event().wait()

    # and runs that are cancelled in a tool that will not hear of it
    shielding: set[asyncio.Task[Any]] = set()
    may_end, all_begun = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def stubborn() -> str:
        """Stay."""
        task = asyncio.current_task()
        assert task is not None
        shielding.add(task)
        if len(shielding) == 20:
            all_begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    stalled = Agent(model=Stalled())
    shielded = stage.agent([{"calls": [{"name": "stubborn"}]}], [stubborn], policy=Policy(max_stuck_threads=50))
    ids = [f"s{n}" for n in range(20)] + [f"t{n}" for n in range(20)]

    async def scenario() -> tuple[float, int, list[Any]]:
        loop = asyncio.get_running_loop()
        before = asyncio.all_tasks()
        running = [loop.create_task((stalled if name[0] == "s" else shielded).run("Do it.", store=stage.store, run_id=name)) for name in ids]
        await all_begun.wait()
        await asyncio.gather(*(stage.store.cancel(name, "enough") for name in ids))
        # when all have ended, and a while has passed
        results = await asyncio.gather(*running)
        used = time.process_time()
        await asyncio.sleep(0.3)
        used = time.process_time() - used
        left = asyncio.all_tasks() - before - shielding
        may_end.set()
        await asyncio.wait(shielding)
        await asyncio.sleep(0.01)
        return used, len(left), results

    used, left, results = asyncio.run(scenario())
    # then every run is cancelled, the process is idle, and nothing is left but the tools that would not stop
    assert {result.status for result in results} == {"cancelled"}
    assert used < 0.05 * 0.3 + 0.05
    assert left == 0
    # and those are recorded: the call as cancelled, what it gave in the end as a note
    abandoned = list(stage.store.read("t0"))
    assert next(record.data["kind"] for record in abandoned if record.type == "tool_failed") == "cancelled"
    assert abandoned[-1].type == "late_outcome"
    assert fold(abandoned).status == "cancelled"
