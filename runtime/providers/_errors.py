"""What an SDK raises, and what a provider says went wrong, as a `ModelError`: one line that names what to check, and never a key.

Apart from the adapters, because the SDKs share the names of their exceptions and servers share their ways of failing: one reading of them serves all.
Nothing here imports an SDK; an exception is known by the names of its classes.
"""

import email.utils
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from refold.runtime.ports import ModelError
from refold.runtime.providers._sse import TooLong

MESSAGE_MAX: Final = 1_000
"""Characters of a provider's own message that are kept."""
MASK: Final = "***"
SHORT_KEY: Final = 8
"""A key below this is masked only where it stands as a word: it would be found inside ordinary ones."""

WORDS: Final = {
    400: "invalid_request",
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "conflict",
    413: "context_overflow",
    422: "invalid_request",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}
"""Types of errors to which the provider gave none, by HTTP status."""

PASSING: Final = re.compile(
    r"overload|rate.?limit|too_many_requests|server_error|api_error|internal|timeout|timed_out|unavailable|system_resource", re.IGNORECASE
)
"""Words of errors that another attempt may not meet."""
UNPAID: Final = re.compile(r"insufficient_quota|billing|quota_exceeded|credit", re.IGNORECASE)
"""Words of errors that stay until somebody pays."""
TOO_LONG: Final = re.compile(
    r"context_length_exceeded|too_many_prompt_tokens|exceed_context_size|context_window_exceeded|request_too_large|model_max_prompt_tokens_exceeded"
    r"|maximum context length|context (?:length|window|size)|prompt is too long|input is too long|too many input tokens|length of all messages is too long",
    re.IGNORECASE,
)
"""How servers say that a request is longer than the model can read: a code, or only the message."""

