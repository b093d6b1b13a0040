"""What `show`, `runs` and results say of a run: answer, citations, usage, messages, observations, notes, pending; folded from its records for people and programs."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from refold.events import facts as f
from refold.events.codec import Record, Unreadable
from refold.projections.evidence import cited
from refold.projections.messages import Message
from refold.projections.run import Call, Run


def answer_of(run: Run, records: Iterable[Record]) -> str | None:
    """The answer of a completed run."""
    claim = _claim(run, records)
    return claim.text if claim is not None else None


def citations_of(run: Run, records: Sequence[Record]) -> list[dict[str, Any]]:
    """What the answer of a completed run cites: document, part, and the document that superseded it, where the evidence says so."""
    claim = _claim(run, records)
    if claim is None:
        return []
    superseded = superseded_by(records)
    made = []
    for name in cited(run, claim):
        doc_id, mark, part = name.rpartition("#")
        document = doc_id if mark and part.isdigit() else name
        made.append({"doc_id": document, "part": int(part) if document != name else None, "superseded_by": superseded.get(document)})
    return made


def _claim(run: Run, records: Iterable[Record]) -> f.FinalProposed | None:
    if not isinstance(run.ended, f.RunCompleted):
        return None
    at = run.ended.answer_at
    return next((record.fact for record in records if record.position == at and isinstance(record.fact, f.FinalProposed)), None)


def superseded_by(records: Iterable[Record]) -> dict[str, str]:
    """Document to its successor, as results of tools say in `metadata`."""
    found: dict[str, str] = {}
    for record in records:
        if isinstance(record.fact, f.ToolSucceeded) and isinstance(record.fact.result, dict):
            metadata, doc_id = record.fact.result.get("metadata"), record.fact.result.get("doc_id")
            if isinstance(metadata, dict) and isinstance(doc_id, str) and metadata.get("superseded_by"):
                newer = metadata["superseded_by"]
                found[doc_id] = ", ".join(map(str, newer)) if isinstance(newer, list) else str(newer)
    return found


def usage_of(run: Run) -> dict[str, Any]:
    """Sums of what providers reported and, apart, of estimates; money as a decimal string."""
    spent = run.spent
    return {
        "reported": {name: getattr(spent.reported, name) for name in ("input_tokens", "cached_input_tokens", "output_tokens")},
        "estimated": {name: getattr(spent.estimated, name) for name in ("input_tokens", "cached_input_tokens", "output_tokens")},
        "cost_usd": spent.cost_usd,
    }


def pending_of(run: Run) -> list[dict[str, Any]]:
    """What waits for a human, in call order."""
    return [_waits(run, call) for call in run.calls if call.phase in ("waiting", "doubt")] if run.state == "executing_tools" else []


def _waits(run: Run, call: Call) -> dict[str, Any]:
    kind = "doubt" if call.phase == "doubt" else "approval" if call.approval is not None else "question"
    reason = call.question if kind == "question" else call.because
    return {
        "run_id": run.id,
        "call_id": call.id,
        "kind": kind,
        "name": call.name,
        "arguments": arguments_of(call),
        "digest": call.approval,
        "reason": reason,
        "since": call.since,
        "expires_at": call.expires_at,
    }


def arguments_of(call: Call) -> dict[str, Any]:
    """What a call runs with, in the order in which the model wrote it; what was filled in comes last. Raises Unreadable."""
    made: dict[str, Any] = {}
    if call.check is not None and call.check.arguments:
        try:
            made = _OBJECT.decode(call.check.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise Unreadable(f"the arguments of {call.id}, as checked, are no JSON object: {error}") from error
    try:
        written = msgspec.json.decode(call.proposed.arguments_text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        written = {}
    return {name: made[name] for name in written if name in made} | made if isinstance(written, dict) else made


_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def message_json(message: Message, arguments: dict[str, Any]) -> dict[str, Any]:
    """A message in the documented shape; `arguments` by call id."""
    if message.role == "tool":
        return {"role": "tool", "call_id": message.call_id, "name": message.name, "kind": message.kind, "content": message.content}
    made: dict[str, Any] = {"role": message.role, "text": message.text}
    if message.kind and message.role == "assistant":
        made["kind"] = message.kind
    if message.calls:
        made["calls"] = [
            {"id": call.id, "name": call.name, "arguments": arguments.get(call.id, call.arguments_text), "provider_id": call.provider_id}
            for call in message.calls
        ]
    return made
