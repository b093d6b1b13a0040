"""The invariants that count: what a run may use up, why it may end, and whether the counters are right."""

from collections.abc import Callable
from fractions import Fraction
from math import floor

from refold.events import facts as f
from refold.events.codec import Record, Stamp
from refold.events.money import exact, shown
from refold.events.settings import Budgets, Policy
from refold.events.words import CallId, Reason
from refold.fsm import limits
from refold.fsm.calls import TOOL_ERRORS
from refold.fsm.decisions import repeating
from refold.fsm.history import History, Settings, Sign, Signs, broken
from refold.fsm.sums import MILLION, Sums, on_the_way
from refold.projections.run import Run

# -- I4


def iterations_are_bounded(history: History) -> Signs:
    """Requests are numbered without a gap; turns, attempts and calls stay within what the run was given, and nothing is begun once tokens, money or time are used up."""
    sums = history.sums
    retries: dict[CallId, int] = {}
    while (record := (yield None)) is not None:
        match record.fact:
            case f.ModelRequested() as request:
                yield _bounded_request(record, request, sums, history.settings)
            case f.ToolStarted(call=call, attempt=attempt):
                most = history.settings.budgets.max_tool_calls
                if attempt > retries.get(call, 0) + 1:
                    yield broken(record.position, f"{call}: attempt {attempt} at {record.position}, and {retries.get(call, 0) + 1} are allowed")
                elif most is not None and sums.calls > most and sums.started[call] == 1:  # what was begun before may be begun again
                    yield broken(record.position, f"{call}: call {sums.calls} of {most} at {record.position}")
                elif spent := _spent(sums, history.settings.budgets, record.at):
                    yield broken(record.position, f"{call}: started at {record.position}, after {', '.join(spent.values())}")
            case f.CallsChecked(checks=checks):
                retries = {check.call: check.retries for check in checks}
            case f.CallSuperseded(call=call, check=check):
                retries[call] = check.retries
            case f.DoubtResolved(call=call, verdict="did_not_happen"):
                retries[call] = retries.get(call, 0) + 1
            case _:
                pass


def _bounded_request(record: Record, request: f.ModelRequested, sums: Sums, settings: Settings) -> Sign:
    position = record.position
    words = f"turn {sums.turns}: request {request.number} at {position}"
    if request.number != sums.requests:
        return broken(position, f"{words}, which is the {sums.requests}. of the run")
    if request.attempt != sums.attempt:
        return broken(position, f"{words} is called attempt {request.attempt}, and is attempt {sums.attempt}")
    allowed = settings.policy.max_provider_retries + 1 + sums.compacted
    if sums.attempt > allowed:
        return broken(position, f"{words} is attempt {sums.attempt}, and {allowed} are allowed")
    most = settings.budgets.max_turns
    if most is not None and sums.turns > most:
        return broken(position, f"{words}, and {most} turns are allowed")
    if spent := _spent(sums, settings.budgets, record.at):
        return broken(position, f"{words}, after {', '.join(spent.values())}")
    return Sign(position, words)


def _spent(sums: Sums, budgets: Budgets, at: int) -> dict[Reason, str]:
    """What is used up of tokens, money and time, and how much that was."""
    found: dict[Reason, str] = {}
    if budgets.max_tokens is not None and sums.tokens >= budgets.max_tokens:
        found["max_tokens"] = f"{sums.tokens} tokens of {budgets.max_tokens}"
    if budgets.max_cost_usd is not None and sums.cost_usd >= exact(budgets.max_cost_usd):
        found["max_cost_usd"] = f"{_in_decimals(sums.cost_usd)} USD of {budgets.max_cost_usd}"
    if budgets.timeout_s is not None and sums.active_us >= limits.micros(budgets.timeout_s):
        found["timeout_s"] = f"{sums.active_us} us of {budgets.timeout_s} s"
    if budgets.deadline is not None and at >= limits.instant(budgets.deadline):
        found["deadline"] = f"the deadline {budgets.deadline}"
    return found


# -- I5


