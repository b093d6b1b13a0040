"""Tools as a run records them, and what user code says of a call to one: a kit with a tool of each kind, or those of somebody's agent.

Apart from the moves, because it is what users replace when they point the machine at an agent of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from hypothesis import strategies as st

from refold.events import facts as f
from refold.events.chain import signature_of
from refold.events.settings import Context
from refold.events.words import Effect
from refold.fsm.guards import ASK_USER
from refold.runtime.agent import Agent
from refold.testing.strategies import contexts

Check = Callable[[f.ProposedCall], f.Check]


@dataclass(frozen=True)
class Toolbox:
    """Tools as a run records them, and what user code says of a call to one."""

    tools: tuple[f.ToolSetup, ...]
    check: Check
    contexts: st.SearchStrategy[Context | None] = field(default_factory=contexts)
    """With what context runs begin."""


def toolbox_of(agent: Agent) -> Toolbox:
    """The tools of an agent, judged by its own schemas, predicates and keys."""
    consults = agent.consults()

    def check(call: f.ProposedCall) -> f.Check:
        return consults.calls(f.ToolCallsRequested(calls=(call,))).checks[0]

    return Toolbox(tools=agent.declared().tools, check=check)


def _plain(name: str, effect: Effect, approval: Literal["never", "always"] = "never", repeatable: bool = False) -> f.ToolSetup:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return f.ToolSetup(name=name, description="", schema=schema, effect=effect, approval=approval, repeatable=repeatable)


_KIT: Final = (
    _plain("look", "read"),
    _plain("put", "idempotent"),
    _plain("send", "side_effect"),
    _plain("pay", "side_effect", "always"),
    _plain("poll", "read", repeatable=True),
)


def _check_kit(call: f.ProposedCall) -> f.Check:
    """One tool of each kind; arguments that are no object do not validate, a fifty is against the policy."""
    tool = next((tool for tool in _KIT if tool.name == call.name), None)
    signature = signature_of([call.name, call.arguments_text])
    if call.name == ASK_USER:
        return f.Check(call=call.id, arguments=call.arguments_text, signature=signature, effect="read", question="Which year?", repeatable=True)
    refused = partial(f.Check, call=call.id, message="no", signature=signature, effect="read")
    if tool is None:
        return refused(kind="unknown_tool")
    if call.arguments_text[:1] != "{":
        return refused(kind="invalid_arguments")
    if "50" in call.arguments_text:
        return refused(kind="permission_denied")
    needed = tool.approval == "always"
    digest = signature_of(["approval", signature]) if needed else None
    return f.Check(
        call=call.id,
        arguments=call.arguments_text,
        effect=tool.effect,
        signature=signature,
        approval=needed,
        digest=digest,
        repeatable=tool.repeatable,
        retries=1,
    )


KIT: Final = Toolbox(tools=_KIT, check=_check_kit)
"""A tool of each effect, one that needs approval, one that may repeat."""
