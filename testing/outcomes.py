"""What comes of the effects that a run asked for: what its model says, which turns are shown, a summary, the results of its tools.

Apart from what humans and drivers do, because each of these answers something that is pending, and brings what it took along.
Each public function makes the inputs of a batch.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from hypothesis import strategies as st

from refold.events import facts as f
from refold.events.words import CallId, Kind, StopReason
from refold.fsm.answers import placed
from refold.fsm.guards import ASK_USER
from refold.projections.messages import visible
from refold.projections.run import Run
from refold.testing import commands
from refold.testing.choice import Choice, calls_in, text_of, whole
from refold.testing.strategies import arguments_of, texts
from refold.testing.trajectory import STOPPED, Cause

_HALF: Final = (f.ProposedCall(id=CallId("t1.1"), name="look", arguments_text='{"n": '),)
"""What had come of a call when its stream broke."""


# -- what the model says


def proposals(it: Choice) -> Sequence[f.Input]:
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


def claim(it: Choice) -> Sequence[f.Input]:
    stop: StopReason = it.draw(st.sampled_from(("stop",) * 6 + ("length", "refusal")))
    proposed = f.FinalProposed(text=it.draw(st.sampled_from(("the answer", "another"))), stop_reason=stop, usage=_usage(it), elapsed_us=_elapsed(it))
    verdict = it.draw(st.sampled_from((f.AnswerChecked(), f.AnswerChecked(), f.AnswerChecked(complaints=("no",)), f.AnswerChecked(error="it raised"))))
    return proposed, verdict


def checkpoint(it: Choice) -> Sequence[f.Input]:
    return (f.StreamCheckpointed(text=it.draw(st.sampled_from(("so ", "so far"))), calls=it.draw(st.sampled_from(((), _HALF))), usage=_usage(it)),)


def usage_update(it: Choice) -> Sequence[f.Input]:
    return (f.UsageUpdated(usage=_usage(it) or f.Usage(input_tokens=3)),)


def interruption(it: Choice) -> Sequence[f.Input]:
    cause: Cause = it.draw(st.sampled_from(("cancelled", "limit", "length", "filtered", "invalid", "invalid", "paused", "overflow")))
    ours = cause in ("cancelled", "limit")
    text = text_of(it)
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


def provider_failure(it: Choice) -> Sequence[f.Input]:
    error = f.ErrorInfo(
        type="overloaded",
        overflow=it.draw(st.sampled_from((False, False, True))),
        message=text_of(it),
        retryable=it.draw(st.sampled_from((True, True, True, False))),
        retry_after_s=it.draw(st.sampled_from((None, 0, 5))),
    )
    calls: tuple[f.ProposedCall, ...] = it.draw(st.sampled_from(((), _HALF)))
    return (f.ModelFailed(error=error, calls=calls, usage=_usage(it), unreported=_unreported(it), elapsed_us=_elapsed(it)),)


def _unreported(it: Choice) -> f.Usage | None:
    return it.draw(st.sampled_from((None, f.Usage(output_tokens=5, estimated=True), f.Usage(input_tokens=40, output_tokens=5, estimated=True))))


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


# -- what it is shown


def context_choice(it: Choice) -> Sequence[f.Input]:
    left_out = it.draw(st.lists(st.sampled_from(_past_turns(it.run)), unique=True)) if _past_turns(it.run) else []
    error = "" if left_out else it.draw(st.sampled_from(("", "it raised")))
    return (f.ContextChosen(builder="mine", left_out=tuple(left_out), instead=it.draw(st.sampled_from(("", "more"))), error=error),)


def _past_turns(run: Run) -> list[int]:
    return list(dict.fromkeys(entry.position for entry in run.entries.since(run.past.hidden)))


def compaction(it: Choice) -> Sequence[f.Input]:
    """The summary that was asked for; now and then there is none."""
    asked = it.run.past.asked
    assert asked is not None
    failed = it.draw(st.sampled_from((False, False, True)))
    made = f.ContextCompacted(
        since=asked.since, upto=asked.upto, summary="" if failed else "so far", author=asked.author, digest=asked.digest, error="no" * failed
    )
    return (msgspec.structs.replace(made, usage=_usage(it), elapsed_us=_elapsed(it)) if asked.author == "model" else made,)


# -- what tools come to


def success(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(calls_in(it.run, ("started",))))
    result = it.draw(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-5, 2**60),
            texts().map(whole),
            st.dictionaries(st.sampled_from(("a", "b")), st.integers()),
            st.just("page " * 300),
            st.just("page " * 500),
        )
    )
    notes = it.draw(st.sampled_from(((), (), (f.Note(text="one"), f.Note(text="two", source_ids=("a",))))))
    sources = it.draw(st.sampled_from(((), ("a",), ("a", "b#1"))))
    return (f.ToolSucceeded(call=call.id, result=result, source_ids=sources, notes=notes, attempt=call.attempt, elapsed_us=_elapsed(it)),)


def failure(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(calls_in(it.run, ("started",))))
    kind: Kind = it.draw(st.sampled_from(("execution_failed", "timeout", "invalid_result", "cancelled")))
    return (
        f.ToolFailed(
            call=call.id,
            kind=kind,
            message=text_of(it),
            retryable=it.draw(st.booleans()),
            performed=it.draw(st.sampled_from(("unknown", "no", "yes"))),
            attempt=call.attempt,
            elapsed_us=_elapsed(it),
        ),
    )


def late(it: Choice) -> Sequence[f.Input]:
    return (f.LateOutcome(call=it.draw(st.sampled_from(it.started)), outcome="it came back"),)


_BETWEEN: Final = {
    "user_said": commands.said,
    "cancel_requested": commands.cancelled,
    "late_outcome": late,
    "driver_attached": commands.attached,
    "driver_detached": commands.detached,
}
"""What may come between calls and what is said of them."""
