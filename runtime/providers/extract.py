"""How the offline model finds the answer in what it read: a field of a document's header, or a sentence that says what is asked.

Apart from the model's steps. A span is taken only when it, its headings and its title hold every word that the question is about; being sure comes before being complete.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from refold.runtime.providers.language import DATE, LIGHT_STEMS, LITERAL, NAME, NUMBER_WORDS, STOP_STEMS, VERSION, content, sentences, stem, stems, words

FIELD_LINE: Final = re.compile(r"^(?:[-*] )?(?::|\*\*)?([A-Za-z][A-Za-z0-9_-]*(?: [A-Za-z0-9_-]+){0,2})(?:\*\*:|:\*\*|:)(?:[ \t]+|$)(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
MAKING: Final = frozenset(stem(word) for word in "write author propose create publish start begin submit invent design draft make".split())
ARRIVING: Final = frozenset(stem(word) for word in "introduce add target aim appear arrive land ship include available get support bring gain intend plan first accept release come".split())
REPLACING: Final = frozenset(stem(word) for word in "replace supersede obsolete succeed successor predecessor".split())
REQUIRING: Final = frozenset(stem(word) for word in "require depend".split())
REMOVING: Final = frozenset(stem(word) for word in "remove ban prohibit drop delete deprecate reject disallow forbid abandon withdraw end stop discontinue lose".split())
RELEASE: Final = frozenset(stem(word) for word in ("version", "release"))
JUDGING: Final = frozenset(stem(word) for word in "accept reject final withdraw defer supersede draft active".split())
FORWARD: Final = {"replaces": REPLACING, "supersedes": REPLACING, "obsoletes": REPLACING, "requires": REQUIRING, "depends-on": REQUIRING}
BACKWARD: Final = {"superseded-by": REPLACING, "replaced-by": REPLACING, "obsoleted-by": REPLACING}
ASKING_STEMS: Final = frozenset({"what", "which"})
SHAPES: Final[dict[str, re.Pattern[str]]] = {
    stem("file"): re.compile(r"\b[\w-]*\.[a-z]\w{1,5}\b|\b[A-Z]{3,}(?:[_-][A-Z]+)*\b"),
    stem("option"): re.compile(r"(?<!\w)--?[a-z][\w-]+"),
    stem("flag"): re.compile(r"(?<!\w)--?[a-z][\w-]+|\b\w+_\w+\b"),
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
    rf"(?<![\w.])(\d[\d,.]*|(?:{'|'.join(sorted(NUMBER_WORDS))})(?:[ -](?:{'|'.join(sorted(NUMBER_WORDS))}))?)[\s*`-]+((?:[\w-]+[\s*]+){{0,2}}[\w-]+)", re.IGNORECASE
)
FULL_DATE: Final = re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2}[ -][A-Z][a-z]{2,8}[ -,]+\d{4}\b|\b[A-Z][a-z]{2,8} \d{1,2},? \d{4}\b")
SURE: Final = 1.6
"""The score from which a sentence is taken for an answer."""
QUESTION_CHARS_MAX: Final = 2_000
MANY: Final = 5
ABBREVIATED: Final = 5
NEAR: Final = 5
MEASURES: Final = frozenset(stem(word) for word in "length size limit maximum minimum number level width height depth amount version age duration period rate percentage threshold default port".split())
ASIDE: Final = frozenset(stem(word) for word in "reject alternative alternatives open issue considered deferred defer discard prior history acknowledgement reference appendix objection unresolved abandoned future".split())
"""Words of headings below which a document says what it does not hold."""
CODE: Final = re.compile(r"\bdef \w+\(|^@|>>>|\breturn \w+$|\w = \w|^={3}|[{};]$")
DOUBT: Final = re.compile(r"\?\W*$|\b(?:would|could|might|perhaps|suggested|unclear|rejected|never|unlike|alternatively|hypothetical|expected|approximately|originally)\b|n't\b", re.IGNORECASE)
CLAIMS_MAX: Final = 3
EARLY_PARTS: Final = 4


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
        return frozenset(stems(f"{self.title} {self.heading} {self.doc_id}")) | {stem(a + b) for a, b in zip(title, title[1:], strict=False)}

    @cached_property
    def spans(self) -> tuple[str, ...]:
        return tuple(sentences(self.text)) if not self.fields else ()

    @cached_property
    def fields(self) -> dict[str, tuple[str, str]]:
        """Of a header: value and span of each field by its name in lower case. A part is a header when nothing else is in it."""
        found = list(FIELD_LINE.finditer(self.text)) if self.number == 1 else []
        if len(found) < 2 or sum(len(one[0]) + 1 for one in found) < len(self.text.strip()) * 0.9:
            return {}
        return {one[1].lower().replace("_", "-").replace(" ", "-"): (" ".join(one[2].split()), " ".join(one[0].split())) for one in reversed(found) if one[2].strip()}


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

    def superseded_line(self, doc_id: str) -> tuple[str, Passage] | None:
        header = self.headers.get(doc_id)
        name = next((name for name in (*BACKWARD, "status") if header and name in header.fields), "")
        return (header.fields[name][1], header) if header and name else None


class Question:
    """A question taken apart: its stems in order, what it is about, which document it names, and what kind of answer it wants."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text[:QUESTION_CHARS_MAX].split())
        self.words = words(self.text)
        self.stems = [stem(word) for word in self.words]
        self.content = content(self.text)
        self.asks = next((word for word in map(str.lower, self.words) if word in ("who", "whom", "whos", "when", "where", "why", "how", "which", "what")), "")
        self.references = [(stem(found[1]), stem(found[2])) for found in re.finditer(r"\b([A-Za-z]{2,})[ -]?#?(\d+)\b(?!\.\d)", self.text)]

    @property
    def queries(self) -> list[str]:
        return [self.text]

    @cached_property
    def head(self) -> list[str]:
        """The stems of the noun after `which`, `what` or `how many`: up to the next verb or preposition we know."""
        found = re.search(r"\b(?:which|what|how many|how much)\s+(?:(?:is|are|was|were)\s+the\s+(?:(?:default|exact)\s+)?(?:names?\s+of\s+(?:the\s+)?)?)?((?:[\w.-]+\s+){1,4})", self.text + " ", re.IGNORECASE)
        counting, head = bool(found) and "many" in found[0].lower(), list[str]()
        for word in found[1].split() if found else []:
            if stem(word) in STOP_STEMS or stem(word) in (ARRIVING | REPLACING | REQUIRING | REMOVING) - RELEASE or (head and _is_verb(word) and not counting):
                break
            head += stems(word)
        return head[:-1] if len(head) > 1 and head[-1] == "name" else head

    @cached_property
    def verbs(self) -> frozenset[str]:
        """The stems of words that stand where a verb of the question stands: behind the noun it asks for, or behind `that`."""
        subject = re.search(r"\b(?:which|what)\s+(?:[\w.-]+\s+){1,3}?(\w+(?:s|ed))\s", self.text, re.IGNORECASE)
        relative = re.findall(r"\b(?:that|which|who)\s+(\w+(?:s|ed))\b", self.text[5:], re.IGNORECASE)
        found = {stem(word) for word in [*([subject[1]] if subject and _is_verb(subject[1]) and not set(stems(subject[0])) & STOP_STEMS - ASKING_STEMS else []), *relative]}
        return frozenset(found) - REMOVING - JUDGING

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
    def counted(self) -> str:
        """The stem of what is counted, or nothing."""
        found = re.search(r"\bhow many\s+(?:more\s+)?((?:[\w-]+\s+){1,3})", self.text + " ", re.IGNORECASE)
        return next((one for one in reversed(self.head) if one), "") if found else ""


