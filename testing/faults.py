"""Faults on demand: a process that dies, or a store that fails, at the nth time something happens.

A death is a `BaseException` that nothing may record: once it came, every further append raises it too, whatever the code in between made of it.
So a run that is driven through here leaves exactly what a killed process would have left.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from refold.events.holds import Hold, Holder
from refold.events.storage import Conflict, Log, Row, StoreUnavailable, Submission
from refold.events.words import Digest
from refold.projections.run import Run
from refold.runtime import ports as p
from refold.runtime.agent import Agent
from refold.runtime.consults import Validator
from refold.runtime.tools import Tool

Place = Literal["append", "appended", "request", "part", "answered", "tool", "acted", "validator", "policy", "reconcile"]
"""Where a fault may come: before an append, behind one that is stored; before a request, behind each of its parts, at its end; before and behind a handler;
in a validator, in an approval predicate, where a tool is asked what became of a call."""
Fault = Literal["death", "unavailable", "conflict"]
"""`unavailable` behind an append is the ambiguous one: it is stored, and the writer is told that the store failed. `conflict` is one that somebody else's append would have caused."""


class Died(BaseException):
    """The process is no more."""


class Fate:
    """What will go wrong, once: the `nth` passing of `place`. A process without a fate is left alone and counts what it passes."""

    def __init__(self, place: Place | None = None, nth: int = 0, fault: Fault = "death") -> None:
        if (fault == "unavailable" and place not in ("append", "appended")) or (fault == "conflict" and place != "append"):
            raise ValueError(f"{place!r} cannot meet {fault!r}")
        self.place, self.nth, self.fault = place, nth, fault
        self.passed: dict[Place, int] = {}
        self.came = False
        """Whether it went wrong."""
        self.dead = False

    def __repr__(self) -> str:
        return f"Fate({self.place!r}, {self.nth}, {self.fault!r})" if self.place else "Fate()"

    def meets(self, place: Place) -> Fault | None:
        """Pass a place: gives the fault that strikes here, if any. Raises Died where that is a death, and ever after."""
        if self.dead:
            raise Died(f"after {self!r}")
        self.passed[place] = self.passed.get(place, 0) + 1
        if self.came or place != self.place or self.passed[place] != self.nth:
            return None
        self.came = True
        if self.fault == "death":
            self.dead = True
            raise Died(repr(self))
        return self.fault


class FaultyLog(Log):
    """A log in front of another, whose appends meet a fate. It waits for every append, so that a fault comes at a known moment; closing it leaves the other one open."""

    def __init__(self, log: Log, fate: Fate | None = None) -> None:
        self.log, self.fate = log, fate or Fate()
        self._holds: list[Hold] = []

    def _append(self, submission: Submission) -> None:
        self._strike_before(submission)
        self.log.append(*submission[:-1], create=submission.create)
        self._strike_behind(submission)

    def _submit(self, submission: Submission) -> "Future[None]":
        try:
            self._strike_before(submission)
            future = self.log.submit(*submission[:-1], create=submission.create)
            wait([future])
            if future.exception() is None:
                self._strike_behind(submission)
        except (Conflict, StoreUnavailable) as error:
            return _refused(error)
        return future

    def _strike_before(self, submission: Submission) -> None:
        fault = self.fate.meets("append")
        if fault == "unavailable":
            raise StoreUnavailable("the store failed before it stored anything: a fault on demand")
        if fault == "conflict":
            raise Conflict(submission.run_id, submission.expected, submission.expected)

    def _strike_behind(self, submission: Submission) -> None:  # noqa: ARG002 - for logs that write down what was stored
        if self.fate.meets("appended") is not None:
            raise StoreUnavailable("the store failed after it stored everything: a fault on demand")

    def scan(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Row]:
        return self.log.scan(run_id, after, upto)

    def head(self, run_id: str) -> tuple[int, bytes] | None:
        return self.log.head(run_id)

    def payload(self, run_id: str, digest: str) -> bytes:
        return self.log.payload(run_id, digest)

    def payloads(self, run_id: str) -> dict[Digest, bytes]:
        return self.log.payloads(run_id)

    def runs(self) -> list[str]:
        return self.log.runs()

    def find(self, prefix: str) -> list[str]:
        return self.log.find(prefix)

    def changed(self) -> int:
        return self.log.changed()

    def hold(self, run_id: str, who: str, ttl_s: float) -> Hold:
        self._holds.append(self.log.hold(run_id, who, ttl_s))
        return self._holds[-1]

    def holder(self, run_id: str) -> Holder | None:
        return self.log.holder(run_id)

    def close(self) -> None:
        """The log behind it belongs to the next process; the right to drive dies with this one."""
        for hold in self._holds:
            hold.release()


def _refused(error: Exception) -> "Future[None]":
    future: Future[None] = Future()
    future.set_exception(error)
    return future


def mortal(agent: Agent, fate: Fate) -> Agent:
    """The same agent, whose model, tools, validators and approval predicates pass the places of a fate. Its model must be given, not named."""
    assert agent.model is not None, "a mortal agent needs a model of its own"
    assert not isinstance(agent.model, str), "a mortal agent needs a model of its own"
    made = recast(agent, MortalModel(agent.model, fate), [mortal_tool(tool, fate) for tool in agent.tools.values()])
    made.validators = [(name, _mortal_validator(name, validator, fate)) for name, validator in agent.validators]
    return made


def recast(agent: Agent, model: p.Model, tools: Iterable[Tool]) -> Agent:
    """The same agent with another model and tools; whatever else it has, it keeps."""
    made = copy(agent)
    made.model, made.tools = model, {tool.name: tool for tool in tools}
    return made


class MortalModel:
    """A model whose stream may be the last thing its process sees."""

    def __init__(self, model: p.Model, fate: Fate) -> None:
        self.model, self.fate = model, fate
        self.spec = str(getattr(model, "spec", type(model).__name__))

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        self.fate.meets("request")
        async for part in self.model.stream(request):
            yield part
            self.fate.meets("part")
        self.fate.meets("answered")


def mortal_tool(tool: Tool, fate: Fate) -> Tool:
    """A tool whose process may die just before or just after its handler acts."""
    handler = tool.handler

    @functools.wraps(handler)
    def performed(*args: Any, **kwargs: Any) -> Any:
        fate.meets("tool")
        try:
            return handler(*args, **kwargs)
        finally:
            fate.meets("acted")

    @functools.wraps(handler)
    async def performed_async(*args: Any, **kwargs: Any) -> Any:
        fate.meets("tool")
        try:
            return await handler(*args, **kwargs)
        finally:
            fate.meets("acted")

    approval = _mortal(tool.approval, fate, "policy") if callable(tool.approval) else tool.approval
    reconcile = _mortal(tool.reconcile, fate, "reconcile") if tool.reconcile is not None else None
    return replace(tool, handler=performed_async if inspect.iscoroutinefunction(handler) else performed, approval=approval, reconcile=reconcile)


def _mortal(asked: Callable[[Any], Any], fate: Fate, place: Place) -> Callable[[Any], Any]:
    """A function of one argument that passes a place before it answers."""

    @functools.wraps(asked)
    def answered(argument: Any) -> Any:
        fate.meets(place)
        return asked(argument)

    return answered


def _mortal_validator(name: str, validator: Validator, fate: Fate) -> Validator:
    def judged(run: Run, answer: str, citations: tuple[str, ...]) -> Any:
        fate.meets("validator")
        return validator(run, answer, citations)

    judged.__name__ = name
    return judged
