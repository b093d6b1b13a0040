"""`openai:NAME`: OpenAI's Responses API, and every server that speaks it."""

import re
from typing import Any, Final

from refold.runtime.providers import _settings as given
from refold.runtime.providers._errors import Origin
from refold.runtime.providers._openai import OPENAI, is_at
from refold.runtime.providers._responses import RESERVED, ResponsesModel

KEY: Final = "OPENAI_API_KEY"
ADDRESS: Final = "OPENAI_BASE_URL"
OFFICIAL: Final = "https://api.openai.com/v1"
LEAST: Final = 16
"""The smallest limit of output that OpenAI takes: it answers anything below with 400."""
UNREASONING: Final = re.compile(r"(.*[/:])?(gpt-3|gpt-4|chatgpt-4|gpt-5(\.\d+)?-chat)")
"""Models that refuse a request for reasoning that they do not have."""


def create(name: str, *, base_url: str | None = None, settings: dict[str, Any] | None = None) -> ResponsesModel:
    """`openai:NAME`. Raises UnknownModel."""
    given.require("openai")
    origin = Origin(given.model_name("openai", name), given.address(base_url, ADDRESS, OFFICIAL), KEY, given.api_key(KEY))
    always: dict[str, Any] = {"store": False}
    if not UNREASONING.match(origin.model):  # nothing is kept there, so reasoning comes encrypted and goes back with the transcript
        always["include"] = ["reasoning.encrypted_content"]
    return ResponsesModel("openai", origin, given.checked(settings, RESERVED), always, LEAST if is_at(origin.base_url, *OPENAI) else 1)
