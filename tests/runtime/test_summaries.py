"""Summaries of older turns: short enough whatever they are of, notes first, and nothing in them that was not said."""

import json

from hypothesis import given, strategies as st

from refold.events import facts as f
from refold.projections.context import summary_message
from refold.projections.excerpts import handle_of, size_of
from refold.projections.messages import Message, MessageCall, user
from refold.runtime.summaries import INTRODUCTION, LEFT_OUT, NOTES, STEPS, extract, in_place_of, record, told

TEXTS = st.one_of(st.text(max_size=60), st.builds(lambda text, times: text * times, st.sampled_from(("ab ", '"', "\n", "語", "\\")), st.integers(1, 2_000)))
MESSAGES = st.lists(
    st.one_of(
        TEXTS.map(user),
        st.builds(lambda text: Message(role="assistant", text=text), TEXTS),
        st.builds(lambda text, n: Message(role="tool", call_id=f"t{n}.1", name="look", kind="success", content=text), TEXTS, st.integers(1, 9)),
        st.builds(lambda text: Message(role="user", kind="summary", text=text), TEXTS),
    ),
    max_size=12,
)
KEPT = st.lists(st.builds(f.Note, text=TEXTS, source_ids=st.lists(st.sampled_from(("a", "b#1")), max_size=2).map(tuple)), max_size=6)


@given(MESSAGES, KEPT, TEXTS, st.integers(400, 20_000), st.booleans())
def test_an_extract_is_no_longer_than_it_may_be(messages: list[Message], notes: list[f.Note], before: str, most: int, readable: bool) -> None:
    assert size_of(summary_message(extract(reversed(messages), notes, before, most, readable=readable))) <= most


@given(TEXTS, KEPT, st.integers(400, 5_000))
def test_nor_is_what_a_model_wrote(summary: str, notes: list[f.Note], most: int) -> None:
    assert size_of(summary_message(told(summary, notes, most))) <= most


@given(KEPT, st.integers(400, 5_000))
def test_nor_what_stands_for_turns_that_are_left_out(notes: list[f.Note], most: int) -> None:
    assert size_of(summary_message(in_place_of(3, notes, most))) <= most


@given(MESSAGES, TEXTS, st.integers(1_000, 20_000))
def test_nor_what_a_model_reads_to_summarise(messages: list[Message], before: str, most: int) -> None:
    assert size_of(user(record(messages, before, most))) <= most + 100


def turn(n: int, content: object, **arguments: object) -> list[Message]:
    call = MessageCall(id=f"t{n}.1", name="look", arguments_text=json.dumps(arguments))
    return [Message(role="assistant", calls=(call,)), Message(role="tool", call_id=call.id, name="look", kind="success", content=content)]


def test_an_extract_has_the_notes_and_a_line_for_each_step() -> None:
    # given two turns with a note, and what the user said
    page = "a long page " * 100
    messages = [*turn(1, page, at="far"), user("and hurry"), Message(role="assistant", text="So be it."), *turn(2, {"celsius": 20}, at="near")]
    # when they are extracted where results can be read again
    made = extract(reversed(messages), [f.Note(text="it is far", source_ids=("a",))], "", 4_000, readable=True)
    # then there is a line for each in their order, and the way to read on in what is not whole
    assert made.split("\n") == [
        INTRODUCTION,
        STEPS,
        f'- look {{"at": "far"}}: success: {page[:200]}... (all of it: read_result(result="{handle_of(page)}"))',
        "- the user said: and hurry",
        "- the agent said: So be it.",
        '- look {"at": "near"}: success: {"celsius":20}',
        NOTES,
        "- it is far [a]",
    ]


def test_where_there_is_no_room_the_earliest_go_first_and_it_is_said() -> None:
    made = extract(reversed([message for n in range(500) for message in turn(n, f"result {n}")]), [], "", 2_000, readable=False)
    steps = made.split("\n")[2:]
    assert steps[0] == LEFT_OUT
    assert len(steps) > 20
    assert [step.rpartition(" ")[2] for step in steps[1:]] == [str(n) for n in range(500 - len(steps[1:]), 500)]


def test_an_extract_begins_with_the_summary_before_without_its_notes() -> None:
    before = told("The user wants warmth.", [f.Note(text="20 degrees")], 2_000)
    made = extract(reversed(turn(9, "4")), [f.Note(text="20 degrees")], before, 2_000, readable=False)
    assert made.split("\n")[:2] == [INTRODUCTION, "The user wants warmth."]
    assert made.count("20 degrees") == 1


def test_a_model_reads_every_message_and_a_large_one_by_its_ends() -> None:
    read = record([*turn(1, "x" * 50_000), *turn(2, "small")], "before", 8_000)
    assert len(read) > 7_000
    first, *rest = read.split("\n")
    assert json.loads(first) == {"summary": "before"}
    assert json.loads(rest[-1])["content"] == "small"
    assert " ... " in rest[1]
