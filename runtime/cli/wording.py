"""What a human decided, as data and in words: read back from the log, so that what is printed is what was taken.

Apart from the verbs, because each of them, and each of them again under the same command, prints it in these same lines.
"""

from typing import Any

import msgspec

from refold.events import facts as f
from refold.fsm.fold import fold
from refold.projections.view import arguments_of
from refold.runtime.cli.render import compact, fields, one_line, visible
from refold.runtime.store import Store, Taken


def told(store: Store, run_id: str, taken: Taken) -> dict[str, Any]:
    """The decision at a position, with everything that it is about."""
    (record,) = store.read(run_id, taken.position - 1, taken.position)
    made: dict[str, Any] = {"run_id": run_id, "position": taken.position, "again": taken.again}
    call = taken.call
    if call is None and record.call is not None:  # of a command that was taken before: the run as it stood then
        call = fold(store.read(run_id, upto=taken.position - 1)).call(record.call)
    if call is not None:
        made |= {"call_id": call.id, "name": call.name, "arguments": arguments_of(call)}
    match record.fact:
        case f.ClarificationReceived(text=text):
            made |= {"decision": "answered", "question": call.question if call is not None else "", "answer": text}
        case f.ApprovalGranted(digest=digest):
            made |= {"decision": "approved", "digest": digest}
        case f.CallSuperseded(check=check):
            made |= {"decision": "approved", "digest": check.digest, "arguments": msgspec.json.decode(check.arguments), "instead_of": made.get("arguments")}
        case f.ApprovalDenied(reason=reason):
            made |= {"decision": "denied", "reason": reason}
        case f.DoubtResolved(verdict=verdict, result=result):
            made |= {"decision": "resolved", "verdict": verdict, "result": result}
        case f.UserSaid(text=text):
            made |= {"decision": "said", "said": text}
        case f.CompactionRequested():
            made |= {"decision": "compacted"}
        case f.CancelRequested(reason=reason):
            made |= {"decision": "cancelled", "reason": reason}
        case other:
            raise AssertionError(f"{other.TAG} is no word of a human")
    return made


VERDICTS = {"happened": "it took place", "did_not_happen": "it did not take place", "tell_model": "nobody knows, and the model is told"}


def in_words(told: dict[str, Any]) -> str:
    """The decision with everything it is about, in full."""
    lines = [f"taken before, at position {told['position']}; nothing was done now:"] if told["again"] else []
    lines += _decision(told)
    return "\n".join(lines)


def _decision(told: dict[str, Any]) -> list[str]:
    decision, run = told["decision"], f"run {told['run_id']}"
    if decision == "said":
        return [f"said to {run}: {one_line(told['said'])}"]
    if decision == "compacted":
        return [f"asked {run} to show its older turns as a summary from the next turn on"]
    if decision == "cancelled":
        return [f"asked {run} to end" + (f": {one_line(told['reason'])}" if told["reason"] else "")]
    place = f"{told['call_id']} of {run}"
    if decision == "answered":
        return [f"answered {place}", *_text(told["question"]), *_text(told["answer"])]
    lines = [f"{decision} {place}: {one_line(told['name'])}", *fields(told["arguments"])]
    if told.get("instead_of") is not None:
        lines += ["  instead of", *fields(told["instead_of"])]
    if decision == "denied":
        lines.append(f"    because: {visible(told['reason'])}")
    if decision == "resolved":
        gave = f", and gave {visible(compact(told['result']))}" if told["verdict"] == "happened" and told["result"] is not None else ""
        lines.append(f"    {VERDICTS[told['verdict']]}{gave}")
    return lines


def _text(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in visible(text).split("\n")]
