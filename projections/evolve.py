"""`evolve`: one more fact, folded into the run.

The one place where state changes; deciding, checking a log and showing one all go through it. The match ends in `assert_never`: a new fact has its branch here or nothing type-checks.
"""

from typing import Any, assert_never

from msgspec.json import decode

from refold.events import facts as f
from refold.events.chain import NOTHING, digest_of, signature_of
from refold.events.words import CallId, Digest, Kind, State
from refold.projections import context, forking, spending
from refold.projections.messages import Message, MessageCall, assistant, encode, failure, is_repeatable, paused, quoted, told, user, visible
from refold.projections.prefix import past_digest, start
from refold.projections.run import Call, Driver, Run, Turn, Write, replace
from refold.projections.spending import active


def evolve(run: Run, fact: f.Fact, *, target: State, at: int, head: Digest = NOTHING) -> Run:
    """The run after one more fact; `target` is the state that its row of the table leads to."""
    position = run.position + 1
    after = _changed(run, fact, position, at)
    shown, commands = after.fresh_shown, after.commands
    if after.fresh is not run.fresh:
        if new := after.fresh[len(run.fresh) :]:
            shown = (*run.fresh_shown, *context.cut_each(after, new))
        elif not after.fresh:  # all was shown; where a fork shows something else instead, it says so itself
            shown = ()
    if command := getattr(fact, "command_id", ""):
        commands = commands.add(command, position)
    return replace(after, position=position, at=at, head=head, state=target, fresh_shown=shown, commands=commands)


