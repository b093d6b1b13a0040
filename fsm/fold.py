"""`fold`: records to the state behind them, every move checked against the table."""

from collections.abc import Iterable

from refold.events.codec import Record
from refold.fsm.machine import empty, step
from refold.projections.run import Run


def fold(records: Iterable[Record]) -> Run:
    """The state of a run after some records, from the first on. Raises ValueError without any, Illegal where one has no place."""
    run: Run | None = None
    for record in records:
        run = step(empty(record.run) if run is None else run, record)
    if run is None:
        raise ValueError("there is no record to fold")
    return run
