"""What an invariant is given and what it answers: the records of a run, and signs for or against.

Apart from the invariants, because both files of them speak in these few words.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Final, NamedTuple, TypeVar

import msgspec

from refold.events import facts as f
from refold.events.codec import Record
from refold.events.settings import Budgets, Context, Policy
from refold.projections.run import Run

T = TypeVar("T", Budgets, Policy, Context)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A run as an invariant may read it. `run` is its fold up to the last legal record: to be compared with, never to be believed."""

    records: tuple[Record, ...]
    run: Run
    damage: tuple[int, str] | None = None
    """Where the chain breaks and why."""

    @property
    def folded_whole(self) -> bool:
        return self.run.position == len(self.records)


class Sign(NamedTuple):
    """One piece of evidence, found at a position."""

    position: int
    words: str = ""
    broken: bool = False


Signs = Iterator[Sign]
Judge = Callable[[History], Signs]


def broken(position: int, words: str) -> Sign:
    return Sign(position, words, broken=True)


class Settings(NamedTuple):
    """Budgets, policy and context as they are in force."""

    budgets: Budgets
    policy: Policy
    context: Context


NONE_YET: Final = Settings(Budgets(), Policy(), Context())


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
