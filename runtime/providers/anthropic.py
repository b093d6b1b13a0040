"""`anthropic:NAME`: models that speak Anthropic's Messages API, over Anthropic's own SDK.

One file for the connection and its failures; what is said over it is translated in `_messages.py`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from refold.runtime import ports as p
from refold.runtime.providers import _settings
from refold.runtime.providers._errors import Origin, masked, no_reply, reported, translated
from refold.runtime.providers._messages import Broken, Reader, body_of
from refold.runtime.providers._sse import Event, events

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

KEY: Final = "ANTHROPIC_API_KEY"
OFFICIAL: Final = "https://api.anthropic.com"
RESERVED: Final = frozenset({"model", "messages", "system", "tools"})


def create(name: str, *, base_url: str | None = None, settings: dict[str, Any] | None = None) -> "Anthropic":
    """`anthropic:NAME`. Raises UnknownModel: no SDK, no key, no address, a setting that is not the user's."""
    _settings.require("anthropic")
    return Anthropic(
        _settings.model_name("anthropic", name),
        key=_settings.api_key(KEY),
        base_url=_settings.address(base_url, "ANTHROPIC_BASE_URL", OFFICIAL).removesuffix("/v1"),
        settings=_settings.checked(settings, RESERVED),
    )


class Anthropic:
    """A model behind `POST BASE_URL/v1/messages`; `settings` are sent as they are."""

    priced = True
    """A run with this model costs money: its price is looked up when it begins."""

    def __init__(self, name: str, *, key: str, base_url: str, settings: dict[str, Any]) -> None:
        self.name, self.base_url, self.settings = name, base_url, settings
        self.spec = f"anthropic:{name}"
        self._origin = Origin(name, base_url, KEY, key)
        self._client = _client(base_url, key)

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        """The parts of the response; closing the iterator, or cancelling whoever waits for it, closes the connection at once. Raises ModelError."""
        body = body_of(request, self.name, self.settings, _output_format(request.answer_schema))
        reader = Reader(self.name)
        try:
            async with aclosing(self._answered(body, reader)) as parts:
                async for part in parts:
                    yield part
        except Broken as broken:
            raise p.ModelError("protocol", masked(str(broken), self._origin.key), code=broken.code, retryable=True, mid_stream=reader.began) from None
        except (KeyError, TypeError, AttributeError) as odd:
            why = masked(f"the response does not have the form of this API: {odd!r}", self._origin.key)
            raise p.ModelError("protocol", why, code="form", retryable=True, mid_stream=reader.began) from None
        except Exception as error:  # noqa: BLE001 - the SDK lets through what the HTTP client below it raises
            # Not chained: an SDK's exception holds the request, and with it the key.
            raise translated(error, self._origin, mid_stream=reader.began) from None

    async def _answered(self, body: dict[str, Any], reader: Reader) -> AsyncGenerator[p.Part, None]:
        """The parts of a response, streamed or not: what it is, its own head says."""
        from anthropic import AsyncStream

        sent = self._client.post("/v1/messages", body=body, cast_to=object, stream=True, stream_cls=AsyncStream[object])
        stream: AsyncStream[object] = await sent
        try:
            kind = stream.response.headers.get("content-type", "")
            if "event-stream" not in kind and (not body["stream"] or "json" in kind or "html" in kind):
                for part in self._plain((await stream.response.aread()).decode("utf-8", "replace"), reader):
                    yield part
                return
            received = events(stream.response.aiter_bytes())
            while not reader.finished and (event := await _next(received, reader)) is not None:
                for part in self._event(event.data, reader):
                    yield part
            for part in reader.end() if reader.stopped and not reader.finished else []:
                yield part
        finally:
            await stream.close()

    def _event(self, data: str, reader: Reader) -> list[p.Part]:
        """The parts of one event. Raises ModelError where it is an error of the provider's, Broken where it is none at all."""
        try:
            event = json.loads(data)
        except ValueError:
            if reader.stopped:  # the end of the stream came inside its last event, and everything had been said
                return []
            raise Broken("json", f"an event of the stream is no JSON: {data[:80]!r}") from None
        if event.get("type") == "error" or ("error" in event and "type" not in event):
            raise reported(event, self._origin, mid_stream=True)
        return reader.take(event)

    def _plain(self, reply: str, reader: Reader) -> list[p.Part]:
        """The parts of a response in one piece. Raises ModelError where it is none."""
        try:
            message = json.loads(reply)
        except ValueError:
            raise no_reply(reply, self._origin) from None
        if isinstance(message, dict) and "content" in message:
            return reader.whole(message)
        raise reported(message, self._origin)


async def _next(received: AsyncIterator[Event], reader: Reader) -> Event | None:
    """The next event; None at the end of the stream, or at whatever happens to it once the model has stopped."""
    try:
        return await asyncio.wait_for(anext(received), _settings.LINGER_S if reader.stopped else None)
    except StopAsyncIteration:
        return None
    except Exception:
        if reader.stopped:
            return None
        raise


def _client(base_url: str, key: str) -> "AsyncAnthropic":
    """Made with the model: to load the SDK takes seconds, in which a run that waited for its first response would hear nothing.

    Every response has a connection of its own: none outlives it, whichever event loop it belonged to.
    """
    from anthropic import AsyncAnthropic, Timeout

    return AsyncAnthropic(
        api_key=key, base_url=base_url, max_retries=0, timeout=Timeout(None, connect=_settings.CONNECT_S), default_headers={"connection": "close"}
    )


def _output_format(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """An answer's schema as far as the API enforces one; nothing where it cannot: the runtime checks every answer itself."""
    if schema is None:
        return None
    from anthropic import transform_schema

    try:
        return {"type": "json_schema", "schema": transform_schema(schema)}
    except ValueError:
        return None