CLOSED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Of a secure connection that was cut off; any other failure of one stays."""


@dataclass(frozen=True)
class Origin:
    """Whose errors these are: what a message may name, and the `key` that none may hold. `variable` is where the key comes from."""

    model: str
    base_url: str
    variable: str
    key: str = field(repr=False)

    @property
    def check(self) -> str:
        """What to do where the address is that of something else."""
        return f"check that --base-url is the address of the API (without it, {self.variable.removesuffix('_API_KEY')}_BASE_URL)"


def translated(error: Exception, origin: Origin, *, mid_stream: bool = False) -> ModelError:
    """The error that an exception of an SDK, or of the HTTP client below it, is. `mid_stream` says that a response had begun."""
    if isinstance(error, ModelError):
        return error
    status = getattr(error, "status_code", None)
    names = {kind.__name__ for kind in type(error).__mro__}
    if "APIStatusError" in names or (isinstance(status, int) and status >= 400):
        response = getattr(error, "response", None)
        return reported(getattr(error, "body", None), origin, http_status=status, headers=getattr(response, "headers", {}), mid_stream=mid_stream)
    body = getattr(error, "body", None)
    if body is not None:  # an SDK's error of a stream carries what was sent
        return reported(body, origin, mid_stream=mid_stream)
    return _unreached(error, names, origin, mid_stream)


def reported(
    body: object,
    origin: Origin,
    *,
    http_status: int | None = None,
    headers: Mapping[str, str] | None = None,
    mid_stream: bool = False,
    retryable: bool | None = None,
    in_place: bool = False,
) -> ModelError:
    """The error that a provider reports, as the body of a response (JSON value or text) or inside one that had begun; `retryable` where the caller knows it.

    `in_place` says that it came where a reply is due, in nothing that has the form of one: whoever sent it may be no provider.
    """
    failed = http_status if http_status is not None and http_status >= 400 else None
    said = _said(body)
    word, code, message = (_text(said.get(name)) for name in ("type", "code", "message"))
    number = failed or _status_in(code)
    marks = f"{word} {code}"
    too_long = failed not in (429, 401, 403, 404) and bool(TOO_LONG.search(marks) or TOO_LONG.search(message) or (number == 413 and "rate" not in marks))
    kind = word or WORDS.get(number or 0, "server_error" if (number or 0) >= 500 else code or "provider_error")
    vetoed = (headers or {}).get("x-should-retry", "").lower() == "false"
    passes = not too_long and not vetoed and (_passes(failed, marks, mid_stream) if retryable is None else retryable)
    line = _line(message or f"the provider reported an error without a message{f' (HTTP {failed})' if failed else ''}", number, origin)
    if in_place and not passes:
        line += f" (what {origin.base_url} answered is an error and no reply of this API: {origin.check})"
    return ModelError(
        masked(kind, origin.key),
        masked(line, origin.key),
        retryable=passes,
        code=masked(code, origin.key),
        http_status=failed,
        retry_after_s=retry_after_s(headers or {}),
        mid_stream=mid_stream,
        overflow=too_long,
    )


def no_reply(body: str, origin: Origin) -> ModelError:
    """The error of a response that is no reply of the API: a web page, other text, JSON of another form, or nothing; or that of one that was cut off."""
    if body.strip() and _is_cut(body):
        return _cut(body, origin)
    what = f"a web page{_title(body)}" if _is_page(body) else repr(one_line(body, 80)) if body.strip() else "empty"
    line = f"the response of {origin.base_url} is {what}, and no reply of this API: {origin.check}"
    return ModelError("no_reply", masked(line, origin.key), retryable=not body.strip())


def no_event(data: str, origin: Origin, why: str) -> ModelError:
    """The error of an event, in the middle of a stream, that does not have the form of the API, or that was cut off."""
    if _is_cut(data):
        return _cut(data, origin)
    line = f"{origin.base_url} sent what is no event of this API ({one_line(data, 80)!r}): {why}"
    return ModelError("protocol", masked(line, origin.key), retryable=True, mid_stream=True)


def gave_up(word: str, origin: Origin, *, mid_stream: bool) -> ModelError:
    """The error of a reply that ended with a word that means that the server gave up."""
    return reported({"type": word, "message": f"the server gave up ({word})"}, origin, mid_stream=mid_stream, retryable=True)


def _is_cut(text: str) -> bool:
    """Whether a text is the beginning of a JSON value."""
    try:
        msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        return "truncated" in str(error)
    return False


def _cut(text: str, origin: Origin) -> ModelError:
    line = f"the response of {origin.base_url} was cut off before its end (behind {one_line(text[-80:])!r})"
    return ModelError("connection", masked(line, origin.key), retryable=True, mid_stream=True)


def masked(text: str, key: str) -> str:
    """`text` without the key: also where a provider repeats its first and last characters around asterisks or dots."""
    if not key:
        return text
    whole = re.escape(key) if len(key) >= SHORT_KEY else rf"(?<!\w){re.escape(key)}(?!\w)"
    return re.sub(r"([^\s'\"`*…]*?)(?:\*{2,}|…|\.{3,})([^\s'\"`*…]*)", lambda found: _unless_of(key, found), re.sub(whole, MASK, text))


def _unless_of(key: str, found: re.Match[str]) -> str:
    """What was found, or its mask where its ends are those of the key."""
    lead, tail = found.groups()
    before, after = lead.lstrip("(<[:="), tail.rstrip(".,;:)>]")
    if not (before or after) or not key.startswith(before) or not key.endswith(after):
        return found.group(0)
    return lead[: len(lead) - len(before)] + MASK + tail[len(after) :]


def one_line(text: str, most: int = MESSAGE_MAX) -> str:
    """The text on one line, cut where it is endless."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + "..."


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a provider asks to be left alone: the longer of `retry-after-ms` and `retry-after`, which is seconds or an HTTP date."""
    waits = [_number(headers.get("retry-after-ms"), 1000), _number(headers.get("retry-after"), 1), _until(headers.get("retry-after"))]
    return max((wait for wait in waits if wait is not None), default=None)


def _number(text: str | None, scale: int) -> float | None:
    return float(text) / scale if text is not None and re.fullmatch(r"\s*\d{1,12}(\.\d{1,9})?\s*", text) else None


def _until(text: str | None) -> float | None:
    try:
        moment = email.utils.parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment.timestamp() - time.time())


def _said(body: object) -> dict[str, Any]:
    """Type, code and message wherever a server puts them: `{"error": {...}}`, the same in a list, `{"error": "..."}`, `{"detail": "..."}`, or text."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, dict) and body.get("error"):
        body = body["error"]
    if isinstance(body, dict):
        details = body.get("details")
        finer = details.get("error_code") if isinstance(details, dict) else None
        message = body.get("message") or body.get("detail") or body.get("error_description")
        return {"type": body.get("type"), "code": body.get("code") or finer, "message": message or (json.dumps(body, ensure_ascii=False) if body else "")}
    return {"message": f"a web page{_title(body)} instead of an answer" if isinstance(body, str) and _is_page(body) else body}


