"""An agent under test is the one that was given: only its model and its tools pass through what watches or kills it."""

from pathlib import Path

from refold import Agent, Budgets, Context, Policy, ScriptedModel, tool
from refold.testing.faults import Fate, mortal
from refold.testing.ledger import Ledger
from refold.testing.orders import Order
from refold.testing.witness import witnessed


@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    return at


def test_an_agent_that_is_watched_or_killed_is_the_same_in_everything_else(tmp_path: Path) -> None:
    # given an agent in which nothing is as it is by default
    def polite(run: object, answer: str, citations: tuple[str, ...]) -> list[str]:
        return []

    agent = Agent(
        *(ScriptedModel([{"text": "Done."}]), "Be brief.", [look], Budgets(max_turns=3), Policy(wrap_up=False), [polite], Context(keep_turns=2)),
        name="crew",
        ask_user=False,
        answer_schema={"type": "object"},
        documents=["reports"],
        redactors=[lambda text: text.replace("secret", "***")],
        context_builder=lambda run, entries: [],
    )
    assert all(vars(agent)[name] != value for name, value in vars(Agent()).items())
    # when it is put under test
    for made in (mortal(agent, Fate()), witnessed(agent, Ledger(tmp_path), Order(agent="crew", goal="Look.", folder=str(tmp_path)))):
        # then the model and the tools are others, by the same names, and nothing else is
        assert {name for name, value in vars(made).items() if value != vars(agent)[name]} <= {"model", "tools", "validators"}
        assert made.tools.keys() == agent.tools.keys()
        assert [name for name, _ in made.validators] == ["polite"]
        assert made.model is not agent.model
