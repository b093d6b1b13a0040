"""What tests of sealing and of showing share: a tool, and a run that has ended."""

import pytest

from refold import Agent, ScriptedModel, open_store, tool
from refold.runtime.store import Store
from refold.runtime.tools import Tool


@pytest.fixture(scope="session")
def look() -> Tool:
    @tool(effect="read")
    def look(at: str) -> str:
        """Looks."""
        return f"seen {at}"

    return look


@pytest.fixture
def looked(look: Tool) -> Store:
    """A store with one run, `r`: a call, another of a tool that there is not, and an answer."""
    made = open_store("memory:")
    script = [{"calls": [{"name": "look", "arguments": {"at": "north"}}, {"name": "nosuch"}]}, {"text": "Seen."}]
    Agent(model=ScriptedModel(script), tools=[look]).run_sync("Look.", store=made, run_id="r")
    return made
