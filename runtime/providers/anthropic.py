"""`anthropic:NAME`: models that speak Anthropic's Messages API, over Anthropic's own SDK.

One file for the connection and its failures; what is said over it is translated in `_messages.py`.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from refold.runtime import ports as p
from refold.runtime.providers import _settings
from refold.runtime.providers._errors import Origin
from refold.runtime.providers._messages import Reader, body_of
from refold.runtime.providers._replies import answered

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
        self.base_url, self.settings = base_url, settings
        self.spec = f"anthropic:{name}"
        self._origin = Origin(name, base_url, KEY, key)
        self._client = _client(base_url, key)

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        """The parts of the reply. Raises ModelError."""
        body = body_of(request, self._origin.model, self.settings, _output_format(request.answer_schema))
        async with aclosing(answered(self._sent(body), Reader(self._origin), self._origin)) as parts:
            async for part in parts:
                yield part

    @asynccontextmanager
    async def _sent(self, body: dict[str, Any]) -> AsyncIterator[Any]:  # the response of the SDK's HTTP client
        from anthropic import AsyncStream

        stream: AsyncStream[object] = await self._client.post("/v1/messages", body=body, cast_to=object, stream=True, stream_cls=AsyncStream[object])
        try:
            yield stream.response
        finally:
            await stream.close()


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
