"""Sequences that only grow, shared between all the states of a run that hold a part of them.

A tuple that is copied at every event makes a fold quadratic; here every state sees its own length of one list, and adding to an older state copies.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from sys import intern
from typing import Final

import msgspec

from refold.events.chain import DIGEST_LENGTH, NOTHING
from refold.events.words import Digest


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A past message as requests show it: the request that first did, its kind (its role where it has none), its bytes and their digest."""

    position: int
    kind: str
    size: int = 0
    digest: Digest = NOTHING


class Entries:
    """An immutable sequence of entries; `add` gives a longer one in constant time when made from the newest.

    In columns: a long run has two entries for each turn, and as objects they would be most of what it takes.
    """

    __slots__ = ("_columns", "_length")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._columns = _Columns()
        self._length = 0
        for entry in entries:
            self._columns.append(entry)
            self._length += 1

    def add(self, *entries: Entry) -> "Entries":
        after: Entries = object.__new__(Entries)
        after._columns = self._columns if len(self._columns.kinds) == self._length else self._columns.upto(self._length)
        for entry in entries:
            after._columns.append(entry)
        after._length = self._length + len(entries)
        return after

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        return (self._columns.entry(n) for n in range(self._length))

    def since(self, first: int) -> list[Entry]:
        """The entries from place `first` on."""
        return [self._columns.entry(n) for n in range(first, self._length)]

    def __getitem__(self, n: int) -> Entry:
        if not -self._length <= n < self._length:
            raise IndexError(n)
        return self._columns.entry(n if n >= 0 else self._length + n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entries) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Entries({list(self)!r})"


class _Columns:
    """What entries are made of: positions and sizes as machine words, digests in one stretch of bytes."""

    __slots__ = ("digests", "kinds", "positions", "sizes")

    def __init__(self) -> None:
        self.positions, self.sizes = array("q"), array("q")
        self.kinds: list[str] = []
        self.digests = bytearray()

    def append(self, entry: Entry) -> None:
        self.positions.append(entry.position)
        self.sizes.append(entry.size)
        self.kinds.append(intern(entry.kind))
        self.digests += entry.digest.encode("ascii").ljust(DIGEST_LENGTH)

    def entry(self, n: int) -> Entry:
        digest = self.digests[n * DIGEST_LENGTH : (n + 1) * DIGEST_LENGTH].decode("ascii").rstrip()
        return Entry(position=self.positions[n], kind=self.kinds[n], size=self.sizes[n], digest=Digest(digest))

    def upto(self, length: int) -> "_Columns":
        """A copy of the first of them."""
        copy = _Columns()
        copy.positions, copy.sizes, copy.kinds = self.positions[:length], self.sizes[:length], self.kinds[:length]
        copy.digests = self.digests[: length * DIGEST_LENGTH]
        return copy


class Index:
    """An immutable map from a key to the ascending places where it was noted; `add` shares as that of entries does."""

    __slots__ = ("_count", "_noted", "_size")

    def __init__(self) -> None:
        self._noted: dict[str, int | list[int]] = {}
        """Each place with the ordinal of its note in front of it, as one number; a number alone where there is one, as for most."""
        self._size = [0]  # how many were noted in the shared map, by whichever state is the newest
        self._count = 0

    def add(self, key: str, place: int) -> "Index":
        after: Index = object.__new__(Index)
        if self._size[0] == self._count:
            after._noted, after._size = self._noted, self._size
        else:
            after._noted = {k: list(seen) for k in self._noted if (seen := self._seen(k))}
            after._size = [self._count]
        after._count = self._count + 1
        after._size[0] = after._count
        note, known = after._count << _PLACE_BITS | place, after._noted.get(key)
        if known is None:
            after._noted[key] = note
        elif isinstance(known, int):
            after._noted[key] = [known, note]
        else:
            known.append(note)
        return after

    def _seen(self, key: str) -> list[int]:
        """The notes of a key that this state has."""
        noted = self._noted.get(key, [])
        if isinstance(noted, int):
            return [noted] if noted >> _PLACE_BITS <= self._count else []
        return noted[: bisect_left(noted, (self._count + 1) << _PLACE_BITS)]

    def places(self, key: str) -> list[int]:
        """Where `key` was noted, first to last."""
        return [note & _PLACE for note in self._seen(key)]

    def count(self, key: str, after: int = 0) -> int:
        """How often `key` was noted behind place `after`."""
        places = self.places(key)
        return len(places) - bisect_left(places, after + 1)

    def keys(self) -> list[str]:
        """Every key, in the order first noted."""
        return [key for key in self._noted if key in self]

    def __contains__(self, key: str) -> bool:
        noted = self._noted.get(key)
        if noted is None:
            return False
        first = noted if isinstance(noted, int) else noted[0]
        return first >> _PLACE_BITS <= self._count

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and {k: self.places(k) for k in self.keys()} == {k: other.places(k) for k in other.keys()}  # noqa: SIM118 - not a dict

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Index({ {key: self.places(key) for key in self.keys()} })"


_PLACE_BITS: Final = 40
_PLACE: Final = (1 << _PLACE_BITS) - 1
