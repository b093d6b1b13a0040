"""One compaction: by extraction, or from what the model answered to a request of its own, with its own instructions and without tools.

Apart from the turns' requests, because nothing that this one brings is acted on: it becomes a summary, or the reason why there is none. Pure functions.
"""

from refold.events import facts as f
from refold.fsm.compaction import WORDS_AROUND
from refold.projections import context
from refold.projections.excerpts import READ_RESULT
from refold.projections.messages import tokens_of, user
from refold.projections.run import Run
from refold.projections.transcript import Transcript
from refold.runtime import ports as p, summaries
from refold.runtime.metering import utf8_size


def extracted(asked: f.SummaryRequested, run: Run, transcript: Transcript) -> f.ContextCompacted:
    """The compaction by extraction."""
    last = next((summary for summary in reversed(transcript.summaries) if summary.author == "model"), None)
    first = context.place_behind(run, last.upto) if last is not None else 0
    places = (place for place in range(context.place_behind(run, asked.upto) - 1, first - 1, -1) if run.entries[place].kind != "user")
    backwards = (message for place in places for message in reversed(transcript.in_full(place)))
    readable = any(tool.name == READ_RESULT for tool in run.begun.tools)
    text = summaries.extract(backwards, _notes(asked, transcript), last.summary if last is not None else "", asked.bytes_max, readable=readable)
    return f.ContextCompacted(since=asked.since, upto=asked.upto, summary=text, author="extractive", digest=asked.digest)


def request_of(asked: f.SummaryRequested, run: Run, transcript: Transcript) -> p.Request:
    """What the model is asked that writes a summary: one message, in which the record is data."""
    last = transcript.summaries[-1].summary if transcript.summaries else ""
    places = (*run.past.pinned, *range(run.past.hidden, context.place_behind(run, asked.upto)))
    messages = [message for place in places for message in transcript.as_shown(place)]
    room = context.bytes_in(run, asked.estimated_input_tokens) - WORDS_AROUND
    return p.Request(
        turn=run.turn,
        number=asked.number or 0,
        numbered_from=run.numbered_from,
        instructions=summaries.SUMMARISE,
        messages=(user(summaries.record(messages, last, max(WORDS_AROUND, room))),),
        tools=(),
        max_output_tokens=tokens_of(asked.bytes_max),
    )


def summarised(asked: f.SummaryRequested, transcript: Transcript, request: p.Request, said: f.ModelOutput | f.ModelFailed) -> f.ContextCompacted:
    """The compaction by the model; where it gave no summary, why not. What it took is in the fact either way."""
    error = _error(said)
    unreported = said.unreported if isinstance(said, f.ModelFailed | f.ModelInterrupted) else None
    if said.usage is None and unreported is None:
        unreported = _estimated(request, said.text)
    return f.ContextCompacted(
        since=asked.since,
        upto=asked.upto,
        summary="" if error else summaries.told(said.text, _notes(asked, transcript), asked.bytes_max),
        author="model",
        digest=asked.digest,
        error=error,
        usage=said.usage,
        unreported=unreported,
        elapsed_us=said.elapsed_us,
    )


def not_begun(asked: f.SummaryRequested) -> f.ContextCompacted:
    """What a compaction came to that the end of the run found before it began."""
    return f.ContextCompacted(since=asked.since, upto=asked.upto, author=asked.author, digest=asked.digest, error="the run was cancelled before it began")


def _notes(asked: f.SummaryRequested, transcript: Transcript) -> list[f.Note]:
    return [kept.note for kept in transcript.notes if kept.position <= asked.upto]


def _error(said: f.ModelOutput | f.ModelFailed) -> str:
    """Why a response is no summary."""
    match said:
        case f.ModelFailed(error=error):
            return f"{error.type}: {error.message}"
        case f.ModelInterrupted(detail=detail):
            return detail
        case f.ToolCallsRequested():
            return "the model called a tool instead of writing a summary"
        case f.FinalProposed(refusal=refusal) if refusal or said.stop_reason == "refusal":
            return f"the model declined: {refusal or said.text}"
        case _:
            return ""


def _estimated(request: p.Request, text: str) -> f.Usage:
    read = sum(map(utf8_size, (request.instructions, *(message.text for message in request.messages))))
    return f.Usage(input_tokens=tokens_of(read), output_tokens=tokens_of(utf8_size(text)), estimated=True)
