"""Other settings laid over those that a run began with, and which of them, or of the agent's code, is to blame for a decision.

Apart from what the decisions are, because here they are only put into words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from typing import Any, Final, NamedTuple

import msgspec

from refold.events import facts as f
from refold.events.settings import Context
from refold.events.words import CallId
from refold.fsm.guards import ASK_USER
from refold.fsm.limits import Exceeded
from refold.projections.excerpts import READ_RESULT

Settings = Mapping[str, Any]
"""Values by path, such as `budgets.max_turns`, as they are recorded."""
NEVER_LAID_OVER: Final = ("policy.parallel_tools",)
"""It says when calls run, and not what comes of them: the order that was recorded stays."""


class Setting(NamedTuple):
    """A setting that is another one than the run had."""

    path: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.path}={_short(self.now)} (was {_short(self.was)})"


def _short(value: Any) -> str:
    return "none" if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# -- other settings


def laid_over(setup: f.Setup, settings: Settings) -> f.Setup:
    """A setup with other settings."""
    parts: dict[str, Any] = {"budgets": setup.budgets, "policy": setup.policy, "context": setup.context}
    for path, value in settings.items():
        section, _, name = path.partition(".")
        if path not in NEVER_LAID_OVER:
            parts[section] = with_fields(parts[section] or Context(), **{name: value})
    return msgspec.structs.replace(setup, **parts)


def changed(setup: f.Setup, settings: Settings) -> tuple[Setting, ...]:
    """The settings that are others than the run began with."""
    made = []
    for path, value in settings.items():
        section, _, name = path.partition(".")
        was = getattr(getattr(setup, section) or Context(), name)
        if was != value:
            made.append(Setting(path, was, value))
    return tuple(made)


def forked(fact: f.RunForked, settings: Settings) -> f.RunForked:
    """A fork's own changes, but for what is set here."""
    return msgspec.structs.replace(fact, changes={path: settings.get(path, value) for path, value in fact.changes.items()})


def check_under(check: f.Check, name: str, setup: f.Setup, settings: Sequence[Setting]) -> f.Check:
    """What was said of a call, with the attempts and the time that another policy grants where its tool leaves that open."""
    tool = next((tool for tool in setup.tools if tool.name == name), None)
    paths = {setting.path for setting in settings}
    if tool is None or check.kind != "success" or name == ASK_USER:
        return check
    if "policy.max_tool_retries" in paths and tool.retries is None:
        check = msgspec.structs.replace(check, retries=setup.policy.max_tool_retries)
    if "policy.tool_timeout_s" in paths and tool.timeout_s is None:
        check = msgspec.structs.replace(check, timeout_s=setup.policy.tool_timeout_s)
    return check


# -- what the result leans on


def assumptions(was: f.Setup, now: f.Setup, settings: Sequence[Setting]) -> Iterator[str]:
    """What is taken for granted about settings whose whole effect no recording tells."""
    paths = {setting.path for setting in settings}
    if paths & {"budgets.max_turns", "budgets.max_tool_calls", "budgets.max_tokens"}:
        yield "the words about the budget that is left, with which requests end, change nothing by themselves"
    if _cuts(was.context) != _cuts(now.context):
        yield f"that {READ_RESULT} is offered or not, which goes with such a context, changes nothing, neither by what it says nor by its length"
    if "policy.model_idle_timeout_s" in paths:
        yield "the model was never silent for longer than the new policy.model_idle_timeout_s, which no recording tells"
    if "policy.parallel_tools" in paths:
        yield "calls give the same whenever they run: policy.parallel_tools decides only when"
    for path in ("policy.max_stuck_threads", "policy.unknown_price"):
        if path in paths:
            yield f"{path} would have let the run begin and its tools run, which no recording tells"


def _cuts(context: Context | None) -> bool:
    """Whether results may be shown in part, so that there is something to read on in."""
    return context is not None and (context.window_tokens is not None or context.observation_bytes is not None)


# -- who is to blame


def blamed(names: Sequence[str], settings: Sequence[Setting], told: str) -> str:
    """The settings among those that differ whose names fit; else the agent's code, where it said something else; else every setting that differs."""
    fitting = _fitting(names, settings)
    if fitting or not told:
        return " and ".join(map(str, fitting or settings)) or "the rules of today"
    return told


def _fitting(names: Sequence[str], settings: Sequence[Setting]) -> list[Setting]:
    return [setting for setting in settings if setting.path.partition(".")[2] in names]


