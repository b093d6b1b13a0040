"""`run`, `resume`, `continue`: begin a run, take one up, or go on from one that has ended."""

from collections.abc import Callable

from refold.events.words import RunId
from refold.fsm.machine import empty
from refold.runtime.agent import checked_goal, checked_id
from refold.runtime.cli import configuring, lookup, options as o, output
from refold.runtime.cli.driving import as_it_is, driven, finished, known_tools, shown, user_code
from refold.runtime.cli.exits import OF_STATUS, Refused
from refold.runtime.cli.render import STATUS, one_line
from refold.runtime.cli.stores import opened, text_of, to_drive, typed
from refold.runtime.ports import RandomIds
from refold.runtime.store import Store
from refold.runtime.text import visible


def run(options: o.Run) -> int:
    """Start a run. Everything that can be refused is refused before there is a store."""
    goal = refusing(lambda: checked_goal(text_of(options.goal, "the goal")))
    run_id = new_id(options)
    with user_code():
        agent = configuring.for_new(lookup.agent_for_new(options), options)
    known_tools(agent, options)
    with opened(options, create=True) as store:
        return finished(options, driven(options, store, agent, empty(run_id), lambda heard: agent.run(goal, store=store, run_id=run_id, heard=heard)))


def resume(options: o.Resume) -> int:
    """Drive a run on."""
    with opened(options) as store:
        return drive_on(options, store, store.find(options.run))


def drive_on(options: o.Driving, store: Store, run_id: RunId) -> int:
    """Drive a run on; one that has ended is left as it is and named."""
    known = store.journal(run_id).run
    if known.ended is not None:
        shown(options, as_it_is(store, run_id))
        word = STATUS[known.status][0]
        reason = f", {known.reason}" if known.reason not in (None, word) else ""
        why = f"{word}{reason}: {one_line(known.detail)}" if known.reason else word
        output.note(f"run {run_id} has ended ({why}); nothing was done; go on from it with: {to_drive(options, 'continue', known, 'MESSAGE')}")
        return OF_STATUS[known.status]
    with user_code():
        agent = configuring.for_record(lookup.agent_for_record(options, known.begun), options, known.begun)
    known_tools(agent, options)
    return finished(options, driven(options, store, agent, known, lambda heard: agent.resume(run_id, store=store, heard=heard)))


def continue_(options: o.Continue) -> int:
    """Begin a run whose history is that of an ended one."""
    message = refusing(lambda: checked_message(text_of(options.message, "the message"))) if options.message else ""
    run_id = new_id(options)
    with opened(options) as store:
        parent = store.find(options.run)
        known = store.journal(parent).run
        if known.ended is None:
            raise Refused(
                f"run {parent} has not ended ({STATUS[known.status][0]}): drive it on with {to_drive(options, 'resume', known)}, or end it with {typed(options, 'cancel', parent)}"
            )
        with user_code():
            agent = configuring.for_continuation(lookup.agent_for_record(options, known.begun), options, known.begun)
        known_tools(agent, options)
        result = driven(options, store, agent, empty(run_id), lambda heard: agent.continue_run(parent, message, store=store, new_id=run_id, heard=heard))
        return finished(options, result)


def new_id(options: o.Beginning) -> RunId:
    """The id of the run that is about to begin. Raises Refused."""
    given = options.run_id
    return RunId(RandomIds().run_id() if given is None else refusing(lambda: checked_id(given)))


def checked_message(text: str) -> str:
    """What a user says, as the log takes it. Raises ValueError."""
    if not visible(text):
        raise ValueError("the message is empty: type something that can be seen")
    return text


def refusing(make: Callable[[], str]) -> str:
    """A value, or the one line that says why there is none."""
    try:
        return make()
    except ValueError as error:
        raise Refused(str(error)) from None
