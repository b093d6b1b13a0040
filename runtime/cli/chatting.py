"""`chat`: a run for the first line, then one that goes on from it for every further line, until end of file.

Apart from `run` and `continue`, because it reads its own input: at a prompt in a terminal, or line by line from a pipe.
"""

import sys
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from refold.events.words import RunId
from refold.fsm.machine import empty
from refold.projections.view import pending_of
from refold.runtime.agent import Agent
from refold.runtime.cli import configuring, lookup, options as o, output
from refold.runtime.cli.driving import Heard, Verb, driven, ended, finished, known_tools, user_code
from refold.runtime.cli.exits import CANCELLED, COMPLETED, INTERRUPTED, UNAVAILABLE, WAITING, Refused
from refold.runtime.cli.render import visible
from refold.runtime.cli.running import new_id
from refold.runtime.cli.stores import opened
from refold.runtime.models import DEFAULT
from refold.runtime.result import Result
from refold.runtime.store import Store
from refold.runtime.text import visible as says_something

PROMPT: Final = "> "


def chat(options: o.Chat) -> int:
    """Talk until end of file; exits as the last run did."""
    first_id = new_id(options)
    with user_code():
        agent = configuring.for_new(lookup.agent_for_new(options), options)
    known_tools(agent, options)
    first = _line()
    if first is None:
        if _at_terminal():
            return COMPLETED
        raise Refused("nothing was said: refold chat reads standard input, and its first line is the goal")
    with opened(options, create=True) as store:
        return _Conversation(options, store, agent).hold(first, first_id)


class _Conversation:
    """Runs in one store, each of which goes on from the one before."""

    def __init__(self, options: o.Chat, store: Store, agent: Agent) -> None:
        self._options, self._store, self._agent = options, store, agent
        self._results: list[Result] = []

    def hold(self, line: str | None, run_id: RunId) -> int:
        code = COMPLETED
        try:
            while line is not None:
                result = self._heard(line, run_id)
                self._results.append(result)
                code = ended(self._options, result) if self._options.json else finished(self._options, result)
                if code in (WAITING, UNAVAILABLE, INTERRUPTED) or (code == CANCELLED and not _at_terminal()):
                    break
                self._options = replace(self._options, run_id=None, model=self._options.model or DEFAULT)  # which model answers was said once
                line, run_id = _line(), new_id(self._options)
        finally:
            if self._options.json:
                output.document([result.as_json() for result in self._results])
        return code

    def _heard(self, line: str, run_id: RunId) -> Result:
        """The run that a line comes to; what it asks the next lines answer, where they come from a pipe."""
        result = driven(self._options, self._store, self._agent, empty(run_id), self._begin(line, run_id))
        while result.status == "waiting_for_user" and not (self._options.no_input or _at_terminal()):
            asked = pending_of(result.run)
            if any(one["kind"] != "question" for one in asked):
                break
            output.note(visible(asked[0]["reason"]))
            answer = _line()
            if answer is None:
                break
            self._store.answer_sync(run_id, answer, call=asked[0]["call_id"])
            result = driven(self._options, self._store, self._agent, self._store.journal(run_id).run, self._resume(run_id))
        return result

    def _begin(self, line: str, run_id: RunId) -> Verb:
        """The first run, or one that goes on from the last."""
        agent, store, before = self._agent, self._store, self._results[-1].id if self._results else None

        def begin(heard: Heard) -> Awaitable[Result]:
            if before is None:
                return agent.run(line, store=store, run_id=run_id, heard=heard)
            return agent.continue_run(before, line, store=store, new_id=run_id, heard=heard)

        return begin

    def _resume(self, run_id: RunId) -> Verb:
        return lambda heard: self._agent.resume(run_id, store=self._store, heard=heard)


def _line() -> str | None:
    """The next line that says something; None at the end. Raises Refused, KeyboardInterrupt."""
    while True:
        if _at_terminal():
            output.prompt(PROMPT)
        data = sys.stdin.buffer.readline() if sys.stdin is not None else b""
        if not data:
            if _at_terminal():
                output.note("")
            return None
        try:
            text = data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise Refused("standard input is not UTF-8") from None
        if says_something(text):
            return text


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
