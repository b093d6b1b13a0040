"""What an invariant is given and what it answers: a run record by record, and signs for or against.

Apart from the invariants, because all files of them speak in these few words. An invariant is a coroutine: it is sent each record that it reads, and then None,
and says in between what it found; so a run is judged in one pass, however long it is. Its cases stand by how often their records come, because looking is what it costs.
"""

from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import Final, NamedTuple, TypeVar

import msgspec

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.settings import Budgets, Context, Policy
from refold.fsm.decisions import DECIDES, NOTHING_DECIDED, Decisions, decided
from refold.fsm.sums import COUNTED, Sums, count
from refold.projections.run import Run

T = TypeVar("T", Budgets, Policy, Context)


class Settings(NamedTuple):
    """Budgets, policy and context as they are in force."""

    budgets: Budgets
    policy: Policy
    context: Context


NONE_YET: Final = Settings(Budgets(), Policy(), Context())


class History(msgspec.Struct, kw_only=True):
    """A run up to the record that is judged, that included, as its records have it."""

    run: Run
    """The fold before the record, as long as the records are legal: to be compared with, never to be believed."""
    folded: bool = True
    """Whether they were, so that `run` is where the records are."""
    last: Record | None = None
    settings: Settings = NONE_YET
    sums: Sums = msgspec.field(default_factory=Sums)
    before: Sums = msgspec.field(default_factory=Sums)
    """The sums before the open request was made."""
    decisions: Decisions = NOTHING_DECIDED
    request: f.ModelRequested | None = None
    """The last request before the record."""
    asked: f.ModelRequested | None = None
    """The record itself, where it is a request."""
    damage: tuple[int, str] | None = None
    """Where the chain breaks and why, once all is read."""

    def take(self, record: Record) -> None:
        """One more record. Raises ArithmeticError, ValueError or MsgspecError for amounts that are none."""
        tag, fact = record.type, record.fact
        self.request, self.asked = self.asked or self.request, None
        self.last = record
        if tag in CHANGES_SETTINGS:
            self.settings = in_force(self.settings, fact)
        if tag in COUNTED:
            if isinstance(fact, f.ModelRequested):
                self.before, self.asked = msgspec.structs.replace(self.sums), fact
            count(self.sums, record)
        if tag in DECIDES:
            self.decisions = decided(self.decisions, fact, self.settings.policy)


class Sign(NamedTuple):
    """One piece of evidence, found at a position."""

    position: int
    words: str = ""
    broken: bool = False


Signs = Generator[Sign | None, Record | None, None]
Judge = Callable[[History], Signs]


def broken(position: int, words: str) -> Sign:
    return Sign(position, words, broken=True)


CHANGES_SETTINGS: Final = frozenset(fact.TAG for fact in (f.RunStarted, f.RunContinued, f.RunForked))
"""The types of records that may change the settings."""


def in_force(settings: Settings, fact: f.Fact) -> Settings:
    """The settings after one more fact: a run begins with some, a fork may change them."""
    match fact:
        case f.RunStarted() | f.RunContinued():
            return Settings(fact.setup.budgets, fact.setup.policy, fact.setup.context or Context())
        case f.RunForked() if fact.changes:
            return Settings(
                _changed(settings.budgets, "budgets.", fact), _changed(settings.policy, "policy.", fact), _changed(settings.context, "context.", fact)
            )
        case _:
            return settings


def _changed(value: T, prefix: str, fact: f.RunForked) -> T:
    changes = {path.removeprefix(prefix): new for path, new in fact.changes.items() if path.startswith(prefix)}
    return msgspec.convert({**asdict(value), **changes}, type(value), strict=False) if changes else value
