"""A store as people use it: read a run, answer it, approve, deny, cancel, say; each verb async with a `_sync` twin that is the same code.

What comes from outside is one fact in the log; whoever drives the run notices it.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.lineage import history
from refold.events.log import open_log
from refold.events.storage import Log
from refold.events.words import RunId
from refold.projections.revisions import SUPPORTED
from refold.projections.run import Call, Run, replace
from refold.runtime.consults import Consults
from refold.runtime.journal import HOST, USER, Journal, UnknownRun, loader, record_in, this_process
from refold.runtime.live import START, Cursor, Live, Streamed, watch
from refold.runtime.ownership import DrivenElsewhere, taken
from refold.runtime.ports import SystemClock
from refold.runtime.sealing import Key, Private, seal
from refold.runtime.text import visible, whole
from refold.runtime.values import stored

Verdict = Literal["happened", "did_not_happen", "tell_model"]


class OtherCommand(ValueError):
    """The id of this command is that of another one, which was taken before."""


class NotAsked(LookupError):
    """Nothing of that kind waits: the run has ended, the call is another, or nobody asked."""


class Ambiguous(LookupError):
    """Several calls wait and none was named, or a prefix fits several runs. `names` are the choices."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


class Taken(NamedTuple):
    """A human's word that is in the log: at which position, and about which call, as it was before.

    `again`: the command was taken before and nothing was appended; `position` is that of the first time.
    """

    position: int
    call: Call | None = None
    again: bool = False


