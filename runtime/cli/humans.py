"""`answer`, `approve`, `deny`, `resolve`, `say`, `compact`, `cancel`: a human's word to a run, from any process, whoever drives it."""

import re
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from refold.events.words import RunId
from refold.projections.revisions import SUPPORTED
from refold.projections.view import pending_of
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, UNAVAILABLE, Refused
from refold.runtime.cli.parsing import options_of
from refold.runtime.cli.render import Page, one_line, short
from refold.runtime.cli.stores import opened, text_of, to_drive, typed
from refold.runtime.cli.wording import in_words, told
from refold.runtime.consults import Consults
from refold.runtime.store import Ambiguous, NotAsked, Store, Taken, Verdict
from refold.runtime.text import visible as says_something

LOOK_S: Final = 0.1
TAKE_OVER_S: Final = 1.0
"""How often `cancel` looks whether the driver that it waits for has died, to end the run itself."""
CANCEL_WAIT_S: Final = 60.0
"""How long `cancel` waits for the driver to end the run."""
CALL: Final = re.compile(r"(p\.)*t\d+\.\d+")
DRIVING: Final = ("docs", "model", "base_url", "settings", "max_turns", "max_cost", "timeout", "approve")
"""Options that do nothing where nothing is driven, but for `--docs` where other arguments are checked. `--agent` is none of them: it also says which line to type next."""


def answer(options: o.Answer) -> int:
    """Answer a question."""
    named, word = (options.text, options.more) if options.more else (options.call, options.text)
    if options.more and (options.call or not CALL.fullmatch(options.text)):
        raise Refused(f"refold answer does not take {options.more!r}: put several words in quotes")
    text = _said(text_of(word, "the answer"), "answer")
    with opened(options) as store:
        run_id = store.find(options.run)
        taken = _named(lambda: store.answer_sync(run_id, text, call=named, command_id=options.command_id), store, run_id, "answer RUN --call CALL TEXT")
        return _taken(options, store, run_id, [taken])


def approve(options: o.Approve) -> int:
    """Allow one call, or all that wait; with other arguments where some are given."""
    call_id = _one_name(options)
    if options.all and (options.digest is not None or options.arguments is not None):
        raise Refused(f"{'--digest' if options.digest is not None else '--arguments'} is about one call: name it instead of --all")
    arguments = text_of(options.arguments, "the arguments") if options.arguments is not None else None
    with opened(options) as store:
        run_id = store.find(options.run)
        if options.all:
            return _taken(options, store, run_id, _every(options, store, run_id, lambda name, command: store.approve_sync(run_id, name, command_id=command)))
        consults = _consults(options, store, run_id) if arguments is not None else None
        taken = _named(
            lambda: store.approve_sync(run_id, call_id, digest=options.digest, arguments=arguments, consults=consults, command_id=options.command_id),
            store,
            run_id,
            "approve RUN CALL",
        )
        return _taken(options, store, run_id, [taken])


def deny(options: o.Deny) -> int:
    """Refuse one call, or all that wait."""
    if options.reason is None:
        raise Refused("refold deny needs --reason TEXT: the model is told why")
    reason = _said(text_of(options.reason, "the reason"), "reason")
    call_id = _one_name(options)
    with opened(options) as store:
        run_id = store.find(options.run)
        if options.all:
            every = _every(options, store, run_id, lambda name, command: store.deny_sync(run_id, name, reason=reason, command_id=command))
            return _taken(options, store, run_id, every)
        taken = _named(lambda: store.deny_sync(run_id, call_id, reason=reason, command_id=options.command_id), store, run_id, "deny RUN CALL --reason TEXT")
        return _taken(options, store, run_id, [taken])


def resolve(options: o.Resolve) -> int:
    """Settle a call in doubt."""
    verdict = _verdict(options)
    result = _json(options.result, "--result") if options.result is not None else None
    call_id = _one_name(options)
    with opened(options) as store:
        run_id = store.find(options.run)
        taken = _named(
            lambda: store.resolve_sync(run_id, call_id, verdict=verdict, result=result, command_id=options.command_id),
            store,
            run_id,
            f"resolve RUN CALL --{verdict.replace('_', '-')}",
        )
        return _taken(options, store, run_id, [taken])


def say(options: o.Say) -> int:
    """A message for the next turn."""
    text = _said(text_of(options.text, "the message"), "message")
    with opened(options) as store:
        run_id = store.find(options.run)
        return _taken(options, store, run_id, [store.say_sync(run_id, text, command_id=options.command_id)])


def compact(options: o.Compact) -> int:
    """A summary in place of older turns."""
    with opened(options) as store:
        run_id = store.find(options.run)
        return _taken(options, store, run_id, [store.compact_sync(run_id, command_id=options.command_id)])


# -- cancel


def cancel(options: o.Cancel) -> int:
    """End a run and wait until it has ended."""
    command_id = options.command_id or secrets.token_hex(8)
    with opened(options) as store:
        run_id = store.find(options.run)
        taken = store.cancel_sync(run_id, options.reason, command_id=command_id)
        run = store.journal(run_id).run
        if run.ended is None and run.begun.engine not in SUPPORTED:
            raise Refused(
                f"the cancellation is in the log of run {run_id}, but this version does not know its rules (engine {run.begun.engine}): a driver of the version that made it ends it",
                UNAVAILABLE,
            )
        status = _ended(store, run_id, command_id, 0 if options.no_wait else CANCEL_WAIT_S)
    if status is None and not options.no_wait:
        raise Refused(
            f"the cancellation is in the log of run {run_id}, but its driver did not end it within {CANCEL_WAIT_S:.0f} s; whoever drives it next does: {to_drive(options, 'resume', run)}",
            UNAVAILABLE,
        )
    if options.json:
        output.document({"run_id": run_id, "status": status or "running", "position": taken.position, "again": taken.again})
    else:
        output.line(
            (f"taken before, at position {taken.position}: " if taken.again else "")
            + (f"run {run_id} is {status}" if status else f"run {run_id} is asked to end")
        )
    return COMPLETED


