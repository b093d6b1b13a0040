"""The request of a turn, made from the run and its transcript: a pure function, so that every exact prompt can be made again."""

from refold.projections.run import Run
from refold.projections.transcript import Transcript
from refold.runtime.ports import Request, ToolSpec


def request_of(run: Run, transcript: Transcript) -> Request:
    """What the model is asked by the open request of `run`."""
    asked = run.request
    assert asked is not None, "no request is open"
    setup = run.begun
    messages = transcript.shown(run)
    tools = () if asked.wrap_up else tuple(ToolSpec(name=tool.name, description=tool.description, schema=tool.schema) for tool in setup.tools)
    return Request(
        turn=run.turn,
        number=asked.number,
        numbered_from=run.numbered_from,
        instructions=setup.instructions,
        messages=messages,
        tools=tools,
        max_output_tokens=asked.max_output_tokens,
        answer_schema=setup.answer_schema,
        notice="" if messages and messages[-1].kind == "paused" else notice(run),  # the provider goes on from the last message, and from nothing behind it
    )


def notice(run: Run) -> str:
    """What only this request says, behind the messages: the budget that is left, and that a last turn is the last."""
    assert run.request is not None
    if run.request.wrap_up:
        return "This is the last turn: no tool can be called any more. Answer now with what you have, and say what is missing."
    budgets, spent = run.budgets, run.spent
    left = []
    if budgets.max_turns is not None:
        left.append(f"{max(0, budgets.max_turns - run.turn)} turns after this one")
    if budgets.max_tool_calls is not None:
        left.append(f"{max(0, budgets.max_tool_calls - spent.tool_calls)} tool calls")
    if budgets.max_tokens is not None:
        left.append(f"{max(0, budgets.max_tokens - spent.tokens)} tokens")
    return f"Budget left: {', '.join(left)}." if left else ""
