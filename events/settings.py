"""Budgets, policy and context of a run, as they are recorded.

Plain frozen dataclasses: the core reads them without knowing who checked them, and the shell's pydantic classes inherit the fields and add the checks.
"""

from dataclasses import dataclass
from typing import Literal

Seconds = int | float
"""A whole number stays one, so that what is read back is written the same again; never NaN or infinite."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """What a run may use up; `None` is no limit. A budget is used up when spent >= limit.

    `max_cost_usd` is a decimal string, `timeout_s` active time (measured effects only), `deadline` an absolute time in RFC 3339.
    """

    max_turns: int | None = 12
    max_tool_calls: int | None = 48
    max_tokens: int | None = 200_000
    max_cost_usd: str | None = "1"
    timeout_s: Seconds | None = 120
    deadline: str | None = None
    max_output_tokens: int = 4_096


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How the runtime answers what happens; times in seconds."""

    on_tool_error: Literal["observe", "stop"] = "observe"
    max_tool_retries: int = 1
    max_model_errors: int = 2
    max_provider_retries: int = 4
    max_retry_wait_s: Seconds = 120
    max_duplicate_actions: int = 1
    cycle_lengths: tuple[int, ...] = (1, 2, 3)
    cycle_repeats: int = 3
    on_refusal: Literal["stop", "observe"] = "stop"
    on_doubt: Literal["tell_model", "ask"] = "tell_model"
    on_taint: Literal["ask", "allow", "deny", "hide"] = "ask"
    parallel_tools: int = 4
    approval_expiry_s: Seconds | None = None
    tool_timeout_s: Seconds | None = 60
    model_idle_timeout_s: Seconds | None = 60
    wrap_up: bool = True
    max_result_bytes: int = 16_777_216
    unknown_price: Literal["refuse", "free"] = "refuse"
    max_stuck_threads: int = 4


@dataclass(frozen=True, kw_only=True)
class Context:
    """What requests show of a run; `None` is no limit.

    `window_tokens` is what the model can read and write in one request. At `compact_at` percent of it older turns are shown as a summary, which `compaction` makes;
    the latest `keep_turns` turns stay as they are, fewer where they would take half of that. A result longer than `observation_bytes` is shown by an excerpt.
    With `relevant_turns` only so many of the turns before the latest are shown: those with most in common with the goal and the latest decisions.
    """

    window_tokens: int | None = None
    observation_bytes: int | None = None
    compact_at: int = 80
    keep_turns: int = 3
    compaction: Literal["off", "extractive", "model"] = "extractive"
    relevant_turns: int | None = None
