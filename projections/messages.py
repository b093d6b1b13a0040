"""Provider-neutral messages, and how what happened in a turn becomes them.

Apart from the folds, because the live request, a rebuilt prompt and an export are made by these few functions and no others.
"""

import re
from typing import Any, Final

import msgspec

from refold.events.chain import digest_of
from refold.events.words import Digest, Kind

REPEATED_MAX: Final = 8_192
"""Characters of refused arguments that later requests still repeat: the model would be paid for reading them again and again."""
REPEATED_LEVELS_MAX: Final = 100
QUOTED_MAX: Final = 200
"""Characters of arguments that are quoted where the call itself cannot carry them."""


class MessageCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as it stands in an assistant's message: our `id` by place, the provider's own beside it.

    `arguments_text` is the model's own text; `{}` where that is no JSON object, since providers refuse a whole history for it, and then the result quotes it.
    """

    id: str
    name: str
    arguments_text: str
    provider_id: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. `role` is `user`, `assistant` or `tool`.

    A tool message has `call_id`, `name`, `kind` (`success` or the kind of its failure) and `content`, any JSON value; the others have `text`, and an assistant's may have `calls`.
    A user's message of kind `runtime` is what the runtime tells the model without a call; an assistant's of kind `interrupted` was cut short by us, and one of
    kind `paused` is gone on with by the next. One of the user's of kind `summary` stands for turns that are not shown: a record, whose content is data.
    `source_ids` names the documents a result came from; `opaque` is what its provider wants back.
    """

    role: str
    text: str = ""
    calls: tuple[MessageCall, ...] = ()
    call_id: str = ""
    name: str = ""
    kind: str = ""
    content: Any = None
    source_ids: tuple[str, ...] = ()
    opaque: tuple[Any, ...] = ()


class Counted(msgspec.Struct, frozen=True, gc=False):
    """A message with its bytes as they are counted and their digest: limits and digests ask for them again and again, and it may be large."""

    message: Message
    size: int
    digest: Digest


def counted(message: Message) -> Counted:
    """A message, counted."""
    encoded = encode(message)
    return Counted(message, len(encoded), digest_of(encoded))


def user(text: str) -> Message:
    """What the user said."""
    return Message(role="user", text=text)


def told(text: str) -> Message:
    """What the runtime tells the model outside a call: in the user's place, as providers know no other, and marked."""
    return Message(role="user", text=text, kind="runtime")


def assistant(text: str, opaque: tuple[Any, ...] = (), kind: str = "") -> tuple[Message, ...]:
    """What the model said without calls; nothing where it said nothing, since providers refuse empty messages."""
    return (Message(role="assistant", text=text, opaque=opaque, kind=kind),) if visible(text) else ()


def paused(text: str, opaque: tuple[Any, ...]) -> tuple[Message, ...]:
    """What the model said before its provider paused, which may be nothing that can be seen."""
    return (Message(role="assistant", text=text if visible(text) else "", opaque=opaque, kind="paused"),) if visible(text) or opaque else ()


def visible(text: str) -> bool:
    """Whether a text shows anything: not only spaces, controls and characters without width."""
    return _INVISIBLE.fullmatch(text) is None


_INVISIBLE: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0]*"
)
"""A fixed set, because what counts as printable differs between versions of Python, and a transcript must not."""


def failure(kind: Kind, message: str) -> dict[str, Any]:
    """The content of a result that is no success."""
    return {"error": kind, "message": message}


def is_repeatable(arguments_text: str) -> bool:
    """Whether refused arguments can stand in the history as they were sent: a JSON object, of bounded length and depth."""
    if len(arguments_text) > REPEATED_MAX or _levels(arguments_text) > REPEATED_LEVELS_MAX:
        return False
    try:
        return isinstance(msgspec.json.decode(arguments_text), dict)
    except (msgspec.DecodeError, UnicodeError):
        return False


def _levels(text: str) -> int:
    """How deep brackets are nested outside strings; counted first, because how deep a decoder may go depends on who calls it."""
    depth = deepest = 0
    for character in re.sub(r'"(?:[^"\\]|\\.)*"?', "", text):
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def quoted(arguments_text: str) -> str:
    """The beginning of arguments that a call could not carry, and how long they were."""
    if len(arguments_text) <= QUOTED_MAX:
        return arguments_text
    return f"{arguments_text[:QUOTED_MAX]}... ({len(arguments_text):,} characters)"


encode = msgspec.json.Encoder().encode


def tokens_of(size: int) -> int:
    """An estimate in integer arithmetic: four bytes a token, rounded up."""
    return -(-size // 4)


def bytes_of(tokens: int) -> int:
    """The other way: what an estimate stands for."""
    return tokens * 4


def request_digest(before: Digest, messages: tuple[Message, ...]) -> Digest:
    """The digest of a request: that of the one before, extended by the messages it adds."""
    return digest_of(before.encode("ascii") + b"".join(encode(message) for message in messages))
