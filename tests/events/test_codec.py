"""What is written is read again, byte for byte and value for value; what is no record says why."""

import types
from dataclasses import is_dataclass
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from refold.events import codec, facts as f
from refold.events.chain import NOTHING, close, digest_of, recompute
from refold.events.codec import FACTS, UPCASTERS, Edge, Record, Stamp, Unreadable, full_line, read, read_line, write
from refold.events.payloads import KEY, LIMIT, move_out, put_back, references
from refold.events.words import CallId, Digest, RunId

RUN = RunId("r-1")
STAMP = Stamp(at=1_700_000_000_000_000, driver="tester")


def record_of(fact: f.Fact, position: int = 1, before: Digest = NOTHING) -> tuple[Record, dict[Digest, bytes]]:
    edge = Edge(fact=fact, source="idle", target="idle", turn=0)
    return write(edge, run=RUN, position=position, batch=position, stamp=STAMP, before=before)


def nothing(digest: Digest) -> bytes:
    raise KeyError(digest)


# Any fact at all, made from the types of its fields.

CALLS = st.builds(lambda turn, n: CallId(f"t{turn}.{n}"), st.integers(1, 999), st.integers(1, 99))
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
KEYS = WORDS | st.just(KEY)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | st.just("x" * (LIMIT + 1)) | st.just(KEY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as facts use them."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return VALUES
    if kind is CallId:
        return CALLS
    if hasattr(kind, "__supertype__"):
        return any_of(kind.__supertype__)
    if origin in (Union, types.UnionType):
        return st.one_of([any_of(each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(any_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(KEYS, any_of(arguments[1]), max_size=3)
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
        hints = {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}
        return st.builds(kind, **{name: any_of(hint) for name, hint in hints.items()})
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: WORDS,
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return simple[kind]


@pytest.mark.parametrize("tag", sorted(FACTS))
def test_every_fact_is_read_as_it_was_written(tag: str) -> None:
    @settings(max_examples=settings.default.max_examples // 2)
    @given(any_of(FACTS[tag]))
    def holds(fact: f.Fact) -> None:
        # given a record of any such fact
        record, payloads = record_of(fact)
        # when its bytes are read
        again = read(record.stored, payloads.__getitem__)
        # then it is the same fact, and the same bytes when it is written once more
        assert again.fact == fact == record.fact
        assert again == record
        assert record_of(again.fact)[0].stored == record.stored
        # and what stands in it is small
        assert all(len(stored) > LIMIT or KEY.encode() in stored for stored in payloads.values())
        assert set(references(bytes(read_line(record.stored).data))) <= payloads.keys()

    holds()


def test_a_record_is_json_whose_last_field_is_the_digest() -> None:
    # given a record with everything that may be left out
    fact = f.ToolStarted(call=CallId("t3.2"), key="k")
    edge = Edge(fact=fact, source="executing_tools", target="executing_tools", turn=3)
    record, _ = write(edge, run=RUN, position=9, batch=8, stamp=msgspec.structs.replace(STAMP, stepped_back_us=7), before=Digest("b" * 43))
    line = msgspec.json.decode(record.stored)
    # then its fields are the documented ones, in their order
    assert list(line) == ["run", "position", "batch", "type", "v", "at", "driver", "stepped_back_us", "turn", "call", "from", "to", "data", "digest"]
    assert (line["from"], line["to"], line["call"], line["data"]) == ("executing_tools", "executing_tools", "t3.2", {"key": "k"})
    # and the digest covers the one before and the bytes up to itself
    body, mark, _ = record.stored.rpartition(b',"digest":')
    assert mark
    assert record.digest == line["digest"] == digest_of(b"b" * 43 + body) == recompute(record.stored, Digest("b" * 43))
    assert len(record.digest) == 43


def test_a_call_stands_beside_the_data_and_not_in_it() -> None:
    record, _ = record_of(f.ApprovalExpired(call=CallId("t10.12")))
    assert b'"call":"t10.12"' in record.stored
    assert b'"data":{}' in record.stored
    assert record.data == {}
    scheduled, _ = record_of(f.RetryScheduled(attempt=2, delay_us=5, because="x"))
    assert (scheduled.call, scheduled.fact.call) == (None, None)  # type: ignore[union-attr]


def test_digests_chain() -> None:
    first, _ = record_of(f.UserSaid(text="one", who="ann"))
    second, _ = record_of(f.UserSaid(text="two", who="ann"), 2, first.digest)
    assert recompute(second.stored, first.digest) == second.digest
    assert recompute(second.stored, NOTHING) != second.digest
    assert recompute(b'{"no":"digest"}', NOTHING) is None
    assert close(b'{"a":1}', NOTHING)[0].startswith(b'{"a":1,"digest":"')


# -- what is no record


def test_what_is_no_json_is_unreadable() -> None:
    for stored in (b"", b"{", b"[]", b"null", b'{"run":1}', b"\xff\xfe", b"[" * 10_000):
        with pytest.raises(Unreadable, match="not a record"):
            read(stored, nothing)


def rewritten(fact: f.Fact, **changes: Any) -> bytes:
    """A record of this fact with other words in its envelope."""
    line = msgspec.json.decode(record_of(fact)[0].stored) | changes
    return msgspec.json.encode(line)


def test_a_type_of_another_version_is_named() -> None:
    with pytest.raises(Unreadable, match=r"'time_travelled'.*another version"):
        read(rewritten(f.UserSaid(text="x", who="ann"), type="time_travelled"), nothing)


def test_a_newer_version_of_a_fact_is_not_guessed() -> None:
    with pytest.raises(Unreadable, match="user_said version 2 was written by a newer refold"):
        read(rewritten(f.UserSaid(text="x", who="ann"), v=2), nothing)


def test_data_that_does_not_fit_its_type_says_where() -> None:
    with pytest.raises(Unreadable, match=r"user_said version 1 cannot be read: .*text"):
        read(rewritten(f.UserSaid(text="x", who="ann"), data={"text": 1, "who": "ann"}), nothing)


def test_fields_that_are_not_known_are_passed_over() -> None:
    record = read(rewritten(f.UserSaid(text="x", who="ann"), data={"text": "x", "who": "ann", "mood": "good"}), nothing)
    assert record.fact == f.UserSaid(text="x", who="ann")


# -- older versions


class SaidThree(f.UserSaid, frozen=True, kw_only=True):
    """`user_said` as it might be two versions on: `who` was split."""

    VERSION = 3
    first: str
    last: str = ""


OLD, _ = record_of(f.UserSaid(text="hi", who="Ann Lee"))


@pytest.fixture
def two_versions_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refold in which `user_said` has version 3."""
    monkeypatch.setitem(codec.FACTS, "user_said", SaidThree)  # type: ignore[arg-type]
    monkeypatch.setitem(codec._decoders, "user_said", msgspec.json.Decoder(SaidThree))  # type: ignore[arg-type]


def name_apart(data: dict[str, Any]) -> dict[str, Any]:
    first, last = data["name"].split()
    return {"text": data["text"], "who": "", "first": first, "last": last}


@pytest.mark.usefixtures("two_versions_on")
def test_an_old_record_is_brought_up_one_version_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # given two upcasters
    monkeypatch.setitem(UPCASTERS, ("user_said", 1), lambda data: data | {"name": data["who"]})
    monkeypatch.setitem(UPCASTERS, ("user_said", 2), name_apart)
    # when a record of version 1 is read
    record = read(OLD.stored, nothing)
    # then it is a fact of today, in its bytes of then
    assert record.fact == SaidThree(text="hi", who="", first="Ann", last="Lee")
    assert (record.v, record.stored, record.digest) == (1, OLD.stored, OLD.digest)


@pytest.mark.usefixtures("two_versions_on")
def test_a_gap_between_versions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UPCASTERS, ("user_said", 1), lambda data: data)
    with pytest.raises(Unreadable, match="no upcaster leads from user_said version 2 to 3"):
        read(OLD.stored, nothing)


# -- large values


def result(value: Any) -> f.ToolSucceeded:
    return f.ToolSucceeded(call=CallId("t1.1"), result=value)


def test_a_large_value_leaves_its_record_and_comes_back() -> None:
    # given a result over the limit, and its twin
    text = "ä" * LIMIT
    record, payloads = record_of(result({"small": 1, "large": text, "again": text}))
    # then it is stored once under its digest, and a reference with its size stands in its place
    ((digest, stored),) = payloads.items()
    assert digest == digest_of(stored)
    data = msgspec.json.decode(bytes(read_line(record.stored).data))
    assert data["result"] == {"small": 1, "large": {KEY: digest, "size": len(stored)}, "again": {KEY: digest, "size": len(stored)}}
    assert len(record.stored) < LIMIT
    assert read(record.stored, payloads.__getitem__).fact == result({"small": 1, "large": text, "again": text})
    # and a full line has the value itself
    assert msgspec.json.decode(full_line(record, payloads.__getitem__))["data"]["result"]["large"] == text


@pytest.mark.parametrize(("size", "leaves"), [(LIMIT - 2, False), (LIMIT - 1, True)])
def test_the_limit_is_exact(size: int, leaves: bool) -> None:
    # given a text that is as many bytes of JSON, two quotes included
    text = "a" * size
    small, payloads = move_out(msgspec.json.encode({"result": text}))
    # then it leaves only where that is over the limit
    assert [msgspec.json.decode(stored) for stored in payloads.values()] == [text] * leaves
    assert msgspec.json.decode(put_back(small, payloads.__getitem__)) == {"result": text}


def test_a_large_list_of_small_values_leaves_as_a_whole() -> None:
    record, payloads = record_of(result(list(range(5_000))))
    assert len(payloads) == 1
    assert len(record.stored) < 1_000
    assert read(record.stored, payloads.__getitem__).fact == result(list(range(5_000)))


@pytest.mark.parametrize(
    "value",
    [
        {KEY: "AAAA"},
        {KEY: "AAAA", "size": 4},
        {KEY: None},
        {"a": [{"b": {KEY: {KEY: 1}}}]},
        [KEY, {"x": KEY}],
        {"text": f'the key "{KEY}" in a text'},
        {"large": "x" * 5_000, KEY: "y" * 5_000},
        [{KEY: "z" * 5_000}] * 3,
    ],
    ids=["like a reference", "just like one", "null", "nested", "as a value", "in a text", "large", "many"],
)
def test_a_value_that_looks_like_a_reference_is_never_taken_for_one(value: Any) -> None:
    record, payloads = record_of(result(value))
    assert read(record.stored, payloads.__getitem__).fact == result(value)
    # every reference in the record is one of ours
    assert set(references(bytes(read_line(record.stored).data))) <= payloads.keys()


@settings(deadline=None)
@given(st.dictionaries(KEYS.filter(lambda key: key != KEY), VALUES, max_size=4))
def test_what_is_moved_out_can_be_put_back(data: dict[str, Any]) -> None:
    whole = msgspec.json.encode(data)
    small, payloads = move_out(whole)
    assert msgspec.json.decode(put_back(small, payloads.__getitem__)) == data
    assert all(digest_of(stored) == digest for digest, stored in payloads.items())
    assert set(references(small)) <= payloads.keys()


def test_nothing_is_stored_that_no_record_names() -> None:
    # given a list so long that it is moved as a whole although its items are large already
    small, payloads = move_out(msgspec.json.encode({"result": [f"{n}" * 5_000 for n in range(100)]}))
    assert set(references(small)) == payloads.keys()


def test_a_missing_value_is_said_by_whoever_loads() -> None:
    record, _ = record_of(result("x" * 5_000))
    with pytest.raises(KeyError):
        read(record.stored, nothing)
