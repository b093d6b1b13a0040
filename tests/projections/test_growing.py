"""Sequences that many states share: adding to one never changes another."""

import pytest
from hypothesis import given, strategies as st

from refold.projections.growing import Growing, Index


def test_a_longer_sequence_leaves_the_shorter_as_it_was() -> None:
    # given a sequence and two that go on from it, each its own way
    short: Growing[int] = Growing().add(1, 2)
    long, other = short.add(3, 4), short.add(5)
    # then each has its own items
    assert (list(short), list(long), list(other)) == ([1, 2], [1, 2, 3, 4], [1, 2, 5])
    assert (len(short), len(long), len(other)) == (2, 4, 3)
    assert (long[0], long[-1], other[2]) == (1, 4, 5)


def test_what_a_longer_one_added_cannot_be_seen_through_a_shorter_one() -> None:
    short: Growing[int] = Growing().add(1)
    short.add(2)
    for n in (1, -2):
        with pytest.raises(IndexError):
            short[n]
    assert 2 not in list(short)


def test_adding_to_the_newest_shares_and_adding_to_an_older_copies() -> None:
    # given a sequence made in many steps
    first: Growing[int] = Growing()
    newest = first
    for n in range(1_000):
        newest = newest.add(n)
    # then all of them share one list, which is what makes a fold linear
    assert newest._items is first._items
    assert first.add(7)._items is not newest._items


def test_sequences_are_equal_by_what_they_hold() -> None:
    assert Growing([1, 2], 2) == Growing[int]().add(1).add(2)
    assert Growing([1, 2], 1) != Growing([1, 2], 2)
    assert Growing[int]() != [1]
    with pytest.raises(TypeError):
        hash(Growing[int]())


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
    states: list[tuple[Growing[str], Index, list[str]]] = [(Growing(), Index(), [])]
    for parent, key in steps:
        growing, index, plain = states[parent % len(states)]
        states.append((growing.add(key), index.add(key, len(plain) + 1), [*plain, key]))
    # then none of them can be told from its copy
    for growing, index, plain in states:
        assert list(growing) == plain
        assert len(index) == len(plain)
        for key in "abc":
            places = [place for place, item in enumerate(plain, 1) if item == key]
            assert index.places(key) == places
            assert [index.count(key, after) for after in range(4)] == [sum(place > after for place in places) for after in range(4)]
            assert (key in index) is (key in plain)
