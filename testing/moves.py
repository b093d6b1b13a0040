"""What the world may tell a run next: for every input fact, whether it fits the run, and a strategy-driven way to make it.

Apart from the machine that makes the moves, so that another machine, or a user's, can draw from the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec
from hypothesis import strategies as st

from refold.events import facts as f
from refold.events.chain import NOTHING, signature_of
from refold.events.settings import Context
from refold.events.words import CallId, Digest, Effect, Kind, RunId, StopReason
from refold.fsm.answers import placed
from refold.fsm.effects import pending
from refold.fsm.guards import ASK_USER
from refold.fsm.machine import EDGES
from refold.projections.messages import visible
from refold.projections.revisions import ENGINE, SUPPORTED
from refold.projections.run import Call, Run
from refold.runtime.agent import Agent
from refold.testing.strategies import arguments_of, budgets, contexts, policies, texts
from refold.testing.trajectory import STOPPED, Cause

T = TypeVar("T")
Check = Callable[[f.ProposedCall], f.Check]
ANYBODY: Final = "anybody"
URGENT: Final = 12
_HALF: Final = (f.ProposedCall(id=CallId("t1.1"), name="look", arguments_text='{"n": '),)
"""What had come of a call when its stream broke."""


@dataclass(frozen=True)
class Toolbox:
    """Tools as a run records them, and what user code says of a call to one."""

    tools: tuple[f.ToolSetup, ...]
    check: Check
    contexts: st.SearchStrategy[Context | None] = field(default_factory=contexts)
    """With what context runs begin."""


def toolbox_of(agent: Agent) -> Toolbox:
    """The tools of an agent, judged by its own schemas, predicates and keys."""
    consults = agent.consults()

    def check(call: f.ProposedCall) -> f.Check:
        return consults.calls(f.ToolCallsRequested(calls=(call,))).checks[0]

    return Toolbox(tools=agent.declared().tools, check=check)


def _plain(name: str, effect: Effect, approval: str = "never", repeatable: bool = False) -> f.ToolSetup:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return f.ToolSetup(name=name, description="", schema=schema, effect=effect, approval="always" if approval == "always" else "never", repeatable=repeatable)


_KIT: Final = (
    _plain("look", "read"),
    _plain("put", "idempotent"),
    _plain("send", "side_effect"),
    _plain("pay", "side_effect", "always"),
    _plain("poll", "read", repeatable=True),
)


def _check_kit(call: f.ProposedCall) -> f.Check:
    """One tool of each kind; arguments that are no object do not validate, a fifty is against the policy."""
    tool = next((tool for tool in _KIT if tool.name == call.name), None)
    signature = signature_of([call.name, call.arguments_text])
    if call.name == ASK_USER:
        return f.Check(call=call.id, arguments=call.arguments_text, signature=signature, effect="read", question="Which year?", repeatable=True)
    refusal: Kind | None = (
        "unknown_tool"
        if tool is None
        else "invalid_arguments"
        if call.arguments_text[:1] != "{"
        else "permission_denied"
        if "50" in call.arguments_text
        else None
    )
    if tool is None or refusal is not None:
        return f.Check(call=call.id, kind=refusal or "unknown_tool", message="no", signature=signature, effect="read")
    needed = tool.approval == "always"
    digest = signature_of(["approval", signature]) if needed else None
    return f.Check(
        call=call.id,
        arguments=call.arguments_text,
        effect=tool.effect,
        signature=signature,
        approval=needed,
        digest=digest,
        repeatable=tool.repeatable,
        retries=1,
    )


KIT: Final = Toolbox(tools=_KIT, check=_check_kit)
"""A tool of each effect, one that needs approval, one that may repeat."""


class Draw(Protocol):
    """How hypothesis is asked for a value."""

    def __call__(self, strategy: st.SearchStrategy[T], /) -> T: ...


@dataclass(frozen=True)
class Choice:
    """What a move is made from. `started` are the calls that were ever started, which a run does not remember."""

    draw: Draw
    run: Run
    started: Sequence[CallId]
    toolbox: Toolbox = KIT


@dataclass(frozen=True)
class Move:
    """Whether a fact fits a run, and how to make it, with what belongs into its batch. `weight` is how often it is drawn beside the others."""

    fits: Callable[[Run], bool]
    make: Callable[["Choice"], Sequence[f.Input]]
    weight: int = 2
    urgent: Callable[[Run], bool] = lambda _: False
    """Where nothing much happens without it, so that it is drawn far more often."""


def legal(run: Run) -> list[str]:
    """The tags of the input facts that may come next, as often as their weight."""
    return [
        tag for tag in EDGES[run.state] if tag in MOVES and MOVES[tag].fits(run) for _ in range(MOVES[tag].weight * (URGENT if MOVES[tag].urgent(run) else 1))
    ]


def make(it: "Choice", tag: str) -> Sequence[f.Input]:
    """The inputs of a batch that begins with a fact of this tag."""
    return MOVES[tag].make(it)


# -- when a fact fits


def _fresh(run: Run) -> bool:
    return run.position == 0


def _begun(run: Run) -> bool:
    return run.setup is not None


def _idle(run: Run) -> bool:
    return run.state == "idle"


def _acted(run: Run) -> bool:
    return run.spent.tool_calls > 0


def _driven(run: Run) -> bool:
    return run.driver is not None


def _ended(run: Run) -> bool:
    return run.state == "done"


def _asked(run: Run) -> bool:
    return run.driver is not None and run.asked == "yes"


def _past_turns(run: Run) -> list[int]:
    return list(dict.fromkeys(entry.position for entry in run.entries.since(run.past.hidden)))


def _has(*phases: str, approval: bool | None = None) -> Callable[[Run], bool]:
    def has(run: Run) -> bool:
        return bool(_calls(run, phases, approval))

    return has


def _calls(run: Run, phases: Sequence[str], approval: bool | None = None) -> list[Call]:
    return [call for call in run.calls if call.phase in phases and (approval is None or approval == (call.approval is not None))]


def _performing(run: Run) -> bool:
    return run.driver is not None and bool(_calls(run, ("started",)))


def _deniable(run: Run) -> list[Call]:
    return [call for call in run.calls if call.approval is not None and (call.phase == "waiting" or (call.phase == "ready" and call.grant is not None))]


# -- how to make it


def _setup(it: Choice) -> f.Setup:
    price = it.draw(st.sampled_from((None, f.Price(input="3", output="15", cached_input="0.3"))))
    engine = it.draw(st.sampled_from((ENGINE, ENGINE, *sorted(SUPPORTED))))
    return f.Setup(
        engine=engine,
        seed="seed",
        tools=it.toolbox.tools,
        price=price,
        budgets=it.draw(budgets()),
        policy=it.draw(policies()),
        context=it.draw(it.toolbox.contexts) if engine > 1 else None,
    )


def _start(it: Choice) -> Sequence[f.Input]:
    begin = f.RunStarted(goal="the goal", setup=_setup(it))
    match it.draw(st.sampled_from(("driven",) * 6 + ("not driven", "let go at once"))):
        case "driven":
            return begin, _attach(it.run)
        case "not driven":
            return (begin,)
        case _:
            return begin, _attach(it.run), f.DriverDetached(epoch=it.run.epoch + 1)


def _continue(it: Choice) -> Sequence[f.Input]:
    begin = f.RunContinued(
        parent=RunId("parent"),
        at=7,
        head=Digest("-" * 43),
        goal="go on",
        transcript=Digest("+" * 43),
        size=it.draw(st.integers(0, 9_999)),
        message=it.draw(st.sampled_from(("", "go on"))),
        setup=_setup(it),
    )
    return (begin, _attach(it.run)) if it.draw(st.booleans()) else (begin,)


def _attach(run: Run) -> f.DriverAttached:
    return f.DriverAttached(epoch=run.epoch + 1, who=ANYBODY, host="host")


def _choice(it: Choice) -> Sequence[f.Input]:
    left_out = it.draw(st.lists(st.sampled_from(_past_turns(it.run)), unique=True)) if _past_turns(it.run) else []
    error = "" if left_out else it.draw(st.sampled_from(("", "it raised")))
    return (f.ContextChosen(builder="mine", left_out=tuple(left_out), instead=it.draw(st.sampled_from(("", "more"))), error=error),)


def _compaction(it: Choice) -> Sequence[f.Input]:
    """The summary that was asked for; now and then there is none."""
    asked = it.run.past.asked
    assert asked is not None
    failed = it.draw(st.sampled_from((False, False, True)))
    made = f.ContextCompacted(
        since=asked.since, upto=asked.upto, summary="" if failed else "so far", author=asked.author, digest=asked.digest, error="no" * failed
    )
    return (msgspec.structs.replace(made, usage=_usage(it), elapsed_us=_elapsed(it)) if asked.author == "model" else made,)


def _usage(it: Choice) -> f.Usage | None:
    counts = st.sampled_from((0, 7, 120))
    made = st.builds(
        f.Usage,
        input_tokens=counts,
        output_tokens=counts,
        cached_input_tokens=st.just(0),
        estimated=st.booleans(),
        cost_usd=st.sampled_from((None, "0.02", "0")),
    )
    return it.draw(st.one_of(st.none(), made))


def _elapsed(it: Choice) -> int:
    return it.draw(st.sampled_from((0, 3, 700_000)))


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(it: Choice) -> str:
    return _whole(it.draw(texts()))


def _proposals(it: Choice) -> Sequence[f.Input]:
    """Calls, and what is said of them; now and then somebody gets a word in between."""
    calls = []
    for n in range(1, it.draw(st.integers(1, 3)) + 1):
        tool = it.draw(st.sampled_from((*it.toolbox.tools, *it.toolbox.tools, *(each for each in it.toolbox.tools if each.approval != "never"), None)))
        name = tool.name if tool is not None else it.draw(st.sampled_from(("nothing", ASK_USER)))
        given = it.draw(arguments_of(tool.schema)) if tool is not None else {"question": "Which year?"}
        text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        calls.append(f.ProposedCall(id=CallId(f"t{it.run.turn}.{n}"), name=name, arguments_text=text))
    said = f.ToolCallsRequested(text=it.draw(st.sampled_from(("", "let me see"))), calls=tuple(calls), usage=_usage(it), elapsed_us=_elapsed(it))
    checked = f.CallsChecked(checks=tuple(it.toolbox.check(call) for call in calls))
    words = [tag for tag in _BETWEEN if tag != "late_outcome" or it.started]
    between = it.draw(st.sampled_from([None] * 12 + words))
    return (said, checked) if between is None else (said, *_BETWEEN[between](it), checked)


def _claim(it: Choice) -> Sequence[f.Input]:
    stop: StopReason = it.draw(st.sampled_from(("stop",) * 6 + ("length", "refusal")))
    claim = f.FinalProposed(text=it.draw(st.sampled_from(("the answer", "another"))), stop_reason=stop, usage=_usage(it), elapsed_us=_elapsed(it))
    verdict = it.draw(st.sampled_from((f.AnswerChecked(), f.AnswerChecked(), f.AnswerChecked(complaints=("no",)), f.AnswerChecked(error="it raised"))))
    return claim, verdict


def _checkpoint(it: Choice) -> Sequence[f.Input]:
    return (f.StreamCheckpointed(text=it.draw(st.sampled_from(("so ", "so far"))), calls=it.draw(st.sampled_from(((), _HALF))), usage=_usage(it)),)


def _interruption(it: Choice) -> Sequence[f.Input]:
    cause: Cause = it.draw(st.sampled_from(("cancelled", "limit", "length", "filtered", "invalid", "invalid", "paused", "overflow")))
    ours = cause in ("cancelled", "limit")
    text = _text(it)
    thought = ({"signature": "x"},)
    opaque: tuple[dict[str, str], ...] = it.draw(st.sampled_from(((), thought))) if cause != "paused" or visible(text) else thought
    return (
        f.ModelInterrupted(
            cause=cause,
            detail="cut",
            limit="timeout_s" if cause == "limit" else None,
            text=text,
            calls=placed(_HALF, it.run.turn) if ours or cause == "length" else (),
            opaque=opaque,
            usage=_usage(it),
            unreported=_unreported(it) if ours else None,
            elapsed_us=_elapsed(it),
            stop_reason=STOPPED.get(cause, "stop"),
        ),
    )


def _unreported(it: Choice) -> f.Usage | None:
    return it.draw(st.sampled_from((None, f.Usage(output_tokens=5, estimated=True), f.Usage(input_tokens=40, output_tokens=5, estimated=True))))


def _provider_failure(it: Choice) -> Sequence[f.Input]:
    error = f.ErrorInfo(
        type="overloaded",
        overflow=it.draw(st.sampled_from((False, False, True))),
        message=_text(it),
        retryable=it.draw(st.sampled_from((True, True, True, False))),
        retry_after_s=it.draw(st.sampled_from((None, 0, 5))),
    )
    calls: tuple[f.ProposedCall, ...] = it.draw(st.sampled_from(((), _HALF)))
    return (f.ModelFailed(error=error, calls=calls, usage=_usage(it), unreported=_unreported(it), elapsed_us=_elapsed(it)),)


def _success(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(_calls(it.run, ("started",))))
    result = it.draw(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-5, 2**60),
            texts().map(_whole),
            st.dictionaries(st.sampled_from(("a", "b")), st.integers()),
            st.just("page " * 300),
            st.just("page " * 500),
        )
    )
    notes = it.draw(st.sampled_from(((), (), (f.Note(text="one"), f.Note(text="two", source_ids=("a",))))))
    sources = it.draw(st.sampled_from(((), ("a",), ("a", "b#1"))))
    return (f.ToolSucceeded(call=call.id, result=result, source_ids=sources, notes=notes, attempt=call.attempt, elapsed_us=_elapsed(it)),)


def _failure(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(_calls(it.run, ("started",))))
    kind: Kind = it.draw(st.sampled_from(("execution_failed", "timeout", "invalid_result", "cancelled")))
    return (
        f.ToolFailed(
            call=call.id,
            kind=kind,
            message=_text(it),
            retryable=it.draw(st.booleans()),
            performed=it.draw(st.sampled_from(("unknown", "no", "yes"))),
            attempt=call.attempt,
            elapsed_us=_elapsed(it),
        ),
    )


def _grant(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(_calls(it.run, ("waiting",), approval=True)))
    return (f.ApprovalGranted(call=call.id, digest=call.approval or NOTHING, who=ANYBODY),)


def _superseded(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(_calls(it.run, ("waiting",), approval=True)))
    assert call.check is not None
    check = msgspec.structs.replace(
        call.check, arguments='{"n":3}', signature=signature_of([call.name, '{"n":3}']), digest=signature_of(["approval of another", call.name])
    )
    return (f.CallSuperseded(call=call.id, check=check, who=ANYBODY),)


def _late(it: Choice) -> Sequence[f.Input]:
    return (f.LateOutcome(call=it.draw(st.sampled_from(it.started)), outcome="it came back"),)


def _said(it: Choice) -> Sequence[f.Input]:
    return (f.UserSaid(text=it.draw(st.sampled_from(("and 2024?", "hurry"))), who=ANYBODY, command_id=it.draw(st.sampled_from(("", "c1")))),)


def _cancelled(it: Choice) -> Sequence[f.Input]:
    return (f.CancelRequested(who=ANYBODY, reason=it.draw(st.sampled_from(("", "enough")))),)


def _attached(it: Choice) -> Sequence[f.Input]:
    return (_attach(it.run),)


def _detached(it: Choice) -> Sequence[f.Input]:
    return (f.DriverDetached(epoch=it.run.epoch, why="parked"),)


_BETWEEN: Final = {"user_said": _said, "cancel_requested": _cancelled, "late_outcome": _late, "driver_attached": _attached, "driver_detached": _detached}
"""What may come between calls and what is said of them."""

MOVES: Final[dict[str, Move]] = {
    "run_started": Move(_fresh, _start, 6),
    "run_continued": Move(_fresh, _continue, 1),
    "driver_attached": Move(_begun, _attached, 1, urgent=lambda run: run.driver is None),
    "driver_detached": Move(lambda run: _driven(run) or _ended(run), _detached, 2, urgent=lambda run: _driven(run) and not pending(run)),
    "context_chosen": Move(lambda run: run.setup is not None and run.context is not None, _choice, 2, urgent=_idle),
    "context_compacted": Move(lambda run: run.past.asked is not None, _compaction, 4),
    "usage_updated": Move(_asked, lambda it: (f.UsageUpdated(usage=_usage(it) or f.Usage(input_tokens=3)),), 3),
    "stream_checkpointed": Move(_asked, _checkpoint, 3),
    "model_failed": Move(_asked, _provider_failure, 8),
    "model_interrupted": Move(_asked, _interruption, 6),
    "final_proposed": Move(_asked, _claim, 12),
    "tool_calls_requested": Move(_asked, _proposals, 60),
    "tool_succeeded": Move(_performing, _success, 40),
    "tool_failed": Move(_performing, _failure, 16),
    "late_outcome": Move(_acted, _late, 1),
    "approval_granted": Move(_has("waiting", approval=True), _grant, 12),
    "approval_denied": Move(
        lambda run: bool(_deniable(run)),
        lambda it: (f.ApprovalDenied(call=it.draw(st.sampled_from(_deniable(it.run))).id, reason="no", who=ANYBODY),),
        2,
    ),
    "clarification_received": Move(
        _has("waiting", approval=False),
        lambda it: (f.ClarificationReceived(call=it.draw(st.sampled_from(_calls(it.run, ("waiting",), approval=False))).id, text=_text(it), who=ANYBODY),),
        20,
    ),
    "call_superseded": Move(_has("waiting", approval=True), _superseded, 4),
    "doubt_resolved": Move(
        _has("doubt"),
        lambda it: (
            f.DoubtResolved(
                call=it.draw(st.sampled_from(_calls(it.run, ("doubt",)))).id,
                verdict=it.draw(st.sampled_from(("happened", "did_not_happen", "tell_model"))),
                who=ANYBODY,
            ),
        ),
        20,
    ),
    "user_said": Move(_begun, _said, 3),
    "compaction_requested": Move(_begun, lambda _: (f.CompactionRequested(who=ANYBODY),), 2),
    "cancel_requested": Move(_begun, _cancelled, 1, urgent=lambda run: run.state == "idle" and run.position > 3),
    "sealed": Move(_ended, lambda _: (f.Sealed(algorithm="ed25519", key="key", signature="signature"),), 1),
    "erased": Move(_ended, lambda _: (f.Erased(who=ANYBODY),), 1),
}
"""Every input fact but `run_forked`, which begins another stream than the one it splits."""
