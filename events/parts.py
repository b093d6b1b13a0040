"""What several facts hold: the setup of a run, usage, a proposed call and its check, an error, a note; and the base of them all.

Apart from the facts, because these are nouns and those are what happened.
"""

from typing import Any, ClassVar, Literal

import msgspec

from refold.events.settings import Budgets, Context, Policy, Seconds
from refold.events.words import CallId, Digest, Effect, Kind


class FactBase(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    TAG: ClassVar[str]
    VERSION: ClassVar[int] = 1
    INPUT: ClassVar[bool]
    OUTSIDE: ClassVar[bool] = False
    """True where any process may append it, whoever drives."""


class CallFact(FactBase, frozen=True, kw_only=True):
    """A fact about one call. Its id is the first field, and the record carries it outside `data`."""

    call: CallId


class ToolSetup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as it was declared when the run began."""

    name: str
    description: str
    schema: dict[str, Any]
    effect: Effect
    approval: Literal["never", "always", "predicate"] = "never"
    timeout_s: Seconds | None = None
    retries: int | None = None
    concurrent: bool = False
    repeatable: bool = False


class Price(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Money for a million tokens, in USD, as decimal strings."""

    input: str
    output: str
    cached_input: str | None = None
    cache_write: str | None = None
    source: str = ""
    """The price list, with its version."""


class ModelSetup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which model answers, where it is reached, with what settings, and what it costs."""

    model: str
    base_url: str = ""
    model_settings: dict[str, Any] = {}
    price: Price | None = None


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """With what a run was begun: everything that decisions depend on. `engine` is the number of the rules."""

    engine: int
    seed: str
    agent: str = ""
    model: str = ""
    base_url: str = ""
    model_settings: dict[str, Any] = {}
    instructions: str = ""
    tools: tuple[ToolSetup, ...] = ()
    ask_user: bool = True
    documents: tuple[str, ...] = ()
    validators: tuple[str, ...] = ()
    answer_schema: dict[str, Any] | None = None
    price: Price | None = None
    budgets: Budgets
    policy: Policy
    context: Context | None = None
    """None where requests show everything: in runs that were begun before there was a choice."""
    context_builder: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Tokens of one response. `input_tokens` is everything the model read, cached or not (as OpenTelemetry's GenAI conventions count); `estimated` where the provider said nothing.

    Most providers count reasoning in their output; `reasoning_beside` marks those that count it beside.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    reasoning_beside: bool = False
    estimated: bool = False
    cost_usd: str | None = None

    @property
    def written(self) -> int:
        """Everything that the model wrote, reasoning included: what is billed as output."""
        return self.output_tokens + (self.reasoning_tokens if self.reasoning_beside else 0)


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as the model proposed it: our id by place, the provider's own, and the model's own text of the arguments."""

    id: CallId
    name: str
    arguments_text: str = ""
    provider_id: str = ""


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An error of a provider. `retryable` is its class, decided by the adapter; `retry_after_s` what the provider asked for; `overflow` that the request was longer than the model can read."""

    type: str
    message: str
    retryable: bool = False
    code: str = ""
    http_status: int | None = None
    retry_after_s: Seconds | None = None
    mid_stream: bool = False
    overflow: bool = False


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What user code said of one call before it could run.

    `kind` is `success` where it may, else the typed refusal with its `message`. `arguments` is the canonical form: validated, defaults filled in, keys sorted.
    `signature` names the action (tool and canonical arguments), `digest` binds what a human approves (action, tool schema, policy), `key` is a business key.
    """

    call: CallId
    kind: Kind = "success"
    message: str = ""
    arguments: str = ""
    effect: Effect = "side_effect"
    signature: Digest
    approval: bool = False
    approval_reason: str = ""
    question: str = ""
    digest: Digest | None = None
    key: str = ""
    repeatable: bool = False
    retries: int = 0
    timeout_s: Seconds | None = None
    concurrent: bool = False
    reconcilable: bool = False


class Block(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Messages that a continuation takes over as one. `position` counts from the end of the parent, which is 0."""

    position: int
    digest: Digest
    size: int
    messages: int


class Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result that a fork shows instead of the one that its parent recorded. `place` is that of its message among the past ones; None while no request has shown it."""

    call: CallId
    name: str
    result: Any
    source_ids: tuple[str, ...] = ()
    place: int | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An observation that a tool asked to keep."""

    text: str
    source_ids: tuple[str, ...] = ()
