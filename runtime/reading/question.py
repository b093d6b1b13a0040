"""What the offline model works on: a question taken apart, the passages that were read, and a claim made of one of them.

Apart from the ways to answer, which all read these and add nothing to them.
"""

import re
from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from refold.runtime.reading.language import STOP_STEMS, content, sentences, stem, stem_set, stems, words

FIELD_LINE: Final = re.compile(
    r"^(?:[-*] )?(?::|\*\*)?([A-Za-z][A-Za-z0-9_-]*(?: [A-Za-z0-9_-]+){0,2})(?:\*\*:|:\*\*|:)(?:[ \t]+|$)(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE
)
MAKING: Final = stem_set("write author propose create publish start begin submit invent design draft make")
ARRIVING: Final = stem_set("introduce add target aim appear arrive land ship include available get support bring gain intend plan first accept release come")
REPLACING: Final = stem_set("replace supersede obsolete succeed successor predecessor")
REQUIRING: Final = stem_set("require depend")
REMOVING: Final = stem_set("remove ban prohibit drop delete deprecate reject disallow forbid abandon withdraw end stop discontinue lose")
RELEASE: Final = stem_set("version release")
JUDGING: Final = stem_set("accept reject final withdraw defer supersede draft active")
BACKWARD: Final = {"superseded-by": REPLACING, "replaced-by": REPLACING, "obsoleted-by": REPLACING}
ASKING_STEMS: Final = frozenset({"what", "which"})
TIMES: Final = stem_set("second minute hour day week month year")
BRACKETED: Final = re.compile(r"\[(?!\d+\])[^\[\]\s]+\]_*")
PIECE_WORDS_MIN: Final = 6
HEAD: Final = re.compile(
    r"\b(?:which|what|how many|how much)\s+(?:(?:is|are|was|were)\s+the\s+(?:(?:default|exact)\s+)?(?:names?\s+of\s+(?:the\s+)?)?)?((?:[\w.-]+\s+){1,4})",
    re.IGNORECASE,
)
OF_A_YEAR: Final = re.compile(
    r"(?:(?:what|how (?:much|high|large)) (?:is|are|was|were) )?(?:the |our )?((?:[^\W\d_][\w-]* ){1,3}?)(in |of |for )?((?:19|20)\d\d) ?[.?]?", re.IGNORECASE
)
"""A quantity and a year, however little is said around them."""
QUESTION_CHARS_MAX: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A part that was read."""

    id: str
    doc_id: str
    title: str
    heading: str
    text: str
    superseded_by: tuple[str, ...] = ()

    @cached_property
    def number(self) -> int:
        return int(self.id.rpartition("#")[2]) if "#" in self.id else 1

    @cached_property
    def about(self) -> frozenset[str]:
        """The stems of title, headings and id; two words of the title also as one (`data class`, `dataclass`)."""
        title = words(self.title.lower())
        return frozenset(stems(f"{self.title} {self.heading} {self.doc_id}")) | {stem(a + b) for a, b in pairwise(title)}

    @cached_property
    def spans(self) -> tuple[str, ...]:
        """Its sentences, cut where a word stands in brackets: in an answer that would read as a citation."""
        if self.fields:
            return ()
        return tuple(
            piece.strip() for span in sentences(self.text) for piece in BRACKETED.split(span) if piece == span or len(piece.split()) >= PIECE_WORDS_MIN
        )

    @cached_property
    def fields(self) -> dict[str, tuple[str, str]]:
        """Of a header: value and span of each field by its name in lower case. A part is a header when nothing else is in it."""
        found = list(FIELD_LINE.finditer(self.text)) if self.number == 1 else []
        lonely = len(found) == 1 and found[0][1].lower().replace("_", "-") not in (*BACKWARD, "status")
        if not found or lonely or sum(len(one[0]) + 1 for one in found) < len(self.text.strip()) * 0.9:
            return {}
        return {
            one[1].lower().replace("_", "-").replace(" ", "-"): (" ".join(one[2].split()), " ".join(one[0].split()))
            for one in reversed(found)
            if one[2].strip() and not BRACKETED.search(one[0])
        }


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A span that answers, and where it stands."""

    span: str
    passage: Passage


