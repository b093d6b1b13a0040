"""When two decisions differ: by what the model, a tool or a human sees of them, and where live effects would have ended otherwise than they did.

Apart from walking through a recording, because these are questions about two runs at one place: the one that was, and the one that would have been.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from refold.events import facts as f
from refold.events.codec import Stamp
from refold.events.words import CallId, Reason
from refold.fsm import limits
from refold.fsm.compaction import choosable, chooses
from refold.fsm.effects import ChooseContext, pending
from refold.projections import context
from refold.projections.messages import encode, tokens_of
from refold.projections.prefix import start
from refold.projections.run import Run
from refold.projections.spending import said_in

Verdict = Literal[
    "unaffected",
    "would stop earlier",
    "would ask a human",
    "would be rejected",
    "would show the model something else",
    "would go on",
    "would act otherwise",
    "cannot be told",
]
"""`would go on` where the recorded run, call or response ended, was refused or waited; `would act otherwise` where none of the others says it; `cannot be told` where it is for the model to say."""


class Otherwise(NamedTuple):
    """A difference: the field of the fact, both values, and what may have caused it: names of settings, the code of the reason, and words."""

    verdict: Verdict
    field: str
    recorded: Any
    derived: Any
    settings: tuple[str, ...]
    code: str
    words: str = ""


# -- what a decision means

UNSEEN: Final[Mapping[type[f.Derived], frozenset[str]]] = {
    f.ModelRequested: frozenset(("number", "digest", "max_output_tokens", "estimated_input_tokens", "delay_us")),
    f.SummaryRequested: frozenset(("number", "estimated_input_tokens")),
    f.RetryScheduled: frozenset(("delay_us", "because")),
    f.DuplicateActionBlocked: frozenset(("times",)),
    f.ApprovalRequested: frozenset(("digest", "because", "expires_at")),
    f.ToolStarted: frozenset(("delay_us",)),
    f.ToolInDoubt: frozenset(("message",)),
    f.RunCompleted: frozenset(("answer_at", "detail")),
    f.RunStopped: frozenset(("detail",)),
    f.RunFailed: frozenset(("detail",)),
    f.RunCancelled: frozenset(("detail",)),
}
"""Fields that are for the books alone: what they bring about shows where it does."""
TOLD: Final[Mapping[type[f.Derived], frozenset[str]]] = {
    f.ToolRejected: frozenset(("kind", "message")),
    f.DuplicateActionBlocked: frozenset(("message",)),
    f.ToolClosed: frozenset(("kind", "message")),
    f.FinalRejected: frozenset(("because", "complaints")),
    f.ModelErrorObserved: frozenset(("kind", "message")),
}
"""What the model is told: it counts once a request shows it, which none does where the run ends."""


def differs(was: Run, now: Run, recorded: f.Fact, derived: f.Derived) -> str | None:
    """The field by which a derived fact means something else than the recorded one, each behind its run; None where both mean the same."""
    if type(recorded) is not type(derived):
        return "type"
    unseen = UNSEEN.get(type(derived), frozenset())
    for name in derived.__struct_fields__:
        if name not in unseen and getattr(recorded, name) != getattr(derived, name):
            return name if name == "call" else f"data.{name}"
    if isinstance(recorded, f.ModelRequested) and isinstance(derived, f.ModelRequested):
        if not _shows_the_same(was, now, recorded, derived):
            return "data.digest"
        if was.begun.answer_schema != now.begun.answer_schema:
            return "answer_schema"  # it is sent, and no digest covers it
    return None


def only_told(derived: f.Derived, field: str) -> bool:
    """Whether a field is for the model alone."""
    return field.removeprefix("data.") in TOLD.get(type(derived), ())


def _shows_the_same(was: Run, now: Run, recorded: f.ModelRequested, derived: f.ModelRequested) -> bool:
    """Whether two requests show the model the same. Under old rules a digest covers more than is shown, so that what is shown is looked at instead."""
    if was.rules.chains:
        return recorded.digest == derived.digest
    if was.state == "streaming_model":
        return True
    bare = recorded.wrap_up
    return context.news(was) == context.news(now) and start(was.begun, bare=bare) == start(now.begun, bare=bare)


# -- what the world would have said


def chosen(was: Run, now: Run, fact: f.ContextChosen, *, asked: bool) -> Otherwise | None:
    """A choice of older turns that our own builder would have made otherwise; one of the agent's code is known only when that is `asked`."""
    if asked or was.begun.context_builder or (_choice(was) == _choice(now)):
        return None
    if not fact.left_out and _left_out(now) == 0:
        return None
    settings = ("relevant_turns", "keep_turns")
    return Otherwise("would show the model something else", "data.left_out", list(fact.left_out), f"({_left_out(now)} turns)", settings, "context")


