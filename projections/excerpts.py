"""Excerpts: a long text by its beginning and its end, with what to type for the rest; and the share that each of several may take.

Apart from the context, because an excerpt is a matter of characters and bytes alone; requests, summaries and the tool that reads on make theirs here.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec

from refold.projections.messages import Message, encode

READ_RESULT: Final = "read_result"
"""The built-in tool that reads on in a result of which only an excerpt is shown."""
EXCERPT_MIN: Final = 600
"""Bytes that an excerpt has at least: less would hold nothing but the words around it."""


def text_of(content: Any) -> str:
    """What a result says: itself where it is a text, else its JSON."""
    return content if isinstance(content, str) else encode(content).decode()


def handle_of(text: str) -> str:
    """By what name a text can be asked for: of its bytes alone, so that a run that goes on from another asks by the same name."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def size_of(message: Message) -> int:
    """Bytes of a message as it is counted and digested."""
    return len(encode(message))


def within(message: Message, limit: int) -> Message:
    """The message in `limit` bytes, a result by an excerpt (in `EXCERPT_MIN`, where that is more); anything but a result as it is."""
    if message.role != "tool" or size_of(message) <= limit:
        return message
    text = text_of(message.content)
    longest = _excerpt(message, "", _left_out(text, len(text), len(text)), "")
    room = max(0, max(limit, EXCERPT_MIN) - size_of(longest))
    begun = fitting(text, 0, room * 2 // 3)
    ends = fitting_end(text, room - json_size(text[:begun]), begun)
    return _excerpt(message, text[:begun], _left_out(text, begun, ends - begun), text[ends:])


def _excerpt(message: Message, beginning: str, left_out: str, end: str) -> Message:
    return msgspec.structs.replace(message, content={"beginning": beginning, "left_out": left_out, "end": end})


def _left_out(text: str, start: int, characters: int) -> str:
    return f'{characters:,} of {len(text):,} characters are left out; {READ_RESULT}(result="{handle_of(text)}", start={start}) reads on from the beginning'


def fitting(text: str, start: int, room: int) -> int:
    """Where to cut so that what stands between `start` and there takes no more than `room` bytes as JSON."""
    low, high = start, min(len(text), start + room)  # a character takes a byte or more
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if json_size(text[start:middle]) <= room else (low, middle - 1)
    return low


def fitting_end(text: str, room: int, after: int) -> int:
    """The same from the end: where the last characters begin that fit, behind `after`."""
    low, high = max(after, len(text) - room), len(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if json_size(text[middle:]) <= room else (middle + 1, high)
    return low


def json_size(text: str) -> int:
    """Bytes of a text inside a JSON string."""
    return len(encode(text)) - 2


def fair_share(sizes: Iterable[int], room: int) -> int | None:
    """The most that each of several may take so that all fit into `room`: small ones keep what they have, large ones share the rest. None where all fit as they are."""
    ascending = sorted(sizes)
    for place, size in enumerate(ascending):
        share = room // (len(ascending) - place)
        if size > share:
            return max(0, share)
        room -= size
    return None
