"""Secrets: known by value or by name, they reach the tool that needs them and nothing that is written or shown."""

import asyncio
import json
import logging
import os
import sys
from typing import Any

import pytest

from refold import Agent, Policy, ToolContext, show, tool
from refold.events.codec import Record
from refold.runtime import ports as p
from refold.runtime.cli.main import perform
from refold.runtime.redaction import MARK

KNOWN = 'vendor"less\\ 0815'
NAMED = "zz-123-of-no-vendor-known"
OWN = "the application's own 4711"


def stored(store: Any) -> str:
    """Every byte that a store holds of its runs."""
    log = store.log
    parts = [row.state for run_id in store.runs() for row in log.read(run_id)]
    parts += [value for run_id in store.runs() for value in log.payloads(run_id).values()]
    return b"\n".join(parts).decode()


def secrets_in(text: str) -> list[str]:
    return [secret for secret in (KNOWN, json.dumps(KNOWN)[1:-1], NAMED, OWN, "vendor%22less") if secret in text]


def test_B162_a_secret_is_found_by_its_value_or_its_name_wherever_it_comes(stage, results_of, monkeypatch):
    # given secrets: one in the environment, one that only its name gives away, one that the application knows; and tools that let them slip
    monkeypatch.setenv("NO_VENDOR_API_KEY", KNOWN)
    received: list[str] = []

    @tool(effect="read")
    def environment() -> str:
        """Prints the environment."""
        return f"PATH=/bin\nTAVILY_API_KEY={NAMED}\nmax_tokens: 5\n" + f"NO_VENDOR_API_KEY={KNOWN}\n" * 300

    @tool(effect="read")
    def headers() -> dict[str, Any]:
        """Gives headers."""
        return {"Authorization": f"Bearer {NAMED}", "limits": {"max_tokens": 5}, "next_page_token": "page-2-of-12345", "note": OWN}

    @tool(effect="read")
    def fetch(url: str) -> str:
        """Fetches."""
        raise ConnectionError(f"GET {url}?api_key={NAMED}&key={KNOWN} failed: {OWN}")

    @tool
    def search(query: str, api_key: str = "", max_tokens: int = 5) -> str:
        """Searches, with a key that is named or given."""
        received.append(os.environ[api_key[1:]])
        return f"found {query} with {received[-1]}"

    half = len(KNOWN) // 2
    listing = [{"name": "environment"}, {"name": "headers"}, {"name": "fetch", "arguments": {"url": "https://x.org/"}}]
    searches = [{"query": "a", "api_key": NAMED}, {"query": f"with {KNOWN}"}, {"query": OWN}, {"query": "b", "api_key": "$NO_VENDOR_API_KEY", "max_tokens": 5}]
    turns = [
        [*(p.ToolCallReady(index=n, name=call["name"], arguments=json.dumps(call.get("arguments", {}))) for n, call in enumerate(listing))],
        [*(p.ToolCallReady(index=n, name="search", arguments=json.dumps(arguments)) for n, arguments in enumerate(searches))],
        [p.TextDelta(text=f"The key is {KNOWN[:half]}"), p.TextDelta(text=f"{KNOWN[half:]}, and {OWN}\n"), p.ReasoningDelta(text=f"api_key: {NAMED}")],
    ]
    ends: list[p.Part] = [p.Finished(stop_reason="tool_calls"), p.Finished(stop_reason="tool_calls"), p.Finished(stop_reason="stop")]
    model = stage.parts(*([*parts, end] for parts, end in zip(turns, ends, strict=True)))
    agent = Agent(model=model, tools=[environment, headers, fetch, search], redactors=[lambda text: text.replace(OWN, MARK)])

    async def listen() -> list[Any]:
        return [streamed.what async for streamed in agent.stream("Do it.", store=stage.store, run_id="r")]

    # when
    heard = asyncio.run(listen())
    result = stage.store.journal("r").run
    # then no secret is in the store, nor in anything that was shown or sent
    assert result.status == "completed"
    assert secrets_in(stored(stage.store)) == []
    assert secrets_in("".join(what.text for what in heard if isinstance(what, p.TextDelta | p.ReasoningDelta))) == []
    assert secrets_in(repr([what for what in heard if not isinstance(what, Record)])) == []
    assert secrets_in(repr(model.requests)) == []
    assert secrets_in(json.dumps(show(stage.store, "r"))) == []
    # and each is marked, and what only looks like one is as it was
    told = {message["call_id"]: (message["kind"], message["content"]) for message in show(stage.store, "r")["messages"] if message["role"] == "tool"}
    assert told["t1.1"][1].startswith(f"PATH=/bin\nTAVILY_API_KEY={MARK}\nmax_tokens: 5\nNO_VENDOR_API_KEY={MARK}\n")
    assert told["t1.2"][1] == {"Authorization": f"Bearer {MARK}", "limits": {"max_tokens": 5}, "next_page_token": "page-2-of-12345", "note": MARK}
    assert told["t1.3"][1]["message"] == f"ConnectionError: GET https://x.org/?api_key={MARK}&key={MARK} failed: {MARK}"
    # and a call that holds one is denied, while one that names it gets the real value
    assert [told[f"t2.{n}"][0] for n in range(1, 5)] == ["permission_denied"] * 3 + ["success"]
    assert "name the secret" in told["t2.1"][1]["message"]
    assert (received, told["t2.4"][1]) == ([KNOWN], f"found b with {MARK}")
    assert show(stage.store, "r")["answer"] == f"The key is {MARK}, and {MARK}\n"


