"""The number of the rules: it rises whenever the same inputs would derive other facts, and a run keeps the number it began with.

What differs between numbers are named switches here and nowhere else; logs of a number that is not listed can be shown, not replayed.
"""

from typing import Final

ENGINE: Final = 1
"""The rules under which new runs begin."""
SUPPORTED: Final = frozenset({1})


class UnsupportedEngine(Exception):
    """A run of rules that this version does not know."""

    def __init__(self, engine: int) -> None:
        super().__init__(
            f"the run was made under engine {engine}, and this version of refold derives only {', '.join(map(str, sorted(SUPPORTED)))}; use the version that made it"
        )
        self.engine = engine
