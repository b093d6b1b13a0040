"""The structural guards: what must be true of a run and a fact for a row of the table to hold.

Named in the words of the drawing. They read run and fact only, so that folding and auditing an old log can assert them without policy, clock or code of the agent.
"""

from refold.events import facts as f
from refold.events.chain import NOTHING
from refold.events.words import CallId
from refold.projections import context
from refold.projections.excerpts import size_of
from refold.projections.prefix import chained
from refold.projections.run import Call, Run


def _call(run: Run, fact: f.Fact) -> Call | None:
    call_id: CallId | None = getattr(fact, "call", None)
    return run.call(call_id) if call_id is not None else None


# -- the run


def begun(run: Run, fact: f.Fact) -> bool:
    return run.setup is not None


def begins(run: Run, fact: f.Fact) -> bool:
    return run.position == 0


def splits_off(run: Run, fact: f.Fact) -> bool:
    return isinstance(fact, f.RunForked) and fact.at == run.position and fact.head == run.head and run.setup is not None


def next_epoch(run: Run, fact: f.Fact) -> bool:
    return isinstance(fact, f.DriverAttached) and fact.epoch == run.epoch + 1


def own_epoch(run: Run, fact: f.Fact) -> bool:
    return isinstance(fact, f.DriverDetached) and fact.epoch == run.epoch


def cancel_requested(run: Run, fact: f.Fact) -> bool:
    return run.cancel is not None


# -- the request


def every_call_answered(run: Run, fact: f.Fact) -> bool:
    return run.open is None or run.open.closed is not None


def next_number(run: Run, fact: f.Fact) -> bool:
    return isinstance(fact, f.ModelRequested) and fact.number == run.number + 1


def same_or_next_number(run: Run, fact: f.Fact) -> bool:
    return isinstance(fact, f.ModelRequested) and fact.number == run.number + (run.asked == "retrying")


def open_request(run: Run, fact: f.Fact) -> bool:
    return run.asked == "yes"


def no_open_request(run: Run, fact: f.Fact) -> bool:
    return run.asked in ("lost", "inherited", "retrying")


def request_failed(run: Run, fact: f.Fact) -> bool:
    return run.asked == "failed" and getattr(fact, "call", None) is None


def came_to_nothing(run: Run, fact: f.Fact) -> bool:
    return run.asked in ("answered", "failed")


def paused(run: Run, fact: f.Fact) -> bool:
    output = run.open.output if run.open is not None else None
    return run.asked == "answered" and isinstance(output, f.ModelInterrupted) and output.cause == "paused"


# -- the context


def between_requests(run: Run, fact: f.Fact) -> bool:
    """No request is under way; one that was too long for the model has come to its end."""
    return run.asked == "no" or context.has_overflowed(run)


def leaves_out_turns(run: Run, fact: f.Fact) -> bool:
    """Turns go whole, so that no call is parted from its result; a builder that failed leaves out nothing."""
    if not isinstance(fact, f.ContextChosen) or run.context is None:
        return False
    return not fact.left_out or (not fact.error and set(fact.left_out) <= {entry.position for entry in run.entries.since(run.past.hidden)})


def takes_whole_turns(run: Run, fact: f.Fact) -> bool:
    """What is to give way are turns that are still shown, so that no call is parted from its result, and exactly those that the digest stands for."""
    if not isinstance(fact, f.SummaryRequested) or run.context is None or (fact.author == "model") != (fact.number == run.number + 1):
        return False
    place = context.place_behind(run, fact.upto)
    if place <= run.past.hidden or run.entries[place - 1].position != fact.upto:
        return False
    return fact.digest == chained(NOTHING, (entry.digest for entry in context.replaced(run, fact.upto)))


def no_open_summary(run: Run, fact: f.Fact) -> bool:
    return run.past.asked is None


def makes_it_shorter(run: Run, fact: f.Fact) -> bool:
    """The summary that was asked for, shorter than what it replaces; or why there is none, and then nothing changes."""
    asked = run.past.asked
    if asked is None or not isinstance(fact, f.ContextCompacted):
        return False
    if (fact.since, fact.upto, fact.author, fact.digest) != (asked.since, asked.upto, asked.author, asked.digest):
        return False
    replaced = sum(entry.size for entry in context.replaced(run, fact.upto))
    return bool(fact.error) != bool(fact.summary) and size_of(context.summary_message(fact.summary)) < replaced