def _choice(run: Run) -> tuple[bool, tuple[int, ...], int | None]:
    """Between what a builder chooses, and how many turns it may show."""
    return (True, choosable(run), run.context.relevant_turns) if run.context is not None and chooses(run) else (False, (), None)


def _left_out(run: Run) -> int:
    chooses_now, turns, most = _choice(run)
    return max(0, len(turns) - most) if chooses_now and most is not None else 0


def shows_everything(run: Run) -> bool:
    """Whether our own builder, asked now, would leave out nothing."""
    return not run.begun.context_builder and chooses(run) and _left_out(run) == 0


class Began(NamedTuple):
    """When an attempt of a call began: the time, and the active time of the run until then."""

    at: int
    active_us: int


def heard(was: Run, now: Run, fact: f.Input, stamp: Stamp, began: Mapping[CallId, Began]) -> Otherwise | None:
    """What the effect behind an input fact would have come to instead, told from the runs behind it."""
    match fact:
        case f.UsageUpdated() | f.StreamCheckpointed():
            return _cut(was, now, stamp, ("max_tokens", "max_cost_usd"))
        case f.ModelInterrupted(cause="limit", limit=limit) if limit in LIMITS:
            return _cut_already(was, now, fact, limit, stamp)
        case f.FinalProposed() | f.ToolCallsRequested() | f.ModelInterrupted() | f.ModelFailed():
            return _cut(was, now, stamp, OF_TIME) or _length(was, now, fact) or _silence(was, now, fact)
        case f.ToolSucceeded() | f.ToolFailed():
            return _outcome(was, now, fact, began.get(fact.call))
        case _:
            return None


LIMITS: Final = {"max_tokens": limits.spent_tokens, "max_cost_usd": limits.spent_cost, "timeout_s": limits.active_time, "deadline": limits.deadline}
"""What a response is held against while it streams."""
OF_TIME: Final[tuple[Reason, ...]] = ("timeout_s", "deadline")
"""Those of them that every effect is held against."""


def _cut(was: Run, now: Run, stamp: Stamp, names: tuple[Reason, ...]) -> Otherwise | None:
    """A stream that would have been cut by a limit, and the run stopped."""
    for name in names:
        exceeded = LIMITS[name](now, stamp)
        if exceeded is not None and LIMITS[name](was, stamp) is None:
            return Otherwise("would stop earlier", "type", None, "run_stopped", (name,), name, f"{exceeded.detail} while the model answers")
    return None


def _cut_already(was: Run, now: Run, fact: f.ModelInterrupted, limit: Reason, stamp: Stamp) -> Otherwise | None:
    """A response that was cut by a limit: it would have been by another one, or not there."""
    if (late := _cut(was, now, stamp, OF_TIME)) is not None:
        return late._replace(verdict="would act otherwise", field="data.limit", recorded=limit, derived=late.code)
    if getattr(was.budgets, limit) == getattr(now.budgets, limit):
        return _length(was, now, fact)
    spared = LIMITS[limit](now, stamp) is None
    return Otherwise("would go on", "data.cause", "limit", None, (limit,), limit, "the response would not have been cut there") if spared else None


