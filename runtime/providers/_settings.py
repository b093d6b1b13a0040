"""What every adapter is made with: a key from the environment, an address, and settings that the provider gets as they are.

Apart from the adapters, because a missing key or a wrong address must read the same whichever provider it is.
"""

import json
import os
import re
from collections.abc import Collection
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from refold.runtime.models import UnknownModel

CONNECT_S: Final = 10.0
"""How long a connection may take to be made. Nothing else is timed here: the runtime ends a model that is silent for too long."""
LINGER_S: Final = 5.0
"""How long usage and the end marker are waited for once the model has stopped: some servers send neither, and stay connected."""
SECRETS: Final = re.compile(r"api_?key|authorization|token$|secret|password|headers|extra_query", re.IGNORECASE)
"""Settings that could hold a key; settings are recorded."""


def require(package: str) -> None:
    """Raises UnknownModel where the SDK is not installed; it is imported when the model is first asked."""
    if find_spec(package) is None:
        raise UnknownModel(f"the {package} package is not installed: pip install 'refold[{package}]'")


def api_key(variable: str) -> str:
    """The key in an environment variable. Raises UnknownModel where there is none that could be sent."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UnknownModel(f"{variable} is not set: put the provider's key there (for a server that needs none, any value will do)")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UnknownModel(f"{variable} holds what cannot be a key: spaces, line breaks or characters outside ASCII")
    return key


def model_name(kind: str, name: str, variable: str = "") -> str:
    """The name behind the colon, which may be in `variable` instead. Raises UnknownModel where it is missing."""
    if not name.strip():
        raise UnknownModel(f"{kind}: names no model; write {kind}:NAME{f' or set {variable}' if variable else ''}")
    return name.strip()


def address(base_url: str | None, variable: str, official: str = "") -> str:
    """The address that is given, else that of the environment, else the official one: it is recorded, so that a run goes on where it began. Raises UnknownModel."""
    given = (base_url or os.environ.get(variable, "")).strip().rstrip("/")
    if not given:
        return official
    try:
        parts = urlsplit(given)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", given):
        raise UnknownModel(f"the base URL {_shown(given)!r} is no address: write it as http://HOST:PORT/... or https://HOST/...")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UnknownModel(f"the base URL {_shown(given)} may hold no user, password, query or fragment: it is recorded, and keys come from the environment")
    return given


def _shown(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", re.sub(r"[?#].*", "?***", url))


def checked(settings: dict[str, Any] | None, reserved: Collection[str]) -> dict[str, Any]:
    """The settings as they are recorded. Raises UnknownModel for one that the adapter sets itself, or that could hold a key."""
    given = dict(settings or {})
    for name in given:
        if name in reserved:
            raise UnknownModel(f"--set model.{name}: this part of the request is made by refold")
        if SECRETS.search(name):
            raise UnknownModel(f"--set model.{name}: settings are recorded, so keys and headers have no place in them; keys come from the environment")
    if not isinstance(given.get("stream", True), bool):
        raise UnknownModel("--set model.stream: write true or false")
    sent(given)
    return {name: repr(value) if isinstance(value, float) else value for name, value in given.items()}


def sent(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as fields of a request's body: a dotted name is nested, and a text that is a JSON number, list, object or string is that value."""
    body: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "stream":
            continue
        *outer, last = name.split(".")
        place = body
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UnknownModel(f"--set model.{name}: {part} is set to a value of its own")
        place[last] = _value(value)
    return body


def _value(value: Any) -> Any:
    """Settings come from the command line as text, and are recorded without floats."""
    if not isinstance(value, str) or not value.lstrip().startswith((*'{["-.', *"0123456789")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def at_most(asked: Any, most: int) -> int:
    """The limit that the user asks for, where the run's own allows it."""
    return min(asked, most) if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0 else most
