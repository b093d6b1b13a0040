"""`Run`: what decisions read, folded from the facts, and no more.

Small on purpose: state, counters, the open turn in full, one small entry for each past message. Contents stay in the log; deciding, checking a log and showing one all fold it here.
"""

from typing import Any, Literal, assert_never

import msgspec

from refold.events import facts as f
from refold.events import money
from refold.events.chain import NOTHING, digest_of
from refold.events.settings import Budgets, Policy
from refold.events.words import CallId, Digest, Kind, Reason, RunId, State, Status
from refold.projections.growing import Growing, Index
from refold.projections.messages import Message, MessageCall, assistant, encode, failure, is_repeatable, quoted, size_of, user

Phase = Literal["proposed", "accepted", "waiting", "ready", "started", "unknown", "failed", "retrying", "doubt", "closed"]
"""Where a call is. `waiting` for a human, `ready` once allowed; `unknown` when its driver was lost, `failed` when an attempt ended and what follows is not decided yet."""
Asked = Literal["no", "yes", "lost", "failed", "retrying", "answered"]
"""Where the open request is: made, lost with its process, failed, to be made again, answered."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    pass


class Call(_Struct, frozen=True, kw_only=True):
    """A call of the open turn."""

    id: CallId
    proposed: f.ProposedCall
    check: f.Check | None = None
    phase: Phase = "proposed"
    attempt: int = 0
    delay_us: int = 0
    question: str = ""
    approval: Digest | None = None
    """The digest that a human is shown."""
    because: str = ""
    expires_at: int | None = None
    since: int = 0
    grant: Digest | None = None
    started: f.ToolStarted | None = None
    """The latest attempt."""
    failed: f.ToolFailed | None = None
    notes_left: tuple[f.Note, ...] = ()
    kind: Kind | None = None
    content: Any = None
    source_ids: tuple[str, ...] = ()
    performed: Literal["yes", "no", "unknown"] = "no"

    @property
    def name(self) -> str:
        return self.proposed.name

    @property
    def open(self) -> bool:
        return self.phase != "closed"


class Turn(_Struct, frozen=True, kw_only=True):
    """The open turn: what the model said and what became of it. `closed` once its results or its rejection are in."""

    output: f.ModelOutput
    position: int
    calls: tuple[Call, ...] = ()
    checked: bool = False
    verdict: f.AnswerChecked | None = None
    wrap_up: bool = False
    """Whether the request was for an answer alone."""
    closed: f.Fact | None = None


class Tokens(_Struct, frozen=True, kw_only=True):
    """Sums of tokens."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


class Spent(_Struct, frozen=True, kw_only=True):
    """What the run has used up: exact sums over its events. `active_us` sums measured effects; waiting and dead time do not count."""

    reported: Tokens = Tokens()
    estimated: Tokens = Tokens()
    cost_usd: str = "0"
    active_us: int = 0
    tool_calls: int = 0
    model_errors: int = 0
    """Invalid turns in a row."""
    retry_wait_us: int = 0
    """Waited for retries of the open request."""

    @property
    def tokens(self) -> int:
        return self.reported.total + self.estimated.total


class Driver(_Struct, frozen=True, kw_only=True):
    """Who drives."""

    epoch: int
    who: str
    host: str
    pid: int
    since: int


class Entry(_Struct, frozen=True, kw_only=True):
    """A past message: where its content is, how large, what kind."""

    position: int
    size: int
    kind: str


class Write(_Struct, frozen=True, kw_only=True):
    """A successful action that may have changed something, and its place in the order of actions."""

    signature: Digest
    place: int


