"""Trajectories that are audited when a test is over: whatever the rules allow, the audit must find nothing in it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from refold.testing.trajectory import Trajectory

Start = Callable[..., Trajectory]


@pytest.fixture
def start() -> Iterator[Start]:
    """Begins a run; the arguments are those of `Trajectory.start`."""
    played: list[Trajectory] = []

    def begin(**arguments: Any) -> Trajectory:
        run = Trajectory().start(**arguments)
        played.append(run)
        return run

    yield begin
    for run in played:
        audit = run.audit()
        assert audit.ok, [audit.chain, audit.legal, *(invariant for invariant in audit.invariants if not invariant.ok)]
