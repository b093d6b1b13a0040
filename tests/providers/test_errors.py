"""What goes wrong at a provider, as one error with its class: which are tried again, what their line says, and that no key is in it."""

import email.utils
import json
import ssl
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.runtime.ports import ModelError
from refold.runtime.providers import _errors as errors

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz"
ORIGIN = errors.Origin(model="gpt-x", base_url="https://api.example.com/v1", variable="OPENAI_API_KEY", key=KEY)


def reported(body: Any, status: int | None = None, **options: Any) -> ModelError:
    return errors.reported(body, ORIGIN, http_status=status, **options)


def failed(kind: str | None = None, code: Any = None, message: str = "No.") -> dict[str, Any]:
    return {"error": {"type": kind, "code": code, "message": message}}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again(status: int):
    assert reported(failed("some_error"), status).retryable


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_what_stays_is_not_tried_again(status: int):
    assert not reported(failed("overloaded_server_error"), status).retryable


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_not_active", "billing_hard_limit_reached"])
def test_a_limit_that_has_to_be_paid_is_not_tried_again(code: str):
    assert not reported(failed(code, code), 429).retryable


@pytest.mark.parametrize(
    ("kind", "code", "again"),
    [
        ("overloaded_error", None, True),
        ("api_error", None, True),
        ("server_error", "server_error", True),
        (None, "rate_limit_exceeded", True),
        (None, 502, True),
        (None, 400, False),
        (None, None, True),
        ("invalid_request_error", None, False),
        ("invalid_request_error", "tool_use_failed", True),
        (None, "content_filter", False),
    ],
)
def test_inside_a_response_the_words_decide(kind: str | None, code: Any, again: bool):
    error = reported(failed(kind, code), 200, mid_stream=True)
    assert (error.retryable, error.mid_stream, error.http_status) == (again, True, None)


def test_a_server_may_forbid_another_attempt():
    assert not reported(failed("overloaded_error"), 503, headers={"x-should-retry": "false"}).retryable


def test_the_providers_own_words_are_kept():
    error = reported({"error": {"type": "rate_limit_error", "code": "slow_down", "message": "Too many\n  requests."}}, 429)
    assert (error.type, error.code, error.message, error.http_status) == ("rate_limit_error", "slow_down", "Too many requests.", 429)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"error": "model 'x' not found"}, "server_error", "model 'x' not found"),
        ([{"error": {"message": "Quota.", "code": 500}}], "server_error", "Quota."),
        ({"detail": "Broken."}, "server_error", "Broken."),
        ({"type": "error", "error": {"type": "api_error", "message": "Broken."}}, "api_error", "Broken."),
        ("upstream connect error", "server_error", "upstream connect error"),
        ("<html><head><title>502 Bad Gateway</title></head></html>", "server_error", "a web page (502 Bad Gateway) instead of an answer"),
        ({"anything": 1}, "server_error", '{"anything": 1}'),
        (None, "server_error", "the provider reported an error without a message (HTTP 500)"),
        ([], "server_error", "[]"),
    ],
)
def test_an_error_is_found_wherever_a_server_puts_it(body: Any, kind: str, message: str):
    error = reported(body, 500)
    assert (error.type, error.message, error.retryable) == (kind, message, True)


@pytest.mark.parametrize(
    "body",
    [
        failed("invalid_request_error", "context_length_exceeded"),
        failed("too_many_prompt_tokens", 400),
        failed("exceed_context_size_error"),
        failed("invalid_request_error", "invalid_request_error", "This model's maximum context length is 4096 tokens, you asked for 5000."),
        failed("invalid_request_error", None, "prompt is too long: 3333404 tokens > 200000 maximum"),
    ],
)
def test_a_request_that_is_too_long_is_told_from_other_bad_requests(body: dict[str, Any]):
    error = reported(body, 400)
    assert (error.overflow, error.retryable) == (True, False)
    assert error.code == str(body["error"]["code"] or "")


def test_a_rate_limit_in_tokens_is_no_overflow():
    assert (
        reported(failed("rate_limit_error", None, "Reduce the prompt length: the context window of tokens per minute is used up."), 429).type
        == "rate_limit_error"
    )


def test_a_refused_key_names_its_variable():
    assert reported(failed("authentication_error", None, "invalid x-api-key"), 401).message == "invalid x-api-key (check the key in OPENAI_API_KEY)"


def test_an_unknown_model_is_named():
    assert reported(failed(None, None, "Resource not found"), 404).message.endswith("(check the model gpt-x and the address https://api.example.com/v1)")
    assert reported(failed(None, "model_not_found", "There is no gpt-x."), 404).message == "There is no gpt-x."


