"""A call in a process of its own: the same outcomes as in a thread, and an end that reaches everything it started."""

import asyncio
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from refold import ToolContext
from refold.runtime import processes
from refold.runtime.handlers import Failed, Succeeded, perform
from refold.runtime.tools import Note, Tool

CREW = '''
import ctypes, os, re, signal, subprocess, sys, threading, time
from pathlib import Path

from refold import NotPerformed, RetryableToolError, Tool, ToolContext, ToolResult, tool
from refold.runtime.tools import Note

class Stop(BaseException):
    pass


def noted():
    return ToolResult({"b": 2, "a": [1.5, None, 10**400]}, ["d1", "d2"], ["seen", Note("kept", ["d3"])])


def raising(error):
    raise error


def closed():
    os.closerange(3, 256)


DEEDS = {
    "returns": noted,
    "retryable": lambda: raising(RetryableToolError("again")),
    "not performed": lambda: raising(NotPerformed("no such order")),
    "exit": lambda: sys.exit(3),
    "base": lambda: raising(Stop("enough")),
    "group": lambda: raising(ExceptionGroup("both", [NotPerformed("no order"), NotPerformed("no shop")])),
    "nonsense": lambda: object(),
    "large": lambda: "x" * 20_000,
    "many notes": lambda: ToolResult(1, notes=["x" * 1_000_000] * 18),
    "segfault": lambda: ctypes.string_at(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "left": lambda: os._exit(7),
    "closed": closed,
}


@tool(effect="read", isolation="process")
def deed(name: str, ctx: ToolContext) -> object:
    print("said by", name, flush=True)
    os.write(1, b"written by hand")
    return DEEDS[name]()


@tool(effect="read", isolation="process")
def context(first: int, /, *, second: Path, ctx: ToolContext) -> list[object]:
    kept = [ctx.run_id, ctx.turn, ctx.call_id, ctx.attempt, ctx.idempotency_key, bool(ctx.cancelled)]
    return [first, str(second), kept, os.getcwd(), sys.path, sys.stdin.read(), os.getpgrp() == os.getpid(), threading.current_thread().name]


@tool(effect="read", isolation="process")
async def later(n: int) -> int:
    import asyncio

    await asyncio.sleep(0)
    return n + 1


def by_schema(arguments, ctx):
    return [arguments, ctx.call_id]


schema_tool = Tool(name="s", description="", schema={}, handler=by_schema, effect="read", isolation="process")


def plain(n: int) -> int:
    return -n


renamed = tool(name="other-name", isolation="process")(plain)


@tool(isolation="process")
def shell(command: str) -> int:
    """Runs a command, and says so."""
    return subprocess.run(["sh", "-c", command]).returncode


@tool(isolation="process")
def stubborn(command: str) -> str:
    """Neither it nor what it started ends when told to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.run(["sh", "-c", command])
    while True:
        time.sleep(1)


@tool(isolation="process")
def spinning() -> str:
    """Holds the interpreter in one long piece of C code."""
    Path("started").touch()
    sum(range(10**13))


@tool(isolation="process")
def polite(ctx: ToolContext) -> str:
    Path("started").touch()
    ctx.cancelled.wait()
    raise NotPerformed("I had not begun")


@tool(isolation="process")
async def polite_async() -> str:
    import asyncio

    Path("started").touch()
    try:
        await asyncio.sleep(600)
    finally:
        Path("cleaned").touch()


@tool(effect="read", isolation="process")
def leaves_a_thread() -> int:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 1
'''
SLOW_TO_IMPORT = """
import time
from pathlib import Path
from refold import tool

@tool(isolation="process")
def never() -> int:
    return 1

if IN_CHILD:
    Path("importing").touch()
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crew")
    (folder / "process_crew.py").write_text(CREW, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("process_crew")
    sys.path.remove(str(folder))
    del sys.modules["process_crew"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def performed(made, arguments="{}", timeout_s=60, on_late=None):
    ctx = ToolContext("run", 3, "t3.1", 2, "key")
    return await perform(made, arguments, ctx, timeout_s=timeout_s, max_result_bytes=10_000, max_stuck_threads=4, on_late=on_late)


def outcome(made, arguments="{}", **more):
    return asyncio.run(performed(made, arguments, **more))


async def appears(path):
    while not path.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)


async def cancelled_once(path, made, arguments="{}"):
    """Cancel a call once its handler has made the file; gives what it said late."""
    late = []
    calling = asyncio.create_task(performed(made, arguments, on_late=late.append))
    await asyncio.wait_for(appears(path), 60)
    calling.cancel()
    await asyncio.wait({calling})
    assert calling.cancelled()
    return late


class Held:
    """A pipe with a name that processes hold open, so that it can be seen when the last of them is gone."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        self._reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def is_let_go(self, within_s=5.0):
        ends_at = time.monotonic() + within_s
        while time.monotonic() < ends_at:
            try:
                if os.read(self._reading, 1) == b"":
                    return True
            except BlockingIOError:
                pass
            time.sleep(0.01)
        return False

    def close(self):
        os.close(self._reading)


