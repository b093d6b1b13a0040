"""The machine: one table of rows, from which the `transitions` machine, the compiled rows, the drawings and the audit are made.

Every fact is one row. A row's `requires` are about structure (asked when deciding, asserted when folding and auditing);
its `limits` are about budget and policy (asked when deciding alone, so that old logs fold after limits change).
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from msgspec import MsgspecError
from transitions import EventData, Machine, MachineError

from refold.events import facts as f
from refold.events.codec import FACTS, Edge, Record, Stamp
from refold.events.words import STATES, RunId, State
from refold.fsm import guards, limits
from refold.projections.evolve import evolve
from refold.projections.run import Run, replace

Requires = Callable[[Run, f.Fact], bool]
Limit = Callable[[Run, Stamp], limits.Exceeded | None]


class Row(NamedTuple):
    """One edge. `target` None is an internal transition (self)."""

    trigger: str
    source: State
    target: State | None
    kind: Literal["input", "derived"]
    requires: tuple[Requires, ...] = ()
    limits: tuple[Limit, ...] = ()

    @property
    def destination(self) -> State:
        return self.target if self.target is not None else self.source


_IDLE: Final = "idle"
_STREAMING: Final = "streaming_model"
_COLLECTING: Final = "collecting_tool_requests"
_EXECUTING: Final = "executing_tools"
_INJECTING: Final = "injecting_tool_results"
_DONE: Final = "done"
_LIVE: Final[tuple[State, ...]] = (_IDLE, _STREAMING, _COLLECTING, _EXECUTING, _INJECTING)


def _rows(
    fact: type[f.Fact], sources: State | tuple[State, ...], target: State | None = None, *requires: Requires, limits: tuple[Limit, ...] = ()
) -> list[Row]:
    """The rows of one fact: from each source to `target`, or internal where there is none."""
    kind: Literal["input", "derived"] = "input" if fact.INPUT else "derived"
    return [Row(fact.TAG, source, target, kind, requires, limits) for source in ((sources,) if isinstance(sources, str) else sources)]


g = guards
_REQUEST_LIMITS: Final[tuple[Limit, ...]] = (
    limits.turns,
    limits.window,
    limits.tokens,
    limits.cost,
    limits.active_time,
    limits.deadline,
)
_ATTEMPT_LIMITS: Final[tuple[Limit, ...]] = (limits.window, limits.tokens, limits.cost, limits.active_time, limits.deadline)
_TOOL_LIMITS: Final[tuple[Limit, ...]] = limits.BEFORE_TOOLS

TABLE: Final[tuple[Row, ...]] = tuple(
    row
    for rows in (
        _rows(f.RunStarted, _IDLE, None, g.begins),
        _rows(f.RunContinued, _IDLE, None, g.begins),
        _rows(f.RunForked, _LIVE, None, g.splits_off),
        _rows(f.DriverAttached, _LIVE, None, g.begun, g.next_epoch),
        _rows(f.ContextChosen, (_IDLE, _INJECTING), None, g.begun, g.leaves_out_turns),
        _rows(f.SummaryRequested, (_IDLE, _INJECTING, _STREAMING), None, g.begun, g.between_requests, g.no_open_summary, g.takes_whole_turns),
        _rows(f.ContextCompacted, (_IDLE, _INJECTING, _STREAMING), None, g.begun, g.makes_it_shorter),
        _rows(f.ModelRequested, (_IDLE, _INJECTING), _STREAMING, g.begun, g.every_call_answered, g.no_open_summary, g.next_number, limits=_REQUEST_LIMITS),
        _rows(f.ModelRequested, _STREAMING, None, g.no_open_request, g.same_or_next_number, limits=_ATTEMPT_LIMITS),
        _rows(f.UsageUpdated, _STREAMING, None, g.open_request),
        _rows(f.StreamCheckpointed, _STREAMING, None, g.open_request),
        _rows(f.ModelFailed, _STREAMING, None, g.open_request),
        _rows(f.ModelInterrupted, _STREAMING, None, g.open_request),
        _rows(f.RetryScheduled, _STREAMING, None, g.request_failed),
        _rows(f.RetryScheduled, _EXECUTING, None, g.attempt_failed),
        _rows(f.ModelErrorObserved, _STREAMING, _INJECTING, g.came_to_nothing),
        _rows(f.ModelPaused, _STREAMING, _INJECTING, g.paused),
        _rows(f.FinalProposed, _STREAMING, None, g.open_request),
        _rows(f.AnswerChecked, _STREAMING, None, g.unchecked_claim),
        _rows(f.FinalRejected, _STREAMING, _INJECTING, g.checked_claim),
        _rows(f.ToolCallsRequested, _STREAMING, _COLLECTING, g.open_request, g.calls_by_place),
        _rows(f.CallsChecked, _COLLECTING, None, g.checks_every_call),
        _rows(f.ToolRejected, _COLLECTING, None, g.checked_call),
        _rows(f.DuplicateActionBlocked, _COLLECTING, None, g.checked_call),
        _rows(f.ToolCallsAccepted, _COLLECTING, _EXECUTING, g.accepts_the_rest),
        _rows(f.ApprovalRequested, _EXECUTING, None, g.needs_approval),
        _rows(f.ClarificationRequested, _EXECUTING, None, g.is_a_question),
        _rows(f.ToolStarted, _EXECUTING, None, g.may_start, limits=_TOOL_LIMITS),
        _rows(f.ApprovalGranted, _EXECUTING, None, g.awaits_approval, g.grants_what_was_shown),
        _rows(f.ApprovalDenied, _EXECUTING, None, g.awaits_approval_or_unused),
        _rows(f.ClarificationReceived, _EXECUTING, None, g.awaits_answer),
        _rows(f.CallSuperseded, _EXECUTING, None, g.awaits_approval, g.may_run_instead),
        _rows(f.ToolSucceeded, _EXECUTING, None, g.started),
        _rows(f.ToolFailed, _EXECUTING, None, g.started),
        _rows(f.DoubtResolved, _EXECUTING, None, g.in_doubt),
        _rows(f.NoteStored, _EXECUTING, None, g.left_a_note),
        _rows(f.ApprovalExpired, _EXECUTING, None, g.awaits_approval),
        _rows(f.ToolInDoubt, _EXECUTING, None, g.outcome_unknown),
        _rows(f.ToolClosed, _EXECUTING, None, g.open_call),
        _rows(f.ToolResultsInjected, _EXECUTING, _INJECTING, g.every_call_closed),
        _rows(f.UserSaid, _LIVE, None, g.begun),
        _rows(f.CompactionRequested, _LIVE, None, g.begun),
        _rows(f.CancelRequested, _LIVE, None, g.begun),
        _rows(f.RunCompleted, _STREAMING, _DONE, g.accepted_claim),
        _rows(f.RunStopped, (_IDLE, _STREAMING, _INJECTING), _DONE, g.begun),
        _rows(f.RunFailed, (_IDLE, _STREAMING, _INJECTING), _DONE, g.begun),
        _rows(f.RunCancelled, (_IDLE, _STREAMING, _INJECTING), _DONE, g.cancel_requested),
        _rows(f.LateOutcome, (*_LIVE, _DONE), None, g.begun),
        _rows(f.DriverDetached, (*_LIVE, _DONE), None, g.own_epoch),
        _rows(f.Sealed, _DONE),
        _rows(f.Erased, _DONE),
    )
    for row in rows
)


class Illegal(Exception):
    """A fact that the machine has no row for, or whose structure does not fit: a bug, or a log that is none. Names state, trigger and what would be legal."""

    def __init__(self, state: str, trigger: str, why: str = "") -> None:
        legal = sorted(EDGES.get(state, {})) if state in EDGES else []
        super().__init__(f"{trigger} is not legal in {state}" + (f": {why}" if why else f"; legal are {', '.join(legal)}"))
        self.state, self.trigger, self.legal = state, trigger, legal


class Refused(Exception):
    """A legal move that a limit forbids."""

    def __init__(self, state: str, trigger: str, exceeded: limits.Exceeded) -> None:
        super().__init__(f"{trigger} is refused in {state}: {exceeded.detail}")


class Cursor:
    """What the machine moves: a throw-away that collects the edges of one batch and folds each into its run."""

    __slots__ = ("edges", "run", "runs", "stamp", "state", "why")

    def __init__(self, run: Run, stamp: Stamp) -> None:
        self.state: str = run.state
        self.run, self.stamp = run, stamp
        self.edges: list[Edge] = []
        self.runs: list[Run] = []
        self.why: limits.Exceeded | str = ""


def _condition(requires: Requires) -> Callable[[EventData], bool]:
    def holds(event: EventData) -> bool:
        cursor: Cursor = event.model  # type: ignore[assignment]
        passed = requires(cursor.run, event.kwargs["fact"])
        cursor.why = "" if passed else _in_words(requires)
        return passed

    holds.__name__ = requires.__name__
    return holds


def _limit(limit: Limit) -> Callable[[EventData], bool]:
    def within(event: EventData) -> bool:
        cursor: Cursor = event.model  # type: ignore[assignment]
        exceeded = limit(cursor.run, cursor.stamp)
        cursor.why = exceeded or ""
        return exceeded is None

    within.__name__ = limit.__name__
    return within


def _collect(event: EventData) -> None:
    """The one hook: after the guards, before the state moves, it hands the transition's fact to the batch."""
    cursor: Cursor = event.model  # type: ignore[assignment]
    transition = event.transition
    assert transition is not None
    target = transition.dest or transition.source
    _take(cursor, event.kwargs["fact"], target)  # type: ignore[arg-type]


