"""Exact arithmetic on integers and decimals, bounded so that no expression hangs or exhausts memory.

Apart from the tools and with a parser of its own: nothing of Python's syntax is evaluated, and every value is checked before it is made.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

EXPRESSION_CHARS_MAX: Final = 1_000
DEPTH_MAX: Final = 50
DIGITS_MAX: Final = 1_000
"""Digits of a numerator or denominator, of any value on the way."""
EXPONENT_MAX: Final = 1_000
ROUNDED_DIGITS: Final = 30
"""Significant digits of a result that has no finite decimal form."""

BITS_MAX: Final = DIGITS_MAX * 10 // 3
TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?)|(?P<name>[a-z]+)|(?P<sign>\*\*|//|[-+*/%(),]))"
)
SIGNS: Final = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/"})

FUNCTIONS: Final[dict[str, tuple[int, int, Callable[..., Fraction]]]] = {
    "abs": (1, 1, abs),
    "ceil": (1, 1, lambda x: Fraction(ceil(x))),
    "floor": (1, 1, lambda x: Fraction(floor(x))),
    "max": (1, 100, lambda *xs: max(xs)),
    "min": (1, 100, lambda *xs: min(xs)),
    "round": (1, 2, lambda x, n=Fraction(0): _round(x, n)),
}
"""Name, fewest and most arguments. `round(x, digits)` takes ties to the even neighbour."""


def calculate(expression: str) -> dict[str, Any]:
    """The value of an expression: `result` as a decimal, and whether that is `exact`.

    A value without a finite decimal form is rounded to 30 significant digits, half to even, and its `fraction` is given beside it.
    Raises ValueError, in one line, for what is not an expression or too large.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise ValueError(f"the expression is longer than {EXPRESSION_CHARS_MAX} characters")
    value = _Parser(expression).value()
    result, exact = _decimal(value)
    return {"expression": expression, "result": result, "exact": exact} | ({} if exact else {"fraction": f"{value.numerator}/{value.denominator}"})


class _Parser:
    """Recursive descent: sums of products of signed powers."""

    def __init__(self, expression: str) -> None:
        text, self._tokens, at = expression.translate(SIGNS).rstrip(), list[tuple[str, str]](), 0
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found or found.lastgroup is None:
                raise ValueError(
                    f"cannot read the expression at {text[at:].strip()[:20]!r}; it may hold numbers, + - * / // % ** and parentheses, {', '.join(FUNCTIONS)}"
                )
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        self._at = self._depth = 0

    def value(self) -> Fraction:
        if not self._tokens:
            raise ValueError("the expression is empty")
        value = self._sum()
        if self._at < len(self._tokens):
            raise ValueError(f"unexpected {self._tokens[self._at][1]!r} in the expression")
        return value

    def _next(self, *signs: str) -> str:
        """Takes the next token if it is one of these signs."""
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "sign" and self._tokens[self._at][1] in signs:
            self._at += 1
            return self._tokens[self._at - 1][1]
        return ""

    def _sum(self) -> Fraction:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"the expression is nested deeper than {DEPTH_MAX}")
        value = self._product()
        while sign := self._next("+", "-"):
            right = self._product()
            value = _bounded(value + right if sign == "+" else value - right)
        self._depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._next("*", "/", "//", "%"):
            right = self._signed()
            if sign != "*" and right == 0:
                raise ValueError("division by zero")
            match sign:
                case "*":
                    value = value * right
                case "/":
                    value = value / right
                case "//":
                    value = Fraction(value // right)
                case _:
                    value = value % right
            _bounded(value)
        return value

    def _signed(self) -> Fraction:
        sign = 1
        while found := self._next("+", "-"):
            sign = -sign if found == "-" else sign
        return sign * self._power()

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._next("**"):
            return base
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"the expression is nested deeper than {DEPTH_MAX}")
        exponent = self._signed()
        self._depth -= 1
        return _raised(base, exponent)

    def _atom(self) -> Fraction:
        if self._next("("):
            return self._closed(self._sum())
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end")
        self._at += 1
        if kind == "number":
            return _number(text)
        if kind == "name" and text in FUNCTIONS and self._next("("):
            fewest, most, function = FUNCTIONS[text]
            arguments = [self._sum()]
            while self._next(","):
                arguments.append(self._sum())
            if not fewest <= len(arguments) <= most:
                raise ValueError(f"{text} takes {fewest} to {most} arguments")
            return _bounded(self._closed(function(*arguments)))
        raise ValueError(f"unexpected {text!r} in the expression")

    def _closed(self, value: Fraction) -> Fraction:
        if not self._next(")"):
            raise ValueError("a parenthesis is not closed")
        return value


def _number(text: str) -> Fraction:
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > EXPONENT_MAX:
        raise ValueError(f"the exponent of {text[:20]} is larger than {EXPONENT_MAX}")
    return _bounded(Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0))


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be a whole number, so that the result is exact")
    if abs(exponent) > EXPONENT_MAX:
        raise ValueError(f"an exponent may be at most {EXPONENT_MAX}")
    if base == 0 and exponent < 0:
        raise ValueError("division by zero")
    if (_bits(base) - 1) * abs(int(exponent)) > BITS_MAX:
        raise ValueError(f"a value has more than {DIGITS_MAX} digits")
    return _bounded(base ** int(exponent))


def _round(value: Fraction, digits: Fraction) -> Fraction:
    if digits.denominator != 1 or abs(digits) > DIGITS_MAX:
        raise ValueError(f"round takes a whole number of digits up to {DIGITS_MAX}")
    return Fraction(round(value, int(digits)))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > BITS_MAX:
        raise ValueError(f"a value has more than {DIGITS_MAX} digits")
    return value


def _decimal(value: Fraction) -> tuple[str, bool]:
    """Plain notation without trailing zeros, and whether nothing was rounded away."""
    sign, value = ("-" if value < 0 else ""), abs(value)
    odd, places = value.denominator, 0
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    fives = 0
    while odd % 5 == 0:
        odd, fives = odd // 5, fives + 1
    exact = odd == 1 and max(twos, fives) <= DIGITS_MAX
    if exact:
        places = max(twos, fives)
        digits = value.numerator * 10**places // value.denominator
    else:
        whole = len(str(value.numerator // value.denominator)) if value >= 1 else -_leading_zeros(value)
        places = max(ROUNDED_DIGITS - whole, 0)
        digits = round(value * 10**places)
    text = str(digits).rjust(places + 1, "0")
    point = len(text) - places
    return sign + (f"{text[:point]}.{text[point:]}".rstrip("0").rstrip(".") if places else text), exact


def _leading_zeros(value: Fraction) -> int:
    """Zeros between the point and the first digit of a value below 1."""
    zeros = max(len(str(value.denominator)) - len(str(value.numerator)) - 1, 0)
    while value * 10 ** (zeros + 1) < 1:
        zeros += 1
    return zeros
