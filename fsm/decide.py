"""`decide`: from the run, what the world told us and a stamp to the batch that is appended.

Pure. The inputs are folded first; then whatever follows from the state alone is derived, fact by fact, up to the next thing that only the world can answer.
Starting, resuming, recovering, handing over and replaying are this one function.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from refold.events import facts as f
from refold.events.codec import Edge, Record, Stamp, write
from refold.events.words import Digest
from refold.fsm import answers, calls, compaction, limits
from refold.fsm.machine import EDGES, Cursor, fire
from refold.fsm.timing import retry_delay
from refold.projections import context, forking
from refold.projections.messages import request_digest
from refold.projections.prefix import next_digest, past_digest
from refold.projections.revisions import SUPPORTED, UnsupportedEngine
from refold.projections.run import Run


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one command comes to: the edges to append in one transaction, and the run behind each and behind all of them."""

    edges: tuple[Edge, ...]
    runs: tuple[Run, ...]
    run: Run
    stamp: Stamp


def decide(run: Run, inputs: Sequence[f.Input], stamp: Stamp, move: Callable[[Cursor, f.Fact], None] = fire) -> Batch:
    """The batch for some input facts. Raises Illegal where one has no place here, UnsupportedEngine for rules this version does not know.

    A fact from outside derives nothing: only the driver opens or closes a call, requests the model or ends the run. `move` is one of the two implementations of a move.
    """
    cursor = Cursor(run, stamp)
    for fact in inputs:
        move(cursor, fact)
    if not all(map(from_outside, inputs)):
        while (follows := follow(cursor.run, stamp)) is not None:
            move(cursor, follows)
    return Batch(edges=tuple(cursor.edges), runs=tuple(cursor.runs), run=cursor.run, stamp=stamp)


def written(run: Run, batch: Batch) -> tuple[list[Record], dict[Digest, bytes]]:
    """The records of a batch, chained to the run's head, and the payloads they refer to."""
    records: list[Record] = []
    payloads: dict[Digest, bytes] = {}
    before = run.head
    for position, edge in enumerate(batch.edges, run.position + 1):
        record, large = write(edge, run=run.id, position=position, batch=run.position + 1, stamp=batch.stamp, before=before)
        payloads |= large
        records.append(record)
        before = record.digest
    return records, payloads


def from_outside(fact: f.Fact) -> bool:
    """Not what a tool said of its own call when the driver asked, in time or too late."""
    return fact.OUTSIDE and not (isinstance(fact, f.DoubtResolved | f.LateOutcome) and fact.by == "reconcile")


def follow(run: Run, stamp: Stamp) -> f.Derived | None:
    """The next derived fact, or None where only the world can go on."""
    if run.driver is None or run.setup is None:
        return None
    if run.setup.engine not in SUPPORTED:
        raise UnsupportedEngine(run.setup.engine)
    match run.state:
        case "idle":
            return _next_request(run, stamp)
        case "streaming_model":
            return _streaming(run, stamp)
        case "collecting_tool_requests":
            return calls.collecting(run)
        case "executing_tools":
            return calls.executing(run, stamp)
        case "injecting_tool_results":
            return _injecting(run, stamp)
        case "done":
            return None
        case _:
            assert_never(run.state)


def _next_request(run: Run, stamp: Stamp) -> f.Derived | None:
    """The next turn's request, unless the run is to end here, or something has to be done about what it shows."""
    if run.cancel is not None:
        return answers.cancelled(run.cancel)
    exceeded = _exceeded(run, stamp)
    if exceeded is None or _shorter_would_do(run, stamp, exceeded):
        if run.past.asked is not None or compaction.chooses(run):
            return None
        if (summary := compaction.due(run)) is not None:
            return summary
    if exceeded is not None:
        return _stopped(exceeded)
    wrap_up = limits.is_last_turn(run)
    return f.ModelRequested(
        number=run.number + 1,
        digest=_digest(run, bare=wrap_up),
        max_output_tokens=limits.output_limit(run),
        estimated_input_tokens=limits.estimated_input(run),
        wrap_up=wrap_up,
    )


def _digest(run: Run, *, bare: bool) -> Digest:
    """The digest of what the next request shows."""
    news = context.news(run)
    return next_digest(run, news, bare=bare) if run.rules.chains else request_digest(run.prefix, tuple(new.message for new in news))


def _shorter_would_do(run: Run, stamp: Stamp, exceeded: limits.Exceeded) -> bool:
    """Whether a limit only says that the request is too long."""
    return exceeded.reason == "window_tokens" or (exceeded.reason == "max_tokens" and limits.spent_tokens(run, stamp) is None)


def _exceeded(run: Run, stamp: Stamp) -> limits.Exceeded | None:
    """The first limit of the row that would request the model from here."""
    return limits.first_exceeded(EDGES[run.state]["model_requested"].limits, run, stamp)


def _stopped(exceeded: limits.Exceeded) -> f.RunStopped:
    return f.RunStopped(reason=exceeded.reason, detail=exceeded.detail)


