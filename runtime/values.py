"""What a tool returned, as JSON bytes: every value is written faithfully or refused by name; nothing is dropped or guessed.

Apart from running tools, because the same rules hold for whatever else enters the log from user code.

| value | stored as |
|---|---|
| None, bool, str, finite float (also -0.0) | itself |
| int | itself, up to 4,300 digits |
| a string or key with half a surrogate pair | U+FFFD in its place |
| bytes, bytearray, memoryview | `{"base64": "..."}` |
| datetime, date, time | ISO 8601 text |
| timedelta | ISO 8601 duration |
| Decimal (finite), UUID, path | text |
| Enum | its value |
| dict, mapping | object in the order given; keys are text or int (written as text), and two keys that come out equal are refused |
| list, tuple, deque, range, other sequence | array |
| set, frozenset | array, sorted by the JSON text of its items |
| pydantic model | object, as its own serializers say |
| dataclass, msgspec Struct | object with a key for each field (a Struct's tag first) |
| NaN, infinity, other keys, cycles, over 200 levels, more than `max_bytes` | refused |
| generators, functions, classes, exceptions, complex, any other object | refused |
"""

import base64
import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from pydantic import BaseModel

DEPTH_MAX: Final = 200
"""Levels of arrays and objects: what pydantic's own reader takes."""
DIGITS_MAX: Final = 4_300
"""Of an integer: what Python, msgspec and pydantic all read."""
BYTES_MAX: Final = 16_777_216
INTEGER_BOUND: Final = 10**DIGITS_MAX
PATH_MAX: Final = 200


class NotStorable(ValueError):
    """The value cannot be stored; the text names the type and the place, never the value."""


class TooLarge(NotStorable):
    """The value is JSON, but more of it than is stored."""


def stored(value: object) -> Any:
    """A value as the log would give it back. Raises what `to_json` raises."""
    return msgspec.json.decode(to_json(value))


def to_json(value: object, *, max_bytes: int = BYTES_MAX) -> bytes:
    """Compact UTF-8 JSON that msgspec reads back, or NotStorable. Whatever a value's own methods raise is NotStorable too."""
    writer = _Writer(max_bytes)
    try:
        encoded = msgspec.json.encode(writer.plain(value))
        msgspec.json.decode(encoded)
    except NotStorable:
        raise
    except RecursionError:
        raise NotStorable(f"a value nested too deeply at {writer.place()} cannot be stored") from None
    except Exception as error:  # methods of user types run here
        raise NotStorable(f"a value at {writer.place()} could not be read: {type(error).__name__}") from error
    if len(encoded) > max_bytes:
        raise TooLarge(f"{len(encoded):,} bytes are more than the {max_bytes:,} that are stored")
    return encoded


class _Writer:
    """One conversion: the path to where it is, and how much it has seen."""

    def __init__(self, max_bytes: int) -> None:
        self._left = self._max_bytes = max_bytes
        self._path: list[str | int] = []
        self._inside: set[int] = set()

    def place(self) -> str:
        path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part[:40]}" for part in self._path[:40])
        return path if len(path) <= PATH_MAX else path[:PATH_MAX] + "..."

    def plain(self, value: object) -> Any:  # made of None, bool, int, float, str, list and dict
        self._count(1)
        exact = type(value)
        if exact is int:  # long lists are made of these three: no need to ask further
            return self._integer(cast("int", value))
        if exact is float:
            return self._float(cast("float", value))
        if exact is str:
            return self._text(cast("str", value))
        match value:
            case None | bool():
                return value
            case Enum():
                return self.plain(value.value)
            case str():
                return self._text(value)
            case int():
                return self._integer(value)
            case float():
                return self._float(value)
            case bytes() | bytearray() | memoryview():
                return {"base64": self._text(base64.b64encode(value).decode())}
            case datetime.datetime() | datetime.date() | datetime.time():
                return value.isoformat()
            case datetime.timedelta():
                return msgspec.to_builtins(value)
            case Decimal():
                return str(value) if value.is_finite() else self._refuse("a Decimal that is not finite")
            case UUID() | PurePath():
                return self._text(str(value))
            case BaseException():
                return self._refuse(f"an exception ({type(value).__name__})")
        return self._container(value)

    def _count(self, size: int) -> None:
        # before anything is built: shared parts can unfold into more than memory holds
        self._left -= size
        if self._left < 0:
            raise TooLarge(f"the value is more than the {self._max_bytes:,} bytes that are stored")

    def _refuse(self, what: str) -> Any:  # never returns
        raise NotStorable(f"{what} at {self.place()} cannot be stored")

    def _text(self, value: str) -> str:
        self._count(len(value))
        text = str.__str__(value)
        if text.isascii():
            return text
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # a pair in two halves becomes its character again
        return text

    def _integer(self, value: int) -> int:
        if not -INTEGER_BOUND < value < INTEGER_BOUND:
            self._refuse(f"an integer of more than {DIGITS_MAX:,} digits")
        self._count(value.bit_length() // 4)
        return int(value)

    def _float(self, value: float) -> float:
        if not math.isfinite(value):
            self._refuse("a float that is not finite")
        return float(value)

    def _container(self, value: object) -> Any:
        if id(value) in self._inside:
            self._refuse(f"a {type(value).__name__} that contains itself")
        if len(self._path) >= DEPTH_MAX:
            self._refuse(f"a value nested more than {DEPTH_MAX} levels")
        self._inside.add(id(value))
        plain = self._members(value)
        self._inside.discard(id(value))
        return plain

    def _members(self, value: object) -> Any:
        if isinstance(value, BaseModel):
            return self._object(_fields_of_model(value).items()) if not _is_root(value) else self.plain(_fields_of_model(value))
        if isinstance(value, msgspec.Struct):
            return self._object(_fields_of_struct(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        if isinstance(value, Mapping):
            return self._object(value.items())
        if isinstance(value, AbstractSet):
            return sorted(self._array(value), key=msgspec.json.encode)
        if isinstance(value, Sequence):
            return self._array(value)
        return self._refuse(f"a class ({value.__name__})" if isinstance(value, type) else f"a value of type {type(value).__name__}")

    def _object(self, items: Iterable[tuple[object, object]]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, value in items:
            name = self._key(key)
            if name in plain:
                self._refuse(f"an object with two keys {name[:40]!r}")
            self._path.append(name)
            plain[name] = self.plain(value)
            self._path.pop()
        return plain

    def _key(self, key: object) -> str:
        if isinstance(key, Enum):
            key = key.value
        if isinstance(key, str):
            return self._text(key)
        if isinstance(key, int) and not isinstance(key, bool):
            return str(self._integer(key))
        return str(self._refuse(f"a key of type {type(key).__name__}"))

    def _array(self, items: Iterable[object]) -> list[Any]:
        plain = []
        for index, value in enumerate(items):
            self._path.append(index)
            plain.append(self.plain(value))
            self._path.pop()
        return plain


def _is_root(model: BaseModel) -> bool:
    return bool(type(model).__pydantic_root_model__)


def _fields_of_model(model: BaseModel) -> Any:  # a dict, or the root of a root model
    # mode="python": mode="json" would write NaN as null
    return model.model_dump(mode="python", warnings="none")


def _fields_of_struct(struct: msgspec.Struct) -> Iterable[tuple[object, object]]:
    config = struct.__struct_config__
    if config.tag is not None:
        yield config.tag_field, config.tag
    for name, written in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        yield written, getattr(struct, name)
