"""Answers from sentences: the one that covers the question best, if it covers it well and names something of the kind that is asked for.

Apart from answers out of headers; here being sure comes before being complete, and every rule below exists to refuse.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from refold.runtime.reading.fields import is_named
from refold.runtime.reading.language import DATE, LIGHT_STEMS, LITERAL, NAME, NUMBER_WORDS, STOP_STEMS, VERSION, content, stem, stem_set, stems
from refold.runtime.reading.question import RELEASE, REMOVING, Claim, Evidence, Passage, Question

SHAPES: Final[dict[str, re.Pattern[str]]] = {
    stem("file"): re.compile(r"\b[\w-]*\.[a-z]\w{1,5}\b|\b[A-Z]{3,}(?:[_-][A-Z]+)*\b"),
    stem("option"): re.compile(r"(?<!\w)--?[a-zA-Z][\w-]*"),
    stem("flag"): re.compile(r"(?<!\w)--?[a-zA-Z][\w-]*|\b\w+_\w+\b"),
    stem("variable"): re.compile(r"\b[A-Z][A-Z0-9_]{2,}\b|\b\w+_\w+\b"),
    stem("macro"): re.compile(r"\b\w+_\w+\b|\b[A-Z][A-Z0-9_]{2,}\b"),
    stem("constant"): re.compile(r"\b\w+_\w+\b|\b[A-Z][A-Z0-9_]{2,}\b"),
    stem("method"): re.compile(r"__\w+__|\b\w+\(|``[\w.]+``"),
    stem("exception"): re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit|Iteration|Interrupt|Warning|Group)\b"),
    stem("operator"): re.compile(r"[`'\"]+[^\w\s`'\"]{1,3}[`'\"]+"),
    stem("decorator"): re.compile(r"@\w+|``[\w.]+``"),
}
"""What the name of a thing looks like, where what it is called shows it."""
COUNT: Final = re.compile(
    rf"(?<![\w.])(\d[\d,.]*|(?:{'|'.join(sorted(NUMBER_WORDS))})(?:[ -](?:{'|'.join(sorted(NUMBER_WORDS))}))?)[\s*`-]+((?:[\w-]+[\s*]+){{0,2}}[\w-]+)",
    re.IGNORECASE,
)
FULL_DATE: Final = re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2}[ -][A-Z][a-z]{2,8}[ -,]+\d{4}\b|\b[A-Z][a-z]{2,8} \d{1,2},? \d{4}\b")
SURE: Final = 1.0
"""The score from which a sentence is taken for an answer."""
MANY: Final = 5
NEAR: Final = 5
MEASURES: Final = stem_set(
    "length size limit maximum minimum number level width height depth amount version age duration period rate percentage threshold default port"
)
ASIDE: Final = stem_set(
    "reject alternative alternatives open issue considered deferred defer discard prior history acknowledgement reference appendix objection "
    "unresolved abandoned future"
)
"""Words of headings below which a document says what it does not hold."""
CODE: Final = re.compile(r"\bdef \w+\(|^@|>>>|\breturn \w+$|\w = \w|^={3}|[{};]$")
DOUBT: Final = re.compile(
    r"\?\W*$|\b(?:would|could|might|perhaps|suggested|unclear|rejected|never|unlike|alternatively|hypothetical|expected|approximately|originally)\b|n't\b",
    re.IGNORECASE,
)
OWN: Final = frozenset({"the", "our", "its", "their"})
GIVING: Final = stem_set("is are was were reach reached amount amounted total stand stood")
PLACING: Final = frozenset({"in", "of", "for", "during", "the", "year"})
NEARLY: Final = stem_set("at to about around only just nearly almost over roughly")
CLAIMS_MAX: Final = 3


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    claim: Claim
    score: float
    names: frozenset[str]
    """What the span names that the question does not: the answer is one of these."""


def answer_from_sentences(question: Question, evidence: Evidence) -> list[Claim]:
    """The sentence that covers the question best and holds an answer of the kind it wants, if one covers it well enough."""
    found = list(_candidates(question, evidence))
    if not found:
        return []
    votes = Counter(name for one in found for name in one.names)
    best = max(found, key=lambda one: one.score + _support(one, votes))
    newer = [one for one in found if one.claim.passage.doc_id in best.claim.passage.superseded_by and one.score + _support(one, votes) >= SURE]
    best = max(newer, key=lambda one: one.score + _support(one, votes), default=best)
    if best.score + _support(best, votes) < SURE:
        return []
    names = {name for name in best.names if votes[name] == max(votes[name] for name in best.names)}
    more = [
        one
        for one in found
        if one is not best and one.claim.passage.doc_id == best.claim.passage.doc_id and (names & one.names or not names) and one.score >= best.score - 0.25
    ]
    return [best.claim, *(one.claim for one in sorted(more, key=lambda one: -one.score)[: CLAIMS_MAX - 1])]


def _support(one: _Candidate, votes: Counter[str]) -> float:
    """What it counts that other candidates name the same thing."""
    return 0.15 * min(max((votes[name] for name in one.names), default=1) - 1, 4)


def _candidates(question: Question, evidence: Evidence) -> Iterator[_Candidate]:
    required = _required(question, evidence)
    referenced = {passage.doc_id for passage in evidence.headers.values() if any(is_named(passage, *one) for one in question.references)}
    for rank, passage in enumerate(evidence.passages):
        if not required or (referenced and passage.doc_id not in referenced) or set(stems(passage.heading)) & ASIDE:
            continue
        for span in passage.spans:
            if CODE.search(span) or not _covers(question, required, passage, span, evidence):
                continue
            leaf = stems(passage.heading.rpartition(" > ")[2]) if passage.number > 1 else []
            if names := _names(question, span, leaf) - evidence.labels:
                score = _score(question, required, passage, span, evidence) - 0.01 * rank
                yield _Candidate(claim=Claim(span=span, passage=passage), score=score, names=names)


def _required(question: Question, evidence: Evidence) -> list[str]:
    """The words that an answer must cover: all that say what the question is about, but for those that these documents hold everywhere."""
    dated = {"year", "date", "day"} if question.wants_date else set()
    required = [one for one in question.content if one not in evidence.common | dated and one != "person"]
    return required + [one for one in question.head[-1:] if one in evidence.common and one not in SHAPES]


def _covers(question: Question, required: Sequence[str], passage: Passage, span: str, evidence: Evidence) -> bool:
    """Whether span, headings and title hold these words, and the span itself most of those that the others do not hold.

    One word of many may be missing, because people put things in their own words: no number, name, negation or thing that is asked for,
    and one that the document uses elsewhere.
    """
    here, titled = set(stems(span)), set(stems(passage.title))
    missing = [one for one in required if one not in here | passage.about | question.verbs and one not in SHAPES]
    firm = [
        one for one in missing if one[0].isdigit() or one in REMOVING | question.proper | set(question.head) or one not in evidence.vocabulary(passage.doc_id)
    ]
    if firm or len(missing) > int(len(required) >= MANY) or not here & set(required) or not _versions_fit(question, passage, span):
        return False
    share = max(_share(required, here, titled), _share(required, here, passage.about))
    return share >= (0.5 if titled & set(required) else 0.8)


def _share(required: Sequence[str], here: AbstractSet[str], elsewhere: AbstractSet[str]) -> float:
    """How much of what is not said elsewhere is said here."""
    own = [one for one in required if one not in elsewhere] or required
    return sum(one in here for one in own) / len(own)


def _score(question: Question, required: Sequence[str], passage: Passage, span: str, evidence: Evidence) -> float:
    """How well a span fits: what it says itself, in the order of the question, below a heading that is the question; less for doubt, length and age."""
    order = stems(span)
    here = set(order)
    light = [one for one in question.stems if one in LIGHT_STEMS]
    pairs = {pair for pair in pairwise(question.stems) if pair[0] in required and pair[1] in required}
    share = _share(required, here, set(stems(passage.title)))
    near = len(pairs & set(pairwise(order))) / len(pairs) if pairs else share
    score = 1.5 * share + 0.3 * sum(one in here for one in required) / len(required) + 0.5 * near + 0.2 * sum(one in here for one in light) / max(len(light), 1)
    score += 0.4 * bool(question.wants_date and FULL_DATE.search(span))
    if passage.number > 1:
        score += 0.5 * (set(content(passage.heading.rpartition(" > ")[2])) <= set(required) | evidence.common) + 0.4 * (span == passage.spans[0])
    score -= 0.4 * sum(one not in here | passage.about | question.verbs and one not in SHAPES for one in required)
    return score - 0.0005 * len(span) - 0.5 * bool(DOUBT.search(span)) - 0.5 * bool(passage.superseded_by)


def _versions_fit(question: Question, passage: Passage, span: str) -> bool:
    """Whether each number of the question stands beside one of the words it stands beside there: `Python 5.0` is not any 5.0."""
    text = [*stems(passage.doc_id), "", *stems(passage.title), "", *stems(passage.heading), "", *stems(span)]
    beside = {frozenset(pair) for pair in pairwise(text)}
    for at, one in enumerate(question.stems):
        near = [frozenset((one, other)) for other in (*question.stems[max(at - 1, 0) : at], *question.stems[at + 1 : at + 2]) if other not in STOP_STEMS]
        if one[0].isdigit() and near and not any(pair in beside for pair in near):
            return False
    return True


def _names(question: Question, span: str, leaf: Sequence[str]) -> frozenset[str]:
    """What a span holds of the kind that is wanted, beyond the words of the question. `leaf` are the stems of the heading just above."""
    known = set(question.stems)
    names: list[str]
    if question.counted:
        names = [one[1] for one in COUNT.finditer(span) if question.counted & set(stems(one[2]))]
    elif re.search(r"\bhow often\b", question.text, re.IGNORECASE):
        names = re.findall(r"\b(?:every|once (?:a|per|every)|twice (?:a|per)) [\w-]+(?: \w+)?", span)
    elif question.wants_date:
        names = DATE.findall(span)
    elif question.wants_person:
        names = [one[0] for one in NAME.finditer(span) if not set(stems(one[0])) & known]
    elif set(question.head) & RELEASE:
        names = [one for one in VERSION.findall(span) if one not in known]
    elif question.is_short and question.head:
        names = _given(question, span)
    elif question.head:
        shapes = [SHAPES[one] for one in question.head[-1:] if one in SHAPES]
        found = [one for one in (shapes[-1] if shapes else LITERAL).finditer(span) if not stems(one[0]) or one[0].strip("`'\"") not in question.text]
        names = _equated(question, span)
        names += [one[0] for one in found if one[0].startswith("-") or question.head[-1] in leaf or _is_called(question.head[-1], span, one)]
        if not names and not shapes:
            names = _given(question, span)
    elif question.asks == "where":
        names = [one for one in re.findall(r"\b(?:in|at|near|from|to)\s+((?:[A-ZÀ-Þ][\w-]+\s?)+)", span) if not set(stems(one)) & known]
    elif question.defined:
        names = [span] if _bare(stems(span))[: len(question.defined) + 1] in ([*question.defined, "is"], [*question.defined, "are"]) else []
    else:
        names = []
    return frozenset(one.strip("`'\"*(") for one in names)


def _equated(question: Question, span: str) -> list[str]:
    """What a short sentence says to be the thing that is asked for: `X is the ...`, or `The ... is X` with a name, a number or a quotation for X."""
    found = re.fullmatch(r"(.{1,80}?) (?:is|are|was|were) (.{1,120}?)\.?", span)
    if not found or not re.match(r"(?:what|which|who)\b", question.text, re.IGNORECASE):
        return []
    left, right = stems(found[1]), stems(found[2])
    asked = [one for one in question.head if one not in STOP_STEMS]
    if (
        re.match(r"(?:the|an?)\b", found[2], re.IGNORECASE)
        and right[1 : len(asked) + 1] == asked
        and not set(left) & (STOP_STEMS - {"the", "a", "an", "and", "of"})
    ):
        return [found[1]]
    if left[-len(asked) :] == asked and re.match(r"[\"'`“\dA-ZÀ-Þ]", found[2]):
        return [found[2]]
    return []


def _given(question: Question, span: str) -> list[str]:
    """The numbers that a span gives for what is asked for; for a measure those that stand beside it, for few words those that are plainly its own."""
    found = [one for one in re.finditer(r"\b\d+(?:[.,]\d+)*", span) if one[0] not in question.stems]
    if question.is_short:
        return [one[0] for one in found if _is_plainly_given(question.head, span[: one.start()])]
    measured = bool(set(question.head) & MEASURES)
    return [one[0] for one in found if measured or _is_given(question.head[-1], span[: one.start()])]


def _is_called(noun: str, span: str, name: re.Match[str]) -> bool:
    """Whether a span calls the name so: the noun stands close to it, or `called` and `named` just before it."""
    before, after = stems(span[: name.start()])[-NEAR:], stems(span[name.end() :])[:NEAR]
    return (
        noun in before
        or noun in after
        or (noun in stems(span[: name.start()])[-NEAR - 3 :] and bool(re.search(r"\b(?:called|named|calls)\W+(?:\w+\W+)?$", span[: name.start()])))
    )


def _is_given(noun: str, before: str) -> bool:
    """Whether a number is what a noun is said to be: the noun, then `is`, `was` or the like, then the number, in one clause."""
    clause = stems(re.split(r"[;:,] ", before)[-1])
    return noun in clause and bool(
        set(clause[clause.index(noun) :]) & {"is", "are", "was", "were", "be", "reach", "amount", "total", "grow", "rise", "fall", "stand"}
    )


def _is_plainly_given(nouns: Sequence[str], before: str) -> bool:
    """Whether a clause says `the <nouns> in ... was` and then the number: nothing else is what it is the number of."""
    clause = stems(re.split(r"[;:,] ", before)[-1])
    for at in range(len(clause)):
        if clause[at : at + len(nouns)] != list(nouns) or (at and clause[at - 1] not in OWN and not clause[at - 1].isdigit()):
            continue
        rest = clause[at + len(nouns) :]
        verb = next((place for place, one in enumerate(rest) if one in GIVING), None)
        if verb is not None and all(one in PLACING or one.isdigit() for one in rest[:verb]) and set(rest[verb + 1 :]) <= NEARLY:
            return True
    return False


def _bare(span: list[str]) -> list[str]:
    return span[1:] if span[:1] in (["a"], ["an"], ["the"]) else span
