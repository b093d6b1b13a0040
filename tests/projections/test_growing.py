"""Sequences that many states share: adding to one never changes another."""

import pytest
from hypothesis import given, strategies as st

from refold.events.chain import digest_of
from refold.projections.growing import Entries, Entry, Index


def entry(n: int) -> Entry:
    return Entry(position=n, kind="user" if n % 2 else "success", size=n * 1_000, digest=digest_of(str(n).encode()))


ONE, TWO, THREE, FOUR, FIVE = map(entry, range(1, 6))


def test_a_longer_sequence_leaves_the_shorter_as_it_was() -> None:
    # given a sequence and two that go on from it, each its own way
    short = Entries().add(ONE, TWO)
    long, other = short.add(THREE, FOUR), short.add(FIVE)
    # then each has its own items
    assert (list(short), list(long), list(other)) == ([ONE, TWO], [ONE, TWO, THREE, FOUR], [ONE, TWO, FIVE])
    assert (len(short), len(long), len(other)) == (2, 4, 3)
    assert (long[0], long[-1], other[2]) == (ONE, FOUR, FIVE)
    assert (long.since(2), short.since(2)) == ([THREE, FOUR], [])


def test_what_a_longer_one_added_cannot_be_seen_through_a_shorter_one() -> None:
    short = Entries().add(ONE)
    short.add(TWO)
    for n in (1, -2):
        with pytest.raises(IndexError):
            short[n]
    assert TWO not in list(short)


def test_adding_to_the_newest_shares_and_adding_to_an_older_copies() -> None:
    # given a sequence made in many steps
    first = Entries()
    newest = first
    for n in range(1_000):
        newest = newest.add(entry(n))
    # then all of them share their columns, which is what makes a fold linear
    assert newest._columns is first._columns
    assert first.add(FIVE)._columns is not newest._columns


def test_sequences_are_equal_by_what_they_hold() -> None:
    assert Entries([ONE, TWO]) == Entries().add(ONE).add(TWO)
    assert Entries([ONE]) != Entries([ONE, TWO])
    assert Entries() != [ONE]
    assert Entries([Entry(position=1, kind="user")])[0].digest == ""
    with pytest.raises(TypeError):
        hash(Entries())


def test_an_index_knows_where_and_how_often() -> None:
    index = Index().add("a", 1).add("b", 2).add("a", 3).add("a", 7)
    assert index.places("a") == [1, 3, 7]
    assert (index.count("a"), index.count("a", 1), index.count("a", 3), index.count("a", 7)) == (3, 2, 1, 0)
    assert (index.count("c"), index.places("c")) == (0, [])
    assert index.keys() == ["a", "b"]
    assert len(index) == 4
    assert "b" in index
    assert "c" not in index


def test_an_older_index_does_not_see_what_came_later() -> None:
    older = Index().add("a", 1)
    newer = older.add("b", 2).add("a", 3)
    other = older.add("c", 2)
    assert (older.places("a"), older.keys(), len(older)) == ([1], ["a"], 1)
    assert (newer.places("a"), newer.keys()) == ([1, 3], ["a", "b"])
    assert (other.keys(), other.places("b")) == (["a", "c"], [])
    assert older != newer != other
    assert Index().add("a", 1) == older


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"))))
def test_any_tree_of_additions_holds_what_copies_would_hold(steps: list[tuple[int, str]]) -> None:
    # given states that each go on from some earlier one, beside plain lists that do the same by copying
    states: list[tuple[Entries, Index, list[str]]] = [(Entries(), Index(), [])]
    for parent, key in steps:
        entries, index, plain = states[parent % len(states)]
        states.append((entries.add(Entry(position=1, kind=key)), index.add(key, len(plain) + 1), [*plain, key]))
    # then none of them can be told from its copy
    for entries, index, plain in states:
        assert [each.kind for each in entries] == plain
        assert len(index) == len(plain)
        for key in "abc":
            places = [place for place, item in enumerate(plain, 1) if item == key]
            assert index.places(key) == places
            assert [index.count(key, after) for after in range(4)] == [sum(place > after for place in places) for after in range(4)]
            assert (key in index) is (key in plain)
