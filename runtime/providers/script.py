"""The scripted model: plays a list of turns, entry k for the k-th request, and remembers what it was asked.

For tests, examples and demonstrations; it speaks the same protocol as a real one, delays, errors and broken streams included.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from refold.events.words import StopReason
from refold.runtime import decisions, ports as p
from refold.runtime.settings import Money


class ScriptError(ValueError):
    """A script that is none: one line that names the file and the entry."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptedCall(_Strict):
    """A call; a string as `arguments` is the model's own text, anything else is written as JSON."""

    name: str
    arguments: Any = {}
    id: str = ""


class ScriptedError(_Strict):
    """A provider's failure in place of an answer."""

    type: str
    message: str
    retryable: bool = False
    retry_after_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    http_status: int | None = None


class ScriptedUsage(_Strict):
    """What the provider would have reported."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cached_input_tokens: int = Field(default=0, ge=0)
    cache_write_tokens: int = Field(default=0, ge=0)
    reasoning_tokens: int = Field(default=0, ge=0)


class Entry(_Strict):
    """One turn of the model."""

    text: str | None = None
    calls: list[ScriptedCall] | None = None
    error: ScriptedError | None = None
    decision: Any = None
    usage: ScriptedUsage | None = None
    cost_usd: Money | None = None
    stop_reason: Literal["stop", "tool_calls", "length", "refusal", "content_filter", "context_overflow"] | None = None
    rationale: str = ""
    reasoning: str = ""
    refusal: str = ""
    citations: list[str] | None = None
    chunks: int = Field(default=1, ge=1, le=100_000)
    delay_s: float = Field(default=0, ge=0, le=86_400, allow_inf_nan=False)

    @model_validator(mode="after")
    def _says_something(self) -> "Entry":
        said = [name for name in ("text", "calls", "error", "decision") if getattr(self, name) is not None]
        if not said and not self.refusal and not self.reasoning:
            raise ValueError("an entry has text, calls, a decision or an error")
        if len(said) > 1 and ("error" in said or "decision" in said):
            raise ValueError(f"an entry has {' or '.join(said)}, not both")
        return self


_ENTRIES: TypeAdapter[list[Entry]] = TypeAdapter(list[Entry])


class ScriptedModel:
    """Plays `turns`, each a dictionary as in a script file; `requests` holds every request it received. Raises ScriptError."""

    def __init__(self, turns: Sequence[dict[str, Any] | Entry], *, name: str = "") -> None:
        self.entries = _entries(list(turns), name or "the script")
        self.spec = f"script:{name}" if name else "script"
        self.requests: list[p.Request] = []

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        self.requests.append(request)
        place = request.number - request.numbered_from
        if place > len(self.entries):
            raise p.ModelError(
                "script_exhausted",
                f"the script has {len(self.entries)} {'entry' if len(self.entries) == 1 else 'entries'}, and this is request {place}",
                retryable=False,
            )
        entry = self.entries[place - 1]
        if entry.delay_s:
            await asyncio.sleep(entry.delay_s)
        for part in _parts(entry):
            yield part
            await asyncio.sleep(0)


def create(name: str, *, base_url: str | None = None, settings: dict[str, Any] | None = None) -> ScriptedModel:
    """`script:FILE`. Raises ScriptError."""
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScriptError(f"the script {name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ScriptError(f"the script {name} is not UTF-8 text") from error
    try:
        turns = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScriptError(f"the script {name} is not JSON: {error}") from error
    if not isinstance(turns, list):
        raise ScriptError(f"the script {name} must be a list with one entry for each model turn, not {type(turns).__name__}")
    return ScriptedModel(turns, name=name)


def _entries(turns: list[Any], name: str) -> list[Entry]:
    try:
        return _ENTRIES.validate_python(turns)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"][1:]))
        number = f"entry {int(wrong['loc'][0]) + 1}" if wrong["loc"] else "the list"
        raise ScriptError(f"{name}, {number}{f', {place}' if place else ''}: {wrong['msg'].removeprefix('Value error, ')}") from None


def _parts(entry: Entry) -> list[p.Part]:
    if entry.error is not None:
        error = entry.error
        raise p.ModelError(
            error.type,
            error.message,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
            http_status=error.http_status,
            overflow=error.type == "context_overflow",
        )
    usage = [_usage(entry)] if entry.usage is not None or entry.cost_usd is not None else []
    if entry.decision is not None:
        *said, end = decisions.parts(entry.decision)
        return [*said, *usage, end]
    made: list[p.Part] = [p.ReasoningDelta(text=entry.reasoning)] if entry.reasoning else []
    made += [p.Refusal(text=entry.refusal)] if entry.refusal else []
    made += [p.TextDelta(text=piece) for piece in _pieces(entry.text or "", entry.chunks)]
    made += [_call(index, call) for index, call in enumerate(entry.calls or [])]
    stop: StopReason = entry.stop_reason or ("tool_calls" if entry.calls else "stop")
    citations = tuple(entry.citations) if entry.citations is not None else None
    return [*made, *usage, p.Finished(stop_reason=stop, rationale=entry.rationale, citations=citations)]


def _usage(entry: Entry) -> p.UsageUpdated:
    counts = entry.usage.model_dump() if entry.usage is not None else {}
    return p.UsageUpdated(**counts, cost_usd=entry.cost_usd)


def _call(index: int, call: ScriptedCall) -> p.ToolCallReady:
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return p.ToolCallReady(index=index, name=call.name, arguments=text, id=call.id)


def _pieces(text: str, chunks: int) -> list[str]:
    """`text` in so many deltas of about one length."""
    if not text:
        return []
    size = max(1, -(-len(text) // chunks))
    return [text[start : start + size] for start in range(0, len(text), size)]
