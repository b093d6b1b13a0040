"""Every run replays anywhere: under another Python, hash seed, time zone and locale, and with nothing at hand but its bytes.

The pythons are those on the PATH that have what refold needs; REFOLD_KEEP_RUNS names a folder in which a test run leaves all of its runs, to be replayed the same way.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from decimal import ROUND_UP, Context, localcontext
from fractions import Fraction
from pathlib import Path

import pytest

import refold
from refold import Agent, ScriptedModel, Store, open_store, tool
from refold.events.money import shown
from refold.events.storage import Row
from refold.fsm.limits import instant, micros
from refold.runtime.transfer import export_lines
from refold.testing.anywhere import judge
from refold.testing.keeping import Keeper
from refold.testing.trajectory import Trajectory

HERE = Path(__file__).parent
ROOT = Path(refold.__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
LOGS = sorted((HERE.parent / "logs").glob("v*/*.jsonl"))
PYTHONS = ("3.11", "3.12", "3.13")
MADE_BY = ("scenarios/test_determinism.py", "scenarios/test_data_fidelity.py", "cli/test_forking.py", "fsm/test_forks.py", "testing/test_run_machine.py")
"""Tests whose runs are replayed, too: unusual texts and numbers, forks, and what the world may tell a run in any order."""
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "plain": {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    "east": {"PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "west": {"PYTHONHASHSEED": "4294967295", "TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8"},
    "south": {"PYTHONHASHSEED": "random", "TZ": "X-13:45:30", "LC_ALL": "de_DE.UTF-8", "PYTHONDEVMODE": "1", "PYTHONOPTIMIZE": "1"},
}


class Elsewhere:
    """Interpreters and environments in which kept runs are judged."""

    def __init__(self, folder: Path) -> None:
        (folder / "path").mkdir()
        (folder / "path" / "refold").symlink_to(ROOT)
        self.path = str(folder / "path")
        self.locales = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout if shutil.which("locale") else ""
        self.inherited = {name: os.environ[name] for name in ("PATH", "LOCPATH") if name in os.environ}

    def environment(self, name: str) -> dict[str, str]:
        """The variables; a language that this machine has not is replaced by the plain one."""
        chosen = {**ENVIRONMENTS[name], "PYTHONPATH": self.path, **self.inherited}
        language = chosen["LC_ALL"].partition(".")[0]
        return chosen if language in (line.partition(".")[0] for line in self.locales.splitlines()) else {**chosen, "LC_ALL": "C"}

    def judged(self, python: str, name: str, folder: Path, *agent: str) -> bytes:
        """What is said of the runs in a folder."""
        command = [python, "-P", "-m", "refold.testing.anywhere", str(folder), *agent]
        done = subprocess.run(command, env=self.environment(name), cwd=EXAMPLES.parent, capture_output=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr.decode() + "".join(line for line in done.stdout.decode().splitlines(True) if '"failed"' in line)
        return done.stdout


@functools.cache
def found(version: str) -> str:
    """The interpreter of a version that has what refold needs, or skips."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"there is no python{version} on the PATH")
    needed = "import anyio, eventsourcing, jsonschema_rs, msgspec, pydantic, transitions"
    tried = subprocess.run([python, "-P", "-c", needed], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"python{version} on the PATH has not what refold needs: {(tried.stderr.splitlines() or ['it does not start'])[-1]}")
    return python


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    return Elsewhere(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, elsewhere: Elsewhere) -> Path:
    """A folder with the golden logs, and the runs of the examples and of some tests."""
    folder = tmp_path_factory.mktemp("kept")
    env = {**os.environ, "REFOLD_KEEP_RUNS": str(folder), "PYTHONPATH": elsewhere.path}
    tests = [str(HERE.parent / name) for name in (*MADE_BY, "test_examples.py")]
    as_ever = [f"--hypothesis-profile={'ci' if os.environ.get('CI') else 'dev'}", "-p", "no:cacheprovider", f"--basetemp={folder}/made"]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-m", "not slow", *as_ever, *tests]
    done = subprocess.run(command, env=env, cwd=HERE.parents[1], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    for path in LOGS:
        shutil.copyfile(path, folder / f"{path.parent.name}-{path.name}")
    return folder


@pytest.fixture(scope="module")
def here(kept: Path, elsewhere: Elsewhere) -> bytes:
    """What is said of them by this Python, in the plain environment."""
    return elsewhere.judged(sys.executable, "plain", kept)


@pytest.mark.slow
def test_what_is_replayed_is_sound_and_of_every_kind(kept: Path, here: bytes) -> None:
    # given everything that was kept
    judged = [json.loads(line) for line in here.splitlines()]
    assert {path.name for path in kept.glob("*.jsonl")} == {each["file"] for each in judged}
    # then none of it diverges, except where a test made that up
    assert [each for each in judged if not each["ok"]] == []
    # and it is much, with the runs of the examples among it
    assert len(judged) > len(LOGS) + 150
    made = (kept / "made.tsv").read_text()
    assert all(f"tests/{name}" in made for name in MADE_BY)
    assert "test_the_weather_agent" in made
    assert "left in test_the_reports_are_answered" in made


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("version", PYTHONS)
def test_every_run_replays_identically_elsewhere(version: str, environment: str, kept: Path, here: bytes, elsewhere: Elsewhere) -> None:
    # given another Python, or another environment, in which nothing of the world can be reached
    there = elsewhere.judged(found(version), environment, kept)
    # then of every run the same is said, and the same bytes are derived
    differ = [(one, other) for one, other in zip(here.splitlines(), there.splitlines(), strict=True) if one != other]
    assert not differ, differ[0]


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_an_agent_is_asked_again_elsewhere_and_none_of_its_tools_runs(version: str, tmp_path: Path, elsewhere: Elsewhere) -> None:
    # given a run of the example
    command = ["run", "How warm is it in Ghent, in Fahrenheit?", "--agent", "examples.weather:agent", "--run-id", "weather"]
    store = f"sqlite:///{tmp_path}/log.db"
    env = {**os.environ, "PYTHONPATH": elsewhere.path}
    subprocess.run([sys.executable, "-P", "-m", "refold", *command, "--store", store], env=env, cwd=EXAMPLES.parent, capture_output=True, check=True)
    (tmp_path / "weather.jsonl").write_bytes(b"".join(export_lines(open_store(store), "weather")))
    # when it is replayed there with the agent's own code, whose tools and model raise
    (line,) = elsewhere.judged(found(version), "west", tmp_path, "examples.weather:agent").splitlines()
    # then its code says what it said here
    assert {"ok": True, "cause": "", "verdict": "unaffected"}.items() <= json.loads(line).items(), line


REACHES = (
    "import time; time.time()",
    "from time import monotonic; monotonic()",
    "import datetime; datetime.datetime.now()",
    "import datetime; datetime.date.today()",
    "import random; random.random()",
    "import random; random.Random(1).random()",
    "import secrets; secrets.token_hex()",
    "import uuid; uuid.uuid4()",
    "import os; os.urandom(1)",
    "import socket; socket.socket()",
    "import _socket; _socket.socket()",
    "import socket; socket.create_connection(('127.0.0.1', 9))",
    "import subprocess, sys; subprocess.run([sys.executable, '--version'])",
    "from refold.runtime.ports import SystemClock; SystemClock().now_us()",
    "from refold.runtime.ports import RandomIds; RandomIds().seed()",
    "agent.run_sync('Look.', store=open_store('memory:'))",
    "anywhere.without_hands(agent).tools['look'].handler()",
    "anywhere.without_hands(agent).model.stream(None)",
)
REACHING = """
import os, sys, traceback
import refold.runtime.store, secrets
from refold import *
from refold.testing import anywhere

@tool(effect="read")
def look() -> str:
    "Looks."
    return "seen"

agent = Agent(ScriptedModel([]), tools=[look])
for n, reach in enumerate(sys.argv[2:]):
    if not os.fork():
        os.dup2(os.open(f"{sys.argv[1]}/{n}", os.O_CREAT | os.O_WRONLY), 2)
        anywhere.leave_the_world()
        try:
            exec(reach)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Each reaches in a process of its own, forked from one in which everything is loaded: that takes longer than all the rest."""


def test_nothing_of_the_world_is_left_to_whoever_replays(tmp_path: Path) -> None:
    # given processes that have left the world, when each reaches for something of it
    done = subprocess.run([sys.executable, "-P", "-c", REACHING, str(tmp_path), *REACHES], capture_output=True, text=True, timeout=60, check=True)
    # then all of them are stopped
    for n, (reach, code) in enumerate(zip(REACHES, done.stdout.split(), strict=True)):
        said = (tmp_path / str(n)).read_text()
        assert code == "1", reach
        assert any(line.startswith("refold.testing.anywhere.Touched: ") for line in said.splitlines()), (reach, said)


def test_how_a_program_rounds_moves_no_run() -> None:
    # given times and amounts
    def read() -> tuple[int, int, str]:
        return micros(12.345678), instant("2026-01-02T03:04:05.678901Z"), shown(Fraction(2, 3))

    assert read() == (12_345_678, 1_767_323_045_678_901, "0.6666666666666666666666666667")
    # when the program around them counts with three digits and rounds up, then they are what they were
    with localcontext(Context(prec=3, rounding=ROUND_UP)):
        assert read() == (12_345_678, 1_767_323_045_678_901, "0.6666666666666666666666666667")


# -- keeping


def looked(store: Store, run_id: str = "r") -> bytes:
    """A run with a value that is stored beside it; its export."""

    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "seen " * 2_000

    Agent(ScriptedModel([{"calls": [{"name": "look", "arguments": {}}]}, {"text": "Done."}]), tools=[look]).run_sync("Look.", store=store, run_id=run_id)
    return b"".join(export_lines(store, run_id))


def files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("*.jsonl")]


