"""The number of the rules: it rises whenever the same inputs would derive other facts, and a run keeps the number it began with.

What differs between numbers are named switches here and nowhere else, asked by the fold and by every decision; logs of a number that is not listed can be shown, not replayed.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Rules(NamedTuple):
    """The switches of one number."""

    reserves: bool = False
    """Estimates lean on what the provider reported, money is reserved as tokens are, and every attempt may write what is left then."""
    settles: bool = False
    """What a stream reports on its way is booked, a request that was lost with its process costs its estimate, and everything that was said counts."""
    chains: bool = False
    """The digest of a request is a chain over instructions, tools as they are shown, and each message."""
    marks: bool = False
    """What a response that was cut by us said is marked as interrupted, and goes back without what only its provider can read."""
    tells_overflow: bool = False
    """A request that was longer than the model's window ends the run in those words."""
    tells_wait: bool = False
    """A provider that is not asked again because it wants to be waited for too long is said to want that."""
    tells_begun: bool = False
    """A call that is closed although a lost process had begun it is not said to have never run."""


RULES: Final[Mapping[int, Rules]] = {
    1: Rules(),
    2: Rules(reserves=True, settles=True, chains=True, marks=True, tells_overflow=True, tells_wait=True, tells_begun=True),
}
SUPPORTED: Final = frozenset(RULES)
ENGINE: Final = max(RULES)
"""The rules under which new runs begin."""


def rules_of(engine: int) -> Rules:
    """The switches of a number; those of the newest where it is not known, since its logs can still be shown."""
    return RULES.get(engine, RULES[ENGINE])


class UnsupportedEngine(Exception):
    """A run of rules that this version does not know."""

    def __init__(self, engine: int) -> None:
        super().__init__(
            f"the run was made under engine {engine}, and this version of refold derives only {', '.join(map(str, sorted(SUPPORTED)))}; use the version that made it"
        )
        self.engine = engine
