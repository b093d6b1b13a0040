"""Answers from the headers of documents: who wrote it, when, what state it is in, and which document replaces or needs which.

Apart from answers out of sentences, because a header's line is named by its field and not by the words around it.
"""

import re
from collections.abc import Sequence, Set as AbstractSet
from itertools import pairwise
from typing import Final

from refold.runtime.reading.language import NAME, STOP_STEMS, stem_set, stems
from refold.runtime.reading.question import ARRIVING, BACKWARD, JUDGING, MAKING, RELEASE, REMOVING, REPLACING, REQUIRING, Claim, Evidence, Passage, Question

FORWARD: Final = {"replaces": REPLACING, "supersedes": REPLACING, "obsoletes": REPLACING, "requires": REQUIRING, "depends-on": REQUIRING}
ABBREVIATED: Final = 5
CLAIMS_MAX: Final = 3
EARLY_PARTS: Final = 4


def answer_from_fields(question: Question, evidence: Evidence) -> list[Claim] | None:
    """Claims from the headers of the documents that the question is about.

    None of them when those documents do not say it; None when the question asks for nothing that a header says.
    """
    if relation := _relation(question):
        return _related(question, evidence, *relation)
    named = {
        name: any(NAME.search(header.fields.get(name, ("",))[0]) for header in evidence.headers.values())
        for name in {name for header in evidence.headers.values() for name in header.fields}
    }
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


def _field(question: Question, names: dict[str, bool]) -> tuple[str, AbstractSet[str]]:
    """The field that is asked for, and the stems of the question that this explains. `names` says of each field whether it holds names of people."""
    asked, head = set(question.stems), set(question.head)
    version = "version" if "version" in names else next((name for name in sorted(names) if name.endswith("-version")), "")
    arriving = ARRIVING | RELEASE | set(stems(version))
    dated = MAKING | stem_set("year date day month") | head if question.wants_date else set()
    for name in sorted(names, key=lambda name: (-len(name), name)):
        if _asks_for(name, question, names[name]) and not (
            name == version and (not (asked & ARRIVING or question.references or "version for" in question.text) or asked & REMOVING)
        ):
            return name, set(stems(name)) | {"number", "kind"} | dated | (arriving if name == version else set())
    if question.wants_person and "author" in names and asked & MAKING:
        return "author", MAKING | {"author", "person"}
    if question.wants_date and asked & MAKING:
        return next((name for name in ("created", "date", "published") if name in names), ""), dated
    arrival = bool(asked & ARRIVING or question.references) and not asked & REMOVING
    if version and arrival and head & RELEASE and head <= RELEASE | {"first", *stems(version)}:
        return version, arriving
    if "status" in names and asked & JUDGING and not question.asks:
        return "status", JUDGING | {"status"}
    return "", set()


def _asks_for(name: str, question: Question, of_people: bool) -> bool:
    """Whether the question names a field: as the thing it asks for (`which topic`, `the topic of`, `who is the sponsor`) or as its last word."""
    parts, asked = set(stems(name)), set(question.stems)
    head = {"type"} if question.head == ["kind"] and question.references else set(question.head)
    spoken = re.escape(name.replace("-", " "))
    start = r"(?:(?:what|who|which|when)(?:'s| is| are| was| were)|name|give|tell me|show|find|state) (?:the|its) (?:current )?"
    of_it = re.match(rf"{start}{spoken}s? (?:of|for)\b", question.text.replace("-", " "), re.IGNORECASE)
    wh_noun = (parts <= head and head <= parts | {"current", "number"}) or (parts <= asked and len(parts) > 1 and question.asks not in ("how", "where", "why"))
    who = question.wants_person and of_people and parts <= asked and not any(name == word for word, _ in question.references)
    last = question.asks in ("what", "which", "") and set(question.stems[-len(parts) :]) == parts
    return bool(of_it) or (name != "title" and (wh_noun or who or last))


def _about(question: Question, subject: Sequence[str], evidence: Evidence, field: str) -> tuple[list[Passage], list[Claim]]:
    """The headers of the documents in question, and the spans that show it where their titles do not."""
    if question.references:
        return _referenced(question, subject, evidence), []
    if not subject:
        return [], []
    titled = [header for header in evidence.headers.values() if all(_entitled(one, header) for one in subject)]
    if titled:
        return _current(titled, subject, field, evidence), []
    partly = [
        header
        for header in evidence.headers.values()
        if not (set(subject) - header.about) & question.proper
        and len(set(subject) & header.about) * 2 > len(subject) > 1
        and set(subject) <= header.about | _early(header.doc_id, evidence)
    ]
    if partly:
        return _current(partly, subject, field, evidence), []
    shown = [
        Claim(span=span, passage=passage)
        for passage in evidence.passages
        for span in passage.spans
        if passage.number <= EARLY_PARTS
        and len(subject) > 1
        and passage.doc_id in evidence.headers
        and set(subject) <= set(stems(span)) | passage.about
        and _adjacent(subject, stems(span), question.stems)
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
    pairs = {pair for pair in pairwise(question) if pair[0] in subject and pair[1] in subject}
    return bool(pairs & set(pairwise(span)))


def _referenced(question: Question, subject: Sequence[str], evidence: Evidence) -> list[Passage]:
    """The one document that the question names by word and number (`PEP 572`), if the other words of the question fit it at least half."""
    found = [header for header in evidence.headers.values() if any(is_named(header, *reference) for reference in question.references)]
    if len(found) != 1:
        return []
    rest = set(subject) - {one for reference in question.references for one in reference}
    text = found[0].about | evidence.vocabulary(found[0].doc_id)
    return found if len(rest - text) * 2 <= len(rest) and not (rest - text) & (JUDGING | {"remov", "drop", "delet"}) else []


def is_named(header: Passage, word: str, number: str) -> bool:
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
    """The verb by which one document names another, and whether the one in the question names (`what does X replace`) or is named (`what replaces X`)."""
    for verbs in (REPLACING, REQUIRING):
        at = next((n for n, one in enumerate(question.stems) if one in verbs), None)
        if at is None or question.wants_date or question.wants_person or question.asks == "how" or set(question.head) & {*RELEASE, "status"}:
            continue
        word = question.words[at].lower()
        before = {one.lower() for one in question.words[:at]}
        if word in ("successor", "predecessor"):
            return verbs, word == "predecessor"
        passive = word.endswith("ed") and bool(before & {"is", "was", "were", "are", "been", "being", "get", "gets", "got"})
        object_after = any(one in question.content for one in question.stems[at + 1 :])
        return verbs, passive == object_after
    return None


def _related(question: Question, evidence: Evidence, verbs: frozenset[str], forward: bool) -> list[Claim]:
    """Both sides of the relation as far as they were read: the line in the document of the question, and the line in the other one."""
    subject = [one for one in question.content if one not in verbs and one not in evidence.common and one not in question.head]
    own = (
        _referenced(question, subject, evidence)
        if question.references
        else _exact([header for header in evidence.headers.values() if subject and set(subject) <= header.about], subject, evidence)
    )
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
    return next(
        (name for name, (value, _) in header.fields.items() if stems(value) and (stems(value) == stems(header.doc_id)[-1:] or value == header.doc_id)), ""
    )


def _exact(headers: Sequence[Passage], subject: Sequence[str], evidence: Evidence) -> list[Passage]:
    """The one whose title says least besides the subject."""
    return sorted(headers, key=lambda header: len(set(stems(header.title)) - set(subject) - STOP_STEMS - evidence.common))[:1]