def _is_verb(word: str) -> bool:
    return bool(re.search(r"(?:[^s]s|ed)$", word))


# -- fields of a header


def answer_from_fields(question: Question, evidence: Evidence) -> list[Claim] | None:
    """Claims from the headers of the documents that the question is about; none when those do not say it, None when the question asks for nothing that a header says."""
    if relation := _relation(question):
        return _related(question, evidence, *relation)
    named = {name: any(NAME.search(header.fields.get(name, ("",))[0]) for header in evidence.headers.values()) for name in {name for header in evidence.headers.values() for name in header.fields}}
    field, used = _field(question, named)
    if not field:
        return None
    subject = [one for one in question.content if one not in used | question.verbs and one not in evidence.common]
    headers, support = _about(question, subject, evidence, field)
    values = [(header, *header.fields[field]) for header in headers if field in header.fields]
    if not values or len({value for _, value, _ in values}) > 1 or len(values) < len(headers):
        return []
    claims = [Claim(span=span, passage=header) for header, _, span in values]
    if question.head and field in question.head and "title" in headers[0].fields:
        claims.append(Claim(span=headers[0].fields["title"][1], passage=headers[0]))
    return (claims + support)[: CLAIMS_MAX + 1]


def _field(question: Question, names: dict[str, bool]) -> tuple[str, set[str]]:
    """The field that is asked for, and the stems of the question that this explains. `names` says of each field whether it holds names of people."""
    asked = set(question.stems)
    version = next((name for name in ("python-version", "version") if name in names), next((name for name in sorted(names) if name.endswith("-version")), ""))
    head = set(question.head)
    if head == {"kind"}:
        head = {"type"}
    dated = (MAKING | {"year", "date", "day", "month"} | head) if question.wants_date else set()
    for name in sorted(names, key=lambda name: -len(name)):
        parts = set(stems(name)) - {"-"}
        wh_noun = (parts <= head and head <= parts | {"python", "current", "number"}) or (parts <= asked and len(parts) > 1)
        of_it = re.match(rf"(?:(?:what|who|which|when)(?:'s| is| are| was| were)|name|give|tell me|show|find|state) (?:the|its) (?:current )?{re.escape(name.replace('-', ' '))}s? (?:of|for)\b", question.text.replace("-", " "), re.IGNORECASE)
        who = question.wants_person and names[name] and parts <= asked and not any(name == word for word, _ in question.references)
        last = question.asks in ("what", "which", "") and set(question.stems[-len(parts) :]) == parts
        if (wh_noun or of_it or who or last) and not (name == version and (not (asked & ARRIVING or question.references) or asked & REMOVING)) and not (name == "title" and not of_it):
            return name, parts | {"number", "kind"} | dated | (ARRIVING | RELEASE | {"python"} if name == version else set())
    if question.wants_person and "author" in names and asked & MAKING:
        return "author", MAKING | {"author", "person"}
    if question.wants_date and asked & MAKING:
        return next((name for name in ("created", "date", "published") if name in names), ""), dated
    if version and head & RELEASE and head <= RELEASE | {"python", "first"} and (asked & ARRIVING or question.references) and not asked & REMOVING:
        return version, ARRIVING | RELEASE | {"python"}
    if "status" in names and (asked & JUDGING) and question.asks == "":
        return "status", JUDGING | {"status"}
    return "", set()


