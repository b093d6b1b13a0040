"""The examples run as their first lines say, without key or network."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from refold import Agent, ScriptedModel, audit, open_store, replay, tool

EXAMPLES = Path(__file__).parents[1] / "examples"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_weather_agent_looks_up_converts_and_answers() -> None:
    store = open_store("memory:")
    run = module("weather").agent.run_sync("How warm is it in Ghent, in Fahrenheit?", store=store)
    assert (run.answer, run.tool_calls) == ("It is 68 degrees Fahrenheit in Ghent.", 2)
    assert audit(store, run.id).ok
    assert replay(store, run.id).divergence is None


def test_a_third_tool_is_one_function() -> None:
    # given the example, and a tool that is written here
    weather = module("weather")

    @tool(effect="read")
    def to_kelvin(celsius: int) -> float:
        """Degrees Celsius to kelvins."""
        return celsius + 273.15

    script: list[dict[str, Any]] = [weather.SCRIPT[0], {"calls": [{"name": "to_kelvin", "arguments": {"celsius": 20}}]}, {"text": "It is 293.15 K."}]
    agent = Agent(model=ScriptedModel(script), tools=[*weather.agent.tools.values(), to_kelvin])
    # when the agent is asked, then the new tool is used, and nothing else had to change
    run = agent.run_sync("How warm is it, in kelvins?", store=open_store("memory:"))
    assert [record.data["result"] for record in run.records if record.type == "tool_succeeded"] == [{"city": "Ghent", "celsius": 20}, 293.15]


@pytest.mark.parametrize("question", ["Find the growth rate between 2023 and 2024 from our reports."])
def test_the_reports_are_answered_with_both_cited_and_no_order_of_a_document_followed(question: str, tmp_path: Path) -> None:
    # given the folder of the quick start, in which one document gives orders
    command = [sys.executable, "-P", "-m", "refold", "run", question, "--docs", str(EXAMPLES / "reports"), "--store", f"sqlite:///{tmp_path}/log.db"]
    # when its question is asked from the command line
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # then the answer is computed and stands on both reports
    assert done.returncode == 0, done.stderr
    assert "25" in done.stdout
    assert "%" in done.stdout
    assert "[annual-2023]" in done.stdout
    assert "[annual-2024]" in done.stdout
