"""Time: whose clock says that a driver is dead, and what becomes of a run whose drivers disagree about the hour."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from refold import audit, fold, open_store, replay

RUNS = 50

WORKER = """
import asyncio, sys, time
from refold import Agent, ScriptedModel, ToolContext, open_store, tool
from refold.runtime import ports
from refold.runtime.driver import RunExists
from refold.runtime.ownership import DrivenElsewhere

now_us, off_us = ports.SystemClock.now_us, int(sys.argv[3]) * 1_000_000
ports.SystemClock.now_us = lambda self: now_us(self) + off_us
time.time = lambda real=time.time: real() + off_us / 1e6
time.time_ns = lambda real=time.time_ns: real() + off_us * 1_000
performed = open(sys.argv[2], "ab", buffering=0)

@tool
async def act(n: int, ctx: ToolContext) -> str:
    "Acts."
    performed.write(f"{ctx.idempotency_key}\\n".encode())
    await asyncio.sleep(0.05)
    return f"did {n}"

agent = Agent(model=ScriptedModel([{"calls": [{"name": "act", "arguments": {"n": 1}}]}, {"text": "done"}]), tools=[act])
store = open_store(sys.argv[1], driver_ttl_s=0.5)
for n in range(RUNS):
    done = False
    while not done:
        try:
            done = agent.run_sync("Do it.", store=store, run_id=f"r{n}").state == "done"
        except RunExists:
            try:
                done = agent.resume_sync(f"r{n}", store=store).state == "done"
            except DrivenElsewhere:
                time.sleep(0.005)
        except DrivenElsewhere:
            time.sleep(0.005)
""".replace("RUNS", str(RUNS))


@pytest.mark.slow
def test_B155_workers_whose_clocks_are_ten_minutes_apart_rob_nobody(tmp_path: Path) -> None:
    # given two workers, one five minutes fast and one five minutes slow
    url, performed = f"sqlite:///{tmp_path}/log.db?synchronous=NORMAL", tmp_path / "performed"
    command = [sys.executable, "-P", "-c", WORKER, url, str(performed)]
    workers = [subprocess.Popen([*command, str(minutes * 60)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for minutes in (5, -5)]
    # when both compete for the same runs
    for worker in workers:
        _, complaints = worker.communicate(timeout=120)
        assert (worker.returncode, complaints) == (0, "")
    # then every run was driven by one of them to its end, and no call ran twice
    store = open_store(url)
    assert len(store.runs()) == RUNS
    assert set(Counter(performed.read_text().split()).values()) == {1}
    for run_id in store.runs():
        records = list(store.read(run_id))
        assert fold(records).status == "completed"
        assert [record.type for record in records].count("driver_attached") == 1
        assert len({record.driver for record in records}) == 1
        assert audit(store, run_id).ok
        assert replay(store, run_id).divergence is None
    store.close()


@pytest.mark.slow
def test_B155_a_run_that_a_slower_clock_takes_over_never_goes_back_in_time(tmp_path: Path) -> None:
    # given a run that was begun by a worker whose clock is fast
    url = f"sqlite:///{tmp_path}/log.db?synchronous=NORMAL"
    begin = WORKER.replace("await asyncio.sleep(0.05)", "import os; os._exit(9)").replace(f"range({RUNS})", "range(1)")
    subprocess.run([sys.executable, "-P", "-c", begin, url, str(tmp_path / "performed"), "300"], check=False, timeout=60)
    # when one whose clock is slow drives it on
    subprocess.run([sys.executable, "-P", "-c", WORKER.replace(f"range({RUNS})", "range(1)"), url, str(tmp_path / "performed"), "-300"], check=True, timeout=60)
    # then its records are stamped no earlier than those before, and say that the clock had stepped back
    store = open_store(url)
    records = list(store.read("r0"))
    assert all(before.at <= after.at for before, after in pairwise(records))
    assert b'"stepped_back_us":' in records[-1].stored
    assert (fold(records).status, audit(store, "r0").ok, replay(store, "r0").divergence) == ("completed", True, None)
    store.close()
