"""One client of the `openai` SDK: sends a request, and gives the parts of its reply.

Apart from the adapters, because Chat Completions and Responses, of OpenAI and of others, are reached in the same way and fail in the same ways.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from refold.runtime.ports import Part
from refold.runtime.providers._errors import Origin
from refold.runtime.providers._replies import Reply, answered
from refold.runtime.providers._settings import CONNECT_S

OPENAI: Final = ("api.openai.com", "openai.azure.com")
"""Where OpenAI's own models are, which know fields, and have limits, that others have not."""
NEED_TOOLS: Final = ("tool_choice", "parallel_tool_calls")
"""Fields that servers refuse in a request without tools."""

Api = Literal["chat", "responses"]


class Connection:
    """Where a model is reached, and with which key; the SDK is loaded when it is first asked."""

    def __init__(self, api: Api, origin: Origin) -> None:
        self.api, self.origin = api, origin
        self._client: Any = None

    def answered(self, said: list[dict[str, Any]], rest: dict[str, Any], reply: Reply, *, stream: bool) -> AsyncGenerator[Part, None]:
        """The parts of the reply to one request: `said` is the conversation as the API takes it, `rest` the other fields of the body. Raises ModelError."""
        return answered(self._sent(said, rest, stream), reply, self.origin)

    @asynccontextmanager
    async def _sent(self, said: list[dict[str, Any]], rest: dict[str, Any], stream: bool) -> AsyncIterator[Any]:  # the response of the SDK's HTTP client
        if self._client is None:
            self._client = await asyncio.to_thread(self._made)  # loading an SDK takes a second, and the run has other things to hear
        common: dict[str, Any] = {"model": self.origin.model, "stream": stream, "extra_body": rest}
        if self.api == "chat":
            sent = self._client.chat.completions.with_streaming_response.create(messages=said, **common)
        else:
            sent = self._client.responses.with_streaming_response.create(input=said, **common)
        async with sent as response:
            yield response.http_response

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


def is_at(base_url: str, *domains: str) -> bool:
    """Whether an address is in one of these domains."""
    host = urlsplit(base_url).hostname or ""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
