"""Audits of runs, wherever they are stored: what the records themselves say, and whether they can be derived again.

Apart from the audit of records, which knows neither stores nor what a replay is.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from refold.events.codec import Unreadable, read_line
from refold.events.lineage import OtherHistory, history
from refold.events.payloads import Load
from refold.fsm.audit import Audit, Invariant, Verdict, audit_rows
from refold.fsm.batches import Stored
from refold.fsm.replay import replay_rows
from refold.projections.revisions import UnsupportedEngine
from refold.runtime.journal import UnknownRun, loader
from refold.runtime.store import Store

TITLE = "the records can be derived again from their inputs"


def audit(store: Store, run_id: str) -> Audit:
    """Chain, legality and every invariant of one run, without the code of its agent. Raises UnknownRun, StoreUnavailable."""
    load = loader(store.log, run_id, many=True)
    try:
        return held_against(audited(run_id, lambda: stored_rows(store, run_id), load), misfiled(store, run_id))
    except OtherHistory as error:
        return msgspec.structs.replace(audited(run_id, lambda: (), load), chain=Verdict(ok=False, broken_at=1, why=str(error)))


def audited(run_id: str, rows: Callable[[], Iterable[Stored]], load: Load) -> Audit:
    """Everything that records say of themselves, read twice: once to be judged, once to be derived again."""
    audit = audit_rows(run_id, rows(), load)
    again = _derived_again(run_id, rows(), load)
    invariants = sorted((*audit.invariants, again), key=lambda each: int(each.id[1:]))
    return msgspec.structs.replace(audit, ok=audit.ok and again.ok, invariants=tuple(invariants))


def held_against(audit: Audit, damage: tuple[int, str] | None) -> Audit:
    """The audit of records beside which something else is wrong, at a position."""
    if damage is None or (audit.chain.broken_at is not None and audit.chain.broken_at <= damage[0]):
        return audit
    return msgspec.structs.replace(audit, ok=False, chain=Verdict(ok=False, broken_at=damage[0], why=damage[1]))


def _derived_again(run_id: str, rows: Iterable[Stored], load: Load) -> Invariant:
    """I14, with the first place where it does not hold."""
    try:
        derived = replay_rows(run_id, rows, load, keep=False)
    except UnsupportedEngine as error:
        return Invariant(id="I14", ok=False, title=TITLE, evidence=(f"it cannot be judged: {error}",))
    found = derived.divergence
    if found is None and not derived.events:
        return Invariant(id="I14", ok=False, title=TITLE, evidence=("there are no records",), broken_at=1)
    if found is None:
        return Invariant(id="I14", ok=True, title=TITLE, evidence=(f"1 to {derived.events}",))
    return Invariant(id="I14", ok=False, title=TITLE, evidence=(f"{found.field} at {found.position}: {found.cause}",), broken_at=found.position)


def misfiled(store: Store, run_id: str) -> tuple[int, str] | None:
    """The first row whose columns say something else than the record in it; what the bytes themselves are worth is the audit's business."""
    own = False  # a fork that was imported holds its parents' records too, in front of its own
    for row in store.log.scan(run_id):
        try:
            line = read_line(row.state)
        except Unreadable:
            continue
        own = own or line.run == run_id
        if (line.position, line.type) != (row.position, row.type) or (own and line.run != run_id):
            return row.position, f"the row says {row.type} at {row.position} of {run_id}, the record in it {line.type} at {line.position} of {line.run}"
    return None


def stored_rows(store: Store, run_id: str) -> Iterator[Stored]:
    """Positions and bytes of a run that exists. Raises UnknownRun, OtherHistory."""
    if store.log.head(run_id) is None:
        raise UnknownRun(f"there is no run {run_id} in this store")
    return ((row.position, row.state) for row in history(store.log, run_id))
