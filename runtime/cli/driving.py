"""Drives a run from the terminal: until it ends, or waits for somebody who is not here; then says what came of it.

Apart from the commands, because `run`, `resume`, `continue`, `chat` and every word with --resume end in these same lines.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from refold.events.codec import Record
from refold.events.holds import Holder
from refold.projections.run import Run
from refold.projections.view import pending_of
from refold.runtime.agent import Agent, Shown
from refold.runtime.cli import options as o, output
from refold.runtime.cli.asking import decided
from refold.runtime.cli.exits import FAILED, INTERRUPTED, OF_STATUS, STOPPED, UNAVAILABLE, WAITING, Refused
from refold.runtime.cli.interrupts import Interruption
from refold.runtime.cli.progress import Progress, Story, progress_for
from refold.runtime.cli.render import Page, one_line
from refold.runtime.cli.stores import to_drive, typed, waiting_lines
from refold.runtime.driver import STOPPING, RunExists
from refold.runtime.journal import this_process
from refold.runtime.models import DEFAULT
from refold.runtime.ownership import DrivenElsewhere, driven_by
from refold.runtime.result import Result, result_of
from refold.runtime.store import Store

Heard = Callable[[Shown], None]
Verb = Callable[[Heard], Awaitable[Result]]
WIND_DOWN_S: Final = 1.0
"""How long tasks that were left behind are waited for."""
OFFLINE: Final = (
    "the model is `offline`: it looks up and calculates, and writes nothing of its own; choose another with --model SPEC or REFOLD_MODEL (refold run --help)"
)


def driven(options: o.Driving, store: Store, agent: Agent, known: Run, begin: Verb, *, made: str = "") -> Result:
    """Drive; where the run waits, let the terminal or --approve decide and drive on. `known` is where the run stands.

    `made` is what is to be said of a run that is made before it is driven. Raises RunExists where the id is taken.
    """
    telling = progress_for(known, quiet=options.quiet)
    hear = _noting(telling, agent, options, made)
    verb = begin
    try:
        # whoever tells of the run is another one after each answer
        with Interruption(store, known.id, options.on_interrupt, lambda text: telling.note(text), lambda: telling.close()) as interruption:
            while True:
                result = _performed(verb, hear, interruption)
                if result is None or result.lost or result.status != "waiting_for_user":
                    break
                telling.close()
                if not decided(options, store, result.run, interruption, first=verb is begin):
                    result = as_it_is(store, known.id)
                    break
                telling = progress_for(store.journal(known.id).run, quiet=options.quiet)  # the human's word is in it
                hear = telling.hear
                verb = lambda heard: agent.resume(known.id, store=store, heard=heard)  # noqa: E731 - as `begin`
    except DrivenElsewhere as elsewhere:
        if known.position or made or verb is not begin:
            raise
        raise _is_there(known.id, Holder(elsewhere.who, elsewhere.since_us, elsewhere.until_us)) from None
    except RunExists:
        if (holder := store.log.holder(known.id)) is None:
            raise
        raise _is_there(known.id, holder) from None
    finally:
        telling.close()
    return result if result is not None else as_it_is(store, known.id)


def _is_there(run_id: str, holder: Holder) -> RunExists:
    """What somebody else began under the id that was to be that of a new run: by whom it is driven says more, and changes nothing about it."""
    return RunExists(f"there is already a run {run_id}, {driven_by(holder)}; choose another id")


def _performed(verb: Verb, hear: Heard, interruption: Interruption) -> Result | None:
    """Run one verb in a loop of its own; None where it was parked. What tools print goes to standard error.

    Not `asyncio.run`: it waits for threads and tasks of tools, which may never end.
    """
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        with user_code():
            task = loop.create_task(_awaited(verb, hear, interruption))
            interruption.driving(task)
            return loop.run_until_complete(task)
    except asyncio.CancelledError:
        return None
    finally:
        interruption.driving(None)
        _wind_down(loop)


async def _awaited(verb: Verb, hear: Heard, interruption: Interruption) -> Result:
    STOPPING.set(lambda: bool(interruption.name))
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
def user_code() -> Iterator[None]:
    """Whatever an agent's code prints is no result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _noting(telling: Progress, agent: Agent, options: o.Driving, made: str) -> Heard:
    """Hear a run from the first record of this process on (another run of the same id is not this one); with it, say what is `made`, and which model answers where nobody chose one."""
    begun = False

    def hear(what: Shown) -> None:
        nonlocal begun
        if not begun:
            if isinstance(what, Record) and what.driver != this_process():
                return
            begun = True
            if made:
                telling.note(made)
            if options.model is None and not os.environ.get("REFOLD_MODEL") and getattr(agent.model, "spec", "") == DEFAULT:
                telling.note(OFFLINE)
        telling.hear(what)

    return hear


def known_tools(agent: Agent, options: o.Driving) -> None:
    """--approve of a tool that is not there would never do anything. Raises Refused."""
    for name in options.approve:
        if name not in agent.tools:
            raise Refused(f"--approve {name}: the agent has no such tool; it has {', '.join(agent.tools) or 'none'}")


def as_it_is(store: Store, run_id: str) -> Result:
    """A run that nobody drives here."""
    return result_of(store, store.journal(run_id).run)


# -- what came of it


def finished(options: o.Driving, result: Result) -> int:
    """The result to standard output; how it ended, and what to type where somebody is needed, to standard error. Gives the exit code."""
    if not options.quiet and Page(sys.stderr).width is not None and Page().width is not None:
        output.note("")  # in a terminal the answer stands apart from the progress
    shown(options, result)
    return ended(options, result)


def ended(options: o.Driving, result: Result) -> int:
    """How a run ended, and what to type where somebody is needed, to standard error. Gives the exit code."""
    page, run = Page(sys.stderr), result.run
    if result.lost:
        output.complain(f"another process took over run {run.id}; follow it with: {typed(options, 'log', run.id, '--follow')}")
        return UNAVAILABLE
    code = OF_STATUS[result.status]
    if code == WAITING:
        for asked in pending_of(run):
            what, *lines = waiting_lines(options, run, asked)
            for line in (*page.paragraphs(what), *lines):
                output.note(line)
    elif code == INTERRUPTED:
        output.note(f"run {run.id} was left where it is; go on with: {to_drive(options, 'resume', run)}")
    else:
        because = "" if result.reason in (None, result.status) else f" ({result.reason})"
        said = f"run {run.id} {result.status}{because}" + (f": {one_line(result.detail)}" if code and result.detail else "")
        if code:
            for line in page.paragraphs(said):
                output.note(line)
        if not options.quiet:
            for line in page.paragraphs(Story(run).used() if code else f"{said} · {Story(run).used()}"):
                output.note(page.paint(line, "dim"))
            if code in (FAILED, STOPPED) and not isinstance(options, o.Chat):  # the next line of a chat goes on from it
                output.note(f"go on from it with: {to_drive(options, 'continue', run, 'MESSAGE')}")
    return code


def shown(options: o.Driving, result: Result) -> None:
    """The result to standard output."""
    if options.json:
        output.document(result.as_json())
    elif result.answer is not None:
        output.line("\n".join(Page().paragraphs(result.answer)))
