"""The audit of a run: whether its chain holds, whether every move was legal, and what each invariant says, with the positions that prove or break it.

Apart from the fold, because it must be able to judge stored bytes that are no log at all; it needs neither agent nor store, only rows and payloads.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from refold.events import facts as f
from refold.events.chain import DIGEST_LENGTH, NOTHING, digest_of, recompute
from refold.events.codec import Record, Unreadable, read, read_line
from refold.events.payloads import KEY
from refold.events.words import Digest, RunId
from refold.fsm.history import History
from refold.fsm.invariants import INVARIANTS, Named
from refold.fsm.machine import Illegal, empty, step
from refold.projections.run import Run

EVIDENCE_MAX: Final = 100
"""Pieces of evidence that an invariant shows; a last one says how many more there are."""

Load = Callable[[Digest], bytes]
Rows = Iterable[tuple[int, bytes]]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One question's answer; `broken_at` is the first position that does not fit, `why` one line."""

    ok: bool
    broken_at: int | None = None
    why: str = ""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The chain alone; `head` is the digest of the last record that holds."""

    ok: bool
    events: int
    broken_at: int | None = None
    head: Digest = NOTHING
    why: str = ""


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """What one invariant says: evidence that it holds, or else that it does not."""

    id: str
    ok: bool
    title: str
    evidence: tuple[str | int, ...] = ()
    broken_at: int | None = None


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Everything together. Legality and invariants are judged up to where the chain breaks."""

    run_id: str
    ok: bool
    events: int
    chain: Verdict
    legal: Verdict
    invariants: tuple[Invariant, ...]


def audit_rows(run_id: str, rows: Rows, load: Load) -> Audit:
    """Judge a run by its stored records in order, its ancestors' first if it is a fork. `load` gives a payload or raises LookupError."""
    records: list[Record] = []
    verified = _walk(run_id, rows, load, records.append)
    run, legal = _fold(run_id, records)
    damage = (verified.broken_at, verified.why) if verified.broken_at is not None else None
    history = History(records=tuple(records), run=run, damage=damage)
    invariants = tuple(_judged(name, named, history) for name, named in INVARIANTS.items())
    chain = Verdict(ok=verified.ok, broken_at=verified.broken_at, why=verified.why)
    ok = chain.ok and legal.ok and all(invariant.ok for invariant in invariants)
    return Audit(run_id=run_id, ok=ok, events=verified.events, chain=chain, legal=legal, invariants=invariants)


def verify_rows(run_id: str, rows: Rows, load: Load) -> Verified:
    """The chain alone, in flat memory."""
    return _walk(run_id, rows, load, _forget)


def _forget(_: Record) -> None:
    pass


# -- the chain


def _walk(run_id: str, rows: Rows, load: Load, keep: Callable[[Record], None]) -> Verified:
    """Hand every record up to the first that does not fit to `keep`, and count them all."""
    events, first_of_run, before = 0, 1, None
    fault: tuple[int, str] | None = None
    for events, (position, stored) in enumerate(rows, 1):
        if fault is not None:
            continue
        try:
            record = _fitting(events, position, stored, before, load)
        except Unreadable as error:
            fault = events, error.why
            continue
        if before is not None and record.run != before.run:
            first_of_run = events
        keep(record)
        before = record
    if fault is None and before is None:
        fault = 1, "there are no records"
    elif fault is None and before is not None and before.run != run_id:
        fault = first_of_run, f"the records are those of run {before.run}"
    head = before.digest if before is not None else NOTHING
    return Verified(ok=fault is None, events=events, broken_at=fault and fault[0], head=head, why=fault[1] if fault else "")


def _fitting(expected: int, position: int, stored: bytes, before: Record | None, load: Load) -> Record:
    """The record behind `before`. Raises Unreadable with the reason why these bytes are not it."""
    if position != expected:
        raise Unreadable(f"position {position} where {expected} should be")
    line = read_line(stored)
    if line.position != expected:
        raise Unreadable(f"the record calls itself {line.position}")
    digest = recompute(stored, before.digest if before is not None else NOTHING)
    if digest is None or stored[-DIGEST_LENGTH - 2 : -2] != digest.encode("ascii") or line.digest != digest:
        raise Unreadable("its digest does not cover its bytes and the record before")
    for reference in _references(bytes(line.data)):
        _check_payload(reference, load)
    try:
        record = read(stored, load)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"its data cannot be read: {error}") from error
    if record.call != getattr(record.fact, "call", None):
        raise Unreadable(f"it is of call {record.call}, and its data names another")
    _check_batch(record, before)
    return record


