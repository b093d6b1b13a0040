"""A divergence: where a log that is derived again first parts from the one that is stored, and how two records are compared.

Apart from the replay, because everything that finds one says it in these words: whoever reads the bytes, whoever derives, whoever compares.
"""

from typing import Any, Final, Literal

import msgspec

from refold.events import facts as f
from refold.events.codec import Line, Record, read_line
from refold.events.payloads import KEY
from refold.events.words import CallId, Digest
from refold.fsm.causes import Cause, CauseClass

SHOWN_MAX: Final = 200
"""Characters of a value that a divergence shows."""


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """Where the fact that one log has at a position stands in the other: its `type`, and the position in `log`."""

    type: str
    position: int
    log: Literal["recorded", "derived"]

    @property
    def words(self) -> str:
        """The same as a sentence."""
        if self.log == "derived":
            return f"the recorded {self.type} follows at {self.position} in the derived log"
        return f"the derived {self.type} stands at {self.position} in the recorded log"


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first record that came out otherwise: where, which field by its path, what is recorded, what is derived, why as far as can be told, and what to do.

    `cause` begins with its class, which `cause_class` is alone. `recorded` and `derived` are types of facts where `field` is `type`, and None where there is no such record.
    """

    position: int
    field: str
    recorded: Any
    derived: Any
    cause: str
    turn: int = 0
    call_id: CallId | None = None
    cause_class: CauseClass = "code"
    nearest: Nearest | None = None
    hint: str = ""


class Difference(msgspec.Struct, frozen=True):
    """The first field in which two records differ, and both values."""

    field: str
    recorded: Any
    derived: Any


TYPE: Final = "type"


def diverges(position: int, found: Difference, cause: Cause, record: Record | Line | None = None) -> Divergence:
    """A difference at a position, with its cause; turn and call are those of `record`."""
    recorded, derived = _around(found.recorded, found.derived)
    return Divergence(
        position=position,
        field=found.field,
        recorded=recorded,
        derived=derived,
        cause=f"{cause.cause_class}: {cause.why}",
        turn=record.turn if record is not None else 0,
        call_id=record.call if record is not None else None,
        cause_class=cause.cause_class,
        hint=cause.hint,
    )


# -- comparing


def difference(recorded: Record, derived: Record) -> Difference | None:
    """How a record that is derived differs from the stored one; nothing where an older version comes to the same fact."""
    if recorded.stored == derived.stored:
        return None
    if recorded.type != derived.type:
        return Difference(TYPE, recorded.type, derived.type)
    older = recorded.v != derived.v
    found = first_difference(_plain(recorded, older), _plain(derived, older))
    if found is not None or older:
        return found
    return _unknown(recorded) or Difference("digest", recorded.digest, derived.digest)


def _unknown(recorded: Record) -> Difference | None:
    """The first part of what is stored that is read as nothing: another version of refold knew it. None where it is no value at all."""
    try:
        return _unread(_stored_data(recorded), values_of(recorded.fact), "data")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _unread(stored: Any, known: Any, path: str) -> Difference | None:
    """The first value that a fact has no field for; a default that is spelled out has one."""
    if known is ABSENT:
        return Difference(path, stored, ABSENT)
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(stored, dict) and isinstance(known, dict) and KEY not in stored:
        parts = [(value, known.get(name, ABSENT), f"{path}.{name}") for name, value in stored.items()]
    elif isinstance(stored, list) and isinstance(known, list):
        parts = [(*pair, f"{path}[{n}]") for n, pair in enumerate(zip(stored, known, strict=False))]
    return next((found for part in parts if (found := _unread(*part)) is not None), None)


def _stored_data(record: Record) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(bytes(read_line(record.stored).data))
    return data


TELLING: Final = {f.ModelRequested.TAG: "wrap_up"}
"""The field that others of its fact follow from, so that it is compared first."""


def _plain(record: Record, older: bool) -> dict[str, Any]:
    """A record as JSON values, without its digest, large values in place; without its version where that is another, since its data is compared as brought up to date."""
    line = read_line(record.stored)
    envelope: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(line, data=msgspec.Raw(b"{}"), digest=Digest(""))))
    if older:
        del envelope["v"]
    data, telling = values_of(record.fact), TELLING.get(record.type)
    return {**envelope, "data": {telling: data[telling], **data} if telling is not None else data}


def values_of(fact: f.Fact) -> dict[str, Any]:
    """Every field of a fact as JSON values in the order of their declaration; those too that are not stored because they have not changed."""
    return {name: value for name, value in _values(fact).items() if name != "call"}


def _values(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            return {name: _values(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {key: _values(item) for key, item in value.items()}
        case tuple() | list():
            return [_values(item) for item in value]
        case _:
            return msgspec.to_builtins(value)


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = _Absent()


def first_difference(old: Any, new: Any, path: str = "") -> Difference | None:
    """The first place at which two JSON values differ."""
    if type(old) is type(new) and isinstance(old, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            found = first_difference(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}" if path else str(key))
            if found is not None:
                return found
        return Difference(path, list(old), list(new)) if list(old) != list(new) else None  # the same in another order is other bytes
    if type(old) is type(new) and isinstance(old, list):
        for n in range(max(len(old), len(new))):
            found = first_difference(old[n] if n < len(old) else ABSENT, new[n] if n < len(new) else ABSENT, f"{path}[{n}]")
            if found is not None:
                return found
        return None
    return None if old == new and type(old) is type(new) else Difference(path, old, new)


def _around(recorded: Any, derived: Any) -> tuple[Any, Any]:
    """Two values as they are shown: long ones by what is around their first difference."""
    texts = [_text(recorded), _text(derived)]
    first = next((n for n, (left, right) in enumerate(zip(*texts, strict=False)) if left != right), min(map(len, texts)))
    shown = [value if len(text) <= SHOWN_MAX else _window(text, first) for value, text in zip((recorded, derived), texts, strict=True)]
    return tuple(repr(value) if isinstance(value, _Absent) else value for value in shown)  # type: ignore[return-value]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else ""


def _window(text: str, first: int) -> str:
    start = max(0, min(first - SHOWN_MAX // 4, len(text) - SHOWN_MAX))
    end = start + SHOWN_MAX
    return "..." * (start > 0) + text[start:end] + "..." * (end < len(text))
