"""Logs that no machine would write: records with a right chain around any facts, legal or not.

For tests of what must notice them: the audit, the fold, whatever reads logs of strangers.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from refold.events import facts as f
from refold.events.chain import MARK, NOTHING, close
from refold.events.codec import Edge, Record, Stamp, write
from refold.events.words import RunId, State
from refold.fsm.machine import EDGES


class Forged(msgspec.Struct, frozen=True):
    """A fact with what its record says, where that is not what the table says."""

    fact: f.Fact
    source: State | None = None
    target: State | None = None
    turn: int | None = None
    begins: bool = False
    """Whether a batch begins here, whatever stands before."""
    driver: str = "forger"
    """Whose process says so."""


def forge(steps: Sequence[f.Fact | Forged], run_id: str = "forged", *, at: int = 1_000_000) -> list[Record]:
    """Records of these facts in this order. A batch begins at every input fact that stands behind a derived one."""
    records: list[Record] = []
    state: State = "idle"
    turn = batch = 0
    before: f.Fact | None = None
    for position, each in enumerate(steps, 1):
        step = each if isinstance(each, Forged) else Forged(each)
        fact = step.fact
        source = step.source or state
        row = EDGES[source].get(fact.TAG)
        target = step.target or (row.target if row is not None else source)
        turn += isinstance(fact, f.ModelRequested) and source != "streaming_model"
        if before is None or step.begins or (fact.INPUT and not before.INPUT):
            batch = position
        edge = Edge(fact=fact, source=source, target=target, turn=turn if step.turn is None else step.turn)
        digest = records[-1].digest if records else NOTHING
        record, payloads = write(edge, run=RunId(run_id), position=position, batch=batch, stamp=Stamp(at=at + batch, driver=step.driver), before=digest)
        assert not payloads, "a forged fact is small"
        records.append(record)
        state, before = target, fact
    return records


def rewritten(rows: Iterable[tuple[int, bytes]], position: int, change: Callable[[bytes], bytes]) -> list[tuple[int, bytes]]:
    """Rows of which one says something else, changed by somebody who can compute digests: every record behind it is chained anew."""
    made: list[tuple[int, bytes]] = []
    before = NOTHING
    for n, stored in rows:
        body = stored.rpartition(MARK)[0]
        changed, before = close((change(body) if n == position else body) + b"}", before)
        made.append((n, changed))
    return made
