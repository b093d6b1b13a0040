"""One process of a run that is certified: it drives the run or answers for its humans, and ends where its order says.

Apart from the campaign, because it is all that a child process does; forked from it or started afresh, it is told everything by one `Order`.
"""

import asyncio
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from refold.events.log import open_log
from refold.projections.run import Call, Run
from refold.runtime.agent import Agent
from refold.runtime.arguments import bound
from refold.runtime.cli.lookup import agent_named
from refold.runtime.store import NotAsked, Store
from refold.runtime.tools import ToolContext
from refold.testing import broken, ledger as l
from refold.testing.doom import Doom
from refold.testing.faults import mortal
from refold.testing.orders import DONE, FAILED, LOST, RUN, WAITING, Order, url_of
from refold.testing.witness import WitnessedLog, arguments_shown, witnessed

LIFE_S: Final = 120
"""Seconds after which a process counts as stuck and is ended by its own alarm."""
WORLD: Final = "REFOLD_CERTIFY"
"""The variable that tells tools which folder is the world of this one run; it is there before the agent is called and outlives its processes."""


def perform(order: Order) -> int:
    """Do what the order says, as a process that was just born. Gives its exit code; what goes wrong is printed."""
    signal.alarm(LIFE_S)
    _born(Path(order.folder))
    doom = Doom(l.Ledger(Path(order.folder)), order)
    doom.ledger.note(l.Began(process=os.getpid(), role=order.role))
    try:
        return _human(order, doom) if order.role == "human" else _drive(order, doom)
    except Exception:  # noqa: BLE001 - whatever the runtime let through is a finding, and the campaign reads it here
        traceback.print_exc()
        return FAILED


def _born(folder: Path) -> None:
    """What a fork inherits and a process of its own would not have: its parent's output."""
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ[WORLD] = str(folder)


# -- driving


def _drive(order: Order, doom: Doom) -> int:
    """Begin the run or take it up, until it ends or waits."""
    agent = mortal(witnessed(agent_named(order.agent), doom.ledger, order), doom)
    store = _opened(order, doom)
    if store.log.head(RUN) is None:
        result = asyncio.run(agent.run(order.goal, store=store, run_id=RUN, own_loop=True))
    else:
        result = asyncio.run(agent.resume(RUN, store=store, own_loop=True))
    doom.ledger.note(l.Reported(process=os.getpid(), result=result.as_json()))
    if result.lost:
        return LOST
    return DONE if result.state == "done" else WAITING if result.run.waits else FAILED


def _opened(order: Order, doom: Doom) -> Store:
    """The store as this process sees it; where a broken runtime is ordered, that one takes its place now."""
    log: type[WitnessedLog] = WitnessedLog
    if order.control:
        log = getattr(broken, order.control)() or log
    return Store(log(open_log(url_of(Path(order.folder))), doom), url_of(Path(order.folder)))


# -- humans


def _human(order: Order, doom: Doom) -> int:
    """Settle every call that waits, by rule; each decision has an id of its own, so that one that is repeated is harmless."""
    agent, store = agent_named(order.agent), _opened(order, doom)
    run = store.journal(RUN).run
    for call in run.calls if run.state != "done" else ():
        if call.phase in ("waiting", "doubt"):
            with suppress(NotAsked):  # somebody else was faster: the run was cancelled, or has moved on
                _settle(order, doom, agent, store, run, call)
    return DONE


def _settle(order: Order, doom: Doom, agent: Agent, store: Store, run: Run, call: Call) -> None:
    rule, command = order.humans, f"{call.id} {call.phase} {call.attempt}"
    if call.phase == "doubt":
        verdict, result = _what_became_of(doom.ledger, call, look=rule.doubts == "look")
        store.resolve_sync(RUN, call.id, verdict=verdict, result=result, command_id=command)
    elif call.approval is None:
        store.answer_sync(RUN, rule.answer, call=call.id, command_id=command)
    elif rule.approve == "none":
        store.deny_sync(RUN, call.id, reason="denied by rule", command_id=command)
    else:
        assert call.check is not None
        ctx = ToolContext(run_id=run.id, turn=run.turn, call_id=call.id, attempt=1, idempotency_key="")
        args, kwargs = bound(agent.tools[call.name], call.check.arguments, ctx)
        shown = arguments_shown(tuple(args), kwargs)
        doom.ledger.note(l.Allowed(process=os.getpid(), call=call.id, arguments=shown))
        store.approve_sync(RUN, call.id, digest=call.approval, command_id=command)


def _what_became_of(ledger: l.Ledger, call: Call, *, look: bool) -> tuple[Literal["happened", "did_not_happen", "tell_model"], Any]:
    """What somebody finds who looks whether a call took place; who does not look leaves it to the model."""
    if not look:
        return "tell_model", None
    lines = [line for line in ledger.lines() if isinstance(line, l.Started | l.Ended) and line.call == call.id]
    match lines[-1:]:
        case [l.Ended(performed=True, raised="") as ended]:
            return "happened", ended.value
        case [] | [l.Ended(performed=False)]:
            return "did_not_happen", None
        case _:
            return "tell_model", None


if __name__ == "__main__":
    code = perform(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order))
    sys.stdout.flush()
    os._exit(code)
