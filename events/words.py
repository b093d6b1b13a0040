"""The closed vocabularies: every word that a record, the machine or the command line may use for a state, a kind or a reason.

Apart from the facts, because people and programs match on these words; a word is added here first and is never given another meaning.
"""

from typing import Final, Literal, NewType

RunId = NewType("RunId", str)
"""`[A-Za-z0-9][A-Za-z0-9._-]{0,63}`."""
CallId = NewType("CallId", str)
"""A call by its place: `t3.2` is the second call of the third turn."""
Digest = NewType("Digest", str)
"""SHA-256 as base64url without padding, 43 characters."""

State = Literal["idle", "streaming_model", "collecting_tool_requests", "executing_tools", "injecting_tool_results", "done"]
STATES: Final[tuple[State, ...]] = ("idle", "streaming_model", "collecting_tool_requests", "executing_tools", "injecting_tool_results", "done")

Status = Literal["running", "waiting_for_user", "completed", "stopped", "failed", "cancelled"]
"""A projection, never a state of the machine."""

Effect = Literal["read", "idempotent", "side_effect"]
"""What a tool declares about its handler: harmless, repeatable under one key, or neither."""

Kind = Literal[
    "success",
    "unknown_tool",
    "invalid_arguments",
    "permission_denied",
    "approval_denied",
    "duplicate_action",
    "limit_reached",
    "execution_failed",
    "timeout",
    "cancelled",
    "in_doubt",
    "invalid_result",
]
"""The result of a call."""

Owner = Literal["model", "capability", "policy", "application", "provider", "human"]
"""Whose doing a result is, so that "the agent failed" is never the diagnosis."""

OWNERS: Final[dict[Kind, Owner]] = {
    "success": "capability",
    "unknown_tool": "model",
    "invalid_arguments": "model",
    "permission_denied": "policy",
    "approval_denied": "human",
    "duplicate_action": "model",
    "limit_reached": "policy",
    "execution_failed": "capability",
    "timeout": "capability",
    "cancelled": "human",
    "in_doubt": "capability",
    "invalid_result": "application",
}

StopReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "context_overflow", "pause", "unknown"]
"""Why a provider's response ended, mapped; the provider's own word is kept beside it."""

Reason = Literal[
    "max_turns",
    "max_tool_calls",
    "max_tokens",
    "max_cost_usd",
    "timeout_s",
    "deadline",
    "max_model_errors",
    "max_provider_retries",
    "on_tool_error",
    "cycle",
    "refusal",
    "provider",
    "validator",
    "cancelled",
    "no_evidence",
    "at_limit",
    "window_tokens",
]
"""Why a run ended as it did, beyond its status."""
