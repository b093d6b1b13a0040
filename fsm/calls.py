"""What follows for the calls of a turn: which are refused, which wait for a human, which run next, and when their results go in."""

from typing import Final

from refold.events import facts as f
from refold.events.chain import signature_of
from refold.events.codec import Stamp
from refold.events.words import Kind
from refold.fsm import limits
from refold.fsm.guards import ASK_USER
from refold.fsm.timing import tool_delay
from refold.projections.run import Call, Run

TOOL_ERRORS: Final[frozenset[Kind]] = frozenset(("execution_failed", "timeout", "invalid_result"))
"""What `on_tool_error="stop"` means."""
DOUBT: Final = "it is not known whether this action took place, and it was not repeated; find out before you do it again"


# -- collecting_tool_requests


def collecting(run: Run) -> f.Derived | None:
    """Refuse what may not run, in call order; the first check that fails wins: name, arguments, policy, limits, duplicate. Then accept the rest."""
    if run.open is None or not run.open.checked:
        return None
    repeats = cycle(run)
    seen: dict[str, int] = {}
    performing = 0
    for call in run.calls:
        check = call.check
        assert check is not None
        if not call.open:
            continue
        before = seen.get(check.signature, 0)
        refusal = _refusal(run, call, check, performing, before, repeats)
        if refusal is not None:
            return refusal
        seen[check.signature] = before + 1
        performing += call.name != ASK_USER
    return f.ToolCallsAccepted(calls=tuple(call.id for call in run.calls if call.open))


def _refusal(run: Run, call: Call, check: f.Check, performing: int, seen: int, repeats: int | None) -> f.Derived | None:
    if check.kind != "success":
        return f.ToolRejected(call=call.id, kind=check.kind, message=check.message + _again(run))
    assert run.open is not None
    if run.open.wrap_up:
        return f.ToolRejected(call=call.id, kind="limit_reached", message="this was the last turn, for the answer alone; no tool runs any more")
    left = limits.tool_calls_left(run)
    if left is not None and call.name != ASK_USER and performing >= left:
        return f.ToolRejected(call=call.id, kind="limit_reached", message=_no_more(run))
    if repeats is not None:
        message = f"the last {repeats} decisions repeat; the run ends here. A tool that may repeat is declared with repeatable=True"
        return f.DuplicateActionBlocked(call=call.id, times=run.policy.cycle_repeats, message=message)
    times = performed_before(run, check) + seen
    if check.repeatable or times < run.policy.max_duplicate_actions:
        return None
    return f.DuplicateActionBlocked(call=call.id, times=times, message=_repeated(call, times))


def _repeated(call: Call, times: int) -> str:
    return f"{call.name} already ran {times} time{'s' * (times != 1)} with these arguments, and nothing has changed since: change the plan. A tool that may repeat is declared with repeatable=True"


def _no_more(run: Run) -> str:
    return f"the limit of {run.budgets.max_tool_calls} tool calls is reached; answer with what you have"


def _again(run: Run) -> str:
    """What is added for a model that sends what was just refused: the same words would be read as an invitation to try once more."""
    latest = run.decisions[-1:]
    times = next((n for n, decision in enumerate(reversed(run.decisions)) if (decision,) != latest), len(run.decisions))
    return f" This was refused {times} times in a row, with the same arguments each time: do not repeat it." if times > 1 else ""


def performed_before(run: Run, check: f.Check) -> int:
    """How often the action counts: a side effect over the whole run, the others since another action that is no read succeeded; a message of the user starts both again."""
    after = run.counted_from
    if check.effect != "side_effect":
        write = run.last_write
        if write is not None and write.signature == check.signature:
            write = run.other_write
        after = max(after, write.place if write is not None else 0)
    return run.actions.count(check.signature, after)


def cycle(run: Run) -> int | None:
    """The length of the cycle that the latest decisions make: a suffix repeated `cycle_repeats` times since the user last spoke."""
    repeats, made = run.policy.cycle_repeats, run.decisions
    for length in run.policy.cycle_lengths if repeats > 1 else ():
        if 0 < length * repeats <= len(made) and made[-1] == made[-1 - length] and made[-length * repeats :] == made[-length:] * repeats:
            return length
    return None


