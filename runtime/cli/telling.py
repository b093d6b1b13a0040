"""A record in a few words, for people: what `log` lists and what live progress shows, said in one place."""

from typing import Any, Final

import msgspec

from refold.events import facts as f
from refold.events.codec import Record
from refold.runtime.cli.render import one_line, short


def words(record: Record) -> str:
    """What a record says beyond its type."""
    match record.fact:
        case f.RunStarted(goal=goal):
            return one_line(goal)
        case f.RunContinued(parent=parent, message=message):
            return one_line(f"from {parent}: {message}")
        case f.RunForked(parent=parent, at=at):
            return f"from {parent} at {at}"
        case f.DriverAttached(who=who, host=host, pid=pid):
            return one_line(f"{who}@{host}:{pid}")
        case f.DriverDetached(why=why):
            return one_line(why)
        case f.ModelRequested(number=number, attempt=attempt, wrap_up=wrap_up):
            return f"request {number}" + (f", attempt {attempt}" if attempt > 1 else "") + (", for an answer alone" if wrap_up else "")
        case f.ModelFailed(error=error):
            return one_line(f"{error.type}: {error.message}")
        case f.ModelInterrupted(cause=cause, detail=detail):
            return one_line(f"{cause}: {detail}" if detail else cause)
        case f.FinalProposed(text=text, refusal=refusal):
            return one_line(text or refusal)
        case f.AnswerChecked(complaints=complaints, error=error):
            return one_line(error or "; ".join(complaints)) or "accepted"
        case f.FinalRejected(because=because, complaints=complaints):
            return one_line("; ".join(complaints)) or because
        case f.ModelErrorObserved(message=message):
            return one_line(message)
        case f.ToolCallsRequested(calls=calls):
            return ", ".join(proposal(call) for call in calls)
        case f.CallsChecked(checks=checks):
            return ", ".join(f"{check.call} {'ok' if check.kind == 'success' else check.kind}" for check in checks)
        case f.ToolCallsAccepted(calls=calls) | f.ToolResultsInjected(calls=calls):
            return ", ".join(calls) or "none"
        case f.ToolSucceeded(result=result, elapsed_us=elapsed):
            return f"{seconds(elapsed)}: {short(result)}"
        case f.ToolFailed(kind=kind, message=message) | f.ToolRejected(kind=kind, message=message) | f.ToolClosed(kind=kind, message=message):
            return one_line(f"{kind}: {message}")
        case f.ApprovalRequested(because=reason):
            return why_asked(reason)
        case f.SummaryRequested(upto=upto, author=author):
            return f"of what was said up to {upto}, {BY[author]}"
        case f.ContextCompacted() as compacted:
            return one_line(compaction(compacted))
        case f.ContextChosen(builder=builder, left_out=left_out, error=error):
            return one_line(f"{builder}: {error or f'{len(left_out)} turns left out'}")
        case f.RetryScheduled(attempt=attempt, delay_us=delay, because=because):
            return one_line(f"{because}; attempt {attempt} in {seconds(delay)}")
        case f.Sealed(key=key):
            return one_line(f"with key {key}")
        case f.RunCompleted() | f.RunStopped() | f.RunFailed() | f.RunCancelled() as ended:
            return one_line(": ".join(part for part in (ended.reason or "", ended.detail) if part))
        case other:
            return _field(other)


def compaction(fact: f.ContextCompacted) -> str:
    """What became of a compaction."""
    if fact.error:
        return f"no summary, and nothing changes: {fact.error}"
    return f"what was said up to {fact.upto} is shown as a summary, {BY[fact.author]}: {fact.summary}"


BY: Final = {"extractive": "by extraction", "model": "by the model"}


def why_asked(reason: str) -> str:
    """Why a human is asked. What a rule without a name is called is no news to anybody."""
    return one_line(reason).replace("the tool's rule <lambda>", "a rule of the tool")


def _field(fact: f.Fact) -> str:
    """The facts that have one field worth telling."""
    for name in ("question", "because", "reason", "text", "message", "verdict", "outcome", "why", "summary"):
        value: Any = getattr(fact, name, None)
        if isinstance(value, str) and value:
            return one_line(value)
    return ""


def proposal(call: f.ProposedCall) -> str:
    """A call as the model wrote it."""
    return f"{one_line(call.name, 64)} {arguments(call.arguments_text)}".strip()


def arguments(text: str) -> str:
    """The model's own text of arguments, shorter."""
    try:
        return short(msgspec.json.decode(text) if text.strip() else {}, 100)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return one_line(text, 100)


def seconds(elapsed_us: int) -> str:
    """A time that was measured."""
    return f"{elapsed_us / 1_000_000:.2f} s" if elapsed_us < 10_000_000 else f"{elapsed_us // 1_000_000} s"