OUTPUT: Final = ("max_output_tokens", "max_tokens", "max_cost_usd", "window_tokens")
"""What limits the output of a request."""


def _length(was: Run, now: Run, output: f.ModelOutput | f.ModelFailed) -> Otherwise | None:
    """A response under another limit of its length. That is only asked for: whether it is kept is for the model to say, and a script never does."""
    assert was.request is not None
    assert now.request is not None
    allowed, allows = was.request.max_output_tokens, now.request.max_output_tokens
    written = output.usage.written if output.usage is not None and output.usage.written else tokens_of(said_in(output))
    field, ended = ("data.stop_reason", output.stop_reason) if isinstance(output, f.ModelOutput) else ("type", None)
    if allows < allowed and written > allows:
        words = f"of the response of {written} tokens only {allows} would have been asked for, and it is for the model to say whether it would have ended there"
    elif allows > allowed and ended == "length":
        words = f"the response was cut at its length, and it is for the model to say how it would have gone on with {allows} tokens instead of {allowed}"
    else:
        return None
    return Otherwise("cannot be told", field, ended, None, OUTPUT, "length", words)


def _silence(was: Run, now: Run, output: f.ModelOutput | f.ModelFailed) -> Otherwise | None:
    """A model that was given up for its silence, and would have been waited for longer."""
    silent = isinstance(output, f.ModelFailed) and output.error.type == "idle_timeout"
    if not silent or not _longer(was.policy.model_idle_timeout_s, now.policy.model_idle_timeout_s):
        return None
    return Otherwise(
        "would go on", "data.error.type", "idle_timeout", None, ("model_idle_timeout_s",), "idle_timeout", "the model would have been waited for longer"
    )


def _outcome(was: Run, now: Run, fact: f.ToolSucceeded | f.ToolFailed, began: Began | None) -> Otherwise | None:
    """A call that would have been given up, or waited for; a result that would have been too large, or taken."""
    before, after = _time_for(was, fact.call, began), _time_for(now, fact.call, began)
    shows: Verdict = "would show the model something else"
    if isinstance(fact, f.ToolFailed) and fact.kind == "timeout":
        return _waited_for(before) if _longer(before.us, after.us) else None
    if after.us is not None and _longer(after.us, before.us) and fact.elapsed_us > after.us:
        words = f"the call took {fact.elapsed_us / 1_000_000:g} s and would have been given up after {after.us / 1_000_000:g} s"
        ends = after.name in OF_TIME
        code = after.name if ends else "timeout"
        return Otherwise("would stop earlier" if ends else shows, "type", fact.TAG, "tool_failed", (after.name,), code, words)
    allowed, allows = was.policy.max_result_bytes, now.policy.max_result_bytes
    if isinstance(fact, f.ToolSucceeded) and allows < allowed and (size := len(encode(fact.result))) > allows:
        words = f"the result has {size:,} bytes"
        return Otherwise(shows, "type", fact.TAG, "tool_failed", ("max_result_bytes",), "invalid_result", words)
    if isinstance(fact, f.ToolFailed) and fact.error == "TooLarge" and allows > allowed:
        return Otherwise(shows, "data.error", "TooLarge", None, ("max_result_bytes",), "invalid_result", "a larger result would have been taken")
    return None


def given_up_sooner(was: Run, now: Run, fact: f.ToolFailed, began: Began | None) -> f.ToolFailed:
    """A call that was given up, told as it would have been after a shorter time."""
    before, after = _time_for(was, fact.call, began), _time_for(now, fact.call, began)
    if before.us is None or after.us is None or after.us >= before.us:
        return fact
    message = fact.message.replace(f"within {before.us / 1_000_000:g} s", f"within {after.us / 1_000_000:g} s", 1)
    return msgspec.structs.replace(fact, message=message)