# -- executing_tools


def executing(run: Run, stamp: Stamp) -> f.Derived | None:
    """Settle what ended, ask the humans, then start the next call; inject when every call has its result."""
    for call in run.calls:
        settled = _settle(run, call, stamp)
        if settled is not None:
            return settled
    closing = _closing(run, stamp)
    for call in run.calls:
        if call.phase in ("closed", "started"):
            continue
        if closing is not None:
            return f.ToolClosed(call=call.id, kind=closing[0], message=_why(run, call, closing[1]))
        if run.forked_from is not None and (over := _over(run, call)) is not None:
            return f.ToolClosed(call=call.id, kind=over[0], message=over[1])
        if call.phase == "accepted" and (asked := _ask(run, call, stamp)) is not None:
            return asked
    ready = next((call for call in run.calls if call.phase in ("accepted", "ready", "retrying", "unknown")), None)
    if ready is not None:
        return start(run, ready) if _has_room(run, ready) else None
    if any(call.open for call in run.calls):
        return None
    return f.ToolResultsInjected(calls=tuple(call.id for call in run.calls))


def _has_room(run: Run, ready: Call) -> bool:
    """Whether a call may start beside those that run: calls that declare it may overlap, up to `parallel_tools`; any other runs alone, in its place."""
    running = [call for call in run.calls if call.phase == "started"]
    overlap = all(call.check is not None and call.check.concurrent for call in (*running, ready))
    return not running or (overlap and len(running) < run.policy.parallel_tools)


def _settle(run: Run, call: Call, stamp: Stamp) -> f.Derived | None:
    """What follows from something that happened to one call."""
    if call.notes_left:
        note = call.notes_left[0]
        return f.NoteStored(call=call.id, text=note.text, source_ids=note.source_ids)
    match call.phase:
        case "failed":
            return _failed(run, call, stamp)
        case "unknown":
            return _lost(call)
        case "doubt" if _closing(run, stamp) is not None or (run.policy.on_doubt == "tell_model" and not call.to_reconcile):
            return f.ToolClosed(call=call.id, kind="in_doubt", message=DOUBT)
        case "waiting" if call.expires_at is not None and call.expires_at <= stamp.at:
            return f.ApprovalExpired(call=call.id)
        case _:
            return None


def _failed(run: Run, call: Call, stamp: Stamp) -> f.Derived:
    """An attempt ended without a result: another one where that may help and is safe, else its result."""
    failed, check = call.failed, call.check
    assert failed is not None
    assert check is not None
    if check.effect == "side_effect" and failed.performed != "no" and failed.kind in ("timeout", "cancelled"):
        return f.ToolInDoubt(call=call.id, message=failed.message)
    again = failed.retryable or (failed.kind == "timeout" and check.effect == "idempotent")
    safe = check.effect != "side_effect" or failed.performed == "no"
    if again and safe and call.attempt <= check.retries and _closing(run, stamp) is None:
        delay_us = tool_delay(run, call.id, call.attempt)
        return f.RetryScheduled(call=call.id, attempt=call.attempt + 1, delay_us=delay_us, because=failed.message)
    return f.ToolClosed(call=call.id, kind=failed.kind, message=failed.message)


def _lost(call: Call) -> f.Derived | None:
    """A call that was started by a driver that is gone: in doubt where it may not run twice; else it is ready to be begun again."""
    assert call.check is not None
    if call.check.effect != "side_effect":
        return None
    return f.ToolInDoubt(call=call.id, message="the process that ran it is gone, and its outcome is unknown")


def _closing(run: Run, stamp: Stamp) -> tuple[Kind, str] | None:
    """Why no further call of this turn runs, if so: with what result and message the open ones are closed."""
    if run.cancel is not None:
        return "cancelled", f"the run was cancelled by {run.cancel.who}{NOT_RUN}"
    if run.policy.on_tool_error == "stop" and any(call.kind in TOOL_ERRORS for call in run.calls):
        return "cancelled", STOPPED
    exceeded = limits.first_exceeded(limits.BEFORE_TOOLS, run, stamp)
    return ("limit_reached", exceeded.detail) if exceeded is not None else None


