"""What the world may tell a run next: every input fact by its tag, whether it fits the run, how often it comes, and who makes it.

Apart from the machine that makes the moves, so that another machine, or a user's, can draw from the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from refold.events import facts as f
from refold.fsm.effects import pending
from refold.fsm.machine import EDGES
from refold.projections.run import Run
from refold.testing import commands, outcomes
from refold.testing.choice import Choice, calls_in
from refold.testing.toolbox import KIT, Toolbox, toolbox_of

__all__ = ["KIT", "MOVES", "Choice", "Move", "Toolbox", "legal", "make", "toolbox_of"]

URGENT: Final = 12


@dataclass(frozen=True)
class Move:
    """Whether a fact fits a run, and how to make it, with what belongs into its batch. `weight` is how often it is drawn beside the others."""

    fits: Callable[[Run], bool]
    make: Callable[[Choice], Sequence[f.Input]]
    weight: int = 2
    urgent: Callable[[Run], bool] = lambda _: False
    """Where nothing much happens without it, so that it is drawn far more often."""


def legal(run: Run) -> list[str]:
    """The tags of the input facts that may come next, as often as their weight."""
    return [
        tag for tag in EDGES[run.state] if tag in MOVES and MOVES[tag].fits(run) for _ in range(MOVES[tag].weight * (URGENT if MOVES[tag].urgent(run) else 1))
    ]


def make(it: Choice, tag: str) -> Sequence[f.Input]:
    """The inputs of a batch that begins with a fact of this tag."""
    return MOVES[tag].make(it)


# -- when a fact fits


def _fresh(run: Run) -> bool:
    return run.position == 0


def _begun(run: Run) -> bool:
    return run.setup is not None


def _idle(run: Run) -> bool:
    return run.state == "idle"


def _acted(run: Run) -> bool:
    return run.spent.tool_calls > 0


def _driven(run: Run) -> bool:
    return run.driver is not None


def _ended(run: Run) -> bool:
    return run.state == "done"


def _asked(run: Run) -> bool:
    return run.driver is not None and run.asked == "yes"


def _has(*phases: str, approval: bool | None = None) -> Callable[[Run], bool]:
    def has(run: Run) -> bool:
        return bool(calls_in(run, phases, approval))

    return has


def _performing(run: Run) -> bool:
    return run.driver is not None and bool(calls_in(run, ("started",)))


MOVES: Final[dict[str, Move]] = {
    "run_started": Move(_fresh, commands.started, 6),
    "run_continued": Move(_fresh, commands.continued, 1),
    "driver_attached": Move(_begun, commands.attached, 1, urgent=lambda run: run.driver is None),
    "driver_detached": Move(lambda run: _driven(run) or _ended(run), commands.detached, 2, urgent=lambda run: _driven(run) and not pending(run)),
    "context_chosen": Move(lambda run: run.setup is not None and run.context is not None, outcomes.context_choice, 2, urgent=_idle),
    "context_compacted": Move(lambda run: run.past.asked is not None, outcomes.compaction, 4),
    "usage_updated": Move(_asked, outcomes.usage_update, 3),
    "stream_checkpointed": Move(_asked, outcomes.checkpoint, 3),
    "model_failed": Move(_asked, outcomes.provider_failure, 8),
    "model_interrupted": Move(_asked, outcomes.interruption, 6),
    "final_proposed": Move(_asked, outcomes.claim, 12),
    "tool_calls_requested": Move(_asked, outcomes.proposals, 60),
    "tool_succeeded": Move(_performing, outcomes.success, 40),
    "tool_failed": Move(_performing, outcomes.failure, 16),
    "late_outcome": Move(_acted, outcomes.late, 1),
    "approval_granted": Move(_has("waiting", approval=True), commands.granted, 12),
    "approval_denied": Move(lambda run: bool(commands.deniable(run)), commands.denied, 2),
    "clarification_received": Move(_has("waiting", approval=False), commands.clarified, 20),
    "call_superseded": Move(_has("waiting", approval=True), commands.superseded, 4),
    "doubt_resolved": Move(_has("doubt"), commands.resolved, 20),
    "user_said": Move(_begun, commands.said, 3),
    "compaction_requested": Move(_begun, commands.compaction_requested, 2),
    "cancel_requested": Move(_begun, commands.cancelled, 1, urgent=lambda run: run.state == "idle" and run.position > 3),
    "sealed": Move(_ended, commands.sealed, 1),
    "erased": Move(_ended, commands.erased, 1),
}
"""Every input fact but `run_forked`, which begins another stream than the one it splits."""
