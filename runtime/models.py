"""From a model SPEC to a model: `PROVIDER:NAME` is the file of that name among the providers, and nothing else knows a list of them."""

import importlib
import pkgutil
import re
from typing import Any, Final

from refold.runtime import providers
from refold.runtime.ports import Model

DEFAULT: Final = "offline"
SPELLED: Final = {DEFAULT: DEFAULT, "script": "script:FILE"}
MAKERS: Final = {"gpt-": "openai", "claude-": "anthropic", "deepseek-": "deepseek"}
KIND: Final = re.compile(r"[a-z][a-z0-9-]*")


class UnknownModel(ValueError):
    """A SPEC that names no provider; or one that cannot be used here, and why."""


def resolve(spec: str, *, base_url: str | None = None, settings: dict[str, Any] | None = None) -> Model:
    """The model that `offline`, `script:FILE`, `openai:NAME`, ... names. Raises UnknownModel, and the provider's own errors for what is wrong with NAME."""
    kind, _, name = spec.partition(":")
    known = available()
    if not KIND.fullmatch(kind) or kind not in known:
        raise UnknownModel(f"there is no model {spec!r}{_meant(spec)}; the kinds are {', '.join(SPELLED.get(one, f'{one}:NAME') for one in known)}")
    module = importlib.import_module(f"refold.runtime.providers.{kind.replace('-', '_')}")
    made: Model = module.create(name, base_url=base_url, settings=settings or {})
    return made


def _meant(spec: str) -> str:
    """The provider of a name that is known by how it begins."""
    kind = next((kind for begins, kind in MAKERS.items() if spec.startswith(begins)), "") if ":" not in spec else ""
    return f" (did you mean {kind}:{spec}?)" if kind else ""


def available() -> list[str]:
    """The kinds that have a file: every module of the providers' folder that can `create`."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(providers.__path__) if not module.name.startswith("_"))
