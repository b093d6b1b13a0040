"""The audit of a run: whether its chain holds, whether every move was legal, and what each invariant says, with the positions that prove or break it.

Apart from the fold, because it must be able to judge stored bytes that are no log at all; it needs neither agent nor store, only rows and payloads.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from refold.events import facts as f
from refold.events.chain import DIGEST_LENGTH, NOTHING, digest_of, recompute
from refold.events.codec import FACTS, Record, Unreadable, read_line, record_of
from refold.events.payloads import KEY
from refold.events.words import Digest, RunId
from refold.fsm.decide import from_outside
from refold.fsm.history import History, Sign
from refold.fsm.invariants import INVARIANTS, Named
from refold.fsm.machine import NOT_JUDGED, Illegal, empty, step

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
    """Judge a run by its stored records in order, its ancestors' first if it is a fork, in one pass. `load` gives a payload or raises LookupError."""
    judged = _Judged(run_id)
    verified = _walk(run_id, rows, load, judged.take)
    invariants = judged.end((verified.broken_at, verified.why) if verified.broken_at is not None else None)
    chain = Verdict(ok=verified.ok, broken_at=verified.broken_at, why=verified.why)
    ok = chain.ok and judged.legal.ok and all(invariant.ok for invariant in invariants)
    return Audit(run_id=run_id, ok=ok, events=verified.events, chain=chain, legal=judged.legal, invariants=invariants)


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
    if _KEY in stored:
        for reference in _references(bytes(line.data)):
            _check_payload(reference, load)
    try:
        record = record_of(line, stored, load)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"its data cannot be read: {error}") from error
    _check_batch(record, before)
    return record


def _references(data: bytes) -> Iterator[dict[str, Any]]:
    try:
        yield from _within(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"its data cannot be read: {error}") from error


_KEY: Final = KEY.encode("ascii")


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
    if record.run != before.run:
        if not isinstance(record.fact, f.RunForked) or record.fact.parent != before.run:
            raise Unreadable(f"it is of run {record.run}, the record before of {before.run}")
    elif record.type == f.RunForked.TAG:
        raise Unreadable("a fork begins in the middle of its own stream")


# -- legality


class _Judged:
    """A run that is judged record by record: legal so far or not, and what each invariant found."""

    def __init__(self, run_id: str) -> None:
        self.legal = Verdict(ok=True)
        self._history = History(run=empty(RunId(run_id)))
        self._cases = [_Case(name, named, self._history) for name, named in INVARIANTS.items()]
        self._hearing = {tag: [self._cases[n] for n in numbers] for tag, numbers in _HEARS.items()}
        self._before: Record | None = None
        self._driver = ""
        """The process that drives, as its records are stamped."""

    def take(self, record: Record) -> None:
        """One more record: what the invariants say of it, then whether it is legal."""
        history = self._history
        try:
            history.take(record)
        except NOT_JUDGED as error:  # an amount or a time in the records that is none
            for case in self._cases:
                if case.counts:
                    case.cannot(error, record.position)
        for case in self._hearing[record.type]:
            try:
                sign = case.send(record)
                if sign is not None:
                    case.found(sign)
            except NOT_JUDGED as error:
                case.cannot(error, record.position)
        if self.legal.ok:
            why = self._illegal(record)
            if why:
                self.legal = Verdict(ok=False, broken_at=record.position, why=why)
                history.folded = False
        self._before = record

    def _illegal(self, record: Record) -> str:
        """Why a record is no legal move from where the run is, if so; else the run has moved."""
        why = _out_of_order(record, self._before) or self._by_another(record)
        if why:
            return why
        try:
            after = step(self._history.run, record)
        except Illegal as error:
            return str(error)
        if record.turn != after.turn:
            return f"the record is of turn {record.turn}, the run in turn {after.turn}"
        self._history.run = after
        if record.type == f.DriverAttached.TAG:
            self._driver = record.driver
        return ""

    def _by_another(self, record: Record) -> str:
        """What the driver alone may say is said by the process that attached."""
        fact = record.fact
        if record.driver == self._driver or not fact.INPUT or self._history.run.driver is None or isinstance(fact, _OF_WHOEVER_COMES) or from_outside(fact):
            return ""
        return f"{record.type} is said by {record.driver}, and {self._driver} drives"

    def end(self, damage: tuple[int, str] | None) -> tuple[Invariant, ...]:
        """What the invariants say of the whole."""
        self._history.damage = damage
        return tuple(case.end() for case in self._cases)


_OF_WHOEVER_COMES: Final = (f.RunForked, f.DriverAttached)


def _out_of_order(record: Record, before: Record | None) -> str:
    """A batch is some input facts and then what follows from them."""
    if record.batch == record.position:
        return "" if record.fact.INPUT else f"the batch begins with {record.type}, which something must bring about"
    return f"{record.type} stands behind a fact that is derived in the same batch" if before is not None and record.fact.INPUT and not before.fact.INPUT else ""


# -- invariants

_HEARS: Final = {tag: [n for n, named in enumerate(INVARIANTS.values()) if not named.reads or fact in named.reads] for tag, fact in FACTS.items()}
"""For each type of record which invariants read it, by their place."""


class _Case:
    """One invariant and what it has found so far. What breaks it is shown alone; else what proves it, as far as there is room."""

    def __init__(self, name: str, named: Named, history: History) -> None:
        self.name, self.title, self.counts = name, named.title, named.counts
        self._signs = named.judge(history)
        self._found: tuple[list[str | int], list[str | int]] = [], []
        self._more = [0, 0]
        self._broken_at: int | None = None
        next(self._signs)
        self.send: Callable[[Record | None], Sign | None] = self._signs.send
        """Hand over a record: the first sign that comes of it."""

    def found(self, sign: Sign | None) -> None:
        """Note a sign and what others come of the same record."""
        while sign is not None:
            self._note(sign)
            sign = next(self._signs)

    def cannot(self, error: Exception, position: int | None = None) -> None:
        """From a position on the invariant cannot be judged, which proves nothing."""
        if self.send is not _nothing:
            self.send = _nothing
            self._broken_at = self._broken_at or position
            self._found[True].append(f"it cannot be judged: {error}")

    def _note(self, sign: Sign) -> None:
        shown = self._found[sign.broken]
        if sign.broken and self._broken_at is None:
            self._broken_at = sign.position
        if len(shown) < EVIDENCE_MAX:
            shown.append(sign.words or sign.position)
        else:
            self._more[sign.broken] += 1

    def end(self) -> Invariant:
        """What the invariant says of the whole."""
        try:
            self.found(self.send(None))
        except StopIteration:
            pass
        except NOT_JUDGED as error:
            self.cannot(error)
        proofs, breaches = self._found
        left_out = self._more[bool(breaches)]
        evidence = (*(breaches or proofs), *([f"and {left_out} more"] if left_out else []))
        return Invariant(id=self.name, ok=not breaches, title=self.title, evidence=evidence, broken_at=self._broken_at)


def _nothing(_: Record | None) -> None:
    """What an invariant says that cannot be judged any more."""
