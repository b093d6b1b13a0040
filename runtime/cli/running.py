"""`run` and `resume`: begin or take up a run, drive it until it ends or waits for somebody, and say what came of it."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from refold.events.codec import Record
from refold.events.words import RunId
from refold.fsm.machine import empty
from refold.projections.run import Run
from refold.projections.view import pending_of
from refold.runtime.agent import Agent, Shown, checked_goal, checked_id
from refold.runtime.cli import configuring, lookup, options as o, output
from refold.runtime.cli.asking import decided
from refold.runtime.cli.exits import INTERRUPTED, OF_STATUS, UNAVAILABLE, WAITING, Refused
from refold.runtime.cli.interrupts import Interruption
from refold.runtime.cli.progress import Progress, Story, progress_for
from refold.runtime.cli.render import STATUS, Page, one_line
from refold.runtime.cli.stores import opened, text_of, typed, waiting_lines
from refold.runtime.journal import WHO
from refold.runtime.models import DEFAULT
from refold.runtime.ports import RandomIds
from refold.runtime.result import Result
from refold.runtime.store import Store

Heard = Callable[[Shown], None]
Verb = Callable[[Heard], Awaitable[Result]]
WIND_DOWN_S: Final = 1.0
"""How long tasks that were left behind are waited for."""
OFFLINE: Final = (
    "the model is `offline`: it looks up and calculates, and writes nothing of its own; choose another with --model SPEC or REFOLD_MODEL (refold run --help)"
)


def run(options: o.Run) -> int:
    """Start a run. Everything that can be refused is refused before there is a store."""
    goal = _refusing(lambda: checked_goal(text_of(options.goal, "the goal")))
    run_id = RunId(_refusing(lambda: checked_id(options.run_id) if options.run_id is not None else RandomIds().run_id()))
    with _user_code():
        agent = configuring.for_new(lookup.agent_for_new(options), options)
    _known_tools(agent, options)
    with opened(options, create=True) as store:
        return _drive(options, store, agent, empty(run_id), lambda heard: agent.run(goal, store=store, run_id=run_id, heard=heard))


def resume(options: o.Resume) -> int:
    """Drive a run on."""
    with opened(options) as store:
        return drive_on(options, store, store.find(options.run))


def drive_on(options: o.Driving, store: Store, run_id: RunId) -> int:
    """Drive a run on; one that has ended is left as it is and named."""
    known = store.journal(run_id).run
    if known.ended is not None:
        _print(options, _as_it_is(store, run_id))
        why = f"{STATUS[known.status][0]}{f', {known.reason}: {one_line(known.detail)}' if known.reason else ''}"
        output.note(f"run {run_id} has ended ({why}); nothing was done. Go on from it with: {typed(options, 'continue', run_id)}")
        return OF_STATUS[known.status]
    with _user_code():
        agent = configuring.for_record(lookup.agent_for_record(options, known.begun), options, known.begun)
    _known_tools(agent, options)
    return _drive(options, store, agent, known, lambda heard: agent.resume(run_id, store=store, heard=heard))


# -- driving


def _drive(options: o.Driving, store: Store, agent: Agent, known: Run, begin: Verb) -> int:
    """Drive; where the run waits, let the terminal or --approve decide and drive on."""
    telling = progress_for(known, quiet=options.quiet)
    hear = _noting(telling, agent, options)
    verb = begin
    try:
        with Interruption(store, known.id, options.on_interrupt, telling.note, telling.close) as interruption:
            while True:
                result = _performed(verb, hear, interruption)
                if result is None or result.lost or result.status != "waiting_for_user":
                    break
                telling.close()
                if not decided(options, store, result.run, interruption):
                    result = _as_it_is(store, known.id)
                    break
                telling = progress_for(result.run, quiet=options.quiet)
                hear = telling.hear
                verb = lambda heard: agent.resume(known.id, store=store, heard=heard)  # noqa: E731 - as `begin`
    finally:
        telling.close()
    if result is None:
        result = _as_it_is(store, known.id)
    return _finished(options, result)


def _performed(verb: Verb, hear: Heard, interruption: Interruption) -> Result | None:
    """Run one verb in a loop of its own; None where it was parked. What tools print goes to standard error.

    Not `asyncio.run`: it waits for threads and tasks of tools, which may never end.
    """
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        with _user_code():
            task = loop.create_task(_awaited(verb, hear))
            interruption.driving(task)
            return loop.run_until_complete(task)
    except asyncio.CancelledError:
        return None
    finally:
        interruption.driving(None)
        _wind_down(loop)


async def _awaited(verb: Verb, hear: Heard) -> Result:
    return await verb(hear)


def _wind_down(loop: asyncio.AbstractEventLoop) -> None:
    """Give what is left a moment to end, and leave it where it does not."""
    loop.set_exception_handler(lambda _loop, _context: None)  # the run is over and its outcome durable: what its tools' own tasks still raise is nobody's
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=WIND_DOWN_S))
    loop.run_until_complete(asyncio.wait({loop.create_task(loop.shutdown_asyncgens())}, timeout=WIND_DOWN_S))
    asyncio.set_event_loop(None)
    loop.close()


@contextlib.contextmanager
def _user_code() -> Iterator[None]:
    """Whatever an agent's code prints is no result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _noting(telling: Progress, agent: Agent, options: o.Driving) -> Heard:
    """Hear a run from the first record of this process on (another run of the same id is not this one); with it, say which model answers where nobody chose one."""
    begun = False

    def hear(what: Shown) -> None:
        nonlocal begun
        if not begun:
            if isinstance(what, Record) and what.driver != WHO:
                return
            begun = True
            if options.model is None and getattr(agent.model, "spec", "") == DEFAULT:
                telling.note(OFFLINE)
        telling.hear(what)

    return hear