def _take(cursor: Cursor, fact: f.Fact, target: State) -> None:
    source: State = cursor.state  # type: ignore[assignment]
    cursor.run = evolve(cursor.run, fact, target=target, at=cursor.stamp.at)
    cursor.edges.append(Edge(fact=fact, source=source, target=target, turn=cursor.run.turn))
    cursor.runs.append(cursor.run)


def build(table: tuple[Row, ...]) -> Machine:
    """The `transitions` machine of a table. Raises ValueError for a state that is none and for two rows of one trigger from one source."""
    seen: set[tuple[str, str]] = set()
    for row in table:
        if row.source not in STATES or row.destination not in STATES:
            raise ValueError(f"{row.trigger}: {row.source} -> {row.destination} names a state that does not exist; the states are {', '.join(STATES)}")
        if row.trigger not in FACTS:
            raise ValueError(f"{row.trigger} is the tag of no fact")
        if (row.trigger, row.source) in seen:
            raise ValueError(f"two rows for {row.trigger} from {row.source}")
        seen.add((row.trigger, row.source))
    if missing := FACTS.keys() - {row.trigger for row in table}:
        raise ValueError(f"no row for {', '.join(sorted(missing))}")
    machine = Machine(model=None, states=list(STATES), initial="idle", auto_transitions=False, send_event=True, queued=False, before_state_change=[_collect])
    for row in table:
        conditions: list[str | Callable[..., bool | None]] = [*map(_condition, row.requires), *map(_limit, row.limits)]
        machine.add_transition(row.trigger, row.source, row.target, conditions=conditions)
    return machine