NOT_RUN: Final = " before this call ran"
STOPPED: Final = "an earlier call of the turn failed, and the policy is to stop"


def _over(run: Run, call: Call) -> tuple[Kind, str] | None:
    """Why a call that was accepted and not begun is not to begin, if so: a fork may have been given less than its parent was."""
    check = call.check
    assert check is not None
    if call.name == ASK_USER or call.attempt or call.phase not in ("accepted", "waiting", "ready"):
        return None
    if limits.tool_calls_left(run) == 0:
        return "limit_reached", _no_more(run)
    times = performed_before(run, check)
    if check.repeatable or call.superseded_by or times < run.policy.max_duplicate_actions:
        return None
    return "duplicate_action", _repeated(call, times)


def _why(run: Run, call: Call, why: str) -> str:
    """Why an open call is closed; one that a lost process had begun may have acted."""
    if call.phase != "unknown" or not run.rules.tells_begun:
        return why
    return f"{why.removesuffix(NOT_RUN)}; the process that ran this call is gone, and what became of it is unknown"


def _ask(run: Run, call: Call, stamp: Stamp) -> f.Derived | None:
    """What a human must be asked before this call can go on."""
    check = call.check
    assert check is not None
    if call.name == ASK_USER:
        return f.ClarificationRequested(call=call.id, question=check.question)
    if not check.approval:
        return None
    assert check.digest is not None
    expiry_s = run.policy.approval_expiry_s
    expires_at = stamp.at + limits.micros(expiry_s) if expiry_s is not None else None
    return f.ApprovalRequested(call=call.id, digest=check.digest, because=check.approval_reason, expires_at=expires_at)


def start(run: Run, call: Call) -> f.ToolStarted:
    """The intent to run a call: its next attempt, after its delay; one that a vanished driver had begun is begun again, under the same key."""
    delay_us = call.delay_us if call.phase == "retrying" else 0
    attempt = call.attempt if call.phase == "unknown" else call.attempt + 1
    return f.ToolStarted(call=call.id, attempt=attempt, key=key(run, call), delay_us=delay_us)


def key(run: Run, call: Call) -> str:
    """The idempotency key: from the run that recorded the proposal, the call's place in it and the tool's business key; the same for every attempt."""
    assert call.check is not None
    return signature_of([call.proposed_in, call.id, call.check.key])


# -- injecting_tool_results


def ending(run: Run) -> f.Derived | None:
    """The end that the turn's calls or claims brought about, if any."""
    length = cycle(run)
    if length is not None:
        return f.RunFailed(reason="cycle", detail=f"the last {length} decision{'s' * (length != 1)} repeated {run.policy.cycle_repeats} times")
    if run.open is None or not isinstance(run.open.closed, f.ToolResultsInjected):
        return None
    broken = next((call for call in run.calls if call.kind in TOOL_ERRORS), None)
    if broken is not None and run.policy.on_tool_error == "stop":
        return f.RunFailed(reason="on_tool_error", detail=f"{broken.name} ({broken.id}) ended as {broken.kind}, and the policy is to stop")
    refused = any(call.kind == "limit_reached" for call in run.calls)
    if run.open.wrap_up:
        most = run.budgets.max_turns
        if most is not None and run.turn >= most:
            return f.RunStopped(reason="max_turns", detail=f"the limit of {most} turns is reached, and the last one brought calls instead of an answer")
        if not 0 < run.told_limit < run.turn:
            exceeded = limits.scarcer(run)
            return f.RunStopped(reason=exceeded.reason, detail=exceeded.detail)
        return _out_of_calls(run)
    if refused and 0 < run.told_limit < run.turn:
        return _out_of_calls(run)
    return None


def _out_of_calls(run: Run) -> f.RunStopped:
    return f.RunStopped(reason="max_tool_calls", detail=f"the limit of {run.budgets.max_tool_calls} tool calls is reached, and the model went on calling")
