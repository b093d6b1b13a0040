"""Keeps secrets out of the log and off the screen: what a model said, what a tool gave and what an error says is rewritten before it is written or shown.

Apart from everything that makes such texts, so that there is one door. Arguments of a call are no such text: a call that holds a secret is denied, because
secrets are passed by reference; what is written of it has a mark in the secret's place.
"""

import json
import os
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

import msgspec

from refold.events import facts as f
from refold.runtime import ports as p
from refold.runtime.outcomes import Failed, Succeeded
from refold.runtime.text import whole
from refold.runtime.tools import Note

Redactor = Callable[[str], str]
"""Gives a text without its secrets."""
MARK: Final = "[redacted]"
FAILED: Final = "[redacted: a redactor failed]"
LENGTH_MIN: Final = 8
"""Shorter values are words, and no secrets."""
SECRET_VARIABLE: Final = re.compile(r".*(_API_KEY|_TOKEN|_SECRET|PASSWORD.*)", re.IGNORECASE)
_NAME: Final = (
    r"(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|(?:access|auth|refresh)[_-]?token|private[_-]?key|authorization|(?-i:[A-Z]_TOKEN))"
)
NAMED_KEY: Final = re.compile(rf".*{_NAME}", re.IGNORECASE | re.DOTALL)
_BEFORE: Final = rf"(?:{_NAME}[\"']?\s{{0,3}}(?:=>|[:=])\s{{0,3}}[\"']?(?:(?:bearer|basic|token)\s{{1,3}})?|\b(?:bearer|basic)\s{{1,3}}|://[^\s/:@]{{1,100}}:)"
_CHARACTER: Final = r"[^\s\"'&,;(){}\[\]<>@]"
NAMED: Final = re.compile(rf"{_BEFORE}(?P<secret>(?!\$|(?:env|secret|ref):|\[)(?={_CHARACTER}{{0,200}}\d){_CHARACTER}{{8,}})", re.IGNORECASE)
OPEN: Final = re.compile(rf"{_BEFORE}(?P<secret>{_CHARACTER}*)\Z", re.IGNORECASE)
"""The same, where the text ends in the middle of it."""
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
CONTEXT: Final = 200
"""Characters already shown that what comes next is read with."""
WINDOW: Final = 4_096
"""Characters in which a secret that is not whole yet is looked for."""
REFERENCE: Final = re.compile(r"\$.*|(env|secret|ref):.*", re.DOTALL)
DENIED: Final = (
    "the arguments hold a secret, or the mark that stands for one, and were not passed on: name the secret (such as $NAME) and let the tool look it up"
)


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose names say that they are secrets, in every way that they may be written."""
    values = {value for name, value in environment.items() if SECRET_VARIABLE.fullmatch(name) and len(value.strip()) >= LENGTH_MIN}
    return as_written(values)


def as_written(values: Sequence[str] | set[str]) -> tuple[str, ...]:
    """Values as they are, as they stand in JSON and as they stand in a URL; the longest first, because one may be the beginning of another."""
    forms = {
        form for value in values for form in (value, value.strip(), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe=""))
    }
    return tuple(sorted((whole(form) for form in forms), key=lambda form: (-len(form), form)))


@dataclass(frozen=True)
class Redaction:
    """What is taken out: known `values`, what stands behind a name that says that it is a secret, and whatever the `redactors` of an application find.

    A redactor that raises takes the whole text with it.
    """

    redactors: tuple[Redactor, ...] = ()
    values: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, redactors: Sequence[Redactor]) -> "Redaction":
        """With the secrets of this process's environment."""
        return cls(tuple(redactors), secrets_of(os.environ))

    def text(self, text: str) -> str:
        """A text with marks in the place of secrets."""
        for redactor in self.redactors:
            text = _asked(redactor, text)
        return _marked(text, self.spans(text))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the secrets are that are known or named, in order, none inside another."""
        found = [match.span() for value in self.values if value in text for match in re.finditer(re.escape(value), text)]
        return _apart([*found, *_named(text)])

    def value(self, value: Any) -> Any:
        """A JSON value with marks in the place of secrets: of texts in it, and of what stands under a name that says that it is one."""
        try:
            return self._value(value, self.text)
        except RecursionError:  # too deep to be looked at
            return MARK

    def data(self, data: bytes) -> bytes:
        """The same, for encoded JSON; what has nothing to look at is not taken apart."""
        if not self._suspects(data.decode()):
            return data
        return msgspec.json.encode(self.value(msgspec.json.decode(data)))

    def arguments(self, text: str) -> str:
        """The model's own text of arguments, untouched where they hold no secret; else with a mark for each text that holds one."""
        if "\\u" not in text and not self._suspects(text):
            return text
        try:
            given = msgspec.json.decode(text)
            marked = self._value(given, lambda leaf: leaf if self.text(leaf) == leaf else MARK)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return text if self.text(text) == text else MARK
        if marked != given:
            return msgspec.json.encode(marked).decode()
        return MARK if any(value in text for value in self.values) else text  # as a number, or under a name that is there twice

    def denies(self, arguments: str) -> bool:
        """Whether arguments hold a secret, or did before they were written."""
        return MARK in self.arguments(arguments)

    def _suspects(self, text: str) -> bool:
        """Whether there is anything to look at."""
        lower = text.lower()
        return bool(self.redactors) or MARK in text or any(anchor in lower for anchor in ANCHORS) or any(value in text for value in self.values)

    def _value(self, value: Any, clean: Redactor) -> Any:
        match value:
            case str():
                return clean(value)
            case list():
                return [self._value(item, clean) for item in value]
            case dict():
                return {clean(key): MARK if _is_named(key, item) else self._value(item, clean) for key, item in value.items()}
            case _:
                return value

    # -- what comes in at the border

    def output(self, fact: f.ModelOutput | f.ModelFailed) -> Any:
        """What a model said, or how it failed, as it may be written; of the same type."""
        if isinstance(fact, f.ModelFailed):
            error = msgspec.structs.replace(fact.error, type=self.text(fact.error.type), message=self.text(fact.error.message))
            return msgspec.structs.replace(fact, error=error, text=self.text(fact.text))
        calls = tuple(msgspec.structs.replace(call, arguments_text=self.arguments(call.arguments_text)) for call in fact.calls)
        texts = {name: self.text(getattr(fact, name)) for name in ("text", "reasoning", "refusal", "rationale", "detail") if getattr(fact, name, "")}
        return msgspec.structs.replace(fact, calls=calls, opaque=tuple(self.value(item) for item in fact.opaque), **texts)

    def verdict(self, fact: f.CallsChecked | f.AnswerChecked) -> Any:
        """What user code said, errors included; of the same type."""
        if isinstance(fact, f.CallsChecked):
            checks = tuple(msgspec.structs.replace(check, message=self.text(check.message)) if check.message else check for check in fact.checks)
            return msgspec.structs.replace(fact, checks=checks)
        return msgspec.structs.replace(fact, complaints=tuple(map(self.text, fact.complaints)), error=self.text(fact.error))

    def outcome(self, outcome: Succeeded | Failed) -> Succeeded | Failed:
        """What a tool gave."""
        if isinstance(outcome, Failed):
            return replace(outcome, message=self.text(outcome.message))
        notes = tuple(Note(self.text(note.text), note.source_ids) for note in outcome.notes)
        return replace(outcome, data=self.data(outcome.data), notes=notes)


