"""A run and its log, kept in step: load, catch up with what others appended, and append what was decided.

The one place where a decision becomes durable; drivers, the verbs of a store and the importer all go through it.
"""

import asyncio
import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Final

from refold.events import facts as f
from refold.events.chain import NOTHING, digest_of
from refold.events.codec import Record, Stamp, Unreadable, read
from refold.events.lineage import OtherHistory as OtherHistory, absent, history, holds, inherited_payloads
from refold.events.payloads import Load
from refold.events.storage import Conflict, Log, PayloadMissing, Row, StoreUnavailable
from refold.events.words import Digest, RunId
from refold.fsm.decide import Batch, decide, written
from refold.fsm.machine import Illegal, empty, step
from refold.projections.excerpts import size_of
from refold.projections.messages import Message, encode
from refold.projections.prefix import chained, entry_of
from refold.projections.run import Run, replace
from refold.projections.transcript import Kept, Transcript, waiting
from refold.runtime.ports import Clock, SystemClock
from refold.runtime.text import whole

ATTEMPTS_MAX: Final = 32
"""How often one command is decided again because somebody else appended first."""


class UnknownRun(LookupError):
    """There is no such run in the store."""


NOT_FOLLOWED: Final = (Illegal, Unreadable, PayloadMissing, OtherHistory)
"""What reading a run raises that is damaged, or a fork without its parent."""


class LostOwnership(Exception):
    """Another driver took over, or the run ended: append nothing, perform nothing."""


class TooManyConflicts(Exception):
    """Others appended faster than a command could be decided."""


Inputs = Callable[[Run], Sequence[f.Input]]


class Journal:
    """A run as its log has it. `run` is the state, and `heard` is called with every record that is folded.

    With `own_loop` the event loop serves this run alone, so that appends may be made in it: no other thread has to be woken.
    """

    def __init__(self, log: Log, run_id: str, *, clock: Clock | None = None, heard: Callable[[Record], None] | None = None, own_loop: bool = False) -> None:
        self.log, self.clock = log, clock or SystemClock()
        self.id = RunId(run_id)
        self.run = empty(self.id)
        self.heard = heard
        self._own_loop = own_loop
        self._transcript = Transcript()
        self._past_missing = ""
        """Why what was said before is not known; empty where it is."""

    @property
    def transcript(self) -> Transcript:
        """What was said. Raises OtherHistory where it begins with what a run said that is not in the store; `run` is known without."""
        self.check_past()
        return self._transcript

    def check_past(self) -> None:
        """Raises OtherHistory where nobody can tell what a model was shown, and so what it is to be shown next."""
        if self._past_missing:
            raise OtherHistory(self._past_missing)

    def catch_up(self, upto: int | None = None) -> int:
        """Fold what the log holds beyond what is known; gives the number of records. Raises Illegal or Unreadable for a log that is none."""
        rows = list(history(self.log, self.id, self.run.position, upto))
        if not rows:
            return 0
        load = loader(self.log, self.id, many=len(rows) > 50)
        for row in rows:
            record = record_in(row, load)
            self._fold(record, step(self.run, record))
        return len(rows)

    def load(self, upto: int | None = None) -> "Journal":
        """The journal of a run that exists, as it is or as it was at a position. Raises UnknownRun, OtherHistory."""
        if not self.catch_up(upto):
            raise UnknownRun(f"there is no run {self.id} in this store")
        return self

    async def command(self, inputs: Inputs, *, epoch: int | None = None, beside: bool = False) -> None:
        """Decide and append, again where somebody was faster; `inputs` is asked anew each time.

        With `epoch` it is the command of that driver: raises LostOwnership where it is the driver no more. Once submitted, an append is never abandoned.
        One that is made `beside` something else does not hold up the event loop, even where that serves this run alone.
        """
        for batch, records, future in self._attempts(inputs, epoch, beside=beside):
            try:
                if not future.done():  # a store that has nobody to wait for stores at once
                    await _settled(future)
                future.result()
            except Conflict:
                continue
            self._stored(batch, records)
            return

    def command_sync(self, inputs: Inputs) -> None:
        """The same, for callers without an event loop."""
        for batch, records, future in self._attempts(inputs, None):
            try:
                future.result()
            except Conflict:
                continue
            self._stored(batch, records)
            return

    def _attempts(self, inputs: Inputs, epoch: int | None, *, beside: bool = False) -> Iterator[tuple[Batch, list[Record], "Future[None]"]]:
        """Decided and submitted, again and again: whoever comes back for another was slower than somebody else. Raises TooManyConflicts."""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                self.catch_up()
            prepared = self._prepare(inputs, epoch, beside=beside)
            if prepared is None:
                return
            yield prepared
        raise TooManyConflicts(f"run {self.run.id}: {ATTEMPTS_MAX} times somebody else appended first")

    def _prepare(self, inputs: Inputs, epoch: int | None, *, beside: bool) -> tuple[Batch, list[Record], "Future[None]"] | None:
        """Decide, write and submit; None where there is nothing to append."""
        run = self.run
        if epoch is not None and (run.epoch != epoch or run.driver is None or run.state == "done"):
            raise LostOwnership(f"run {run.id} is driven by somebody else, or has ended")
        facts = inputs(run)
        if not facts:
            return None
        batch = decide(run, facts, stamp(self.clock, run))
        records, payloads = written(run, batch)
        rows = [Row(record.position, record.type, record.stored) for record in records]
        append = self._appended if self._own_loop and not beside else self.log.submit
        return batch, records, append(run.id, run.position, rows, payloads, create=run.position == 0)

    def _appended(self, run_id: str, expected: int, rows: Sequence[Row], payloads: Mapping[Digest, bytes], *, create: bool) -> "Future[None]":
        """An append made here and now, as the future that it would have been."""
        future: Future[None] = Future()
        try:
            self.log.append(run_id, expected, rows, payloads, create=create)
        except (Conflict, StoreUnavailable) as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def _stored(self, batch: Batch, records: list[Record]) -> None:
        """Take over a stored batch: what was decided is what is read back."""
        for record, after in zip(records, batch.runs, strict=True):
            self._fold(record, replace(after, head=record.digest))

    def _fold(self, record: Record, after: Run) -> None:
        if isinstance(record.fact, f.RunContinued):
            try:
                self._transcript = inherited(self.log, record.fact)
            except OtherHistory as error:
                self._transcript, self._past_missing = not_there(record.fact), str(error)
        self._transcript.take(self.run, record.fact, after)
        self.run = after
        if self.heard is not None:
            self.heard(record)