class Run(_Struct, frozen=True, kw_only=True):
    """The state of a run after some position."""

    id: RunId
    position: int = 0
    at: int = 0
    head: Digest = NOTHING
    state: State = "idle"
    goal: str = ""
    setup: f.Setup | None = None
    parent: RunId | None = None
    started_at: int = 0
    epoch: int = 0
    driver: Driver | None = None
    turn: int = 0
    number: int = 0
    """Requests so far, attempts included."""
    request: f.ModelRequested | None = None
    """The request that is open, until its turn is closed."""
    asked: Asked = "no"
    failure: f.ModelFailed | None = None
    open: Turn | None = None
    fresh: tuple[Message, ...] = ()
    """Messages that no request has shown yet, in full."""
    unheard: tuple[str, ...] = ()
    """What the user said since; shown behind the results."""
    prefix: Digest = NOTHING
    """The digest of the last request: of everything it showed."""
    size: int = 0
    """Bytes of all messages that were shown."""
    entries: Growing[Entry] = msgspec.field(default_factory=Growing)
    spent: Spent = Spent()
    actions: Index = msgspec.field(default_factory=Index)
    """Successful actions by signature."""
    last_write: Write | None = None
    other_write: Write | None = None
    """The last write by another action than `last_write`."""
    counted_from: int = 0
    """Actions up to this place are forgotten: the user spoke after them."""
    decisions: tuple[Digest, ...] = ()
    """The latest decisions since the user spoke, no more than the longest cycle needs."""
    told_limit: int = 0
    """The turn in which the model was first told that it may not call any more."""
    delay_us: int = 0
    """What the next attempt of the open request waits."""
    sources: Index = msgspec.field(default_factory=Index)
    """Documents and parts that tools read, by id."""
    commands: Index = msgspec.field(default_factory=Index)
    """Commands from outside by their id."""
    cancel: f.CancelRequested | None = None
    ended: f.Ending | None = None

    @property
    def status(self) -> Status:
        match self.ended:
            case f.RunCompleted():
                return "completed"
            case f.RunStopped():
                return "stopped"
            case f.RunFailed():
                return "failed"
            case f.RunCancelled():
                return "cancelled"
            case None:
                return "waiting_for_user" if self.waits else "running"
            case _:
                assert_never(self.ended)

    @property
    def waits(self) -> bool:
        """Whether only a human can move the run."""
        if self.state != "executing_tools" or self.cancel is not None:
            return False
        phases = {call.phase for call in self.calls}
        return bool(phases & {"waiting", "doubt"}) and not phases & {"accepted", "ready", "started", "unknown", "failed", "retrying"}

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.open.calls if self.open is not None else ()

    @property
    def reason(self) -> Reason | None:
        return self.ended.reason if self.ended is not None else None

    @property
    def detail(self) -> str:
        return self.ended.detail if self.ended is not None else ""

    @property
    def budgets(self) -> Budgets:
        return self.begun.budgets

    @property
    def policy(self) -> Policy:
        return self.begun.policy

    @property
    def begun(self) -> f.Setup:
        """The setup of a run that has begun."""
        assert self.setup is not None, "the run has not begun"
        return self.setup

    def call(self, call_id: str) -> Call | None:
        """The call of the open turn with this id."""
        return next((call for call in self.calls if call.id == call_id), None)


replace = msgspec.structs.replace


def evolve(run: Run, fact: f.Fact, *, target: State, at: int, head: Digest = NOTHING) -> Run:
    """The run after one more fact; `target` is the state that its row of the table leads to."""
    position = run.position + 1
    after = replace(_changed(run, fact, position, at), position=position, at=at, head=head, state=target)
    command = getattr(fact, "command_id", "")
    return replace(after, commands=after.commands.add(command, position)) if command else after