class Evidence:
    """What was read, and which words are too common in these documents to tell them apart."""

    def __init__(self, *, passages: Sequence[Passage], common: frozenset[str]) -> None:
        self.passages = tuple(passages)
        self.common = frozenset(stem(word) for word in common)
        self.headers = {passage.doc_id: passage for passage in passages if passage.fields}
        self._vocabulary: dict[str, AbstractSet[str]] = {}
        self.labels = frozenset(name.upper() for header in self.headers.values() for name in header.fields)

    def vocabulary(self, doc_id: str) -> AbstractSet[str]:
        """The stems of what was read of a document."""
        if doc_id not in self._vocabulary:
            self._vocabulary[doc_id] = {one for passage in self.passages if passage.doc_id == doc_id for one in stems(passage.text)}
        return self._vocabulary[doc_id]

    def superseded_line(self, doc_id: str) -> tuple[str, Passage] | None:
        header = self.headers.get(doc_id)
        name = next((name for name in (*BACKWARD, "status") if header and name in header.fields), "")
        return (header.fields[name][1], header) if header and name else None


class Question:
    """A question taken apart: its stems in order, what it is about, which document it names, and what kind of answer it wants."""

    def __init__(self, text: str) -> None:
        said = " ".join(text[:QUESTION_CHARS_MAX].split())
        self.text = _spelled_out(said)
        self.is_short = self.text != said
        """Whether so little was said that only a figure which is given for that very thing can be meant."""
        self.words = words(self.text)
        self.stems = [stem(word) for word in self.words]
        self.content = content(re.sub(r"\bnumber of\b", "", self.text))
        self.proper = {stem(word) for word in self.words[1:] if word[0].isupper()}
        self.asks = next((word for word in map(str.lower, self.words) if word in ("who", "whom", "whos", "when", "where", "why", "how", "which", "what")), "")
        self.references = [(stem(found[1]), stem(found[2])) for found in re.finditer(r"\b([A-Za-z]{2,})[ -]?#?(\d+)\b(?!\.\d)", self.text)]

    @property
    def queries(self) -> list[str]:
        return [self.text]

    @cached_property
    def head(self) -> list[str]:
        """The stems of the noun after `which`, `what` or `how many`: up to the next verb or preposition we know."""
        found = HEAD.search(self.text + " ")
        if not found:
            return []
        counting, head = "many" in found[0].lower(), list[str]()
        for word in found[1].split():
            if stem(word) in STOP_STEMS or stem(word) in (ARRIVING | REPLACING | REQUIRING | REMOVING) - RELEASE or (head and _is_verb(word) and not counting):
                break
            head += stems(word)
        return head[:-1] if len(head) > 1 and head[-1] == "name" else head

    @cached_property
    def verbs(self) -> frozenset[str]:
        """The stems of words that stand where a verb of the question stands: behind the noun it asks for, or behind `that`."""
        found = re.findall(r"\b(?:that|which|who)\s+(\w+(?:s|ed))\b", self.text[5:], re.IGNORECASE)
        behind = re.search(r"\b(?:which|what)\s+(?:[\w.-]+\s+){1,3}?(\w+(?:s|ed))\s", self.text, re.IGNORECASE)
        if behind and _is_verb(behind[1]) and not set(stems(behind[0])) & STOP_STEMS - ASKING_STEMS:
            found.append(behind[1])
        return frozenset(stem(word) for word in found) - REMOVING - JUDGING

    @cached_property
    def defined(self) -> list[str]:
        """The stems of the thing of which the question only asks what it is."""
        found = re.fullmatch(r"what (?:is|are) (?:an? |the )?((?:[\w-]+ ?){1,4})\?", self.text, re.IGNORECASE)
        return stems(found[1]) if found else []

    @cached_property
    def wants_person(self) -> bool:
        return self.asks in ("who", "whom", "whos") or "author" in self.stems

    @cached_property
    def wants_date(self) -> bool:
        return self.asks == "when" or (self.asks in ("which", "what") and bool(set(self.head[:2]) & {"year", "date", "day", "month"}))

    @cached_property
    def counted(self) -> frozenset[str]:
        """The stems of what is counted, or measured in time; none when nothing is."""
        found = re.search(r"\bhow many\s+(?:more\s+)?((?:[\w-]+\s+){1,4})", self.text + " ", re.IGNORECASE)
        if found:
            plurals = [word for word in words(found[1]) if stem(word) != word.lower() and not word.endswith(("ed", "ing"))]
            return frozenset({stem(plurals[0])} if plurals else self.head[-1:])
        return TIMES if re.search(r"\bhow (?:long|old)\b", self.text, re.IGNORECASE) else frozenset()


def _spelled_out(text: str) -> str:
    """`What was revenue in 2023?`, `How much was the revenue in 2023?` and `revenue 2023` as the question that they are; `RFC 2026` names a document."""
    found = OF_A_YEAR.fullmatch(text)
    if not found or set(stems(found[1])) & STOP_STEMS or not (found[2] or text[:1].islower() or not words(found[1])[-1].isupper()):
        return text
    return f"What was the {found[1]}in {found[3]}?"


def _is_verb(word: str) -> bool:
    return bool(re.search(r"(?:[^s]s|ed)$", word))
