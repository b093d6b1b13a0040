"""Counts and costs as servers write them, as the numbers that a part may hold.

Apart from the adapters, because a server may write anything where a number is due, and none of it may stop a run.
"""

from decimal import Decimal
from typing import Any, Final

from refold.events.money import plain

COUNT_MAX: Final = 2**53 - 1
COST_MIN, COST_MAX = 1e-20, 10**12


def count(value: Any) -> int:
    """A number of tokens; nothing where it is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= COUNT_MAX:
        return 0
    return int(value)


def is_beside(output: int, reasoned: int, asked: int, total: int) -> bool:
    """Whether a server counts reasoning beside its output and not in it: then its total says so, or there is more of it than of output."""
    return reasoned > 0 and (total - asked - output == reasoned or (reasoned > output and total != asked + output))


def cost_usd(value: Any) -> str | None:
    """What a response cost, as its server reports it: a number, or an object with a `total_cost`. None where it says nothing."""
    if isinstance(value, dict):
        value = value.get("total_cost")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= COST_MAX:
        return None
    return plain(Decimal(repr(value))) if value >= COST_MIN else "0"
