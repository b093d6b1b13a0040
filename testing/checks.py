"""What must be true of every log, whatever happened to its run: chain, legality, invariants, the transcript, and that it can be derived again.

Needs no test framework: any test, and any program, can hold a log against it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from refold.events import facts as f
from refold.events.codec import Record, Stamp, data_of
from refold.events.payloads import move_out
from refold.events.words import Digest
from refold.fsm.audit import audit_rows
from refold.fsm.decide import decide
from refold.fsm.machine import Illegal, Refused, empty, step
from refold.projections.messages import Message
from refold.projections.run import Run, replace
from refold.projections.transcript import said


class Broken(AssertionError):
    """A log that cannot be one; `breaches` says why, a line each."""

    def __init__(self, breaches: Sequence[str]) -> None:
        super().__init__("\n".join(breaches))
        self.breaches = list(breaches)


def check_log(records: Iterable[Record]) -> None:
    """Raises Broken unless these are all the records of a run, or the first ones, from position 1 on, whole batches; of a fork, its parents' in front."""
    held = list(records)
    if breaches := list(breaches_of(held)):
        raise Broken(breaches)


def breaches_of(records: Sequence[Record]) -> Iterator[str]:
    """What is wrong with the records of a run, a line each."""
    if not records:
        yield "there are no records"
        return
    payloads: dict[Digest, bytes] = {}
    for record in records:
        payloads |= move_out(data_of(record.fact))[1]
    audited = audit_rows(records[-1].run, [(record.position, record.stored) for record in records], payloads.__getitem__)
    for name, verdict in (("chain", audited.chain), ("legal", audited.legal)):
        if not verdict.ok:
            yield f"{name}: broken at {verdict.broken_at}: {verdict.why}"
    for invariant in audited.invariants:
        if not invariant.ok:
            yield f"{invariant.id} ({invariant.title}): {'; '.join(map(str, invariant.evidence))}"
    if audited.chain.ok and audited.legal.ok:
        yield from _transcript_breaches(transcript_of(records))
        yield from _derivation_breaches(records)


def transcript_of(records: Iterable[Record]) -> list[Message]:
    """The messages of a run in the order in which requests show them. Raises Illegal."""
    run: Run | None = None
    messages: list[Message] = []
    for record in records:
        before = run if run is not None else empty(record.run)
        run = step(before, record)
        messages += said(before, record.fact, run)
    return messages


def _transcript_breaches(messages: Sequence[Message]) -> Iterator[str]:
    """The results of a turn stand directly behind it, one for each call, in call order; and nowhere else."""
    owed: list[str] = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            if not owed or owed[0] != message.call_id:
                yield f"message {place} is the result of {message.call_id}; expected was {owed[0] if owed else 'none'}"
            owed = [call for call in owed if call != message.call_id]
            continue
        if owed:
            yield f"message {place} comes before the results of {', '.join(owed)}"
        owed = [call.id for call in message.calls]
    if owed:
        yield f"the transcript ends without the results of {', '.join(owed)}"


def _derivation_breaches(records: Sequence[Record]) -> Iterator[str]:
    """With every derived record deleted, deciding again gives the same batches."""
    run = empty(records[0].run)
    batches = [list(grouped) for _, grouped in groupby(records, key=lambda record: record.batch)]
    for whole, behind in pairwise([*batches, []]):
        batch, first = whole[0].batch, whole[0]
        if isinstance(first.fact, f.RunForked):
            run = replace(run, id=first.run)
        inputs = [record.fact for record in whole if record.fact.INPUT]
        stamp = Stamp(at=first.at, driver=first.driver, stepped_back_us=first.stepped_back_us)
        try:
            edges = decide(run, inputs, stamp).edges  # type: ignore[arg-type]  # INPUT says that they are
        except (Illegal, Refused) as error:
            yield f"the batch at {batch} cannot be decided again: {error}"
            return
        split = bool(behind) and isinstance(behind[0].fact, f.RunForked)  # what followed there is the parent's alone
        derived = [(edge.fact, edge.source, edge.target) for edge in (edges[: len(whole)] if split else edges)]
        recorded = [(record.fact, record.source, record.target) for record in whole]
        if derived != recorded:
            yield f"the batch at {batch} is {_tags(fact for fact, *_ in recorded)}, and decided again {_tags(fact for fact, *_ in derived)}"
            return
        for record in whole:
            run = step(run, record)


def _tags(facts: Iterable[f.Fact]) -> str:
    return ", ".join(fact.TAG for fact in facts)
