"""Cancellation: it reaches whatever runs, is never taken for a result, and leaves a run that can be found."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import Agent, Policy, tool
from refold.events.codec import Record
from refold.runtime import ports as p
from refold.runtime.cli import exits


@pytest.mark.parametrize("how", ["cancelled", "parked"])
def test_B011_a_cancelled_run_leaves_no_tool_running(stage, results_of, how):
    # given a tool that writes on and on
    lines: list[int] = []
    begun = asyncio.Event()

    @tool(effect="read")
    async def write() -> str:
        """Writes for ever."""
        while True:
            lines.append(1)
            begun.set()
            await asyncio.sleep(0.001)

    agent = stage.agent([{"calls": [{"name": "write"}]}], [write])

    async def scenario() -> Any:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await begun.wait()
        # when the run is cancelled in the store, or the task that drives it is
        asked = time.monotonic()
        if how == "cancelled":
            await stage.store.cancel("r", "enough")
            await running
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        took, written = time.monotonic() - asked, len(lines)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.sleep(0.05)
        return took, written, left

    took, written, left = asyncio.run(scenario())
    # then it stops before the caller goes on, at once, and nothing is left of it
    assert took < 0.5
    assert len(lines) == written
    assert not left
    types = [record.type for record in stage.store.read("r")]
    if how == "cancelled":
        assert types[-4:] == ["tool_failed", "tool_closed", "tool_results_injected", "run_cancelled"]
    else:
        assert types[-1] == "driver_detached"


def test_B012_a_tool_that_makes_a_result_of_its_cancellation_does_not_keep_the_run_alive(stage, results_of):
    # given a tool that catches what stops it, and a model that would go on
    begun = asyncio.Event()

    @tool(effect="read")
    async def stubborn() -> dict[str, str]:
        """Catches everything."""
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return {"status": "cancelled"}
        raise AssertionError("never comes back")

    agent = stage.agent([{"calls": [{"name": "stubborn"}]}] * 3, [stubborn])

    async def scenario() -> Any:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await begun.wait()
        # when the run is cancelled, once
        await stage.store.cancel("r", "enough")
        return await running

    result = asyncio.run(scenario())
    # then it is over, what the tool gave is kept behind the cancellation, and the model is not asked again
    assert (result.status, len(stage.requests())) == ("cancelled", 1)
    assert results_of(result)["t1.1"] == ("success", {"status": "cancelled"})
    types = [record.type for record in result.records]
    assert types.index("cancel_requested") < types.index("tool_succeeded")


SHELL = '''
import subprocess
import sys

from refold import tool

BACKGROUND = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "deaf" else signal.SIG_DFL)
Path("pid.part").write_text(str(os.getpid()))
os.rename("pid.part", "pid")
time.sleep(60)
Path("appeared").touch()
"""

@tool(isolation="process")
def shell(manners: str) -> str:
    \"\"\"Starts something in the background and waits.\"\"\"
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{BACKGROUND}' {manners} & sleep 60"], check=True)
    return "done"
'''


@pytest.mark.slow
@pytest.mark.parametrize("manners", ["hearing", "deaf"])
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_B014_what_a_command_left_in_the_background_ends_with_it(stage, results_of, tmp_path, monkeypatch, how, manners):
    # given a tool that runs a shell, which has put something in the background, that may not listen to a polite word
    (tmp_path / "shelltool.py").write_text(SHELL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import shelltool

    monkeypatch.setitem(sys.modules, "shelltool", shelltool)
    call = {"calls": [{"name": "shell", "arguments": {"manners": manners}}]}
    policy = Policy(tool_timeout_s=60 if how == "cancelled" else 2)
    agent = stage.agent([call, {"text": "done"}], [shelltool.shell], policy=policy)

    async def scenario() -> Any:
        running = asyncio.ensure_future(agent.run("Do it.", store=stage.store, run_id="r"))
        await asyncio.to_thread(until, (tmp_path / "pid").exists)
        # when the run is cancelled, or the tool's time is up
        if how == "cancelled":
            await stage.store.cancel("r", "enough")
        return await running

    result = asyncio.run(scenario())
    # then nothing of it is alive, and the outcome says that nobody knows what it did
    assert result.status == ("cancelled" if how == "cancelled" else "completed")
    assert results_of(result)["t1.1"][0] == "in_doubt"
    failed = next(record for record in result.records if record.type == "tool_failed")
    assert failed.data["kind"] == ("cancelled" if how == "cancelled" else "timeout")
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), 5)
    assert not (tmp_path / "appeared").exists()


def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SPINNING = '''
from refold import Agent, tool

