"""One quantity under two keys (mostly years), found in passages: what a growth rate, a difference or a ratio is calculated from.

Apart from the other ways to answer, because here nothing is quoted as the answer: two statements are matched by
their labels, and the arithmetic is left to a tool.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from refold.runtime.reading.language import NUMBER, STOP_STEMS, stem, stem_set, stems, word_set
from refold.runtime.reading.question import Evidence, Passage, Question

Kind = Literal["growth", "difference", "ratio", "total"]
KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(
        ("growth", "grow", "grew", "grown", "increase", "decrease", "decline", "change", "rise", "rose", "fall", "fell", "drop", "shrink", "develop"), "growth"
    ),
    **dict.fromkeys(("difference", "differ"), "difference"),
    **dict.fromkeys(("ratio",), "ratio"),
    **dict.fromkeys(("total", "sum", "together", "combined"), "total"),
}
KIND_STEMS: Final[dict[str, Kind]] = {stem(word): kind for word, kind in KINDS.items()}
ASKING: Final = stem_set("find rate growth percent percentage compare compared calculate compute report reports year annual our much year-on-year")
SCALES: Final = {"thousand": 10**3, "k": 10**3, "million": 10**6, "millions": 10**6, "m": 10**6, "mn": 10**6, "billion": 10**9, "billions": 10**9, "bn": 10**9}
MONEY: Final = word_set("euro euros eur dollar dollars usd pound pounds gbp yen jpy franc francs chf crown crowns krona krone rupee rupees yuan € $ £ ¥")
YEAR: Final = re.compile(r"(?<![\w.])(?:1[89]|20|21)\d\d(?![\w.]\d|\w)")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A sentence that gives a quantity for a key. `label` holds the stems around the number; `number` is as it stands, without separators."""

    passage: Passage
    span: str
    number: str
    unit: str
    scale_word: str
    scale: int
    money: bool
    label: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Pair:
    first: Statement
    second: Statement


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is asked: the kind of comparison, the two keys in the order of the question, and the stems of the quantity (none when it is not named)."""

    kind: Kind
    keys: tuple[str, str]
    quantity: frozenset[str]

    @classmethod
    def asked(cls, question: Question) -> "Comparison | None":
        kinds: list[Kind] = [KIND_STEMS[one] for one in question.stems if one in KIND_STEMS]
        if not kinds and re.match("compare ", question.text, re.IGNORECASE):
            kinds = ["growth"]
        years = list(dict.fromkeys(YEAR.findall(question.text)))
        if not kinds or len(years) not in (1, 2) or (len(years) == 1 and kinds[0] != "growth"):
            return None
        first, second = (years[0], years[1]) if len(years) == 2 else (str(int(years[0]) - 1), years[0])
        if kinds[0] == "growth":
            first, second = sorted((first, second))
        return cls(
            kind=kinds[0],
            keys=(first, second),
            quantity=frozenset(one for one in question.content if one not in KIND_STEMS and one not in ASKING and one not in years),
        )

    @property
    def name(self) -> str:
        return {"growth": f"Growth rate from {self.keys[0]} to {self.keys[1]}", "difference": "Difference", "ratio": "Ratio", "total": "Total"}[self.kind]

    def unit(self, pair: Pair) -> str:
        """What follows the result."""
        if self.kind == "growth":
            return " %"
        scaled = pair.first.scale_word if pair.first.scale == pair.second.scale else ""
        return "" if self.kind == "ratio" else "".join(f" {word}" for word in (scaled, pair.first.unit) if word)

    def expression(self, pair: Pair) -> str:
        a, b = (f"{one.number}" if pair.first.scale == pair.second.scale else f"({one.number} * {one.scale})" for one in (pair.first, pair.second))
        match self.kind:
            case "growth":
                return f"round(({b} - {a}) / {a} * 100, 2)"
            case "difference":
                return f"{b} - {a}"
            case "ratio":
                return f"round({b} / {a}, 4)"
            case "total":
                return f"{a} + {b}"


def find_pair(comparison: Comparison, evidence: Evidence) -> Pair | None:
    """The quantity asked for under both keys, or None when there is none or more than one value for it.

    Of several quantities, when the question names none, the first amount of money wins, else the first that both state;
    of several statements, those of a document that is about its key.
    """
    left, right = (_statements(key, other, evidence) for key, other in (comparison.keys, comparison.keys[::-1]))
    pairs = [Pair(first=a, second=b) for a in left for b in right if _same_quantity(a, b) and comparison.quantity <= _described(a) & _described(b)]
    if not pairs:
        return None
    best = max(pairs, key=lambda pair: _rank(pair, comparison, pairs))
    rivals = [pair for pair in pairs if pair.first.label == best.first.label and _rank(pair, comparison, pairs)[:3] == _rank(best, comparison, pairs)[:3]]
    agreed = {(pair.first.number, pair.second.number) for pair in rivals if pair.first.label & pair.second.label == best.first.label & best.second.label}
    zero = comparison.kind in ("growth", "ratio") and float(best.first.number) == 0
    return best if len(agreed) == 1 and not zero else None


def _rank(pair: Pair, comparison: Comparison, pairs: Sequence[Pair]) -> tuple[float, ...]:
    about = (comparison.keys[0] in stems(f"{pair.first.passage.doc_id} {pair.first.passage.title}")) + (
        comparison.keys[1] in stems(f"{pair.second.passage.doc_id} {pair.second.passage.title}")
    )
    shared, joint = len(pair.first.label & pair.second.label), len(pair.first.label | pair.second.label)
    return about, pair.first.money and not comparison.quantity, shared / max(joint, 1), -pairs.index(pair)


def _same_quantity(a: Statement, b: Statement) -> bool:
    shared, joint = len(a.label & b.label), len(a.label | b.label)
    return a.unit.removesuffix("s") == b.unit.removesuffix("s") and shared > 0 and shared >= joint * 0.5


def _described(statement: Statement) -> set[str]:
    return set(statement.label) | set(stems(f"{statement.passage.heading} {statement.passage.title} {statement.unit}"))


def _statements(key: str, other: str, evidence: Evidence) -> list[Statement]:
    """Sentences that give a number for `key`: they name it and not the other key, or name no year in a passage or document that is about it."""
    found = []
    for passage in evidence.passages:
        about = set(YEAR.findall(f"{passage.heading} {passage.title} {passage.doc_id.replace('-', ' ').replace('_', ' ').replace('/', ' ')}"))
        for span in passage.spans:
            years = YEAR.findall(span)
            named = set(years)
            if (key in named and other not in named) or (not named and about == {key}):
                found += _quantities(passage, span, span)
            elif named == {key, other} and len(years) == 2:
                found += _quantities(passage, span, _clause(span, key))
    return found


def _clause(span: str, key: str) -> str:
    """Of a sentence with two years: what belongs to this one, when number and year alternate (`8.0 in 2023 and 10.0 in 2024`)."""
    marks = [(found.start(), found.end(), bool(YEAR.fullmatch(found[0]))) for found in NUMBER.finditer(span)]
    kinds = [year for *_, year in marks]
    if kinds not in ([True, False, True, False], [False, True, False, True]):
        return ""
    cut = marks[1][1] if kinds[1] else marks[2][0]
    return span[:cut] if key in span[:cut] else span[cut:]


def _quantities(passage: Passage, span: str, clause: str) -> list[Statement]:
    """The one quantity in a clause of a span, if there is one; the label is the span's."""
    numbers = [found for found in NUMBER.finditer(clause) if not YEAR.fullmatch(found[0])]
    if len(numbers) != 1:
        return []
    number = numbers[0]
    after = re.findall(r"[^\W\d_]+|[%€$£¥]", clause[number.end() : number.end() + 60])
    before = re.findall(r"[€$£¥]|\b[A-Z]{3}$", clause[: number.start()].rstrip()[-3:])
    scale_word = after[0].lower() if after and after[0].lower() in SCALES else ""
    rest = after[1:] if scale_word else after
    unit = next((word for word in before + rest[:1] if word.lower() in MONEY or word == "%"), rest[0] if rest else "")
    unit = "" if stem(unit) in STOP_STEMS else unit
    label = frozenset(one for one in stems(span) if one not in STOP_STEMS and not one[0].isdigit() and one not in {stem(unit), stem(scale_word)})
    plain = number[0].replace(",", "").replace("−", "-")
    return [
        Statement(
            passage=passage,
            span=span,
            number=plain,
            unit=unit,
            scale_word=scale_word,
            scale=SCALES.get(scale_word, 1),
            money=unit.lower() in MONEY,
            label=label,
        )
    ]
