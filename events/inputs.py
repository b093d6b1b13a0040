"""Input facts: what the world told us, without loss. One frozen struct each; fields are only ever added, with a default.

A call's id comes first where there is one: the record carries it outside `data`.
"""

from typing import Any, Literal

import msgspec

from refold.events.parts import Block, CallFact, Check, Edit, ErrorInfo, FactBase, ModelSetup, Note, ProposedCall, Setup, Usage
from refold.events.words import CallId, Digest, Kind, Reason, RunId, StopReason

# -- input facts: the run


class RunStarted(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """A run was begun for a goal."""

    TAG, INPUT = "run_started", True
    goal: str
    setup: Setup


class RunContinued(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """A run was begun whose history begins with that of an ended one; `head` is the parent's digest at `at`.

    What decisions need of that history is here: the digest and size of its transcript, and the documents that were read.
    """

    TAG, INPUT = "run_continued", True
    parent: RunId
    at: int
    head: Digest
    goal: str
    message: str = ""
    transcript: Digest
    size: int
    sources: tuple[str, ...] = ()
    shown: tuple[Block, ...] = ()
    """What its requests begin with, in the blocks that a compaction may replace; all of it is one where there is none."""
    setup: Setup


class RunForked(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """A run was split off another behind its record at `at`, whose digest is `head`; its records go on from there.

    `changes` are parts of the setup that are other than the parent's, by path; `edits` are results that are shown otherwise; `message` is what the user says to it.
    `performed` are calls, open there, that the parent performed later: with `allow_repeat` they need no approval.
    """

    TAG, INPUT = "run_forked", True
    parent: RunId
    at: int
    head: Digest
    changes: dict[str, Any] = msgspec.field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    message: str = ""
    performed: tuple[CallId, ...] = ()
    allow_repeat: bool = False
    named: RunId | None = None
    """The run that was named, where the record at `at` is one that it inherited."""
    who: str = ""


class DriverAttached(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """A process took the wheel. What an earlier epoch started and did not finish is unknown from here on. `switched` is the model, where it is another than before."""

    TAG, INPUT = "driver_attached", True
    epoch: int
    who: str
    host: str
    pid: int = 0
    switched: ModelSetup | None = None


class DriverDetached(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """The driver let go, in good order."""

    TAG, INPUT = "driver_detached", True
    epoch: int
    why: str = ""


class ContextChosen(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """A context builder chose what the next request shows.

    `left_out` are turns that it does not, by the position of the request that showed them first; `instead` stands in their place. A builder that raised chose nothing.
    """

    TAG, INPUT = "context_chosen", True
    builder: str
    left_out: tuple[int, ...] = ()
    instead: str = ""
    error: str = ""


class ContextCompacted(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """What requests behind position `since` and up to `upto` showed first is shown as `summary` from here on; `digest` is of the messages that it stands for.

    With `error` there is no summary and nothing changes. `usage` is what was reported of the request that was made for it, `unreported` an estimate on top.
    """

    TAG, INPUT = "context_compacted", True
    since: int | None = None
    upto: int
    summary: str = ""
    author: Literal["extractive", "model"]
    digest: Digest
    error: str = ""
    usage: Usage | None = None
    unreported: Usage | None = None
    elapsed_us: int = 0


# -- input facts: the model


class ModelOutput(FactBase, frozen=True, kw_only=True, omit_defaults=True):
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


class UsageUpdated(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A provider reported usage while it streamed, or late: totals of the open request."""

    TAG, INPUT = "usage_updated", True
    usage: Usage


class StreamCheckpointed(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What a long stream said since the last checkpoint; `calls` hold what came of their arguments since, and `usage` totals of the open request."""

    TAG, INPUT = "stream_checkpointed", True
    text: str = ""
    reasoning: str = ""
    calls: tuple[ProposedCall, ...] = ()
    usage: Usage | None = None


class ModelFailed(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The provider failed to answer. `text`, `reasoning` and `calls` are what had arrived of a stream that broke: kept apart from the retry, shown to no model, never run.

    `usage` is what the provider had reported, `unreported` an estimate of what came on top.
    """

    TAG, INPUT = "model_failed", True
    error: ErrorInfo
    text: str = ""
    reasoning: str = ""
    calls: tuple[ProposedCall, ...] = ()
    usage: Usage | None = None
    unreported: Usage | None = None
    elapsed_us: int = 0


class ModelInterrupted(ModelOutput, frozen=True, kw_only=True, omit_defaults=True):
    """A response that cannot be acted on.

    Cut short by us (`cancelled`, `limit`) or by its length (`length`), withheld (`filtered`), no legal turn (`invalid`), not at its end (`paused`),
    or the request was more than the model can read (`overflow`). `unreported` is an estimate of what one that we cut used beyond what was reported.
    """

    TAG, INPUT = "model_interrupted", True
    cause: Literal["cancelled", "limit", "length", "filtered", "invalid", "paused", "overflow"]
    detail: str = ""
    limit: Reason | None = None
    unreported: Usage | None = None


class FinalProposed(ModelOutput, frozen=True, kw_only=True, omit_defaults=True):
    """The model claims an answer."""

    TAG, INPUT = "final_proposed", True


class AnswerChecked(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """What the final validators said of the claim: `complaints`, and `error` where one of them raised."""

    TAG, INPUT = "answer_checked", True
    validators: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    error: str = ""


class ToolCallsRequested(ModelOutput, frozen=True, kw_only=True, omit_defaults=True):
    """The model proposed calls; `text` is its commentary."""

    TAG, INPUT = "tool_calls_requested", True


class CallsChecked(FactBase, frozen=True, kw_only=True, omit_defaults=True):
    """What user code said of each call, in call order."""

    TAG, INPUT = "calls_checked", True
    checks: tuple[Check, ...]


# -- input facts: tools


class ToolSucceeded(CallFact, frozen=True, kw_only=True, omit_defaults=True):
    """A handler returned. `result` is what it gave, as JSON."""

    TAG, INPUT = "tool_succeeded", True
    result: Any
    source_ids: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    attempt: int = 1
    elapsed_us: int = 0


class ToolFailed(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An attempt ended without a result: `execution_failed`, `timeout`, `invalid_result` or `cancelled`. `performed` is whether the act took place."""

    TAG, INPUT = "tool_failed", True
    kind: Kind
    message: str
    error: str = ""
    retryable: bool = False
    performed: Literal["yes", "no", "unknown"] = "unknown"
    attempt: int = 1
    elapsed_us: int = 0


class DoubtResolved(CallFact, frozen=True, kw_only=True, omit_defaults=True):
    """A call in doubt was settled: it happened (with what result), it did not, or the model is told. `unknown` is the tool's own word that it cannot tell."""

    TAG, INPUT, OUTSIDE = "doubt_resolved", True, True
    verdict: Literal["happened", "did_not_happen", "tell_model", "unknown"]
    result: Any = None
    by: Literal["human", "reconcile"] = "human"
    who: str = ""
    command_id: str = ""


class LateOutcome(CallFact, frozen=True, kw_only=True, omit_defaults=True):
    """A handler that had been given up came back, or a tool was asked what became of a call and answered when a human had settled it; it changes nothing."""

    TAG, INPUT, OUTSIDE = "late_outcome", True, True
    outcome: str
    attempt: int = 1
    by: Literal["handler", "reconcile"] = "handler"
    command_id: str = ""


# -- input facts: people


class ApprovalGranted(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human allowed exactly what `digest` stands for, once."""

    TAG, INPUT, OUTSIDE = "approval_granted", True, True
    digest: Digest
    who: str
    command_id: str = ""


class ApprovalDenied(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human refused a call and said why."""

    TAG, INPUT, OUTSIDE = "approval_denied", True, True
    reason: str
    who: str
    command_id: str = ""


class ClarificationReceived(CallFact, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A human answered a question."""

    TAG, INPUT, OUTSIDE = "clarification_received", True, True
    text: str
    who: str
    command_id: str = ""


class CallSuperseded(CallFact, frozen=True, kw_only=True, omit_defaults=True):
    """A human allowed a call with other arguments; `check` is what user code said of those."""

    TAG, INPUT, OUTSIDE = "call_superseded", True, True
    check: Check
    who: str
    command_id: str = ""


class UserSaid(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A message to a run that is going on; the next request shows it."""

    TAG, INPUT, OUTSIDE = "user_said", True, True
    text: str
    who: str
    command_id: str = ""


class CompactionRequested(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Somebody wants older turns to be shown as a summary from the next request on."""

    TAG, INPUT, OUTSIDE = "compaction_requested", True, True
    who: str
    command_id: str = ""


class CancelRequested(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Somebody wants the run to end."""

    TAG, INPUT, OUTSIDE = "cancel_requested", True, True
    who: str
    reason: str = ""
    command_id: str = ""


class Sealed(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The head was signed: nothing before this is missing or was changed. `key` is the digest of the public key, `signature` base64url without padding."""

    TAG, INPUT = "sealed", True
    algorithm: str
    key: str
    signature: str


class Erased(FactBase, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The key of the run's content was destroyed."""

    TAG, INPUT = "erased", True
    who: str
    reason: str = ""
