"""The invariants that count: what a run may use up, why it may end, and whether the counters are right.

They add up the records once more, by other code than the fold's, so that the two check each other.
"""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Final

import msgspec

from refold.events import facts as f
from refold.events.codec import Record, Stamp
from refold.events.settings import Policy
from refold.events.words import CallId, Reason
from refold.fsm import limits
from refold.fsm.calls import TOOL_ERRORS
from refold.fsm.history import NONE_YET, History, Settings, Sign, Signs, broken, in_force
from refold.fsm.repeats import NOTHING_DECIDED, decided, repeating
from refold.projections import forking
from refold.projections.revisions import rules_of
from refold.projections.run import Run

MILLION: Final = 1_000_000


class Sums(msgspec.Struct, kw_only=True):
    """What the records add up to so far."""

    turns: int = 0
    requests: int = 0
    attempt: int = 0
    compacted: int = 0
    """Compactions without which the open request could not be made again."""
    summary: f.Usage | None = None
    """What a request for a summary that has had no response is estimated at."""
    calls: int = 0
    started: dict[CallId, int] = {}
    """Attempts of the calls of the open turn."""
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    cost_usd: Fraction = Fraction(0)
    active_us: int = 0
    asked: bool = False
    """Whether a request has had no response."""
    lost: bool = False
    """Whether its process was."""
    estimate: int = 0
    price: f.Price | None = None
    settles: bool = False
    """Whether what is known of a stream counts under the run's rules, and what a lost request is estimated at."""
    reserves: bool = False
    on_the_way: f.Usage | None = None
    """What the open response reported so far."""
    streamed: int = 0
    """Bytes of it that were written down,"""
    since: int = 0
    """and those behind its last report."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.estimated_tokens


def count(sums: Sums, record: Record) -> None:
    """Add one record."""
    match record.fact:
        case f.RunStarted(setup=setup) | f.RunContinued(setup=setup):
            sums.price = setup.price
            sums.settles, sums.reserves = rules_of(setup.engine).settles, rules_of(setup.engine).reserves
        case f.DriverAttached(switched=switched):
            if sums.asked and not sums.lost:
                _book_lost(sums)
            if sums.summary is not None:  # asked for again, under its number
                _add(sums, sums.summary)
                sums.requests -= 1
                sums.summary = None
            sums.lost = sums.asked
            sums.price = switched.price if switched is not None else sums.price
        case f.RunForked(changes=changes):  # what was on its way is on its way elsewhere, and was asked for there
            sums.on_the_way, sums.streamed, sums.since = None, 0, 0
            sums.requests -= sums.summary is not None
            sums.summary, sums.lost = None, sums.asked
            sums.attempt = 1
            if forking.MODEL in changes:
                price = changes[forking.MODEL].get("price")
                sums.price = msgspec.convert(price, f.Price) if price is not None else None
        case f.ModelRequested(estimated_input_tokens=estimate):
            sums.requests += not sums.lost
            anew = record.source != "streaming_model"
            sums.turns += anew
            sums.attempt = 1 if anew else sums.attempt + (not sums.lost)
            sums.asked, sums.lost, sums.estimate = True, False, estimate
            if anew:
                sums.started, sums.compacted = {}, 0
        case f.UsageUpdated(usage=usage):
            sums.on_the_way, sums.since = usage, 0
        case f.StreamCheckpointed(usage=usage) as checkpoint:
            sums.streamed += _bytes(checkpoint)
            sums.since += _bytes(checkpoint)
            if usage is not None:
                sums.on_the_way, sums.since = usage, 0
        case f.ModelFailed() as failed:
            _book(sums, failed.usage, failed.unreported, _bytes(failed) if sums.settles else len(_encoded(failed.text)), failed.elapsed_us)
        case f.ToolCallsRequested() | f.FinalProposed() | f.ModelInterrupted() as output:
            unreported = output.unreported if isinstance(output, f.ModelInterrupted) else None
            said = _bytes(output) if sums.settles else sum(map(len, map(_encoded, (output.text, *(call.arguments_text for call in output.calls)))))
            _book(sums, output.usage, unreported, said, output.elapsed_us)
        case f.SummaryRequested(number=number, estimated_input_tokens=estimate):
            sums.requests += number is not None
            sums.summary = f.Usage(input_tokens=estimate, estimated=True) if number is not None else None
        case f.ContextCompacted(usage=usage, unreported=unreported, elapsed_us=elapsed_us):
            sums.compacted += record.source == "streaming_model"
            sums.summary = None
            sums.active_us += elapsed_us
            for each in (usage, unreported):
                if each is not None:
                    _add(sums, each)
        case f.ToolStarted(call=call):
            sums.calls += call not in sums.started
            sums.started[call] = sums.started.get(call, 0) + 1
        case f.ToolSucceeded(elapsed_us=elapsed_us) | f.ToolFailed(elapsed_us=elapsed_us):
            sums.active_us += elapsed_us
        case _:
            pass


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _bytes(fact: f.StreamCheckpointed | f.ModelFailed | f.ModelOutput) -> int:
    """How much a model wrote."""
    arguments = "".join(call.arguments_text for call in fact.calls)
    return len(_encoded(fact.text + fact.reasoning + arguments + getattr(fact, "refusal", "")))


def _book(sums: Sums, usage: f.Usage | None, unreported: f.Usage | None, said: int, elapsed_us: int) -> None:
    sums.asked = sums.lost = False
    sums.on_the_way, sums.streamed, sums.since = None, 0, 0
    sums.active_us += elapsed_us
    nothing = usage is not None and (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (0, 0, None)
    if sums.settles and nothing and said:
        usage = None
    if usage is None and unreported is None:
        unreported = f.Usage(input_tokens=sums.estimate, output_tokens=(said + 3) // 4, estimated=True, cost_usd=None if sums.settles else "0")
    for each in (usage, unreported):
        if each is not None:
            _add(sums, each)


def _book_lost(sums: Sums) -> None:
    """A request whose process is gone: at least what is known of it."""
    known = sums.on_the_way or f.Usage()
    read = max(sums.estimate, known.input_tokens)
    written = max((sums.streamed + 3) // 4, _written(known) + (sums.since + 3) // 4)
    sums.on_the_way, sums.streamed, sums.since = None, 0, 0
    if sums.settles:
        _add(sums, msgspec.structs.replace(known, input_tokens=read, output_tokens=written, reasoning_beside=False, estimated=True))


def _on_the_way(sums: Sums) -> Sums:
    """The sums with what the open response reported."""
    added = msgspec.structs.replace(sums)
    if sums.settles and sums.on_the_way is not None:
        _add(added, sums.on_the_way)
    return added


def _add(sums: Sums, usage: f.Usage) -> None:
    if usage.estimated:
        sums.estimated_tokens += usage.input_tokens + _written(usage)
    else:
        sums.input_tokens += usage.input_tokens
        sums.cached_input_tokens += usage.cached_input_tokens
        sums.output_tokens += _written(usage)
    sums.cost_usd += Fraction(usage.cost_usd) if usage.cost_usd is not None else _priced(usage, sums.price)


def _written(usage: f.Usage) -> int:
    return usage.output_tokens + usage.reasoning_beside * usage.reasoning_tokens


def _priced(usage: f.Usage, price: f.Price | None) -> Fraction:
    if price is None:
        return Fraction(0)
    fresh = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)
    classes = (
        (fresh, price.input),
        (usage.cached_input_tokens, price.cached_input or price.input),
        (usage.cache_write_tokens, price.cache_write or price.input),
        (_written(usage), price.output),
    )
    return sum((tokens * Fraction(each) for tokens, each in classes), Fraction(0)) / MILLION


# -- I4


def iterations_are_bounded(history: History) -> Signs:
    """Requests are numbered without a gap; turns, attempts and calls stay within what the run was given."""
    sums, settings = Sums(), NONE_YET
    retries: dict[CallId, int] = {}
    for record in history.records:
        settings = in_force(settings, record.fact)
        count(sums, record)
        match record.fact:
            case f.ModelRequested() as request:
                yield _bounded_request(record.position, request, sums, settings)
            case f.CallsChecked(checks=checks):
                retries = {check.call: check.retries for check in checks}
            case f.CallSuperseded(call=call, check=check):
                retries[call] = check.retries
            case f.DoubtResolved(call=call, verdict="did_not_happen"):
                retries[call] = retries.get(call, 0) + 1
            case f.ToolStarted(call=call, attempt=attempt):
                most = settings.budgets.max_tool_calls
                if attempt > retries.get(call, 0) + 1:
                    yield broken(record.position, f"{call}: attempt {attempt} at {record.position}, and {retries.get(call, 0) + 1} are allowed")
                elif most is not None and sums.calls > most:
                    yield broken(record.position, f"{call}: call {sums.calls} of {most} at {record.position}")
            case _:
                pass


def _bounded_request(position: int, request: f.ModelRequested, sums: Sums, settings: Settings) -> Sign:
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
    return Sign(position, words)


# -- I5


def ends_have_causes(history: History) -> Signs:
    """Every end but completion follows from something in the log, and a cancelled run makes no further request."""
    sums, settings = Sums(), NONE_YET
    causes: dict[Reason, str] = {}
    decisions = NOTHING_DECIDED
    errors = 0
    for record in history.records:
        settings = in_force(settings, record.fact)
        count(sums, record)
        decisions = decided(decisions, record.fact, settings.policy)
        errors = _errors(errors, record.fact)
        match record.fact:
            case f.RunForked():
                causes.pop("cancelled", None)
            case f.ModelRequested():
                if "cancelled" in causes:
                    yield broken(record.position, f"a request at {record.position}, and the run was {causes['cancelled']}")
                causes = {reason: words for reason, words in causes.items() if reason in ("cancelled", "max_tool_calls")}
            case f.RunStopped(reason=reason) | f.RunFailed(reason=reason) | f.RunCancelled(reason=reason):
                words = causes.get(reason) or _used_up(reason, history, record, sums, settings)
                if reason == "max_model_errors" and errors > settings.policy.max_model_errors:
                    words = f"{errors} turns in a row came to nothing"
                elif reason == "cycle" and (length := repeating(decisions, settings.policy)):
                    words = f"the last {length} decisions repeated"
                yield (
                    Sign(record.position, f"{reason} at {record.position}: {words}")
                    if words
                    else broken(record.position, f"{reason} at {record.position}, and nothing in the log says why")
                )
            case fact:
                if (cause := _cause(fact, record.position, settings.policy)) is not None:
                    causes[cause[0]] = cause[1]


def _errors(errors: int, fact: f.Fact) -> int:
    """Invalid turns in a row."""
    match fact:
        case f.ModelErrorObserved(kind=kind):
            return errors + (kind != "attempts_used_up")
        case f.CallsChecked() | f.FinalRejected():
            return 0
        case _:
            return errors


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
        case f.ToolClosed(kind=kind) if kind in TOOL_ERRORS and policy.on_tool_error == "stop":
            return "on_tool_error", f"{fact.call} ended as {kind} at {position}"
        case f.ToolRejected(kind="limit_reached"):
            return "max_tool_calls", f"{fact.call} was over the limit at {position}"
        case _:
            return None


def _used_up(reason: Reason, history: History, record: Record, sums: Sums, settings: Settings) -> str:
    """How much of a budget was spent, where it was all of it."""
    budgets = settings.budgets
    match reason:
        case "max_turns" if budgets.max_turns is not None and sums.turns >= budgets.max_turns:
            return f"{sums.turns} turns of {budgets.max_turns}"
        case "max_tokens" if budgets.max_tokens is not None:
            least = min(limits.OUTPUT_TOKENS_MIN, budgets.max_output_tokens)
            if budgets.max_tokens - sums.tokens - sums.estimate < least:
                return f"{sums.tokens} tokens of {budgets.max_tokens}"
            if _was_the_last(history, record):
                return f"{sums.tokens} tokens of {budgets.max_tokens}, and the last turn they allowed brought calls"
            return _by_the_fold(history, record, limits.tokens)
        case "max_cost_usd" if budgets.max_cost_usd is not None:
            if sums.cost_usd >= Fraction(budgets.max_cost_usd):
                return f"{_in_decimals(sums.cost_usd)} USD of {budgets.max_cost_usd}"
            if sums.reserves and sums.price is not None and _was_the_last(history, record):
                return f"{_in_decimals(sums.cost_usd)} USD of {budgets.max_cost_usd}, and the last turn they allowed brought calls"
            return _by_the_fold(history, record, limits.cost)
        case "timeout_s" if budgets.timeout_s is not None and sums.active_us >= limits.micros(budgets.timeout_s):
            return f"{sums.active_us} us of {budgets.timeout_s} s"
        case "window_tokens" if settings.context.window_tokens is not None:
            return _by_the_fold(history, record, limits.window)
        case "deadline" if budgets.deadline is not None and record.at >= limits.instant(budgets.deadline):
            return f"the deadline was {budgets.deadline}"
        case _:
            return ""


def _by_the_fold(history: History, record: Record, limit: Callable[[Run, Stamp], limits.Exceeded | None]) -> str:
    """What a limit says of the run: what its next request would have read is in no record, so here the fold has to be asked."""
    exceeded = limit(history.run, Stamp(at=record.at, driver=record.driver)) if history.folded_whole else None
    return exceeded.detail if exceeded is not None else ""


def _was_the_last(history: History, record: Record) -> bool:
    """Whether the turn before a record was asked for an answer alone."""
    requests = (earlier.fact for earlier in reversed(history.records) if earlier.position < record.position)
    return next((fact.wrap_up for fact in requests if isinstance(fact, f.ModelRequested)), False)


# -- I12


def counters_are_sums(history: History) -> Signs:
    """Turns, tokens, money, time and calls, added up again from the records, are what the records and the fold say."""
    sums, settings = Sums(), NONE_YET
    asked: f.ModelRequested | None = None
    for record in history.records:
        settings = in_force(settings, record.fact)
        before = msgspec.structs.replace(sums)
        count(sums, record)
        if isinstance(record.fact, f.RunForked):
            asked = None
        if record.turn != sums.turns:
            yield broken(record.position, f"the record at {record.position} is of turn {record.turn}, and {sums.turns} were begun")
        if isinstance(record.fact, f.ModelRequested) and (record.source != "streaming_model" or sums.reserves):
            allowed = _allowed(before, record.fact, settings)
            if record.source == "streaming_model" and asked is not None:
                allowed = min(allowed, asked.max_output_tokens)
            asked = record.fact
            if asked.max_output_tokens != allowed:
                yield broken(
                    record.position,
                    f"request at {record.position} may write {asked.max_output_tokens} tokens; after {before.tokens} tokens it would be {allowed}",
                )
    if history.folded_whole and history.records:
        yield from _compared(history, _on_the_way(sums))


def _allowed(before: Sums, request: f.ModelRequested, settings: Settings) -> int:
    """Tokens that a request may write after what was spent before it."""
    budgets, price, reads = settings.budgets, before.price, request.estimated_input_tokens
    rooms: list[int | Fraction] = [budgets.max_output_tokens]
    if settings.context.window_tokens is not None:
        rooms.append(settings.context.window_tokens - reads)
    if budgets.max_tokens is not None:
        rooms.append(budgets.max_tokens - before.tokens - reads)
    if before.reserves and price is not None and budgets.max_cost_usd is not None:
        dearest = max(Fraction(each) for each in (price.input, price.cache_write, price.cached_input) if each is not None)
        left = Fraction(budgets.max_cost_usd) - before.cost_usd - reads * dearest / MILLION
        if Fraction(price.output):
            rooms.append(left * MILLION / Fraction(price.output))
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
        "USD": (sums.cost_usd, Fraction(spent.cost_usd)),
        "us of active time": (sums.active_us, spent.active_us),
    }
    for what, (added, kept) in folded.items():
        if added != kept:
            yield broken(at, f"{what}: the events add up to {_in_decimals(added)}, the counter says {_in_decimals(kept)}")
        elif added:
            yield Sign(at, f"{what}: {_in_decimals(added)}")


def _in_decimals(amount: int | Fraction) -> str:
    return str(amount) if isinstance(amount, int) else format(Decimal(amount.numerator) / amount.denominator, "f")
