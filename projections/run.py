"""`Run`: what decisions read, folded from the facts, and no more.

Small on purpose: state, counters, the open turn in full, one small entry for each past message. Contents stay in the log. How facts change it is in `evolve.py`.
"""

from collections.abc import Iterator
from typing import Any, Literal, assert_never

import msgspec

from refold.events import facts as f
from refold.events.chain import NOTHING
from refold.events.settings import Budgets, Context, Policy
from refold.events.words import CallId, Digest, Kind, Reason, RunId, State, Status
from refold.projections.growing import Entries, Entry as Entry, Index
from refold.projections.messages import Counted, Message
from refold.projections.revisions import Rules, rules_of

Phase = Literal["proposed", "accepted", "waiting", "ready", "started", "unknown", "failed", "retrying", "doubt", "closed"]
"""Where a call is. `waiting` for a human, `ready` once allowed; `unknown` when its driver was lost, `failed` when an attempt ended and what follows is not decided yet."""
Asked = Literal["no", "yes", "lost", "inherited", "failed", "retrying", "answered"]
"""Where the open request is: made, lost with its process, made by the run that this one is a fork of, failed, to be made again, answered."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    pass


class Call(_Struct, frozen=True, kw_only=True):
    """A call of the open turn."""

    id: CallId
    proposed: f.ProposedCall
    proposed_in: RunId = RunId("")
    """The run that recorded the proposal: a fork performs an inherited call under its parent's key."""
    check: f.Check | None = None
    phase: Phase = "proposed"
    attempt: int = 0
    delay_us: int = 0
    question: str = ""
    approval: Digest | None = None
    """The digest that a human is shown."""
    because: str = ""
    expires_at: int | None = None
    since: int = 0
    grant: Digest | None = None
    reconciled: bool = False
    """Whether the tool was asked what became of it, and could not tell."""
    superseded_by: str = ""
    """Who allowed it with other arguments."""
    started: f.ToolStarted | None = None
    """The latest attempt."""
    failed: f.ToolFailed | None = None
    notes_left: tuple[f.Note, ...] = ()
    kind: Kind | None = None
    content: Any = None
    source_ids: tuple[str, ...] = ()
    performed: Literal["yes", "no", "unknown"] = "no"

    @property
    def name(self) -> str:
        return self.proposed.name

    @property
    def open(self) -> bool:
        return self.phase != "closed"

    @property
    def deniable(self) -> bool:
        """Whether a human is asked to allow it, or has allowed it and it was not begun."""
        return self.approval is not None and (self.phase == "waiting" or (self.phase == "ready" and self.grant is not None))

    @property
    def to_reconcile(self) -> bool:
        """Whether its tool is to be asked what became of it."""
        return self.phase == "doubt" and self.check is not None and self.check.reconcilable and not self.reconciled


class Turn(_Struct, frozen=True, kw_only=True):
    """The open turn: what the model said and what became of it. `closed` once its results or its rejection are in."""

    output: f.ModelOutput
    position: int
    calls: tuple[Call, ...] = ()
    checked: bool = False
    verdict: f.AnswerChecked | None = None
    wrap_up: bool = False
    """Whether the request was for an answer alone."""
    closed: f.Fact | None = None


