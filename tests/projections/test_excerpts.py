"""Excerpts: bounded in bytes, whole in characters, and honest about what they leave out."""

import re

import pytest
from hypothesis import given, strategies as st

from refold.projections.excerpts import EXCERPT_MIN, fair_share, fitting, handle_of, size_of, text_of, within
from refold.projections.messages import Message, encode

CONTENTS = st.one_of(
    st.text(max_size=3_000),
    st.builds(lambda text, times: text * times, st.sampled_from(("a", '"', "\\", "\n", "\0", "é", "語", "👍🏽", "ab\n", "=")), st.integers(1, 5_000)),
    st.lists(st.one_of(st.integers(), st.text(max_size=40), st.none()), max_size=200),
    st.dictionaries(st.text(max_size=8), st.text(max_size=200), max_size=40),
)


def result(content: object, kind: str = "success") -> Message:
    return Message(role="tool", call_id="t1.1", name="look", kind=kind, content=content)


@given(CONTENTS, st.integers(0, 20_000))
def test_an_excerpt_is_no_longer_than_it_may_be(content: object, limit: int) -> None:
    # given a result and what it may take
    whole = result(content)
    # when it is cut
    cut = within(whole, limit)
    # then it fits, or was never too long
    assert size_of(cut) <= max(limit, EXCERPT_MIN) or cut is whole
    assert (cut is whole) == (size_of(whole) <= limit)


@given(CONTENTS, st.integers(EXCERPT_MIN, 4_000))
def test_what_is_left_out_stands_between_the_beginning_and_the_end(content: object, limit: int) -> None:
    # given an excerpt
    cut = within(result(content), limit)
    if not isinstance(cut.content, dict) or "left_out" not in cut.content:
        return
    text = text_of(content)
    beginning, end = cut.content["beginning"], cut.content["end"]
    # then it begins and ends as the text does, and says how much is missing, and from where it can be read on
    assert text.startswith(beginning)
    assert text.endswith(end)
    missing, of, handle, start = re.fullmatch(
        r'([\d,]+) of ([\d,]+) characters are left out; read_result\(result="(\w+)", start=(\d+)\) .*', cut.content["left_out"]
    ).groups()  # type: ignore[union-attr]
    assert int(of.replace(",", "")) == len(text)
    assert int(missing.replace(",", "")) == len(text) - len(beginning) - len(end) >= 0
    assert (handle, int(start)) == (handle_of(text), len(beginning))


@pytest.mark.parametrize("content", ["x" * 5_000_000, "line\n" * 1_000_000, [{"row": n} for n in range(300_000)]], ids=["one line", "lines", "JSON"])
def test_five_megabytes_keep_a_beginning_and_an_end(content: object) -> None:
    cut = within(result(content), 10_000)
    assert 9_000 <= size_of(cut) <= 10_000
    assert len(cut.content["beginning"]) > len(cut.content["end"]) > 2_000


def test_an_error_is_cut_like_any_result_and_keeps_its_kind() -> None:
    cut = within(result({"error": "execution_failed", "message": "trace " * 10_000}, kind="execution_failed"), 2_000)
    assert cut.kind == "execution_failed"
    assert size_of(cut) <= 2_000


def test_what_is_no_result_stays_whole() -> None:
    said = Message(role="user", text="long " * 10_000)
    assert within(said, 1_000) is said


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 300))
def test_a_fair_share_fills_the_room_and_no_more(sizes: list[int], room: int) -> None:
    share = fair_share(sizes, room)
    if share is None:
        assert sum(sizes) <= room
        return
    assert sum(sizes) > room
    assert sum(min(size, share) for size in sizes) <= room < sum(min(size, share + 1) for size in sizes)


@given(st.text(max_size=200), st.integers(0, 50), st.integers(0, 400))
def test_a_piece_is_as_long_as_fits(text: str, start: int, room: int) -> None:
    end = fitting(text, start, room)
    if start >= len(text):
        return
    assert len(encode(text[start:end])) - 2 <= room
    assert end == len(text) or len(encode(text[start : end + 1])) - 2 > room
