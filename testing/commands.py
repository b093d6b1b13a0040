"""What humans and drivers do to a run of their own accord: begin it, take it up and let it go, allow, answer, speak, cancel.

Apart from what comes of effects, because nobody asked for any of this, and it may come between two things that belong together.
Each public function but one makes the inputs of a batch; `deniable` says which calls may still be denied.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from hypothesis import strategies as st

from refold.events import facts as f
from refold.events.chain import NOTHING, signature_of
from refold.events.words import Digest, RunId
from refold.projections.revisions import ENGINE, SUPPORTED
from refold.projections.run import Call, Run
from refold.testing.choice import Choice, calls_in, text_of
from refold.testing.strategies import budgets, policies

ANYBODY: Final = "anybody"


# -- the run and its driver


def started(it: Choice) -> Sequence[f.Input]:
    begin = f.RunStarted(goal="the goal", setup=_setup(it))
    match it.draw(st.sampled_from(("driven",) * 6 + ("not driven", "let go at once"))):
        case "driven":
            return begin, _attach(it.run)
        case "not driven":
            return (begin,)
        case _:
            return begin, _attach(it.run), f.DriverDetached(epoch=it.run.epoch + 1)


def continued(it: Choice) -> Sequence[f.Input]:
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


def attached(it: Choice) -> Sequence[f.Input]:
    return (_attach(it.run),)


def _attach(run: Run) -> f.DriverAttached:
    return f.DriverAttached(epoch=run.epoch + 1, who=ANYBODY, host="host")


def detached(it: Choice) -> Sequence[f.Input]:
    return (f.DriverDetached(epoch=it.run.epoch, why="parked"),)


# -- calls that wait for a human


def granted(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(calls_in(it.run, ("waiting",), approval=True)))
    return (f.ApprovalGranted(call=call.id, digest=call.approval or NOTHING, who=ANYBODY),)


def denied(it: Choice) -> Sequence[f.Input]:
    return (f.ApprovalDenied(call=it.draw(st.sampled_from(deniable(it.run))).id, reason="no", who=ANYBODY),)


def deniable(run: Run) -> list[Call]:
    return [call for call in run.calls if call.deniable]


def superseded(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(calls_in(it.run, ("waiting",), approval=True)))
    assert call.check is not None
    check = msgspec.structs.replace(
        call.check, arguments='{"n":3}', signature=signature_of([call.name, '{"n":3}']), digest=signature_of(["approval of another", call.name])
    )
    return (f.CallSuperseded(call=call.id, check=check, who=ANYBODY),)


def clarified(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(calls_in(it.run, ("waiting",), approval=False)))
    return (f.ClarificationReceived(call=call.id, text=text_of(it), who=ANYBODY),)


def resolved(it: Choice) -> Sequence[f.Input]:
    call = it.draw(st.sampled_from(calls_in(it.run, ("doubt",))))
    return (f.DoubtResolved(call=call.id, verdict=it.draw(st.sampled_from(("happened", "did_not_happen", "tell_model"))), who=ANYBODY),)


# -- the run as a whole


def said(it: Choice) -> Sequence[f.Input]:
    return (f.UserSaid(text=it.draw(st.sampled_from(("and 2024?", "hurry"))), who=ANYBODY, command_id=it.draw(st.sampled_from(("", "c1")))),)


def cancelled(it: Choice) -> Sequence[f.Input]:
    return (f.CancelRequested(who=ANYBODY, reason=it.draw(st.sampled_from(("", "enough")))),)


def compaction_requested(_: Choice) -> Sequence[f.Input]:
    return (f.CompactionRequested(who=ANYBODY),)


def sealed(_: Choice) -> Sequence[f.Input]:
    return (f.Sealed(algorithm="ed25519", key="key", signature="signature"),)


def erased(_: Choice) -> Sequence[f.Input]:
    return (f.Erased(who=ANYBODY),)