class Tokens(_Struct, frozen=True, kw_only=True):
    """Sums of tokens."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


class Spent(_Struct, frozen=True, kw_only=True):
    """What the run has used up: exact sums over its events. `active_us` sums measured effects; waiting and dead time do not count."""

    reported: Tokens = Tokens()
    estimated: Tokens = Tokens()
    cost_usd: str = "0"
    active_us: int = 0
    tool_calls: int = 0
    model_errors: int = 0
    """Invalid turns in a row."""
    retry_wait_us: int = 0
    """Waited for retries of the open request."""

    @property
    def tokens(self) -> int:
        return self.reported.total + self.estimated.total


class Measured(_Struct, frozen=True, kw_only=True):
    """A request whose provider said what it read: `size` bytes were `tokens`."""

    size: int
    tokens: int


class Streaming(_Struct, frozen=True, kw_only=True):
    """What is known of a response that is on its way."""

    before: Spent
    """What was spent without it."""
    usage: f.Usage | None = None
    """What its provider reported so far."""
    size: int = 0
    """Bytes of it that were written down,"""
    since: int = 0
    """and those behind the last report."""


class Driver(_Struct, frozen=True, kw_only=True):
    """Who drives."""

    epoch: int
    who: str
    host: str
    pid: int
    since: int


class Past(_Struct, frozen=True, kw_only=True):
    """What requests show of the past otherwise than it was; entries are meant by their place."""

    hidden: int = 0
    """Entries before this place are shown as the summary,"""
    pinned: tuple[int, ...] = ()
    """but for these, which the user said."""
    summary: Entry | None = None
    left_out: tuple[int, ...] = ()
    """Turns that the next request does not show, by position."""
    instead: Entry | None = None
    chosen: bool = False
    """Whether that was chosen for the next request."""
    asked: f.SummaryRequested | None = None
    """The summary that is to be made,"""
    compactions: int = 0
    """and how many were since the model last answered, those that failed included."""
    failed: int = 0
    """Compactions that failed in a row."""
    wanted: bool = False
    """Whether somebody asked for one."""
    overflow: int | None = None
    """The least number of tokens, by the estimate, that was too much for the model."""


class Write(_Struct, frozen=True, kw_only=True):
    """A successful action that may have changed something, and its place in the order of actions."""

    signature: Digest
    place: int


class Run(_Struct, frozen=True, kw_only=True):
    """The state of a run after some position."""

    id: RunId
    position: int = 0
    at: int = 0
    head: Digest = NOTHING
    state: State = "idle"
    goal: str = ""
    setup: f.Setup | None = None
    parent: RunId | None = None
    """The run that this one continues."""
    forked_from: RunId | None = None
    forked_at: int = 0
    started_at: int = 0
    epoch: int = 0
    driver: Driver | None = None
    turn: int = 0
    number: int = 0
    """Requests so far, attempts included."""
    numbered_from: int = 0
    """Requests that were made before the model was set: at the beginning, or at a fork with another."""
    request: f.ModelRequested | None = None
    """The request that is open, until its turn is closed."""
    asked: Asked = "no"
    failure: f.ModelFailed | None = None
    open: Turn | None = None
    fresh: tuple[Message, ...] = ()
    """Messages that no request has shown yet, in full."""
    fresh_shown: tuple[Counted, ...] = ()
    """The same as the next request shows them, where it has room for all: long results by an excerpt."""
    unheard: tuple[str, ...] = ()
    """What the user said since; shown behind the results."""
    prefix: Digest = NOTHING
    """The digest of what is retained of the past: of everything that the last request showed, but for what gave way, or was left out of it alone."""
    bare: bool = False
    """Whether the last request showed no tools."""
    size: int = 0
    """Bytes of instructions, tools and everything that is retained of the past, as they were estimated."""
    entries: Entries = msgspec.field(default_factory=Entries)
    past: Past = Past()
    spent: Spent = Spent()
    streaming: Streaming | None = None
    """The response to the open request, once something of it was written down."""
    measured: Measured | None = None
    """The last request whose provider said what it read."""
    actions: Index = msgspec.field(default_factory=Index)
    """Successful actions by signature."""
    last_write: Write | None = None
    other_write: Write | None = None
    """The last write by another action than `last_write`."""
    counted_from: int = 0
    """Actions up to this place are forgotten: the user spoke after them."""
    decisions: tuple[Digest, ...] = ()
    """The latest decisions since the user spoke, no more than the longest cycle needs."""
    told_limit: int = 0
    """The turn in which the model was first told that it may not call any more."""
    delay_us: int = 0
    """What the next attempt of the open request waits."""
    sources: Index = msgspec.field(default_factory=Index)
    """Documents and parts that tools read, by id."""
    commands: Index = msgspec.field(default_factory=Index)
    """Commands from outside by their id."""
    cancel: f.CancelRequested | None = None
    ended: f.Ending | None = None

    @property
    def status(self) -> Status:
        match self.ended:
            case f.RunCompleted():
                return "completed"
            case f.RunStopped():
                return "stopped"
            case f.RunFailed():
                return "failed"
            case f.RunCancelled():
                return "cancelled"
            case None:
                return "waiting_for_user" if self.waits or self._asks else "running"
            case _:
                assert_never(self.ended)

    @property
    def waits(self) -> bool:
        """Whether only a human can move the run."""
        if self.state != "executing_tools" or self.cancel is not None:
            return False
        open_calls = [call for call in self.calls if call.open]
        return bool(open_calls) and all(call.phase in ("waiting", "doubt") and not call.to_reconcile for call in open_calls)

    @property
    def _asks(self) -> bool:
        """Whether a human is asked while nothing is performed; what was allowed already waits for a driver."""
        if self.state != "executing_tools" or self.cancel is not None or any(call.phase in ("started", "retrying", "unknown") for call in self.calls):
            return False
        return any(call.phase == "waiting" or (call.phase == "doubt" and not call.to_reconcile) for call in self.calls)

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.open.calls if self.open is not None else ()

    @property
    def reason(self) -> Reason | None:
        return self.ended.reason if self.ended is not None else None

    @property
    def detail(self) -> str:
        return self.ended.detail if self.ended is not None else ""

    # These are asked dozens of times for each record, so none of them asks another.
    @property
    def budgets(self) -> Budgets:
        assert self.setup is not None, NOT_BEGUN
        return self.setup.budgets

    @property
    def policy(self) -> Policy:
        assert self.setup is not None, NOT_BEGUN
        return self.setup.policy

    @property
    def context(self) -> Context | None:
        assert self.setup is not None, NOT_BEGUN
        return self.setup.context

    @property
    def rules(self) -> Rules:
        """The rules that the run began with."""
        assert self.setup is not None, NOT_BEGUN
        return rules_of(self.setup.engine)

    @property
    def begun(self) -> f.Setup:
        """The setup of a run that has begun."""
        assert self.setup is not None, NOT_BEGUN
        return self.setup

    def shown(self) -> Iterator[int | Entry]:
        """What requests show of the past, in order: places of entries, and the summary and what stands for turns that were left out, where the first of them was."""
        past, instead = self.past, self.past.instead
        yield from past.pinned
        if past.summary is not None:
            yield past.summary
        for place in range(past.hidden, len(self.entries)):
            if self.entries[place].position not in past.left_out or self.entries[place].kind == "user":
                yield place
            elif instead is not None:
                yield instead
                instead = None

    def shown_entries(self) -> Iterator[Entry]:
        """The entries that requests show, in order."""
        return (each if isinstance(each, Entry) else self.entries[each] for each in self.shown())

    def call(self, call_id: str) -> Call | None:
        """The call of the open turn with this id."""
        for call in self.calls:
            if call.id == call_id:
                return call
        return None


NOT_BEGUN = "the run has not begun"
replace = msgspec.structs.replace
