"""`pending`: what the run waits for the world to do. Performing it is the shell's part."""

import msgspec

from refold.events import facts as f
from refold.events.settings import Seconds
from refold.events.words import CallId
from refold.fsm.compaction import choosable, chooses
from refold.projections.run import Call, Run


class AskModel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make the open request, after its delay."""

    number: int
    estimated_input_tokens: int
    delay_us: int


class ChooseContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ask the context builder which of the turns at `choosable` the next request shows."""

    choosable: tuple[int, ...]
    delay_us: int = 0


class Summarise(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make the summary of older turns that was asked for."""

    asked: f.SummaryRequested
    delay_us: int = 0


class RunTool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Run the handler of a started call, after its delay; `arguments` in canonical form."""

    call: CallId
    name: str
    arguments: str
    attempt: int
    key: str
    timeout_s: Seconds | None
    delay_us: int


class Reconcile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ask the tool of a call in doubt what became of it."""

    call: CallId
    name: str
    key: str
    delay_us: int = 0


Effect = AskModel | ChooseContext | Summarise | RunTool | Reconcile


def pending(run: Run) -> tuple[Effect, ...]:
    """The effects that are open, in order; none where the run has ended, waits for a human, or is driven by nobody."""
    if run.driver is None:
        return ()
    if run.state == "streaming_model" and run.asked == "yes":
        asked = run.request
        assert asked is not None
        return (AskModel(number=asked.number, estimated_input_tokens=asked.estimated_input_tokens, delay_us=asked.delay_us),)
    if run.state in ("idle", "injecting_tool_results", "streaming_model"):
        if run.past.asked is not None:
            return (Summarise(asked=run.past.asked),)
        return (ChooseContext(choosable=choosable(run)),) if chooses(run) else ()
    if run.state == "executing_tools":
        return tuple(_open_effect(call) for call in run.calls if call.phase == "started" or call.to_reconcile)
    return ()


def _open_effect(call: Call) -> RunTool | Reconcile:
    started, check = call.started, call.check
    assert started is not None
    assert check is not None
    if call.phase == "doubt":
        return Reconcile(call=call.id, name=call.name, key=started.key)
    return RunTool(
        call=call.id,
        name=call.name,
        arguments=check.arguments,
        attempt=started.attempt,
        key=started.key,
        timeout_s=check.timeout_s,
        delay_us=started.delay_us,
    )
