"""Tools as an application declares them: `@tool` on a typed function, or `Tool(...)` with a JSON Schema and a handler.

Apart from running them, so that a declaration is checked once, when it is made, and everything that reads it later can trust it.
"""

import hashlib
import inspect
import re
import sys
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, overload

import msgspec

from refold.events.words import Effect
from refold.runtime.schemas import Schema
from refold.runtime.signatures import Signature, read_signature
from refold.runtime.values import NotStorable, to_json

if TYPE_CHECKING:
    from refold.runtime.ports import ToolSpec

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes as the name of a tool."""

Handler = Callable[..., Any]
Approval = Literal["never", "always"] | Callable[[dict[str, Any]], object]
"""`never`, `always`, or a predicate of the validated arguments; what it gives is taken as true or false."""
Isolation = Literal["thread", "process"]


class RetryableToolError(Exception):
    """Raised by a handler: this attempt failed and another may work."""


class NotPerformed(Exception):
    """Raised by a handler that knows that nothing happened, so that no doubt is left."""


class Cancellation:
    """Whether a call is still wanted: true once it is not. A sync handler that runs long should look at it now and then."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until the call is no longer wanted, or for so long; for sync handlers only."""
        return self._event.wait(timeout_s)


@dataclass(frozen=True)
class ToolContext:
    """What a handler may know about its call. `idempotency_key` is the same for every attempt, also in another process; `attempt` counts from 1."""

    run_id: str
    turn: int
    call_id: str
    attempt: int
    idempotency_key: str
    cancelled: Cancellation = field(default_factory=Cancellation)


@dataclass(frozen=True)
class Note:
    """Something worth keeping about what was found, and the documents it came from."""

    text: str
    source_ids: Sequence[str] = ()


@dataclass(frozen=True)
class ToolResult:
    """A result with its sources: `data` is any JSON-like value, `source_ids` are the documents that were read, `notes` are kept for the model."""

    data: object = None
    source_ids: Sequence[str] = ()
    notes: Sequence[str | Note] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """One tool. With `signature` (made by `@tool`) the handler takes its own parameters; without it, `handler(arguments, ctx)`.

    `timeout_s` and `retries` are None where the policy decides. `key(arguments)` gives a business key, `reconcile(key)` says what became of a call.
    With isolation="process" a fresh interpreter imports the handler, which must be a function at the top level of a module, and can be ended.
    A declaration that cannot work raises ValueError with one line that names the tool.
    """

    name: str
    description: str
    schema: dict[str, Any]
    handler: Handler
    effect: Effect = "side_effect"
    approval: Approval = "never"
    timeout_s: float | None = None
    retries: int | None = None
    concurrent: bool = False
    repeatable: bool = False
    key: Callable[[dict[str, Any]], str] | None = None
    reconcile: Callable[[str], object] | None = None
    isolation: Isolation = "thread"
    signature: Signature | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for complaint in _complaints(self):
            raise ValueError(f"tool {self.name!r}: {complaint}" if isinstance(self.name, str) else complaint)
        object.__setattr__(self, "schema", _own_copy(self.name, self.schema))
        if self.signature is None:
            self.checker.complaints({})  # compiles the schema, so that a wrong one is refused here

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # the function's own types
        """Calls the plain function, unchecked and unrecorded: for its unit tests."""
        return self.handler(*args, **kwargs)

    @cached_property
    def spec(self) -> "ToolSpec":
        """The tool as the model is shown it."""
        from refold.runtime.ports import ToolSpec  # a process that runs one handler needs none of it

        return ToolSpec(name=self.name, description=self.description, schema=self.schema)

    @cached_property
    def schema_digest(self) -> str:
        """SHA-256 of the schema (keys sorted) as base64url without padding: changes when what the model may send changes."""
        digest = hashlib.sha256(msgspec.json.encode(self.schema, order="sorted")).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()

    @cached_property
    def checker(self) -> Schema:
        """The schema, ready to check arguments; used by tools without a signature."""
        return Schema(self.name, self.schema)


