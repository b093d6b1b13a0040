"""Secrets are marked wherever they come, and what only looks like one stays as it is."""

import json
import string
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from refold.events import facts as f
from refold.runtime import ports as p
from refold.runtime.marking import Passage
from refold.runtime.redaction import FAILED, MARK, Redaction, Shown, as_written, secrets_of
from refold.runtime.text import whole

KNOWN = Redaction(values=as_written({"hush-hush 42", 'q"uo\\te/99'}))


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Authorization: Bearer abcDEF123456", f"Authorization: Bearer {MARK}"),
        ("TAVILY_API_KEY=tvly-1234567", f"TAVILY_API_KEY={MARK}"),
        ("GITHUB_TOKEN=ghx_123456789 and more", f"GITHUB_TOKEN={MARK} and more"),
        ("{'secret': 'abc12345678'}", f"{{'secret': '{MARK}'}}"),
        ("https://x.org/?q=1&api_key=zz12345678&n=2", f"https://x.org/?q=1&api_key={MARK}&n=2"),
        ("postgresql://me:s3cret99@host/db", f"postgresql://me:{MARK}@host/db"),
        ("aws_secret_access_key = AbC/123+xyz", f"aws_secret_access_key = {MARK}"),
        ("İ: password=12345678", f"İ: password={MARK}"),
    ],
)
def test_what_stands_behind_a_name_that_says_so_is_marked(text, marked):
    assert Redaction().text(text) == marked
    assert Redaction().text(marked) == marked


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 5",
        "next_page_token=abc12345678",
        "password = get_password()",
        "password: $DB_PASSWORD1",
        "api_key=env:TAVILY_API_KEY_2",
        "http://host:8080/a",
        "the secret: nobody knows it",
        "tokens: 12345678",
        "basic arithmetic 12345678 is hard",
        "Authorization: required",
    ],
)
def test_what_only_looks_like_a_secret_stays(text):
    assert Redaction().text(text) == text
    assert Redaction().arguments(json.dumps({"text": text})) == json.dumps({"text": text})


def test_known_values_are_marked_however_they_are_written():
    written = ["hush-hush 42", json.dumps('q"uo\\te/99'), "?x=hush-hush%2042"]
    assert KNOWN.text(" ".join(written)) == f'{MARK} "{MARK}" ?x={MARK}'


def test_the_values_of_the_environment_are_those_whose_names_say_so():
    environment = {"OPENAI_API_KEY": "k" * 8, "GH_TOKEN": "t" * 8, "MY_SECRET": "s" * 8, "PGPASSWORD": "p" * 8, "PASSWORD_FILE": "f" * 8}
    others = {"API_KEY_ID_COUNT": "c" * 8, "MAX_TOKENS": "m" * 8, "SHORT_TOKEN": "7 chars", "PATH": "x" * 8, "BLANK_TOKEN": " " * 9}
    assert set(secrets_of(environment | others)) == set(environment.values())


def test_values_under_a_name_and_texts_anywhere_in_json_are_marked():
    given = {
        "api_key": "zz-longenough",
        "n": [{"Authorization": "Token abcdefgh"}, "hush-hush 42!"],
        "max_tokens": 5,
        "password": {"type": "string"},
        "token": "abc12345678",
    }
    marked = given | {"api_key": MARK, "n": [{"Authorization": "Token abcdefgh"}, f"{MARK}!"]}
    assert KNOWN.value(given) == marked
    assert json.loads(KNOWN.data(json.dumps(given).encode())) == marked
    plain = b'{"a": [1, 2.50, "text"]}'
    assert KNOWN.data(plain) is plain


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('{"a": 1,  "b": "fine"}', '{"a": 1,  "b": "fine"}'),
        ('{"api_key": "zz-123456"}', f'{{"api_key":"{MARK}"}}'),
        ('{"cmd": "curl -H \'Authorization: Bearer abcdef123456\' x"}', f'{{"cmd":"{MARK}"}}'),
        ('{"x": "\\u0068ush-hush 42"}', f'{{"x":"{MARK}"}}'),
        ('{"x": "hush-hush 42"', MARK),
        ('{"api_key": "$TAVILY_API_KEY"}', '{"api_key": "$TAVILY_API_KEY"}'),
    ],
)
def test_arguments_with_a_secret_are_told_from_those_without(text, written):
    assert KNOWN.arguments(text) == written
    assert KNOWN.denies(text) == (text != written)
    assert KNOWN.denies(written) == (text != written)


