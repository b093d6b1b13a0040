"""A handler that never returns: the process that runs it can always end, and does so within 2 s."""

import os
import signal
import subprocess
import sys
import time

import pytest

CREW = """
import asyncio, sys, time
from refold import Agent, Budgets, Policy, ScriptedModel, open_store, tool


def begun():
    print("began", file=sys.stderr, flush=True)


@tool(effect="read")
def spins() -> str:
    begun()
    while True:
        pass


@tool(effect="read")
def sleeps() -> str:
    begun()
    time.sleep(600)
    return "late"


@tool(effect="read")
async def refuses() -> str:
    begun()
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass


@tool(effect="read")
async def blocks() -> str:
    begun()
    while True:
        time.sleep(0.05)


@tool(effect="read", isolation="process")
def apart() -> str:
    begun()
    while True:
        pass


TOOLS = [spins, sleeps, refuses, blocks, apart]
agent = Agent(tools=TOOLS)


def agent_of(name, **policy):
    return Agent(ScriptedModel([{"calls": [{"name": name, "arguments": {}}]}, {"text": "done"}]), tools=TOOLS, policy=Policy(**policy))
"""
HANDLERS = ["spins", "sleeps", "refuses", "apart"]
TIMEOUT = """
import sys
from never_crew import *
store = open_store("sqlite:///log.db")
result = agent_of(sys.argv[1], tool_timeout_s=2, max_tool_retries=0).run_sync("x", store=store, run_id="one")
print(result.status)
print("ended", file=sys.stderr, flush=True)
"""
CANCEL = """
import asyncio, sys
from never_crew import *
began = asyncio.Event()


async def main():
    store = open_store("sqlite:///log.db")
    task = asyncio.create_task(agent_of(sys.argv[1]).run("x", store=store, run_id="one"))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    task.cancel()
    await asyncio.wait({task})
    print(task.cancelled())


asyncio.run(main())
"""
SCRIPT = """
import sys
from never_crew import *
agent_of(sys.argv[1]).run_sync("x", store=open_store("sqlite:///log.db"), run_id="one")
"""


@pytest.fixture
def start(tmp_path):
    """Start Python with these words, and return once its handler runs."""
    (tmp_path / "never_crew.py").write_text(CREW, encoding="utf-8")
    started = []

    def begin(name, *words):
        (tmp_path / "script.json").write_text(f'[{{"calls": [{{"name": "{name}", "arguments": {{}}}}]}}, {{"text": "done"}}]', encoding="utf-8")
        environment = {each: value for each, value in os.environ.items() if not each.startswith("REFOLD_")}
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        started.append(process)
        read_until(process, b"began")
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def read_until(process, word):
    heard = []
    while not heard or word not in heard[-1]:
        heard.append(process.stderr.readline())
        assert heard[-1], b"".join(heard).decode()


def ends_within(process, seconds):
    began = time.monotonic()
    said, complained = process.communicate(timeout=30)
    assert time.monotonic() - began < seconds
    return said.decode(), complained.decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDLERS)
def test_a_time_limit_ends_the_call_and_the_process_ends_by_itself(start, name):
    process = start(name, "-c", TIMEOUT, name)
    said, _ = ends_within(process, 2 + 2)
    assert (process.returncode, said.strip()) == (0, "completed")


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDLERS)
def test_a_cancelled_task_ends_and_so_does_the_process(start, name):
    process = start(name, "-c", CANCEL, name)
    process.stdin.write(b"\n")
    process.stdin.flush()
    said, complained = ends_within(process, 2)
    assert (process.returncode, said.strip(), complained) == (0, "True", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDLERS)
def test_ctrl_c_ends_a_script(start, name):
    process = start(name, "-c", SCRIPT, name)
    process.send_signal(signal.SIGINT)
    _, complained = ends_within(process, 2)
    assert process.returncode == -signal.SIGINT
    assert complained.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("mode", ["cancel", "park"])
def test_ctrl_c_ends_a_command(start, name, mode):
    from refold.runtime.cli import exits

    words = ["run", "x", "--agent", "never_crew:agent", "--model", "script:script.json", "--on-interrupt", mode]
    process = start(name, "-P", "-m", "refold", *words)
    process.send_signal(signal.SIGINT)
    _, complained = ends_within(process, 2)
    assert process.returncode == (exits.CANCELLED if mode == "cancel" else exits.INTERRUPTED)
    assert "Traceback" not in complained


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cancel", "park"])
def test_ctrl_c_ends_a_command_whose_handler_blocks_the_event_loop(start, tmp_path, mode):
    from refold import fold, open_store
    from refold.runtime.cli import exits

    # given an async handler that never yields, so that nothing else of its process runs
    words = ["run", "x", "--agent", "never_crew:agent", "--model", "script:script.json", "--run-id", "one", "--on-interrupt", mode]
    process = start("blocks", "-P", "-m", "refold", *words)
    # when
    process.send_signal(signal.SIGINT)
    _, complained = ends_within(process, 2)
    # then the process is gone, and the log says that the run is to end, which whoever comes next sees to
    assert (process.returncode, "Traceback" in complained) == (exits.INTERRUPTED, False)
    store = open_store(f"sqlite:///{tmp_path}/.refold/log.db")
    assert (fold(store.read("one")).cancel is not None) == (mode == "cancel")
    store.cancel_sync("one")
    assert fold(store.read("one")).status == "cancelled"
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDLERS)
def test_a_second_ctrl_c_ends_a_command_at_once(start, name):
    from refold.runtime.cli import exits

    process = start(name, "-P", "-m", "refold", "run", "x", "--agent", "never_crew:agent", "--model", "script:script.json")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    ends_within(process, 1)
    assert process.returncode in (exits.INTERRUPTED, exits.CANCELLED)
