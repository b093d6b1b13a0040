"""Money: exact decimal strings in plain notation without trailing zeros.

A float would make 0.1 + 0.2 into 0.30000000000000004 and a budget of 0.3 into a riddle.
"""

from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

_EXACT: Final = Context(prec=1000)
_READ: Final = Context(prec=28)
DIGITS_MAX: Final = 1_000
"""On either side of the point: what a stranger's `1e999999999` stands for would take for ever to add up."""


def plain(amount: Decimal) -> str:
    """`Decimal("1.50")` to `1.5`, `Decimal("1E+2")` to `100`."""
    text = format(amount, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def amount_of(text: str) -> Decimal:
    """An amount as a record holds it. Raises ValueError or ArithmeticError for what is none."""
    amount = Decimal(text)
    if not amount.is_finite() or abs(amount.adjusted()) > DIGITS_MAX:
        raise ValueError(f"{text[:40]} is no amount of money")
    return amount


def shown(amount: Fraction) -> str:
    """An amount for somebody to read: what has no end as a decimal stops after so many digits."""
    return format(_READ.divide(Decimal(amount.numerator), Decimal(amount.denominator)), "f")


@lru_cache(maxsize=1024)  # prices and limits are asked for again and again
def exact(text: str) -> Fraction:
    """The same, to be added up without a limit of digits."""
    return Fraction(amount_of(text))


def add(left: str, right: str) -> str:
    """The exact sum of two amounts."""
    return plain(_EXACT.add(amount_of(left), amount_of(right)))


def subtract(left: str, right: str) -> str:
    """The exact difference of two amounts."""
    return plain(_EXACT.subtract(amount_of(left), amount_of(right)))


def at_least(amount: str, limit: str) -> bool:
    """Whether `amount` has reached `limit`."""
    return amount_of(amount) >= amount_of(limit)


def largest(*amounts: str) -> str:
    """The largest of some amounts."""
    return plain(max(map(amount_of, amounts)))


def tokens_for(amount: str, price: str) -> int | None:
    """How many whole tokens an amount pays at `price` for a million, below zero where it is; None where they are free."""
    if not amount_of(price):
        return None if amount_of(amount) >= 0 else -1
    return int(_EXACT.divide(_EXACT.scaleb(amount_of(amount), 6), amount_of(price)).to_integral_value(ROUND_FLOOR, _EXACT))


def per_million(tokens: int, price: str) -> str:
    """What so many tokens cost at `price` for a million."""
    return plain(_EXACT.scaleb(_EXACT.multiply(Decimal(tokens), amount_of(price)), -6))