def _changed(run: Run, fact: f.Fact, position: int, at: int) -> Run:
    """What a fact changes beside place and state; the frequent ones first."""
    match fact:
        case f.ToolStarted():
            return _started(run, fact)
        case f.ToolSucceeded():
            return _succeeded(run, fact, position)
        case f.ToolResultsInjected():
            return _injected(run, fact)
        case f.ModelRequested():
            return _requested(run, fact, position)
        case f.ToolCallsRequested():
            calls = tuple(Call(id=call.id, proposed=call) for call in fact.calls)
            return _answered(run, fact, Turn(output=fact, position=position, calls=calls))
        case f.CallsChecked():
            return _checked(run, fact)
        case f.ToolCallsAccepted():
            accepted = set(fact.calls)
            return _with_calls(run, [replace(c, phase="accepted") if c.id in accepted else c for c in run.calls])
        case f.ToolFailed():
            failed = _update(run, fact.call, phase="failed", failed=fact, performed=fact.performed)
            return replace(failed, spent=_active(failed.spent, fact.elapsed_us))
        case f.RetryScheduled():
            if fact.call is not None:
                return _update(run, fact.call, phase="retrying", delay_us=fact.delay_us)
            waited = replace(run.spent, retry_wait_us=run.spent.retry_wait_us + fact.delay_us)
            return replace(run, asked="retrying", delay_us=fact.delay_us, spent=waited)
        case f.ToolRejected():
            return _told(_close(run, fact.call, fact.kind, failure(fact.kind, fact.message)), fact.kind)
        case f.DuplicateActionBlocked():
            return _close(run, fact.call, "duplicate_action", failure("duplicate_action", fact.message))
        case f.ToolClosed():
            return _close(run, fact.call, fact.kind, failure(fact.kind, fact.message))
        case f.FinalProposed() | f.ModelInterrupted():
            return _answered(run, fact, Turn(output=fact, position=position))
        case f.AnswerChecked():
            assert run.open is not None
            return replace(run, open=replace(run.open, verdict=fact))
        case f.FinalRejected() | f.ModelErrorObserved():
            return _turned_down(run, fact)
        case f.ModelFailed():
            return replace(_booked(run, fact.usage, fact.elapsed_us, fact.text), asked="failed", failure=fact)
        case f.UsageUpdated() | f.StreamCheckpointed():
            return run
        case f.ApprovalRequested():
            return _update(run, fact.call, phase="waiting", approval=fact.digest, because=fact.because, expires_at=fact.expires_at, since=at)
        case f.ClarificationRequested():
            return _update(run, fact.call, phase="waiting", question=fact.question, since=at)
        case f.ApprovalGranted():
            return _update(run, fact.call, phase="ready", grant=fact.digest)
        case f.ApprovalDenied():
            return _close(run, fact.call, "approval_denied", failure("approval_denied", fact.reason))
        case f.ApprovalExpired():
            return _close(run, fact.call, "approval_denied", failure("approval_denied", "nobody approved this call in time"))
        case f.ClarificationReceived():
            return _close(run, fact.call, "success", fact.text)
        case f.CallSuperseded():
            return _update(run, fact.call, phase="ready", check=fact.check, grant=fact.check.digest)
        case f.ToolInDoubt():
            return _update(run, fact.call, phase="doubt", performed="unknown", because=fact.message, since=at)
        case f.DoubtResolved():
            return _resolved(run, fact)
        case f.NoteStored():
            call = run.call(fact.call)
            assert call is not None
            return _update(run, fact.call, notes_left=call.notes_left[1:])
        case f.RunStarted():
            return _begun(replace(run, goal=fact.goal, fresh=(user(fact.goal),)), fact.setup, at)
        case f.RunContinued():
            return _begun(replace(run, parent=fact.parent, unheard=(fact.message,) if fact.message else ()), fact.setup, at)
        case f.RunForked():
            return replace(run, parent=fact.parent)
        case f.DriverAttached():
            return _attached(run, fact, at)
        case f.DriverDetached():
            return replace(run, driver=None)
        case f.UserSaid():
            return replace(run, unheard=(*run.unheard, fact.text), counted_from=len(run.actions), decisions=())
        case f.CancelRequested():
            return replace(run, cancel=run.cancel or fact)
        case f.RunCompleted() | f.RunStopped() | f.RunFailed() | f.RunCancelled():
            return _ended(run, fact)
        case f.ContextChosen() | f.ContextCompacted() | f.LateOutcome() | f.Sealed() | f.Erased():
            return run
        case _:
            assert_never(fact)