def _changed(run: Run, fact: f.Fact, position: int, at: int) -> Run:
    """What a fact changes beside place and state; the frequent ones first."""
    match fact:
        case f.ToolStarted():
            return _started(run, fact)
        case f.ToolSucceeded():
            return _succeeded(run, fact, position)
        case f.ToolResultsInjected():
            return _injected(run, fact)
        case f.ModelRequested():
            return _requested(run, fact, position)
        case f.ToolCallsRequested():
            calls = tuple(Call(id=call.id, proposed=call, proposed_in=run.id) for call in fact.calls)
            return _answered(run, fact, Turn(output=fact, position=position, calls=calls))
        case f.CallsChecked():
            return _checked(run, fact)
        case f.ToolCallsAccepted():
            accepted = set(fact.calls)
            return _with_calls(run, [replace(c, phase="accepted") if c.id in accepted else c for c in run.calls])
        case f.ToolFailed():
            failed = _update(run, fact.call, phase="failed", failed=fact, performed=fact.performed)
            return replace(failed, spent=active(failed.spent, fact.elapsed_us))
        case f.RetryScheduled():
            if fact.call is not None:
                return _update(run, fact.call, phase="retrying", delay_us=fact.delay_us)
            waited = replace(run.spent, retry_wait_us=run.spent.retry_wait_us + fact.delay_us)
            return replace(run, asked="retrying", delay_us=fact.delay_us, spent=waited)
        case f.ToolRejected():
            return _told(_close(run, fact.call, fact.kind, failure(fact.kind, fact.message)), fact.kind)
        case f.DuplicateActionBlocked():
            return _close(run, fact.call, "duplicate_action", failure("duplicate_action", fact.message))
        case f.ToolClosed():
            return _close(run, fact.call, fact.kind, failure(fact.kind, fact.message))
        case f.FinalProposed() | f.ModelInterrupted():
            return _answered(run, fact, Turn(output=fact, position=position))
        case f.AnswerChecked():
            assert run.open is not None
            return replace(run, open=replace(run.open, verdict=fact))
        case f.FinalRejected() | f.ModelErrorObserved():
            return _turned_down(run, fact)
        case f.ModelPaused():
            return _paused(run, fact)
        case f.ModelFailed():
            size = spending.said_in(fact) if run.rules.settles else len(fact.text.encode("utf-8", "replace"))
            after = replace(spending.settled(run, fact.usage, fact.unreported, fact.elapsed_us, size), asked="failed", failure=fact)
            return context.overflowed(after) if fact.error.overflow else after
        case f.UsageUpdated():
            return spending.reported(run, fact.usage) if run.rules.settles else run
        case f.StreamCheckpointed():
            return spending.checkpointed(run, fact) if run.rules.settles else run
        case f.ApprovalRequested():
            return _update(run, fact.call, phase="waiting", approval=fact.digest, because=fact.because, expires_at=fact.expires_at, since=at)
        case f.ClarificationRequested():
            return _update(run, fact.call, phase="waiting", question=fact.question, since=at)
        case f.ApprovalGranted():
            return _granted(run, fact, at)
        case f.ApprovalDenied():
            return _close(run, fact.call, "approval_denied", failure("approval_denied", fact.reason))
        case f.ApprovalExpired():
            return _close(run, fact.call, "approval_denied", failure("approval_denied", "nobody approved this call in time"))
        case f.ClarificationReceived():
            return _close(run, fact.call, "success", fact.text)
        case f.CallSuperseded():
            return _update(run, fact.call, phase="ready", check=fact.check, grant=fact.check.digest, superseded_by=fact.who)
        case f.ToolInDoubt():
            return _update(run, fact.call, phase="doubt", performed="unknown", because=fact.message, since=at)
        case f.DoubtResolved():
            return _resolved(run, fact)
        case f.NoteStored():
            call = run.call(fact.call)
            assert call is not None
            return _update(run, fact.call, notes_left=call.notes_left[1:])
        case f.RunStarted():
            return _begun(replace(run, goal=fact.goal, fresh=(user(fact.goal),)), fact.setup, at)
        case f.RunContinued():
            return _continued(run, fact, at)
        case f.RunForked():
            return forking.forked(run, fact, at)
        case f.DriverAttached():
            return _attached(run, fact, at)
        case f.DriverDetached():
            return replace(run, driver=None)
        case f.UserSaid():
            return replace(run, unheard=(*run.unheard, fact.text), counted_from=len(run.actions), decisions=())
        case f.CompactionRequested():
            return replace(run, past=replace(run.past, wanted=True))
        case f.CancelRequested():
            return replace(run, cancel=run.cancel or fact)
        case f.RunCompleted() | f.RunStopped() | f.RunFailed() | f.RunCancelled():
            return _ended(run, fact)
        case f.ContextChosen():
            return context.chosen(run, fact, position)
        case f.SummaryRequested():
            return replace(run, past=replace(run.past, asked=fact), number=run.number if fact.number is None else fact.number)
        case f.ContextCompacted():
            return _compacted(run, fact, position)
        case f.LateOutcome() | f.Sealed() | f.Erased():
            return run
        case _:
            assert_never(fact)


def _begun(run: Run, setup: f.Setup, at: int) -> Run:
    """Instructions and tools are the first bytes of every request: their digest and size are where the prefix begins."""
    first = encode((setup.instructions, setup.tools))
    after = replace(run, setup=setup, started_at=at, prefix=digest_of(first), size=len(first))
    if not after.rules.chains:
        return after
    return replace(after, prefix=start(setup, bare=False), size=context.base_size(after))


def _continued(run: Run, fact: f.RunContinued, at: int) -> Run:
    """The parent's transcript is a part of the prefix; budgets, counts and decisions begin anew."""
    begun = _begun(replace(run, parent=fact.parent, goal=fact.goal), fact.setup, at)
    sources = begun.sources
    for source in fact.sources:
        sources = sources.add(source, 0)
    said = {"unheard": (fact.message,)} if fact.message else {"fresh": (told(GO_ON),)}
    if begun.rules.chains:
        return replace(context.inherited(begun, fact), sources=sources, **said)
    return replace(begun, prefix=signature_of([begun.prefix, fact.transcript]), size=begun.size + fact.size, sources=sources, **said)