def ends_have_causes(history: History) -> Signs:
    """Every end but completion follows from something in the log, and a cancelled run makes no further request."""
    causes: dict[Reason, str] = {}
    errors = 0  # invalid turns in a row
    while (record := (yield None)) is not None:
        policy = history.settings.policy
        match record.fact:
            case f.CallsChecked():
                errors = 0
            case f.RunForked():
                causes.pop("cancelled", None)
            case f.ModelRequested():
                if "cancelled" in causes:
                    yield broken(record.position, f"a request at {record.position}, and the run was {causes['cancelled']}")
                causes = {reason: words for reason, words in causes.items() if reason in ("cancelled", "max_tool_calls")}
            case f.RunStopped(reason=reason) | f.RunFailed(reason=reason) | f.RunCancelled(reason=reason):
                if reason == "on_tool_error" and policy.on_tool_error != "stop":
                    causes.pop(reason, None)
                words = causes.get(reason) or _used_up(reason, history, record)
                if reason == "max_model_errors" and errors > policy.max_model_errors:
                    words = f"{errors} turns in a row came to nothing"
                elif reason == "cycle" and (length := repeating(history.decisions, policy)):
                    words = f"the last {length} decisions repeated"
                yield (
                    Sign(record.position, f"{reason} at {record.position}: {words}")
                    if words
                    else broken(record.position, f"{reason} at {record.position}, and nothing in the log says why")
                )
            case fact:
                if isinstance(fact, f.ModelErrorObserved):
                    errors += fact.kind != "attempts_used_up"
                elif isinstance(fact, f.FinalRejected):
                    errors = 0
                if (cause := _cause(fact, record.position, policy)) is not None:
                    causes[cause[0]] = cause[1]


def _cause(fact: f.Fact, position: int, policy: Policy) -> tuple[Reason, str] | None:
    """For what end this fact is a reason."""
    match fact:
        case f.CancelRequested(who=who):
            return "cancelled", f"cancelled by {who} at {position}"
        case f.ModelFailed(error=error) if not error.retryable or error.overflow:
            return "provider", f"{error.type} at {position}"
        case f.ModelErrorObserved(kind="attempts_used_up"):
            return "max_provider_retries", f"the attempts were used up at {position}"
        case f.ModelInterrupted(cause="overflow"):
            return "provider", f"more than the model can read at {position}"
        case f.ModelInterrupted(cause="limit", limit=limit):
            return limit or "timeout_s", f"the response was cut at {position}"
        case f.ModelInterrupted(cause="filtered") | f.FinalProposed(stop_reason="refusal"):
            return "refusal", f"withheld at {position}"
        case f.FinalProposed(refusal=refusal) if refusal:
            return "refusal", f"declined at {position}"
        case f.FinalRejected(because="validator_failed"):
            return "validator", f"a validator failed at {position}"
        case f.ToolClosed(kind=kind) if kind in TOOL_ERRORS:
            return "on_tool_error", f"{fact.call} ended as {kind} at {position}"
        case f.ToolRejected(kind="limit_reached"):
            return "max_tool_calls", f"{fact.call} was over the limit at {position}"
        case _:
            return None


def _used_up(reason: Reason, history: History, record: Record) -> str:
    """How much of a budget was spent, where it was all of it."""
    sums, settings = history.sums, history.settings
    budgets = settings.budgets
    if (spent := _spent(sums, budgets, record.at).get(reason)) is not None:
        return spent
    match reason:
        case "max_turns" if budgets.max_turns is not None and sums.turns >= budgets.max_turns:
            return f"{sums.turns} turns of {budgets.max_turns}"
        case "max_tokens" if budgets.max_tokens is not None:
            least = min(limits.OUTPUT_TOKENS_MIN, budgets.max_output_tokens)
            if budgets.max_tokens - sums.tokens - sums.estimate < least:
                return f"{sums.tokens} tokens of {budgets.max_tokens}"
            if _was_the_last(history):
                return f"{sums.tokens} tokens of {budgets.max_tokens}, and the last turn they allowed brought calls"
            return _by_the_fold(history, record, limits.tokens)
        case "max_cost_usd" if budgets.max_cost_usd is not None:
            if sums.reserves and sums.price is not None and _was_the_last(history):
                return f"{_in_decimals(sums.cost_usd)} USD of {budgets.max_cost_usd}, and the last turn they allowed brought calls"
            return _by_the_fold(history, record, limits.cost)
        case "window_tokens" if settings.context.window_tokens is not None:
            return _by_the_fold(history, record, limits.window)
        case _:
            return ""


