"""`RunMachine`: a hypothesis state machine that tells a run whatever the world may tell it, and holds the log against the run after every step.

Users point it at their own agent: `class Mine(RunMachine): toolbox = toolbox_of(agent)`, then `TestMine = Mine.TestCase`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

from hypothesis import event, note, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refold.events import facts as f
from refold.events.chain import NOTHING
from refold.events.codec import FACTS, Record, Stamp, read
from refold.events.memory import MemoryLog
from refold.events.storage import StoreUnavailable
from refold.events.words import CallId, Status
from refold.fsm.decide import follow
from refold.fsm.effects import ChooseContext, RunTool, Summarise, pending
from refold.fsm.machine import Cursor, Illegal, empty, fire_compiled, step
from refold.projections.run import Run
from refold.runtime.journal import Journal, loader
from refold.testing import moves
from refold.testing.checks import check_log
from refold.testing.clock import ManualClock
from refold.testing.faults import Died, Fate, FaultyLog

RUN: Final = "run"
PAUSES: Final = (0, 0, 0.001, 2, 6)
"""Seconds between two moves."""
STRIDES: Final = (1, 5, 10, 25)
"""How many moves are made in a row: most of what happens should be legal, and most runs long."""


class RunMachine(RuleBasedStateMachine):
    """One run in a log in memory, under a clock that stands still. `seen` counts the edges of the table that any example took."""

    toolbox: ClassVar[moves.Toolbox] = moves.KIT
    seen: ClassVar[Counter[tuple[str, str]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.seen = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.log = FaultyLog(MemoryLog())
        self.journal = self._journal()
        self.folded = empty(self.journal.run.id)
        self.records: list[Record] = []
        self.open_calls: set[CallId] = set()
        self.checked: set[CallId] = set()
        self.started: list[CallId] = []
        self.intents: set[str | None] = set()
        self.over = False
        self.ended: Status | None = None

    def _journal(self) -> Journal:
        return Journal(self.log, RUN, clock=self.clock)

    @property
    def run(self) -> Run:
        """The live run."""
        return self.journal.run

    # -- rules

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A run begins, most of them with somebody to drive them."""
        self._tell(self._made(data, "run_started"))

    @precondition(lambda self: bool(moves.legal(self.run)) and not self.over)
    @rule(data=st.data(), steps=st.sampled_from(STRIDES))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        """The world does what fits, several times in a row, so that most of what happens is of this kind."""
        for _ in range(steps):
            tags = moves.legal(self.run)
            if not tags or self.over:
                return
            self.clock.advance(data.draw(st.sampled_from(PAUSES)))
            self._tell(self._made(data, data.draw(st.sampled_from(tags), "what comes")))
            self.everything_holds()

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def add_a_note(self, data: st.DataObject) -> None:
        """Something is noted behind the end."""
        self._tell(self._made(data, data.draw(st.sampled_from(moves.legal(self.run)), "what is noted")))

    @rule()
    def set_the_clock_back(self) -> None:
        """Somebody sets the clock of the machine back."""
        self.clock.step_back(2)

    @precondition(lambda self: bool(moves.legal(self.run)))
    @rule(
        data=st.data(),
        fate=st.sampled_from((("append", "unavailable"), ("appended", "unavailable"), ("append", "death"), ("appended", "death"), ("append", "conflict"))),
    )
    def meet_a_fault(self, data: st.DataObject, fate: tuple[str, str]) -> None:
        """What comes next meets a fault of the store; then another process takes the run up from the log."""
        facts = self._made(data, data.draw(st.sampled_from(moves.legal(self.run)), "what comes"))
        self.log.fate = Fate(fate[0], 1, fate[1])  # type: ignore[arg-type]
        try:
            self.journal.command_sync(lambda run: facts if _fits(run, facts, self.clock) else ())
        except (Died, StoreUnavailable):
            self.journal = self._journal()
            self.journal.catch_up()
        self.log.fate = Fate()

    @precondition(lambda self: self.run.position and self.run.state != "done")
    @rule(data=st.data())
    def be_slower_than_another(self, data: st.DataObject) -> None:
        """Somebody else appends first; what the driver wants to say is decided again, where it still fits."""
        other = self._journal().load()
        first = self._made(data, data.draw(st.sampled_from([tag for tag in moves.legal(other.run) if FACTS[tag].OUTSIDE]), "what the other says"))
        facts = self._made(data, data.draw(st.sampled_from(moves.legal(self.run)), "what comes"))
        other.command_sync(lambda _run: first)
        self.journal.command_sync(lambda run: facts if _fits(run, facts, self.clock) else ())
        self.journal.catch_up()

    @rule(data=st.data())
    def refuse_what_is_illegal(self, data: st.DataObject) -> None:
        """A fact without a row, or one that does not fit its row, is refused, and nothing has moved."""
        before, stored = self.run, self.log.head(RUN)
        fact = data.draw(st.sampled_from(_strangers(before)), "what must not come")
        try:
            self.journal.command_sync(lambda _run: (fact,))
        except Illegal:
            pass
        else:
            raise AssertionError(f"{fact!r} was taken in {before.state}")
        assert self.run == before
        assert self.log.head(RUN) == stored

    def _made(self, data: st.DataObject, tag: str) -> Sequence[f.Input]:
        facts = moves.make(moves.Choice(data.draw, self.run, self.started, self.toolbox), tag)
        note(f"{self.run.state}: {', '.join(map(repr, facts))}")
        return facts

    def _tell(self, facts: Sequence[f.Input]) -> None:
        self.journal.command_sync(lambda _run: facts)

    # -- what holds after every step

    @invariant()
    def everything_holds(self) -> None:
        """The log is read first: what is asked of the run next leans on it."""
        self._the_log_folds_to_the_run()
        self._nothing_is_done_without_an_intent()
        self._an_end_is_an_end()
        self._nobody_waits_in_vain()

    def _the_log_folds_to_the_run(self) -> None:
        """Every new record is a legal move, and together they are the live run."""
        load = loader(self.log, RUN, many=False)
        for row in self.log.read(RUN, self.folded.position):
            record = read(row.state, load)
            self.folded = step(self.folded, record)
            assert record.position == row.position == self.folded.position, "positions are gapless"
            self._see(record)
        assert self.folded == self.run

    def _see(self, record: Record) -> None:
        """What must be true of a record, told from the records alone."""
        self.records.append(record)
        self.seen[record.source, record.type] += 1
        event(f"{record.source} {record.type}")
        match record.fact:
            case f.DriverAttached():
                self.intents.clear()
            case f.ToolCallsRequested(calls=calls):
                self.open_calls |= {call.id for call in calls}
            case f.CallsChecked(checks=checks):
                self.checked |= {check.call for check in checks if check.kind == "success"}
            case f.ToolStarted(call=call):
                assert call in self.checked, f"{call} was started and never checked"
                self.started.append(call)
                self.intents.add(call)
            case f.ToolResultsInjected(calls=injected):
                self.open_calls -= set(injected)
            case f.SummaryRequested():
                self.intents.add("summary")
            case f.ModelRequested():
                assert not self.open_calls, f"a request while {self.open_calls} have no result"
                self.intents.add(None)
        if self.over:
            assert record.source == record.target == "done", "done is absorbing"
        self.over = self.over or record.target == "done"

    def _nothing_is_done_without_an_intent(self) -> None:
        """What is pending is in the log as an intent of the driver who is to do it, never only of one before."""
        for effect in pending(self.run):
            if isinstance(effect, ChooseContext):
                continue  # a consult does nothing
            intent = effect.call if isinstance(effect, RunTool) else "summary" if isinstance(effect, Summarise) else None
            assert intent in self.intents, f"{effect} is pending, and its driver has not said so"

    def _an_end_is_an_end(self) -> None:
        """An ended run keeps its status, has no open call and asks for nothing."""
        if self.run.state != "done":
            return
        assert self.ended in (None, self.run.status), "the status of an ended run changed"
        self.ended = self.run.status
        assert not self.open_calls
        assert not [call for call in self.run.calls if call.open]
        assert pending(self.run) == ()

    def _nobody_waits_in_vain(self) -> None:
        """A run that is driven, and has not ended, has something pending, waits for a human, or goes on with the next word of a driver."""
        run = self.run
        if run.driver is not None and run.state != "done":
            goes_on = follow(run, Stamp(at=run.at, driver="")) is not None
            assert pending(run) or run.waits or goes_on, f"stuck in {run.state}, asked {run.asked}, calls {[(call.id, call.phase) for call in run.calls]}"

    def teardown(self) -> None:
        """The whole log, at the end of every example."""
        if self.records:
            check_log(self.records)


