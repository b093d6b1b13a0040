"""One frozen struct per fact, and the unions `Input` and `Fact`: everything that can happen to a run.

The kind belongs to the type. An input fact holds, without loss, what the world told us; a derived fact is a pure function of the run before it
and the inputs of its batch. Fields are only ever added, with a default. A call's id comes first where there is one: the record carries it outside `data`.
"""

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from refold.events.settings import Budgets, Policy, Seconds
from refold.events.words import CallId, Digest, Effect, Kind, Reason, RunId, StopReason


class _Fact(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    TAG: ClassVar[str]
    VERSION: ClassVar[int] = 1
    INPUT: ClassVar[bool]
    OUTSIDE: ClassVar[bool] = False
    """True where any process may append it, whoever drives."""


# -- what several facts hold


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


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """With what a run was begun: everything that decisions depend on. `engine` is the number of the rules, `script_from` the requests made before the model was last set."""

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


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Tokens of one response. `input_tokens` is everything the model read, cached or not (as OpenTelemetry's GenAI conventions count); `estimated` where the provider said nothing."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cost_usd: str | None = None


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as the model proposed it: our id by place, the provider's own, and the model's own text of the arguments."""

    id: CallId
    name: str
    arguments_text: str = ""
    provider_id: str = ""


class ModelOutput(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """What a model said in one response, whatever became of it."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[ProposedCall, ...] = ()
    citations: tuple[str, ...] | None = None
    rationale: str = ""
    stop_reason: StopReason = "stop"
    provider_stop_reason: str = ""
    no_evidence: bool = False
    opaque: tuple[Any, ...] = ()
    usage: Usage | None = None
    elapsed_us: int = 0


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An error of a provider. `retryable` is its class, decided by the adapter; `retry_after_s` what the provider asked for."""

    type: str
    message: str
    retryable: bool = False
    code: str = ""
    http_status: int | None = None
    retry_after_s: Seconds | None = None
    mid_stream: bool = False


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


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An observation that a tool asked to keep."""

    text: str
    source_ids: tuple[str, ...] = ()


# -- input facts: the run


class RunStarted(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A run was begun for a goal."""

    TAG, INPUT = "run_started", True
    goal: str
    setup: Setup


class RunContinued(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A run was begun whose history begins with that of an ended one; `head` is the parent's digest at `at`."""

    TAG, INPUT = "run_continued", True
    parent: RunId
    at: int
    head: Digest
    message: str = ""
    setup: Setup


class RunForked(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A run was split off another at position `at`; its records go on from there. `changes` are settings by path, `edits` new results by call."""

    TAG, INPUT = "run_forked", True
    parent: RunId
    at: int
    head: Digest
    edits: dict[str, Any] = {}
    changes: dict[str, Any] = {}


class DriverAttached(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A process took the wheel. What an earlier epoch started and did not finish is unknown from here on."""

    TAG, INPUT = "driver_attached", True
    epoch: int
    who: str
    host: str
    pid: int = 0


class DriverDetached(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """The driver let go, in good order."""

    TAG, INPUT = "driver_detached", True
    epoch: int
    why: str = ""


class ContextChosen(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A custom context builder chose what the next request shows: `left_out` are positions of messages it does not."""

    TAG, INPUT = "context_chosen", True
    builder: str
    left_out: tuple[int, ...] = ()
    error: str = ""


class ContextCompacted(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """What was said up to position `upto` is shown as `summary` from here on."""

    TAG, INPUT = "context_compacted", True
    upto: int
    summary: str


# -- input facts: the model


class UsageUpdated(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A provider reported usage while it streamed, or late: totals of the open request."""

    TAG, INPUT = "usage_updated", True
    usage: Usage


class StreamCheckpointed(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What a long stream said since the last checkpoint."""

    TAG, INPUT = "stream_checkpointed", True
    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None


class ModelFailed(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The provider failed to answer; `text` is what had arrived of a stream that broke, kept apart from the retry."""

    TAG, INPUT = "model_failed", True
    error: ErrorInfo
    text: str = ""
    usage: Usage | None = None
    elapsed_us: int = 0


class ModelInterrupted(ModelOutput, frozen=True, kw_only=True, omit_defaults=True):
    """A response that cannot be acted on: cut short by us (`cancelled`, `limit`), by its length (`length`), withheld (`filtered`), or no legal turn (`invalid`)."""

    TAG, INPUT = "model_interrupted", True
    cause: Literal["cancelled", "limit", "length", "filtered", "invalid"]
    detail: str = ""
    limit: Reason | None = None


class FinalProposed(ModelOutput, frozen=True, kw_only=True, omit_defaults=True):
    """The model claims an answer."""

    TAG, INPUT = "final_proposed", True


class AnswerChecked(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """What the final validators said of the claim: `complaints`, and `error` where one of them raised."""

    TAG, INPUT = "answer_checked", True
    validators: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    error: str = ""


class ToolCallsRequested(ModelOutput, frozen=True, kw_only=True, omit_defaults=True):
    """The model proposed calls; `text` is its commentary."""

    TAG, INPUT = "tool_calls_requested", True


class CallsChecked(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """What user code said of each call, in call order."""

    TAG, INPUT = "calls_checked", True
    checks: tuple[Check, ...]


# -- input facts: tools


class ToolSucceeded(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A handler returned. `result` is what it gave, as JSON."""

    TAG, INPUT = "tool_succeeded", True
    call: CallId
    result: Any
    source_ids: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    attempt: int = 1
    elapsed_us: int = 0


class ToolFailed(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An attempt ended without a result: `execution_failed`, `timeout`, `invalid_result` or `cancelled`. `performed` is whether the act took place."""

    TAG, INPUT = "tool_failed", True
    call: CallId
    kind: Kind
    message: str
    error: str = ""
    retryable: bool = False
    performed: Literal["yes", "no", "unknown"] = "unknown"
    attempt: int = 1
    elapsed_us: int = 0


class DoubtResolved(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A call in doubt was settled: it happened (with what result), it did not, or the model is told."""

    TAG, INPUT, OUTSIDE = "doubt_resolved", True, True
    call: CallId
    verdict: Literal["happened", "did_not_happen", "tell_model"]
    result: Any = None
    by: Literal["human", "reconcile", "policy"] = "human"
    who: str = ""
    command_id: str = ""


class LateOutcome(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A handler that had been given up came back; it changes nothing."""

    TAG, INPUT, OUTSIDE = "late_outcome", True, True
    call: CallId
    outcome: str
    attempt: int = 1
    command_id: str = ""


# -- input facts: people


class ApprovalGranted(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human allowed exactly what `digest` stands for, once."""

    TAG, INPUT, OUTSIDE = "approval_granted", True, True
    call: CallId
    digest: Digest
    who: str
    command_id: str = ""


class ApprovalDenied(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human refused a call and said why."""

    TAG, INPUT, OUTSIDE = "approval_denied", True, True
    call: CallId
    reason: str
    who: str
    command_id: str = ""


class ClarificationReceived(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human answered a question."""

    TAG, INPUT, OUTSIDE = "clarification_received", True, True
    call: CallId
    text: str
    who: str
    command_id: str = ""


class CallSuperseded(_Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A human allowed a call with other arguments; `check` is what user code said of those."""

    TAG, INPUT, OUTSIDE = "call_superseded", True, True
    call: CallId
    check: Check
    who: str
    command_id: str = ""


class UserSaid(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A message to a run that is going on; the next request shows it."""

    TAG, INPUT, OUTSIDE = "user_said", True, True
    text: str
    who: str
    command_id: str = ""


class CancelRequested(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Somebody wants the run to end."""

    TAG, INPUT, OUTSIDE = "cancel_requested", True, True
    who: str
    reason: str = ""
    command_id: str = ""


class Sealed(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The head was signed: nothing may be missing at the end."""

    TAG, INPUT = "sealed", True
    algorithm: str
    key: str
    signature: str


class Erased(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The key of the run's content was destroyed."""

    TAG, INPUT = "erased", True
    who: str
    reason: str = ""


# -- derived facts


class ModelRequested(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A request is to be made. `number` is its ordinal in the run, `digest` covers instructions, tools and every message, `delay_us` is waited first."""

    TAG, INPUT = "model_requested", False
    number: int
    attempt: int = 1
    digest: Digest
    max_output_tokens: int
    estimated_input_tokens: int
    wrap_up: bool = False
    delay_us: int = 0


class RetryScheduled(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Another attempt will be made after `delay_us`: of the request, or of the call named."""

    TAG, INPUT = "retry_scheduled", False
    call: CallId | None = None
    attempt: int
    delay_us: int
    because: str


class ModelErrorObserved(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A turn came to nothing, and the model is told (an invalid turn), or the attempts are used up."""

    TAG, INPUT = "model_error_observed", False
    kind: Literal["invalid_turn", "length", "filtered", "attempts_used_up", "refusal"]
    message: str


class FinalRejected(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The claim does not stand: `complaints` say why, or a message of the user came first."""

    TAG, INPUT = "final_rejected", False
    complaints: tuple[str, ...] = ()
    because: Literal["complaints", "user_said", "validator_failed", "length", "refusal"] = "complaints"


class ToolRejected(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call will not run."""

    TAG, INPUT = "tool_rejected", False
    call: CallId
    kind: Kind
    message: str


class DuplicateActionBlocked(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call will not run because the same action did, `times` times; or because the decisions go in a circle."""

    TAG, INPUT = "duplicate_action_blocked", False
    call: CallId
    times: int
    message: str


class ToolCallsAccepted(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The calls that may run, in order; possibly none."""

    TAG, INPUT = "tool_calls_accepted", False
    calls: tuple[CallId, ...] = ()


class ApprovalRequested(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human must allow this call; `digest` binds what they are shown."""

    TAG, INPUT = "approval_requested", False
    call: CallId
    digest: Digest
    because: str
    expires_at: int | None = None


class ClarificationRequested(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The model asks the user."""

    TAG, INPUT = "clarification_requested", False
    call: CallId
    question: str


class ToolStarted(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The intent to run a handler; `key` is the idempotency key it is given."""

    TAG, INPUT = "tool_started", False
    call: CallId
    attempt: int = 1
    key: str
    delay_us: int = 0


class NoteStored(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An observation is kept."""

    TAG, INPUT = "note_stored", False
    call: CallId
    text: str
    source_ids: tuple[str, ...] = ()


class ApprovalExpired(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An approval was not given in time."""

    TAG, INPUT = "approval_expired", False
    call: CallId


class ToolInDoubt(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A started side effect may or may not have taken place; it is never silently run again."""

    TAG, INPUT = "tool_in_doubt", False
    call: CallId
    message: str


class ToolClosed(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An open call got its result from the runtime: `cancelled`, `limit_reached`, `in_doubt`, or what its last attempt left."""

    TAG, INPUT = "tool_closed", False
    call: CallId
    kind: Kind
    message: str


class ToolResultsInjected(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Every call of the turn has its result, shown in this order."""

    TAG, INPUT = "tool_results_injected", False
    calls: tuple[CallId, ...]


class RunCompleted(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The claim stands; `answer_at` is its position."""

    TAG, INPUT = "run_completed", False
    answer_at: int
    reason: Reason | None = None
    detail: str = ""


class RunStopped(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A limit ended the run."""

    TAG, INPUT = "run_stopped", False
    reason: Reason
    detail: str


class RunFailed(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The run cannot go on."""

    TAG, INPUT = "run_failed", False
    reason: Reason
    detail: str


class RunCancelled(_Fact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Somebody ended the run."""

    TAG, INPUT = "run_cancelled", False
    reason: Reason = "cancelled"
    detail: str = ""
    who: str = ""


Input: TypeAlias = (
    RunStarted
    | RunContinued
    | RunForked
    | DriverAttached
    | DriverDetached
    | ContextChosen
    | ContextCompacted
    | UsageUpdated
    | StreamCheckpointed
    | ModelFailed
    | ModelInterrupted
    | FinalProposed
    | AnswerChecked
    | ToolCallsRequested
    | CallsChecked
    | ToolSucceeded
    | ToolFailed
    | DoubtResolved
    | LateOutcome
    | ApprovalGranted
    | ApprovalDenied
    | ClarificationReceived
    | CallSuperseded
    | UserSaid
    | CancelRequested
    | Sealed
    | Erased
)
Derived: TypeAlias = (
    ModelRequested
    | RetryScheduled
    | ModelErrorObserved
    | FinalRejected
    | ToolRejected
    | DuplicateActionBlocked
    | ToolCallsAccepted
    | ApprovalRequested
    | ClarificationRequested
    | ToolStarted
    | NoteStored
    | ApprovalExpired
    | ToolInDoubt
    | ToolClosed
    | ToolResultsInjected
    | RunCompleted
    | RunStopped
    | RunFailed
    | RunCancelled
)
Fact: TypeAlias = Input | Derived
Ending: TypeAlias = RunCompleted | RunStopped | RunFailed | RunCancelled