def _about(question: Question, subject: Sequence[str], evidence: Evidence, field: str) -> tuple[list[Passage], list[Claim]]:
    """The headers of the documents in question, and the spans that show it where their titles do not."""
    if question.references:
        return _referenced(question, subject, evidence), []
    if not subject:
        return [], []
    titled = [header for header in evidence.headers.values() if all(_entitled(one, header) for one in subject)]
    if titled:
        return _current(titled, subject, field, evidence), []
    proper = {stem(word) for word in question.words[1:] if word[0].isupper()}
    partly = [header for header in evidence.headers.values() if not (set(subject) - header.about) & proper and len(set(subject) & header.about) * 2 > len(subject) > 1 and set(subject) <= header.about | _early(header.doc_id, evidence)]
    if partly:
        return _current(partly, subject, field, evidence), []
    shown = [
        Claim(span=span, passage=passage)
        for passage in evidence.passages
        for span in passage.spans
        if passage.number <= EARLY_PARTS and len(subject) > 1 and passage.doc_id in evidence.headers and set(subject) <= set(stems(span)) | passage.about and _adjacent(subject, stems(span), question.stems)
    ]
    documents = list(dict.fromkeys(claim.passage.doc_id for claim in shown))
    if len(documents) != 1:
        return [], []
    return [evidence.headers[documents[0]]], shown[:1]