@pytest.fixture
def held(here):
    pipe = Held(here / "held")
    yield pipe
    pipe.close()


# -- what comes back


def test_a_handler_gets_its_arguments_its_context_and_the_folder_and_path_of_this_process(crew, here):
    given = outcome(crew.context, '{"first":1,"second":"a/b"}')
    assert isinstance(given, Succeeded)
    first, second, context, folder, path, standard_input, leads, thread = json.loads(given.data)
    assert (first, second, context) == (1, "a/b", ["run", 3, "t3.1", 2, "key", False])
    assert (folder, path) == (str(here), sys.path)
    assert (standard_input, leads, thread) == ("", True, "MainThread")


def test_async_handlers_tools_with_a_schema_and_tools_under_another_name_run_too(crew):
    async def all_of_them():
        return await asyncio.gather(performed(crew.later, '{"n":1}'), performed(crew.schema_tool, '{"x":"é"}'), performed(crew.renamed, '{"n":1}'))

    assert asyncio.run(all_of_them()) == [Succeeded(b"2"), Succeeded('[{"x":"é"},"t3.1"]'.encode()), Succeeded(b"-1")]


OUTCOMES = {
    "returns": Succeeded(b'{"b":2,"a":[1.5,null,1' + b"0" * 400 + b"]}", ("d1", "d2"), (Note("seen"), Note("kept", ("d3",)))),
    "retryable": Failed("execution_failed", "RetryableToolError: again", True, "unknown", "RetryableToolError"),
    "not performed": Failed("execution_failed", "NotPerformed: no such order", False, "no", "NotPerformed"),
    "exit": Failed("execution_failed", "SystemExit: 3", error_type="SystemExit"),
    "base": Failed("execution_failed", "Stop: enough", error_type="Stop"),
    "group": Failed(
        "execution_failed",
        "ExceptionGroup: both (2 sub-exceptions); NotPerformed: no order; NotPerformed: no shop",
        performed="no",
        error_type="ExceptionGroup",
    ),
    "nonsense": Failed("invalid_result", "a value of type object at $ cannot be stored", performed="yes", error_type="NotStorable"),
    "large": Failed(
        "invalid_result",
        "The result is more than the 10,000 bytes that are stored. Return a part and say how to ask for the next one.",
        performed="yes",
        error_type="TooLarge",
    ),
    "many notes": Failed("invalid_result", "The sources and notes of the result are more than 16,777,216 bytes.", performed="yes", error_type="TooLarge"),
    "segfault": Failed("execution_failed", "Its process was ended by SIGSEGV and gave no outcome."),
    "killed": Failed("execution_failed", "Its process was ended by SIGKILL and gave no outcome."),
    "left": Failed("execution_failed", "Its process exited with code 7 and gave no outcome."),
}


