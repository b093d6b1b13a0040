"""Text at the border: halves of surrogate pairs are joined or replaced once, so that what is live equals what is read back."""

from typing import Final

from refold.projections.messages import visible

__all__ = ["REPLACEMENT", "visible", "whole"]

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def whole(text: str) -> str:
    """`text` without lone surrogates: a pair that was split over two pieces is one character again, half of one is U+FFFD."""
    if text.isascii():  # no copy is made of what may be megabytes
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