def _entitled(word: str, header: Passage) -> bool:
    """Whether a title holds a word, or a longer one that it is short for (`async`)."""
    return word in header.about or (len(word) >= ABBREVIATED and any(one.startswith(word) for one in header.about))


def _early(doc_id: str, evidence: Evidence) -> set[str]:
    """The stems of what was read of a document's beginning, where it says what it is about."""
    return {one for passage in evidence.passages if passage.doc_id == doc_id and passage.number <= EARLY_PARTS for one in stems(passage.text)}


def _adjacent(subject: Sequence[str], span: Sequence[str], question: Sequence[str]) -> bool:
    """Whether words of the subject that stand together in the question stand together in the span."""
    pairs = {pair for pair in zip(question, question[1:], strict=False) if pair[0] in subject and pair[1] in subject}
    return bool(pairs & set(zip(span, span[1:], strict=False)))


def _referenced(question: Question, subject: Sequence[str], evidence: Evidence) -> list[Passage]:
    """The one document that the question names by word and number (`PEP 572`), if the other words of the question fit it at least half."""
    found = [header for header in evidence.headers.values() if any(_is_named(header, *reference) for reference in question.references)]
    if len(found) != 1:
        return []
    rest = set(subject) - {one for reference in question.references for one in reference}
    text = set(found[0].about) | {one for passage in evidence.passages if passage.doc_id == found[0].doc_id for one in stems(passage.text)}
    return found if len(rest - text) * 2 <= len(rest) and not (rest - text) & (JUDGING | {"remov", "drop", "delet"}) else []


def _is_named(header: Passage, word: str, number: str) -> bool:
    return (word in header.fields and number in stems(header.fields[word][0])[:1]) or stems(header.doc_id)[-2:] == [word, number]


def _current(headers: Sequence[Passage], subject: Sequence[str], field: str, evidence: Evidence) -> list[Passage]:
    """Of documents that all fit: not those that others of them supersede; then all of them if they agree, else the one whose title says least besides."""
    ids = {header.doc_id for header in headers}
    found = [header for header in headers if not (set(header.superseded_by) & ids)] or list(headers)
    if field in ("status", *(header.fields and _identity(header) for header in found)) or len({header.fields.get(field, ("",))[0] for header in found}) > 1:
        extra = {header.doc_id: len(set(stems(header.title)) - set(subject) - STOP_STEMS - evidence.common) for header in found}
        fewest = min(extra.values())
        found = [header for header in found if extra[header.doc_id] == fewest]
    return sorted(found, key=lambda header: len(header.title))[:CLAIMS_MAX]


# -- one document named by another


def _relation(question: Question) -> tuple[frozenset[str], bool] | None:
    """The verb by which one document names another, and whether the one that is asked for is named by the one in the question (`what does X replace`) or names it (`what replaces X`)."""
    for verbs in (REPLACING, REQUIRING):
        at = next((n for n, one in enumerate(question.stems) if one in verbs), None)
        if at is None or question.wants_date or question.wants_person or question.asks == "how" or set(question.head) & {*RELEASE, "status"}:
            continue
        word = question.words[at].lower()
        before = {one.lower() for one in question.words[:at]}
        if word in ("successor", "predecessor"):
            return verbs, word == "predecessor"
        passive = word.endswith("ed") and bool(before & {"is", "was", "were", "are", "been", "being"})
        object_after = any(one in question.content for one in question.stems[at + 1 :])
        return verbs, passive == object_after
    return None


