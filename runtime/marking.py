"""Where secrets stand in a text, and how it reads without them: whole, or as it comes in pieces.

Apart from redaction, which says what is rewritten when, because finding a secret in a text that is not whole yet is a matter of its own.
"""

import re
import string
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from refold.runtime.text import whole

MARK: Final = "[redacted]"
NAME: Final = (
    r"(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|(?:access|auth|refresh)[_-]?token|private[_-]?key|authorization|(?-i:[A-Z]_TOKEN))"
)
_BEFORE: Final = rf"(?:{NAME}[\"']?\s{{0,3}}(?:=>|[:=])\s{{0,3}}[\"']?(?:(?:bearer|basic|token)\s{{1,3}})?|\b(?:bearer|basic)\s{{1,3}}|://[^\s/:@]{{1,100}}:(?=[^\s/@]{{1,200}}(?:@|\Z)))"
_CHARACTER: Final = r"[^\s\"'&,;(){}\[\]<>@]"
NAMED: Final = re.compile(rf"{_BEFORE}(?P<secret>(?!\$|(?:env|secret|ref):|\[)(?={_CHARACTER}{{0,200}}\d){_CHARACTER}{{8,}})", re.IGNORECASE)
OPEN: Final = re.compile(rf"{_BEFORE}(?P<secret>{_CHARACTER}*)\Z", re.IGNORECASE)
"""The same, where the text ends in the middle of it."""
BEGUN: Final = re.compile(rf"(?:passw[a-z]{{0,2}}|secret[\w-]{{0,11}}|{NAME}[\"']?\s{{0,3}}|\b(?:bearer|basic)|://[^\s/:@]{{0,100}})\Z", re.IGNORECASE)
"""The same, where the text ends before it."""
ANCHORS: Final = {
    "secret": (0,),
    "passw": (0,),
    "authorization": (0,),
    "bearer": (0,),
    "basic": (0,),
    "://": (0,),
    "key": (3, 4, 7, 8),
    "token": (2, 4, 5, 6, 7, 8),
}
"""What is found a hundred times quicker than the expression, and how far before it that may begin."""
ASCII_LOWER: Final = {ord(letter): letter.lower() for letter in string.ascii_uppercase}
ANCHOR: Final = re.compile("|".join(ANCHORS))
ANCHOR_LENGTH: Final = max(map(len, ANCHORS))
SETTLED: Final = 201
"""Characters after which it is clear whether what stands behind a name is a secret."""
CONTEXT: Final = 200
"""Characters already shown that what comes next is read with."""
WINDOW: Final = 1_024
"""Characters that are kept at most of what is out, and of a secret that goes on."""


def named(text: str) -> Iterator[tuple[int, int]]:
    """Where secrets stand behind a name that says so."""
    past: dict[str, int] = {}
    for at, anchor in _anchors(text):
        if at >= past.get(anchor, 0) and (match := _behind(NAMED, text, at, anchor)) is not None:
            past[anchor] = match.end()
            yield match.span("secret")


