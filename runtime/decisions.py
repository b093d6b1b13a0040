"""Structured decisions: how a model without tool calling answers, as one JSON object that is mapped to a call, a question or a final answer.

Checked by pydantic and never parsed out of prose.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from refold.fsm.guards import ASK_USER
from refold.runtime import ports as p


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    rationale: str = ""


class UseTool(_Decision):
    """Call one tool."""

    kind: Literal["tool"]
    name: str
    arguments: dict[str, Any] = {}


class Clarify(_Decision):
    """Ask the user."""

    kind: Literal["clarify"]
    question: str


class Final(_Decision):
    """Answer. Text and calls at once are an invalid turn; here both can be said."""

    kind: Literal["final"]
    text: str
    citations: list[str] = []
    calls: list[dict[str, Any]] = []


_DECISION: TypeAdapter[UseTool | Clarify | Final] = TypeAdapter(Annotated[UseTool | Clarify | Final, Field(discriminator="kind")])


def parts(decision: Any) -> Iterator[p.Part]:
    """The parts that a decision comes to; one that does not validate is a malformed response."""
    try:
        decided = _DECISION.validate_python(decision)
    except ValidationError as error:
        wrong = error.errors()[0]
        yield p.Malformed(reason=f"the decision does not fit its schema: {'.'.join(map(str, wrong['loc'])) or 'it'}: {wrong['msg']}"[:500])
        yield p.Finished(stop_reason="stop")
        return
    match decided:
        case UseTool():
            yield p.ToolCallReady(index=0, name=decided.name, arguments=_text(decided.arguments))
            yield p.Finished(stop_reason="tool_calls", rationale=decided.rationale)
        case Clarify():
            yield p.ToolCallReady(index=0, name=ASK_USER, arguments=_text({"question": decided.question}))
            yield p.Finished(stop_reason="tool_calls", rationale=decided.rationale)
        case Final():
            yield p.TextDelta(text=decided.text)
            for index, call in enumerate(decided.calls):
                yield p.ToolCallReady(index=index, name=str(call.get("name", "")), arguments=_text(call.get("arguments", {})))
            yield p.Finished(stop_reason="stop", citations=tuple(decided.citations) or None, rationale=decided.rationale, final=True)


def _text(arguments: Any) -> str:
    return msgspec.json.encode(arguments).decode()