# -- streaming_model


def _streaming(run: Run, stamp: Stamp) -> f.Derived | None:
    if run.cancel is None and context.has_overflowed(run):
        if run.past.asked is not None:
            return None
        if (summary := compaction.due(run)) is not None:
            return summary
    match run.asked:
        case "yes" | "no":
            return None
        case "answered":
            return answers.follows(run)
        case "failed":
            return _failed(run)
        case "lost" | "retrying":
            return _another_attempt(run, stamp)
        case "inherited":
            return _made_anew(run, stamp)
        case _:
            assert_never(run.asked)


def _failed(run: Run) -> f.Derived:
    """A provider's failure: another attempt where that may help, within its limits."""
    assert run.failure is not None
    assert run.request is not None
    if run.cancel is not None:
        return answers.cancelled(run.cancel)
    error, attempt = run.failure.error, run.request.attempt
    if error.overflow and run.rules.tells_overflow:
        return answers.overflowed(f"{error.type}: {error.message}")
    if not error.retryable:
        return f.RunFailed(reason="provider", detail=f"{error.type}: {error.message}")
    delay_us = retry_delay(run, attempt, error.retry_after_s)
    waited_us = run.spent.retry_wait_us + delay_us
    if attempt > run.policy.max_provider_retries or waited_us > limits.micros(run.policy.max_retry_wait_s):
        return f.ModelErrorObserved(kind="attempts_used_up", message=f"{error.type}: {error.message} (after {attempt} attempts)")
    return f.RetryScheduled(attempt=attempt + 1, delay_us=delay_us, because=f"{error.type}: {error.message}")


def _given_up(run: Run, error: f.ErrorInfo) -> str:
    """Why a provider that failed is not asked again."""
    most_s = run.policy.max_retry_wait_s
    if run.rules.tells_wait and error.retry_after_s is not None and run.spent.retry_wait_us + limits.micros(error.retry_after_s) > limits.micros(most_s):
        return f"the provider asks to be waited for longer than policy.max_retry_wait_s={most_s} allows ({round(error.retry_after_s)} s), with {error.type}: {error.message}"
    return f"the provider failed until its attempts were used up, the last time with {error.type}: {error.message}"


def _another_attempt(run: Run, stamp: Stamp) -> f.Derived:
    """The same request again: under its own number where it was lost with its process, under the next where it failed."""
    assert run.request is not None
    if run.cancel is not None:
        return answers.cancelled(run.cancel)
    if (exceeded := _exceeded(run, stamp) or limits.turns(forking.unasked(run), stamp)) is not None:
        return _stopped(exceeded)
    if (ending := calls.ending(run)) is not None:  # to a fork, what its parent would have gone on with may be over
        return ending
    again = run.request
    if run.rules.reserves:  # what was used meanwhile is not there to be used again
        again = msgspec.structs.replace(again, max_output_tokens=min(again.max_output_tokens, limits.output_limit(run)))
    if run.asked == "lost":
        return msgspec.structs.replace(again, delay_us=0)
    return msgspec.structs.replace(again, number=run.number + 1, attempt=again.attempt + 1, delay_us=run.delay_us)


def _made_anew(run: Run, stamp: Stamp) -> f.Derived:
    """The request that was open where a fork begins, as the fork's own: under its number, with what its settings and edits make of it."""
    assert run.request is not None
    if run.cancel is not None:
        return answers.cancelled(run.cancel)
    unasked = forking.unasked(run)
    if (exceeded := limits.first_exceeded(EDGES["injecting_tool_results"]["model_requested"].limits, unasked, stamp)) is not None:
        return _stopped(exceeded)
    if (ending := calls.ending(unasked)) is not None:  # what the parent might repeat once more
        return ending
    wrap_up = limits.is_last_turn(unasked)
    digest = past_digest(run, bare=wrap_up) if run.rules.chains else run.request.digest
    return f.ModelRequested(
        number=run.number,
        digest=digest,
        max_output_tokens=limits.output_limit(unasked),
        estimated_input_tokens=limits.estimated_input(unasked),
        wrap_up=wrap_up,
    )


# -- injecting_tool_results


def _injecting(run: Run, stamp: Stamp) -> f.Derived | None:
    """Everything the turn left is in: end the run where it has come to its end, else ask again."""
    if run.cancel is not None:
        return answers.cancelled(run.cancel)
    closed = run.open.closed if run.open is not None else None
    if run.failure is not None:
        return f.RunFailed(reason="max_provider_retries", detail=_given_up(run, run.failure.error))
    if isinstance(closed, f.FinalRejected) and closed.because == "validator_failed":
        return f.RunFailed(reason="validator", detail="; ".join(closed.complaints))
    errors = run.spent.model_errors
    if isinstance(closed, f.ModelErrorObserved) and errors > run.policy.max_model_errors:
        return f.RunFailed(reason="max_model_errors", detail=f"{errors} turns in a row came to nothing; the last: {closed.message}")
    if (ending := calls.ending(run)) is not None:
        return ending
    return _next_request(run, stamp)