def _related(question: Question, evidence: Evidence, verbs: frozenset[str], forward: bool) -> list[Claim]:
    """Both sides of the relation as far as they were read: the line in the document of the question, and the line in the other one."""
    subject = [one for one in question.content if one not in verbs and one not in evidence.common and one not in question.head]
    own = _referenced(question, subject, evidence) if question.references else _exact([header for header in evidence.headers.values() if subject and set(subject) <= header.about], subject, evidence)
    if not own and not question.references:
        return []
    here, there = (FORWARD, BACKWARD) if forward else (BACKWARD, FORWARD)
    claims = [Claim(span=header.fields[name][1], passage=header) for header in own[:1] for name, of in here.items() if of is verbs and name in header.fields]
    named = [evidence.headers[name] for header in own[:1] if not forward for name in header.superseded_by if name in evidence.headers]
    claims += [Claim(span=header.fields[name][1], passage=header) for header in named for name in [_identity(header) or "title"] if name in header.fields]
    keys = {own[0].doc_id, *stems(own[0].doc_id)[-1:]} if own else {question.references[-1][1]}
    for header in evidence.headers.values():
        for name, of in there.items():
            if of is verbs and name in header.fields and keys & {header.fields[name][0], *stems(header.fields[name][0])}:
                identity = header.fields.get(_identity(header) or "title", ("", ""))[1]
                claims += [Claim(span=span, passage=header) for span in (identity, header.fields[name][1]) if span]
    return list({(claim.span, claim.passage.id): claim for claim in claims}.values())


def _identity(header: Passage) -> str:
    """The field that holds the document's own number or id, like `PEP: 634`."""
    return next((name for name, (value, _) in header.fields.items() if stems(value) and (stems(value) == stems(header.doc_id)[-1:] or value == header.doc_id)), "")


def _exact(headers: Sequence[Passage], subject: Sequence[str], evidence: Evidence) -> list[Passage]:
    """The one whose title says least besides the subject."""
    return sorted(headers, key=lambda header: len(set(stems(header.title)) - set(subject) - STOP_STEMS - evidence.common))[:1]


# -- sentences


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
    if best.score + _support(best, votes) < SURE:
        return []
    names = {name for name in best.names if votes[name] == max(votes[name] for name in best.names)}
    more = [one for one in found if one is not best and one.claim.passage.doc_id == best.claim.passage.doc_id and (names & one.names or not names) and one.score >= best.score - 0.25]
    return [best.claim, *(one.claim for one in sorted(more, key=lambda one: -one.score)[: CLAIMS_MAX - 1])]


def _support(one: _Candidate, votes: Counter[str]) -> float:
    """What it counts that other candidates name the same thing."""
    return 0.15 * min(max((votes[name] for name in one.names), default=1) - 1, 4)


def _candidates(question: Question, evidence: Evidence) -> Iterator[_Candidate]:
    required = [one for one in question.content if one not in evidence.common and not (question.wants_date and one in ("year", "date", "day")) and one != "person"]
    required += [one for one in question.head[-1:] if one in evidence.common and one not in SHAPES]
    referenced = {passage.doc_id for passage in evidence.headers.values() if any(_is_named(passage, *one) for one in question.references)}
    superseded = {passage.doc_id for passage in evidence.passages if passage.superseded_by}
    pairs = {pair for pair in zip(question.stems, question.stems[1:], strict=False) if pair[0] in required and pair[1] in required}
    light = [one for one in question.stems if one in LIGHT_STEMS]
    for rank, passage in enumerate(evidence.passages):
        if not required or (referenced and passage.doc_id not in referenced) or set(stems(passage.heading)) & ASIDE:
            continue
        titled = set(stems(passage.title))
        own = [one for one in required if one not in titled] or required
        for span in passage.spans:
            if CODE.search(span):
                continue
            order = stems(span)
            here = set(order)
            local = [one for one in required if one in here]
            missing = [one for one in required if one not in here and one not in passage.about and one not in question.verbs and one not in SHAPES]
            if not local or len(missing) > _forgiven(required) or any(one[0].isdigit() or one in REMOVING or one in question.head for one in missing) or not _versions_fit(question, passage, span):
                continue
            names = _names(question, span, stems(passage.heading.rpartition(" > ")[2]) if passage.number > 1 else [])
            if names is None:
                continue
            share = len([one for one in own if one in here]) / len(own)
            if share < (0.5 if titled & set(required) else 0.8):
                continue
            near = len(pairs & set(zip(order, order[1:], strict=False))) / len(pairs) if pairs else share
            score = 1.5 * share + 0.3 * len(local) / len(required) + 0.5 * near + 0.2 * len([one for one in light if one in here]) / max(len(light), 1)
            score += 0.4 * bool(question.wants_date and FULL_DATE.search(span))
            score += 0.5 * (set(content(passage.heading.rpartition(" > ")[2])) <= set(required) | evidence.common and passage.number > 1) 
            score += 0.4 * (span == passage.spans[0] and passage.number > 1)
            score -= 0.4 * len(missing) + 0.0005 * len(span) + 0.01 * rank + 0.5 * bool(DOUBT.search(span)) + 0.5 * (passage.doc_id in superseded)
            yield _Candidate(claim=Claim(span=span, passage=passage), score=score, names=names)


