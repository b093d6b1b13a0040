"""Provider-neutral messages, and how what happened in a turn becomes them.

Apart from the folds, because the live request, a rebuilt prompt and an export are made by these few functions and no others.
"""

from typing import Any

import msgspec

from refold.events.words import Kind


class MessageCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as it stands in an assistant's message: our `id` by place, the provider's own beside it, and the model's own text of the arguments."""

    id: str
    name: str
    arguments_text: str
    provider_id: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. `role` is `user`, `assistant` or `tool`.

    A tool message has `call_id`, `name`, `kind` (`success` or the kind of its failure) and `content`, any JSON value; the others have `text`, and an assistant's may have `calls`.
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


def user(text: str) -> Message:
    """What the user said, or what the runtime tells the model outside a call."""
    return Message(role="user", text=text)


def assistant(text: str, opaque: tuple[Any, ...] = ()) -> tuple[Message, ...]:
    """What the model said without calls; nothing where it said nothing, since providers refuse empty messages."""
    return (Message(role="assistant", text=text, opaque=opaque),) if text.strip() else ()


def failure(kind: Kind, message: str) -> dict[str, Any]:
    """The content of a result that is no success."""
    return {"error": kind, "message": message}


encode = msgspec.json.Encoder().encode


def size_of(messages: tuple[Message, ...]) -> int:
    """Bytes of messages as they count towards the estimate of a request."""
    return sum(len(encode(message)) for message in messages)


def tokens_of(size: int) -> int:
    """An estimate in integer arithmetic: four bytes a token, rounded up."""
    return -(-size // 4)