# -- the claim


def unchecked_claim(run: Run, fact: f.Fact) -> bool:
    return run.asked == "answered" and run.open is not None and isinstance(run.open.output, f.FinalProposed) and run.open.verdict is None


def checked_claim(run: Run, fact: f.Fact) -> bool:
    return run.asked == "answered" and run.open is not None and isinstance(run.open.output, f.FinalProposed) and run.open.verdict is not None


def accepted_claim(run: Run, fact: f.Fact) -> bool:
    if not checked_claim(run, fact) or run.open is None or run.open.verdict is None:
        return False
    return not run.open.verdict.complaints and not run.open.verdict.error and isinstance(fact, f.RunCompleted) and fact.answer_at == run.open.position


# -- calls


def calls_by_place(run: Run, fact: f.Fact) -> bool:
    return isinstance(fact, f.ToolCallsRequested) and [call.id for call in fact.calls] == [f"t{run.turn}.{n}" for n in range(1, len(fact.calls) + 1)] != []


def checks_every_call(run: Run, fact: f.Fact) -> bool:
    if not isinstance(fact, f.CallsChecked) or run.open is None or run.open.checked:
        return False
    return [check.call for check in fact.checks] == [call.id for call in run.calls]


def checked_call(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase == "proposed" and call.check is not None


def accepts_the_rest(run: Run, fact: f.Fact) -> bool:
    if not isinstance(fact, f.ToolCallsAccepted) or run.open is None or not run.open.checked:
        return False
    rest = [call for call in run.calls if call.open]
    return [call.id for call in rest] == list(fact.calls) and all(call.check is not None and call.check.kind == "success" for call in rest)


def needs_approval(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return (
        call is not None
        and call.phase == "accepted"
        and call.check is not None
        and call.check.approval
        and isinstance(fact, f.ApprovalRequested)
        and fact.digest == call.check.digest
    )


def is_a_question(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase == "accepted" and call.name == ASK_USER


def may_start(run: Run, fact: f.Fact) -> bool:
    """An accepted check and, where one is needed, an unused grant for the same digest; a call whose intent was recorded before keeps the grant it used."""
    call = _call(run, fact)
    if call is None or call.check is None or call.check.kind != "success" or call.name == ASK_USER:
        return False
    if call.phase in ("unknown", "retrying"):
        return call.attempt > 0
    if call.check.approval and not call.attempt:
        return call.phase == "ready" and call.grant is not None and call.grant == call.check.digest
    return call.phase in ("accepted", "ready")


def awaits_approval(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase == "waiting" and call.approval is not None


def may_run_instead(run: Run, fact: f.Fact) -> bool:
    """The other arguments passed the same checks, and what the human allowed is bound by a digest where one is needed."""
    if not isinstance(fact, f.CallSuperseded) or fact.check.call != fact.call:
        return False
    return fact.check.kind == "success" and (not fact.check.approval or fact.check.digest is not None)


def grants_what_was_shown(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and isinstance(fact, f.ApprovalGranted) and fact.digest == call.approval


def awaits_approval_or_unused(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.deniable


def awaits_answer(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase == "waiting" and call.name == ASK_USER


def started(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase == "started" and isinstance(fact, f.ToolSucceeded | f.ToolFailed) and fact.attempt == call.attempt


def attempt_failed(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase == "failed"


def outcome_unknown(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase in ("unknown", "failed") and call.check is not None and call.check.effect == "side_effect"


def in_doubt(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and call.phase == "doubt"


def left_a_note(run: Run, fact: f.Fact) -> bool:
    call = _call(run, fact)
    return call is not None and isinstance(fact, f.NoteStored) and call.notes_left[:1] == (f.Note(text=fact.text, source_ids=fact.source_ids),)


def open_call(run: Run, fact: f.Fact) -> bool:
    """Not one whose handler runs: its outcome comes first."""
    call = _call(run, fact)
    return call is not None and call.open and call.phase != "started"


def every_call_closed(run: Run, fact: f.Fact) -> bool:
    return isinstance(fact, f.ToolResultsInjected) and [call.id for call in run.calls if not call.open] == list(fact.calls) == [call.id for call in run.calls]


ASK_USER = "ask_user"
"""The built-in tool that asks the user; no handler stands behind it."""