def _references(data: bytes) -> Iterator[dict[str, Any]]:
    if KEY.encode("ascii") in data:
        try:
            yield from _within(msgspec.json.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"its data cannot be read: {error}") from error


def _within(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if KEY in value:
            yield value
        else:
            for item in value.values():
                yield from _within(item)
    elif isinstance(value, list):
        for item in value:
            yield from _within(item)


def _check_payload(reference: dict[str, Any], load: Load) -> None:
    digest, size = reference[KEY], reference.get("size")
    if not isinstance(digest, str):
        raise Unreadable("a reference to a payload holds no digest")
    try:
        payload = load(Digest(digest))
    except LookupError as error:
        raise Unreadable(f"the payload {digest} is missing") from error
    if digest_of(payload) != digest:
        raise Unreadable(f"the payload {digest} is not what its digest says")
    if len(payload) != size:
        raise Unreadable(f"the payload {digest} has {len(payload)} bytes, not {size}")


def _check_batch(record: Record, before: Record | None) -> None:
    """A batch is a run of positions with one stamp; time never goes back; a run's records follow only on its own or, at a fork, on its parent's."""
    begins = record.batch == record.position
    if before is None:
        if not begins:
            raise Unreadable(f"the first record belongs to batch {record.batch}")
        return
    if not begins:
        if record.batch != before.batch:
            raise Unreadable(f"it belongs to batch {record.batch}, the record before to {before.batch}")
        if (record.run, record.at, record.driver, record.stepped_back_us) != (before.run, before.at, before.driver, before.stepped_back_us):
            raise Unreadable("its stamp differs from that of its batch")
    if record.at < before.at:
        raise Unreadable("it is earlier than the record before")
    splits = isinstance(record.fact, f.RunForked) and record.fact.parent == before.run
    if record.run != before.run and not splits:
        raise Unreadable(f"it is of run {record.run}, the record before of {before.run}")
    if record.type == f.RunForked.TAG and record.run == before.run:
        raise Unreadable("a fork begins in the middle of its own stream")


# -- legality


def _fold(run_id: str, records: list[Record]) -> tuple[Run, Verdict]:
    """The run up to its last legal record, and the verdict on the first illegal one."""
    run, before = empty(RunId(run_id)), None
    for record in records:
        why = _out_of_order(record, before)
        if not why:
            try:
                after = step(run, record)
            except Illegal as error:
                why = str(error)
            except (ArithmeticError, ValueError, AssertionError) as error:
                why = f"{record.type} cannot be folded: {type(error).__name__} {error}"
            else:
                why = f"the record is of turn {record.turn}, the run in turn {after.turn}" if record.turn != after.turn else ""
        if why:
            return run, Verdict(ok=False, broken_at=record.position, why=why)
        run, before = after, record
    return run, Verdict(ok=True)


def _out_of_order(record: Record, before: Record | None) -> str:
    """A batch is some input facts and then what follows from them."""
    if record.batch == record.position:
        return "" if record.fact.INPUT else f"the batch begins with {record.type}, which something must bring about"
    return f"{record.type} stands behind a fact that is derived in the same batch" if before is not None and record.fact.INPUT and not before.fact.INPUT else ""


# -- invariants


def _judged(name: str, named: Named, history: History) -> Invariant:
    """Ask one invariant. What breaks it is shown alone; else what proves it, as far as there is room."""
    proofs: list[str | int] = []
    breaches: list[str | int] = []
    broken_at: int | None = None
    more = [0, 0]
    try:
        for sign in named.judge(history):
            shown = breaches if sign.broken else proofs
            if sign.broken and broken_at is None:
                broken_at = sign.position
            if len(shown) < EVIDENCE_MAX:
                shown.append(sign.words or sign.position)
            else:
                more[sign.broken] += 1
    except (ArithmeticError, ValueError, msgspec.MsgspecError) as error:  # an amount or a time in the records that is none
        breaches.append(f"it cannot be judged: {error}")
    evidence = breaches or proofs
    left_out = more[bool(breaches)]
    return Invariant(id=name, ok=not breaches, title=named.title, evidence=(*evidence, *([f"and {left_out} more"] if left_out else [])), broken_at=broken_at)
