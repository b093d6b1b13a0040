"""One client of the `openai` SDK: sends a request and gives what the server wrote, event by event.

Apart from the adapters, because Chat Completions and Responses, of OpenAI and of others, are reached in the same way and fail in the same ways.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Final, Literal, Protocol

from refold.runtime.ports import ModelError, Part
from refold.runtime.providers._errors import Origin, masked, no_reply, one_line, translated
from refold.runtime.providers._settings import CONNECT_S
from refold.runtime.providers._sse import Event, events

WHOLE: Final = "(the whole reply)"
"""The name of the one event that a reply is which was not streamed."""
DONE: Final = "[DONE]"
"""The end marker of a stream."""
NEED_TOOLS: Final = ("tool_choice", "parallel_tool_calls")
"""Fields that servers refuse in a request without tools."""
SSE_FIELDS: Final = ("data:", "event:", "id:", "retry:", ":")

Api = Literal["chat", "responses"]


class Reply(Protocol):
    """What a reply is made into parts by: `name` is that of the event, which may be WHOLE."""

    def take(self, value: Any, name: str) -> Iterator[Part]: ...


class Connection:
    """Where a model is reached, and with which key; the SDK is loaded when it is first asked."""

    def __init__(self, api: Api, origin: Origin) -> None:
        self.api, self.origin = api, origin
        self._client: Any = None

    async def exchange(self, model: str, said: list[dict[str, Any]], rest: dict[str, Any], *, stream: bool) -> AsyncGenerator[Event, None]:
        """The events of the reply to one request: `said` is the conversation as the API takes it, `rest` the other fields of the body. Raises ModelError.

        Closing the iterator, or cancelling whoever waits for it, closes the connection at once.
        """
        began = False
        if self._client is None:
            self._client = await asyncio.to_thread(self._made)  # loading an SDK takes a second, and the run has other things to hear
        try:
            async with self._sent(model, said, rest, stream) as response:
                began = True
                if "event-stream" in response.headers.get("content-type", ""):
                    async for event in events(response.iter_bytes()):
                        yield event
                    return
                text = (await response.read()).decode("utf-8", "replace")
                if not text.lstrip().startswith(SSE_FIELDS):
                    yield Event(WHOLE, text)
                    return
                async for event in events(_once(text.encode())):  # a stream under a wrong label
                    yield event
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the SDK and the layers below it raise is a provider's failure
            raise translated(error, self.origin, mid_stream=began) from None  # an SDK's exception holds the request, and with it the key

    def parts(self, reply: Reply, event: Event) -> Iterator[Part]:
        """What an event adds to a reply. Raises ModelError, also for what does not have the form of the API."""
        whole = event.name == WHOLE
        if event.data.strip() in ("", DONE) and not whole:
            return
        try:
            value = json.loads(event.data)
            if isinstance(value, list) and value:  # some servers wrap their errors once more
                value = value[0]
            yield from reply.take(value, event.name)
        except (ValueError, RecursionError, TypeError, AttributeError, KeyError) as odd:
            if whole and (isinstance(odd, ValueError) or not event.data.lstrip().startswith("{")):
                raise no_reply(event.data, self.origin) from None
            line = f"{self.origin.base_url} sent what is no event of this API ({one_line(event.data, 80)!r}): {odd}"
            raise ModelError("protocol", masked(line, self.origin.key), retryable=True, mid_stream=not whole) from None

    def _sent(self, model: str, said: list[dict[str, Any]], rest: dict[str, Any], stream: bool) -> Any:  # the SDK's context manager of a response
        if self.api == "chat":
            return self._client.chat.completions.with_streaming_response.create(model=model, messages=said, stream=stream, extra_body=rest)
        return self._client.responses.with_streaming_response.create(model=model, input=said, stream=stream, extra_body=rest)

    def _made(self) -> Any:  # the SDK's client
        import openai

        # A connection for each request: none outlives the event loop that it was made in, and a handshake is little beside a model's answer.
        return openai.AsyncOpenAI(
            api_key=self.origin.key,
            base_url=self.origin.base_url,
            max_retries=0,
            timeout=openai.Timeout(None, connect=CONNECT_S),
            default_headers={"Connection": "close"},
        )


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