def _by_the_fold(history: History, record: Record, limit: Callable[[Run, Stamp], limits.Exceeded | None]) -> str:
    """What a limit says of the run: what its next request would have read is in no record, so here the fold has to be asked."""
    exceeded = limit(history.run, Stamp(at=record.at, driver=record.driver)) if history.folded else None
    return exceeded.detail if exceeded is not None else ""


def _was_the_last(history: History) -> bool:
    """Whether the turn before a record was asked for an answer alone."""
    return history.request is not None and history.request.wrap_up


# -- I12


def counters_are_sums(history: History) -> Signs:
    """Turns, tokens, money, time and calls, added up again from the records, are what the records and the fold say."""
    sums = history.sums
    asked: f.ModelRequested | None = None
    while (record := (yield None)) is not None:
        if isinstance(record.fact, f.RunForked):
            asked = None
        if record.turn != sums.turns:
            yield broken(record.position, f"the record at {record.position} is of turn {record.turn}, and {sums.turns} were begun")
        if isinstance(record.fact, f.ModelRequested) and (record.source != "streaming_model" or sums.reserves):
            allowed = _allowed(history.before, record.fact, history.settings)
            if record.source == "streaming_model" and asked is not None:
                allowed = min(allowed, asked.max_output_tokens)
            asked = record.fact
            if asked.max_output_tokens != allowed:
                yield broken(
                    record.position,
                    f"request at {record.position} may write {asked.max_output_tokens} tokens; after {history.before.tokens} tokens it would be {allowed}",
                )
    if history.folded and history.last is not None:
        yield from _compared(history, on_the_way(sums))


def _allowed(before: Sums, request: f.ModelRequested, settings: Settings) -> int:
    """Tokens that a request may write after what was spent before it."""
    budgets, price, reads = settings.budgets, before.price, request.estimated_input_tokens
    rooms: list[int | Fraction] = [budgets.max_output_tokens]
    if settings.context.window_tokens is not None:
        rooms.append(settings.context.window_tokens - reads)
    if budgets.max_tokens is not None:
        rooms.append(budgets.max_tokens - before.tokens - reads)
    if before.reserves and price is not None and budgets.max_cost_usd is not None:
        dearest = max(exact(each) for each in (price.input, price.cache_write, price.cached_input) if each is not None)
        left = exact(budgets.max_cost_usd) - before.cost_usd - reads * dearest / MILLION
        if exact(price.output):
            rooms.append(left * MILLION / exact(price.output))
        elif left < 0:
            rooms.append(0)
    return max(0, floor(min(rooms)))


def _compared(history: History, sums: Sums) -> Signs:
    run, at = history.run, history.run.position
    spent = run.spent
    folded: dict[str, tuple[int | Fraction, int | Fraction]] = {
        "turns": (sums.turns, run.turn),
        "requests": (sums.requests, run.number),
        "tool calls": (sums.calls, spent.tool_calls),
        "input tokens": (sums.input_tokens, spent.reported.input_tokens),
        "cached input tokens": (sums.cached_input_tokens, spent.reported.cached_input_tokens),
        "output tokens": (sums.output_tokens, spent.reported.output_tokens),
        "estimated tokens": (sums.estimated_tokens, spent.estimated.total),
        "USD": (sums.cost_usd, exact(spent.cost_usd)),
        "us of active time": (sums.active_us, spent.active_us),
    }
    for what, (added, kept) in folded.items():
        if added != kept:
            yield broken(at, f"{what}: the events add up to {_in_decimals(added)}, the counter says {_in_decimals(kept)}")
        elif added:
            yield Sign(at, f"{what}: {_in_decimals(added)}")


def _in_decimals(amount: int | Fraction) -> str:
    return str(amount) if isinstance(amount, int) else shown(amount)
