"""Keeps secrets out of the log and off the screen: what a model said, what a tool gave and what an error says is rewritten before it is written or shown.

Apart from everything that makes such texts, so that there is one door. Arguments of a call are no such text: a call that holds a secret is denied, because
secrets are passed by reference; what is written of it has a mark in the secret's place.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

import msgspec

from refold.events import facts as f
from refold.runtime import ports as p
from refold.runtime.marking import ANCHORS, MARK, NAME, Passage, apart, marked, named
from refold.runtime.outcomes import Failed, Succeeded
from refold.runtime.text import whole
from refold.runtime.tools import Note

Redactor = Callable[[str], str]
"""Gives a text without its secrets."""
FAILED: Final = "[redacted: a redactor failed]"
TEXTS: Final = ("text", "reasoning", "refusal", "rationale", "detail", "provider_stop_reason")
"""What a model, or its provider, says in its own words."""
LENGTH_MIN: Final = 8
"""Shorter values are words, and no secrets."""
SECRET_VARIABLE: Final = re.compile(r".*(_API_KEY|_TOKEN|_SECRET|PASSWORD.*)", re.IGNORECASE)
NAMED_KEY: Final = re.compile(rf".*{NAME}", re.IGNORECASE | re.DOTALL)
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
        text = self.redacted(text)
        return marked(text, self.spans(text))

    def redacted(self, text: str) -> str:
        """A text as the redactors of the application leave it."""
        for redactor in self.redactors:
            text = _asked(redactor, text)
        return text

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the secrets are that are known or named, in order, none inside another."""
        found = [match.span() for value in self.values if value in text for match in re.finditer(re.escape(value), text)]
        return apart([*found, *named(text)])

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
            error = msgspec.structs.replace(fact.error, **{name: self.text(getattr(fact.error, name)) for name in ("type", "code", "message")})
            return msgspec.structs.replace(fact, error=error, text=self.text(fact.text), reasoning=self.text(fact.reasoning), calls=self._calls(fact.calls))
        calls = self._calls(fact.calls)
        texts = {name: self.text(getattr(fact, name)) for name in TEXTS if getattr(fact, name, "")}
        return msgspec.structs.replace(fact, calls=calls, opaque=tuple(self.value(item) for item in fact.opaque), **texts)

    def _calls(self, calls: tuple[f.ProposedCall, ...]) -> tuple[f.ProposedCall, ...]:
        return tuple(msgspec.structs.replace(call, arguments_text=self.arguments(call.arguments_text)) for call in calls)

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
    """Shows the parts of one stream: what is shown of a text, however it comes in pieces, is together what is written of it.

    What may become a secret is held back until that is settled, or until the end: parts of other kinds do not wait for it.
    With redactors of an application a text is shown line by line, since only they know what they look for.
    """

    def __init__(self, redaction: Redaction, show: Callable[[p.Part], None]) -> None:
        self._redaction, self._show = redaction, show
        self._texts: dict[tuple[type[p.Part], int], tuple[p.Part, Passage]] = {}
        """By kind and call: the first part, and where the text stands."""
        self._over = False

    def take(self, part: p.Part) -> None:
        """One more part; of a stream that was given up nothing more is shown."""
        if self._over:
            return
        match part:
            case p.TextDelta() | p.ReasoningDelta() | p.Refusal() | p.ArgumentsDelta():
                self._more(part)
                return
            case p.ToolCallOpened():
                self._rest((p.ArgumentsDelta, part.index))
                shown: p.Part = part
            case p.ToolCallReady():
                self._rest((p.ArgumentsDelta, part.index))
                shown = msgspec.structs.replace(part, arguments=self._redaction.arguments(part.arguments))
            case p.OpaqueItem():
                shown = msgspec.structs.replace(part, item=self._redaction.value(part.item))
            case p.Malformed():
                shown = msgspec.structs.replace(part, reason=self._redaction.text(part.reason))
            case p.Finished():
                self._rest(*self._texts)
                shown = msgspec.structs.replace(
                    part, rationale=self._redaction.text(part.rationale), provider_stop_reason=self._redaction.text(part.provider_stop_reason)
                )
            case _:
                shown = part
        self._show(shown)

    def end(self) -> None:
        """Show what is held back: nothing more comes."""
        self._rest(*self._texts)
        self._over = True

    def _rest(self, *keys: tuple[type[p.Part], int]) -> None:
        """Show what is held back of these: they are whole."""
        for key in keys:
            if (known := self._texts.pop(key, None)) is not None:
                self._say(known[0], known[1].end())

    def _more(self, part: p.TextDelta | p.ReasoningDelta | p.Refusal | p.ArgumentsDelta) -> None:
        key = type(part), part.index if isinstance(part, p.ArgumentsDelta) else 0
        if (known := self._texts.get(key)) is None:
            redaction = self._redaction
            known = self._texts[key] = part, Passage(redaction.values, redaction.redacted if redaction.redactors else None)
        self._say(part, known[1].more(part.text))

    def _say(self, part: Any, text: str) -> None:
        if text:
            self._show(part if text is part.text else msgspec.structs.replace(part, text=text))


def _asked(redactor: Redactor, text: str) -> str:
    try:
        given = redactor(text)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code: whatever it raises, what it was to hide stays hidden
        return FAILED
    return whole(given) if isinstance(given, str) else FAILED


def _is_named(key: str, value: object) -> bool:
    """Whether a value stands under a name that says that it is a secret; not where it is only a reference to one, or a sentence."""
    return (
        isinstance(value, str)
        and len(value) >= LENGTH_MIN
        and NAMED_KEY.fullmatch(key) is not None
        and not REFERENCE.fullmatch(value)
        and not re.search(r"\s", value)
    )
