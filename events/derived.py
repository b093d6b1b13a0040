"""Derived facts: what follows from the run and the inputs of the same batch, and from nothing else. One frozen struct each."""

from typing import Literal

from refold.events.parts import CallFact, FactBase
from refold.events.words import CallId, Digest, Kind, Reason


class ModelRequested(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A request is to be made. `number` is its ordinal in the run, `digest` covers instructions, tools and every message, `delay_us` is waited first."""

    TAG, INPUT = "model_requested", False
    number: int
    attempt: int = 1
    digest: Digest
    max_output_tokens: int
    estimated_input_tokens: int
    wrap_up: bool = False
    delay_us: int = 0


class SummaryRequested(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Older turns are to give way to a summary of at most `bytes_max`: what requests behind `since` and up to `upto` showed first, as `digest` says.

    Where a model is to write it, `number` is the ordinal of that request, which reads no more than `estimated_input_tokens`.
    """

    TAG, INPUT = "summary_requested", False
    since: int | None = None
    upto: int
    author: Literal["extractive", "model"]
    digest: Digest
    bytes_max: int
    number: int | None = None
    estimated_input_tokens: int = 0


class RetryScheduled(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Another attempt will be made after `delay_us`: of the request, or of the call named."""

    TAG, INPUT = "retry_scheduled", False
    call: CallId | None = None
    attempt: int
    delay_us: int
    because: str


class ModelErrorObserved(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A turn came to nothing, and the model is told (an invalid turn), or the attempts are used up."""

    TAG, INPUT = "model_error_observed", False
    kind: Literal["invalid_turn", "length", "filtered", "attempts_used_up", "refusal"]
    message: str


class ModelPaused(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The provider let the response rest: what it said stays in the transcript, and the model goes on from there."""

    TAG, INPUT = "model_paused", False


class FinalRejected(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The claim does not stand: `complaints` say why, or a message of the user came first."""

    TAG, INPUT = "final_rejected", False
    complaints: tuple[str, ...] = ()
    because: Literal["complaints", "user_said", "validator_failed", "length", "refusal"] = "complaints"


class ToolRejected(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call will not run."""

    TAG, INPUT = "tool_rejected", False
    kind: Kind
    message: str


class DuplicateActionBlocked(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A call will not run because the same action did, `times` times; or because the decisions go in a circle."""

    TAG, INPUT = "duplicate_action_blocked", False
    times: int
    message: str


class ToolCallsAccepted(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The calls that may run, in order; possibly none."""

    TAG, INPUT = "tool_calls_accepted", False
    calls: tuple[CallId, ...] = ()


class ApprovalRequested(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human must allow this call; `digest` binds what they are shown."""

    TAG, INPUT = "approval_requested", False
    digest: Digest
    because: str
    expires_at: int | None = None


class ClarificationRequested(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The model asks the user."""

    TAG, INPUT = "clarification_requested", False
    question: str


class ToolStarted(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The intent to run a handler; `key` is the idempotency key it is given."""

    TAG, INPUT = "tool_started", False
    attempt: int = 1
    key: str
    delay_us: int = 0


class NoteStored(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An observation is kept."""

    TAG, INPUT = "note_stored", False
    text: str
    source_ids: tuple[str, ...] = ()


class ApprovalExpired(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An approval was not given in time."""

    TAG, INPUT = "approval_expired", False


class ToolInDoubt(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A started side effect may or may not have taken place; it is never silently run again."""

    TAG, INPUT = "tool_in_doubt", False
    message: str


class ToolClosed(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An open call got its result from the runtime: `cancelled`, `limit_reached`, `in_doubt`, or what its last attempt left."""

    TAG, INPUT = "tool_closed", False
    kind: Kind
    message: str


class ToolResultsInjected(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Every call of the turn has its result, shown in this order."""

    TAG, INPUT = "tool_results_injected", False
    calls: tuple[CallId, ...]


class RunCompleted(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The claim stands; `answer_at` is its position."""

    TAG, INPUT = "run_completed", False
    answer_at: int
    reason: Reason | None = None
    detail: str = ""


class RunStopped(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A limit ended the run."""

    TAG, INPUT = "run_stopped", False
    reason: Reason
    detail: str


class RunFailed(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The run cannot go on."""

    TAG, INPUT = "run_failed", False
    reason: Reason
    detail: str


class RunCancelled(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Somebody ended the run."""

    TAG, INPUT = "run_cancelled", False
    reason: Reason = "cancelled"
    detail: str = ""
    who: str = ""
