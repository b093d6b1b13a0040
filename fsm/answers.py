"""What a response is, and what follows from one that is no set of calls: the claim, the refusal, the turn that came to nothing.

`classify` is asked by the shell before it appends; everything else is derived.
"""

from typing import Any

import msgspec

from refold.events import facts as f
from refold.events.words import CallId
from refold.projections.messages import visible
from refold.projections.run import Run


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response as it was assembled from the stream; `final` where the model marked its text as the answer."""

    output: f.ModelOutput
    final: bool = False
    fault: str = ""
    """Why it is no legal turn, where its adapter could tell."""


def classify(response: Response, turn: int) -> f.FinalProposed | f.ToolCallsRequested | f.ModelInterrupted:
    """The input fact that a complete response is. Calls are named by their place: `t3.2`."""
    output = msgspec.structs.replace(response.output, calls=placed(response.output.calls, turn))
    fields = fields_of(output)
    if output.stop_reason == "content_filter":
        return f.ModelInterrupted(cause="filtered", detail="the provider's content filter withheld the response", **fields)
    if output.stop_reason == "context_overflow":
        return f.ModelInterrupted(cause="overflow", detail="the provider stopped the response there", **fields)
    if output.calls and output.stop_reason == "length":
        return f.ModelInterrupted(
            cause="length", detail="the response was cut off at the output limit, so none of its calls was run; call again with smaller arguments", **fields
        )
    if (fault := _fault(response)) is not None:
        return f.ModelInterrupted(cause="invalid", detail=fault, **fields)
    if output.calls:
        return f.ToolCallsRequested(**fields)
    if output.stop_reason == "pause":
        return f.ModelInterrupted(cause="paused", detail="the provider paused the response, and is asked to go on", **fields)
    return f.FinalProposed(**fields)


def placed(calls: tuple[f.ProposedCall, ...], turn: int) -> tuple[f.ProposedCall, ...]:
    """Calls named by their place."""
    return tuple(msgspec.structs.replace(call, id=CallId(f"t{turn}.{n}")) for n, call in enumerate(calls, 1))


def _fault(response: Response) -> str | None:
    """Why a response is no legal turn, in words for the model."""
    output = response.output
    if response.fault:
        return response.fault
    if output.calls and response.final:
        return "a response is either a final answer or tool calls, and this one was both; none of its calls was run"
    named = [call.provider_id for call in output.calls if call.provider_id]
    twice = next((name for n, name in enumerate(named) if name in named[:n]), None)
    if twice is not None:
        return f"two calls of the response have the id {twice[:80]!r}; none of its calls was run"
    said = visible(output.text) or output.refusal or (output.opaque and output.stop_reason == "pause")
    if not output.calls and not said and output.stop_reason != "refusal":
        return "the response was empty: neither an answer nor a tool call"
    return None


def cancelled(cancel: f.CancelRequested) -> f.RunCancelled:
    """The end that somebody asked for."""
    return f.RunCancelled(who=cancel.who, detail=cancel.reason or f"cancelled by {cancel.who}")


def fields_of(output: f.ModelOutput) -> dict[str, Any]:
    """What a response said, as the fields of the fact that it becomes."""
    return {name: getattr(output, name) for name in f.ModelOutput.__struct_fields__}


def follows(run: Run) -> f.Derived | None:
    """What follows from an answered request that asked for no calls."""
    assert run.open is not None
    output = run.open.output
    if isinstance(output, f.ModelInterrupted):
        return _interrupted(run, output)
    if isinstance(output, f.FinalProposed) and run.open.verdict is not None:
        return _claimed(run, output, run.open.verdict)
    return None


def _interrupted(run: Run, output: f.ModelInterrupted) -> f.Derived:
    if run.cancel is not None:
        return cancelled(run.cancel)
    match output.cause:
        case "limit":
            return f.RunStopped(reason=output.limit or "timeout_s", detail=output.detail)
        case "filtered" if run.policy.on_refusal == "stop":
            return f.RunFailed(reason="refusal", detail=output.detail)
        case "filtered":
            return f.ModelErrorObserved(kind="filtered", message=_to_model(output.detail))
        case "length":
            return f.ModelErrorObserved(kind="length", message=_to_model(output.detail))
        case "paused":
            return f.ModelPaused()
        case "overflow":
            return overflowed(output.detail)
        case "cancelled" | "invalid":
            return f.ModelErrorObserved(kind="invalid_turn", message=_to_model(output.detail))


def overflowed(words: str) -> f.RunFailed:
    """The end of a run whose request was more than the model can read, and could not be made shorter: asking again would change nothing."""
    return f.RunFailed(
        reason="provider", detail=f"the request was longer than the model's window ({words}); continue with a model that reads more, or begin anew"
    )


def _to_model(fault: str) -> str:
    return f"Your last response could not be used: {fault}."


def _claimed(run: Run, output: f.FinalProposed, verdict: f.AnswerChecked) -> f.Derived:
    """A claim and what the validators said of it; a message of the user that is in the log before it is accepted comes first."""
    assert run.open is not None
    if run.cancel is not None:
        return cancelled(run.cancel)
    if run.unheard:
        return f.FinalRejected(because="user_said")
    if output.refusal or output.stop_reason == "refusal":
        if run.policy.on_refusal == "stop":
            return f.RunFailed(reason="refusal", detail=f"the model declined: {output.refusal or output.text or 'without a word'}")
        return f.FinalRejected(because="refusal")
    if output.stop_reason == "length":
        return f.FinalRejected(because="length")
    if verdict.error:
        return f.FinalRejected(because="validator_failed", complaints=(verdict.error,))
    if verdict.complaints:
        return f.FinalRejected(because="complaints", complaints=verdict.complaints)
    detail = "answered in the last turn that the budget allowed" if run.open.wrap_up else ""
    return f.RunCompleted(answer_at=run.open.position, reason="no_evidence" if output.no_evidence else None, detail=detail)
