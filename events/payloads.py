"""Large values leave a record: anything over 4 KiB is stored once a run under its digest, and a reference stands in its place.

Apart from the codec, because a reader of exports needs exactly this and because the rule that keeps references unambiguous is easy to break:
an object with the key `$payload` is always a reference, so a value of the user's that has this key is itself moved out.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from refold.events.chain import digest_of
from refold.events.words import Digest

LIMIT: Final = 4_096
KEY: Final = "$payload"
_MARK: Final = b'"$payload"'

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Load = Callable[[Digest], bytes]


def move_out(data: bytes) -> tuple[bytes, dict[Digest, bytes]]:
    """Replace large values in the JSON object `data` by references; gives the smaller object and the payloads by digest."""
    if len(data) <= LIMIT and _MARK not in data:
        return data, {}
    payloads: dict[Digest, bytes] = {}
    value = _decode(data)
    small = {key: _moved(item, payloads) for key, item in value.items()}
    return _encode(small), payloads


def _moved(value: Any, payloads: dict[Digest, bytes]) -> Any:
    """`value` with its large parts replaced, innermost first; itself replaced if it is still large or could be taken for a reference."""
    if isinstance(value, dict) and KEY in value:
        return _reference(_encode(value), payloads)
    stored = _encode(value)
    if len(stored) <= LIMIT and _MARK not in stored:
        return value
    inside: dict[Digest, bytes] = {}
    if isinstance(value, dict):
        smaller: Any = {key: _moved(item, inside) for key, item in value.items()}
    elif isinstance(value, list):
        smaller = [_moved(item, inside) for item in value]
    else:
        return _reference(stored, payloads) if len(stored) > LIMIT else value
    # A container of many small values is moved as a whole, as it came: a payload holds no references.
    if len(_encode(smaller)) <= LIMIT:
        payloads.update(inside)
        return smaller
    return _reference(stored, payloads)


def _reference(stored: bytes, payloads: dict[Digest, bytes]) -> dict[str, Any]:
    digest = digest_of(stored)
    payloads[digest] = stored
    return {KEY: digest, "size": len(stored)}


def put_back(data: bytes, load: Load) -> bytes:
    """The JSON object as it was before `move_out`; `load` gives a payload by digest."""
    if _MARK not in data:
        return data
    return _encode(_whole(_decode(data), load))


def _whole(value: Any, load: Load) -> Any:
    match value:
        case {"$payload": str(digest), **_rest}:
            return msgspec.Raw(load(Digest(digest)))
        case dict():
            return {key: _whole(item, load) for key, item in value.items()}
        case list():
            return [_whole(item, load) for item in value]
        case _:
            return value


def references(data: bytes) -> list[Digest]:
    """Digests of the payloads that a record's data refers to, in order. Raises TypeError for a reference that names none."""
    found: list[Digest] = []
    if _MARK in data:
        _collect(_decode(data), found)
    return found


def _collect(value: Any, found: list[Digest]) -> None:
    if isinstance(value, dict):
        if KEY in value:
            if not isinstance(value[KEY], str):
                raise TypeError(f"the reference to a payload is {value[KEY]!r:.80}, and no digest")
            found.append(Digest(value[KEY]))
        else:
            for item in value.values():
                _collect(item, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)
