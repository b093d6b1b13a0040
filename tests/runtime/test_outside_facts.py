"""What people say to a run that is going on, from other processes: none of it is lost, none comes twice, and nobody loses the run by it."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold import audit, fold, open_store, replay
from refold.runtime.store import Store

DRIVER = """
import asyncio, sys
from refold import Agent, Budgets, ScriptedModel, open_store, tool

@tool(effect="read", repeatable=True)
async def step(n: int) -> int:
    "Steps."
    await asyncio.sleep(0.2)
    return n

script = [{"calls": [{"name": "step", "arguments": {"n": n}}]} for n in range(100_000)]
agent = Agent(model=ScriptedModel(script), tools=[step], budgets=Budgets(max_turns=None, max_tool_calls=None, max_tokens=None, timeout_s=None))
print(agent.run_sync("Go on.", store=open_store(sys.argv[1]), run_id="r").status)
"""
SPEAKER = """
import sys
from refold import open_store

store, name = open_store(sys.argv[1]), sys.argv[2]
for n in range(250):
    word = f"{name} {n}"
    for _ in range(1 + n % 2):  # every other one is sent twice, as by somebody who did not hear the answer
        store.say_sync("r", word, who=name, command_id=word)
"""


@pytest.mark.slow
def test_five_hundred_words_from_other_processes_are_each_in_the_log_once(tmp_path: Path) -> None:
    # given a run that goes on in a process of its own
    url = f"sqlite:///{tmp_path}/log.db?synchronous=NORMAL"
    store = open_store(url)
    with started(DRIVER, url) as driver:
        wait_for(store, "r")
        # when two other processes say 250 things each, and then it is cancelled
        with started(SPEAKER, url, "ann") as ann, started(SPEAKER, url, "bob") as bob:
            for speaker in (ann, bob):
                _, complaints = speaker.communicate(timeout=120)
                assert (speaker.returncode, complaints) == (0, "")
        store.cancel_sync("r", "that was all", who="ann")
        said, _ = driver.communicate(timeout=60)
    # then each word is there once, in the order of its speaker; its driver drove to the end, and the log is sound
    assert (driver.returncode, said.strip()) == (0, "cancelled")
    words = [record.data["text"] for record in store.read("r") if record.type == "user_said"]
    assert Counter(words) == Counter(f"{name} {n}" for name in ("ann", "bob") for n in range(250))
    assert [word for word in words if word.startswith("ann")] == [f"ann {n}" for n in range(250)]
    assert fold(store.read("r")).epoch == 1
    assert audit(store, "r").ok
    assert replay(store, "r").divergence is None
    store.close()


@contextmanager
def started(code: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that does not outlive the test."""
    with subprocess.Popen([sys.executable, "-P", "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(store: Store, run_id: str) -> None:
    """Until the run is in the store."""
    ends_at = time.monotonic() + 30
    while store.log.head(run_id) is None:
        assert time.monotonic() < ends_at, "the run did not begin in time"
        time.sleep(0.02)
