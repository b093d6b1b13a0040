"""What a run came to, as Python and `--json` give it."""

from dataclasses import dataclass, field
from typing import Any

from refold.events.codec import Record
from refold.events.words import Reason, State, Status
from refold.projections.run import Run
from refold.projections.view import answer_of, citations_of, usage_of
from refold.runtime.store import Store


@dataclass(frozen=True)
class Result:
    """A run at the end of a verb. `records` are read from the log when asked for; money is a decimal string."""

    id: str
    status: Status
    reason: Reason | None
    detail: str
    answer: str | None
    citations: list[dict[str, Any]]
    turns: int
    tool_calls: int
    usage: dict[str, Any]
    position: int
    state: State
    lost: bool = False
    """Whether another driver took over meanwhile."""
    run: Run = field(repr=False, kw_only=True)
    _store: Store = field(repr=False, kw_only=True)

    @property
    def records(self) -> list[Record]:
        """The log of the run."""
        return list(self._store.read(self.id))

    @property
    def forked_from(self) -> str | None:
        """The run that this one is a fork of."""
        return self.run.forked_from

    @property
    def forked_at(self) -> int | None:
        """The last position that a fork has in common with that."""
        return self.run.forked_at if self.forked_from is not None else None

    def as_json(self) -> dict[str, Any]:
        """The documented shape of `run`, `resume` and `continue`."""
        names = ("status", "reason", "detail", "answer", "citations", "turns", "tool_calls", "usage", "position")
        forked = {"forked_from": self.forked_from, "forked_at": self.forked_at} if self.forked_from is not None else {}
        return {"run_id": self.id, **{name: getattr(self, name) for name in names}, **forked}


def result_of(store: Store, run: Run, *, lost: bool = False) -> Result:
    """The result of a run in this state."""
    records = list(store.read(run.id)) if run.state == "done" else []
    return Result(
        id=run.id,
        status=run.status,
        reason=run.reason,
        detail=run.detail,
        answer=answer_of(run, records),
        citations=citations_of(run, records),
        turns=run.turn,
        tool_calls=run.spent.tool_calls,
        usage=usage_of(run),
        position=run.position,
        state=run.state,
        lost=lost,
        run=run,
        _store=store,
    )
