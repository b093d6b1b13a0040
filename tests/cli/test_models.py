"""A provider as a user reaches it: `--model`, `--base-url`, keys, settings, and what is said where something is wrong with them."""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from refold.runtime import models
from refold.testing.loopback import Loopback, Reply

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.startswith(("OPENAI_", "DEEPSEEK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback() as made:
        yield made


def answer(text: str, **usage: Any) -> Reply:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 3, **usage}}
    return Reply.events(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())


def words(url: str, *more: str, spec: str = "openai-chat:m") -> tuple[str, ...]:
    return (
        "run",
        "What is there?",
        "--model",
        spec,
        "--base-url",
        url,
        "--quiet",
        "--set",
        "policy.max_provider_retries=0",
        "--set",
        "policy.unknown_price=free",
        *more,
    )


def test_a_run_has_the_tokens_and_the_cost_that_the_server_reported(shell, server):
    # given a server that reports both
    server.add(answer("Nothing.", cost=0.00012, prompt_tokens_details={"cached_tokens": 4}))
    # when a run is driven with it
    done = shell(*words(f"{server.url}/v1", "--json", "--run-id", "one"))
    # then
    assert done.code == 0
    assert done.json["answer"] == "Nothing."
    assert done.json["usage"]["reported"] == {"input_tokens": 9, "cached_input_tokens": 4, "output_tokens": 3}
    assert done.json["usage"]["cost_usd"] == "0.00012"


def test_a_model_whose_price_nobody_knows_is_refused_under_a_budget_of_money(shell, server):
    done = shell("run", "What is there?", "--model", "openai-chat:m", "--base-url", f"{server.url}/v1", "--quiet")
    assert done.code == 2
    assert "the price of openai-chat:m is not known" in done.error
    assert "--set policy.unknown_price=free" in done.error
    assert server.requests == []


def test_a_model_whose_price_is_known_costs_what_it_costs(shell, server):
    server.add(answer("Nothing."))
    done = shell("run", "What is there?", "--model", "openai-chat:gpt-4o", "--base-url", f"{server.url}/v1", "--json")
    assert done.code == 0
    assert 0 < float(done.json["usage"]["cost_usd"]) < 0.001


def test_a_continuation_goes_to_where_the_run_was(shell, server):
    # given a run that has ended, with a setting
    server.add(answer("Nothing."), answer("Still nothing."))
    shell(*words(f"{server.url}/v1", "--set", "model.temperature=0.5", "--run-id", "one"))
    # when it is continued without a word about the model
    done = shell("continue", "one", "And now?")
    # then the same server is asked in the same way
    assert done.code == 0
    assert [request.json["temperature"] for request in server.requests] == [0.5, 0.5]
    assert server.requests[1].json["messages"][-1]["content"].startswith("And now?")


def test_the_address_may_come_from_the_environment(shell, server, monkeypatch):
    monkeypatch.setenv("DEEPSEEK_BASE_URL", f"{server.url}/")
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    monkeypatch.setenv("DEEPSEEK_MODEL", "d")
    response = {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Nothing."}]}]}
    server.add(Reply.json(response))
    assert shell("run", "What is there?", "--model", "deepseek", "--set", "model.stream=false", "--set", "budgets.max_cost_usd=none").out == "Nothing.\n"
    assert (server.requests[0].path, server.requests[0].json["model"]) == ("/responses", "d")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply.json({"error": {"message": f"Incorrect key: {KEY}.", "type": "invalid_request_error", "code": "invalid_api_key"}}, 401), "OPENAI_API_KEY"),
        (Reply.json({"error": {"message": "Resource not found"}}, 404), "check the model m"),
        (Reply.html(), "check that --base-url is the address of the API"),
        (Reply.html(404), "check the model m"),
        (Reply.nothing(), "whether the server runs"),
    ],
)
def test_a_provider_that_refuses_is_one_line_and_exit_1(shell, server, reply, says):
    # given
    server.add(reply)
    # when
    done = shell(*words(f"{server.url}/v1", "--run-id", "one"))
    # then screen and log say the same, and neither shows the key
    (line,) = done.err.splitlines()
    assert done.code == 1
    assert says in line
    assert says in shell("show", "one", "--json").json["detail"]
    assert KEY not in line + shell("log", "one", "--full").out


def test_a_server_without_tls_is_one_line_and_exit_1(shell, server):
    done = shell(*words(f"{server.url.replace('http:', 'https:')}/v1"))
    (line,) = done.err.splitlines()
    assert done.code == 1
    assert "https or http?" in line
    assert not server.requests


def test_a_server_that_is_not_there_is_one_line(shell):
    # given a port on which nobody listens
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    # when, then
    done = shell(*words(f"http://127.0.0.1:{port}/v1"))
    (line,) = done.err.splitlines()
    assert done.code == 1
    assert "whether the server runs" in line


@pytest.mark.parametrize(
    ("url", "spec", "more", "says"),
    [
        ("127.0.0.1/v1", "openai:m", (), "is no address: write it as"),
        ("http://:80", "openai:m", (), "is no address: write it as"),
        ("http://host:port/v1", "openai:m", (), "is no address: write it as"),
        ("http://me:secret@host/v1", "openai:m", (), "http://***@host/v1"),
        ("http://host/v1?key=secret", "openai:m", (), "http://host/v1?***"),
        ("http://host/v1", "openai:", (), "openai: names no model; write openai:NAME"),
        ("http://host/v1", "deepseek", (), "or set DEEPSEEK_MODEL"),
        ("http://host/v1", "deepseek:d", (), "DEEPSEEK_API_KEY is not set"),
        ("http://host/v1", "openai-chat:m", ("--set", "model.messages=none"), "model.messages: this part of the request is made by refold"),
        ("http://host/v1", "openai:m", ("--set", "model.api_key=secret"), "keys come from the environment"),
        ("http://host/v1", "openai:m", ("--set", "model.extra_headers=secret"), "keys come from the environment"),
        ("http://host/v1", "openai:m", ("--set", "model.stream=maybe"), "write true or false"),
        ("http://host/v1", "openai:m", ("--set", "model.a=1", "--set", "model.a.b=2"), "model.a.b: a is set to a value of its own"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_2(shell, url, spec, more, says):
    done = shell(*words(url, *more, spec=spec))
    assert done.code == 2
    assert says in done.error
    assert "secret" not in done.error


@pytest.mark.parametrize(("held", "says"), [("", "is not set"), (" \n", "is not set"), ("two words", "cannot be a key"), ("schlüssel", "cannot be a key")])
def test_a_key_that_is_none_names_its_variable(shell, monkeypatch, held, says):
    monkeypatch.setenv("OPENAI_API_KEY", held)
    done = shell(*words("http://host/v1"))
    assert done.code == 2
    assert f"OPENAI_API_KEY {says}" in done.error.replace("holds what ", "")


def test_an_sdk_that_is_missing_names_what_to_type(shell, monkeypatch):
    monkeypatch.setattr("refold.runtime.providers._settings.find_spec", lambda _: None)
    done = shell(*words("http://host/v1"))
    assert done.code == 2
    assert "pip install 'refold[openai]'" in done.error


def test_every_kind_of_model_has_a_file(shell):
    assert {"anthropic", "deepseek", "offline", "openai", "openai-chat", "script"} <= set(models.available())
    assert "openai-chat:NAME" in shell("run", "x", "--model", "bogus:x").error