def _ended(store: Store, run_id: RunId, command_id: str, within_s: float) -> str | None:
    """The status of a run once it has ended; None where it does not in time."""
    now = time.monotonic()
    until, look, seen, journal = now + within_s, now + TAKE_OVER_S, -1, store.journal(run_id)
    while journal.run.ended is None:
        if (now := time.monotonic()) >= until:
            return None
        if now >= look:
            store.cancel_sync(run_id, command_id=command_id)  # the same command: it only ends what nobody drives any more
            look = now + TAKE_OVER_S
        if (changed := store.log.changed()) == seen:
            time.sleep(LOOK_S)
        else:
            seen = changed
            journal.catch_up()
    return journal.run.status


# -- which call


def _one_name(options: o.Approve | o.Deny | o.Resolve) -> str | None:
    names = {name for name in (options.named, options.call) if name}
    every = isinstance(options, o.Approve | o.Deny) and options.all
    if len(names) > 1 or (names and every):
        raise Refused(f"several calls are named ({', '.join(sorted(names))}{' and --all' if every else ''}): name one, or give --all alone")
    return names.pop() if names else None


def _every(options: o.Approve | o.Deny, store: Store, run_id: RunId, decide: Callable[[str, str | None], Taken]) -> list[Taken]:
    """Decide on every call that waits for approval, each under a command of its own; a command that was given before is about those of then, and no other."""
    run = store.journal(run_id).run
    mark = f"{options.command_id}/"
    before = [name.removeprefix(mark) for name in run.commands.keys() if name.startswith(mark)] if options.command_id is not None else []  # noqa: SIM118 - not a dict
    taken: list[Taken] = []
    names = before or [one["call_id"] for one in pending_of(run) if one["kind"] == "approval"]
    for name in names:
        try:
            taken.append(decide(name, mark + name if options.command_id is not None else None))
        except NotAsked as error:  # somebody else was faster with this one
            output.note(one_line(str(error)))
    if not taken:
        raise Refused(f"nothing was decided of run {run_id}" if names else f"run {run_id} does not wait for an approval")
    return taken


def _named(decide: Callable[[], Taken], store: Store, run_id: RunId, usage: str) -> Taken:
    """Decide; where it is not clear what about, list what waits."""
    try:
        return decide()
    except Ambiguous as error:
        for one in pending_of(store.journal(run_id).run):
            if one["call_id"] in error.names:
                asked = one["reason"] if one["kind"] == "question" else f"{one['name']} {short(one['arguments'], 160)}"
                output.note(f"    {one['call_id']}  {one_line(asked)}")
        raise Refused(f"run {run_id} waits for several ({', '.join(error.names)}): name one with refold {usage}") from None
    except ValueError as error:
        raise Refused(str(error)) from None


# -- what was typed


def _said(text: str, what: str) -> str:
    if not says_something(text):
        raise Refused(f"the {what} is empty: type something that can be seen")
    return text


def _verdict(options: o.Resolve) -> Verdict:
    """The one verdict that was given. Raises Refused."""
    verdicts: dict[Verdict, bool] = {"happened": options.happened, "did_not_happen": options.did_not_happen, "tell_model": options.tell_model}
    given = [verdict for verdict, is_given in verdicts.items() if is_given]
    if len(given) != 1:
        raise Refused("refold resolve needs exactly one word on what became of the call: --happened [--result JSON], --did-not-happen or --tell-model")
    if options.result is not None and not options.happened:
        raise Refused("--result is what a call gave that took place: it goes with --happened")
    return given[0]


def _json(word: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text_of(word, what))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused(f"{what} is not JSON ({error}); a text is written with its quotes, as '\"sent\"'") from None


def _consults(options: o.Approve, store: Store, run_id: RunId) -> Consults:
    """The code of the run's agent, which checks other arguments. Raises Refused."""
    from refold.runtime.cli import driving, lookup  # what drives is loaded where it is needed

    setup = store.journal(run_id).run.begun
    with driving.user_code():
        return lookup.agent_for_record(options, setup).consults(setup)


# -- what was done


def _taken(options: o.Deciding, store: Store, run_id: RunId, taken: list[Taken]) -> int:
    """Print exactly what was decided, then drive on where that was asked for."""
    decided = [told(store, run_id, one) for one in taken]
    if options.resume:
        from refold.runtime.cli.running import drive_on  # what drives is loaded where it is needed

        for one in decided:
            output.note("\n".join(Page(sys.stderr).paragraphs(in_words(one))))
        return drive_on(options, store, run_id)
    read = {"docs"} if isinstance(options, o.Approve) and options.arguments is not None else set()
    if idle := [spec.names[0] for field, spec in options_of(o.Deciding).items() if field in DRIVING and field not in read and getattr(options, field)]:
        output.note(f"{', '.join(idle)}: without --resume nothing is driven, so it had no effect")
    if options.json:
        output.document(decided if len(decided) != 1 else decided[0])
        return COMPLETED
    for one in decided:
        output.line("\n".join(Page().paragraphs(in_words(one))))
    run = store.journal(run_id).run
    if run.status == "waiting_for_user":
        output.note(f"the run waits for more: {typed(options, 'pending')}")
    if run.ended is None and not run.waits and store.log.holder(run_id) is None:
        output.note(f"drive it on with: {to_drive(options, 'resume', run)}")
    return COMPLETED