SOON = ("returns", "group", "segfault")
"""Outcomes of the quick set: each takes a process."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SOON else pytest.mark.slow) for name in OUTCOMES])
def test_whatever_a_handler_does_is_an_outcome(crew, name, capfd):
    given = outcome(crew.deed, f'{{"name":"{name}"}}')
    said, complained = capfd.readouterr()
    assert given == OUTCOMES[name]
    # and what it prints goes to our standard error, and never into its outcome
    assert said == ""
    assert complained.startswith(f"said by {name}\nwritten by hand")


def test_a_handler_that_closes_every_descriptor_ends_without_an_outcome(crew):
    given = outcome(crew.deed, '{"name":"closed"}')
    assert isinstance(given, Failed)
    assert (given.kind, given.performed) == ("execution_failed", "unknown")


def test_arguments_that_no_longer_fit_are_told_as_such(crew):
    given = outcome(crew.later, '{"n":"one"}')
    assert isinstance(given, Failed)
    assert (given.kind, given.performed) == ("invalid_arguments", "no")


def test_a_large_request_and_a_large_result_pass(crew):
    async def both():
        ctx = ToolContext("run", 1, "t1.1", 1, "key")
        text = "x" * 3_000_000
        return await perform(crew.schema_tool, f'{{"text":"{text}"}}', ctx, timeout_s=60, max_result_bytes=4_000_000, max_stuck_threads=4)

    given = asyncio.run(both())
    assert isinstance(given, Succeeded)
    assert len(given.data) == 3_000_000 + len('[{"text":""},"t1.1"]')


def test_a_thread_left_behind_does_not_keep_the_process(crew):
    began = time.monotonic()
    assert outcome(crew.leaves_a_thread) == Succeeded(b"1")
    assert time.monotonic() - began < 30


# -- what cannot run


def nested():
    def inner() -> None: ...

    return inner


class Callable:
    def __call__(self, arguments, ctx): ...

    def method(self, arguments, ctx): ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (nested(), "not at the top level"),
        (lambda arguments, ctx: None, "not at the top level"),
        (Callable.method, "not at the top level"),
        (Callable().method, "no function of a module"),
        (Callable(), "no function of a module"),
        (functools.partial(nested), "no function of a module"),
        (len, "no function of a module"),
    ],
    ids=["nested", "lambda", "of a class", "bound", "callable", "partial", "builtin"],
)
def test_a_handler_that_cannot_be_imported_is_refused_when_it_is_declared(handler, why):
    with pytest.raises(ValueError, match=why) as refused:
        Tool(name="t", description="", schema={}, handler=handler, isolation="process")
    assert "\n" not in str(refused.value)
    assert "tool 't'" in str(refused.value)


def test_a_handler_of_the_script_itself_is_refused_with_the_reason(here):
    (here / "script.py").write_text("from refold import tool\n@tool(isolation='process')\ndef work() -> None: ...\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].startswith(
        "ValueError: tool 'work': isolation='process' imports the handler in another process, and this one is in the"
    )


def test_a_module_without_a_file_is_refused(monkeypatch):
    names = {"__name__": "made_up"}
    exec("def work(arguments, ctx): ...", names)
    with pytest.raises(ValueError, match="made_up was not imported from a file"):
        Tool(name="t", description="", schema={}, handler=names["work"], isolation="process")


def test_a_function_that_is_no_longer_what_its_name_means_is_not_run(crew, monkeypatch):
    monkeypatch.setattr(crew, "deed", crew.later)
    made = Tool(name="t", description="", schema={}, handler=crew.by_schema, isolation="process")
    monkeypatch.setattr(crew, "by_schema", crew.plain)
    given = outcome(made)
    assert isinstance(given, Failed)
    assert (given.kind, given.performed) == ("execution_failed", "no")
    assert "by_schema in process_crew is not this tool" in given.message


def test_a_module_that_cannot_be_imported_there_is_told_and_nothing_was_performed(here, monkeypatch):
    (here / "gone_crew.py").write_text("from refold import tool\n@tool(isolation='process')\ndef work() -> None: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(here))
    gone = importlib.import_module("gone_crew")
    (here / "gone_crew.py").write_text("raise RuntimeError('changed')", encoding="utf-8")
    given = outcome(gone.work)
    assert given == Failed(
        "execution_failed",
        "The call was not begun: work could not be imported from gone_crew: RuntimeError: changed",
        performed="no",
        error_type="RuntimeError",
    )


def test_a_module_that_was_loaded_from_a_file_off_the_path_is_found_by_its_file(here):
    from importlib import util

    (here / "off_crew.py").write_text("from refold import tool\n@tool(isolation='process')\ndef work() -> int:\n    return 5\n", encoding="utf-8")
    spec = util.spec_from_file_location("some.where.off_crew", here / "off_crew.py")
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        assert outcome(module.work) == Succeeded(b"5")
    finally:
        del sys.modules[spec.name]


def test_a_process_that_the_system_does_not_give_is_told(crew, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    given = outcome(crew.later, '{"n":1}')
    assert isinstance(given, Failed)
    assert (given.performed, given.message.startswith("The call was not begun: the system gave no process")) == ("no", True)


# -- how it is ended


BACKGROUND = "(exec 9>held; sleep 3; echo late >late) & touch started; wait"


@pytest.mark.slow
def test_B014_what_a_command_put_in_the_background_ends_with_the_time_limit(crew, held, here):
    # given a shell whose child would write a file after 3 s, when its time is over
    given = outcome(crew.shell, f'{{"command":"{BACKGROUND}"}}', timeout_s=1.5)
    # then nothing is left to write it
    assert isinstance(given, Failed)
    assert (given.kind, given.performed) == ("timeout", "unknown")
    assert (here / "started").exists()
    assert held.is_let_go()
    assert not (here / "late").exists()


def test_B014_what_a_command_put_in_the_background_ends_with_the_call_that_is_cancelled(crew, held, here, monkeypatch):
    signalled = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, number: (signalled.append((group, number)), kill(group, number)))
    # given a shell whose child would write a file after 3 s, when the call is cancelled
    asyncio.run(cancelled_once(here / "started", crew.shell, f'{{"command":"{BACKGROUND}"}}'))
    # then nothing is left to write it
    assert held.is_let_go()
    assert not (here / "late").exists()
    # and the group of this process was left alone
    assert [number for _, number in signalled] == [signal.SIGTERM, signal.SIGKILL]
    assert os.getpgrp() not in {group for group, _ in signalled}


def test_B014_who_ignores_sigterm_is_killed_after_the_grace(crew, held, here):
    async def main():
        ignoring = "trap '' TERM; exec 9>held; sleep 600 & touch started; wait"
        cancelling = asyncio.create_task(cancelled_once(here / "started", crew.stubborn, f'{{"command":"{ignoring}"}}'))
        await asyncio.wait_for(appears(here / "started"), 60)
        began = time.monotonic()
        assert await cancelling == []
        return time.monotonic() - began

    taken = asyncio.run(main())
    assert processes.GRACE_S * 0.9 < taken < 2
    assert held.is_let_go()


def test_code_that_never_looks_up_is_killed_too(crew, here):
    began = time.monotonic()
    assert asyncio.run(cancelled_once(here / "started", crew.spinning)) == []
    assert time.monotonic() - began < 30


def test_a_handler_hears_that_it_is_cancelled_and_may_say_that_nothing_happened(crew, here):
    late = asyncio.run(cancelled_once(here / "started", crew.polite))
    assert late == [Failed("execution_failed", "NotPerformed: I had not begun", performed="no", error_type="NotPerformed")]


def test_an_async_handler_is_cancelled_and_cleans_up(crew, here):
    assert asyncio.run(cancelled_once(here / "started", crew.polite_async)) == []
    assert (here / "cleaned").exists()


def test_a_process_that_is_ended_before_its_handler_ran_performed_nothing(here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    file = here / "slow_crew.py"
    file.write_text(SLOW_TO_IMPORT.replace("IN_CHILD", "False"), encoding="utf-8")
    slow = importlib.import_module("slow_crew")
    file.write_text(SLOW_TO_IMPORT.replace("IN_CHILD", "True"), encoding="utf-8")
    late = asyncio.run(cancelled_once(here / "importing", slow.never))
    assert late == [Failed("execution_failed", "The call was not begun: its process was ended before the handler was called.", performed="no")]


PARENT = """
import asyncio, sys
from refold.runtime.handlers import perform
from refold.runtime.tools import ToolContext
import process_crew

asyncio.run(perform(getattr(process_crew, sys.argv[1]), sys.argv[2], ToolContext("r", 1, "t1.1", 1, "k"), timeout_s=None, max_result_bytes=9, max_stuck_threads=1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shell", "stubborn"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_lives_on_when_the_process_that_called_is_killed(crew, held, here, name, number):
    # given a process whose handler started another, which does not end by itself
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = "trap '' TERM; exec 9>held; touch started; sleep 600 & wait"
    calling = subprocess.Popen([sys.executable, "-c", PARENT, name, f'{{"command":"{command}"}}'], env=environment, stderr=subprocess.DEVNULL)
    asyncio.run(asyncio.wait_for(appears(here / "started"), 60))
    # when it is killed, or interrupted
    calling.send_signal(number)
    began = time.monotonic()
    calling.wait(30)
    # then all of them are gone
    assert time.monotonic() - began < 2
    assert held.is_let_go()
