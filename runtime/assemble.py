"""Parts of a stream to one response: the same few lines for every provider and every script.

What a stream cannot be is decided elsewhere; here nothing is repaired, guessed or dropped.
"""

from typing import Any, Final

import msgspec

from refold.events import facts as f
from refold.events.words import CallId
from refold.fsm.answers import Response
from refold.projections.messages import tokens_of
from refold.runtime import ports as p
from refold.runtime.metering import usage_of
from refold.runtime.text import whole
from refold.runtime.values import to_json

PIECES_MAX: Final = 1_024


class _Text:
    """A text in many small pieces: each costs fifty bytes beyond its letters, so that they are joined now and then."""

    def __init__(self) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        if len(self._pieces) == PIECES_MAX:
            self._joined.append("".join(self._pieces))
            self._pieces.clear()

    def __str__(self) -> str:
        return whole("".join((*self._joined, *self._pieces)))


class _Open:
    """A call that is being received."""

    def __init__(self, name: str, provider_id: str) -> None:
        self.name, self.provider_id = name, provider_id
        self.arguments = _Text()


class Assembler:
    """Takes parts as they come; `response` is what they make once `Finished` has come."""

    def __init__(self) -> None:
        self._text = _Text()
        self._reasoning = _Text()
        self._refusal = _Text()
        self._calls: dict[int, _Open] = {}
        self._opaque: list[Any] = []
        self._usage: p.UsageUpdated | None = None
        self.finished: p.Finished | None = None
        self.fault = ""

    def take(self, part: p.Part) -> None:
        """One more part."""
        match part:
            case p.TextDelta(text=text):
                self._text.add(text)
            case p.ReasoningDelta(text=text):
                self._reasoning.add(text)
            case p.Refusal(text=text):
                self._refusal.add(text)
            case p.ToolCallOpened(index=index, name=name, id=provider_id):
                self._calls[index] = _Open(name, provider_id)
            case p.ArgumentsDelta(index=index, text=text):
                self._calls.setdefault(index, _Open("", "")).arguments.add(text)
            case p.ToolCallReady(index=index, name=name, arguments=arguments, id=provider_id):
                call = self._calls[index] = _Open(name, provider_id)
                call.arguments.add(arguments)
            case p.UsageUpdated():
                self._usage = part
            case p.OpaqueItem(item=item):
                self._opaque.append(msgspec.json.decode(to_json(item)))  # what is kept is what is read back
            case p.Malformed(reason=reason):
                self.fault = reason
            case p.Finished():
                self.finished = part

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self._text)

    def usage(self) -> f.Usage | None:
        """What was reported so far; None where nothing was, so that it is estimated."""
        reported = self._usage
        return usage_of(reported) if reported is not None else None

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return str(self._reasoning)

    @property
    def calls(self) -> tuple[f.ProposedCall, ...]:
        """The calls so far, in the order in which they were opened, the last of them perhaps by half."""
        return tuple(
            f.ProposedCall(id=CallId(""), name=whole(call.name), arguments_text=str(call.arguments), provider_id=whole(call.provider_id))
            for call in self._calls.values()
        )

    def response(self, estimated_input: int, elapsed_us: int) -> Response:
        """The response; of a stream that was cut, what there is of it."""
        finished = self.finished or p.Finished(stop_reason="unknown")
        calls = self.calls
        usage = self.usage()
        if usage is not None and not usage.input_tokens and (usage.output_tokens or usage.cost_usd is not None):
            # Nothing is said for nothing: what was not counted is estimated, and one estimate makes the whole an estimate.
            said = self.text + "".join(call.arguments_text for call in calls)
            written = usage.output_tokens or tokens_of(len(said.encode()))
            usage = msgspec.structs.replace(usage, input_tokens=estimated_input, output_tokens=written, estimated=True)
        output = f.ModelOutput(
            text=self.text,
            reasoning=self.reasoning,
            refusal=str(self._refusal),
            calls=calls,
            citations=tuple(whole(citation) for citation in finished.citations) if finished.citations is not None else None,
            rationale=whole(finished.rationale),
            stop_reason=finished.stop_reason,
            provider_stop_reason=whole(finished.provider_stop_reason),
            no_evidence=finished.no_evidence,
            opaque=tuple(self._opaque),
            usage=usage,
            elapsed_us=elapsed_us,
        )
        return Response(output=output, final=finished.final, fault=self.fault)
