"""Performs one request: streams the model's parts and makes an input fact of however it ends.

Every way a stream can end is here: complete, failed, broken, silent, out of time or tokens, cancelled.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from refold.events import facts as f
from refold.events.words import Reason
from refold.fsm import answers
from refold.runtime import ports as p
from refold.runtime.assemble import Assembler
from refold.runtime.consults import describe
from refold.runtime.text import whole

MESSAGE_MAX: Final = 2_000
GRACE_S: Final = 1.0
"""How long a stream that was told to stop is waited for."""

Answered = f.FinalProposed | f.ToolCallsRequested | f.ModelInterrupted | f.ModelFailed
End = Literal["complete", "broken", "tokens", "silent", "limit", "cancelled"]


@dataclass(frozen=True)
class Allowance:
    """What one request may take: seconds until `limit` is reached, seconds of silence, tokens; None is no limit."""

    seconds: float | None
    limit: Reason
    idle_s: float | None
    tokens: int | None


class _Stream:
    """One stream being taken in; `seen` is when its last part came."""

    def __init__(self, model: p.Model, request: p.Request, allowance: Allowance, show: Callable[[p.Part], None]) -> None:
        self.model, self.request, self.allowance, self.show = model, request, allowance, show
        self.assembler = Assembler()
        self.seen = 0.0

    async def take_in(self) -> End:
        """Take parts until the stream ends. Raises ModelError, also for whatever else the model raises."""
        loop = asyncio.get_running_loop()
        try:
            async for given in self.model.stream(self.request):
                self.seen = loop.time()
                if self.assembler.finished is not None:
                    continue  # nothing counts behind the end
                part = p.checked(given)
                self.assembler.take(part)
                self.show(part)
                if isinstance(part, p.UsageUpdated) and self._overspent(part):
                    return "tokens"
        except (p.ModelError, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise p.ModelError(type(error).__name__, describe(error), retryable=False) from error
        return "complete" if self.assembler.finished is not None else "broken"

    def _overspent(self, part: p.UsageUpdated) -> bool:
        most = self.allowance.tokens
        return most is not None and part.input_tokens + part.output_tokens > most and not part.cost_usd


async def ask(
    model: p.Model, request: p.Request, estimated_input: int, allowance: Allowance, clock: p.Clock, show: Callable[[p.Part], None], stop: "asyncio.Future[None]"
) -> Answered:
    """The fact that the response is; `stop` is done once the run is to end. Raises only the cancellation of its own task."""
    stream = _Stream(model, request, allowance, show)
    began = clock.monotonic_us()
    taking = asyncio.get_running_loop().create_task(stream.take_in())
    try:
        ended = await _end(taking, stream, stop)
    except p.ModelError as error:
        return _failed(error, stream.assembler, clock.monotonic_us() - began)
    finally:
        if not taking.done():
            taking.cancel()
            await asyncio.wait({taking}, timeout=GRACE_S)
        if taking.done() and not taking.cancelled():
            taking.exception()  # of a stream that was given up nobody else asks
    elapsed_us = clock.monotonic_us() - began
    match ended:
        case "complete":
            return answers.classify(stream.assembler.response(estimated_input, elapsed_us), request.turn)
        case "silent":
            silent = p.ModelError("idle_timeout", f"the model was silent for {allowance.idle_s} s", retryable=True)
            return _failed(silent, stream.assembler, elapsed_us)
        case "broken":
            broken = p.ModelError("stream_broken", "the stream ended without saying why", retryable=True)
            return _failed(broken, stream.assembler, elapsed_us)
        case "cancelled" | "limit" | "tokens":
            return _cut(ended, stream.assembler.response(estimated_input, elapsed_us).output, allowance)


async def _end(taking: "asyncio.Task[End]", stream: _Stream, stop: "asyncio.Future[None]") -> End:
    """How the stream ends: by itself, or because it may not go on. Raises ModelError."""
    loop = asyncio.get_running_loop()
    stream.seen = loop.time()
    idle_s, allowed_s = stream.allowance.idle_s, stream.allowance.seconds
    until = loop.time() + allowed_s if allowed_s is not None else None
    either: set[asyncio.Future[Any]] = {taking, stop}
    while True:
        now = loop.time()
        silent_at = stream.seen + idle_s if idle_s is not None else None
        ends = [moment for moment in (until, silent_at) if moment is not None]
        await asyncio.wait(either, timeout=max(0.0, min(ends) - now) if ends else None, return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            if taking.cancelled():  # not by us: it raised the exception itself, and nobody cancelled the run
                raise p.ModelError("CancelledError", "the stream was cancelled by the model itself", retryable=False)
            return taking.result()
        if stop.done():
            return "cancelled"
        now = loop.time()
        if until is not None and now >= until:
            return "limit"
        if idle_s is not None and now >= stream.seen + idle_s:
            return "silent"


def _cut(ended: Literal["cancelled", "limit", "tokens"], output: f.ModelOutput, allowance: Allowance) -> f.ModelInterrupted:
    """What there is of a response that we ended."""
    kept = answers.fields_of(output)
    if ended == "cancelled":
        return f.ModelInterrupted(cause="cancelled", detail="the run was cancelled while the model answered", **kept)
    limit: Reason = allowance.limit if ended == "limit" else "max_tokens"
    if ended == "limit" and allowance.seconds is not None:
        kept["elapsed_us"] = max(output.elapsed_us, round(allowance.seconds * 1_000_000))
    return f.ModelInterrupted(cause="limit", limit=limit, detail=f"the limit {limit} was reached while the model answered", **kept)


def _failed(error: p.ModelError, assembler: Assembler, elapsed_us: int) -> f.ModelFailed:
    info = f.ErrorInfo(
        type=whole(error.type)[:200],
        message=whole(error.message)[:MESSAGE_MAX],
        retryable=error.retryable,
        code=whole(error.code)[:200],
        http_status=error.http_status,
        retry_after_s=error.retry_after_s,
        mid_stream=error.mid_stream or bool(assembler.text),
    )
    return f.ModelFailed(error=info, text=assembler.text, usage=assembler.usage() or f.Usage(), elapsed_us=elapsed_us)
