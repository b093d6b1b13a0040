"""An agent and a log whose executions, requests and acknowledged appends are written down, as they happen, in the ledger of their run.

Apart from the process that uses them, because what is seen here is what its judge believes, whatever the runtime in between made of it.
"""

import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from refold.events.chain import DIGEST_LENGTH, digest_of
from refold.events.storage import Log, Submission
from refold.projections.messages import Message, encode
from refold.runtime import models, ports as p
from refold.runtime.agent import Agent
from refold.runtime.signatures import Taken
from refold.runtime.tools import NotPerformed, Tool, ToolContext, ToolResult
from refold.runtime.values import NotStorable, to_json
from refold.testing import ledger as l
from refold.testing.doom import Doom
from refold.testing.faults import FaultyLog, recast
from refold.testing.orders import Order
from refold.testing.recording import Recorded

CONTEXT: Final = "refold_context"
"""The parameter by which a handler's wrapper gets the context that the handler itself may not want."""


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


def witnessed(agent: Agent, ledger: l.Ledger, order: Order) -> Agent:
    """The same agent, whose executions and requests are written down."""
    return recast(agent, _Witnessed(_model(agent, order), ledger, order.requests), [_witnessed_tool(tool, ledger) for tool in agent.tools.values()])


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

    @contextlib.contextmanager
    def execution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Callable[[object], None]]:
        """Around one call of the handler; gives whom to tell of its value."""
        ctx: ToolContext = kwargs.pop(CONTEXT) if tool.signature is not None else args[1]
        shown = arguments_shown(args if tool.signature is not None else args[:1], kwargs)
        ledger.note(
            l.Started(process=os.getpid(), call=ctx.call_id, key=ctx.idempotency_key, tool=tool.name, attempt=ctx.attempt, arguments=shown), durable=True
        )
        values: list[object] = []
        try:
            yield values.append
        except BaseException as error:
            ended = l.Ended(process=os.getpid(), call=ctx.call_id, raised=type(error).__name__, performed=not isinstance(error, NotPerformed))
            ledger.note(ended, durable=True)
            raise
        ledger.note(l.Ended(process=os.getpid(), call=ctx.call_id, value=_plain(*values)), durable=True)

    @functools.wraps(handler)
    def performed(*args: Any, **kwargs: Any) -> Any:
        with execution(args, kwargs) as end:
            end(value := handler(*args, **kwargs))
        return value

    @functools.wraps(handler)
    async def performed_async(*args: Any, **kwargs: Any) -> Any:
        with execution(args, kwargs) as end:
            end(value := await handler(*args, **kwargs))
        return value

    signature = tool.signature
    if signature is not None:
        signature = replace(signature, takes=(*signature.takes, Taken(CONTEXT, is_context=True)))
    return replace(tool, handler=performed_async if inspect.iscoroutinefunction(handler) else performed, signature=signature, isolation="thread")


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
