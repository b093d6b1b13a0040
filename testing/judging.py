"""What is wrong with a run that was killed, resumed and brought to its end: duplicates, losses, divergences, a line each.

Apart from the campaign, which only makes such runs; here three witnesses are held against one another: the log, the ledger beside it, and the twin that nothing happened to.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.log import open_log
from refold.events.storage import PayloadMissing
from refold.projections.messages import Message
from refold.projections.run import Run, Tokens
from refold.runtime.agent import Agent
from refold.runtime.auditing import audit
from refold.runtime.replay import replay
from refold.runtime.store import Store
from refold.testing import ledger as l
from refold.testing.checks import transcript_of
from refold.testing.orders import RUN, SAID, url_of

Kind = Literal["duplicate", "loss", "divergence"]
OUTPUT_MAX: Final = 2_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must not be."""

    kind: Kind
    what: str


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to, without what depends on time: a killed one's and its twin's must be equal."""

    status: str
    reason: str | None
    answer: str | None
    reported: Tokens
    cost_usd: str
    turns: int
    tool_calls: int
    messages: tuple[Message, ...]
    requests: dict[int, str]
    """By number, the digest of what the model was shown."""
    steps: int


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one run, what came over it, and what it came to (None where it cannot even be read)."""

    findings: tuple[Finding, ...]
    came: tuple[l.Deed, ...]
    places: tuple[str, ...]
    reached: bool
    """Whether the run was still going on when the first deed was due."""
    account: Account | None


def judge(folder: Path, agent: Agent, twin: Account | None, *, stuck: str = "") -> Judgement:
    """Hold a run against its ledger and its twin; without one, the run is to be a twin itself. `stuck` says why it was given up, if it was."""
    lines = l.read(folder)
    came = [line for line in lines if isinstance(line, l.Came) and line.done]
    findings = [Finding(kind="divergence", what=stuck)] if stuck else []
    account = None
    log = open_log(url_of(folder), create=False)
    try:
        store = Store(log, url_of(folder))
        records = list(store.read(RUN))
        case = _Case(store, agent, records, lines, twin)
        findings += case.findings()
        account = case.account
    except PayloadMissing as missing:
        findings.append(Finding(kind="loss", what=f"an acknowledged record cannot be read: {missing}"))
    except Exception as error:  # noqa: BLE001 - a log that the fold of today refuses is a finding
        findings.append(Finding(kind="divergence", what=f"the log cannot be followed: {type(error).__name__}: {error}"))
    finally:
        log.close()
    deeds, places = tuple(line.deed for line in came), tuple(line.place for line in came)
    return Judgement(findings=tuple(findings), came=deeds, places=places, reached=any(isinstance(line, l.Came) for line in lines), account=account)


