"""`answer`, `approve`, `deny`, `say`, `cancel`: a human's word to a run, from any process, whoever drives it."""

import time
from collections.abc import Callable
from typing import Any, Final

from refold.events.words import RunId
from refold.projections.run import Call
from refold.projections.view import pending_of
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, UNAVAILABLE, Refused
from refold.runtime.cli.render import fields, one_line, short, visible
from refold.runtime.cli.stores import opened, text_of, typed
from refold.runtime.store import Ambiguous, Store
from refold.runtime.text import visible as says_something

LOOK_S: Final = 0.1
CANCEL_WAIT_S: Final = 60.0
"""How long `cancel` waits for the driver to end the run."""


def answer(options: o.Answer) -> int:
    """Answer a question."""
    text = _said(text_of(options.text, "the answer"), "answer")
    with opened(options) as store:
        run_id = store.find(options.run)
        call = _named(lambda: store.answer_sync(run_id, text, call=options.call), options, store, run_id, "answer RUN --call CALL TEXT")
        return _taken(options, store, run_id, [_told(run_id, "answered", call, {"question": call.question, "answer": text})])


def approve(options: o.Approve) -> int:
    """Allow one call, or all that wait."""
    call_id = _one_name(options)
    with opened(options) as store:
        run_id = store.find(options.run)
        if options.all:
            calls = [store.approve_sync(run_id, name, digest=options.digest) for name in _open(store, run_id)]
        else:
            calls = [_named(lambda: store.approve_sync(run_id, call_id, digest=options.digest), options, store, run_id, "approve RUN CALL")]
        return _taken(options, store, run_id, [_told(run_id, "approved", call, {"digest": call.approval}) for call in calls])


def deny(options: o.Deny) -> int:
    """Refuse one call, or all that wait."""
    if options.reason is None:
        raise Refused("refold deny needs --reason TEXT: the model is told why")
    reason = _said(text_of(options.reason, "the reason"), "reason")
    call_id = _one_name(options)
    with opened(options) as store:
        run_id = store.find(options.run)
        if options.all:
            calls = [store.deny_sync(run_id, name, reason=reason) for name in _open(store, run_id)]
        else:
            calls = [_named(lambda: store.deny_sync(run_id, call_id, reason=reason), options, store, run_id, "deny RUN CALL --reason TEXT")]
        return _taken(options, store, run_id, [_told(run_id, "denied", call, {"reason": reason}) for call in calls])


def say(options: o.Say) -> int:
    """A message for the next turn."""
    text = _said(text_of(options.text, "the message"), "message")
    with opened(options) as store:
        run_id = store.find(options.run)
        store.say_sync(run_id, text)
    if options.json:
        output.document({"run_id": run_id, "said": text})
    else:
        output.line(f"said to run {run_id}: {one_line(text)}")
    return COMPLETED


def cancel(options: o.Cancel) -> int:
    """End a run and wait until it has ended."""
    with opened(options) as store:
        run_id = store.find(options.run)
        store.cancel_sync(run_id, options.reason)
        status = _ended(store, run_id, CANCEL_WAIT_S if not options.no_wait else 0)
    if status is None and not options.no_wait:
        raise Refused(
            f"the cancellation is in the log of run {run_id}, but its driver did not end it within {CANCEL_WAIT_S:.0f} s; whoever drives it next does: {typed(options, 'resume', run_id)}",
            UNAVAILABLE,
        )
    if options.json:
        output.document({"run_id": run_id, "status": status or "running"})
    else:
        output.line(f"run {run_id} is {status}" if status else f"run {run_id} is asked to end")
    return COMPLETED


def _ended(store: Store, run_id: RunId, within_s: float) -> str | None:
    """The status of a run once it has ended; None where it does not in time."""
    until, seen, journal = time.monotonic() + within_s, -1, store.journal(run_id)
    while journal.run.ended is None:
        if time.monotonic() >= until:
            return None
        if (changed := store.log.changed()) == seen:
            time.sleep(LOOK_S)
        else:
            seen = changed
            journal.catch_up()
    return journal.run.status


# -- which call


def _one_name(options: o.Approve | o.Deny) -> str | None:
    names = {name for name in (options.named, options.call) if name}
    if len(names) > 1 or (names and options.all):
        raise Refused(f"several calls are named ({', '.join(sorted(names))}{' and --all' if options.all else ''}): name one, or give --all alone")
    return names.pop() if names else None


def _open(store: Store, run_id: RunId) -> list[str]:
    """The calls that wait for approval."""
    names = [one["call_id"] for one in pending_of(store.journal(run_id).run) if one["kind"] == "approval"]
    if not names:
        raise Refused(f"run {run_id} does not wait for an approval")
    return names


def _named(decide: Callable[[], Call], options: o.Deciding, store: Store, run_id: RunId, usage: str) -> Call:
    """Decide; where it is not clear what about, list what waits."""
    try:
        return decide()
    except Ambiguous as error:
        for one in pending_of(store.journal(run_id).run):
            if one["call_id"] in error.names:
                asked = one["reason"] if one["kind"] == "question" else f"{one['name']} {short(one['arguments'], 160)}"
                output.note(f"    {one['call_id']}  {one_line(asked)}")
        raise Refused(f"run {run_id} waits for several ({', '.join(error.names)}): name one with refold {usage}") from None


def _said(text: str, what: str) -> str:
    if not says_something(text):
        raise Refused(f"the {what} is empty: type something that can be seen")
    return text


# -- what was done


def _told(run_id: str, verb: str, call: Call, more: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    arguments = msgspec.json.decode(call.check.arguments) if call.check is not None and call.check.arguments else {}
    return {"run_id": run_id, "call_id": call.id, "name": call.name, "arguments": arguments, "decision": verb, **more}


def _taken(options: o.Deciding, store: Store, run_id: RunId, told: list[dict[str, Any]]) -> int:
    """Print exactly what was decided, then drive on where that was asked for."""
    if options.resume:
        for one in told:
            output.note(_in_words(one))
        from refold.runtime.cli.running import drive_on

        return drive_on(options, store, run_id)
    if options.json:
        output.document(told if len(told) != 1 else told[0])
    else:
        for one in told:
            output.line(_in_words(one))
        if store.journal(run_id).run.driver is None:
            output.note(f"drive it on with: {typed(options, 'resume', run_id)}")
    return COMPLETED


def _in_words(told: dict[str, Any]) -> str:
    """The decision with everything it is about, in full."""
    place = f"{told['call_id']} of run {told['run_id']}"
    if told["decision"] == "answered":
        return f"answered {place}\n    {visible(told['question'])}\n    {visible(told['answer'])}"
    lines = [f"{told['decision']} {place}: {one_line(told['name'])}"]
    lines += fields(told["arguments"])
    if told["decision"] == "denied":
        lines.append(f"    because: {visible(told['reason'])}")
    return "\n".join(lines)
