"""Real processes killed for real: a bounded part of the grid, and every runtime that is broken on purpose. The whole grid is `refold certify examples.crashtest:agent`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.projections.messages import Message, MessageCall
from refold.projections.run import Tokens
from refold.runtime.cli.parsing import Misused
from refold.runtime.cli.render import Page
from refold.testing import broken, ledger as l
from refold.testing.certificates import deeds_of, summary
from refold.testing.certify import FAMILIES, Certificate, Scenario
from refold.testing.controls import CONTROLS, Control
from refold.testing.judging import Account, Finding
from refold.testing.witness import unanswered

ROOT = Path(refold.__file__).parent


def typed(*words: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """A process of its own with nothing in it but the command: a campaign forks, and a test runner has threads."""
    return subprocess.run([sys.executable, "-P", "-m", *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def certified(*words: str, folder: Path = ROOT) -> tuple[int, Any]:
    done = typed("refold", "certify", *words, "--json", folder=folder)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.checkout
def test_an_agent_that_is_killed_everywhere_loses_nothing_and_does_nothing_twice() -> None:
    # given an agent with every kind of tool, humans and calls that overlap; when each eleventh step of its run is killed, and so on
    code, told = certified("examples.crashtest:short", "--every", "13", "--recovery", "1")
    # then
    assert told["findings"] == []
    assert (code, told["ok"], told["duplicates"], told["losses"], told["divergences"]) == (0, True, 0, 0, 0)
    assert [family["family"] for family in told["families"]] == list(FAMILIES)
    assert told["deaths"] > 50


@pytest.mark.slow
@pytest.mark.checkout
def test_with_humans_who_deny_and_look_for_themselves_it_is_the_same() -> None:
    code, told = certified("examples.crashtest:short", "--every", "19", "--recovery", "1", "--deny", "--look")
    assert (code, told["findings"]) == (0, [])


@pytest.mark.slow
@pytest.mark.checkout
def test_every_runtime_that_is_broken_on_purpose_is_caught() -> None:
    # when the same campaign is run against each
    done = typed("refold.testing.controls")
    # then
    assert "MISSED" not in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("caught  ") == len(CONTROLS) >= 12


@pytest.mark.slow
@pytest.mark.checkout
def test_processes_that_are_started_afresh_do_as_forked_ones() -> None:
    # given a program that has threads, which no fork may take apart
    code = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    code += "from refold.testing.certify import Campaign, certify\n"
    code += "told = certify(Campaign(agent='examples.crashtest:short', only=((30, 'death'), (2, 'death'))))\n"
    code += "print(told.ok, told.deaths['once'])"
    # when
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    # then
    assert done.stdout == "True 2\n", done.stderr


LEAKY = '''
import json
import os
from pathlib import Path
from refold import Agent, ScriptedModel, tool
from refold.runtime import ports as p

@tool(effect="read")
def look(at: str) -> str:
    """Looks, and sees how often somebody looked before."""
    seen = Path(os.environ["REFOLD_CERTIFY"]) / "seen"
    with seen.open("a") as file:
        file.write("x")
    return seen.read_text()

agent = Agent(ScriptedModel([{"calls": [{"name": "look", "arguments": {"at": "north"}}]}, {"text": "done"}]), tools=[look])

@tool(effect="read")
def chance() -> str:
    """Says something else each time."""
    return os.urandom(8).hex()

class Chancy:
    """A model that costs something and says something else each time; how often it was asked is written down."""

    spec = "chancy"

    async def stream(self, request):
        with open("asked", "a") as file:
            file.write(f"{request.number} ")
        if request.number == 1:
            yield p.ToolCallReady(index=0, name="keep", arguments=json.dumps({"what": os.urandom(4).hex()}), id="call_1")
            yield p.Finished(stop_reason="tool_calls")
        else:
            yield p.TextDelta(text=os.urandom(4).hex())
            yield p.UsageUpdated(input_tokens=10, output_tokens=2, cost_usd="0.5")
            yield p.Finished(stop_reason="stop")

@tool
def keep(what: str) -> str:
    """Keeps something."""
    return what

dear = Agent(Chancy(), tools=[keep])

unrepeatable = Agent(ScriptedModel([{"calls": [{"name": "chance"}]}, {"text": "done"}]), tools=[chance])
'''


@pytest.mark.slow
def test_a_read_that_is_none_is_told_with_the_line_to_see_it_again(tmp_path: Path) -> None:
    # given a tool that says it only reads, and remembers
    (tmp_path / "leaky.py").write_text(LEAKY, encoding="utf-8")
    # when
    done = typed("refold", "certify", "leaky:agent", "--keep", "kept", folder=tmp_path)
    # then
    assert done.returncode == 1, done.stderr
    assert "not certified" in done.stdout
    assert "divergence  message 2 is" in done.stdout
    assert "refold certify leaky:agent --only death@" in done.stdout
    # and the log of what went wrong is there, which a second campaign does not touch
    assert list((tmp_path / "kept").glob("*/log.db"))
    assert "not empty" in typed("refold", "certify", "leaky:agent", "--keep", "kept", folder=tmp_path).stderr


@pytest.mark.slow
def test_a_model_that_costs_something_is_asked_for_one_run_and_played_back_after(tmp_path: Path) -> None:
    # given a model that says something else each time
    (tmp_path / "leaky.py").write_text(LEAKY, encoding="utf-8")
    # when
    code, told = certified("leaky:dear", "--every", "3", folder=tmp_path)
    # then
    assert (code, told["findings"]) == (0, [])
    assert told["deaths"] > 5
    assert (tmp_path / "asked").read_text() == "1 2 "


@pytest.mark.slow
def test_an_agent_that_is_never_the_same_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY, encoding="utf-8")
    done = typed("refold", "certify", "leaky:unrepeatable", folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "two runs that nothing happened to differ" in line


def test_what_came_of_a_campaign_fits_a_terminal() -> None:
    # given a campaign of more scenarios than any has
    twin = Account(
        status="completed", reason=None, answer="", reported=Tokens(), cost_usd="0", turns=100, tool_calls=100, messages=(), requests={}, steps=100_000
    )
    many = dict.fromkeys(FAMILIES, 1_000_000)
    found = dict.fromkeys(("duplicate", "loss", "divergence"), 0)
    certificate = Certificate(agent="examples.crashtest:agent", twin=twin, scenarios=many, deaths=many, processes=10**7, found=found, told=())
    # then
    assert [line for line in summary(certificate, 1000.5, Page()) if len(line) > 80] == []


def test_a_scenario_has_a_name_by_which_it_is_asked_for_again() -> None:
    scenario = Scenario(family="once", deeds=((17, "death"), (2, "say")))
    assert scenario.name == "death@17,say@2"
    assert deeds_of(scenario.name) == scenario.deeds
    assert deeds_of(None) == ()
    for wrong in ("17", "death@0", "birth@3", "death@1;death@2"):
        with pytest.raises(Misused):
            deeds_of(wrong)


def test_a_ledger_outlives_its_writer(tmp_path: Path) -> None:
    # given lines of two processes
    for process in (1, 2):
        l.Ledger(tmp_path).note(l.Step(process=process, place="append"), durable=True)
    l.Ledger(tmp_path).note(l.Ended(process=2, call="t1.1", value={"a": [1, None]}))
    # then both are there, in order
    assert l.read(tmp_path) == [l.Step(process=1, place="append"), l.Step(process=2, place="append"), l.Ended(process=2, call="t1.1", value={"a": [1, None]})]
    assert l.read(tmp_path / "elsewhere") == []


def test_a_request_without_a_result_is_seen() -> None:
    spoken = Message(
        role="assistant", calls=(MessageCall(id="t1.1", name="look", arguments_text="{}"), MessageCall(id="t1.2", name="look", arguments_text="{}"))
    )
    assert unanswered((spoken, Message(role="tool", call_id="t1.2"))) == ("t1.1",)


def test_a_control_is_noticed_only_by_what_it_is_there_for() -> None:
    control = Control(lambda: None, "loss", "gone")
    assert control.is_seen_in(Finding(kind="loss", what="a record is gone"))
    assert not control.is_seen_in(Finding(kind="duplicate", what="a record is gone"))
    assert not control.is_seen_in(Finding(kind="loss", what="a record is there"))


def test_every_runtime_that_is_broken_on_purpose_has_its_control() -> None:
    # given the functions that put one in place
    there = [function for name, function in vars(broken).items() if not name.startswith("_") and getattr(function, "__module__", "") == broken.__name__]
    # then each is a control's, and no two controls have the same
    assert there == sorted((control.put_in_place for control in CONTROLS.values()), key=there.index)


def test_certify_needs_no_test_framework() -> None:
    # when the command's modules are loaded, then hypothesis and pytest are not
    code = "import sys, refold.testing.certificates, refold.testing.controls; print(sorted({'hypothesis', 'pytest'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n", done.stderr
