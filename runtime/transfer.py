"""Export, verify and import: a run as one JSON Lines file that can be checked on its own.

The form of the file is in `events/EXPORT.md`; `examples/verify_export.py` reads it without anything of this package.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from refold.events import payloads as large
from refold.events.chain import digest_of
from refold.events.codec import Unreadable, read_line
from refold.events.lineage import ancestors, history
from refold.events.storage import Row
from refold.events.words import Digest, RunId
from refold.fsm.audit import Audit, Verified, verify_rows
from refold.fsm.replay import Stored
from refold.runtime.auditing import audited, held_against, misfiled, stored_rows
from refold.runtime.journal import UnknownRun, loader
from refold.runtime.sealing import Checked, Public, check
from refold.runtime.store import Store

PREFIX: Final = b'{"payload":"'
"""How the line of a payload begins; its digest and the value follow."""
MIDDLE: Final = b'","value":'


class DamagedFile(ValueError):
    """A file that is no whole export: one line that says where."""


class OtherRun(ValueError):
    """There is a run of that id, in the store or in a file beside it, which is not the same to the last byte: another one, or more or less of it."""


def export_lines(store: Store, run_id: str) -> Iterator[bytes]:
    """The lines of an export, each with its line feed. Raises UnknownRun, StoreUnavailable."""
    if store.log.head(run_id) is None:
        raise UnknownRun(f"there is no run {run_id} in this store")
    load = loader(store.log, run_id, many=True)
    written: set[Digest] = set()
    for row in history(store.log, run_id):
        for digest in large.references(bytes(read_line(row.state).data)):
            if digest not in written:
                written.add(digest)
                yield PREFIX + digest.encode("ascii") + MIDDLE + load(digest) + b"}\n"
        yield row.state + b"\n"


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A file taken apart: the rows in order, the payloads by digest, and the first line that is neither (with the position expected there)."""

    name: str
    run_id: RunId
    rows: tuple[Stored, ...]
    payloads: dict[Digest, bytes]
    damage: tuple[int, str] | None

    def load(self, digest: Digest) -> bytes:
        """A payload of the file. Raises LookupError."""
        return self.payloads[digest]

    def verify(self) -> Verified:
        """The chain alone."""
        verified = verify_rows(self.run_id, self.rows, self.load)
        if self.damage is None or (verified.broken_at is not None and verified.broken_at <= self.damage[0]):
            return verified
        return Verified(ok=False, events=verified.events, broken_at=self.damage[0], head=verified.head, why=self.damage[1])

    def check(self, keys: Sequence[Public] = (), head: str | None = None) -> Checked:
        """The chain, and what it is held against: public keys, and a head that was known before."""
        return check(self.verify(), self.rows, self.load, keys, head)

    def audit(self) -> Audit:
        """Everything that can be judged without store and code; a file that is of no run is known by its name."""
        return held_against(audited(self.run_id or self.name, lambda: self.rows, self.load), self.damage)


def parse(data: bytes, name: str) -> Export:
    """Take a file apart. A fault is noted, not raised: what is before it can still be judged."""
    rows: list[Stored] = []
    payloads: dict[Digest, bytes] = {}
    loose: list[Digest] = []
    damage: tuple[int, str] | None = None
    run_id = RunId("")
    lines = data.split(b"\n")
    tail = lines.pop()
    for number, line in enumerate(lines, 1):
        expected = len(rows) + 1
        try:
            if line.startswith(PREFIX):
                digest, value = _payload(line)
                if digest in payloads:
                    raise Unreadable("the same payload twice")
                payloads[digest] = value
                loose.append(digest)
                continue
            record = read_line(line)
            _check_named(_named(bytes(record.data)), payloads, loose)
            loose.clear()
            run_id = record.run  # of a fork, its parents come first
            rows.append((record.position, line))
        except Unreadable as error:
            damage = damage or (expected, f"line {number} is no record: {error.why}")
            rows.append((expected, line))
    if damage is None and tail:
        damage = (len(rows) + 1, "the last line does not end with a line feed")
    if damage is None and loose:
        damage = (len(rows) + 1, f"no record names the payload {loose[0]}")
    return Export(name=name, run_id=run_id, rows=tuple(rows), payloads=payloads, damage=damage)