def _forgiven(required: Sequence[str]) -> int:
    """How many of these words a span may lack: one of many, because people put things in their own words."""
    return int(len(required) >= MANY)


def _versions_fit(question: Question, passage: Passage, span: str) -> bool:
    """Whether each number of the question stands beside one of the words it stands beside there: `Python 5.0` is not any 5.0."""
    text = [*stems(passage.doc_id), "", *stems(passage.title), "", *stems(passage.heading), "", *stems(span)]
    beside = {frozenset(pair) for pair in zip(text, text[1:], strict=False)}
    for at, one in enumerate(question.stems):
        near = [frozenset((one, other)) for other in (*question.stems[max(at - 1, 0) : at], *question.stems[at + 1 : at + 2]) if other not in STOP_STEMS]
        if one[0].isdigit() and near and not any(pair in beside for pair in near):
            return False
    return True


def _names(question: Question, span: str, leaf: Sequence[str]) -> frozenset[str] | None:
    """What a span holds of the kind that is wanted, beyond the words of the question; None when it holds nothing of it. `leaf` are the stems of the heading just above."""
    known = set(question.stems)
    names: list[str]
    if question.counted:
        found = [one for one in COUNT.finditer(span) if question.counted in stems(one[2])]
        names = [one[1] for one in found]
    elif question.wants_date:
        names = DATE.findall(span)
    elif question.wants_person:
        names = [one[0] for one in NAME.finditer(span) if not set(stems(one[0])) & known]
    elif set(question.head) & RELEASE:
        names = [one for one in VERSION.findall(span) if one not in known]
    elif question.head:
        shapes = [SHAPES[one] for one in question.head if one in SHAPES]
        found = [one for one in (shapes[-1] if shapes else LITERAL).finditer(span) if not stems(one[0]) or one[0].strip("`'\"") not in question.text]
        names = [one[0] for one in found if one[0].startswith("-") or question.head[-1] in leaf or _is_called(question.head[-1], span, one)]
        if not names and not shapes:
            names = [one[0] for one in re.finditer(r"\b\d+(?:[.,]\d+)*", span) if one[0] not in known and (set(question.head) & MEASURES or _is_given(question.head[-1], span[: one.start()]))]
    elif question.asks == "where":
        names = [one for one in re.findall(r"\b(?:in|at|near|from|to)\s+((?:[A-ZÀ-Þ][\w-]+\s?)+)", span) if not set(stems(one)) & known]
    elif question.defined:
        names = [span] if _bare(stems(span))[: len(question.defined) + 1] in ([*question.defined, "is"], [*question.defined, "are"]) else []
    else:
        names = []
    return frozenset(one.strip("`'\"*(") for one in names) or None


def _is_called(noun: str, span: str, name: re.Match[str]) -> bool:
    """Whether a span calls the name so: the noun stands close to it, or `called` and `named` just before it."""
    before, after = stems(span[: name.start()])[-NEAR:], stems(span[name.end() :])[:NEAR]
    return noun in before or noun in after or (
        noun in stems(span[: name.start()])[-NEAR - 3 :] and bool(re.search(r"\b(?:called|named|calls)\W+(?:\w+\W+)?$", span[: name.start()]))
    )


def _is_given(noun: str, before: str) -> bool:
    """Whether a number is what a noun is said to be: the noun, then `is`, `was` or the like, then the number, in one clause."""
    clause = stems(re.split(r"[;:,] ", before)[-1])
    return noun in clause and bool(set(clause[clause.index(noun) :]) & {"is", "are", "was", "were", "be", "reach", "amount", "total", "grow", "rise", "fall", "stand"})


def _bare(span: list[str]) -> list[str]:
    return span[1:] if span[:1] in (["a"], ["an"], ["the"]) else span