# -- how long to wait


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "1", "retry-after-ms": "0"}, 1.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 99999999999 07:28:00 GMT"}, None),
    ],
)
def test_a_wait_is_read_in_every_notation(headers: dict[str, str], wait: float | None):
    assert reported(failed(), 429, headers=headers).retry_after_s == wait


def test_a_wait_until_a_date_is_counted_from_now():
    wait = reported(failed(), 429, headers={"retry-after": email.utils.formatdate(time.time() + 100, usegmt=True)}).retry_after_s
    assert wait is not None
    assert 90 < wait <= 100


# -- keys


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Incorrect key: {KEY}.", "Incorrect key: ***."),
        ("Incorrect key: sk-proj-abc*******xyz.", "Incorrect key: ***."),
        ("Incorrect key (sk-pr…wxyz)", "Incorrect key (***)"),
        ("Incorrect key: sk-pr...wxyz", "Incorrect key: ***"),
        ("Incorrect key: ********wxyz, sorry", "Incorrect key: ***, sorry"),
        ("Incorrect key: other-*****2345.", "Incorrect key: other-*****2345."),
        ("Wait... what?", "Wait... what?"),
        ("**bold**", "**bold**"),
    ],
)
def test_a_key_is_masked_however_it_is_repeated(text: str, shown: str):
    assert errors.masked(text, KEY) == shown


def test_a_short_key_is_masked_as_a_word_only():
    assert errors.masked("the key x is wrong in index", "x") == "the key *** is wrong in index"


@given(st.text(), st.text(), st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=60))
def test_no_text_shows_a_key(before: str, behind: str, key: str):
    assert key not in errors.masked(before + key + behind, key).replace(errors.MASK, "\n")


def test_a_key_reaches_no_field_of_an_error():
    error = reported({"error": {"type": KEY, "code": KEY, "message": f"bad {KEY}"}}, 401)
    assert KEY not in json.dumps([error.type, error.code, error.message])
    assert KEY not in repr(ORIGIN)


# -- connections


def caused(error: Exception, *causes: Exception) -> Exception:
    """An exception with what it came from."""
    current = error
    for cause in causes:
        current.__cause__ = cause
        current = cause
    return error


class APIConnectionError(Exception):
    """Named as in both SDKs."""


class APITimeoutError(APIConnectionError):
    """Named as in both SDKs."""


def test_a_refused_connection_names_the_address():
    error = errors.translated(caused(APIConnectionError("Connection error."), OSError("connection refused")), ORIGIN)
    assert (error.type, error.retryable, error.mid_stream) == ("connection", True, False)
    assert error.message == "no connection to https://api.example.com/v1: connection refused; check --base-url and whether the server runs"


def test_a_connection_that_is_not_made_in_time_is_tried_again():
    error = errors.translated(APITimeoutError("Request timed out."), ORIGIN)
    assert (error.type, error.retryable) == ("connection", True)


def test_a_certificate_is_not_tried_again():
    error = errors.translated(caused(APIConnectionError("Connection error."), ssl.SSLError(1, "CERTIFICATE_VERIFY_FAILED")), ORIGIN)
    assert (error.type, error.retryable) == ("tls", False)
    assert "https or http" in error.message


@pytest.mark.parametrize(("mid_stream", "kind"), [(False, "tls"), (True, "connection")])
def test_a_secure_connection_that_is_cut_off_is_tried_again(mid_stream: bool, kind: str):
    error = errors.translated(caused(APIConnectionError("Connection error."), ssl.SSLEOFError(8, "EOF occurred")), ORIGIN, mid_stream=mid_stream)
    assert (error.type, error.retryable) == (kind, True)


def test_a_connection_that_breaks_inside_a_response_is_said_to():
    error = errors.translated(OSError("reset by peer"), ORIGIN, mid_stream=True)
    assert (error.type, error.retryable, error.mid_stream) == ("connection", True, True)


def test_whatever_else_is_raised_is_an_error_of_its_own_name():
    error = errors.translated(ZeroDivisionError("division by zero"), ORIGIN)
    assert (error.type, error.message, error.retryable) == ("ZeroDivisionError", "division by zero", False)


def test_a_web_page_is_no_reply():
    error = errors.no_reply("<!doctype html><title>Welcome</title>", ORIGIN)
    assert (error.type, error.retryable) == ("no_reply", False)
    assert error.message == (
        "the response of https://api.example.com/v1 is a web page (Welcome), and no reply of this API:"
        " check that --base-url is the address of the API (without it, OPENAI_BASE_URL)"
    )
