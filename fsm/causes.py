"""Causes: why a record comes out otherwise, as far as the two records tell, and what to do about it. One table for each way of parting.

Apart from the replay, because this is knowledge of what each fact hangs on, and no part of deriving; pure, and each entry is a class, a sentence and a hint.
"""

import re
from typing import Final, Literal, NamedTuple, get_args

from refold.events import facts as f
from refold.events.codec import Record, data_of
from refold.events.words import Kind, Reason
from refold.fsm.calls import STOPPED

CauseClass = Literal["code", "context", "tool schema", "policy or limit", "adapter", "upcaster", "environment"]


class Cause(NamedTuple):
    """What class a divergence is of, why in a sentence, and what to do about it."""

    cause_class: CauseClass
    why: str
    hint: str = ""


RULES: Final = (
    "Where the change of the rules is meant, give them the next engine number (projections/revisions.py), so that older logs keep theirs; where not, undo it."
)
LIMITS: Final = f"The settings of the run are in its first record, so it is the code that decides by them: {RULES[0].lower()}{RULES[1:]}"
AGENT: Final = "Where this is meant, runs of before keep the verdicts they have and new ones get today's; where not, undo it, or name the agent that made the run with --agent."
RESTORE: Final = "Nothing can be derived from a log that is not what was written: see `refold audit`, and take the run from a backup or an export."
VERSION: Final = "Use the version of refold that wrote the log, or a newer one; a change of a stored fact needs an upcaster (events/codec.py) and a golden log."
ADAPTER: Final = (
    "Compare the provider's adapter with the one that wrote this; the log keeps what was taken then, and `refold fork` before it asks the model anew."
)


# -- two records at one position


def of(recorded: Record, derived: Record | None, field: str, older: Record | None = None) -> Cause:
    """Why two records differ, first in `field`. `older` is an input of their batch that had to be brought up to today's version, if there is one."""
    if derived is None or recorded.type != derived.type:
        cause = instead(recorded.fact, derived.fact if derived is not None else None)
        if older is None:
            return cause
        upcast = _upcast(older)
        return upcast if cause.cause_class == "code" else cause._replace(why=f"{cause.why}; or {upcast.why}")
    if not field.startswith("data"):
        return _envelope(field)
    if recorded.v != derived.v:
        return _upcast(recorded)
    if data_of(recorded.fact) == data_of(derived.fact):
        return Cause("upcaster", f"version {recorded.v} of {recorded.type} has no {field.removeprefix('data.')} in this version of refold", VERSION)
    if recorded.fact.INPUT:
        return said_again(recorded, derived.fact, field)
    return _upcast(older) if older is not None else same_fact(recorded.fact, derived.fact, field)


def _envelope(field: str) -> Cause:
    """What a record says around its fact: the place of it is the machine's, the rest was stamped on."""
    if field == "digest":
        return Cause("environment", "the stored bytes are not those that this version would have written", RESTORE)
    if field in ("from", "to", "turn", "call"):
        return Cause("code", "the machine's table of today leads elsewhere", RULES)
    if field == "run":
        return Cause("environment", "the record belongs to another run", RESTORE)
    return Cause("environment", f"the records of a batch have one stamp and one place, and the {field} of this one differs", RESTORE)


def _upcast(older: Record) -> Cause:
    today = older.fact.VERSION
    return Cause(
        "upcaster", f"{older.type} at {older.position} is of version {older.v}, and what it is brought to for version {today} leads elsewhere", VERSION
    )


# -- another fact


def instead(recorded: f.Fact | None, derived: f.Fact | None) -> Cause:
    """Why one fact follows in place of another; None where one of the two logs has none."""
    told = [(fact, _told(fact, other)) for fact, other in ((derived, recorded), (recorded, derived)) if fact is not None]
    telling, cause_class = next((each for each in told if each[1] != "code"), told[0])
    words = _detail(telling)
    match cause_class:
        case "policy or limit":
            return Cause(cause_class, f"a limit, or what the policy says, is decided otherwise{words}", LIMITS)
        case "context":
            return Cause(cause_class, "what requests show, or when older turns give way, is decided otherwise", RULES)
        case _ if derived is None:
            return Cause("code", f"{_name(recorded)} does not follow any more under the rules of today{words}", RULES)
        case _ if recorded is None or recorded.INPUT:
            return Cause("code", f"{_name(derived)} follows too under the rules of today{words}", RULES)
        case _:
            return Cause("code", f"the same inputs lead elsewhere under the rules of today{words}", RULES)


OF_SETTINGS: Final[frozenset[Reason | None]] = frozenset(get_args(Reason)) - {"provider", "validator", "cancelled", "no_evidence"}
"""Reasons that a setting decides about."""
OF_POLICY: Final[frozenset[Kind]] = frozenset(("limit_reached", "permission_denied", "approval_denied", "duplicate_action"))
"""Results that a setting or a policy decides about."""


