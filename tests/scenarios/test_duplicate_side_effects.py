"""Duplicate side effects: what was done is in the log call by call, so nothing that goes on does it again."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold import Agent, Policy, ScriptedModel, ToolContext, open_store, tool
from refold.runtime.cli import exits
from refold.testing.faults import Died, Fate, FaultyLog, mortal

CREW = '''
import time
from pathlib import Path
from refold import Agent, Policy, tool

@tool
def append(n: int) -> str:
    """Appends a line."""
    with Path("lines.txt").open("a") as lines:
        lines.write(f"{n}\\n")
    if n == 4 and not Path("released").exists():
        print("began 4", flush=True)
        time.sleep(600)
    return f"line {n}"

agent = Agent(tools=[append], policy=Policy(on_doubt="ask"))
'''


def refold(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "refold", *words, "--agent", "crew:agent", "--model", f"script:{folder / 'script.json'}"]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")} | {"PYTHONDONTWRITEBYTECODE": "1"}


def typed(folder: Path, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def lines(folder: Path) -> list[str]:
    return (folder / "lines.txt").read_text().split()


@pytest.fixture
def interrupted(tmp_path):
    """A run of five calls that got a signal in the fourth; gives its exit code."""
    (tmp_path / "crew.py").write_text(CREW, encoding="utf-8")
    calls = [{"name": "append", "arguments": {"n": n}} for n in range(1, 6)]
    (tmp_path / "script.json").write_text(json.dumps([{"calls": calls}, {"text": "done"}]), encoding="utf-8")

    def interrupt(name: str) -> int:
        process = subprocess.Popen(
            refold(tmp_path, "run", "x", "--run-id", "one"),
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            while b"began 4" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(getattr(signal, name))
            process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
        return process.returncode

    return interrupt


@pytest.mark.slow
def test_B010_after_ctrl_c_the_next_message_repeats_nothing(interrupted, tmp_path):
    # given a batch that was interrupted in its fourth call
    assert interrupted("SIGINT") == exits.CANCELLED
    (tmp_path / "script.json").write_text('[{"text": "Going on."}]', encoding="utf-8")
    # when the user says something in a new process
    done = typed(tmp_path, refold(tmp_path, "continue", "one", "continue", "--run-id", "two"))
    # then nothing was done again, what was done is in the history, and nothing old is told as new
    assert done.returncode == exits.COMPLETED, done.stderr
    assert lines(tmp_path) == ["1", "2", "3", "4"]
    assert "append" not in done.stderr
    store = open_store(f"sqlite:///{tmp_path}/.refold/log.db")
    told = {message["call_id"]: message["kind"] for message in shown(store, "two") if message["role"] == "tool"}
    store.close()
    assert told == {"p.t1.1": "success", "p.t1.2": "success", "p.t1.3": "success", "p.t1.4": "in_doubt", "p.t1.5": "cancelled"}


@pytest.mark.slow
def test_B010_after_a_kill_resume_repeats_nothing_and_says_what_it_does_not_know(interrupted, tmp_path):
    # given a batch whose process was killed in its fourth call
    assert interrupted("SIGKILL") == -signal.SIGKILL
    (tmp_path / "released").touch()
    # when it is resumed in a new process
    done = typed(tmp_path, refold(tmp_path, "resume", "one"))
    # then the fourth waits for somebody who knows, and what was done before is neither done nor told again
    assert done.returncode == exits.WAITING, done.stderr
    assert lines(tmp_path) == ["1", "2", "3", "4", "5"]
    assert "line 1" not in done.stderr
    done = typed(tmp_path, refold(tmp_path, "resolve", "one", "t1.4", "--happened", "--result", '"line 4"', "--resume"))
    assert done.returncode == exits.COMPLETED, done.stderr
    assert lines(tmp_path) == ["1", "2", "3", "4", "5"]
    assert "line 1" not in done.stderr


def shown(store: Any, run_id: str) -> list[dict[str, Any]]:
    from refold import show

    messages: list[dict[str, Any]] = show(store, run_id)["messages"]
    return messages


@pytest.mark.parametrize("process", ["the same", "another"])
def test_B029_an_answer_repeats_nothing_of_its_turn(stage, results_of, tmp_path, process):
    # given a reply with a call that runs at once and a question
    counted: list[str] = []

    @tool
    def count() -> str:
        """Counts."""
        counted.append("once")
        return f"output {len(counted)}"

    turns = [{"calls": [{"name": "count"}, {"name": "ask_user", "arguments": {"question": "Which year?"}}]}, {"text": "2023 it is"}]
    url = f"sqlite:///{tmp_path}/log.db"
    store, agent = stage.another_store(url), stage.agent(turns, [count])
    assert agent.run_sync("Do it.", store=store, run_id="r").status == "waiting_for_user"
    # when it is answered, and driven on in the same process or in one that has only the log
    if process == "another":
        store, agent = stage.another_store(url), stage.agent(turns, [count])
    store.answer_sync("r", "2023")
    result = agent.resume_sync("r", store=store)
    # then the other call is not run again, its first output stands, and one more request was made
    assert (result.status, result.answer) == ("completed", "2023 it is")
    assert counted == ["once"]
    assert results_of(result) == {"t1.1": ("success", "output 1"), "t1.2": ("success", "2023")}
    assert [request.number for model in stage.models for request in model.requests] == [1, 2]


class Bank:
    """A world outside: what was paid, by the key it was paid under."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.keys: dict[str, list[str]] = defaultdict(list)

    def pay(self, ctx: ToolContext) -> None:
        self.keys[ctx.call_id].append(ctx.idempotency_key)
        self.paid[ctx.idempotency_key] += 1


