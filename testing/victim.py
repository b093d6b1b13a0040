"""One process of a run that is certified: it drives the run or answers for its humans, writes down what really happens, and kills itself where its plan says.

Apart from the campaign, because it is all that a child process does; forked from it or started afresh, it is told everything by one `Order`.
"""

import asyncio
import functools
import inspect
import os
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

import msgspec

from refold.events.chain import DIGEST_LENGTH, digest_of
from refold.events.log import open_log
from refold.events.storage import Log, Submission
from refold.events.words import RunId
from refold.projections.messages import Message, encode
from refold.projections.run import Call, Run
from refold.runtime import models, ports as p
from refold.runtime.agent import Agent
from refold.runtime.arguments import bound
from refold.runtime.cli.lookup import agent_named
from refold.runtime.journal import Journal
from refold.runtime.signatures import Taken
from refold.runtime.store import NotAsked, Store, attach
from refold.runtime.tools import NotPerformed, Tool, ToolContext, ToolResult
from refold.runtime.values import NotStorable, to_json
from refold.testing import ledger as l
from refold.testing.faults import Fate, Fault, FaultyLog, Place, mortal
from refold.testing.recording import Recorded

RUN: Final = RunId("certified")
SAID: Final = "Do not forget what I said."
DONE, FAILED, WAITING, LOST = 0, 1, 3, 4
"""How a process ends that was not killed: the run has ended, something went wrong, it waits for a human, another driver has taken over."""
LIFE_S: Final = 120
"""Seconds after which a process counts as stuck and is ended by its own alarm."""
WORLD: Final = "REFOLD_CERTIFY"
"""The variable that tells tools which folder is the world of this one run; it is there before the agent is called and outlives its processes."""
CONTEXT: Final = "refold_context"
"""The parameter by which a handler's wrapper gets the context that the handler itself may not want."""

Approve = Literal["all", "none"]
Doubts = Literal["tell", "look"]


class Humans(msgspec.Struct, frozen=True, kw_only=True):
    """How whoever the run waits for decides. Of a call in doubt the model is told, or somebody looks whether it happened."""

    approve: Approve = "all"
    answer: str = "Yes."
    doubts: Doubts = "tell"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do: for whom, where, and what comes over it. A deed comes so many steps after the one before it."""

    agent: str
    goal: str
    folder: str
    role: l.Role = "drive"
    deeds: tuple[tuple[int, l.Deed], ...] = ()
    humans: Humans = Humans()
    requests: int = 0
    """After so many requests the model says its last word again; 0 where that is not known."""
    control: str = ""
    """The broken runtime that takes the place of the good one."""
    recording: str = ""
    """The file with the model's answers, where it is not to be asked again."""


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


def url_of(folder: Path) -> str:
    """The store of a run that is certified: a file of its own. Its processes are killed and its machine is not, so that the disk need not be waited for."""
    return f"sqlite:///{folder}/log.db?synchronous=NORMAL"


def _born(folder: Path) -> None:
    """What a fork inherits and a process of its own would not have: its parent's output."""
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ[WORLD] = str(folder)


# -- what comes over a process


class Doom(Fate):
    """Counts the steps of a run over all its processes, and does what is due at one. A death is a real one: SIGKILL."""

    def __init__(self, ledger: l.Ledger, order: Order) -> None:
        super().__init__()
        self.ledger, self._folder = ledger, Path(order.folder)
        self._passing = Lock()
        self._since, came = 0, 0
        for line in ledger.lines():
            if isinstance(line, l.Came):
                self._since, came = 0, came + 1
            elif isinstance(line, l.Step):
                self._since += 1
        self._left = list(order.deeds[came:])

    def meets(self, place: Place) -> Fault | None:
        """Pass a place. Never returns where the process dies there."""
        if place == "part":
            return None
        with self._passing:
            self.ledger.note(l.Step(process=os.getpid(), place=place))
            self._since += 1
            if self._left and self._since == self._left[0][0]:
                self._since = 0
                self._do(self._left.pop(0)[1], place)
        return None

    def _do(self, deed: l.Deed, place: Place) -> None:
        if deed == "death":
            self.ledger.note(l.Came(process=os.getpid(), deed=deed, place=place))
            os.kill(os.getpid(), signal.SIGKILL)
            while True:
                time.sleep(1)
        done, head = self._from_outside(deed)
        self.ledger.note(l.Came(process=os.getpid(), deed=deed, place=place, done=done, head=head))

    def _from_outside(self, deed: l.Deed) -> tuple[bool, int]:
        """What another process does to the run in this moment, through a log of its own: whether there was anything to do it to, and where that log is then."""
        log = open_log(url_of(self._folder))
        try:
            done = log.head(RUN) is not None and _done(log, deed)
            return done, (log.head(RUN) or (0, b""))[0]
        finally:
            log.close()


def _done(log: Log, deed: l.Deed) -> bool:
    """Speak, cancel, take over; false where the run has no use for it any more."""
    try:
        match deed:
            case "say":
                Store(log, "").say_sync(RUN, SAID, command_id="said")
            case "cancel":
                Store(log, "").cancel_sync(RUN, "enough", command_id="cancelled")
            case _:
                return _take_over(log)
    except NotAsked:
        return False
    return True