class _Case:
    """One run before its judge."""

    def __init__(self, store: Store, agent: Agent, records: Sequence[Record], lines: Sequence[l.Lines], twin: Account | None) -> None:
        self.store, self.agent, self.records, self.lines, self.twin = store, agent, records, lines, twin
        self.came = [line for line in lines if isinstance(line, l.Came) and line.done]
        self.deeds = {line.deed for line in self.came}
        self.run: Run = store.journal(RUN).run
        self.messages = transcript_of(records)
        self.executions = {call: list(each) for call, each in groupby(sorted(self._executed(), key=lambda line: line.call), key=lambda line: line.call)}
        self.effects: dict[str, str] = {
            check.call: check.effect for record in records if isinstance(record.fact, f.CallsChecked) for check in record.fact.checks
        }
        self.account = self._account()

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong."""
        for kind, made in (
            ("duplicate", self._duplicates()),
            ("loss", self._losses()),
            ("divergence", self._breaches()),
            ("divergence", self._differences()),
            ("divergence", self._permissions()),
            ("divergence", self._sleepers()),
        ):
            yield from (Finding(kind=kind, what=what) for what in made)  # type: ignore[arg-type]

    def _executed(self) -> list[l.Started | l.Ended]:
        return [line for line in self.lines if isinstance(line, l.Started | l.Ended)]

    def _account(self) -> Account:
        run = self.run
        answers = {record.position: record.fact.text for record in self.records if isinstance(record.fact, f.FinalProposed)}
        return Account(
            status=run.status,
            reason=run.reason,
            answer=answers.get(run.ended.answer_at) if isinstance(run.ended, f.RunCompleted) else None,
            reported=run.spent.reported,
            cost_usd=run.spent.cost_usd,
            turns=run.turn,
            tool_calls=run.spent.tool_calls,
            messages=tuple(self.messages),
            requests={line.number: line.digest for line in self.lines if isinstance(line, l.Asked)},
            steps=sum(isinstance(line, l.Step) for line in self.lines),
        )

    # -- duplicates

    def _duplicates(self) -> Iterator[str]:
        """A side effect that took place twice, or a call under two keys."""
        for call, lines in self.executions.items():
            name = _name(lines)
            started = [line for line in lines if isinstance(line, l.Started)]
            not_performed = sum(isinstance(line, l.Ended) and not line.performed for line in lines)
            times = len(started) - not_performed
            if times > 1 and self.effects.get(call, "side_effect") == "side_effect":
                yield f"{name} ({call}) was performed {times} times"
            if len(keys := {line.key for line in started}) > 1:
                yield f"{name} ({call}) ran under {len(keys)} keys"

    # -- losses

    def _losses(self) -> Iterator[str]:
        """What was acknowledged or performed and is not in the log, and what is in the log and was never performed."""
        digests = {record.position: record.digest for record in self.records}
        gone = [line.position for line in self.lines if isinstance(line, l.Stored) and digests.get(line.position) != line.digest]
        if gone:
            yield f"{len(gone)} acknowledged appends are not in the log any more, the first up to record {gone[0]}"
        if "say" in self.deeds and sum(message.role == "user" and message.text == SAID for message in self.messages) != 1:
            said = sum(isinstance(record.fact, f.UserSaid) for record in self.records)
            yield f"a message that was acknowledged is {said} times in the log and not once in the transcript"
        kinds = {message.call_id: message.kind for message in self.messages if message.role == "tool"}
        succeeded = {record.fact.call for record in self.records if isinstance(record.fact, f.ToolSucceeded)}
        for call in sorted(succeeded - self.executions.keys()):
            yield f"the log has a result of {call}, and no handler ran"
        for call, lines in self.executions.items():
            kind = kinds.get(call, "missing")
            performed = [line for line in lines if isinstance(line, l.Ended) and line.performed and not line.raised]
            if performed and self.effects.get(call) == "side_effect" and kind not in ("success", "in_doubt", "invalid_result"):
                yield f"{_name(lines)} ({call}) was performed, and its result is {kind}"
            if call not in self.effects:
                yield f"{_name(lines)} ({call}) was performed, and the log does not know the call"

    # -- divergences

    def _breaches(self) -> Iterator[str]:
        """A log that is not whole, not legal, or does not derive itself; a run that has not ended."""
        if self.run.state != "done":
            unfinished = ", ".join(call.id for call in self.run.calls if call.open)
            yield f"the run has not ended: it is in {self.run.state}" + (f", and {unfinished} is open" if unfinished else "")
        audited = audit(self.store, RUN)
        for name, verdict in (("chain", audited.chain), ("legality", audited.legal)):
            if not verdict.ok:
                yield f"audit, {name}: broken at {verdict.broken_at}: {verdict.why}"
        for invariant in audited.invariants:
            if not invariant.ok:
                yield f"audit, {invariant.id} ({invariant.title}): {'; '.join(map(str, invariant.evidence))}"
        replayed = replay(self.store, RUN)
        if replayed.divergence is not None:
            at = replayed.divergence
            yield f"replay: record {at.position}, {at.field}: {at.recorded!r} was recorded, {at.derived!r} is derived"
        for line in self.lines:
            if isinstance(line, l.Asked) and line.unanswered:
                yield f"request {line.number} was sent without the results of {', '.join(line.unanswered)}"

    def _differences(self) -> Iterator[str]:
        """What differs from the twin. Who is spoken to or cancelled goes another way than the twin, and is held to less."""
        twin, mine = self.twin, self.account
        if twin is None or self.run.state != "done":
            return
        if "cancel" in self.deeds:
            if mine.status not in ("cancelled", twin.status):
                yield f"status is {mine.status!r} ({self.run.detail}) of a run that was cancelled"
            return
        doubts = "say" in self.deeds
        for name in ("status", "reason", "answer", *(() if doubts else ("turns", "tool_calls", "cost_usd", "reported"))):
            if (own := getattr(mine, name)) != (its := getattr(twin, name)):
                yield f"{name} is {own!r}, the twin's {its!r}"
        if doubts:
            return
        told = [line.result["usage"] for line in self.lines if isinstance(line, l.Reported)]
        if told and told[-1]["reported"] != msgspec.to_builtins(twin.reported):
            yield f"the last process reported the usage {told[-1]['reported']}, and the twin's is {msgspec.to_builtins(twin.reported)}"
        if len(mine.messages) != len(twin.messages):
            yield f"the transcript has {len(mine.messages)} messages, the twin's {len(twin.messages)}"
        for place, (own_message, its_message) in enumerate(zip(mine.messages, twin.messages, strict=False)):
            if own_message == its_message:
                continue
            if self._may_doubt(own_message, its_message):
                doubts = True
                continue
            yield f"message {place} is {_short(own_message)}, the twin's {_short(its_message)}"
        others = [number for number in sorted(twin.requests) if mine.requests.get(number) not in (None, twin.requests[number])]
        if others and not doubts:
            yield f"{len(others)} requests showed the model something else than the twin's, the first of them request {others[0]}"

    def _may_doubt(self, mine: Message, its: Message) -> bool:
        """Whether a result says that a side effect is in doubt, and its driver was lost while it ran."""
        if mine.kind != "in_doubt" or (mine.call_id, mine.name) != (its.call_id, its.name) or self.effects.get(mine.call_id) != "side_effect":
            return False
        lost = {line.process for line in self.came if line.deed in ("death", "takeover")}
        drivers = {_process(record) for record in self.records if isinstance(record.fact, f.ToolStarted) and record.fact.call == mine.call_id}
        return bool(lost & drivers) and not self._kept_back(mine.call_id)

    def _kept_back(self, call: str) -> bool:
        """Whether the runtime knew an outcome and appended more before it than the outcomes of all other calls of the turn, which may have come in the same moment."""
        after, process = 0, None
        over: set[int] = set()  # processes that were taken over: what they append then is a note
        for line in self.lines:
            if isinstance(line, l.Came):
                over.add(line.process)
            elif isinstance(line, l.Ended) and line.call == call:
                after, process = 0, line.process
            elif isinstance(line, l.Stored) and line.process == process and process not in over:
                after += 1
        turn = call.partition(".")[0]
        return after >= sum(each.partition(".")[0] == turn for each in self.effects)

    def _permissions(self) -> Iterator[str]:
        """What ran without the word of a human that it needs, or otherwise than that word was given; an answer that was not judged."""
        allowed = {line.call: line.arguments for line in self.lines if isinstance(line, l.Allowed)}
        for call, lines in self.executions.items():
            tool = self.agent.tools.get(_name(lines))
            ran = {line.arguments for line in lines if isinstance(line, l.Started)}
            if call in allowed and ran != {allowed[call]}:
                yield f"{_name(lines)} ({call}) ran with {', '.join(sorted(ran))}, and {allowed[call]} was allowed"
            if call not in allowed and tool is not None and tool.approval == "always":
                yield f"{_name(lines)} ({call}) ran, and nobody had allowed it"
        verdicts = [record.fact for record in self.records if isinstance(record.fact, f.AnswerChecked)]
        if self.run.status == "completed" and verdicts and set(verdicts[-1].validators) != {name for name, _ in self.agent.validators}:
            yield f"the answer was accepted by {', '.join(verdicts[-1].validators) or 'no validator'}, the agent has {', '.join(name for name, _ in self.agent.validators)}"

    def _sleepers(self) -> Iterator[str]:
        """A driver that was taken over may note what came too late, and nothing else."""
        for number, line in enumerate(self.lines):
            if not isinstance(line, l.Came) or line.deed != "takeover" or not line.done or self._role(line.process) != "drive":
                continue
            later = {each.position for each in self.lines[number:] if isinstance(each, l.Stored) and each.process == line.process and each.position > line.head}
            known = {record.position: record.type for record in self.records}
            wrong = sorted(position for position in later if known.get(position) not in ("late_outcome", "driver_attached"))
            if wrong:
                yield f"a driver that had been taken over appended {len(wrong)} times, the first up to record {wrong[0]} ({known.get(wrong[0])})"

    def _role(self, process: int) -> str:
        return next((line.role for line in self.lines if isinstance(line, l.Began) and line.process == process), "")


def output_of(folder: Path) -> str:
    """The end of what the processes of a run printed."""
    path = folder / "output.txt"
    return path.read_text(encoding="utf-8", errors="replace")[-OUTPUT_MAX:] if path.exists() else ""


def _name(lines: Sequence[l.Started | l.Ended]) -> str:
    return next((line.tool for line in lines if isinstance(line, l.Started)), "a tool")


def _process(record: Record) -> int:
    """The process that appended a record."""
    return int(record.driver.rpartition(":")[2])


def _short(message: Message) -> Any:
    shown = msgspec.json.encode(message).decode()
    return shown if len(shown) <= 300 else shown[:300] + "..."
