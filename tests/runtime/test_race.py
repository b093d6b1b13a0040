"""Two processes race for one run while either is put to sleep beyond its time: nothing is performed twice, and a sleeper appends nothing."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from refold import audit, fold, open_store, replay
from refold.events.codec import Record
from refold.events.words import CallId
from refold.runtime.store import Store

ROUNDS = 200
TTL_S = 0.1

RACER = f"""
import random, sys, time
from refold import Agent, ScriptedModel, ToolContext, open_store, tool
from refold.runtime.driver import RunExists
from refold.runtime.ownership import DrivenElsewhere

performed = open(sys.argv[2], "ab", buffering=0)
dice = random.Random(sys.argv[3])

def act(ctx):
    time.sleep(dice.choice((0, 0.002, 0.01)))
    performed.write(f"{{ctx.run_id}} {{ctx.call_id}} {{ctx.idempotency_key}}\\n".encode())
    time.sleep(dice.choice((0, 0.002, 0.01)))

@tool(effect="read")
def look(n: int, ctx: ToolContext) -> str:
    "Looks."
    act(ctx)
    return f"saw {{n}}"

@tool(effect="idempotent")
def put(n: int, ctx: ToolContext) -> str:
    "Sets."
    act(ctx)
    return f"set {{n}}"

@tool
def pay(n: int, ctx: ToolContext) -> str:
    "Pays."
    act(ctx)
    return f"paid {{n}}"

script = [{{"calls": [{{"name": name, "arguments": {{"n": n}}}}]}} for n, name in enumerate(("look", "pay", "put", "pay"))] + [{{"text": "done"}}]
agent = Agent(model=ScriptedModel(script), tools=[look, put, pay])
store = open_store(sys.argv[1], driver_ttl_s={TTL_S})


def drive(run_id):
    try:
        return agent.run_sync("Do it.", store=store, run_id=run_id).state == "done"
    except RunExists:
        return agent.resume_sync(run_id, store=store).state == "done"

for line in sys.stdin:
    done = False
    while not done:
        try:
            done = drive(line.strip())
        except DrivenElsewhere:
            time.sleep(0.003)
    print(line.strip(), flush=True)
"""


class Race:
    """Two processes that are given the same run at the same moment."""

    def __init__(self, url: str, performed: Path) -> None:
        self.racers = [
            subprocess.Popen([sys.executable, "-P", "-c", RACER, url, str(performed), str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for n in range(2)
        ]

    def start(self, run_id: str) -> None:
        for racer in self.racers:
            assert racer.stdin is not None
            racer.stdin.write(f"{run_id}\n")
            racer.stdin.flush()

    def finish(self, run_id: str) -> None:
        for racer in self.racers:
            assert racer.stdout is not None
            assert racer.stdout.readline().strip() == run_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for racer in self.racers:
            racer.kill()

    def end(self) -> list[int]:
        for racer in self.racers:
            assert racer.stdin is not None
            racer.stdin.close()
        codes = [racer.wait(timeout=60) for racer in self.racers]
        for racer in self.racers:
            assert racer.stdout is not None
            racer.stdout.close()
        return codes


@pytest.mark.slow
def test_two_processes_that_race_for_a_run_and_sleep_beyond_their_time_perform_nothing_twice(tmp_path: Path) -> None:
    # given two processes
    url, performed = f"sqlite:///{tmp_path}/log.db?synchronous=NORMAL", tmp_path / "performed"
    store = open_store(url)
    dice, slept = random.Random(17), 0
    with Race(url, performed) as race:
        # when they race for two hundred runs, and in each one of them is stopped somewhere in it until its time has passed
        for n in range(ROUNDS):
            run_id = f"r{n}"
            race.start(run_id)
            sleeper = dice.choice(race.racers)
            until(partial(reached, store, run_id, dice.randrange(24)))
            sleeper.send_signal(signal.SIGSTOP)
            slept += drives(store, run_id, sleeper.pid)
            until(partial(has_lost, store, run_id, sleeper.pid))
            sleeper.send_signal(signal.SIGCONT)
            race.finish(run_id)
        assert race.end() == [0, 0]
    # then the runs are over, many of them after somebody slept at the wheel, and of each the log tells what happened
    assert slept > ROUNDS / 10
    times = Counter(performed.read_text().splitlines())
    for n in range(ROUNDS):
        records = list(store.read(f"r{n}"))
        assert fold(records).status == "completed"
        hold_the_rules(records, {line: count for line, count in times.items() if line.startswith(f"r{n} ")})
        assert audit(store, f"r{n}").ok
        assert replay(store, f"r{n}").divergence is None
    store.close()


def hold_the_rules(records: list[Record], times: dict[str, int]) -> None:
    """Nobody but the driver of the moment appends, side effects take place at most once and are otherwise in doubt, everything else under one key."""
    driver = records[0].driver
    for record in records[1:]:
        driver = record.driver if record.type == "driver_attached" else driver
        assert record.driver == driver or record.type == "late_outcome", f"{record.position}: {record.type} by {record.driver}, and {driver} drives"
    keys: dict[str, set[str]] = {}
    for line in times:
        _, call, key = line.split()
        keys.setdefault(call, set()).add(key)
    assert all(len(each) == 1 for each in keys.values())
    succeeded = {record.call for record in records if record.type == "tool_succeeded"}
    doubted = {record.call for record in records if record.type == "tool_in_doubt"}
    for call in (CallId("t2.1"), CallId("t4.1")):
        happened = sum(count for line, count in times.items() if line.split()[1] == call)
        assert happened == 1 if call in succeeded else happened <= 1
        assert (call in succeeded) != (call in doubted)
    assert {CallId("t1.1"), CallId("t3.1")} <= succeeded


def reached(store: Store, run_id: str, position: int) -> bool:
    head = store.log.head(run_id)
    return head is not None and head[0] >= position


def has_lost(store: Store, run_id: str, pid: int) -> bool:
    return not drives(store, run_id, pid)


def drives(store: Store, run_id: str, pid: int) -> bool:
    """Whether that process holds the run."""
    holder = store.log.holder(run_id)
    return holder is not None and holder.who.endswith(f":{pid}")


def until(true: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait for something to come to pass."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.001)
