"""Values that a tool may return: written faithfully, or refused by name."""

import dataclasses
import datetime
import json
import math
import uuid
from collections import OrderedDict, deque, namedtuple
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from types import MappingProxyType

import msgspec
import pydantic
import pytest

from refold.runtime.values import DEPTH_MAX, NotStorable, TooLarge, to_json


class Point(pydantic.BaseModel):
    x: int
    y: float


class Names(pydantic.RootModel[list[str]]):
    pass


class Loose(pydantic.BaseModel):
    value: object = None


@dataclasses.dataclass
class Place:
    name: str
    at: Point


class Plain(msgspec.Struct, rename="camel"):
    first_name: str


class Tagged(msgspec.Struct, tag="t"):
    a: int


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - an untyped one
UTC = datetime.UTC

STORED = {
    "none": (None, "null"),
    "true": (True, "true"),
    "one": (1, "1"),
    "one point nothing": (1.0, "1.0"),
    "minus zero": (-0.0, "-0.0"),
    "smallest": (5e-324, "5e-324"),
    "beyond 64 bits": (2**64 + 1, str(2**64 + 1)),
    "most digits": (10**4300 - 1, "9" * 4300),
    "negative": (-(2**63) - 1, str(-(2**63) - 1)),
    "text": ("Zażółć 🧪", '"Zażółć 🧪"'),
    "lone surrogate": ("a\ud800z", '"a\ufffdz"'),
    "lone surrogate at the end": ("a\udbff", '"a\ufffd"'),
    "low surrogate": ("\udc00é", '"\ufffdé"'),
    "a pair in halves": ("\ud83d\ude00", '"😀"'),
    "surrogate key": ({"\udfff": 1}, '{"\ufffd":1}'),
    "bytes": (b"\x00\xff\xfe", '{"base64":"AP/+"}'),
    "bytearray": (bytearray(b"a"), '{"base64":"YQ=="}'),
    "memoryview": (memoryview(b"a"), '{"base64":"YQ=="}'),
    "datetime": (datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC), '"2024-02-29T23:59:59.999999+00:00"'),
    "naive": (datetime.datetime(2024, 2, 29), '"2024-02-29T00:00:00"'),  # noqa: DTZ001
    "date": (datetime.date(2024, 2, 29), '"2024-02-29"'),
    "time": (datetime.time(1, 2), '"01:02:00"'),
    "timedelta": (datetime.timedelta(days=1, seconds=2), '"P1DT2S"'),
    "decimal": (Decimal("0.10"), '"0.10"'),
    "uuid": (uuid.UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    "path": (PurePosixPath("a/b"), '"a/b"'),
    "enum": (Colour.RED, '"red"'),
    "int enum": (Level.HIGH, "3"),
    "set": ({3, 1, 2}, "[1,2,3]"),
    "frozenset": (frozenset({"b", "a"}), '["a","b"]'),
    "tuple": ((1, (2,)), "[1,[2]]"),
    "named tuple": (Pair(1, 2), "[1,2]"),
    "deque": (deque([1]), "[1]"),
    "range": (range(3), "[0,1,2]"),
    "int keys": ({1: "one", -2: "two"}, '{"1":"one","-2":"two"}'),
    "enum key": ({Colour.RED: 1}, '{"red":1}'),
    "order of keys": (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
    "mapping": (MappingProxyType({"a": 1}), '{"a":1}'),
    "model": (Point(x=1, y=2.5), '{"x":1,"y":2.5}'),
    "root model": (Names(["a"]), '["a"]'),
    "dataclass": (Place("here", Point(x=3, y=4)), '{"name":"here","at":{"x":3,"y":4.0}}'),
    "struct": (Plain("Ann"), '{"firstName":"Ann"}'),
    "tagged struct": (Tagged(1), '{"type":"t","a":1}'),
}


@pytest.mark.parametrize(("value", "text"), STORED.values(), ids=STORED)
def test_a_value_is_stored_in_its_documented_form(value, text):
    written = to_json(value)
    assert written.decode() == text
    assert json.loads(written) == msgspec.json.decode(written)


def test_a_shared_part_is_no_cycle():
    shared = [1]
    assert to_json([shared, shared]) == b"[[1],[1]]"


def nested(depth):
    nest = 1
    for _ in range(depth):
        nest = [nest]
    return nest


def test_the_deepest_value_is_stored_and_one_deeper_is_not():
    assert to_json(nested(DEPTH_MAX)).startswith(b"[[[")
    with pytest.raises(NotStorable, match="200 levels"):
        to_json(nested(DEPTH_MAX + 1))


class Broken:
    @property
    def __class__(self):
        raise OSError("no class")


class BrokenMapping(dict):
    def items(self):
        raise KeyError("gone")


def cycle():
    loop = []
    loop.append({"again": loop})
    return loop


def model_cycle():
    loose = Loose()
    loose.value = [loose]
    return loose


def generator():
    yield 1


REFUSED = {
    "nan": (math.nan, "float"),
    "infinity": ({"a": [1, math.inf]}, r"float that is not finite at \$\.a\[1\]"),
    "nan in a model": (Loose(value=math.nan), r"\$\.value"),
    "nan decimal": (Decimal("NaN"), "Decimal"),
    "too many digits": (10**4300, "4,300 digits"),
    "far too many digits": (-(10**60000), "4,300 digits"),
    "tuple key": ({(1, 2): 1}, "key of type tuple"),
    "none key": ({None: 1}, "key of type NoneType"),
    "bool key": ({True: 1}, "key of type bool"),
    "float key": ({1.0: 1}, "key of type float"),
    "colliding keys": ({1: "a", "1": "b"}, "two keys '1'"),
    "colliding surrogates": (dict.fromkeys(["\ud800", "\udbff"]), "two keys"),
    "object": ({"here": object()}, r"type object at \$\.here"),
    "complex": (1 + 2j, "complex"),
    "function": (print, "builtin_function"),
    "lambda": (lambda: 1, "function"),
    "class": (Point, "class"),
    "exception": (ValueError("secret"), r"exception \(ValueError\)"),
    "generator": (generator(), "generator"),
    "iterator": (iter([1]), "iterator"),
    "cycle": (cycle(), "contains itself"),
    "cycle of models": (model_cycle(), "could not be read|contains itself"),
    "deep": (nested(3000), "levels"),
    "a hostile mapping": ({"a": BrokenMapping()}, r"could not be read: KeyError"),
    "a hostile class": (Broken(), "could not be read: OSError"),
}


@pytest.mark.parametrize(("value", "says"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_cannot_be_stored_is_refused_by_name(value, says):
    with pytest.raises(NotStorable, match=says) as refused:
        to_json(value)
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_size_is_limited_before_anything_is_unfolded():
    # given a value of 60 lists that unfolds into 2**60 items
    bomb = [0]
    for _ in range(60):
        bomb = [bomb, bomb]
    with pytest.raises(TooLarge):
        to_json(bomb, max_bytes=10_000)


def test_the_size_limit_is_exact_for_texts():
    assert len(to_json("x" * 98, max_bytes=100)) == 100
    with pytest.raises(TooLarge, match="100"):
        to_json("x" * 99, max_bytes=100)