MACHINE: Final = build(TABLE)


class Compiled(NamedTuple):
    """A row as the fold needs it."""

    target: State
    requires: tuple[Requires, ...]
    limits: tuple[Limit, ...]


def compile_rows(machine: Machine, table: tuple[Row, ...]) -> Mapping[str, Mapping[str, Compiled]]:
    """State to trigger to row, read off the machine itself: what it would do, in a dictionary."""
    rows = {(row.source, row.trigger): row for row in table}
    edges: dict[str, dict[str, Compiled]] = {state: {} for state in STATES}
    for trigger, event in machine.events.items():
        for source, (transition,) in event.transitions.items():
            callbacks = [*transition.before, *transition.after, *transition.prepare]
            assert not callbacks, f"{trigger} from {source} has a callback beside the hook"
            row = rows[source, trigger]  # type: ignore[index]
            target: State = transition.dest or source  # type: ignore[assignment]
            edges[source][trigger] = Compiled(target, row.requires, row.limits)
    return edges


EDGES: Final = compile_rows(MACHINE, TABLE)


def fire(cursor: Cursor, fact: f.Fact) -> None:
    """Move by one fact, on the `transitions` machine. Raises Illegal or Refused; then nothing has moved."""
    cursor.why = ""
    try:
        moved = MACHINE.events[fact.TAG].trigger(cursor, fact=fact)
    except (KeyError, MachineError) as error:
        raise Illegal(cursor.state, fact.TAG) from error
    if not moved:
        _refuse(cursor, fact)


def fire_compiled(cursor: Cursor, fact: f.Fact) -> None:
    """The same, on the compiled rows; proved equal by walking every state and trigger."""
    row = _row(cursor.state, cursor.run, fact)
    if (exceeded := limits.first_exceeded(row.limits, cursor.run, cursor.stamp)) is not None:
        raise Refused(cursor.state, fact.TAG, exceeded)
    _take(cursor, fact, row.target)
    cursor.state = row.target


def step(run: Run, record: Record) -> Run:
    """Fold one record, asserting that it is a legal move from where the run is. Raises Illegal, also where what it says cannot be."""
    if record.run != run.id and (not run.position or record.type == f.RunForked.TAG):
        run = replace(run, id=record.run)  # a fork's own records begin behind its parent's
    row = _row(run.state, run, record.fact)
    if record.source != run.state or record.target != row.target:
        raise Illegal(run.state, record.type, f"the record says {record.source} -> {record.target}")
    try:
        return evolve(run, record.fact, target=record.target, at=record.at, head=record.digest)
    except NOT_JUDGED as error:
        raise Illegal(run.state, record.type, f"it cannot be folded ({type(error).__name__} {error})") from error


NOT_JUDGED: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError, MsgspecError)
"""What deciding and folding raise over an amount or a time that is none, as in records that somebody made up, or by a mistake in the rules."""


def _row(state: str, run: Run, fact: f.Fact) -> Compiled:
    """The row of a fact from a state, if its structure holds. Raises Illegal."""
    row = EDGES[state].get(fact.TAG)
    if row is None:
        raise Illegal(state, fact.TAG)
    for requires in row.requires:
        if not requires(run, fact):
            raise Illegal(state, fact.TAG, _in_words(requires))
    return row


def _refuse(cursor: Cursor, fact: f.Fact) -> None:
    """Why the machine did not move."""
    if isinstance(cursor.why, limits.Exceeded):
        raise Refused(cursor.state, fact.TAG, cursor.why)
    raise Illegal(cursor.state, fact.TAG, cursor.why)


def _in_words(requires: Requires) -> str:
    return f"it requires {requires.__name__.replace('_', ' ')}"


def empty(run_id: RunId) -> Run:
    """The state before the first record."""
    return Run(id=run_id)
