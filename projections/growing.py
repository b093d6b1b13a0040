"""Sequences that only grow, shared between all the states of a run that hold a part of them.

A tuple that is copied at every event makes a fold quadratic; here every state sees its own length of one list, and adding to an older state copies.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Growing(Generic[T]):
    """An immutable sequence; `add` gives a longer one in constant time when made from the newest."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T] | None = None, length: int = 0) -> None:
        self._items: list[T] = [] if items is None else items
        self._length = length

    def add(self, *items: T) -> "Growing[T]":
        shared = self._items if len(self._items) == self._length else self._items[: self._length]
        shared.extend(items)
        return Growing(shared, self._length + len(items))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        items = self._items
        return (items[n] for n in range(self._length))

    def since(self, first: int) -> list[T]:
        """The items from place `first` on."""
        return self._items[first : self._length]

    def __getitem__(self, n: int) -> T:
        if not -self._length <= n < self._length:
            raise IndexError(n)
        return self._items[n if n >= 0 else self._length + n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Growing) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Growing({list(self)!r})"


class Index:
    """An immutable map from a key to the ascending places where it was noted; `add` shares as `Growing` does."""

    __slots__ = ("_count", "_places", "_size")

    def __init__(self) -> None:
        self._places: dict[str, list[tuple[int, int]]] = {}
        self._size = [0]  # how many were noted in the shared map, by whichever state is the newest
        self._count = 0

    def add(self, key: str, place: int) -> "Index":
        after: Index = object.__new__(Index)
        if self._size[0] == self._count:
            after._places, after._size = self._places, self._size
        else:
            after._places = {k: seen for k, all_places in self._places.items() if (seen := all_places[: bisect_right(all_places, self._count, key=_order)])}
            after._size = [self._count]
        after._count = self._count + 1
        after._size[0] = after._count
        after._places.setdefault(key, []).append((after._count, place))
        return after

    def places(self, key: str) -> list[int]:
        """Where `key` was noted, first to last."""
        noted = self._places.get(key, [])
        return [place for _, place in noted[: bisect_right(noted, self._count, key=_order)]]

    def count(self, key: str, after: int = 0) -> int:
        """How often `key` was noted behind place `after`."""
        places = self.places(key)
        return len(places) - bisect_left(places, after + 1)

    def keys(self) -> list[str]:
        """Every key, in the order first noted."""
        return [key for key in self._places if key in self]

    def __contains__(self, key: str) -> bool:
        noted = self._places.get(key)
        return bool(noted) and noted[0][0] <= self._count  # type: ignore[index]

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and {k: self.places(k) for k in self.keys()} == {k: other.places(k) for k in other.keys()}  # noqa: SIM118 - not a dict

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Index({ {key: self.places(key) for key in self.keys()} })"


def _order(noted: tuple[int, int]) -> int:
    return noted[0]
