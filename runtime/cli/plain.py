"""The plain agent: what `refold run GOAL` uses when no agent and no documents are named."""

from collections.abc import Sequence
from typing import Any, Final

from refold.projections.run import Run
from refold.runtime.agent import Agent
from refold.runtime.calculate import calculate as exact
from refold.runtime.text import visible
from refold.runtime.tools import tool

NAME: Final = "plain"
INSTRUCTIONS: Final = """\
You do what the user asks. Compute with calculate instead of in your head.
Ask with ask_user when the task cannot be done without knowing more, and answer in plain sentences when it is done."""


@tool(effect="read")
def calculate(expression: str) -> dict[str, Any]:
    """Exact arithmetic on integers and decimals: + - * / // % ** and parentheses, abs, ceil, floor, max, min, round."""
    return exact(expression)


def says_something(_run: Run, answer: str, _citations: tuple[str, ...]) -> Sequence[str]:
    """The one rule for the answer of an agent that nobody gave rules."""
    return [] if visible(answer) else ["the answer is empty"]


def plain_agent() -> Agent:
    """A fresh one."""
    return Agent(name=NAME, instructions=INSTRUCTIONS, tools=[calculate], validators=[says_something])