def of_facts(
    derived: Sequence[f.Fact], recorded: f.Fact | None, settings: Sequence[Setting], closing: Exceeded | None = None
) -> tuple[tuple[str, ...], str, str]:
    """Names of the settings that may lead from the recorded fact to the derived ones, the code of the reason, and its words.

    An end says most, also one that there was; but where none of the settings that differ leads to it, the first fact speaks for itself.
    `closing` is the limit that lets no call begin there, which is what closed one, whatever the run ends by.
    """
    first = derived[0] if derived else None
    if isinstance(first, f.ToolClosed) and first.kind == "limit_reached" and closing is not None:
        return (closing.reason,), closing.reason, first.message
    if isinstance(recorded, f.ModelRequested) and (first is None or isinstance(first, f.ModelRequested)):
        return _SHOWN if first is None or first.wrap_up == recorded.wrap_up else _LAST if first.wrap_up else _NOT_LAST
    ending = next((fact for fact in (*derived, recorded) if isinstance(fact, f.Ending)), None)
    told = [found for fact in (ending, first, recorded) if fact is not None and (found := _of_fact(fact)) is not None]
    if told:
        own = (each for each in told if _fitting(each[0], settings))
        return told[0] if ending is None or ending is recorded else next(own, told[0])
    named = ending or recorded or first
    assert named is not None
    return (), named.TAG, ""


_USED_UP: Final = ("max_tool_calls", "max_turns", "max_tokens", "max_cost_usd", "timeout_s", "deadline", "wrap_up")
_WINDOW: Final = ("window_tokens", "compact_at", "keep_turns", "compaction", "observation_bytes", "relevant_turns")
_LAST: Final = (_USED_UP, "wrap_up", "it is the last turn, for the answer alone")
_NOT_LAST: Final = (_USED_UP, "wrap_up", "it is not the last turn")
_SHOWN: Final = (_WINDOW, "context", "the request shows something else")
_BY_REASON: Final[Mapping[str, tuple[str, ...]]] = {
    "cycle": ("cycle_lengths", "cycle_repeats"),
    "refusal": ("on_refusal",),
    "max_provider_retries": ("max_provider_retries", "max_retry_wait_s"),
}


def _of_fact(fact: f.Fact) -> tuple[tuple[str, ...], str, str] | None:
    match fact:
        case f.RunStopped() | f.RunFailed():
            return _BY_REASON.get(fact.reason, (fact.reason,)), fact.reason, fact.detail
        case f.ToolRejected(kind="limit_reached", message=message):
            return _USED_UP, "limit_reached", message
        case f.ToolRejected(kind=kind, message=message):
            return (), kind, message
        case f.DuplicateActionBlocked(message=message):
            return ("max_duplicate_actions", "cycle_lengths", "cycle_repeats"), "duplicate_action", message
        case f.RetryScheduled(call=None, because=because) | f.ModelErrorObserved(kind="attempts_used_up", message=because):
            return ("max_provider_retries", "max_retry_wait_s"), "max_provider_retries", because
        case f.RetryScheduled(because=because):
            return ("max_tool_retries",), "max_tool_retries", because
        case f.ModelErrorObserved(kind=kind, message=message):
            return ("on_refusal",), kind, message
        case f.FinalRejected(because=because, complaints=complaints):
            return ("on_refusal",), "validator" if complaints else because, "; ".join(complaints)
        case f.ToolClosed(kind="in_doubt", message=message) | f.ToolInDoubt(message=message):
            return ("on_doubt", "max_tool_retries"), "in_doubt", message
        case f.ToolClosed(kind="timeout", message=message):
            return ("tool_timeout_s", "max_tool_retries", "on_tool_error"), "timeout", message
        case f.ToolClosed(kind=kind, message=message):
            return ("max_tool_retries", "on_tool_error", *_USED_UP), kind, message
        case f.ApprovalExpired():
            return ("approval_expiry_s",), "approval_expiry_s", "nobody approved the call in time"
        case f.SummaryRequested():
            return _WINDOW, "compaction", "older turns give way to a summary"
        case f.ModelRequested(wrap_up=last):
            return _LAST if last else _SHOWN
        case _:
            return None


# -- what the agent's code says today


def said_otherwise(given: f.Input, today: f.Input) -> str:
    """What the agent's code says today where it said something else; empty where it says the same."""
    if given == today:
        return ""
    match today:
        case f.RunStarted() | f.RunContinued() if isinstance(given, f.RunStarted | f.RunContinued):
            names = [name for name in ("instructions", "tools", "validators", "answer_schema", "context_builder") if _declares_otherwise(name, given, today)]
            return f"the agent's {' and '.join(names)}"
        case f.AnswerChecked():
            return f"the agent's validators {', '.join(today.validators) or '(none)'}, which {'reject' if today.complaints or today.error else 'accept'} this answer today"
        case f.ContextChosen(builder=builder):
            return f"the agent's context builder {builder}"
        case _:
            return "what refold itself makes of this today"


def said_of_calls(given: f.CallsChecked, today: f.CallsChecked) -> dict[CallId, str]:
    """The same of each call of which the agent's tools say something else."""
    return {new.call: f"the agent's tools, which {_said(old, new)} today" for old, new in zip(given.checks, today.checks, strict=True) if old != new}


def _said(old: f.Check, new: f.Check) -> str:
    if old.kind != new.kind or new.kind != "success":
        return f"say {new.kind} of {new.call}"
    if old.approval != new.approval:
        return f"want {new.call} to be approved" if new.approval else f"let {new.call} run"
    return f"say something else of {new.call}"


def _declares_otherwise(name: str, given: f.RunStarted | f.RunContinued, today: f.RunStarted | f.RunContinued) -> bool:
    return bool(getattr(given.setup, name) != getattr(today.setup, name))