class Store:
    """Runs in one log. Every method may raise StoreUnavailable; with an id that is not there, UnknownRun."""

    def __init__(self, log: Log, url: str) -> None:
        self.log, self.url = log, url
        self.live = Live()
        self._spoken_to: Run | None = None
        """The run of the latest word from outside as it was then: the next word reads on from there, and not a long log from its beginning."""

    # -- reading

    def read(self, run_id: str, after: int = 0, upto: int | None = None) -> Iterator[Record]:
        """The records at positions after < p <= upto, in order."""
        load = loader(self.log, run_id, many=True)
        found = False
        for row in history(self.log, run_id, after, upto):
            found = True
            yield record_in(row, load)
        if not found and self.log.head(run_id) is None:
            raise UnknownRun(f"there is no run {run_id} in this store")

    def watch(self, run_id: str, after: Cursor = START) -> AsyncGenerator[Streamed, None]:
        """What `agent.stream` gives, behind a cursor that it, or this, gave before: `async for`, until the run has ended, from any process and as often as wanted.

        Records come from the log, whoever drives; live parts only where the run is driven on this store, in this process: those of the open request from
        its beginning, as far as they are kept. Raises UnknownRun, StoreUnavailable.
        """
        return watch(self.live, self.log, run_id, after)

    def runs(self) -> list[str]:
        """All run ids, in the order started."""
        return self.log.runs()

    def find(self, name: str) -> RunId:
        """The run that an id, a unique prefix or `last` names. Raises UnknownRun or Ambiguous."""
        if name == "last":
            runs = self.log.runs()
            if not runs:
                raise UnknownRun("there is no run in this store yet")
            return RunId(runs[-1])
        found = self.log.find(name) if name else []
        if name in found or self.log.head(name) is not None:
            return RunId(name)
        if not found:
            raise UnknownRun(f"there is no run {name} in this store")
        if len(found) > 1:
            raise Ambiguous(f"{name} is the beginning of more than one run: {', '.join(found)}", found)
        return RunId(found[0])

    def journal(self, run_id: str) -> Journal:
        """The run and its log. Raises UnknownRun."""
        return Journal(self.log, run_id).load()

    def close(self) -> None:
        """Let go of the file."""
        self.log.close()

    # -- verbs from outside

    def answer_sync(self, run_id: str, text: str, *, call: str | None = None, who: str = USER, command_id: str | None = None) -> Taken:
        """Answer a question. Raises ValueError for an answer that shows nothing."""
        said = _said(text, "answer")
        return self._decide(
            run_id, call, "question", lambda _, asked: f.ClarificationReceived(call=asked.id, text=said, who=who, command_id=_id(command_id)), command_id
        )

    async def answer(self, run_id: str, text: str, *, call: str | None = None, who: str = USER, command_id: str | None = None) -> Taken:
        """Answer a question, as `answer_sync` does."""
        return await asyncio.to_thread(self.answer_sync, run_id, text, call=call, who=who, command_id=command_id)

    def approve_sync(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        arguments: str | None = None,
        consults: Consults | None = None,
        who: str = USER,
        command_id: str | None = None,
    ) -> Taken:
        """Allow a call, once, for exactly the arguments that were shown; `digest` insists on what was seen.

        With `arguments` (JSON) the call runs with those instead, once the agent's code (`consults`) has checked them, and the model is told who changed them.
        Raises ValueError for arguments that do not pass.
        """

        def granted(run: Run, asked: Call) -> f.ApprovalGranted | f.CallSuperseded:
            assert asked.approval is not None
            if asked.expires_at is not None and asked.expires_at <= SystemClock().now_us():
                raise NotAsked(
                    f"the approval of call {asked.id} of run {run.id} has expired, which counts as a denial; drive the run on with: refold resume {run.id}"
                )
            if digest is not None and digest != asked.approval:
                raise NotAsked(f"call {asked.id} of run {run.id} is not what the digest stands for any more")
            if arguments is not None:
                return superseded(asked, arguments, consults, who=who, command_id=_id(command_id))
            return f.ApprovalGranted(call=asked.id, digest=asked.approval, who=who, command_id=_id(command_id))

        return self._decide(run_id, call, "approval", granted, command_id)

    async def approve(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        arguments: str | None = None,
        consults: Consults | None = None,
        who: str = USER,
        command_id: str | None = None,
    ) -> Taken:
        """Allow a call, as `approve_sync` does."""
        return await asyncio.to_thread(self.approve_sync, run_id, call, digest=digest, arguments=arguments, consults=consults, who=who, command_id=command_id)

    def deny_sync(self, run_id: str, call: str | None = None, *, reason: str, who: str = USER, command_id: str | None = None) -> Taken:
        """Refuse a call and say why; wins over an approval that was not used yet."""
        return self._decide(
            run_id, call, "denial", lambda _, asked: f.ApprovalDenied(call=asked.id, reason=whole(reason), who=who, command_id=_id(command_id)), command_id
        )

    async def deny(self, run_id: str, call: str | None = None, *, reason: str, who: str = USER, command_id: str | None = None) -> Taken:
        """Refuse a call and say why; wins over an approval that was not used yet."""
        return await asyncio.to_thread(self.deny_sync, run_id, call, reason=reason, who=who, command_id=command_id)

    def resolve_sync(
        self, run_id: str, call: str | None = None, *, verdict: Verdict, result: Any = None, who: str = USER, command_id: str | None = None
    ) -> Taken:
        """Settle a call in doubt: it happened (with what result), it did not, or the model is told."""
        settled = stored(result)
        return self._decide(
            run_id,
            call,
            "doubt",
            lambda _, asked: f.DoubtResolved(call=asked.id, verdict=verdict, result=settled, who=who, command_id=_id(command_id)),
            command_id,
        )

    async def resolve(
        self, run_id: str, call: str | None = None, *, verdict: Verdict, result: Any = None, who: str = USER, command_id: str | None = None
    ) -> Taken:
        """Settle a call in doubt, as `resolve_sync` does."""
        return await asyncio.to_thread(self.resolve_sync, run_id, call, verdict=verdict, result=result, who=who, command_id=command_id)

    def say_sync(self, run_id: str, text: str, *, who: str = USER, command_id: str | None = None) -> Taken:
        """A message that the next request shows, behind the results. Raises ValueError for one that shows nothing."""
        said = _said(text, "message")
        return self._live(run_id, (f.UserSaid.TAG,), lambda _: f.UserSaid(text=said, who=who, command_id=_id(command_id)), command_id)[1]

    async def say(self, run_id: str, text: str, *, who: str = USER, command_id: str | None = None) -> Taken:
        """A message that the next request shows, behind the results."""
        return await asyncio.to_thread(self.say_sync, run_id, text, who=who, command_id=command_id)

    def compact_sync(self, run_id: str, *, who: str = USER, command_id: str | None = None) -> Taken:
        """Show older turns as a summary from the next request on, however much room there is. Raises NotAsked where the run has no compaction."""

        def wanted(run: Run) -> f.CompactionRequested:
            if run.context is None or run.context.compaction == "off":
                raise NotAsked(f"run {run.id} was begun without compaction (context.compaction=off)")
            return f.CompactionRequested(who=who, command_id=_id(command_id))

        return self._live(run_id, (f.CompactionRequested.TAG,), wanted, command_id)[1]

    async def compact(self, run_id: str, *, who: str = USER, command_id: str | None = None) -> Taken:
        """Show older turns as a summary, as `compact_sync` does."""
        return await asyncio.to_thread(self.compact_sync, run_id, who=who, command_id=command_id)

    def cancel_sync(self, run_id: str, reason: str = "", *, who: str = USER, command_id: str | None = None) -> Taken:
        """End a run. Whoever drives it closes its calls; where nobody does, because it waits or its driver is dead, that is done here.

        Of a run whose rules this version does not know the word is kept, for a driver that does.
        """
        journal, said = self._live(
            run_id, (f.CancelRequested.TAG,), lambda _: f.CancelRequested(who=who, reason=whole(reason), command_id=_id(command_id)), command_id
        )
        if journal.run.state != "done" and journal.run.begun.engine in SUPPORTED:  # else whoever knows its rules ends it
            with suppress(DrivenElsewhere), taken(self.log, run_id, this_process()):
                journal.command_sync(lambda run: (attach(run),) if run.cancel is not None and run.state != "done" else ())
        return said

    async def cancel(self, run_id: str, reason: str = "", *, who: str = USER, command_id: str | None = None) -> Taken:
        """End a run, as `cancel_sync` does."""
        return await asyncio.to_thread(self.cancel_sync, run_id, reason, who=who, command_id=command_id)

    # -- when it has ended

    def seal_sync(self, run_id: str, *, key: Key) -> Taken:
        """Sign the head of an ended run: from then on records that are missing at its end are noticed by whoever has the public key.

        `key` is an Ed25519 key in PEM, or its path; it needs the extra `seal`. A run whose head this key signed already is left alone (`again`).
        Raises SealError, also where the run has not ended, and Unreadable where its chain is broken.
        """
        position, again = seal(self.log, run_id, Private(key))
        return Taken(position, again=again)

    async def seal(self, run_id: str, *, key: Key) -> Taken:
        """Sign the head of an ended run, as `seal_sync` does."""
        return await asyncio.to_thread(self.seal_sync, run_id, key=key)

    def _live(self, run_id: str, words: tuple[str, ...], fact: Callable[[Run], f.Input], command_id: str | None) -> tuple[Journal, Taken]:
        """Append one fact to a run that has not ended; a command that was taken before is a no-op. Raises OtherCommand where it was for something else."""
        journal, known = Journal(self.log, run_id), self._spoken_to
        if known is not None and known.id == run_id:
            journal.run = known
            journal.catch_up()
        else:
            journal.load()
        said = Taken(0)

        def inputs(run: Run) -> tuple[f.Input, ...]:
            nonlocal said
            if command_id is not None and (places := run.commands.places(command_id)):
                said = Taken(places[0], again=True)
                (row,) = history(self.log, run_id, said.position - 1, said.position)
                if row.type not in words:
                    raise OtherCommand(
                        f"the command id {command_id} was taken at position {said.position} of run {run_id} for something else ({row.type}): give another"
                    )
                return ()
            if run.state == "done":
                raise NotAsked(f"run {run.id} has ended ({run.status}) and takes no more input; start another with: refold continue {run.id}")
            said = Taken(run.position + 1)
            return (fact(run),)

        journal.command_sync(inputs)
        self._spoken_to = journal.run
        return journal, said

    def _decide(self, run_id: str, name: str | None, kind: str, fact: Callable[[Run, Call], f.Input], command_id: str | None) -> Taken:
        """Append a human's decision on one call."""
        chosen: Call | None = None

        def one(run: Run) -> f.Input:
            nonlocal chosen
            chosen = asked(run, name, kind)
            return fact(run, chosen)

        _, said = self._live(run_id, WORDS[kind], one, command_id)
        return said if said.again else said._replace(call=chosen)