class Shown:
    """Shows the parts of one stream: a secret that comes in pieces is held back until it is whole.

    With redactors of an application a text is shown line by line, since only they know what they look for.
    """

    def __init__(self, redaction: Redaction, show: Callable[[p.Part], None]) -> None:
        self._redaction, self._show = redaction, show
        self._held: dict[tuple[type[p.Part], int], tuple[p.Part, str, str]] = {}
        """By kind and call: the last part, what was shown before, what is held back."""

    def take(self, part: p.Part) -> None:
        """One more part."""
        match part:
            case p.TextDelta() | p.ReasoningDelta() | p.Refusal() | p.ArgumentsDelta():
                self._more(part)
                return
            case p.ToolCallReady():
                shown: p.Part = msgspec.structs.replace(part, arguments=self._redaction.arguments(part.arguments))
            case p.OpaqueItem():
                shown = msgspec.structs.replace(part, item=self._redaction.value(part.item))
            case p.Malformed():
                shown = msgspec.structs.replace(part, reason=self._redaction.text(part.reason))
            case p.Finished():
                shown = msgspec.structs.replace(part, rationale=self._redaction.text(part.rationale))
            case _:
                shown = part
        self.end()
        self._show(shown)

    def end(self) -> None:
        """Show what is held back: nothing more of it comes."""
        held, self._held = self._held, {}
        for part, before, text in held.values():
            if text:
                self._say(part, before, text)

    def _more(self, part: p.TextDelta | p.ReasoningDelta | p.Refusal | p.ArgumentsDelta) -> None:
        key = type(part), getattr(part, "index", 0)
        _, before, held = self._held.get(key, (part, "", ""))
        held += part.text
        safe = self._safe(before, held)
        if safe:
            self._say(part, before, held[:safe])
        self._held[key] = (part, (before + held[:safe])[-CONTEXT:], held[safe:])

    def _say(self, part: Any, before: str, text: str) -> None:
        if self._redaction.redactors:
            self._show(msgspec.structs.replace(part, text=self._redaction.text(text)))
            return
        spans = [(max(0, start - len(before)), end - len(before)) for start, end in self._redaction.spans(before + text) if end > len(before)]
        self._show(msgspec.structs.replace(part, text=_marked(text, spans)))

    def _safe(self, before: str, held: str) -> int:
        """How much of what is held back can be shown whatever comes next."""
        if self._redaction.redactors:
            return held.rfind("\n") + 1
        safe = len(held)
        for value in self._redaction.values:
            begun = next((n for n in range(min(len(value) - 1, len(held)), 0, -1) if held.endswith(value[:n])), 0)
            safe = min(safe, len(held) - begun)
        window = (before + held)[-WINDOW:]
        lower = window.lower()
        if any(anchor in lower for anchor in ANCHORS) and (open_ := OPEN.search(window)) is not None:
            safe = min(safe, len(held) - (open_.end() - open_.start("secret")))
        whole = (start - len(before) for start, end in self._redaction.spans(before + held) if start < safe + len(before) < end)
        return max(0, min(whole, default=safe))