def _begun(run: Run, setup: f.Setup, at: int) -> Run:
    """Instructions and tools are the first bytes of every request: their digest and size are where the prefix begins."""
    first = encode((setup.instructions, setup.tools))
    return replace(run, setup=setup, started_at=at, prefix=digest_of(first), size=len(first))


# -- the request and the response


def _requested(run: Run, fact: f.ModelRequested, position: int) -> Run:
    if run.state == "streaming_model":  # another attempt, or the same request after its process was lost
        return replace(run, request=fact, number=fact.number, asked="yes", failure=None)
    shown = (*run.fresh, *(user(text) for text in run.unheard))
    entries = run.entries.add(*(Entry(position=position, size=size_of((message,)), kind=message.kind or message.role) for message in shown))
    return replace(
        run,
        turn=run.turn + 1,
        number=fact.number,
        request=fact,
        asked="yes",
        failure=None,
        open=None,
        fresh=(),
        unheard=(),
        prefix=fact.digest,
        size=run.size + sum(entries[n].size for n in range(len(run.entries), len(entries))),
        entries=entries,
        spent=replace(run.spent, retry_wait_us=0) if run.spent.retry_wait_us else run.spent,
    )


def _answered(run: Run, output: f.ModelOutput, turn: Turn) -> Run:
    said = output.text + "".join(call.arguments_text for call in output.calls)
    if run.request is not None and run.request.wrap_up:
        turn = replace(turn, wrap_up=True)
    return replace(_booked(run, output.usage, output.elapsed_us, said), asked="answered", open=turn)