def _known_tools(agent: Agent, options: o.Driving) -> None:
    """--approve of a tool that is not there would never do anything."""
    for name in options.approve:
        if name not in agent.tools:
            raise Refused(f"--approve {name}: the agent has no such tool; it has {', '.join(agent.tools) or 'none'}")


def _refusing(make: Callable[[], str]) -> str:
    try:
        return make()
    except ValueError as error:
        raise Refused(str(error)) from None


def _as_it_is(store: Store, run_id: RunId) -> Result:
    from refold.runtime.result import result_of

    return result_of(store, store.journal(run_id).run)


# -- what came of it


def _finished(options: o.Driving, result: Result) -> int:
    """The result to standard output; how it ended, and what to type where somebody is needed, to standard error."""
    page = Page(sys.stderr)
    if not options.quiet and page.width is not None and Page().width is not None:
        output.note("")  # in a terminal the answer stands apart from the progress
    _print(options, result)
    run = result.run
    if result.lost:
        output.complain(f"another process took over run {run.id}; follow it with: {typed(options, 'log', run.id, '--follow')}")
        return UNAVAILABLE
    code = OF_STATUS[result.status]
    if code == WAITING:
        for asked in pending_of(run):
            for line in waiting_lines(options, asked):
                output.note(line)
    elif code == INTERRUPTED:
        output.note(f"run {run.id} was left where it is; go on with: {typed(options, 'resume', run.id)}")
    else:
        because = "" if result.reason in (None, result.status) else f" ({result.reason})"
        ended = f"run {run.id} {result.status}{because}" + (f": {one_line(result.detail)}" if code and result.detail else "")
        if code:
            output.note(ended)
        if not options.quiet:
            output.note(page.paint(Story(run).used() if code else f"{ended} · {Story(run).used()}", "dim"))
    return code


def _print(options: o.Driving, result: Result) -> None:
    if options.json:
        output.document(result.as_json())
    elif result.answer is not None:
        output.line("\n".join(Page().paragraphs(result.answer)))
