"""Whatever a run was: decided again under the settings that it had, nothing of it is otherwise."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from refold.events import facts as f
from refold.events.codec import read
from refold.fsm.whatif import what_if
from refold.runtime.journal import loader
from refold.runtime.transfer import parse
from refold.testing.machine import RUN, RunMachine
from refold.testing.trajectory import Trajectory

LOGS = sorted((Path(__file__).parents[1] / "logs").glob("v*/*.jsonl"))


def as_it_was(setup: f.Setup) -> dict[str, Any]:
    """Every setting of a run, set to what it was."""
    parts = {"budgets": setup.budgets, "policy": setup.policy} | ({"context": setup.context} if setup.context is not None else {})
    return {f"{section}.{name}": value for section, part in parts.items() for name, value in asdict(part).items()}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_settings_that_a_golden_log_had_change_nothing_of_it(path: Path) -> None:
    export = parse(path.read_bytes(), path.name)
    records = [read(stored, export.load) for _, stored in export.rows]
    begun = records[0].fact
    assert isinstance(begun, f.RunStarted | f.RunContinued)
    forked = any(isinstance(record.fact, f.RunForked) for record in records)  # it has other settings than its parent had
    told = what_if(export.run_id, export.rows, export.load, {} if forked else as_it_was(begun.setup))
    assert (told.verdict, told.changes, told.horizon, told.assumed) == ("unaffected", (), None, ())


class Unchanged(RunMachine):
    """At the end of every example the run is decided again under its own settings."""

    def teardown(self) -> None:
        super().teardown()
        if not self.records:
            return
        rows = [(row.position, row.state) for row in self.log.read(RUN)]
        load = loader(self.log, RUN, many=True)
        told = what_if(RUN, rows, load, as_it_was(self.folded.begun))
        assert (told.verdict, told.changes) == ("unaffected", ()), told


TestUnchanged = pytest.mark.slow(Unchanged.TestCase)
TestUnchanged.settings = settings(stateful_step_count=20)


@pytest.mark.parametrize("engine", [1, 2])
@pytest.mark.parametrize("back", [0, 1, 3])
def test_the_settings_that_a_fork_had_change_nothing_of_it(forked: Callable[..., Trajectory], engine: int, back: int) -> None:
    # given a run that was split off at its second request, where the results are in, or while the call runs
    fork = forked(engine=engine, back=back)
    # then its own settings change nothing
    assert fork.what_if(as_it_was(fork.run.begun)).verdict == "unaffected"