def _told(fact: f.Fact, other: f.Fact | None) -> CauseClass:
    """Of what class it is that this fact follows, or does not any more, beside or in place of the other."""
    match fact:
        case f.RunStopped() | f.ApprovalRequested() | f.ApprovalExpired() | f.DuplicateActionBlocked() | f.ModelErrorObserved(kind="attempts_used_up"):
            return "policy or limit"
        case f.RunFailed(reason=reason) if reason in OF_SETTINGS:
            return "policy or limit"
        case f.ToolClosed(kind=kind) | f.ToolRejected(kind=kind) if kind in OF_POLICY:
            return "policy or limit"
        case f.ToolClosed(kind="cancelled", message=words) if words.startswith(STOPPED):
            return "policy or limit"
        case f.RetryScheduled() if isinstance(other, f.ToolClosed):  # how often a call is tried
            return "policy or limit"
        case f.ToolStarted() if other is None or other.INPUT:  # how many calls may run at once
            return "policy or limit"
        case f.ToolClosed(kind="in_doubt") if other is None:  # whom a doubt is put to
            return "policy or limit"
        case f.SummaryRequested():
            return "context"
        case f.ModelRequested() if other is None:  # a builder is to be asked first
            return "context"
        case _:
            return "code"


def _detail(fact: f.Fact | None) -> str:
    """What an end or a result says of itself."""
    match fact:
        case f.RunStopped(detail=words) | f.RunFailed(detail=words) | f.ToolClosed(message=words) | f.ToolRejected(message=words):
            return f": {words}"
        case f.DuplicateActionBlocked(message=words) | f.ModelErrorObserved(message=words) | f.ApprovalRequested(because=words):
            return f": {words}"
        case _:
            return ""


def _name(fact: f.Fact | None) -> str:
    return fact.TAG if fact is not None else "nothing"


# -- the same fact, derived otherwise


def same_fact(recorded: f.Fact, derived: f.Fact, field: str) -> Cause:
    """Why a derived fact says something else than it did."""
    name = field.removeprefix("data.").split(".")[0].split("[")[0]
    match derived:
        case f.ModelRequested() if name in ("wrap_up", "max_output_tokens"):
            return Cause("policy or limit", "what the budgets leave for the request is counted otherwise", LIMITS)
        case f.ModelRequested() if name == "estimated_input_tokens":
            return Cause("policy or limit", "what the request reads is estimated otherwise, and budgets are kept by that", LIMITS)
        case f.ModelRequested() if name == "digest":
            return Cause(
                "context",
                "the request would show the model something else",
                f"Compare with `refold show RUN --at N --prompt`: what it shows follows from what was said before it. {RULES}",
            )
        case f.SummaryRequested():
            return Cause("context", "what older turns give way to is chosen otherwise", RULES)
        case f.ToolStarted() if name == "key":
            return Cause("code", "the idempotency key is made otherwise", f"A call that is begun again under another key may act twice outside. {RULES}")
        case f.RetryScheduled() if name == "delay_us":
            return Cause("code", "how long a retry waits is reckoned otherwise", RULES)
        case f.ApprovalRequested() if name == "expires_at":
            return Cause("policy or limit", "how long an approval may be waited for is decided otherwise", LIMITS)
        case f.DuplicateActionBlocked() if name == "times":
            return Cause("policy or limit", "how often an action counts is decided otherwise", LIMITS)
        case _ if name in ("kind", "reason") and "policy or limit" in (_told(derived, recorded), _told(recorded, derived)):
            return Cause("policy or limit", f"a limit, or what the policy says, is decided otherwise{_detail(derived)}", LIMITS)
        case _ if _numbers_alone(_detail(recorded), _detail(derived)) and _told(derived, recorded) == "policy or limit":
            return Cause("policy or limit", f"a limit is counted otherwise{_detail(derived)}", LIMITS)
        case _:
            return Cause("code", f"the same inputs lead to another {name} under the rules of today", RULES)


def _numbers_alone(left: str, right: str) -> bool:
    """Whether two sentences say the same with other numbers."""
    return left != right and _NUMBER.sub("#", left) == _NUMBER.sub("#", right)


_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


# -- what was asked again


