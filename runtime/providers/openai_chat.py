"""`openai-chat:NAME`: Chat Completions of OpenAI and of every server that speaks it (DeepSeek, vLLM, Ollama, OpenRouter, ...).

The request is made here; what a reply is made of is in `_chat`, how the server is reached in `_openai`.
"""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from refold.projections.messages import Message
from refold.runtime.ports import Part, Request
from refold.runtime.providers import _history as history, _settings as given
from refold.runtime.providers._chat import ChatReply, returned
from refold.runtime.providers._errors import Origin
from refold.runtime.providers._openai import NEED_TOOLS, OPENAI, Connection, is_at

KIND: Final = "openai-chat"
KEY: Final = "OPENAI_API_KEY"
ADDRESS: Final = "OPENAI_BASE_URL"
OFFICIAL: Final = "https://api.openai.com/v1"
RESERVED: Final = frozenset({"model", "messages", "tools", "functions"})
LIMITS: Final = ("max_completion_tokens", "max_tokens")
LEGAL_ID: Final = re.compile(r"[\x21-\x7e]{1,512}")
"""Some servers hide what they want back in long ids, so whatever they gave is kept."""
MISTRAL_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")
MISTRAL: Final = re.compile(r"(?:mi|mini|magi|dev|code)stral|pixtral|mixtral", re.IGNORECASE)
"""Models and servers that let only the assistant speak after a result, and take ids of one length."""
BRIDGE: Final = "I have the results."
"""What it says there."""


def create(name: str, *, base_url: str | None = None, settings: dict[str, Any] | None = None) -> "ChatModel":
    """`openai-chat:NAME`. Raises UnknownModel."""
    given.require("openai")
    origin = Origin(given.model_name(KIND, name), given.address(base_url, ADDRESS, OFFICIAL), KEY, given.api_key(KEY))
    return ChatModel(origin, given.checked(settings, RESERVED))


class ChatModel:
    """A model behind Chat Completions; `settings` are sent as they are."""

    priced = True
    """A run with this model costs money: its price is looked up when it begins."""

    def __init__(self, origin: Origin, settings: dict[str, Any]) -> None:
        self.spec, self.base_url, self.settings = f"{KIND}:{origin.model}", origin.base_url, settings
        self._origin, self._connection = origin, Connection("chat", origin)

    async def stream(self, request: Request) -> AsyncIterator[Part]:
        """The parts of the reply. Raises ModelError."""
        name, streamed = self._origin.model, self.settings.get("stream", True)
        said = messages(request, name, strict=MISTRAL.search(f"{self.base_url} {name}") is not None)
        reply = ChatReply(name, self._origin)
        async with aclosing(self._connection.answered(said, self._rest(request, streamed), reply, stream=streamed)) as parts:
            async for part in parts:
                yield part

    def _rest(self, request: Request, streamed: bool) -> dict[str, Any]:
        """The fields beside the conversation: ours under those of the user, and none that is null."""
        own = given.sent(self.settings)
        official = is_at(self.base_url, *OPENAI)
        limit = next((name for name in LIMITS if name in own), LIMITS[0 if official else 1])
        # Mistral reports usage unasked, and refuses to be asked.
        body: dict[str, Any] = {"stream_options": {"include_usage": True}} if streamed and not is_at(self.base_url, "mistral.ai") else {}
        if request.tools:
            body["tools"] = [
                {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema}} for tool in request.tools
            ]
        if request.answer_schema is not None and official:  # other servers refuse it, or call no tools any more
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": request.answer_schema}}
        body |= own
        body[limit] = given.at_most(own.get(limit), request.max_output_tokens)
        left_out = () if request.tools else NEED_TOOLS
        return {name: value for name, value in body.items() if value is not None and name not in left_out}


def messages(request: Request, model: str, *, strict: bool = False) -> list[dict[str, Any]]:
    """The conversation: what the user says is one message, however often it came, because many servers want the roles to take turns; `strict` is for Mistral."""
    made: list[dict[str, Any]] = [{"role": "system", "content": request.instructions}] if request.instructions else []
    for message in history.prepared(request.messages, MISTRAL_ID if strict else LEGAL_ID):
        match message.role:
            case "user":
                _say(made, history.user_text(message), strict)
            case "tool":
                made.append({"role": "tool", "tool_call_id": message.call_id, "content": history.result_text(message)})
            case _ if message.text or message.calls:
                made.append(_assistant(message, model))
    if request.notice:
        _say(made, history.aside(request.notice), strict)
    elif made and made[-1]["role"] == "assistant":  # a pause: only some providers go on from their own words
        _say(made, history.CLIPPED, strict)
    return made


def _say(made: list[dict[str, Any]], text: str, strict: bool) -> None:
    if not text:
        return
    if made and made[-1]["role"] == "user":
        made[-1] = {"role": "user", "content": f"{made[-1]['content']}\n\n{text}"}
        return
    if strict and made and made[-1]["role"] == "tool":
        made.append({"role": "assistant", "content": BRIDGE})
    made.append({"role": "user", "content": text})


def _assistant(message: Message, model: str) -> dict[str, Any]:
    fields, of_calls = returned(message, model)
    said: dict[str, Any] = {"role": "assistant", "content": message.text or None, **fields}
    if message.calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}, **(of_calls[n] if n < len(of_calls) else {})}
            for n, call in enumerate(message.calls)
        ]
    return said