WORDS: Final[dict[str, tuple[str, ...]]] = {
    "question": (f.ClarificationReceived.TAG,),
    "approval": (f.ApprovalGranted.TAG, f.CallSuperseded.TAG),
    "denial": (f.ApprovalDenied.TAG,),
    "doubt": (f.DoubtResolved.TAG,),
}
"""The facts that a human's word on each kind of call may be."""


def asked(run: Run, name: str | None, kind: str) -> Call:
    """The call that a human's word is about. Raises NotAsked or Ambiguous."""
    open_calls = [call for call in run.calls if _fits(call, kind)]
    word = {"denial": "approval", "doubt": "word on what became of it"}.get(kind, kind)
    if name is not None:
        found = next((call for call in open_calls if call.id == name), None)
        if found is None:
            raise NotAsked(f"call {name} of run {run.id} does not wait for {_an(word)}")
        return found
    if not open_calls:
        raise NotAsked(f"run {run.id} does not wait for {_an(word)}")
    if kind == "denial" and len(waiting := [call for call in open_calls if call.phase == "waiting"]) == 1:
        return waiting[0]
    if len(open_calls) > 1:
        names: list[str] = [call.id for call in open_calls]
        raise Ambiguous(f"run {run.id} waits for several: {', '.join(names)}; name one", names)
    return open_calls[0]