@overload
def tool(function: Handler, /) -> Tool: ...
@overload
def tool(
    *,
    effect: Effect = "side_effect",
    approval: Approval = "never",
    timeout_s: float | None = None,
    retries: int | None = None,
    concurrent: bool = False,
    repeatable: bool = False,
    key: Callable[[dict[str, Any]], str] | None = None,
    reconcile: Callable[[str], object] | None = None,
    isolation: Isolation = "thread",
    name: str | None = None,
    description: str | None = None,
) -> Callable[[Handler], Tool]: ...
def tool(function: Handler | None = None, /, *, name: str | None = None, description: str | None = None, **options: Any) -> Tool | Callable[[Handler], Tool]:
    """Makes a tool of a typed function, sync or async: `@tool` or `@tool(effect="read", ...)`.

    Its parameters become the schema (extra arguments are forbidden), its docstring the description. A parameter annotated `ToolContext` is given by
    the runtime. A function whose only other parameter is a pydantic model takes that model's fields as its arguments.
    A return annotation is a promise that is checked.
    """

    def declare(handler: Handler) -> Tool:
        own_name = name if name is not None else getattr(handler, "__name__", "")
        if not isinstance(own_name, str) or not NAME.fullmatch(own_name):
            raise ValueError(f"tool {own_name!r}: {_BAD_NAME}")
        signature = read_signature(handler, own_name, context_type=ToolContext, result_type=ToolResult)
        text = description if description is not None else signature.description
        return Tool(name=own_name, description=text, schema=signature.schema, handler=handler, signature=signature, **options)

    return declare if function is None else declare(function)


_BAD_NAME: Final = "a name is 1 to 64 of A-Z, a-z, 0-9, _ and - (give another with name=...)"


def _complaints(tool: Tool) -> Sequence[str]:
    """What is wrong with a declaration, in the order in which it is worth saying."""
    wrong = []
    if not isinstance(tool.name, str) or not NAME.fullmatch(tool.name):
        wrong.append(_BAD_NAME)
    if not isinstance(tool.description, str):
        wrong.append("the description must be a text")
    if not callable(tool.handler):
        wrong.append("the handler must be callable")
    if tool.effect not in get_args(Effect):
        wrong.append(f"effect must be one of {', '.join(get_args(Effect))}")
    if tool.approval not in ("never", "always") and not callable(tool.approval):
        wrong.append("approval must be 'never', 'always' or a predicate of the arguments")
    if tool.timeout_s is not None and not _is_positive(tool.timeout_s):
        wrong.append("timeout_s must be a positive number of seconds")
    if tool.retries is not None and (not isinstance(tool.retries, int) or isinstance(tool.retries, bool) or tool.retries < 0):
        wrong.append("retries must be a whole number, 0 or more")
    wrong += [f"{each} must be true or false" for each in ("concurrent", "repeatable") if not isinstance(getattr(tool, each), bool)]
    wrong += [f"{each} must be a function" for each in ("key", "reconcile") if not (getattr(tool, each) is None or callable(getattr(tool, each)))]
    if tool.isolation not in get_args(Isolation):
        wrong.append(f"isolation must be one of {', '.join(get_args(Isolation))}")
    elif tool.isolation == "process" and (why := _out_of_reach(tool.handler)):
        wrong.append(f"isolation='process' imports the handler in another process, and {why}")
    if tool.signature is None and callable(tool.handler) and not _takes_arguments_and_context(tool.handler):
        wrong.append("the handler of a tool with a schema must take (arguments, ctx)")
    return wrong


def _out_of_reach(handler: object) -> str:
    """Why another process cannot import the handler; empty where it can, as far as can be known while its module is still being imported."""
    if not inspect.isfunction(handler):
        return "this one is no function of a module"
    if not handler.__qualname__.isidentifier():
        return f"{handler.__qualname__} is not at the top level of its module: write it there, with def"
    if handler.__module__ == "__main__":
        return "this one is in the script itself, which would run there once more: move it to a module of its own and import that"
    module = sys.modules.get(handler.__module__)
    if getattr(module, "__spec__", None) is None:
        return f"its module {handler.__module__} was not imported from a file"
    return ""


def _takes_arguments_and_context(handler: Handler) -> bool:
    """Whether it can be called with two positional arguments, as far as can be told."""
    try:
        inspect.signature(handler).bind({}, None)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not say
        return True
    return True


def _is_positive(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < float("inf")


def _own_copy(name: str, schema: object) -> dict[str, Any]:
    """A copy that nobody else can change, known to be JSON and to describe an object."""
    if not isinstance(schema, Mapping):
        raise ValueError(f"tool {name!r}: the schema must be a JSON Schema of an object, not {type(schema).__name__}")
    if schema.get("type", "object") != "object":
        raise ValueError(f"tool {name!r}: the schema must describe an object (type 'object')")
    try:
        copy = msgspec.json.decode(to_json(schema), type=dict[str, Any])
    except NotStorable as refused:
        raise ValueError(f"tool {name!r}: the schema is not JSON: {refused}") from None
    return {"type": "object"} | copy