@tool(effect="read", timeout_s=3600)
def spin() -> str:
    """Never ends."""
    print("began", flush=True)
    while True:
        pass

agent = Agent(tools=[spin])
'''


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_B015_ctrl_c_reaches_a_process_whose_tool_spins(tmp_path, signals):
    # given a run in a terminal whose tool never comes back and never looks up
    (tmp_path / "crew.py").write_text(SPINNING, encoding="utf-8")
    (tmp_path / "script.json").write_text('[{"calls": [{"name": "spin"}]}, {"text": "done"}]', encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")} | {"PYTHONDONTWRITEBYTECODE": "1"}
    refold = [sys.executable, "-P", "-m", "refold"]
    words = ["run", "x", "--agent", "crew:agent", "--model", "script:script.json", "--run-id", "one"]
    process = subprocess.Popen([*refold, *words], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"began" not in process.stderr.readline():
            assert process.poll() is None
        # when it gets one signal, or two
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        if signals == 2:
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        took = time.monotonic() - asked
    finally:
        process.kill()
        process.communicate()
    # then one ends the run as cancelled, without the tool, and the second ends the process at once; either is said
    assert process.returncode == (exits.CANCELLED if signals == 1 else exits.INTERRUPTED), err
    assert took < (5 if signals == 1 else 2)
    assert b"once more ends the process at once" in err
    assert b"Traceback" not in err
    # and the log is whole and can be driven on
    for words in (["audit", "one"], ["replay", "one"]):
        done = subprocess.run([*refold, *words], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode == exits.COMPLETED, done.stdout + done.stderr
    if signals == 2:
        done = subprocess.run([*refold, "cancel", "one"], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode == exits.COMPLETED, done.stderr


def test_B016_a_run_in_a_group_of_tasks_that_fails_is_found_again_with_all_it_did(stage, results_of):
    # given a host that drives a run beside another task, which fails while the run is in its second tool
    second = asyncio.Event()
    order: list[str] = []

    @tool(effect="read")
    async def step(n: int) -> str:
        """Takes a step."""
        if n == 2 and not second.is_set():
            second.set()
            await asyncio.sleep(60)
        return f"step {n}"

    class Asked:
        spec = "asked"

        async def stream(self, request: p.Request) -> Any:
            order.append("asked")
            async for part in script.stream(request):
                yield part

    script = stage.scripted([{"calls": [{"name": "step", "arguments": {"n": n}}]} for n in (1, 2)] + [{"text": "done"}])
    agent = Agent(model=Asked(), tools=[step])

    def hear(what: Any) -> None:
        if isinstance(what, Record) and what.type == "run_started":
            order.append(f"known as {what.run}")

    async def fail() -> None:
        await second.wait()
        raise OSError("the host's own trouble")

    async def host() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(agent.run("Do it.", store=stage.store, run_id="r", heard=hear))
            group.create_task(fail())

    # when
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(host())
    # then the host sees its own error, and nothing was made of the cancellation
    assert [str(error) for error in raised.value.exceptions] == ["the host's own trouble"]
    # and the run, whose id was known before the model was asked, is there with all that it did, to be resumed or ended
    assert order[:2] == ["known as r", "asked"]
    types = [record.type for record in stage.store.read("r")]
    assert types.count("tool_succeeded") == 1
    assert types[-1] == "driver_detached"
    result = agent.resume_sync("r", store=stage.store)
    assert result.status == "completed"
    assert results_of(result) == {"t1.1": ("success", "step 1"), "t2.1": ("success", "step 2")}