def _said(text: str, word: str) -> str:
    """What a human typed, as the log takes it. Raises ValueError where it shows nothing: providers refuse blank messages, at once and in every later request."""
    if not visible(text):
        raise ValueError(f"the {word} is empty: type something that can be seen")
    return whole(text)


def _an(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _fits(call: Call, kind: str) -> bool:
    if kind == "question":
        return call.phase == "waiting" and call.approval is None
    if kind == "doubt":
        return call.phase == "doubt"
    if kind == "denial":
        return call.deniable
    return call.phase == "waiting" and call.approval is not None


def superseded(asked: Call, arguments: str, consults: Consults | None, *, who: str, command_id: str) -> f.CallSuperseded:
    """A call with other arguments, once the agent's code has checked them. Raises ValueError where they do not pass, or where there is no code to ask."""
    if consults is None:
        raise ValueError("other arguments must be checked by the agent's code: name the agent")
    check = consults.check(replace(asked.proposed, arguments_text=arguments))
    if check.kind != "success":
        raise ValueError(f"call {asked.id} cannot run with these arguments: {check.message}")
    return f.CallSuperseded(call=asked.id, check=check, who=who, command_id=command_id)


def attach(run: Run) -> f.DriverAttached:
    """This process takes the wheel."""
    return f.DriverAttached(epoch=run.epoch + 1, who=USER, host=HOST, pid=os.getpid())


def _id(command_id: str | None) -> str:
    return command_id if command_id is not None else secrets.token_hex(8)


def open_store(url: str = "sqlite:///.refold/log.db", *, create: bool = True, driver_ttl_s: float = Log.driver_ttl_s) -> Store:
    """The store at `sqlite:///PATH`, `memory:` or `postgresql://...`; a driver that is silent for `driver_ttl_s` seconds may be taken for lost.

    Raises StoreUnavailable, or ValueError for another kind of URL or a time that is none.
    """
    return Store(open_log(url, create=create, driver_ttl_s=driver_ttl_s), url)