def _asked(redactor: Redactor, text: str) -> str:
    try:
        given = redactor(text)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code: whatever it raises, what it was to hide stays hidden
        return FAILED
    return whole(given) if isinstance(given, str) else FAILED


def _named(text: str) -> Iterator[tuple[int, int]]:
    """Where secrets stand behind a name that says so."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters have two small ones
        lower = text.translate(ASCII_LOWER)
    for anchor, offsets in ANCHORS.items():
        at = lower.find(anchor)
        while at >= 0:
            match = next((found for offset in offsets if at >= offset and (found := NAMED.match(text, at - offset))), None)
            if match is not None:
                yield match.span("secret")
            at = lower.find(anchor, match.end() if match is not None else at + 1)


def _is_named(key: str, value: object) -> bool:
    """Whether a value stands under a name that says that it is a secret; not where it is only a reference to one, or a sentence."""
    return (
        isinstance(value, str)
        and len(value) >= LENGTH_MIN
        and NAMED_KEY.fullmatch(key) is not None
        and not REFERENCE.fullmatch(value)
        and not re.search(r"\s", value)
    )


def _apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, those that overlap joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _marked(text: str, spans: list[tuple[int, int]]) -> str:
    for start, end in reversed(spans):
        text = text[:start] + MARK + text[end:]
    return text