def said_again(recorded: Record, today: f.Fact, field: str) -> Cause:
    """Why the agent's code says something else than it did when it was asked in the run."""
    if recorded.v != today.VERSION:
        return _upcast(recorded)
    match recorded.fact, today:
        case f.CallsChecked() as old, f.CallsChecked():
            return _checked(old, today, field)
        case f.AnswerChecked(), f.AnswerChecked():
            failed = f": {today.error}" if today.error else ""
            return Cause("code", f"the agent's validators judge this answer otherwise{failed}", AGENT)
        case f.ContextChosen(), _:
            return Cause("context", "the agent's context builder chooses other turns", AGENT)
        case f.ContextCompacted(), _:
            return Cause("context", "the summary of the same turns is another", RULES)
        case f.RunStarted() | f.RunContinued(), _:
            return _declared(field)
        case _:
            return Cause("environment", f"nobody was asked again for {recorded.type}, and yet it differs", RESTORE)


def _declared(field: str) -> Cause:
    """How the agent of today begins otherwise."""
    name, _, rest = field.removeprefix("data.setup.").partition("]")
    match name.split("[")[0], rest.removeprefix("."):
        case "tools", "approval" | "timeout_s" | "retries":
            return Cause("policy or limit", "the agent's policy for this tool is another", AGENT)
        case "tools", _:
            return Cause("tool schema", "the agent declares its tools otherwise", AGENT)
        case "instructions" | "context_builder", _:
            return Cause("context", "the agent shows the model something else from the beginning", AGENT)
        case _:
            return Cause("code", "the agent holds answers to something else", AGENT)


BY_SCHEMA: Final[frozenset[Kind]] = frozenset(("unknown_tool", "invalid_arguments"))
BY_POLICY: Final = ("approval", "approval_reason", "retries", "timeout_s")


def _checked(recorded: f.CallsChecked, today: f.CallsChecked, field: str) -> Cause:
    """How a call is judged otherwise: by the first of name, arguments and policy that says something else."""
    place, _, name = field.removeprefix("data.checks[").partition("].")
    old, new = recorded.checks[int(place)], today.checks[int(place)]
    kinds = {old.kind, new.kind}
    if name in BY_POLICY or ("permission_denied" in kinds and not kinds & BY_SCHEMA):
        denied = f": {new.message}" if new.message else ""
        return Cause("policy or limit", f"the agent's policy says something else of this call{denied}", AGENT)
    if name == "key":
        return Cause(
            "code", "the tool's business key for these arguments is another", f"A call that is begun again under another key may act twice outside. {AGENT}"
        )
    refused = f": {new.message}" if new.message else ""
    return Cause("tool schema", f"the agent's tools take this call otherwise{refused}", AGENT)


# -- what the rules of today refuse


def illegal(record: Record | None, trigger: str, words: str) -> Cause:
    """Why the rules of today cannot make this move. `record` is the stored one at its position."""
    if record is not None and record.type == trigger and record.v != record.fact.VERSION:
        return _upcast(record)
    hint = f"`refold audit` says whether the record itself is legal. {RULES}"
    return Cause("code", f"under the rules of today {words}", hint)


def raised(error: Exception) -> Cause:
    """What today's rules raise over records whose chain holds: a mistake in the rules, unless somebody made up the records with their chain."""
    hint = f"Where no rule was changed, the record says what cannot be: see `refold audit`. {RULES}"
    return Cause("code", f"the rules of today raise {type(error).__name__} here: {error}", hint)


def refused(words: str) -> Cause:
    """Why the limits of today forbid a move that the rules make."""
    return Cause("policy or limit", words, LIMITS)


# -- what the record of a response contradicts itself in


def misread(recorded: Record, today: f.Fact) -> Cause:
    """Why the response that a fact holds is no such fact."""
    if recorded.v != recorded.fact.VERSION:
        return _upcast(recorded)
    if isinstance(today, f.ModelInterrupted):
        return Cause("adapter", f"this response would not be taken for {recorded.type} today: {today.detail}", ADAPTER)
    return Cause("adapter", f"what this response says of itself makes another {today.TAG} of it today", ADAPTER)


# -- what is stored


def missing(more: str = "") -> Cause:
    return Cause("environment", f"the record is missing from the log{more}", RESTORE)


def causeless(type_: str) -> Cause:
    return Cause("environment", f"the batch begins with {type_}, and the inputs that it follows from are missing from the log", RESTORE)


def orphaned(before: str) -> Cause:
    return Cause("environment", f"the fork names another parent, and the records before it are of run {before}", RESTORE)


def ended(type_: str) -> Cause:
    hint = f"Compare the head with one that was kept elsewhere (a seal, an export). {RULES}"
    return Cause(
        "environment", f"the log ends here, and {type_} follows from its last inputs: records were removed at its end, unless the rules now say more", hint
    )


def changed(what: str = "the stored bytes were changed after they were written, here or in the digest before") -> Cause:
    return Cause("environment", what, RESTORE)


def unread(words: str) -> Cause:
    return Cause("upcaster", f"what was written cannot be read by this version: {words}", VERSION)
