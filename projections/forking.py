"""What a fork is at its beginning: its parent there, with nobody who drives, what was under way undone, and what was changed laid over it.

Apart from `evolve`, because the transcript and the shell lay the same changes over a past that decisions do not hold.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from refold.events import facts as f
from refold.events.words import CallId
from refold.projections import context
from refold.projections.growing import Entries
from refold.projections.messages import Counted, Message, user
from refold.projections.prefix import as_entry, entry_of
from refold.projections.run import Call, Run, replace

MODEL: Final = "model"
"""The change that sets another model: a `ModelSetup`, whole."""
REPEATED: Final = "the run that this one is a fork of performed it later"
"""Why a call needs approval that needed none in the parent."""


def forked(run: Run, fact: f.RunForked, at: int) -> Run:
    """The run that goes on from where its parent was. Its id is its own already."""
    spent = run.streaming.before if run.streaming is not None else run.spent
    after = replace(run, forked_from=fact.parent, forked_at=fact.at, started_at=at, driver=None, cancel=None, spent=spent, streaming=None)
    if run.past.asked is not None:
        number = run.number - (run.past.asked.number is not None)
        after = replace(after, past=replace(run.past, asked=None), number=number)
    if run.asked in ("yes", "lost"):
        after = replace(after, asked="inherited")
    if run.open is not None:
        performed = frozenset() if fact.allow_repeat else frozenset(fact.performed)
        edits = {edit.call: edit for edit in fact.edits}
        after = replace(after, open=replace(run.open, calls=tuple(_edited(_inherited(call, performed), edits) for call in run.calls)))
    if fact.changes:
        after = replace(after, setup=changed(run.begun, fact.changes))
        if any(path.startswith("budgets.") for path in fact.changes):
            after = _given_others(after)
        if MODEL in fact.changes:
            after = replace(after, numbered_from=after.number - (after.asked == "inherited"), measured=None)
    after = _told(_shown_otherwise(after, fact), fact)
    if not run.rules.chains:  # such runs are forked as they are
        return after
    return context.retold(after)


def _given_others(run: Run) -> Run:
    """A run with other budgets than it had: what was the last that the old ones allowed is that no more, and whoever was told so is not to answer for it."""
    turn = replace(run.open, wrap_up=False) if run.open is not None else None
    return replace(run, open=turn, told_limit=0)


def _inherited(call: Call, performed: frozenset[str]) -> Call:
    """A call that was open in the parent: what became of it there is not known here, and what it did there later is not to be done twice unasked."""
    if call.phase == "started":
        return replace(call, phase="unknown")
    if call.id not in performed or call.check is None or call.check.effect != "side_effect" or call.phase not in ("accepted", "ready", "retrying"):
        return call
    check = msgspec.structs.replace(call.check, approval=True, approval_reason=REPEATED, digest=call.check.digest or call.check.signature)
    return replace(call, phase="accepted", check=check, grant=None)


def _edited(call: Call, edits: Mapping[CallId, f.Edit]) -> Call:
    edit = edits.get(call.id)
    return replace(call, kind="success", content=edit.result) if edit is not None and edit.place is None and not call.open else call


def changed(setup: f.Setup, changes: Mapping[str, Any]) -> f.Setup:
    """A setup with parts of it replaced, by path: `model` (a ModelSetup), `instructions`, `budgets.max_turns`, ... Raises msgspec.ValidationError for what has no place in it."""
    parts: dict[str, Any] = msgspec.to_builtins(setup)
    for path, value in changes.items():
        if path == MODEL:
            parts |= dict.fromkeys(f.ModelSetup.__struct_fields__) | value
            parts = {name: part for name, part in parts.items() if part is not None}
            continue
        section, _, field = path.partition(".")
        if field:
            parts[section] = {**(parts.get(section) or {}), field: value}
        else:
            parts[section] = value
    return msgspec.convert(parts, f.Setup)


# -- what is shown


def message_of(edit: f.Edit) -> Message:
    """An edited result as the model sees it."""
    return Message(role="tool", call_id=edit.call, name=edit.name, kind="success", content=edit.result, source_ids=edit.source_ids)


def as_shown(run: Run, edit: f.Edit) -> Counted:
    """The same, at the length that a result may have by itself."""
    return context.cut_each(run, (message_of(edit),))[0]


def _shown_otherwise(run: Run, fact: f.RunForked) -> Run:
    """Edited results take the place of those that the parent's requests showed, or of those that none has shown yet."""
    if not fact.edits:
        return run
    entries = list(run.entries)
    for edit in fact.edits:
        if edit.place is not None:
            entries[edit.place] = as_entry(as_shown(run, edit), entries[edit.place].position)
    waiting = {edit.call: message_of(edit) for edit in fact.edits if edit.place is None}
    fresh = tuple(waiting.get(message.call_id, message) for message in run.fresh)  # type: ignore[call-overload]
    return replace(run, entries=Entries(entries), fresh=fresh, fresh_shown=context.cut_each(run, fresh) if waiting else run.fresh_shown)


def _told(run: Run, fact: f.RunForked) -> Run:
    """What the user says: in the request that is made anew where one is open, else in the next."""
    if not fact.message:
        return run
    after = replace(run, counted_from=len(run.actions), decisions=())
    if not goes_into_open_request(run):
        return replace(after, unheard=(*run.unheard, fact.message))
    return replace(after, entries=run.entries.add(entry_of(user(fact.message), run.entries[-1].position)))


def unasked(run: Run) -> Run:
    """A fork before it asks for itself what its parent had asked: what its limits are held against."""
    return replace(run, turn=run.turn - 1)


def goes_into_open_request(run: Run) -> bool:
    """Whether a message to a fork is shown by the request that was open where it begins: that one is made anew, and nobody has answered it here."""
    return run.state == "streaming_model" and run.asked in ("yes", "lost", "inherited")