def _waited_for(before: "Time") -> Otherwise:
    """A call that was given up, where there would have been more time."""
    code = before.name if before.name in OF_TIME else "timeout"
    return Otherwise("would go on", "data.kind", "timeout", None, (before.name,), code, "the call would have been waited for longer")


class Time(NamedTuple):
    """What a call may take, and the setting that says so; None is for ever."""

    us: int | None
    name: str


def _time_for(run: Run, call_id: CallId, began: Began | None) -> Time:
    """Its own time, or what active time and deadline left when it began."""
    call, budgets = run.call(call_id), run.budgets
    ends: list[tuple[int, str]] = []
    if call is not None and call.check is not None and call.check.timeout_s is not None:
        ends.append((limits.micros(call.check.timeout_s), "tool_timeout_s"))
    if began is not None and budgets.timeout_s is not None:
        ends.append((limits.micros(budgets.timeout_s) - began.active_us, "timeout_s"))
    if began is not None and budgets.deadline is not None:
        ends.append((limits.instant(budgets.deadline) - began.at, "deadline"))
    return Time(*min(ends, default=(None, "tool_timeout_s")))


def _longer(before: float | None, after: float | None) -> bool:
    """Whether the second time is the longer one; None is for ever."""
    return before is not None and (after is None or after > before)


# -- what a difference comes to

REFUSALS: Final = (f.ToolRejected, f.DuplicateActionBlocked, f.ApprovalExpired, f.FinalRejected)
GIVEN_UP: Final = (*REFUSALS, f.Ending, f.ToolClosed, f.ModelErrorObserved)
CONTEXT: Final = (f.ModelRequested, f.SummaryRequested)


def comes_to(recorded: f.Fact | None, derived: f.Derived | None, ended: f.Fact | None, ending: f.Ending | None, now: Run) -> Verdict:
    """What a difference comes to. `ended` and `ending` are the ends that the two runs come to at once, where they do."""
    if ending is not None and not isinstance(recorded, f.Ending):
        return "would stop earlier" if ended is None else "would act otherwise"
    if derived is None:
        return "would show the model something else" if waits_for_builder(now) else "would ask a human"
    if isinstance(recorded, REFUSALS) and isinstance(derived, REFUSALS):
        before = _earlier(recorded, derived, now)
        return "would show the model something else" if before is None else "would be rejected" if before is derived else "would go on"
    if type(recorded) is type(derived):
        return "would show the model something else" if not isinstance(derived, (f.Ending, f.ToolStarted)) else "would act otherwise"
    if isinstance(derived, REFUSALS) and not isinstance(recorded, (*REFUSALS, f.RunStopped, f.RunFailed)):
        return "would be rejected"
    if (recorded is None or isinstance(recorded, GIVEN_UP)) and ending is None:
        return "would go on"
    if isinstance(derived, (*CONTEXT, *REFUSALS, f.ToolClosed)) or isinstance(recorded, CONTEXT):
        return "would show the model something else"
    return "would act otherwise"


def _earlier(recorded: f.Fact, derived: f.Fact, now: Run) -> f.Fact | None:
    """Which of two facts is about the earlier call; None where they are not about two."""
    places = {call.id: place for place, call in enumerate(now.calls)}
    old, new = (places.get(getattr(fact, "call", None) or CallId("")) for fact in (recorded, derived))
    if old is None or new is None or old == new:
        return None
    return recorded if old < new else derived


def is_last_turn(now: Run, derived: f.Derived | None) -> bool:
    """Whether a request is for the answer alone, and no other one can follow."""
    most = now.budgets.max_turns
    return isinstance(derived, f.ModelRequested) and derived.wrap_up and most is not None and now.turn + (now.state != "streaming_model") >= most


def ends_the_same(ended: f.Fact | None, ending: f.Ending) -> bool:
    return type(ended) is type(ending) and getattr(ended, "reason", None) == ending.reason


def waits_for_builder(run: Run) -> bool:
    return any(isinstance(effect, ChooseContext) for effect in pending(run))
