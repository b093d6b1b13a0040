"""Money: exact decimal strings in plain notation without trailing zeros.

A float would make 0.1 + 0.2 into 0.30000000000000004 and a budget of 0.3 into a riddle.
"""

from decimal import ROUND_FLOOR, Context, Decimal
from typing import Annotated, Final

import msgspec

Amount = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,400}(\.[0-9]{1,400})?$")]
"""An amount as a record holds it. Anything else is refused when it is read: a stranger's `1e999999999` would keep whoever adds it up for ever."""
_EXACT: Final = Context(prec=1000)


def plain(amount: Decimal) -> str:
    """`Decimal("1.50")` to `1.5`, `Decimal("1E+2")` to `100`."""
    text = format(amount, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def add(left: str, right: str) -> str:
    """The exact sum of two amounts."""
    return plain(_EXACT.add(Decimal(left), Decimal(right)))


def subtract(left: str, right: str) -> str:
    """The exact difference of two amounts."""
    return plain(_EXACT.subtract(Decimal(left), Decimal(right)))


def at_least(amount: str, limit: str) -> bool:
    """Whether `amount` has reached `limit`."""
    return Decimal(amount) >= Decimal(limit)


def largest(*amounts: str) -> str:
    """The largest of some amounts."""
    return plain(max(map(Decimal, amounts)))


def tokens_for(amount: str, price: str) -> int | None:
    """How many whole tokens an amount pays at `price` for a million, below zero where it is; None where they are free."""
    if not Decimal(price):
        return None if Decimal(amount) >= 0 else -1
    return int(_EXACT.divide(_EXACT.scaleb(Decimal(amount), 6), Decimal(price)).to_integral_value(ROUND_FLOOR, _EXACT))


def per_million(tokens: int, price: str) -> str:
    """What so many tokens cost at `price` for a million."""
    return plain(_EXACT.scaleb(_EXACT.multiply(Decimal(tokens), Decimal(price)), -6))
