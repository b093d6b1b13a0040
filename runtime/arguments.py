"""The arguments a model sent for a call: read strictly, validated against the tool's parameters, and brought into one canonical form.

Apart from performing, because a call is checked before it is recorded and performed later, perhaps elsewhere, from the canonical form alone.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import pydantic_core
from pydantic import BaseModel, ValidationError

from refold.runtime.schemas import Complaint
from refold.runtime.signatures import Signature
from refold.runtime.text import whole
from refold.runtime.tools import Tool, ToolContext
from refold.runtime.values import DIGITS_MAX, NotStorable, to_json

TEXT_MAX: Final = 16_777_216
"""Characters of arguments that are read at all."""
VALUES_MAX: Final = 100_000
"""Items and members in one call's arguments: each may be wrong, and every complaint takes memory."""
MESSAGE_BYTES_MAX: Final = 2_048
COMPLAINTS_MAX: Final = 8
LONG_TEXT: Final = 10_000
"""From this many characters on a message says how long the arguments were: a model cannot see it."""


@dataclass(frozen=True)
class Valid:
    """`arguments` are JSON values, defaults filled in; `canonical` is their JSON text, keys sorted; `value` is what the tool's own types made of them."""

    arguments: dict[str, Any]
    canonical: str
    value: BaseModel | dict[str, Any]


@dataclass(frozen=True)
class Invalid:
    """Why the arguments were refused, for the model: at most 2 KiB, naming fields and types and never the values it sent."""

    message: str


def validate(tool: Tool, arguments_text: str) -> Valid | Invalid:
    """Never raises, never repairs. Empty text is an empty object."""
    try:
        text, parsed = _read(arguments_text)
        return _by_schema(tool, parsed) if tool.signature is None else _by_signature(tool.signature, text, parsed)
    except _Refused as refused:
        return Invalid(_message(tool, refused, len(arguments_text)))
    except RecursionError:
        return Invalid(f"The arguments of {tool.name} are nested too deeply.")


def revive(tool: Tool, canonical: str) -> BaseModel | dict[str, Any]:
    """What the handler gets, made from the canonical form. Raises ValueError where the tool's parameters no longer take it."""
    if tool.signature is None:
        return msgspec.json.decode(canonical, type=dict[str, Any])
    try:
        return tool.signature.model.model_validate_json(canonical, strict=True)
    except ValidationError as error:
        raise ValueError(_joined(_complaints(error))) from None


def bound(tool: Tool, canonical: str, ctx: ToolContext) -> tuple[list[Any], dict[str, Any]]:
    """What the handler is called with: by position, and by name. Raises ValueError as `revive` does."""
    arguments = revive(tool, canonical)
    if tool.signature is None:
        return [arguments, ctx], {}
    assert not isinstance(arguments, dict)
    return tool.signature.bind(arguments, ctx)


class _Refused(Exception):
    """Why; `with_fields` where a list of the tool's parameters would help."""

    def __init__(self, why: str, *, with_fields: bool = False) -> None:
        super().__init__(why)
        self.why, self.with_fields = why, with_fields


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """JSON as every reader understands it: an object without duplicate keys, infinities, endless digits or half characters."""
    if len(text) > TEXT_MAX:
        raise _Refused(f"are longer than {TEXT_MAX:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Refused(f"hold half of a surrogate pair at position {error.start}, which is no character") from None
    if not text.strip(" \t\r\n"):
        return "{}", {}
    try:
        pydantic_core.from_json(text, allow_inf_nan=False)  # the first reader: it bounds the depth and says where it stopped
    except ValueError as error:
        raise _Refused(_in_plain_words(str(error)), with_fields=True) from None
    parsed = json.loads(text, object_pairs_hook=_without_duplicates, parse_float=_finite, parse_int=_integer)
    if not isinstance(parsed, dict):
        raise _Refused(_not_an_object(parsed), with_fields=True)
    if _count(parsed) > VALUES_MAX:
        raise _Refused(f"hold more than {VALUES_MAX:,} values")
    return text, parsed


def _in_plain_words(said: str) -> str:
    what, _, where = said.rpartition(" at line ")
    where = f" at line {where}" if what else ""
    what = what or said
    if "recursion limit" in what:
        return "are nested more than 200 levels deep"
    if "surrogate" in what or "hex escape" in what:
        return f"are not JSON: half of a surrogate pair, or a broken \\u escape,{where}"
    if "number out of range" in what:
        return f"hold an integer of more than {DIGITS_MAX:,} digits{where}"
    return f"are not JSON: {what[:200]}{where}. Send one JSON object and nothing else"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"name {_quoted(twice)} twice in one object")
    return members


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Refused("hold a number that is too large")
    return number


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise _Refused("hold an integer with too many digits") from None


def _not_an_object(parsed: object) -> str:
    match parsed:
        case None:
            return "are null; send a JSON object, {} where there is nothing to say"
        case str():
            return "are a string that holds JSON; send an object, not a string" if _holds_object(parsed) else "are a string; send a JSON object"
        case list():
            return "are an array; send a JSON object"
        case bool():
            return "are true or false; send a JSON object"
    return "are a number; send a JSON object"


def _holds_object(text: str) -> bool:
    try:
        return isinstance(pydantic_core.from_json(text), dict)
    except ValueError:
        return False


def _count(parsed: dict[str, Any]) -> int:
    total, waiting = 0, [list(parsed.values())]
    while waiting and total <= VALUES_MAX:
        values = waiting.pop()
        total += len(values)
        waiting += [list(each.values()) if isinstance(each, dict) else each for each in values if isinstance(each, dict | list)]
    return total


