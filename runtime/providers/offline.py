"""A model without a network: deterministic and extractive. It searches, reads, compares, calculates, and answers with spans of what it read.

It keeps nothing between requests: every step is worked out from the transcript, so it can be stopped and taken up anywhere.
How a span is found is in `runtime/reading/`, which knows neither requests nor tools.
"""

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from refold.projections.messages import Message
from refold.runtime.ports import Finished, Model, Part, Request, TextDelta, ToolCallReady
from refold.runtime.reading.compare import Comparison, Pair, find_pair
from refold.runtime.reading.fields import answer_from_fields
from refold.runtime.reading.question import Claim, Evidence, Passage, Question
from refold.runtime.reading.sentences import answer_from_sentences

NO_ANSWER: Final = "The documents do not answer this."
RESULTS_WANTED: Final = 14
PARTS_READ: Final = 10
HEADERS_READ: Final = 6
SUCCESSORS_READ: Final = 4
ARITHMETIC: Final = re.compile(r"(?:^|\b(?:is|calculate|compute|evaluate)\s+)([-(\d][\d.()\s+*/%×÷−-]*[\d)])(?!\w)", re.IGNORECASE)
OPERATION: Final = re.compile(r"[\d.)]\s*[-+*/%×÷−]+\s*[-(.\d]")


def create(name: str, *, base_url: str | None = None, settings: dict[str, Any] | None = None) -> Model:
    """`offline`: there is one, and nothing to set. Raises ValueError for a name behind it."""
    if name:
        raise ValueError(f"the model is called offline, without a name behind it, not offline:{name}")
    return OfflineModel()


class OfflineModel:
    """`Model` for the spec `offline`."""

    spec = "offline"

    async def stream(self, request: Request) -> AsyncIterator[Part]:
        step = next_step(request)
        if isinstance(step, Answer):
            yield TextDelta(text=step.text)
            yield Finished(stop_reason="stop", citations=step.citations, no_evidence=step.no_evidence)
            return
        for index, (name, arguments) in enumerate(step):
            yield ToolCallReady(index=index, name=name, arguments=json.dumps(arguments, ensure_ascii=False))
        yield Finished(stop_reason="tool_calls")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A final text with what it cites."""

    text: str
    citations: tuple[str, ...] = ()
    no_evidence: bool = False


Calls = list[tuple[str, dict[str, Any]]]


def next_step(request: Request) -> Answer | Calls:
    """The calls to make now, or the answer. A pure function of the request."""
    seen = _seen(request)
    question = Question(seen.goal)
    if not question.stems:
        return Answer(text=NO_ANSWER, no_evidence=True)
    if not seen.searched and "search_kb" not in seen.tools:
        return _plain_step(question, seen)
    if not seen.searched:
        return [("search_kb", {"query": query, "limit": RESULTS_WANTED}) for query in question.queries]
    if wanted := _unread(_worth_reading(seen), seen):
        return wanted
    evidence = Evidence(passages=_trusted(seen), common=seen.common)
    if comparison := Comparison.asked(question):
        if pair := find_pair(comparison, evidence):
            return _compared(comparison, pair, seen)
        return Answer(text=NO_ANSWER, no_evidence=True)
    claims = answer_from_fields(question, evidence)
    claims = answer_from_sentences(question, evidence) if claims is None else claims
    if wanted := _unread([f"{claim.passage.doc_id}#1" for claim in claims] + _successor_parts(claims), seen):
        return wanted
    if len(seen.searches) == 1 and "search_kb" in seen.tools and (titles := _successor_titles(claims, evidence)):
        return [("search_kb", {"query": f"{question.text} {titles}", "limit": RESULTS_WANTED})]
    return _answer(claims, evidence) if claims else Answer(text=NO_ANSWER, no_evidence=True)


# -- what the transcript holds


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What happened since the last message of the user."""

    goal: str
    tools: frozenset[str]
    searched: bool
    searches: tuple[tuple[dict[str, Any], ...], ...]
    """What each search found, best first."""
    passages: tuple[Passage, ...]
    asked: frozenset[str]
    """Ids that `read_document` was asked for, whatever came of it."""
    failed: bool
    """Whether a calculation failed."""
    results: dict[str, str]
    """Results of `calculate` by expression."""
    common: frozenset[str]
    """Words so frequent in these documents that they tell nothing apart."""


def _seen(request: Request) -> _Seen:
    messages = request.messages
    last = max((n for n, message in enumerate(messages) if message.role == "user" and not message.kind), default=-1)
    arguments = {call.id: _object(call.arguments_text) for message in messages for call in message.calls}
    results = [message for message in messages[last + 1 :] if message.role == "tool"]
    good = [message for message in results if message.kind == "success"]
    searches = [_object(message.content) for message in good if message.name == "search_kb"]
    return _Seen(
        goal=messages[last].text if last >= 0 else "",
        tools=frozenset(tool.name for tool in request.tools),
        searched=any(message.name == "search_kb" for message in results),
        searches=tuple(tuple(hit for hit in search.get("results", []) if isinstance(hit, dict)) for search in searches),
        passages=tuple(_passages(good)),
        asked=frozenset(
            str(arguments[message.call_id].get("doc_id")) for message in results if message.name == "read_document" and message.call_id in arguments
        ),
        failed=any(message.name == "calculate" and message.kind != "success" for message in results),
        results={
            str(found["expression"]): str(found["result"])
            for message in good
            if message.name == "calculate" and "result" in (found := _object(message.content)) and "expression" in found
        },
        common=_common(searches),
    )


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _passages(messages: Sequence[Message]) -> list[Passage]:
    """Every part that was read, once, in the order of reading."""
    found: dict[str, Passage] = {}
    for message in messages:
        content = _object(message.content) if message.name == "read_document" else {}
        metadata = _object(content.get("metadata"))
        for piece in content.get("text", []):
            one = _object(piece)
            if one.get("id") and isinstance(one.get("text"), str):
                found[str(one["id"])] = Passage(
                    id=str(one["id"]),
                    doc_id=str(content.get("doc_id", "")),
                    title=str(content.get("title", "")),
                    heading=str(one.get("heading", "")),
                    text=one["text"],
                    superseded_by=tuple(str(name) for name in metadata.get("superseded_by", [])),
                )
    return list(found.values())