def _check_named(named: list[Digest], payloads: dict[Digest, bytes], loose: list[Digest]) -> None:
    """Payloads stand directly before the first record that names them, in the order in which it does, and nowhere else."""
    if missing := [digest for digest in named if digest not in payloads]:
        raise Unreadable(f"it names the payload {missing[0]}, which does not stand before it")
    if stray := [digest for digest in loose if digest not in named]:
        raise Unreadable(f"it does not name the payload {stray[0]}, which stands before it")
    if loose != [digest for digest in dict.fromkeys(named) if digest in loose]:
        raise Unreadable("it names the payloads before it in another order")


def _payload(line: bytes) -> tuple[Digest, bytes]:
    """The digest and the bytes of a payload's line, which must be exactly as it is written."""
    digest, mark, rest = line[len(PREFIX) :].partition(MIDDLE)
    value = rest[:-1]
    if not mark or not rest.endswith(b"}") or digest_of(value).encode("ascii") != digest:
        raise Unreadable("a payload that is not what its digest says")
    return Digest(digest.decode("ascii")), value


def _named(data: bytes) -> list[Digest]:
    try:
        return large.references(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise Unreadable(f"its data cannot be read: {error}") from error


def stored(store: Store, run_id: str) -> Export:
    """A run of the store as if it were taken from a file; a row that is misfiled is damage. Raises UnknownRun, StoreUnavailable."""
    rows = tuple(stored_rows(store, run_id))
    streams = [*(stretch.run_id for stretch in ancestors(store.log, run_id)), run_id]
    payloads = {digest: value for stream in streams for digest, value in store.log.payloads(stream).items()}
    return Export(name=f"run {run_id}", run_id=RunId(run_id), rows=rows, payloads=payloads, damage=misfiled(store, run_id))


def whole(export: Export) -> Export:
    """A file that may be imported. Raises DamagedFile."""
    verified = export.verify()
    if not verified.ok:
        raise DamagedFile(f"{export.name} is damaged at position {verified.broken_at} ({verified.why}); nothing was imported")
    return export


def agree(exports: Sequence[Export]) -> None:
    """Files that are imported together hold one run under one id. Raises OtherRun."""
    first: dict[RunId, Export] = {}
    for export in exports:
        other = first.setdefault(export.run_id, export)
        if other.rows != export.rows:
            raise OtherRun(f"{export.name}: nothing was imported: {other.name} holds another run {export.run_id}, or more or less of it: import one of the two")


def is_there(store: Store, export: Export) -> bool:
    """Whether the store has the run of a whole file already. Raises OtherRun where what is stored is not the same to the last byte."""
    if store.log.head(export.run_id) is None:
        return False
    held = [(row.position, row.state) for row in history(store.log, export.run_id)]
    if held != list(export.rows):
        raise OtherRun(f"{export.name}: nothing was imported: the store already has a run {export.run_id}, {_unlike(held, export.rows)}")
    return True


def _unlike(held: Sequence[Stored], given: Sequence[Stored]) -> str:
    """How a run of the store and one of its id in a file are not the same, and what to do."""
    parted = next((position for (position, stored), (_, other) in zip(held, given, strict=False) if stored != other), None)
    if parted is not None:
        return f"which is another one from position {parted} on: import the file into another store (--store URL)"
    if len(held) > len(given):
        return f"which holds all of the file, that ends at position {len(given)}, and goes on to position {len(held)}: there is nothing to import"
    return f"which ends at position {len(held)}, where the file goes on to position {len(given)}: to have all of it, import the file into another store (--store URL)"


def import_file(store: Store, export: Export) -> RunId:
    """Store the run of a file; one that is there already is left alone. Raises DamagedFile, OtherRun, StoreUnavailable."""
    if not is_there(store, whole(export)):
        take(store, export)
    return export.run_id


def take(store: Store, export: Export) -> None:
    """Store the run of a whole file that is not there. Raises StoreUnavailable."""
    rows = [Row(position, read_line(stored).type, stored) for position, stored in export.rows]
    store.log.append(export.run_id, rows[0].position - 1, rows, export.payloads, create=True)


def audit_json(audit: Audit) -> dict[str, Any]:
    """The documented shape of `audit`."""
    made: dict[str, Any] = msgspec.to_builtins(audit)
    return made