def _text(value: object) -> str:
    return one_line(value if isinstance(value, str) else "" if value is None else str(value))


def _passes(failed: int | None, marks: str, mid_stream: bool) -> bool:
    """Whether another attempt may go better: by the HTTP status, else by what the provider calls it."""
    if "tool_use_failed" in marks:  # the model's call was malformed, and the server refuses to show it: another sample may be well-formed
        return True
    if UNPAID.search(marks):
        return False
    number = failed or _status_in(marks)
    if number is not None:
        return number in (408, 409, 429) or number >= 500
    return bool(PASSING.search(marks)) or (mid_stream and not marks.strip())


def _status_in(code: str) -> int | None:
    """The HTTP status that some servers write as the code of an error."""
    found = re.search(r"(?<!\S)[45]\d\d(?!\S)", code)
    return int(found.group()) if found else None


def _line(message: str, number: int | None, origin: Origin) -> str:
    """The provider's own words, and what to check where they do not say it."""
    if number in (401, 403) and origin.variable not in message:
        return f"{message} (check the key in {origin.variable})"
    if number == 404 and not re.search(rf"(?<![\w-]){re.escape(origin.model)}(?![\w-])", message):
        return f"{message} (check the model {origin.model} and the address {origin.base_url})"
    return message


def _unreached(error: Exception, names: set[str], origin: Origin, mid_stream: bool) -> ModelError:
    """The error of a connection that was not made, or that broke."""
    chain = list(_causes(error))
    cause = next((each for each in reversed(chain) if isinstance(each, OSError)), chain[-1])
    deepest = one_line(str(cause) or type(cause).__name__, 200)
    every = names | {kind.__name__ for cause in chain for kind in type(cause).__mro__}
    if not mid_stream and any(isinstance(each, ssl.SSLError) for each in chain):
        word, retryable = "tls", any(isinstance(each, CLOSED) for each in chain)
        line = f"no secure connection to {origin.base_url}: {deepest}; check the address (https or http?) and its certificate"
    elif every & {"UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "UnicodeEncodeError"}:
        word, retryable, line = "invalid_request", False, f"the request to {origin.base_url} could not be sent: {deepest}; check --base-url"
    elif undecoded := next((each for each in chain if type(each).__name__ == "DecodingError"), None):
        word, retryable = "connection", True
        line = f"the response of {origin.base_url} could not be decoded, or was damaged on its way: {one_line(str(undecoded), 200)}"
    elif isinstance(error, TooLong):
        word, retryable, line = "protocol", False, f"{origin.base_url} sent {deepest}"
    elif mid_stream:
        word, retryable, line = "connection", True, f"the connection to {origin.base_url} broke while the model answered: {deepest}"
    elif every & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        word, retryable, line = "connection", True, f"{origin.base_url} did not answer in time; check --base-url and the network"
    elif every & {"APIConnectionError", "TransportError", "OSError"}:
        word, retryable, line = "connection", True, f"no connection to {origin.base_url}: {deepest}; check --base-url and whether the server runs"
    else:
        word, retryable, line = type(error).__name__, False, deepest
    return ModelError(word, masked(line, origin.key), retryable=retryable, mid_stream=mid_stream)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from, the deepest last."""
    current: BaseException | None = error
    for _ in range(20):  # a chain could be a circle
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def _is_page(body: str) -> bool:
    return re.match(r"\s*<(!doctype|html|head|body|\?xml)", body, re.IGNORECASE) is not None


def _title(body: str) -> str:
    found = re.search(r"<title[^>]*>([^<]{1,200})", body, re.IGNORECASE)
    return f" ({one_line(found.group(1), 80)})" if found else ""
