"""What the runtime asks of the world: a model that streams parts, a clock, fresh ids, and what a model is asked.

Apart from the adapters, so that a provider, a script and a test double are written against one page and nothing else.
"""

import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Protocol

import msgspec

from refold.events.words import StopReason
from refold.projections.messages import Message

BASE32: Final = "0123456789abcdefghjkmnpqrstvwxyz"


Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Amount = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}(\.[0-9]{1,40})?$")]
"""An amount in USD in plain decimal notation."""


class Part(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One piece of a model's stream."""


class TextDelta(Part, frozen=True, kw_only=True):
    """More of the text that the user sees."""

    text: str


class ReasoningDelta(Part, frozen=True, kw_only=True):
    """More of the reasoning that a provider shows; kept, never acted on."""

    text: str


class ToolCallOpened(Part, frozen=True, kw_only=True):
    """A call began: `index` ties its later pieces to it, `id` is the provider's own (empty where it gives none)."""

    index: int
    name: str
    id: str = ""


class ArgumentsDelta(Part, frozen=True, kw_only=True):
    """More of the text of a call's arguments."""

    index: int
    text: str


class ToolCallReady(Part, frozen=True, kw_only=True):
    """A call is complete. `arguments` is the model's own text, meant to be a JSON object; it is validated later."""

    index: int
    name: str
    arguments: str
    id: str = ""


class UsageUpdated(Part, frozen=True, kw_only=True):
    """What the provider counted so far for this response: totals, not increments. `input_tokens` is everything the model read, cached or not; `reasoning_beside` says that reasoning is not a part of the output."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_input_tokens: Count = 0
    cache_write_tokens: Count = 0
    reasoning_tokens: Count = 0
    reasoning_beside: bool = False
    cost_usd: Amount | None = None


class OpaqueItem(Part, frozen=True, kw_only=True):
    """Something the provider wants back verbatim (reasoning items, signatures); a JSON value."""

    item: Any


class Refusal(Part, frozen=True, kw_only=True):
    """More of the text with which the model declined."""

    text: str


class Malformed(Part, frozen=True, kw_only=True):
    """The response is no legal turn, and `reason` says why in words for the model."""

    reason: str


class Finished(Part, frozen=True, kw_only=True):
    """The end of a complete stream; one that ends without it broke.

    `citations` and `rationale` come with a structured decision, `final` marks its text as the answer, `no_evidence` says that the documents hold none.
    """

    stop_reason: StopReason
    provider_stop_reason: str = ""
    citations: tuple[str, ...] | None = None
    rationale: str = ""
    final: bool = False
    no_evidence: bool = False


class ModelError(Exception):
    """A provider could not answer: raised by `Model.stream`, at any point of the stream.

    `type` is a short code (`overloaded`, `authentication`, `connection`, `script_exhausted`, ...), `code` the provider's finer one, `retry_after_s` what it asked for.
    `mid_stream` says that it came inside a response that had begun, `overflow` that the request was longer than the model can read.
    """

    def __init__(
        self,
        type: str,  # noqa: A002 - the word of the record
        message: str,
        *,
        retryable: bool,
        code: str = "",
        retry_after_s: float | None = None,
        http_status: int | None = None,
        mid_stream: bool = False,
        overflow: bool = False,
    ) -> None:
        super().__init__(message)
        self.type, self.message, self.retryable = str(type), str(message), bool(retryable)
        self.code, self.mid_stream, self.overflow = str(code), bool(mid_stream), bool(overflow)
        # What comes out of a header may be anything; a wait that is none is no wait.
        asked = isinstance(retry_after_s, int | float) and not isinstance(retry_after_s, bool) and 0 <= retry_after_s <= RETRY_AFTER_MAX_S
        self.retry_after_s = retry_after_s if asked else None
        self.http_status = http_status if isinstance(http_status, int) else None


RETRY_AFTER_MAX_S: Final = 10**9


def checked(part: object) -> Part:
    """A part whose fields are what its type says. Raises ModelError: an adapter that gives anything else has failed."""
    if type(part) is TextDelta and type(part.text) is str:
        return part  # most of them, by far
    if not isinstance(part, Part):
        raise ModelError("malformed_part", f"the model gave a {type(part).__name__}, which is no part of a stream", retryable=False)
    try:
        return msgspec.convert({name: getattr(part, name) for name in part.__struct_fields__}, type(part))
    except msgspec.ValidationError as error:
        raise ModelError("malformed_part", f"{type(part).__name__} of the model's stream: {error}", retryable=False) from error


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the model is shown it; `schema` is a JSON Schema of an object."""

    name: str
    description: str
    schema: dict[str, Any]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is asked: the complete transcript, every time.

    `turn` counts answered requests, `number` all of them (attempts included, one that was lost with its process keeps its own).
    `notice` is what only this request says (the budget that is left, a last turn without tools); adapters put it behind the messages, never in the prefix.
    """

    turn: int
    number: int
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    max_output_tokens: int
    answer_schema: dict[str, Any] | None = None
    notice: str = ""
    numbered_from: int = 0
    """Requests of the run that came before its model was set, as in a fork with another."""


class Model(Protocol):
    """Anything that answers a request with a stream of parts, ended by `Finished`, or raises `ModelError`. Its `spec` is how the command line would name it."""

    def stream(self, request: Request) -> AsyncIterator[Part]: ...


class Clock(Protocol):
    """Time from outside: `now_us` since the epoch (UTC), `monotonic_us` for measuring."""

    def now_us(self) -> int: ...
    def monotonic_us(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000


class RandomIds:
    """Ids of 12 letters and digits that read well aloud; seeds of 16 hexadecimal digits."""

    def run_id(self) -> str:
        return "".join(secrets.choice(BASE32) for _ in range(12))

    def seed(self) -> str:
        return secrets.token_hex(8)
