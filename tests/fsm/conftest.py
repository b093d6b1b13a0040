"""Trajectories that are audited when a test is over: whatever the rules allow, the audit must find nothing in it. And a long one in which something is planted."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from refold.events import facts as f
from refold.events.settings import Budgets, Context, Policy
from refold.events.words import CallId
from refold.fsm.divergence import Divergence
from refold.testing.trajectory import Act, Trajectory

Start = Callable[..., Trajectory]


USAGE = f.Usage(input_tokens=100, output_tokens=10, cost_usd="0.001")


@pytest.fixture
def start() -> Iterator[Start]:
    """Begins a run; the arguments are those of `Trajectory.start`. With `turns` it has so many of one call each, none like another, and then an answer."""
    played: list[Trajectory] = []

    def begin(*, turns: int = 0, **arguments: Any) -> Trajectory:
        run = Trajectory().start(**arguments)
        played.append(run)
        for n in range(1, turns + 1):
            run.calls(Act("look", f'{{"at":"{n}"}}'), usage=USAGE)
            run.succeed(f"t{n}.1")
        if turns:
            run.answer(usage=USAGE)
        return run

    yield begin
    for run in played:
        audit = run.audit()
        assert audit.ok, [audit.chain, audit.legal, *(invariant for invariant in audit.invariants if not invariant.ok)]


@pytest.fixture
def forked(start: Start) -> Start:
    """Plays a run of up to 9 turns and a fork of it of up to 7, which begins `back` records before the second request: 1 where the results are in, 3 while the call runs."""

    def split(*, engine: int, back: int) -> Trajectory:
        parent = start(policy=Policy(wrap_up=False), engine=engine, budgets=Budgets(max_turns=9), turns=2)
        fork = parent.fork("other", parent.position_of("model_requested 2") - back, changes={"budgets.max_turns": 7})
        if back == 3:
            fork.succeed("t1.1")
        fork.calls(Act("look", '{"at":"elsewhere"}'))
        fork.succeed("t2.1")
        fork.answer()
        return fork

    return split


# -- a long run


LOOK, SEND, PUT, PAY = (
    Act("look", '{"at":"north"}'),
    Act("send", '{"to":"ann"}', effect="side_effect", approval=True),
    Act("put", '{"value":1}', effect="idempotent", retries=2),
    Act("pay", '{"amount":3}', effect="side_effect"),
)
LARGE = "page " * 2_000


def played() -> Trajectory:
    """A long run, played by hand: humans, parallel calls, retries of a request and of a tool, a turn that was none, a duplicate, a lost driver, a doubt, a compaction, a rejected answer."""
    run = Trajectory().start(context=Context(window_tokens=6_000, keep_turns=1), budgets=Budgets(max_turns=40))
    # 1: a read, an approval and a question in one turn; the driver lets go, and another takes over
    run.calls(LOOK, SEND, Act("ask_user", '{"question":"Which?"}'), text="first", usage=f.Usage(input_tokens=300, output_tokens=30))
    run.succeed("t1.1", {"seen": "north"}, notes=(f.Note(text="it was cold"), f.Note(text="and dark")), source_ids=("north",))
    run.detach()
    run.approve("t1.2")
    run.tell(f.ClarificationReceived(call=CallId("t1.3"), text="This one.", who="ann"))
    run.attach()
    run.succeed("t1.2", "sent")
    # 2: a provider that fails twice, and a tool that fails once
    run.model_fails()
    run.model_fails(retry_after_s=2)
    run.calls(PUT, elapsed_us=1_000)
    run.fail("t2.1", retryable=True, performed="no")
    run.succeed("t2.1", 1)
    # 3 and 4: no turn at all, then a duplicate beside a tool that there is not
    run.interrupt("invalid")
    run.calls(LOOK, Act("look", '{"at":"north"}'), Act("nosuch", kind="unknown_tool"))
    run.succeed("t4.1", {"seen": "north"})
    # 5: a side effect whose process is lost; what the user says meanwhile
    run.calls(PAY)
    run.say("and be quick")
    run.attach()
    # 6 to 8: long results, which give way to a summary
    for turn, page in ((6, "a"), (7, "b"), (8, "c")):
        run.calls(Act("read", f'{{"page":"{page}"}}'))
        run.succeed(f"t{turn}.1", page * 2_000 if turn < 8 else LARGE)
    while (asked := run.run.past.asked) is not None:
        run.tell(f.ContextCompacted(since=asked.since, upto=asked.upto, summary="Pages were read.", author=asked.author, digest=asked.digest))
    # 9: an answer that does not stand, then one that does
    run.answer("Not yet", complaints=("end with a full stop",))
    run.answer("All done.", usage=f.Usage(input_tokens=900, output_tokens=9))
    run.detach()
    return run


@pytest.fixture(scope="session")
def play() -> Callable[[], Trajectory]:
    """Plays the long run."""
    return played


@pytest.fixture(scope="session")
def log() -> Trajectory:
    """The long run, played once."""
    run = played()
    assert run.run.status == "completed"
    assert {"summary_requested", "tool_in_doubt", "duplicate_action_blocked", "final_rejected", "retry_scheduled"} <= set(run.tags)
    assert run.payloads
    return run


Reported = Callable[[Trajectory, list[tuple[int, bytes]], int, str, str], Divergence]


@pytest.fixture(scope="session")
def reported() -> Reported:
    """That replay reports just this of the rows of a run, and nothing of the batches before it."""

    def found_in(log: Trajectory, rows: list[tuple[int, bytes]], position: int, field: str, cause_class: str) -> Divergence:
        found = log.replay(rows).divergence
        assert found is not None
        assert (found.position, found.field, found.cause_class) == (position, field, cause_class), found
        assert found.cause.startswith(f"{cause_class}: ")
        assert found.hint
        batch = next(record.batch for record in log.records if record.position == position)
        if batch > 1:
            assert log.replay([row for row in rows if row[0] < batch]).divergence is None
        return found

    return found_in