def test_a_number_that_is_known_as_a_secret_is_found_in_arguments():
    known = Redaction(values=("1234567890",))
    assert known.arguments('{"pin": 1234567890}') == MARK


def test_redactors_of_an_application_are_asked_about_every_text():
    def no_mail(text: str) -> str:
        return text.replace("ann@example.org", "somebody")

    own = Redaction((no_mail,))
    assert own.value({"to": ["ann@example.org", 1], "ann@example.org": True}) == {"to": ["somebody", 1], "somebody": True}
    assert own.arguments('{"to": "ann@example.org"}') == f'{{"to":"{MARK}"}}'


@pytest.mark.parametrize("broken", [lambda text: 1 / 0, lambda text: None])
def test_a_redactor_that_fails_hides_the_whole_text(broken):
    own = Redaction((broken,))
    assert own.text("anything") == FAILED
    assert own.denies('{"a": "anything"}')


def test_every_text_of_a_provider_is_looked_at():
    # given a provider that repeats a secret wherever it may say something of its own
    secret = "hush-hush 42"
    error = f.ErrorInfo(type=secret, message=secret, code=secret, retryable=False)
    # when its failure and its answer are written, then it is in none of their texts
    failed = KNOWN.output(f.ModelFailed(error=error, text=secret, reasoning=secret, calls=()))
    said = KNOWN.output(f.FinalProposed(text=secret, reasoning=secret, refusal=secret, rationale=secret, stop_reason="unknown", provider_stop_reason=secret))
    assert secret not in repr(failed) + repr(said)
    # and the words that providers have for their errors stay
    known = f.ErrorInfo(type="invalid_request_error", message="No.", code="invalid_api_key", retryable=False)
    assert KNOWN.output(f.ModelFailed(error=known, text="", reasoning="", calls=())).error == known


def streamed(redaction: Redaction, pieces: list[str]) -> tuple[list[str], str]:
    """What was shown before the end, and all of it."""
    shown: list[Any] = []
    one = Shown(redaction, shown.append)
    for piece in pieces:
        one.take(p.TextDelta(text=piece))
    before = [part.text for part in shown]
    one.end()
    return before, "".join(part.text for part in shown)


def test_a_secret_in_pieces_is_never_shown():
    text = "It is hush-hush 42, and api_key=zz-123456789 too; Bearer abcdefgh12345678."
    for size in range(1, 12):
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        before, whole = streamed(KNOWN, pieces)
        assert whole == KNOWN.text(text), size
        assert "hush" not in "".join(before)
        assert "zz-1" not in "".join(before)


def test_a_text_without_secrets_is_shown_as_it_comes():
    before, whole = streamed(KNOWN, ["What ", "is ", "the ", "key?"])
    assert before == ["What ", "is ", "the ", "key?"]
    assert whole == "What is the key?"


def test_with_redactors_of_its_own_an_application_shows_lines():
    before, whole = streamed(Redaction((lambda text: text.replace("ann bob", "..."),)), ["It is a", "nn b", "ob.\nAnd", " then"])
    assert before == ["It is ....\n"]
    assert whole == "It is ....\nAnd then"


def test_what_is_held_back_is_shown_before_the_end_and_holds_up_nothing_else():
    shown: list[Any] = []
    one = Shown(KNOWN, shown.append)
    one.take(p.TextDelta(text="hush"))
    assert shown == []
    ready = p.ToolCallReady(index=0, name="look", arguments='{"at": "hush-hush 42"}')
    one.take(ready)
    one.take(p.Finished(stop_reason="tool_calls"))
    assert shown == [msgspec.structs.replace(ready, arguments=f'{{"at":"{MARK}"}}'), p.TextDelta(text="hush"), p.Finished(stop_reason="tool_calls")]


