"""`deepseek:NAME`, or `deepseek` with the name in DEEPSEEK_MODEL: DeepSeek's Responses API, which keeps nothing; its chat is `openai-chat` with its address."""

import os
from typing import Any, Final

from refold.runtime.providers import _settings as given
from refold.runtime.providers._errors import Origin
from refold.runtime.providers._responses import RESERVED, ResponsesModel

KEY: Final = "DEEPSEEK_API_KEY"
ADDRESS: Final = "DEEPSEEK_BASE_URL"
NAME: Final = "DEEPSEEK_MODEL"
OFFICIAL: Final = "https://api.deepseek.com"


def create(name: str, *, base_url: str | None = None, settings: dict[str, Any] | None = None) -> ResponsesModel:
    """`deepseek:NAME` or `deepseek`. Raises UnknownModel."""
    given.require("openai")
    named = given.model_name("deepseek", name or os.environ.get(NAME, ""), NAME)
    origin = Origin(named, given.address(base_url, ADDRESS, OFFICIAL), KEY, given.api_key(KEY))
    return ResponsesModel("deepseek", origin, given.checked(settings, RESERVED), {})
