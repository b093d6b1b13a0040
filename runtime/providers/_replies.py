"""What a server answered, as the parts of a reply: a stream of events or one document, and how either of them may be no reply at all.

Apart from the adapters, because servers fail in the same ways whichever API they speak: what is tried again, what stays, and what its line says is decided here for all.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from refold.runtime.ports import Part
from refold.runtime.providers._errors import Origin, no_event, no_reply, reported, translated
from refold.runtime.providers._settings import LINGER_S
from refold.runtime.providers._sse import Event, events

WHOLE: Final = "(the whole reply)"
"""The name of the one event that a reply is which was not streamed."""
DONE: Final = "[DONE]"
"""The end marker of a stream."""
FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
HEAD: Final = max(map(len, FIELDS))
"""With what a stream begins, and in how many bytes that is seen."""
DOCUMENT: Final = (b"{", b"[", b'"', b"<")
"""With what none does, whatever its label says."""


class Response(Protocol):
    """A response of the HTTP client below the SDKs."""

    @property
    def headers(self) -> Any: ...
    def aiter_bytes(self) -> AsyncIterator[bytes]: ...


class Reply(Protocol):
    """What makes parts of the events of one reply, or of the whole of it, which holds its content as a list of objects under `holds`."""

    holds: str

    @property
    def known(self) -> bool:
        """Whether anything came that is of this API."""

    @property
    def stopped(self) -> bool:
        """Whether the model gave a reason to stop, so that only usage and an end marker may follow."""

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""

    def take(self, value: Any, name: str) -> Iterator[Part]:
        """The parts of one more event; `name` may be WHOLE. Raises ModelError."""

    def end(self, *, marked: bool) -> Iterator[Part]:
        """What follows the last event; no `Finished` where the reply broke off. `marked` says that the end marker came."""


async def answered(asked: AbstractAsyncContextManager[Response], reply: Reply, origin: Origin) -> AsyncGenerator[Part, None]:
    """The parts of the reply to a request, which is sent when `asked` is entered. Raises ModelError.

    Closing the iterator, or cancelling whoever waits for it, closes the connection at once.
    """
    began = marked = False
    first = ""
    try:
        async with asked as response:
            began = True
            received = _received(response)
            while not (reply.over or marked) and (event := await _next(received, reply)) is not None:
                data = event.data.strip()
                marked = data == DONE
                if event.name != WHOLE and (marked or not data):
                    continue
                first = first or data
                for part in _parts(event, reply, origin):
                    yield part
                del event, data  # before the next one comes
            if first and not reply.known:
                raise no_reply(first, origin)
            for part in reply.end(marked=marked):
                yield part
    except Exception as error:  # noqa: BLE001 - whatever an SDK and the layers below it raise is a provider's failure
        raise translated(error, origin, mid_stream=began) from None  # an SDK's exception holds the request, and with it the key


async def _received(response: Response) -> AsyncGenerator[Event, None]:
    """The events of a response, or the one that it is: its first bytes say which, and its label only where they do not, because labels are often wrong."""
    chunks, head = response.aiter_bytes(), b""
    async for chunk in chunks:
        head += chunk
        if len(_begun(head)) >= HEAD:
            break
    labelled = "event-stream" in response.headers.get("content-type", "")
    if _begun(head).startswith(FIELDS) or (labelled and not _begun(head).startswith(DOCUMENT)):
        async for event in events(_joined(head, chunks)):
            yield event
            del event
    else:
        yield Event(WHOLE, b"".join([piece async for piece in _joined(head, chunks)]).decode("utf-8", "replace"))


def _begun(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


async def _joined(head: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in chunks:
        yield chunk


async def _next(received: AsyncIterator[Event], reply: Reply) -> Event | None:
    """The next event; None at the end of the stream, or at whatever happens to it once the model has stopped: everything had been said."""
    try:
        return await asyncio.wait_for(anext(received), LINGER_S if reply.stopped else None)
    except StopAsyncIteration:
        return None
    except Exception:
        if reply.stopped:
            return None
        raise


def _parts(event: Event, reply: Reply, origin: Origin) -> Iterator[Part]:
    """What an event adds to a reply. Raises ModelError, also for what does not have the form of the API."""
    whole = event.name == WHOLE
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError) as odd:
        if reply.stopped:  # the end of the stream came inside its last event
            return
        raise no_reply(event.data, origin) if whole else no_event(event.data, origin, str(odd)) from None
    if isinstance(value, list) and value:  # some servers wrap their errors once more
        value = value[0]
    if not isinstance(value, dict):
        raise no_event(event.data, origin, "it is no object") if reply.known else no_reply(event.data, origin)
    if whole and value.get("error") and not value.get(reply.holds):
        raise reported(value, origin, in_place=reply.holds not in value)
    try:
        if whole and not all(isinstance(each, dict) for each in value[reply.holds]):
            raise no_reply(event.data, origin)
        yield from reply.take(value, event.name)
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError) as odd:
        raise no_reply(event.data, origin) if whole else no_event(event.data, origin, repr(odd)) from None