def test_a_secret_that_other_parts_come_between_is_never_shown():
    # given what a provider may send in the middle of a text
    between = [p.UsageUpdated(output_tokens=1), p.ReasoningDelta(text="hush?"), p.ToolCallOpened(index=0, name="look"), p.OpaqueItem(item=1)]
    shown: list[Any] = []
    one = Shown(KNOWN, shown.append)
    # when it comes in the middle of a secret
    for piece in ["It is hu", "sh-hush", " 4", "2, and api_key=zz", "-123456789, so"]:
        one.take(p.TextDelta(text=piece))
        for part in between:
            one.take(part)
    one.end()
    # then the secret is marked, and the rest came at once
    assert "".join(part.text for part in shown if isinstance(part, p.TextDelta)) == f"It is {MARK}, and api_key={MARK}, so"
    assert [part for part in shown if isinstance(part, p.UsageUpdated)] == between[:1] * 5
    assert shown[:2] == [p.TextDelta(text="It is "), p.UsageUpdated(output_tokens=1)]


def test_the_arguments_of_a_call_come_before_the_call_as_a_whole():
    # given an application that sees whole lines, and arguments that are none
    shown: list[Any] = []
    one = Shown(Redaction((lambda text: text.replace("x", "y"),)), shown.append)
    # when
    for part in (p.ArgumentsDelta(index=1, text='{"a'), p.ArgumentsDelta(index=0, text="x"), p.ToolCallReady(index=1, name="look", arguments='{"a": 1}')):
        one.take(part)
    # then
    assert shown == [p.ArgumentsDelta(index=1, text='{"a'), p.ToolCallReady(index=1, name="look", arguments='{"a": 1}')]


def test_a_stream_that_was_given_up_shows_nothing_more():
    shown: list[Any] = []
    one = Shown(KNOWN, shown.append)
    one.take(p.TextDelta(text="hush"))
    one.end()
    one.take(p.TextDelta(text="-hush 42"))
    one.take(p.Finished(stop_reason="stop"))
    assert shown == [p.TextDelta(text="hush")]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_secret_without_an_end_is_one_mark_and_takes_little(size):
    # given secrets that go on for a long time, and what stands directly behind the first
    text = f"key: {'k' * 5_000} api_key={'z1' * 2_000} hush-hush 42; password={'a7' * 2_000}authorization: b123456789"
    one = Passage(KNOWN.values, None)
    # when they come in pieces
    out, most = [], 0
    for n in range(0, len(text), size):
        out.append(one.more(text[n : n + size]))
        most = max(most, len(one._text))
    # then
    assert "".join(out) + one.end() == KNOWN.text(text)
    assert most < 2_500


PIECES = st.sampled_from(
    [
        *string.ascii_lowercase[:4],
        "1",
        "12345678",
        "api_key",
        "=",
        ": ",
        " ",
        "\n",
        "bearer ",
        "hush-hush 42",
        "hush-",
        "://",
        "@",
        "İ",
        "X_TOKEN",
        "\ud83d",
        "\ude00",
        "é",
    ]
)


@given(st.lists(PIECES, max_size=40), st.data())
def test_what_is_shown_in_pieces_is_what_is_written(pieces, data):
    # given a text that is cut anywhere, also in the middle of a character
    text = "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    # when
    _, shown = streamed(KNOWN, [text[start:end] for start, end in pairwise([0, *cuts, len(text)])])
    # then
    assert shown == KNOWN.text(whole(text))


@given(st.lists(st.sampled_from(["ab", "a", "b", "abababab", "1"]), max_size=30), st.integers(min_value=1, max_value=9))
def test_values_that_overlap_are_marked_as_in_the_whole(pieces, size):
    known, text = Redaction(values=("abababab1", "abababab", "babababa")), "".join(pieces)
    _, shown = streamed(known, [text[n : n + size] for n in range(0, len(text), size)])
    assert shown == known.text(text)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))
def test_whatever_holds_no_secret_is_left_alone(value):
    data = msgspec.json.encode(value)
    if not any(anchor in data.decode().lower() for anchor in ("key", "secret", "passw", "token", "author", "bearer", "basic", "://")):
        assert KNOWN.data(data) == data
        assert KNOWN.arguments(data.decode()) == data.decode()