def _common(searches: Sequence[dict[str, Any]]) -> frozenset[str]:
    counts = [(word, count, search.get("parts_total", 0)) for search in searches for word, count in _object(search.get("parts_with_word")).items()]
    return frozenset(str(word) for word, count, total in counts if isinstance(count, int) and isinstance(total, int) and total >= 100 and count > total * 0.4)


def _trusted(seen: _Seen) -> tuple[Passage, ...]:
    """What was read, without the documents that give orders to whoever reads them: those are no evidence of anything."""
    tools = "|".join(re.escape(name) for name in sorted(seen.tools | {"search_kb", "read_document", "store_observation"}) if "_" in name)
    order = re.compile(
        rf"\b(?:ignore|disregard|forget|override)\b[^.]{{0,60}}\b(?:instructions?|prompts?|rules|directions|orders)\b|\b(?:{tools})\b|\bsystem prompt\b",
        re.IGNORECASE,
    )
    bad = {passage.doc_id for passage in seen.passages if order.search(passage.text)}
    return tuple(passage for passage in seen.passages if passage.doc_id not in bad)


# -- what to read


def _worth_reading(seen: _Seen) -> list[str]:
    """The best parts found, and the first part of the best documents, where a document says what it is."""
    wanted: list[str] = []
    for hits in seen.searches:
        documents = list(dict.fromkeys(str(hit.get("doc_id")) for hit in hits))
        wanted += [f"{doc_id}#1" for doc_id in documents[:HEADERS_READ]]
        wanted += [str(hit.get("id")) for hit in hits[:PARTS_READ]]
        wanted += [f"{name}#1" for hit in hits[:PARTS_READ] for name in hit.get("superseded_by", []) if not str(name).isdecimal()][:SUCCESSORS_READ]
    return list(dict.fromkeys(wanted))


def _successor_parts(claims: Sequence[Claim]) -> list[str]:
    return [f"{name}#1" for claim in claims for name in claim.passage.superseded_by if not name.isdecimal()]


def _successor_titles(claims: Sequence[Claim], evidence: Evidence) -> str:
    """What to look for once more when a sentence of a superseded document is all there is so far."""
    found = [evidence.headers.get(name) for claim in claims if not claim.passage.fields for name in claim.passage.superseded_by]
    return " ".join(dict.fromkeys(f"{header.title} {header.doc_id}" for header in found if header))


def _unread(ids: Sequence[str], seen: _Seen) -> Calls:
    """Calls that read these parts, unless they were asked for before or nothing can be read any more."""
    if "read_document" not in seen.tools:
        return []
    known = seen.asked | {passage.id for passage in seen.passages}
    return [("read_document", {"doc_id": one}) for one in dict.fromkeys(ids) if one not in known]


# -- answers


def _answer(claims: Sequence[Claim], evidence: Evidence) -> Answer:
    """The spans, each with its document; behind them, for a document that is superseded, the line in which it says so."""
    spans = [(claim.span, claim.passage) for claim in claims]
    for claim in claims:
        if claim.passage.superseded_by:
            stated = f"superseded by {', '.join(claim.passage.superseded_by)}", claim.passage  # Of a document that says so where no part shows it.
            spans.append(evidence.superseded_line(claim.passage.doc_id) or stated)
    lines = [f"{span} [{passage.doc_id}]" for span, passage in spans]
    return Answer(text="\n".join(dict.fromkeys(lines)), citations=tuple(dict.fromkeys(passage.id for _, passage in spans)))


def _compared(comparison: Comparison, pair: Pair, seen: _Seen) -> Answer | Calls:
    expression = comparison.expression(pair)
    if expression not in seen.results:
        return [("calculate", {"expression": expression})] if "calculate" in seen.tools else Answer(text=NO_ANSWER, no_evidence=True)
    first, second = pair.first.passage, pair.second.passage
    sources = " ".join(dict.fromkeys((f"[{first.doc_id}]", f"[{second.doc_id}]")))
    lines = [
        f"{pair.first.span} [{first.doc_id}]",
        f"{pair.second.span} [{second.doc_id}]",
        f"{comparison.name}: {seen.results[expression]}{comparison.unit(pair)} = {expression} {sources}",
    ]
    return Answer(text="\n".join(dict.fromkeys(lines)), citations=tuple(dict.fromkeys((first.id, second.id))))


def _plain_step(question: Question, seen: _Seen) -> Answer | Calls:
    """Without documents only arithmetic can be answered: by `calculate`, never by itself."""
    found = ARITHMETIC.search(question.text)
    expression = found[1].strip() if found and OPERATION.search(found[1]) else ""
    if expression in seen.results:
        return Answer(text=f"{expression} = {seen.results[expression]}")
    if expression and "calculate" in seen.tools and not seen.results and not seen.failed:
        return [("calculate", {"expression": expression})]
    return Answer(text="This cannot be answered without documents or a calculation.", no_evidence=True)