def _by_schema(tool: Tool, parsed: dict[str, Any]) -> Valid:
    complaints = tool.checker.complaints(parsed)
    if complaints:
        raise _Refused(f"do not fit: {_joined(complaints)}", with_fields=True)
    return Valid(parsed, msgspec.json.encode(parsed, order="sorted").decode(), parsed)


def _by_signature(signature: Signature, text: str, parsed: dict[str, Any]) -> Valid:
    value, arguments, canonical = _validated(signature, text)
    if canonical.encode() == msgspec.json.encode(parsed, order="sorted"):
        return Valid(arguments, canonical, value)  # nothing was changed or filled in, so the canonical form has just been validated
    again, _, same = _validated(signature, canonical)
    if same != canonical or not _equal(again, value):
        # a person approves the canonical form, so the handler must get exactly what it says
        raise _Refused("cannot be rebuilt from their stored form: a validator or a type of this tool does not give back what it was given")
    return Valid(arguments, canonical, value)


def _equal(one: BaseModel, other: BaseModel) -> bool:
    try:
        return one == other
    except Exception:  # noqa: BLE001 - an application's own comparison
        return False


def _validated(signature: Signature, text: str) -> tuple[BaseModel, dict[str, Any], str]:
    try:
        value = signature.model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise _Refused(f"do not fit: {_joined(_complaints(error))}", with_fields=True) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a validator of the application may raise anything, and that is a verdict
        raise _Refused(f"could not be checked: a validator raised {type(error).__name__}") from error
    try:
        dumped = value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="none")
        if _takes_sets(signature.model):
            dumped = _in_order(value.model_dump(by_alias=True, round_trip=True, warnings="none"), dumped)
        arguments = msgspec.json.decode(to_json(dumped, max_bytes=4 * TEXT_MAX), type=dict[str, Any])
    except NotStorable as refused:
        raise _Refused(f"cannot be stored: {refused}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a serializer of the application
        raise _Refused(f"could not be written as JSON: {type(error).__name__}") from error
    return value, arguments, msgspec.json.encode(arguments, order="sorted").decode()


@cache
def _takes_sets(model: type[BaseModel]) -> bool:
    """Whether a set can be somewhere among the arguments: pydantic says so in the schema."""
    return b'"uniqueItems"' in msgspec.json.encode(model.model_json_schema())


def _in_order(value: Any, dumped: Any) -> Any:
    """`dumped` with every set in the order of its JSON text: its own order is another in every process."""
    if isinstance(value, set | frozenset) and isinstance(dumped, list):
        return sorted(dumped, key=lambda item: msgspec.json.encode(item, order="sorted"))
    if isinstance(value, dict) and isinstance(dumped, dict) and len(value) == len(dumped):
        return {key: _in_order(item, written) for item, (key, written) in zip(value.values(), dumped.items(), strict=True)}
    if isinstance(value, list | tuple) and isinstance(dumped, list) and len(value) == len(dumped):
        return [_in_order(item, written) for item, written in zip(value, dumped, strict=True)]
    return dumped


def _complaints(error: ValidationError) -> list[Complaint]:
    found = error.errors(include_url=False, include_input=False, include_context=True)
    return [Complaint(tuple(each["loc"]), _said(each["type"], each["msg"], each.get("ctx", {}))) for each in found]


def _said(kind: str, text: str, context: dict[str, Any]) -> str:
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "is not an argument of this tool"
        case "union_tag_invalid":  # pydantic's own text repeats the tag it was given
            return f"must be tagged with one of {context.get('expected_tags', '')}"
    return text.removeprefix("Input ")


def _joined(complaints: Sequence[Complaint]) -> str:
    shown = [f"{_place(each.path)} {each.said[:200]}".strip() for each in complaints[:COMPLAINTS_MAX]]
    more = len(complaints) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _place(path: tuple[str | int, ...]) -> str:
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{_bounded(part)}" for part in path[:8]).removeprefix(".")
    return f"{shown}:" if shown else ""


def _bounded(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."


def _quoted(text: str) -> str:
    return json.dumps(_bounded(text), ensure_ascii=False)


def _message(tool: Tool, refused: _Refused, length: int) -> str:
    parts = [f"The arguments of {tool.name} {refused.why}."]
    if length >= LONG_TEXT:
        parts.append(f"They are {length:,} characters long.")
    message = _cut(" ".join(parts), MESSAGE_BYTES_MAX)
    if not refused.with_fields:
        return message
    return _cut(f"{message} {_fields(tool.schema)}", MESSAGE_BYTES_MAX)


def _cut(text: str, bytes_max: int) -> str:
    encoded = (text := whole(text)).encode()
    return text if len(encoded) <= bytes_max else encoded[: bytes_max - 3].decode("utf-8", "ignore") + "..."


def _fields(schema: dict[str, Any]) -> str:
    """The tool's parameters in one line: what a model needs to correct itself."""
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not properties:
        return "The tool takes no arguments." if schema.get("additionalProperties") is False else ""
    listed = [f"{_bounded(name)} ({_type_of(each)}{', required' if name in required else ''})" for name, each in list(properties.items())[:20]]
    more = len(properties) - len(listed)
    return f"Arguments: {', '.join(listed)}{f' and {more} more' if more > 0 else ''}."


def _type_of(schema: object) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return _bounded("one of " + ", ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"][:8]))
    if isinstance(options := schema.get("anyOf"), list):
        return _bounded(" or ".join(_type_of(each) for each in options[:6]))
    kind = schema.get("type", "object" if "$ref" in schema else "any")
    return _bounded(" or ".join(map(str, kind)) if isinstance(kind, list) else str(kind))