def _booked(run: Run, usage: f.Usage | None, elapsed_us: int, said: str) -> Run:
    """Tokens, money and time of one response: as the provider reported them, else estimated and apart."""
    spent = _active(run.spent, elapsed_us)
    if usage is None:
        read = run.request.estimated_input_tokens if run.request is not None else 0
        estimated = _plus(spent.estimated, f.Usage(input_tokens=read, output_tokens=-(-len(said.encode("utf-8", "replace")) // 4)))
        return replace(run, spent=replace(spent, estimated=estimated))
    cost = usage.cost_usd if usage.cost_usd is not None else _price(run, usage)
    cost = money.add(spent.cost_usd, cost) if cost != "0" else spent.cost_usd
    if usage.estimated:
        return replace(run, spent=replace(spent, estimated=_plus(spent.estimated, usage), cost_usd=cost))
    return replace(run, spent=replace(spent, reported=_plus(spent.reported, usage), cost_usd=cost))


def _price(run: Run, usage: f.Usage) -> str:
    """What the recorded prices make of it; each class of tokens once."""
    price = run.setup.price if run.setup is not None else None
    if price is None:
        return "0"
    plain = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens
    total = money.per_million(plain, price.input)
    total = money.add(total, money.per_million(usage.cached_input_tokens, price.cached_input or price.input))
    total = money.add(total, money.per_million(usage.cache_write_tokens, price.cache_write or price.input))
    return money.add(total, money.per_million(usage.output_tokens, price.output))


def _plus(tokens: Tokens, usage: f.Usage) -> Tokens:
    return Tokens(
        input_tokens=tokens.input_tokens + usage.input_tokens,
        cached_input_tokens=tokens.cached_input_tokens + usage.cached_input_tokens,
        output_tokens=tokens.output_tokens + usage.output_tokens,
    )


def _active(spent: Spent, elapsed_us: int) -> Spent:
    return replace(spent, active_us=spent.active_us + elapsed_us) if elapsed_us else spent


def _turned_down(run: Run, fact: f.FinalRejected | f.ModelErrorObserved) -> Run:
    """The turn came to nothing: what it said stays in the transcript, followed by what the model is told."""
    errors, failure = run.spent.model_errors, None
    if isinstance(fact, f.FinalRejected):
        told, errors = rejection(fact), 0
        run = _decided(run, answer_signature(run.open.output)) if run.open is not None else run
    else:
        told, errors, failure = _told_of_error(fact), errors + (fact.kind != "attempts_used_up"), run.failure
    output = run.open.output if run.open is not None else None
    said = assistant(output.text or output.refusal, output.opaque) if output is not None else ()
    turn = replace(run.open, closed=fact) if run.open is not None else None
    fresh = (*run.fresh, *said, *((user(told),) if told else ()))
    return replace(run, fresh=fresh, open=turn, request=None, asked="no", failure=failure, spent=replace(run.spent, model_errors=errors))


def _told_of_error(fact: f.ModelErrorObserved) -> str:
    return "" if fact.kind == "attempts_used_up" else fact.message


def rejection(fact: f.FinalRejected) -> str:
    """What the model is told of a claim that does not stand; nothing where a message of the user came first."""
    match fact.because:
        case "user_said":
            return ""
        case "length":
            return "Your answer was cut off at the output limit. Answer again, shorter."
        case "refusal":
            return "You declined. If a part of the task can be done, do that part; otherwise say what cannot be done and why."
        case "validator_failed" | "complaints":
            return "Your answer was not accepted:\n" + "\n".join(f"- {complaint}" for complaint in fact.complaints)


def answer_signature(output: f.ModelOutput) -> Digest:
    """A claim as a decision: what was said, without commentary."""
    return signature_of(["answer", output.text, output.refusal])


# -- calls


def _checked(run: Run, fact: f.CallsChecked) -> Run:
    assert run.open is not None
    checks = {check.call: check for check in fact.checks}
    calls = tuple(replace(call, check=checks.get(call.id)) for call in run.open.calls)
    after = replace(run, open=replace(run.open, calls=calls, checked=True), spent=replace(run.spent, model_errors=0) if run.spent.model_errors else run.spent)
    if all(check.repeatable for check in fact.checks):
        return after
    return _decided(after, signature_of(["calls", *(check.signature for check in fact.checks)]))


def _decided(run: Run, signature: Digest) -> Run:
    policy = run.policy
    kept = max(policy.cycle_lengths, default=0) * policy.cycle_repeats
    return replace(run, decisions=(*run.decisions, signature)[-kept:] if kept else ())


def _started(run: Run, fact: f.ToolStarted) -> Run:
    call = run.call(fact.call)
    assert call is not None
    after = _update(run, fact.call, phase="started", attempt=fact.attempt, started=fact, grant=None, performed="unknown")
    if call.attempt:
        return after
    return replace(after, spent=replace(after.spent, tool_calls=after.spent.tool_calls + 1))


def _succeeded(run: Run, fact: f.ToolSucceeded, position: int) -> Run:
    after = _update(run, fact.call, phase="closed", kind="success", content=fact.result, source_ids=fact.source_ids, performed="yes", notes_left=fact.notes)
    after = replace(after, spent=_active(after.spent, fact.elapsed_us))
    call = after.call(fact.call)
    assert call is not None
    if call.check is not None:
        after = acted(after, call.check)
    for source in fact.source_ids:
        if source not in after.sources:
            after = replace(after, sources=after.sources.add(source, position))
    return after


def acted(run: Run, check: f.Check) -> Run:
    """An action took place: count it, and remember it as a write unless it only reads."""
    place = len(run.actions) + 1
    after = replace(run, actions=run.actions.add(check.signature, place))
    if check.effect == "read":
        return after
    other = run.last_write if run.last_write is not None and run.last_write.signature != check.signature else run.other_write
    return replace(after, last_write=Write(signature=check.signature, place=place), other_write=other)


def _update(run: Run, call_id: CallId, **changes: Any) -> Run:
    return _with_calls(run, [replace(call, **changes) if call.id == call_id else call for call in run.calls])


def _with_calls(run: Run, calls: list[Call]) -> Run:
    assert run.open is not None
    return replace(run, open=replace(run.open, calls=tuple(calls)))


def _told(run: Run, kind: Kind) -> Run:
    return replace(run, told_limit=run.turn) if kind == "limit_reached" and not run.told_limit else run


def _close(run: Run, call_id: CallId, kind: Kind, content: Any) -> Run:
    call = run.call(call_id)
    assert call is not None
    after = _update(run, call_id, phase="closed", kind=kind, content=content)
    if kind == "in_doubt" and call.check is not None:  # it may have taken place, so it counts
        after = acted(after, call.check)
    return after


def _resolved(run: Run, fact: f.DoubtResolved) -> Run:
    match fact.verdict:
        case "happened":
            after = _close(run, fact.call, "success", fact.result)
            call = after.call(fact.call)
            assert call is not None
            return acted(after, call.check) if call.check is not None else after
        case "did_not_happen":
            return _update(run, fact.call, phase="ready", performed="no")
        case "tell_model":
            return _close(run, fact.call, "in_doubt", failure("in_doubt", DOUBT))


DOUBT = "It is not known whether this action took place: do not repeat it, look whether it did."


def _injected(run: Run, fact: f.ToolResultsInjected) -> Run:
    assert run.open is not None
    output = run.open.output
    calls, results = zip(*(_shown(call) for call in run.open.calls), strict=True)
    text = output.text if output.text.strip() else ""  # providers refuse blank text, also beside calls
    spoken = Message(role="assistant", text=text, calls=calls, opaque=output.opaque)
    turn = replace(run.open, closed=fact)
    return replace(run, fresh=(*run.fresh, spoken, *results), open=turn, request=None, asked="no")


def _shown(call: Call) -> tuple[MessageCall, Message]:
    """A call and its result as messages. Arguments that no history can hold are quoted in the result instead, so that the model sees what it sent."""
    text, content = call.proposed.arguments_text, call.content
    accepted = call.check is not None and call.check.kind == "success"
    if not text.strip():
        text = "{}"
    elif not accepted and not is_repeatable(text):
        if isinstance(content, dict):
            content = {**content, "sent": quoted(text)}
        text = "{}"
    said = MessageCall(id=call.id, name=call.name, arguments_text=text, provider_id=call.proposed.provider_id)
    return said, Message(role="tool", call_id=call.id, name=call.name, kind=call.kind or "", content=content, source_ids=call.source_ids)


# -- drivers and endings


def _attached(run: Run, fact: f.DriverAttached, at: int) -> Run:
    """What an earlier epoch started and did not finish is unknown; a request it did not finish is lost. That is all there is to recovery."""
    driver = Driver(epoch=fact.epoch, who=fact.who, host=fact.host, pid=fact.pid, since=at)
    after = replace(run, driver=driver, epoch=fact.epoch, asked="lost" if run.asked == "yes" else run.asked)
    if any(call.phase == "started" for call in run.calls):
        return _with_calls(after, [replace(call, phase="unknown") if call.phase == "started" else call for call in run.calls])
    return after


def _ended(run: Run, fact: f.Ending) -> Run:
    fresh = run.fresh
    if run.open is not None and run.open.closed is None:  # a claim that stands, or what was cut: it is part of the history
        output = run.open.output
        fresh = (*fresh, *assistant(output.text or output.refusal, output.opaque))
    turn = replace(run.open, closed=fact) if run.open is not None else None
    return replace(run, ended=fact, fresh=fresh, open=turn, request=None, asked="no", driver=None)


def signature_of(parts: list[str]) -> Digest:
    """The digest of some words in order."""
    return digest_of(msgspec.json.encode(parts))


def request_digest(before: Digest, messages: tuple[Message, ...]) -> Digest:
    """The digest of a request: that of the one before, extended by the messages it adds."""
    return digest_of(before.encode("ascii") + b"".join(encode(message) for message in messages))
