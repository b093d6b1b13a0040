"""What the model may see: provider-neutral messages."""

from typing import Any

import msgspec


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
