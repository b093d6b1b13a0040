"""Why a response ended: the words of every provider and what they mean.

Apart from the adapters, because gateways pass the words of one API on through another: one table serves all, and a word that is in none of its rows is `unknown`.
"""

from typing import Final

from refold.events.words import StopReason

STOPS: Final[dict[str, StopReason]] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
    "pause_turn": "pause",
    "model_context_window_exceeded": "context_overflow",
}
BROKEN: Final = frozenset({"error", "insufficient_system_resource", "abort", "cancelled"})
"""Reasons to stop that are none: the server gave up."""


def meaning(word: str, *, calls: bool = False) -> StopReason:
    """What a word means; with `calls`, a plain stop is one for them: many servers do not say so."""
    stop = STOPS.get(word, "unknown")
    return "tool_calls" if stop == "stop" and calls else stop