def inherited(log: Log, begun: f.RunContinued) -> Transcript:
    """What a continuation begins with, as it was then. Raises OtherHistory."""
    parent = parent_of(log, begun)
    messages = [message for _, block in _blocks(parent, begun.setup) for message in block]
    if digest_of_transcript(messages) != begun.transcript:
        raise OtherHistory(f"the run goes on from {begun.parent}, which is not what it was then")
    if begun.setup.context is None:
        return Transcript([tuple(map(_of_parent, messages))])
    rest, counts = iter(messages), [block.messages for block in begun.shown] or [len(messages)]
    return Transcript([tuple(islice(rest, count)) for count in counts], _notes(parent))


def inherited_if_there(log: Log, begun: f.RunContinued) -> Transcript:
    """The same; where it cannot be had, nothing, which takes nothing from what the run says itself."""
    try:
        return inherited(log, begun)
    except OtherHistory:
        return not_there(begun)


def not_there(begun: f.RunContinued) -> Transcript:
    """What a continuation begins with, where its parent is not at hand."""
    return Transcript([()] * max(1, len(begun.shown)))


def parent_of(log: Log, begun: f.RunContinued) -> Journal:
    """The run that a continuation goes on from, as it was when that began. Raises OtherHistory."""
    if not holds(log, begun.parent, begun.at, begun.head):
        raise OtherHistory(f"the run goes on from {absent(log, begun.parent)}")
    try:
        return Journal(log, begun.parent).load(begun.at)
    except NOT_FOLLOWED as error:
        raise OtherHistory(f"the run goes on from {begun.parent}, which cannot be followed: {error}") from error


