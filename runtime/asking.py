"""Performs one request: streams the model's parts and makes an input fact of however it ends.

Every way a stream can end is here: complete, failed, broken, silent, out of time, tokens or money, cancelled.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from refold.events import facts as f
from refold.events.words import Reason
from refold.fsm import answers
from refold.runtime import ports as p
from refold.runtime.assemble import Assembler
from refold.runtime.consults import describe
from refold.runtime.metering import Meter, Purse
from refold.runtime.text import whole

MESSAGE_MAX: Final = 2_000
NO_END: Final = "the stream ended without a reason to stop and without an end marker: it was cut off, or its server leaves both out"
GRACE_S: Final = 1.0
"""How long a stream that was told to stop is waited for."""

Answered = f.FinalProposed | f.ToolCallsRequested | f.ModelInterrupted | f.ModelFailed
End = Literal["complete", "broken", "overspent", "silent", "late", "cancelled"]


@dataclass(frozen=True)
class Allowance:
    """What one request may take: seconds until `limit` is reached, seconds of silence, tokens and money; None is no limit."""

    seconds: float | None
    limit: Reason
    idle_s: float | None
    purse: Purse


class _Stream:
    """One stream being taken in; `seen` is when its last part came."""

    def __init__(self, model: p.Model, request: p.Request, meter: Meter, show: Callable[[p.Part], None]) -> None:
        self.model, self.request, self.meter, self.show = model, request, meter, show
        self.assembler = Assembler()
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the end came; what follows is only the closing of a connection."""
        self.seen = 0.0
        self._parts: AsyncIterator[p.Part] | None = None
        """What is to be closed; None once there is nothing more."""

    async def take_in(self) -> End:
        """Take parts until the stream ends. Raises ModelError, also for whatever else the model raises."""
        loop = asyncio.get_running_loop()
        try:
            self._parts = self.model.stream(self.request)
            async for given in self._parts:
                self.seen = loop.time()
                if self.assembler.finished is not None:
                    continue  # nothing counts behind the end
                part = p.checked(given)
                if self.meter.overspent is not None and isinstance(part, GOES_ON):
                    return "overspent"
                self.meter.take(part)
                self.assembler.take(part)
                self.show(part)
                if isinstance(part, p.Finished) and not self.whole.done():
                    self.whole.set_result(None)
            self._parts = None
        except (p.ModelError, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise p.ModelError(type(error).__name__, describe(error), retryable=False) from error
        return "complete" if self.assembler.finished is not None else "broken"

    async def close(self, taking: "asyncio.Task[End]") -> None:
        """Nothing more is wanted: stop the model at once, and wait a moment until it has let go of its connection."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GRACE_S
        if not taking.done():
            taking.cancel()
            await asyncio.wait({taking}, timeout=GRACE_S)
        close = getattr(self._parts, "aclose", None)
        if taking.done() and close is not None:
            closing = loop.create_task(_closed(close))
            await asyncio.wait({closing}, timeout=max(0.0, until - loop.time()))
            closing.cancel()  # one that takes longer ends when it will
        if taking.done() and not taking.cancelled():
            taking.exception()  # of a stream that was given up nobody else asks


GOES_ON: Final = (p.TextDelta, p.ReasoningDelta, p.Refusal, p.ArgumentsDelta, p.ToolCallOpened, p.ToolCallReady)
"""Parts with which a stream takes more. A report is not one of them: it is booked when it comes, and may say that there is room after all."""


async def _closed(close: Callable[[], Any]) -> None:
    try:
        await close()
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException:  # noqa: BLE001 - what came is known, and what an adapter's clean-up raises changes nothing of it
        return


async def ask(
    model: p.Model,
    request: p.Request,
    estimated_input: int,
    allowance: Allowance,
    clock: p.Clock,
    show: Callable[[p.Part], None],
    stop: "asyncio.Future[None]",
    broken: "asyncio.Future[None]",
) -> Answered:
    """The fact that the response is; `stop` is done once the run is to end. Raises the cancellation of its own task, and the error of `broken` once that has one."""
    meter = Meter(estimated_input, allowance.purse)
    stream = _Stream(model, request, meter, show)
    began = clock.monotonic_us()
    taking = asyncio.get_running_loop().create_task(stream.take_in())
    try:
        ended = await _end(taking, stream, allowance, stop, broken)
    except p.ModelError as error:
        return _failed(error, stream, request.turn, clock.monotonic_us() - began, estimate=meter.begun)
    finally:
        await stream.close(taking)
    elapsed_us = clock.monotonic_us() - began
    match ended:
        case "complete":
            return answers.classify(stream.assembler.response(estimated_input, elapsed_us), request.turn)
        case "silent":
            silent = p.ModelError("idle_timeout", f"the model was silent for {allowance.idle_s} s", retryable=True)
            return _failed(silent, stream, request.turn, elapsed_us, estimate=True)
        case "broken":
            broke = p.ModelError("stream_broken", NO_END, retryable=True)
            return _failed(broke, stream, request.turn, elapsed_us, estimate=meter.begun)
        case "cancelled" | "late" | "overspent":
            return _cut(ended, stream, request.turn, allowance, stream.assembler.response(estimated_input, elapsed_us).output)


async def _end(taking: "asyncio.Task[End]", stream: _Stream, allowance: Allowance, stop: "asyncio.Future[None]", broken: "asyncio.Future[None]") -> End:
    """How the stream ends: by itself, or because it may not go on. Raises ModelError, and the error of `broken`."""
    loop = asyncio.get_running_loop()
    stream.seen = loop.time()
    idle_s, allowed_s = allowance.idle_s, allowance.seconds
    until = loop.time() + allowed_s if allowed_s is not None else None
    whole_at: float | None = None
    while True:
        now = loop.time()
        either: set[asyncio.Future[Any]] = {taking, stop, broken}
        if not stream.whole.done():
            either.add(stream.whole)
        elif whole_at is None:
            whole_at = now + GRACE_S
        silent_at = stream.seen + idle_s if idle_s is not None else None
        ends = [moment for moment in (until, silent_at, whole_at) if moment is not None]
        await asyncio.wait(either, timeout=max(0.0, min(ends) - now) if ends else None, return_when=asyncio.FIRST_COMPLETED)
        if broken.done():
            broken.result()
        if taking.done():
            if taking.cancelled():  # not by us: it raised the exception itself, and nobody cancelled the run
                raise p.ModelError("CancelledError", "the stream was cancelled by the model itself", retryable=False)
            return taking.result()
        if stop.done():
            return "cancelled"
        now = loop.time()
        if whole_at is not None and now >= whole_at:
            return "complete"
        if until is not None and now >= until:
            return "late"
        if idle_s is not None and now >= stream.seen + idle_s and whole_at is None:
            return "silent"


def _cut(ended: Literal["cancelled", "late", "overspent"], stream: _Stream, turn: int, allowance: Allowance, output: f.ModelOutput) -> f.ModelInterrupted:
    """What there is of a response that we ended, half a call included: it is in the log, and nowhere else."""
    kept = answers.fields_of(output) | {"calls": answers.placed(output.calls, turn), "usage": stream.assembler.usage()}
    unreported = stream.meter.unreported()
    if ended == "cancelled":
        return f.ModelInterrupted(cause="cancelled", detail="the run was cancelled while the model answered", unreported=unreported, **kept)
    limit: Reason = allowance.limit if ended == "late" else stream.meter.overspent or "max_tokens"
    if ended == "late" and allowance.seconds is not None:
        kept["elapsed_us"] = max(output.elapsed_us, round(allowance.seconds * 1_000_000))
    return f.ModelInterrupted(cause="limit", limit=limit, detail=f"the limit {limit} was reached while the model answered", unreported=unreported, **kept)


def _failed(error: p.ModelError, stream: _Stream, turn: int, elapsed_us: int, *, estimate: bool) -> f.ModelFailed:
    """A response that broke, or none; where nothing had come, nothing was used, unless that is to be estimated."""
    assembler = stream.assembler
    info = f.ErrorInfo(
        type=whole(error.type)[:200],
        message=whole(error.message)[:MESSAGE_MAX],
        retryable=error.retryable,
        code=whole(error.code)[:200],
        http_status=error.http_status,
        retry_after_s=error.retry_after_s,
        mid_stream=error.mid_stream or stream.meter.begun,
        overflow=error.overflow,
    )
    return f.ModelFailed(
        error=info,
        text=assembler.text,
        reasoning=assembler.reasoning,
        calls=answers.placed(assembler.calls, turn),
        usage=assembler.usage() or f.Usage(),
        unreported=stream.meter.unreported() if estimate else None,
        elapsed_us=elapsed_us,
    )
