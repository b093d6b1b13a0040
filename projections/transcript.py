"""What was said in a run, folded from the log: every message in full, and as requests show it.

It stands on the fold of `Run`, which makes every message once; so a live request, a resumed one and a rebuilt one cannot differ.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from refold.events.chain import digest_of
from refold.events.facts import ContextChosen, ContextCompacted, Fact, ModelRequested, Note, NoteStored, RunForked
from refold.events.words import Digest
from refold.projections import context, forking
from refold.projections.messages import Message, encode, user
from refold.projections.prefix import HISTORY, chained, start
from refold.projections.run import Entry, Run


def said(before: Run, fact: Fact, after: Run) -> tuple[Message, ...]:
    """The messages that one fact adds to the transcript."""
    if isinstance(fact, ModelRequested):
        # Another attempt shows what the first did; what was said since waits for the next turn.
        return waiting(before) if before.state != "streaming_model" else ()
    return after.fresh[len(before.fresh) :]


def waiting(run: Run) -> tuple[Message, ...]:
    """Messages of the user that the next request will show, in the order sent."""
    return tuple(user(text) for text in run.unheard)


class Kept(NamedTuple):
    """A note and the position at which it was stored; in a run that goes on from another, those of its parent count from its end, which is 0."""

    position: int
    note: Note


class Transcript:
    """Everything that was said, as facts are taken in order."""

    def __init__(self, inherited: Sequence[Sequence[Message]] = (), notes: Sequence[Kept] = ()) -> None:
        self.messages = [message for block in inherited for message in block]
        """In full, in the order of requests."""
        self.notes = list(notes)
        self.summaries: list[ContextCompacted] = []
        self._inherited = len(self.messages), len(inherited)
        self._shown = [tuple(block) for block in inherited]
        self._instead = ""

    def take(self, before: Run, fact: Fact, after: Run) -> None:
        """One more fact, with the run before and behind it."""
        self.messages += said(before, fact, after)
        match fact:
            case ModelRequested() if before.state != "streaming_model":
                self._shown += [(new.message,) for new in context.news(before)]
            case RunForked():
                self._fork(before, fact, after)
            case ContextCompacted() if not fact.error:
                self.summaries.append(fact)
            case ContextChosen(instead=instead):
                self._instead = instead
            case NoteStored(text=text, source_ids=source_ids):
                self.notes.append(Kept(after.position, Note(text=text, source_ids=source_ids)))
            case _:
                pass

    def _fork(self, before: Run, fact: RunForked, after: Run) -> None:
        """Results that were edited are shown and kept as they are now; a message may go into the request that is open."""
        edited = {edit.call: forking.message_of(edit) for edit in fact.edits}
        self.messages = [edited.get(message.call_id, message) for message in self.messages]  # type: ignore[call-overload]
        for edit in fact.edits:
            if edit.place is not None:
                self._shown[edit.place] = (forking.as_shown(after, edit).message,)
        if fact.message and forking.goes_into_open_request(before):
            self.messages.append(user(fact.message))
            self._shown.append((user(fact.message),))

    def in_full(self, place: int) -> tuple[Message, ...]:
        """The messages of an entry of the run, as they were before anything was cut."""
        messages, blocks = self._inherited
        return self._shown[place] if place < blocks else (self.messages[messages + place - blocks],)

    def as_shown(self, place: int) -> tuple[Message, ...]:
        """The messages of an entry of the run, as requests show them."""
        return self._shown[place]

    def shown(self, run: Run) -> tuple[Message, ...]:
        """What the open request of a run shows, or as much of it as an earlier one did."""
        if not run.rules.chains:
            return tuple(self.messages)
        if run.past.summary is None and not run.past.left_out:
            return tuple(chain.from_iterable(self._shown))
        return tuple(message for each in run.shown() for message in self._messages(run, each))

    def digest(self, run: Run, *, bare: bool) -> Digest:
        """The digest of a request that shows this, made from the messages; what a parent said is a link for each block, which was checked when it was taken over."""
        links: list[Digest] = []
        for each in run.shown():
            if isinstance(each, int) and run.entries[each].kind == HISTORY:
                links.append(run.entries[each].digest)
            else:
                links += (digest_of(encode(message)) for message in self._messages(run, each))
        return chained(start(run.begun, bare=bare), links)

    def _messages(self, run: Run, each: int | Entry) -> tuple[Message, ...]:
        """The messages of a place of the run, or what stands for those that are not shown."""
        if isinstance(each, int):
            return self._shown[each]
        return (context.summary_message(self.summaries[-1].summary if each is run.past.summary else self._instead),)

    def handed_on(self, run: Run, turns: int) -> list[tuple[int, tuple[Message, ...]]]:
        """What a run that goes on from the end of this one begins with, in blocks by position, which counts from that end.

        Each of the latest turns is a block, and what came before them is one; nothing is left out, but for what a summary stands for.
        """
        if run.context is None:
            return [(0, (*self.messages, *waiting(run)))]
        groups: dict[int, list[Message]] = {}
        for place, entry in enumerate(run.entries.since(run.past.hidden), run.past.hidden):
            groups.setdefault(entry.position - run.position, []).extend(self._shown[place])
        groups[0] = [new.message for new in context.news(run)]
        positions = [position for position, group in groups.items() if group]
        older, latest = positions[:-turns], positions[-turns:]
        before = [message for place in run.past.pinned for message in self._shown[place]]
        before += [context.summary_message(self.summaries[-1].summary)] if run.past.summary is not None else []
        before += [message for position in older for message in groups[position]]
        first = older[-1] if older else latest[0] - 1
        return [*([(first, tuple(before))] if before else []), *((position, tuple(groups[position])) for position in latest)]
