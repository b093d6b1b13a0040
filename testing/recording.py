"""A model's answers as a run recorded them, played back by number: a model that costs something, or says something else each time, is asked for one run only.

Apart from the scripted model, whose scripts people write: this one gives back everything a log holds of a response, what its provider wants back included.
"""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.parts import ErrorInfo
from refold.runtime import ports as p
from refold.runtime.agent import Agent
from refold.runtime.models import DEFAULT
from refold.runtime.providers.script import ScriptedModel
from refold.runtime.summaries import words_of

Parts = (
    p.TextDelta
    | p.ReasoningDelta
    | p.Refusal
    | p.ToolCallOpened
    | p.ArgumentsDelta
    | p.ToolCallReady
    | p.OpaqueItem
    | p.UsageUpdated
    | p.Malformed
    | p.Finished
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One response: its parts, and the failure in which it ended, if it did."""

    parts: tuple[Parts, ...]
    error: ErrorInfo | None = None


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The responses of a run by the number of their request, and which model gave them."""

    spec: str
    answers: dict[int, Answer]


def is_repeatable(agent: Agent) -> bool:
    """Whether an agent's model says the same each time and costs nothing, as far as can be known."""
    return isinstance(agent.model, ScriptedModel) or agent.model is None or (isinstance(agent.model, str) and agent.model.split(":")[0] in (DEFAULT, "script"))


def record(records: Iterable[Record], path: Path) -> None:
    """Keep the responses of a run in a file."""
    answers: dict[int, Answer] = {}
    spec, number = "", 0
    asked: int | None = None
    for each in records:
        match each.fact:
            case f.RunStarted(setup=setup):
                spec = setup.model
            case f.ModelRequested():
                number = each.fact.number
            case f.ModelFailed() as failed:
                answers[number] = Answer(parts=tuple(_broken(failed)), error=failed.error)
            case f.ToolCallsRequested() | f.FinalProposed() | f.ModelInterrupted():
                answers[number] = Answer(parts=tuple(_parts(each.fact)))
            case f.SummaryRequested():
                asked = each.fact.number
            case f.ContextCompacted() if asked is not None:
                answers[asked] = _summary(each.fact)
            case _:
                pass
    path.write_bytes(msgspec.json.encode(Recording(spec=spec, answers=answers)))


def _broken(failed: f.ModelFailed) -> list[Parts]:
    """What came of a stream before it broke, as far as it says how far it came."""
    made: list[Parts] = [p.ReasoningDelta(text=failed.reasoning)] if failed.reasoning else []
    made += [p.TextDelta(text=failed.text)] if failed.text else []
    for n, call in enumerate(failed.calls):
        made += [p.ToolCallOpened(index=n, name=call.name, id=call.provider_id), p.ArgumentsDelta(index=n, text=call.arguments_text)]
    return [*made, *_reported(failed.usage)]


def _summary(made: f.ContextCompacted) -> Answer:
    """The answer to a request for a summary, by the summary that was made of it, or by the reason why none was."""
    reported = _reported(made.usage)
    if made.summary:
        return Answer(parts=(p.TextDelta(text=words_of(made.summary)), *reported, p.Finished(stop_reason="stop")))
    word, _, message = made.error.partition(": ")
    if message and " " not in word:  # an error of the provider's
        return Answer(parts=tuple(reported), error=ErrorInfo(type=word, message=message, retryable=False))
    return Answer(parts=(p.Malformed(reason=made.error), *reported, p.Finished(stop_reason="stop")))


def _parts(output: f.FinalProposed | f.ToolCallsRequested | f.ModelInterrupted) -> list[Parts]:
    """A response as the stream that makes it."""
    made: list[Parts] = [p.ReasoningDelta(text=output.reasoning)] if output.reasoning else []
    made += [p.OpaqueItem(item=item) for item in output.opaque]
    made += [p.TextDelta(text=output.text)] if output.text else []
    made += [p.Refusal(text=output.refusal)] if output.refusal else []
    made += [p.ToolCallReady(index=n, name=call.name, arguments=call.arguments_text, id=call.provider_id) for n, call in enumerate(output.calls)]
    if isinstance(output, f.ModelInterrupted) and output.cause == "invalid":
        made.append(p.Malformed(reason=output.detail))
    made += _reported(output.usage)
    finished = p.Finished(
        stop_reason=output.stop_reason,
        provider_stop_reason=output.provider_stop_reason,
        citations=output.citations,
        rationale=output.rationale,
        no_evidence=output.no_evidence,
    )
    return [*made, finished]


def _reported(usage: f.Usage | None) -> list[Parts]:
    """A report as it came: what was read is an estimate of ours where it is marked as one."""
    if usage is None or usage == f.Usage():
        return []
    return [
        p.UsageUpdated(
            input_tokens=0 if usage.estimated else usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            reasoning_beside=usage.reasoning_beside,
            cost_usd=usage.cost_usd,
        )
    ]


class Recorded:
    """A model that plays a recording. A request that was not made then is refused, as by a script that ran out."""

    def __init__(self, path: Path) -> None:
        self._recording = msgspec.json.decode(path.read_bytes(), type=Recording)
        self.spec = self._recording.spec

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        answer = self._recording.answers.get(request.number)
        if answer is None:
            raise p.ModelError("script_exhausted", f"request {request.number} was not made when this was recorded", retryable=False)
        for part in answer.parts:
            yield part
        if (error := answer.error) is not None:
            raise p.ModelError(
                error.type,
                error.message,
                retryable=error.retryable,
                code=error.code,
                retry_after_s=error.retry_after_s,
                http_status=error.http_status,
                mid_stream=error.mid_stream,
                overflow=error.overflow,
            )