def _blocks(parent: Journal, setup: f.Setup) -> list[tuple[int, tuple[Message, ...]]]:
    """What a parent hands on to a run that is begun like this, by position from its end; a run that shows everything takes over what was said in full."""
    if setup.context is None:
        return [(0, (*parent.transcript.messages, *waiting(parent.run)))]
    return [(position, tuple(map(_of_parent, block))) for position, block in parent.transcript.handed_on(parent.run, setup.context.keep_turns)]


def _notes(parent: Journal) -> list[Kept]:
    """Notes of a parent that no summary holds yet."""
    held = max((summary.upto for summary in parent.transcript.summaries), default=0)
    return [Kept(kept.position - parent.run.position, kept.note) for kept in parent.transcript.notes if kept.position > held]


def _of_parent(message: Message) -> Message:
    """A message as the next run has it: ids are by place, and those of the parent would come again."""
    calls = tuple(replace(call, id=f"p.{call.id}") for call in message.calls)
    return replace(message, calls=calls, call_id=f"p.{message.call_id}" if message.call_id else "")


def digest_of_transcript(messages: Sequence[Message]) -> Digest:
    """The digest of messages in order."""
    return digest_of(b"".join(encode(message) for message in messages))


def continuation(log: Log, parent: Run, message: str, setup: f.Setup) -> f.RunContinued:
    """The fact with which a run begins whose history is that of an ended one."""
    blocks = _blocks(Journal(log, parent.id).load(parent.position), setup)
    messages = [said for _, block in blocks for said in block]
    return f.RunContinued(
        parent=parent.id,
        at=parent.position,
        head=parent.head,
        goal=message or parent.goal,
        message=message,
        transcript=digest_of_transcript(messages),
        size=sum(map(size_of, messages)),
        shown=tuple(_block(position, block) for position, block in blocks) if setup.context is not None else (),
        sources=tuple(parent.sources.keys()),
        setup=setup,
    )


def _block(position: int, messages: Sequence[Message]) -> f.Block:
    entries = [entry_of(message, position) for message in messages]
    digest = chained(NOTHING, (entry.digest for entry in entries))
    return f.Block(position=position, digest=digest, size=sum(entry.size for entry in entries), messages=len(entries))


def stamp(clock: Clock, run: Run) -> Stamp:
    """Now, never earlier than the record before; how far a clock had stepped back is written down."""
    now = clock.now_us()
    return Stamp(at=max(now, run.at), driver=this_process(), stepped_back_us=max(0, run.at - now))


def loader(log: Log, run_id: str, *, many: bool) -> Load:
    """Payloads by digest: all at once for a long tail, one by one for a short one. A value that is not what its digest says is Unreadable."""
    held: dict[Digest, bytes] = {}

    def load(digest: Digest) -> bytes:
        if many and not held:
            held.update(log.payloads(run_id))
        try:
            value = held[digest] if digest in held else log.payload(run_id, digest)
        except PayloadMissing:
            value = held[digest] = inherited_payloads(log, run_id)(digest)
        if digest_of(value) != digest:
            raise Unreadable(f"the stored value {digest} is not what its digest says: it was changed after it was written")
        return value

    return load


def record_in(row: Row, load: Load) -> Record:
    """The record of a row. Raises Unreadable with the position at which it stands, which the bytes themselves may not say."""
    try:
        return read(row.state, load)
    except Unreadable as error:
        raise Unreadable(f"{row.type} at position {row.position}: {error.why}") from error


async def _settled(future: "Future[None]") -> None:
    """Wait until a submitted append is stored or refused, also when cancelled meanwhile: the cancellation is then met at the next await."""
    stored = asyncio.wrap_future(future)
    while not stored.done():
        try:
            await asyncio.shield(stored)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:  # also where it was stored in the same moment: then the callback comes at once
                stored.add_done_callback(lambda _, task=task: task.cancel())  # type: ignore[misc]
        except Exception:  # noqa: BLE001 - the caller asks the future itself
            return


def _user() -> str:
    try:
        return whole(getpass.getuser())
    except (OSError, KeyError):
        return "unknown"


USER: Final = _user()
HOST: Final = whole(socket.gethostname())


def this_process() -> str:
    """Who appends: user, host and process. Asked each time, since a fork is another process."""
    return f"{USER}@{HOST}:{os.getpid()}"
