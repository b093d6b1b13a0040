"""The command as a process: signals, closed pipes, locales, quick starts."""

import os
import signal
import subprocess
import sys

import pytest

from refold.runtime.cli import exits

AGENT = '''
import asyncio, time
from refold import Agent, tool

@tool(effect="read")
async def work() -> str:
    """Works for long."""
    print("began", flush=True)
    await asyncio.sleep(600)

@tool(effect="read")
def spin() -> str:
    """Never ends."""
    print("began", flush=True)
    while True:
        pass

agent = Agent(tools=[work, spin])
'''


@pytest.fixture
def start(tmp_path):
    """Start a run whose only call is of this tool, and return once it is performed."""
    (tmp_path / "crew.py").write_text(AGENT, encoding="utf-8")
    started = []

    def begin(tool, *words):
        (tmp_path / "script.json").write_text(f'[{{"calls": [{{"name": "{tool}", "arguments": {{}}}}]}}, {{"text": "done"}}]', encoding="utf-8")
        command = [sys.executable, "-P", "-m", "refold", "run", "x", "--agent", "crew:agent", "--model", "script:script.json", "--run-id", "one", *words]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        assert process.stderr is not None
        while b"began" not in process.stderr.readline():
            assert process.poll() is None
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def environment(**more):
    return {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")} | {"PYTHONDONTWRITEBYTECODE": "1"} | more


def typed(folder, *words, **more):
    return subprocess.run(
        [sys.executable, "-P", "-m", "refold", *words], cwd=folder, env=environment(**more), stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("tool", ["work", "spin"])
def test_the_first_signal_ends_the_run_as_cancelled_whatever_its_tool_does(start, tmp_path, name, tool):
    process = start(tool)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=30)
    assert process.returncode == exits.CANCELLED
    assert b"Traceback" not in err
    assert b'"reason":"%s"' % name.encode() in typed(tmp_path, "log", "one", "--json", "--types", "cancel_requested").stdout
    assert b"I3    ok" in typed(tmp_path, "audit", "one").stdout


@pytest.mark.slow
def test_the_second_signal_ends_the_process_at_once(start):
    process = start("spin")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == exits.INTERRUPTED


@pytest.mark.slow
def test_a_run_that_is_parked_can_be_resumed(start, tmp_path):
    process = start("work", "--on-interrupt", "park")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == exits.INTERRUPTED
    assert b"refold resume one" in err
    assert b'"status":"running"' in typed(tmp_path, "show", "one", "--json").stdout


@pytest.mark.slow
def test_a_closed_pipe_is_no_error_and_a_full_disk_is_one_line(tmp_path):
    typed(tmp_path, "run", "What is 6 * 7?")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "refold", "log", "last"], cwd=tmp_path, env=environment(), stdout=writing, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (exits.COMPLETED, b"")


@pytest.mark.slow
def test_output_is_utf_8_whatever_the_locale(tmp_path):
    goal = "Größe 測試 6 * 7"
    typed(tmp_path, "run", goal, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    for locale in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        assert goal in typed(tmp_path, "runs", **locale).stdout.decode("utf-8")


def test_help_and_version_load_neither_the_log_nor_the_terminal():
    code = "import sys; from refold.runtime.cli.main import perform; perform(['--version']); perform(['run', '--help']); print(sorted({'rich', 'typer', 'pydantic', 'eventsourcing', 'asyncio', 'transitions'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("run", "x"), id="run"),
        pytest.param(("continue", "one", "And?"), id="continue"),
        pytest.param(("fork", "one", "--at", "3"), id="fork"),
    ],
)
def test_of_several_that_begin_a_run_under_one_id_one_does_and_the_others_are_told_that_it_is_taken(tmp_path, words):
    # given a run, and an answer that takes its time
    (tmp_path / "script.json").write_text('[{"text": "done", "delay_s": 0.3}]', encoding="utf-8")
    model = ("--model", "script:script.json")
    assert typed(tmp_path, "run", "x", "--run-id", "one", *model).returncode == exits.COMPLETED
    # when
    command = [sys.executable, "-P", "-m", "refold", *words, "--run-id", "two", *model]
    racers = [
        subprocess.Popen(command, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)
    ]
    said = [racer.communicate(timeout=60)[1].decode() for racer in racers]
    # then
    assert sorted(racer.returncode for racer in racers) == [exits.COMPLETED, *[exits.USAGE] * 3]
    losers = [error for racer, error in zip(racers, said, strict=True) if racer.returncode]
    assert all(error.startswith("refold: there is already a run two") and error.count("\n") == 1 for error in losers), losers
    assert typed(tmp_path, "audit", "two").returncode == exits.COMPLETED