def _anchors(text: str) -> Iterator[tuple[int, str]]:
    """Words that a secret may stand behind, and where they are; those of one kind in order."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters have two small ones
        lower = text.translate(ASCII_LOWER)
    for anchor in ANCHORS:
        at = lower.find(anchor)
        while at >= 0:
            yield at, anchor
            at = lower.find(anchor, at + 1)


def _behind(pattern: re.Pattern[str], text: str, at: int, anchor: str) -> re.Match[str] | None:
    """What stands behind the name that an anchor is a part of."""
    return next((match for offset in ANCHORS[anchor] if at >= offset and (match := pattern.match(text, at - offset)) is not None), None)


def apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, those that overlap joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def marked(text: str, spans: list[tuple[int, int]]) -> str:
    """With a mark in the place of each."""
    for start, end in reversed(spans):
        text = text[:start] + MARK + text[end:]
    return text


class Passage:
    """One text on its way to the screen: `more` gives what can be shown whatever comes next, `end` the rest; together they are what marking it at once gives.

    `values` are marked, and what is named as a secret; `redact`, where there is one, is asked before that, about whole lines.
    It looks only at what came last, however long the text is.
    """

    def __init__(self, values: tuple[str, ...], redact: Callable[[str], str] | None) -> None:
        self._known, self._redact = values, redact
        self._half = ""
        """The first half of a surrogate pair."""
        self._line: list[str] = []
        """The beginning of a line, where `redact` is asked."""
        self._text, self._out = "", 0
        """What is looked at, and how much of it is out; all places are places in it."""
        self._found: list[tuple[int, int]] = []
        """Secrets that are whole, and not out."""
        self._begun: set[str] = set()
        """Known values that it ends in the middle of."""
        self._anchors: list[tuple[int, str]] = []
        """Behind what a secret may yet stand."""
        self._past: dict[str, int] = {}
        """By value or anchor: the end of the last secret that was found by it."""
        self._endless: int | None = None
        """Where a secret begins that goes on and on."""
        self._heads, self._longest = _heads(values), max(map(len, values), default=0)

    def more(self, text: str) -> str:
        """What can be shown now that `text` came too."""
        if self._half or not text.isascii():
            text, self._half = self._half + text, ""
            if "\ud800" <= text[-1:] <= "\udbff":
                text, self._half = text[:-1], text[-1]
            text = whole(text)
        if self._redact is not None:
            text = self._lines(text, self._redact)
        return self._safe(text) if text else ""

    def end(self) -> str:
        """What was held back."""
        rest = "".join((*self._line, whole(self._half)))
        return self._safe(self._redact(rest) if self._redact is not None and rest else rest, last=True)

    def _lines(self, text: str, redact: Callable[[str], str]) -> str:
        """The lines that are whole now, as `redact` leaves them."""
        lines, newline, begun = text.rpartition("\n")
        if not newline:
            self._line.append(text)
            return ""
        done, self._line = "".join((*self._line, lines, newline)), [begun]
        return redact(done)

    def _safe(self, text: str, *, last: bool = False) -> str:
        """The next piece, marked, as far as nothing that comes can change it."""
        before = len(self._text)
        self._text += text
        start = max(0, before - ANCHOR_LENGTH + 1)
        if ANCHOR.search(self._text[start:].lower()):
            self._anchors += [(start + at, anchor) for at, anchor in _anchors(self._text[start:]) if start + at + len(anchor) > before]
        if self._anchors or self._begun or self._found or self._heads.search(text):
            safe = min(self._values(before, last=last), self._named(last=last))
            said = self._said(apart(self._found), safe)
        else:
            self._out, said = len(self._text), text
        if self._out > WINDOW:
            self._forget(self._out - CONTEXT)
        elif self._endless is not None and len(self._text) > WINDOW:
            self._shorten(self._endless)
        return said

    def _said(self, found: list[tuple[int, int]], safe: int) -> str:
        """What is not out up to `safe`; a secret comes out whole."""
        safe = min((start for start, end in found if start < safe < end), default=safe)
        out, self._out = self._out, safe
        self._found = [span for span in found if span[1] > safe]
        return marked(self._text[out:safe], [(start - out, end - out) for start, end in found if end <= safe])

    def _values(self, before: int, *, last: bool) -> int:
        """Find known values; gives where one may have begun."""
        safe = len(self._text)
        for value in self._known:
            at = max(0, before - len(value)) if value in self._begun else before
            at = max(at, self._past.get(value, 0))
            while (found := self._text.find(value, at)) >= 0:
                at = self._past[value] = found + len(value)
                self._found.append((found, at))
            begun = self._begins(value, max(at, len(self._text) - len(value) + 1))
            if begun < 0 or last:
                self._begun.discard(value)
            else:
                self._begun.add(value)
                safe = min(safe, begun)
        return safe

    def _begins(self, value: str, at: int) -> int:
        """Where, from `at` on, the text ends in the middle of a value; -1 where it does not."""
        while (at := self._text.find(value[0], at)) >= 0 and not value.startswith(self._text[at:]):
            at += 1
        return at

    def _named(self, *, last: bool) -> int:
        """Find secrets behind a name that says so; gives where one may have begun."""
        safe, self._endless = len(self._text), None
        open_anchors = []
        for at, anchor in self._anchors:
            if at < self._past.get(anchor, 0):
                continue
            match = _behind(NAMED, self._text, at, anchor)
            if match is not None and (last or match.end() < len(self._text)):
                self._found.append(match.span("secret"))
                self._past[anchor] = match.end()
                continue
            begun = _behind(OPEN, self._text, at, anchor)
            if begun is not None and (match is not None or len(self._text) - begun.start("secret") <= SETTLED):
                safe = min(safe, begun.start("secret"))
                if match is not None:
                    self._endless = min(begun.start("secret"), self._endless or safe)
            elif _behind(BEGUN, self._text, at, anchor) is None:
                continue
            open_anchors.append((at, anchor))
        self._anchors = open_anchors
        return len(self._text) if last else safe

    def _forget(self, cut: int) -> None:
        """What is out and was looked at long ago."""
        self._text, self._out = self._text[cut:], self._out - cut
        self._found = [(start - cut, end - cut) for start, end in self._found]
        self._anchors = [(at - cut, anchor) for at, anchor in self._anchors]
        self._past = {name: end - cut for name, end in self._past.items() if end > cut}

    def _shorten(self, secret: int) -> None:
        """Leave out the middle of a secret that goes on and on: it is one mark, however long it is."""
        head = secret + 2 * SETTLED
        cut = len(self._text) - CONTEXT - self._longest - head
        if cut <= 0:
            return

        def moved(at: int) -> int:
            return at if at <= head else max(head, at - cut)

        self._text = self._text[:head] + self._text[head + cut :]
        self._found = [(moved(start), moved(end)) for start, end in self._found]
        self._anchors = [(moved(at), anchor) for at, anchor in self._anchors if not head < at < head + cut]
        self._past = {name: moved(end) for name, end in self._past.items()}


@lru_cache(maxsize=8)
def _heads(values: tuple[str, ...]) -> re.Pattern[str]:
    """Where one of the values may begin."""
    return re.compile("|".join(f"{re.escape(value[0])}(?:{re.escape(value[1])}|\\Z)" for value in values) or r"(?!)")
