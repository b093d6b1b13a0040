"""Facts to bytes and back: the record of the contract, its versions, and what is wrong with bytes that are none.

The only place that knows how a record is written; what it writes it can read, because every append reads back what it wrote.
"""

from collections.abc import Callable
from typing import Any, Final, cast, get_args

import msgspec

from refold.events.chain import close
from refold.events.facts import Fact
from refold.events.payloads import Load, move_out, put_back
from refold.events.words import CallId, Digest, RunId, State

FACTS: Final[dict[str, type[Fact]]] = {cls.TAG: cls for cls in get_args(Fact)}
"""Every fact by its tag, which is also the trigger of the machine and the label in the drawing."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: Final[dict[tuple[str, int], Upcaster]] = {}
"""(tag, v) to a function that makes `data` of version v into that of version v + 1."""

_encoder: Final = msgspec.json.Encoder()
_decoders: Final = {tag: msgspec.json.Decoder(cls) for tag, cls in FACTS.items()}


class Unreadable(Exception):
    """Stored bytes are not a record of this version: `why` is one line."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A record as stored, its data still as bytes."""

    run: RunId
    position: int
    batch: int
    type: str
    v: int
    at: int
    driver: str
    stepped_back_us: int = 0
    turn: int = 0
    call: CallId | None = None
    source: State = msgspec.field(name="from")
    target: State = msgspec.field(name="to")
    data: msgspec.Raw
    digest: Digest = Digest("")


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact with its place: what `log` prints, as attributes. `stored` are the bytes that the digest covers."""

    run: RunId
    position: int
    batch: int
    type: str
    v: int
    at: int
    driver: str
    stepped_back_us: int
    turn: int
    call: CallId | None
    source: State
    target: State
    fact: Fact
    digest: Digest
    stored: bytes

    @property
    def data(self) -> dict[str, Any]:
        """The fact's fields as JSON values, large ones in place."""
        return cast("dict[str, Any]", msgspec.json.decode(data_of(self.fact)))


class Stamp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When and by whom a batch is appended: `at` in microseconds UTC, never earlier than the record before; how far the clock had stepped back, if it had."""

    at: int
    driver: str
    stepped_back_us: int = 0


class Edge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact and the transition it is; `turn` is that of the run after it."""

    fact: Fact
    source: State
    target: State
    turn: int


def data_of(fact: Fact) -> bytes:
    """The `data` of a fact: its fields without the call, which the record carries."""
    data = _encoder.encode(fact)
    call = _call_of(fact)
    if call is None:
        return data
    # The call is the first field, so it is cut off by the length of its own bytes.
    cut = len(b'{"call":') + len(_encoder.encode(call))
    return b"{" + data[cut + 1 :] if data[cut : cut + 1] == b"," else b"{}"


def _call_of(fact: Fact) -> CallId | None:
    call: CallId | None = getattr(fact, "call", None)
    return call


def write(edge: Edge, *, run: RunId, position: int, batch: int, stamp: Stamp, before: Digest) -> tuple[Record, dict[Digest, bytes]]:
    """Make the record of one fact and the payloads that belong to it. The record is read back from its own bytes.

    Raises Unreadable where the fact could not be read again (a bug at the border: nothing of it may reach the log).
    """
    body, payloads = encoded(edge, run=run, position=position, batch=batch, stamp=stamp)
    return read(close(body, before)[0], payloads.__getitem__), payloads


def encoded(edge: Edge, *, run: RunId, position: int, batch: int, stamp: Stamp) -> tuple[bytes, dict[Digest, bytes]]:
    """The bytes of the record of one fact, but for its digest, and the payloads that belong to it."""
    fact = edge.fact
    data, payloads = move_out(data_of(fact))
    line = Line(
        run=run,
        position=position,
        batch=batch,
        type=fact.TAG,
        v=fact.VERSION,
        at=stamp.at,
        driver=stamp.driver,
        stepped_back_us=stamp.stepped_back_us,
        turn=edge.turn,
        call=_call_of(fact),
        source=edge.source,
        target=edge.target,
        data=msgspec.Raw(data),
    )
    return _encoder.encode(line), payloads


_read_line: Final = msgspec.json.Decoder(Line).decode


def read_line(stored: bytes) -> Line:
    """The envelope of a stored record. Raises Unreadable."""
    try:
        return _read_line(stored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"not a record: {error}") from error


def read(stored: bytes, load: Load) -> Record:
    """A stored record as a fact of today: payloads in place, older versions brought up to date. Raises Unreadable, and what `load` raises."""
    return record_of(read_line(stored), stored, load)


def record_of(line: Line, stored: bytes, load: Load) -> Record:
    """The record whose envelope was read already. Raises as `read`."""
    return Record(
        run=line.run,
        position=line.position,
        batch=line.batch,
        type=line.type,
        v=line.v,
        at=line.at,
        driver=line.driver,
        stepped_back_us=line.stepped_back_us,
        turn=line.turn,
        call=line.call,
        source=line.source,
        target=line.target,
        fact=_fact(line, load),
        digest=line.digest,
        stored=stored,
    )


def _fact(line: Line, load: Load) -> Fact:
    tag = line.type
    decoder = _decoders.get(tag)
    if decoder is None:
        raise Unreadable(f"a fact of an unknown type, {tag!r} (version {line.v}): it was written by another version of refold")
    data = bytes(line.data)
    try:
        if b'"$payload"' in data:
            data = put_back(data, load)
        if line.v != FACTS[tag].VERSION:
            data = _upcast(tag, line.v, data)
        if line.call is not None:
            data = b'{"call":' + _encoder.encode(line.call) + (b"," if len(data) > 2 else b"") + data[1:]
        fact = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the data of {tag} version {line.v} cannot be read: {error}") from error
    if _call_of(fact) != line.call:
        raise Unreadable(f"the data of {tag} names another call than its record")
    return fact


def _upcast(tag: str, version: int, data: bytes) -> bytes:
    """Bring `data` from its version to today's, one version at a time."""
    today = FACTS[tag].VERSION
    if version > today:
        raise Unreadable(f"{tag} version {version} was written by a newer refold, which knows more than version {today}")
    value: dict[str, Any] = msgspec.json.decode(data)
    for v in range(version, today):
        step = UPCASTERS.get((tag, v))
        if step is None:
            raise Unreadable(f"no upcaster leads from {tag} version {v} to {v + 1}")
        try:
            value = step(value)
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"{tag} version {v} cannot be brought to version {v + 1}: {error!r}") from error
    return _encoder.encode(value)


def full_line(record: Record, load: Load) -> bytes:
    """A stored line with every payload in its place; it carries no checkable digest any more."""
    line = read_line(record.stored)
    data = put_back(bytes(line.data), load)
    return _encoder.encode(msgspec.structs.replace(line, data=msgspec.Raw(data)))