def _fits(run: Run, facts: Sequence[f.Input], clock: ManualClock) -> bool:
    """Whether what a process wanted to say still fits a run that moved on meanwhile."""
    cursor = Cursor(run, Stamp(at=max(run.at, clock.now_us()), driver=""))
    try:
        for fact in facts:
            fire_compiled(cursor, fact)
    except Illegal:
        return False
    return True


def _strangers(run: Run) -> list[f.Input]:
    """Input facts that have no place where the run is."""
    call = CallId("t99.1")
    known = next((each.id for each in run.calls), call)
    candidates: list[f.Input] = [
        f.DriverAttached(epoch=run.epoch + 2, who="nobody", host="host"),
        f.DriverAttached(epoch=run.epoch, who="nobody", host="host"),
        f.DriverDetached(epoch=run.epoch + 1),
        f.ToolSucceeded(call=call, result=1),
        f.ToolFailed(call=call, kind="timeout", message=""),
        f.ToolSucceeded(call=known, result=1, attempt=99),
        f.ApprovalGranted(call=known, digest=NOTHING, who="nobody"),
        f.ApprovalDenied(call=call, reason="no", who="nobody"),
        f.ClarificationReceived(call=call, text="yes", who="nobody"),
        f.DoubtResolved(call=call, verdict="happened"),
        f.RunForked(parent=run.id, at=run.position + 1, head=run.head),
        f.ToolCallsRequested(),
        f.ToolCallsRequested(calls=(f.ProposedCall(id=call, name="look"),)),
        f.CallsChecked(checks=()),
        f.AnswerChecked(),
    ]
    if run.position:
        candidates += [
            f.RunStarted(goal="again", setup=run.begun),
            f.RunContinued(parent=run.id, at=1, head=run.head, goal="again", transcript=run.head, size=0, setup=run.begun),
        ]
    if run.state != "done":
        candidates += [f.Sealed(algorithm="", key="", signature=""), f.Erased(who="nobody")]
    if run.asked != "yes":
        error = f.ErrorInfo(type="", message="")
        candidates += [
            f.FinalProposed(text="a"),
            f.ModelInterrupted(cause="invalid"),
            f.ModelFailed(error=error),
            f.UsageUpdated(usage=f.Usage()),
            f.StreamCheckpointed(),
        ]
    if run.state == "done":
        candidates += [f.UserSaid(text="a", who="nobody"), f.CancelRequested(who="nobody"), f.ContextChosen(builder="")]
    return candidates
