"""refold: LLM agents as an explicit state machine over an append-only log.

The public face. Names are loaded when they are first used, so that `import refold` is quick and loads no provider, no database and no terminal.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from refold.fsm.fold import fold
    from refold.runtime.agent import Agent
    from refold.runtime.auditing import audit
    from refold.runtime.diff import diff
    from refold.runtime.providers.script import ScriptedModel
    from refold.runtime.replay import replay
    from refold.runtime.settings import Budgets, Context, Policy
    from refold.runtime.show import show
    from refold.runtime.store import Store, open_store
    from refold.runtime.tools import NotPerformed, RetryableToolError, Tool, ToolContext, ToolResult, tool
    from refold.runtime.validators import answer_is, cites_read_documents

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Agent": "runtime.agent",
    "Budgets": "runtime.settings",
    "Context": "runtime.settings",
    "NotPerformed": "runtime.tools",
    "Policy": "runtime.settings",
    "RetryableToolError": "runtime.tools",
    "ScriptedModel": "runtime.providers.script",
    "Store": "runtime.store",
    "Tool": "runtime.tools",
    "ToolContext": "runtime.tools",
    "ToolResult": "runtime.tools",
    "answer_is": "runtime.validators",
    "audit": "runtime.auditing",
    "cites_read_documents": "runtime.validators",
    "diff": "runtime.diff",
    "fold": "fsm.fold",
    "open_store": "runtime.store",
    "replay": "runtime.replay",
    "show": "runtime.show",
    "tool": "runtime.tools",
}

__all__ = [
    "Agent",
    "Budgets",
    "Context",
    "NotPerformed",
    "Policy",
    "RetryableToolError",
    "ScriptedModel",
    "Store",
    "Tool",
    "ToolContext",
    "ToolResult",
    "answer_is",
    "audit",
    "cites_read_documents",
    "diff",
    "fold",
    "open_store",
    "replay",
    "show",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"refold has no {name!r}")
    value = getattr(import_module(f"refold.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