def test_B162_arguments_that_a_human_edits_hold_no_secret_either(stage, monkeypatch):
    # given a call that waits
    monkeypatch.setenv("NO_VENDOR_API_KEY", KNOWN)

    @tool(approval="always")
    def send(text: str) -> str:
        """Sends."""
        raise AssertionError("never runs")

    agent = stage.agent([{"calls": [{"name": "send", "arguments": {"text": "hello"}}]}], [send])
    agent.run_sync("Do it.", store=stage.store, run_id="r")
    # when a human types the secret
    with pytest.raises(ValueError, match="name the secret") as refused:
        stage.store.approve_sync("r", arguments=json.dumps({"text": KNOWN}), consults=agent.consults())
    # then it is refused, and neither written nor told
    assert secrets_in(stored(stage.store) + str(refused.value)) == []


def test_B162_what_a_tool_says_too_late_is_marked_too(stage, results_of, monkeypatch):
    # given a tool whose time is up, and which fails with a secret all the same
    monkeypatch.setenv("NO_VENDOR_API_KEY", KNOWN)

    @tool(effect="read", timeout_s=0.05)
    def slow(ctx: ToolContext) -> str:
        """Is slow."""
        ctx.cancelled.wait(10)
        raise ConnectionError(f"gave up with {KNOWN}")

    # when
    result = stage.play([{"calls": [{"name": "slow"}]}, {"text": "done"}], [slow], policy=Policy(max_tool_retries=0))
    # then the note of it has a mark
    assert results_of(result)["t1.1"][0] == "timeout"
    assert secrets_in(stored(stage.store)) == []
    notes = [record.data["outcome"] for record in result.records if record.type == "late_outcome"]
    assert notes == [f"it ended as execution_failed: ConnectionError: gave up with {MARK}"]


def test_B162_a_secret_in_what_the_agents_code_says_is_marked(stage, results_of, monkeypatch):
    # given a rule and a validator that say too much
    monkeypatch.setenv("NO_VENDOR_API_KEY", KNOWN)

    def rule(arguments: dict[str, Any]) -> bool:
        raise PermissionError(f"{KNOWN} was refused")

    @tool(approval=rule)
    def act() -> str:
        """Acts."""
        raise AssertionError("never runs")

    def valid(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
        return [] if answer == "better" else [f"{KNOWN} does not allow this"]

    # when
    result = stage.play([{"calls": [{"name": "act"}]}, {"text": "done"}, {"text": "better"}], [act], validators=[valid])
    # then what they say is told with a mark
    assert result.status == "completed"
    assert MARK in results_of(result)["t1.1"][1]["message"]
    assert f"{MARK} does not allow this" in stage.requests()[-1].messages[-1].text
    assert secrets_in(stored(stage.store)) == []


CREW = '''
import logging, os
from refold import Agent, tool
from refold.runtime import ports as p

class Client:
    """A provider's client, made with a key."""
    spec = "client"

    def __init__(self):
        self.key = os.environ["NO_VENDOR_API_KEY"]

    async def stream(self, request):
        if request.number == 1:
            yield p.ToolCallReady(index=0, name="call", arguments="{}")
            yield p.Finished(stop_reason="tool_calls")
            return
        yield p.TextDelta(text="I was given ")
        raise p.ModelError("authentication", f"the key {self.key} is not known", retryable=False, http_status=401)

@tool(effect="read")
def call() -> str:
    """Calls something."""
    key = os.environ["NO_VENDOR_API_KEY"]
    raise RuntimeError("refused: " + key)

agent = Agent(model=Client(), tools=[call])
'''


def test_B163_a_key_reaches_no_log_no_screen_and_no_store(tmp_path, monkeypatch, capsys, caplog):
    # given a provider's client that was made with a key, and a tool that has it in a local variable when it fails
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("NO_VENDOR_API_KEY", KNOWN)
    monkeypatch.setenv("REFOLD_DEBUG", "1")
    monkeypatch.delenv("REFOLD_STORE", raising=False)
    (tmp_path / "keyed.py").write_text(CREW, encoding="utf-8")
    caplog.set_level(logging.DEBUG)
    # when it is run from the command line with everything that is said in the log, and looked at in every way
    code = perform(["run", "Do it.", "--agent", "keyed:agent", "--run-id", "one"])
    said = [capsys.readouterr()]
    for words in (
        ["show", "one", "--json"],
        ["log", "one", "--json"],
        ["runs"],
        ["export", "one"],
        ["diagram", "one"],
        ["replay", "one", "--agent", "keyed:agent"],
        ["doctor"],
    ):
        perform(words)
        said.append(capsys.readouterr())
    # then it failed, in words, and the key is nowhere
    assert code == 1
    everything = "".join(out + err for out, err in said)
    assert f"refused: {MARK}" in everything
    assert f"the key {MARK} is not known" in everything
    assert secrets_in(everything + caplog.text) == []
    kept = b"".join(path.read_bytes() for path in (tmp_path / ".refold").rglob("*") if path.is_file())
    assert secrets_in(kept.decode("utf-8", "replace")) == []
    # and what refold itself holds of it does not show it
    import keyed  # type: ignore[import-not-found]

    assert secrets_in(repr(keyed.agent.consults()) + repr(vars(keyed.agent))) == []
    del sys.modules["keyed"]