GO_ON = "Go on with the task."
"""What a continuation without a message tells the model: no request ends with what the model itself said."""


# -- the request and the response


def _requested(run: Run, fact: f.ModelRequested, position: int) -> Run:
    if run.state == "streaming_model":  # another attempt, or the same request after its process was lost
        again = context.requested_anew(run, fact) if run.asked == "inherited" else run
        return replace(again, request=fact, number=fact.number, asked="yes", failure=None)
    run = context.requested(run, fact, position)
    return replace(
        run,
        turn=run.turn + 1,
        number=fact.number,
        request=fact,
        asked="yes",
        failure=None,
        open=None,
        fresh=(),
        unheard=(),
        spent=replace(run.spent, retry_wait_us=0) if run.spent.retry_wait_us else run.spent,
    )


def _compacted(run: Run, fact: f.ContextCompacted, position: int) -> Run:
    """Older turns give way to a summary; a request that was too long for the model is to be made again."""
    after = spending.used(context.compacted(run, fact, position), fact.usage, fact.unreported, fact.elapsed_us)
    if run.state != "streaming_model" or fact.error:
        return after
    assert run.request is not None
    digest = past_digest(after, bare=run.request.wrap_up)
    shorter = replace(run.request, digest=digest, estimated_input_tokens=context.tokens(after, context.past_size(after)))
    return replace(after, request=shorter, asked="retrying", delay_us=0, open=None, failure=None)


def _answered(run: Run, output: f.ModelOutput, turn: Turn) -> Run:
    unreported = output.unreported if isinstance(output, f.ModelInterrupted) else None
    if run.rules.settles:
        size = spending.said_in(output)
    else:
        size = len((output.text + "".join(call.arguments_text for call in output.calls)).encode("utf-8", "replace"))
    if run.request is not None and run.request.wrap_up:
        turn = replace(turn, wrap_up=True)
    after = replace(spending.settled(run, output.usage, unreported, output.elapsed_us, size), asked="answered", open=turn)
    return context.answered(after)


def _turned_down(run: Run, fact: f.FinalRejected | f.ModelErrorObserved) -> Run:
    """The turn came to nothing: what it said stays in the transcript, followed by what the model is told."""
    errors, failure = run.spent.model_errors, None
    if isinstance(fact, f.FinalRejected):
        message, errors = rejection(fact), 0
        run = _decided(run, answer_signature(run.open.output)) if run.open is not None else run
    else:
        message, errors, failure = _told_of_error(fact), errors + (fact.kind != "attempts_used_up"), run.failure
    output = run.open.output if run.open is not None else None
    said = assistant(output.text or output.refusal, output.opaque) if output is not None else ()
    turn = replace(run.open, closed=fact) if run.open is not None else None
    fresh = (*run.fresh, *said, *((told(message),) if message else ()))
    return replace(run, fresh=fresh, open=turn, request=None, asked="no", failure=failure, spent=replace(run.spent, model_errors=errors))


def _paused(run: Run, fact: f.ModelPaused) -> Run:
    """What was said so far is a message of its own, whole, since its provider goes on from just there."""
    assert run.open is not None
    said = paused(run.open.output.text, run.open.output.opaque)
    return replace(run, fresh=(*run.fresh, *said), open=replace(run.open, closed=fact), request=None, asked="no")


def _told_of_error(fact: f.ModelErrorObserved) -> str:
    return "" if fact.kind == "attempts_used_up" else fact.message


def rejection(fact: f.FinalRejected) -> str:
    """What the model is told of a claim that does not stand; nothing where a message of the user came first."""
    match fact.because:
        case "user_said":
            return ""
        case "length":
            return "Your answer was cut off at the output limit. Answer again, shorter."
        case "refusal":
            return "You declined. If a part of the task can be done, do that part; otherwise say what cannot be done and why."
        case "validator_failed" | "complaints":
            return "Your answer was not accepted:\n" + "\n".join(f"- {complaint}" for complaint in fact.complaints)