def _take_over(log: Log) -> bool:
    """Another driver attaches, as it may once this one has not been heard of for long enough."""
    taken = Journal(log, RUN).load()
    if taken.run.state == "done" or taken.run.driver is None:
        return False
    taken.command_sync(lambda run: (attach(run),) if run.state != "done" else ())
    return True


class WitnessedLog(FaultyLog):
    """A log whose acknowledgements are written down."""

    def __init__(self, log: Log, doom: Doom) -> None:
        super().__init__(log, doom)
        self.doom = doom

    def _strike_behind(self, submission: Submission) -> None:
        super()._strike_behind(submission)
        last = submission.rows[-1]
        digest = last.state[-DIGEST_LENGTH - 2 : -2].decode()
        self.doom.ledger.note(l.Stored(process=os.getpid(), position=last.position, digest=digest))


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
        from refold.testing.controls import CONTROLS

        log = CONTROLS[order.control].put_in_place() or log
    return Store(log(open_log(url_of(Path(order.folder))), doom), url_of(Path(order.folder)))


def witnessed(agent: Agent, ledger: l.Ledger, order: Order) -> Agent:
    """The same agent, whose executions and requests are written down."""
    return Agent(
        _Witnessed(_model(agent, order), ledger, order.requests),
        agent.instructions,
        [_witnessed_tool(tool, ledger) for tool in agent.tools.values()],
        agent.budgets,
        agent.policy,
        [validator for _, validator in agent.validators],
        name=agent.name,
        ask_user=agent.ask_user,
        answer_schema=agent.answer_schema,
        documents=agent.documents,
        context=agent.context,
        context_builder=agent.context_builder,
    )


def _model(agent: Agent, order: Order) -> p.Model:
    if order.recording:
        return Recorded(Path(order.recording))
    return models.resolve(agent.model or models.DEFAULT) if agent.model is None or isinstance(agent.model, str) else agent.model


class _Witnessed:
    """A model that writes down what it is asked."""

    def __init__(self, model: p.Model, ledger: l.Ledger, requests: int) -> None:
        self._model, self._ledger, self._requests = model, ledger, requests
        self.spec = str(getattr(model, "spec", type(model).__name__))

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        digest = digest_of(b"".join(encode(message) for message in request.messages))
        self._ledger.note(l.Asked(process=os.getpid(), number=request.number, digest=digest, unanswered=unanswered(request.messages)))
        if self._requests and request.number > self._requests:
            request = msgspec.structs.replace(request, number=self._requests)
        async for part in self._model.stream(request):
            yield part


def unanswered(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """The calls of a transcript that have no result in it."""
    answered = {message.call_id for message in messages if message.role == "tool"}
    return tuple(call.id for message in messages for call in message.calls if call.id not in answered)


def _witnessed_tool(tool: Tool, ledger: l.Ledger) -> Tool:
    """A tool whose executions are written down, on the disk before the handler is called and before its outcome is known to the runtime.

    A handler for a process of its own runs in a thread here: what happens in there could not be counted otherwise.
    """
    handler = tool.handler
    awaited = inspect.iscoroutinefunction(handler)

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolContext:
        ctx: ToolContext = kwargs.pop(CONTEXT) if tool.signature is not None else args[1]
        shown = arguments_shown(args if tool.signature is not None else args[:1], kwargs)
        ledger.note(
            l.Started(process=os.getpid(), call=ctx.call_id, key=ctx.idempotency_key, tool=tool.name, attempt=ctx.attempt, arguments=shown), durable=True
        )
        return ctx

    def end(ctx: ToolContext, value: object) -> None:
        ledger.note(l.Ended(process=os.getpid(), call=ctx.call_id, value=_plain(value)), durable=True)

    def fail(ctx: ToolContext, error: BaseException) -> None:
        ended = l.Ended(process=os.getpid(), call=ctx.call_id, raised=type(error).__name__, performed=not isinstance(error, NotPerformed))
        ledger.note(ended, durable=True)

    @functools.wraps(handler)
    def performed(*args: Any, **kwargs: Any) -> Any:
        ctx = begin(args, kwargs)
        try:
            value = handler(*args, **kwargs)
        except BaseException as error:
            fail(ctx, error)
            raise
        end(ctx, value)
        return value

    @functools.wraps(handler)
    async def performed_async(*args: Any, **kwargs: Any) -> Any:
        ctx = begin(args, kwargs)
        try:
            value = await handler(*args, **kwargs)
        except BaseException as error:
            fail(ctx, error)
            raise
        end(ctx, value)
        return value

    signature = tool.signature
    if signature is not None:
        signature = replace(signature, takes=(*signature.takes, Taken(CONTEXT, is_context=True)))
    return replace(tool, handler=performed_async if awaited else performed, signature=signature, isolation="thread")


def arguments_shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What a handler is called with, apart from its context, as one text."""
    values = [*args, *(kwargs[name] for name in sorted(kwargs))]
    return "; ".join(str(_plain(value)) for value in values if not isinstance(value, ToolContext))


def _plain(value: object) -> Any:
    """A value as JSON, as far as it is one."""
    try:
        return msgspec.json.decode(to_json(value.data if isinstance(value, ToolResult) else value))
    except NotStorable:
        return repr(type(value))


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