def test_B051_a_retry_of_a_call_presents_the_key_it_had(stage, results_of):
    # given a payment behind an interface that knows keys; it is made, and the reply is late
    bank = Bank()

    @tool(effect="idempotent", retries=1, timeout_s=0.05)
    def pay(amount: int, ctx: ToolContext) -> str:
        """Pays."""
        bank.pay(ctx)
        if ctx.attempt == 1:
            ctx.cancelled.wait(10)
        return "paid"

    # when the runtime tries again
    result = stage.play([{"calls": [{"name": "pay", "arguments": {"amount": 3}}]}, {"text": "done"}], [pay])
    # then the other side saw one key
    assert results_of(result)["t1.1"] == ("success", "paid")
    assert len(bank.keys["t1.1"]) == 2
    assert len(set(bank.keys["t1.1"])) == 1


@pytest.mark.parametrize("effect", ["idempotent", "side_effect"])
def test_B051_a_process_that_died_behind_the_effect_presents_the_same_key_or_none(stage, results_of, effect):
    # given a payment whose process died when it was made and not yet recorded
    bank = Bank()

    @tool(effect=effect)
    def pay(amount: int, ctx: ToolContext) -> str:
        """Pays."""
        bank.pay(ctx)
        return "paid"

    turns = [{"calls": [{"name": "pay", "arguments": {"amount": 3}}]}, {"text": "done"}]
    fate = Fate("acted", 1)
    log = FaultyLog(stage.store.log, fate)
    dying = type(stage.store)(log, "memory:")
    with pytest.raises(Died):
        mortal(Agent(ScriptedModel(turns), tools=[pay]), fate).run_sync("Do it.", store=dying, run_id="r")
    log.close()
    # when another takes the run up
    result = stage.agent(turns, [pay]).resume_sync("r", store=stage.store)
    # then where the key is known on the other side it is asked again under it, and else it is not asked again
    assert result.status == "completed"
    assert len(set(bank.keys["t1.1"])) == 1
    assert len(bank.keys["t1.1"]) == (2 if effect == "idempotent" else 1)
    assert results_of(result)["t1.1"][0] == ("success" if effect == "idempotent" else "in_doubt")


def test_B051_an_unknown_outcome_of_a_side_effect_is_not_tried_again_and_the_model_may_not_either(stage, results_of):
    # given a payment without such an interface, which is made and then late, whatever retries it allows
    bank = Bank()

    @tool(retries=3, timeout_s=0.05)
    def pay(amount: int, ctx: ToolContext) -> str:
        """Pays."""
        bank.pay(ctx)
        ctx.cancelled.wait(10)
        return "paid"

    call = {"name": "pay", "arguments": {"amount": 3}}
    # when the model makes the same call once more
    result = stage.play([{"calls": [call]}, {"calls": [call]}, {"text": "done"}], [pay])
    # then it was made once: the first is in doubt, the second is known for a repetition
    assert [kind for kind, _ in results_of(result).values()] == ["in_doubt", "duplicate_action"]
    assert list(bank.paid.values()) == [1]


def test_B051_a_new_call_has_a_new_key(stage, results_of):
    # given a payment that may be made twice
    bank = Bank()

    @tool
    def pay(amount: int, ctx: ToolContext) -> str:
        """Pays."""
        bank.pay(ctx)
        return "paid"

    call = {"name": "pay", "arguments": {"amount": 3}}
    # when the model makes it in two turns
    result = stage.play([{"calls": [call]}, {"calls": [call]}, {"text": "done"}], [pay], policy=Policy(max_duplicate_actions=2))
    # then these are two payments, under two keys
    assert [kind for kind, _ in results_of(result).values()] == ["success", "success"]
    assert len(bank.paid) == 2
    assert set(bank.paid.values()) == {1}