def answer_signature(output: f.ModelOutput) -> Digest:
    """A claim as a decision: what was said, without commentary."""
    return signature_of(["answer", output.text, output.refusal])


# -- calls


def _checked(run: Run, fact: f.CallsChecked) -> Run:
    assert run.open is not None
    calls = tuple(replace(call, check=check) for call, check in zip(run.open.calls, fact.checks, strict=True))
    after = replace(run, open=replace(run.open, calls=calls, checked=True), spent=replace(run.spent, model_errors=0) if run.spent.model_errors else run.spent)
    if all(check.repeatable for check in fact.checks):
        return after
    return _decided(after, Digest(" ".join(check.signature for check in fact.checks)))


def _decided(run: Run, signature: Digest) -> Run:
    policy = run.policy
    kept = max(policy.cycle_lengths, default=0) * policy.cycle_repeats
    return replace(run, decisions=(*run.decisions, signature)[-kept:] if kept else ())


def _started(run: Run, fact: f.ToolStarted) -> Run:
    call = run.call(fact.call)
    assert call is not None
    after = _update(run, fact.call, phase="started", attempt=fact.attempt, started=fact, grant=None, performed="unknown")
    if call.attempt:
        return after
    return replace(after, spent=replace(after.spent, tool_calls=after.spent.tool_calls + 1))


def _succeeded(run: Run, fact: f.ToolSucceeded, position: int) -> Run:
    after = _update(run, fact.call, phase="closed", kind="success", content=fact.result, source_ids=fact.source_ids, performed="yes", notes_left=fact.notes)
    after = replace(after, spent=active(after.spent, fact.elapsed_us))
    call = after.call(fact.call)
    assert call is not None
    if call.check is not None:
        after = acted(after, call.check)
    for source in fact.source_ids:
        if source not in after.sources:
            after = replace(after, sources=after.sources.add(source, position))
    return after


def acted(run: Run, check: f.Check) -> Run:
    """An action took place: count it, and remember it as a write unless it only reads."""
    place = len(run.actions) + 1
    after = replace(run, actions=run.actions.add(check.signature, place))
    if check.effect == "read":
        return after
    other = run.last_write if run.last_write is not None and run.last_write.signature != check.signature else run.other_write
    return replace(after, last_write=Write(signature=check.signature, place=place), other_write=other)


def _update(run: Run, call_id: CallId, **changes: Any) -> Run:
    return _with_calls(run, [replace(call, **changes) if call.id == call_id else call for call in run.calls])


def _with_calls(run: Run, calls: list[Call]) -> Run:
    assert run.open is not None
    return replace(run, open=replace(run.open, calls=tuple(calls)))


def _told(run: Run, kind: Kind) -> Run:
    return replace(run, told_limit=run.turn) if kind == "limit_reached" and not run.told_limit else run


def _close(run: Run, call_id: CallId, kind: Kind, content: Any) -> Run:
    call = run.call(call_id)
    assert call is not None
    after = _update(run, call_id, phase="closed", kind=kind, content=content)
    if kind == "in_doubt" and call.check is not None:  # it may have taken place, so it counts
        after = acted(after, call.check)
    return after


def _granted(run: Run, fact: f.ApprovalGranted, at: int) -> Run:
    """A grant that came too late allows nothing: the call goes on waiting, and expires."""
    call = run.call(fact.call)
    assert call is not None
    if call.expires_at is not None and at >= call.expires_at:
        return run
    return _update(run, fact.call, phase="ready", grant=fact.digest)