def test_runs_in_memory_are_kept_when_nobody_holds_them_any_more(tmp_path: Path) -> None:
    # given a store that is never closed, and a run that was played by hand
    with Keeper(tmp_path) as keeper:
        export = looked(open_store("memory:"))
        Trajectory("by hand").start()
        keeper.flush()
        # when it is flushed, then both are there
        assert len(files(tmp_path)) == 2
    # and nothing that is made later
    looked(open_store("memory:"), "late")
    assert (len(files(tmp_path)), export in files(tmp_path)) == (2, True)
    # and each is judged as it is
    assert all(judge(data, "kept").ok for data in files(tmp_path))


def test_runs_on_disk_are_kept_once_when_their_store_is_closed_or_where_it_was_left(tmp_path: Path) -> None:
    # given a store that is closed, and its file, which is found again
    with Keeper(tmp_path / "kept") as keeper:
        store = open_store(f"sqlite:///{tmp_path}/log.db")
        export = looked(store)
        fork = Agent(ScriptedModel([{"text": "Otherwise."}])).fork_sync("r", 3, store=store)
        store.close()
        assert len(files(tmp_path / "kept")) == 2
        # when both are kept, and a file beside it that is none
        (tmp_path / "other.db").write_bytes(b"SQLite format 3\0 or not")
        keeper.sweep(tmp_path)
    # then each run is there once, a fork with what it inherits
    assert export in files(tmp_path / "kept")
    assert {judge(data, "kept").run_id for data in files(tmp_path / "kept")} == {"r", fork.id}
    assert len(files(tmp_path / "kept")) == 2
    # and what was no store is noted
    assert "other.db" in (tmp_path / "kept" / "missed.tsv").read_text()


def test_what_is_damaged_is_kept_as_it_is(tmp_path: Path) -> None:
    # given a run of rows that are no records
    with Keeper(tmp_path):
        log = open_store("memory:").log
        log.append("r", 0, [Row(1, "run_started", b'{"mark":1}'), Row(2, "x", b"no JSON")], create=True)
    # then it gets its verdict, like any other
    (data,) = files(tmp_path)
    assert data == b'{"mark":1}\nno JSON\n'
    judged = judge(data, "kept")
    assert (judged.ok, judged.why.partition(":")[0]) == (False, "position 1")