def _resolved(run: Run, fact: f.DoubtResolved) -> Run:
    match fact.verdict:
        case "happened":
            after = _update(_close(run, fact.call, "success", fact.result), fact.call, performed="yes")
            call = after.call(fact.call)
            assert call is not None
            return acted(after, call.check) if call.check is not None else after
        case "did_not_happen":
            return _update(run, fact.call, phase="ready", performed="no")
        case "tell_model":
            return _close(run, fact.call, "in_doubt", failure("in_doubt", DOUBT))
        case "unknown":
            return _update(run, fact.call, reconciled=True)


DOUBT = "It is not known whether this action took place: do not repeat it, look whether it did."


def _injected(run: Run, fact: f.ToolResultsInjected) -> Run:
    assert run.open is not None
    output = run.open.output
    calls, results = zip(*(_shown(call) for call in run.open.calls), strict=True)
    text = output.text if visible(output.text) else ""  # providers refuse blank text, also beside calls
    spoken = Message(role="assistant", text=text, calls=calls, opaque=output.opaque)
    turn = replace(run.open, closed=fact)
    return replace(run, fresh=(*run.fresh, spoken, *results), open=turn, request=None, asked="no")


def _shown(call: Call) -> tuple[MessageCall, Message]:
    """A call and its result as messages. Arguments that no history can hold are quoted in the result instead, so that the model sees what it sent."""
    text, content = call.proposed.arguments_text, call.content
    accepted = call.check is not None and call.check.kind == "success"
    if not text.strip():
        text = "{}"
    elif not accepted and not is_repeatable(text):
        if isinstance(content, dict):
            content = {**content, "sent": quoted(text)}
        text = "{}"
    if call.superseded_by and call.check is not None:
        content = {"arguments_changed_by": call.superseded_by, "arguments": decode(call.check.arguments), "result": content}
    said = MessageCall(id=call.id, name=call.name, arguments_text=text, provider_id=call.proposed.provider_id)
    return said, Message(role="tool", call_id=call.id, name=call.name, kind=call.kind or "", content=content, source_ids=call.source_ids)


# -- drivers and endings


def _attached(run: Run, fact: f.DriverAttached, at: int) -> Run:
    """What an earlier epoch started and did not finish is unknown; a request it did not finish is lost. That is all there is to recovery."""
    driver = Driver(epoch=fact.epoch, who=fact.who, host=fact.host, pid=fact.pid, since=at)
    after = replace(run, driver=driver, epoch=fact.epoch)
    if run.asked == "yes":
        after = replace(spending.lost(after) if run.rules.settles else after, asked="lost")
    if run.past.asked is not None:
        after = _unasked(after, run.past.asked)
    if fact.switched is not None and run.setup is not None:
        switched = fact.switched
        setup = replace(run.setup, model=switched.model, base_url=switched.base_url, model_settings=switched.model_settings, price=switched.price)
        after = replace(after, setup=setup)
    if any(call.phase == "started" for call in run.calls):
        return _with_calls(after, [replace(call, phase="unknown") if call.phase == "started" else call for call in run.calls])
    return after


def _unasked(run: Run, asked: f.SummaryRequested) -> Run:
    """A summary whose maker is gone is to be asked for again: under the number it had, and what its model may have read is an estimate."""
    after = replace(run, past=replace(run.past, asked=None))
    if asked.number is None:
        return after
    read = f.Usage(input_tokens=asked.estimated_input_tokens, estimated=True)
    return replace(spending.used(after, None, read, 0), number=asked.number - 1)


def _ended(run: Run, fact: f.Ending) -> Run:
    fresh = run.fresh
    if run.open is not None and run.open.closed is None:  # a claim that stands, or what was cut: it is part of the history
        output = run.open.output
        cut = run.rules.marks and isinstance(output, f.ModelInterrupted) and output.cause in ("cancelled", "limit")
        fresh = (*fresh, *(assistant(output.text, kind="interrupted") if cut else assistant(output.text or output.refusal, output.opaque)))
    turn = replace(run.open, closed=fact) if run.open is not None else None
    return replace(run, ended=fact, fresh=fresh, open=turn, request=None, asked="no", driver=None)
