"""Records the golden logs that are missing: one for each kind of run, as this version writes them. What is there is never written again.

python tests/logs/record.py
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from refold import Agent, Budgets, Context, NotPerformed, Policy, RetryableToolError, ScriptedModel, ToolResult, open_store, show, tool
from refold.events import facts as f
from refold.events.words import RunId
from refold.projections.excerpts import handle_of
from refold.projections.revisions import ENGINE
from refold.runtime import checkpoints, journal, ports as p, store as stores
from refold.runtime.forking import AS_IT_WAS, Asked, fork
from refold.runtime.store import Store
from refold.runtime.transfer import export_lines, import_file, parse

FOLDER = Path(__file__).parent / f"v{ENGINE}"
FAILED: list[str] = []


@tool(effect="read")
def look(at: str) -> ToolResult:
    """Looks somewhere."""
    return ToolResult(data={"seen": at, "large": "." * 5_000 if at == "far" else ""}, source_ids=[at], notes=[f"looked {at}"])


@tool(effect="read")
def leaf(page: int, size: int = 900) -> ToolResult:
    """A page of a long book."""
    return ToolResult(data=(f"page {page}. " * size)[:size], notes=[f"page {page} was read"] if page % 2 else [])


@tool(effect="idempotent", retries=2)
def put(key: str, value: int = 1) -> int:
    """Puts a value; fails once, retryably."""
    if key not in FAILED:
        FAILED.append(key)
        raise RetryableToolError("busy")
    return value


@tool(approval="always")
def send(to: str) -> str:
    """Sends."""
    return f"sent to {to}"


@tool
def pay(amount: int) -> str:
    """Pays."""
    if amount < 0:
        raise NotPerformed("a negative amount")
    if amount == 0:
        raise ValueError("nothing to pay")
    return "paid"


@tool(effect="read", timeout_s=0.05)
async def wait() -> None:
    """Waits too long."""
    await asyncio.sleep(30)


@tool(timeout_s=0.05)
async def ship() -> None:
    """Ships, and is never heard of again."""
    await asyncio.sleep(30)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def turn(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"calls": list(calls), **more}


def polite(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
    return [] if answer.endswith(".") else ["end with a full stop"]


def broken(run: Any, answer: str, citations: tuple[str, ...]) -> list[str]:
    raise RuntimeError("out of order")


DONE = {"text": "Done."}
USED = {"usage": {"input_tokens": 900, "output_tokens": 90, "cached_input_tokens": 500}, "cost_usd": "0.0123"}
ASK = call("ask_user", question="Which?")
TOO_LONG = {"error": {"type": "context_overflow", "message": "too many tokens", "retryable": False}}
BUSY = {"error": {"type": "overloaded", "message": "busy", "retryable": True, "retry_after_s": 0.001}}


def played(*turns: dict[str, Any], **more: Any) -> Agent:
    options = {"instructions": "Be brief.", **more}
    return Agent(model=ScriptedModel(list(turns)), tools=[look, put, send, pay, wait, ship, leaf], name="golden", **options)


def simple(*turns: dict[str, Any], **more: Any) -> Callable[[Store, str], None]:
    def run(store: Store, name: str) -> None:
        FAILED.clear()
        played(*turns, **more).run_sync(f"Do it: {name}.", store=store, run_id=name)

    return run


def answered(store: Store, name: str) -> None:
    agent = played(turn(ASK, call("look", at="near")), DONE)
    agent.run_sync("Ask.", store=store, run_id=name)
    store.answer_sync(name, "This one.", who="ann", command_id="c1")
    store.say_sync(name, "and be quick", who="ann", command_id="c2")
    agent.resume_sync(name, store=store)


def decided(store: Store, name: str) -> None:
    agent = played(turn(call("send", to="ann"), call("send", to="bob"), call("send", to="cat")), DONE)
    agent.run_sync("Send.", store=store, run_id=name)
    store.approve_sync(name, "t1.1", who="ann", command_id="c1")
    store.deny_sync(name, "t1.2", reason="not him", who="ann", command_id="c2")
    store.approve_sync(name, "t1.3", who="ann", command_id="c3")
    store.deny_sync(name, "t1.3", reason="changed my mind", who="ann", command_id="c4")
    agent.resume_sync(name, store=store)


def waiting(store: Store, name: str) -> None:
    played(turn(ASK, call("send", to="ann")), DONE).run_sync("Wait.", store=store, run_id=name)


def sealed(store: Store, name: str) -> None:
    played(turn(call("look", at="near")), DONE).run_sync("Look, and be held to it.", store=store, run_id=name)
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # nobody's: the test that checks the seal has the public half
    store.seal_sync(name, key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def wanted(store: Store, name: str) -> None:
    agent = played(*[turn(call("leaf", page=n)) for n in range(4)], turn(ASK), DONE)
    agent.run_sync("Read, then ask.", store=store, run_id=name)
    store.compact_sync(name, who="ann", command_id="c1")
    store.answer_sync(name, "This one.", who="ann", command_id="c2")
    agent.resume_sync(name, store=store)


def cancelled(store: Store, name: str) -> None:
    waiting(store, name)
    store.cancel_sync(name, "no longer needed", who="ann", command_id="c1")


def recovered(store: Store, name: str) -> None:
    """Drivers that vanish: in a request, in a read, in a side effect."""
    agent = played(turn(call("look", at="a"), call("pay", amount=3)), DONE)
    begin = f.RunStarted(goal="Survive.", setup=agent.declared(seed="0"))
    kept = journal.Journal(store.log, name)
    kept.command_sync(lambda run: (begin, stores.attach(run)))
    kept.command_sync(lambda run: (stores.attach(run),))
    asked = f.ToolCallsRequested(
        calls=tuple(f.ProposedCall(id=f"t1.{n}", name=n_, arguments_text=a) for n, n_, a in ((1, "look", '{"at":"a"}'), (2, "pay", '{"amount":3}'))),
        stop_reason="tool_calls",
    )  # type: ignore[arg-type]
    kept.command_sync(lambda _: (asked, agent.consults().calls(asked)))
    kept.command_sync(lambda run: (stores.attach(run),))
    kept.command_sync(lambda _: (f.ToolSucceeded(call="t1.1", result={"seen": "a"}),))  # type: ignore[arg-type]
    agent.resume_sync(name, store=store)


class Streams:
    """A model that streams parts, one list for each request; an exception among them is raised, and None is where it waits for ever."""

    spec = "streams"

    def __init__(self, *turns: list[p.Part | p.ModelError | None]) -> None:
        self.turns = turns
        self.reached = asyncio.Event()

    async def stream(self, request: p.Request) -> AsyncIterator[p.Part]:
        for each in self.turns[request.number - 1]:
            if isinstance(each, p.ModelError):
                raise each
            if each is None:
                self.reached.set()
                await asyncio.Event().wait()
            else:
                yield each
                await asyncio.sleep(0)


END = p.Finished(stop_reason="stop")
SAID: list[p.Part | p.ModelError | None] = [p.TextDelta(text="Done."), END]
FIRST = p.UsageUpdated(input_tokens=400, output_tokens=1, cached_input_tokens=300)
HALF = [p.ReasoningDelta(text="Hm."), p.TextDelta(text="I look"), p.ToolCallOpened(index=0, name="look", id="c1"), p.ArgumentsDelta(index=0, text='{"at": "ne')]
PRICE = f.Price(input="3", output="15", cached_input="0.3", cache_write="3.75", source="by hand")


def streamed(*turns: list[p.Part | p.ModelError | None], price: f.Price | None = None, **more: Any) -> Callable[[Store, str], None]:
    def run(store: Store, name: str) -> None:
        model = Streams(*turns)
        agent = Agent(model=model, instructions="Be brief.", tools=[look], name="golden", **more)
        begun = agent.declared(seed="0", model=model)
        kept = journal.Journal(store.log, name)
        kept.command_sync(lambda run: (f.RunStarted(goal=f"Do it: {name}.", setup=msgspec.structs.replace(begun, price=price)),))

        async def drive() -> None:
            running = asyncio.ensure_future(agent.resume(name, store=store))
            reached = asyncio.ensure_future(model.reached.wait())
            await asyncio.wait({running, reached}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            if not running.done():
                await store.cancel(name, "enough", who="ann", command_id="c1")
            await running

        asyncio.run(drive())

    return run


def lost(store: Store, name: str) -> None:
    """A process that vanishes in the middle of a stream."""
    agent = played(DONE)
    kept = journal.Journal(store.log, name)
    kept.command_sync(lambda run: (f.RunStarted(goal="Survive.", setup=agent.declared(seed="0")), stores.attach(run)))
    kept.command_sync(lambda _: (f.StreamCheckpointed(text="I will ", usage=f.Usage(input_tokens=400, output_tokens=2)),))
    kept.command_sync(lambda _: (f.StreamCheckpointed(text="look", reasoning="Hm."),))
    kept.command_sync(lambda _: (f.UsageUpdated(usage=f.Usage(input_tokens=900, output_tokens=40)),))
    agent.resume_sync(name, store=store)


def forked(at: str, nth: int, *turns: dict[str, Any], asked: Asked = AS_IT_WAS, leave: bool = False) -> Callable[[Store, str], None]:
    """A run that goes its own way behind the nth record of a type of another: its file begins with that one's records."""

    def run(store: Store, name: str) -> None:
        parent = f"{name}.parent"
        played(turn(call("look", at="near")), turn(call("look", at="b"), call("pay", amount=3)), DONE).run_sync("Look, and pay.", store=store, run_id=parent)
        place = [record.position for record in store.read(parent) if record.type == at][nth]
        fork(store.log, parent, place, RunId(name), asked, who="ann")
        agent = played(*turns, *[DONE] * 4)  # a script is played by the number of the request
        agent.resume_sync(name, store=store)
        if leave:
            store.approve_sync(name, who="ann", command_id="c1")
            agent.resume_sync(name, store=store)

    return run


def forked_again(store: Store, name: str) -> None:
    """A fork of a fork: the message and the edit of the first are part of what the second inherits."""
    edits = {"t1.1": {"seen": "nothing"}}
    forked("tool_results_injected", 0, DONE, turn(call("look", at="c")), asked=Asked(edits=edits, message="Look again."))(store, f"{name}.between")
    place = [record.position for record in store.read(f"{name}.between") if record.type == "tool_results_injected"][-1]
    fork(store.log, f"{name}.between", place, RunId(name), Asked(changes={"policy.max_model_errors": 0}), who="ann")
    played(*[{"text": ""}] * 4).resume_sync(name, store=store)


def continued(store: Store, name: str) -> None:
    agent = played(turn(call("look", at="near")), DONE)
    agent.run_sync("Look.", store=store, run_id=f"{name}.parent")
    agent.continue_run_sync(f"{name}.parent", "And now?", store=store, new_id=name)


KINDS: dict[str, Callable[[Store, str], None]] = {
    "answer": simple(DONE),
    "tools": simple(
        turn(call("look", at="near"), call("nosuch"), call("pay", amount="x"), call("pay", amount=0), call("pay", amount=-1), text="so", **USED),
        {**DONE, **USED},
    ),
    "large-result": simple(turn(call("look", at="far")), DONE),
    "retries": simple(turn(call("put", key="k")), DONE),
    "timeout": simple(turn(call("wait")), DONE),
    "in-doubt": simple(turn(call("ship")), DONE),
    "question": answered,
    "approvals": decided,
    "waiting": waiting,
    "cancelled": cancelled,
    "recovered": recovered,
    "invalid-turns": simple(
        {"text": ""},
        turn(
            call(
                "look",
                at="a",
            ),
            call("look", at="b"),
            stop_reason="length",
        ),
        DONE,
    ),
    "too-many-invalid-turns": simple({"text": ""}, {"text": " "}, {"text": ""}),
    "provider-retries": simple(BUSY, BUSY, DONE),
    "provider-gives-up": simple(BUSY, BUSY, policy=Policy(max_provider_retries=1)),
    "provider-fails": simple({"error": {"type": "authentication", "message": "no", "retryable": False}}),
    "refusal": simple({"text": "", "refusal": "I will not.", "stop_reason": "refusal"}),
    "rejected-answer": simple({"text": "Not yet"}, {"text": "cut", "stop_reason": "length"}, DONE, validators=[polite]),
    "broken-validator": simple(DONE, validators=[broken]),
    "decision": simple(
        {"decision": {"kind": "tool", "name": "look", "arguments": {"at": "x"}, "rationale": "to see"}}, {"decision": {"kind": "final", "text": "Done."}}
    ),
    "duplicate": simple(turn(call("look", at="a")), turn(call("look", at="a"), call("look", at="b")), DONE),
    "cycle": simple(*[turn(call("look", at="a"))] * 3),
    "stop-on-error": simple(turn(call("pay", amount=0), call("look", at="a")), policy=Policy(on_tool_error="stop")),
    "max-turns": simple(turn(call("look", at="a")), turn(call("look", at="b")), budgets=Budgets(max_turns=2)),
    "last-turn-answer": simple(turn(call("look", at="a")), DONE, budgets=Budgets(max_turns=2)),
    "max-tool-calls": simple(turn(call("look", at="a"), call("look", at="b")), turn(call("look", at="c")), budgets=Budgets(max_tool_calls=1)),
    "max-tokens": simple(turn(call("look", at="a"), **USED), DONE, budgets=Budgets(max_tokens=900)),
    "max-cost": simple(turn(call("look", at="a"), **USED), DONE, budgets=Budgets(max_cost_usd="0.01")),
    "long-stream": streamed([FIRST, *[p.TextDelta(text="word " * 1_000)] * 16, p.UsageUpdated(input_tokens=400, output_tokens=20_000), END]),
    "cut-stream": streamed([FIRST, *[p.TextDelta(text="word " * 100)] * 40, END], budgets=Budgets(max_tokens=2_000)),
    "cut-for-money": streamed([*[p.TextDelta(text="word " * 100)] * 40, END], price=PRICE, budgets=Budgets(max_cost_usd="0.02")),
    "cancelled-stream": streamed([FIRST, *HALF, None]),
    "broken-stream": streamed([FIRST, *HALF, p.ModelError("reset", "by peer", retryable=True, retry_after_s=0, mid_stream=True)], SAID, price=PRICE),
    "lost-stream": lost,
    "paused": streamed([p.TextDelta(text="I search."), p.OpaqueItem(item={"search": 1}), FIRST, p.Finished(stop_reason="pause")], SAID),
    "too-long": streamed(
        [p.ModelError("invalid_request_error", "too many tokens", retryable=False, code="context_length_exceeded", http_status=400, overflow=True)]
    ),
    "no-money-left": streamed(
        [
            p.ToolCallReady(index=0, name="look", arguments='{"at": "far"}'),
            p.UsageUpdated(input_tokens=900, output_tokens=90),
            p.Finished(stop_reason="tool_calls"),
        ],
        price=PRICE,
        budgets=Budgets(max_cost_usd="0.014"),
        policy=Policy(wrap_up=False),
    ),
    "deadline": simple(DONE, budgets=Budgets(deadline="2020-01-01T00:00:00Z")),
    "compacted": simple(*[turn(call("leaf", page=n)) for n in range(9)], DONE, context=Context(window_tokens=2_000, keep_turns=2)),
    "summarised": simple(
        *[turn(call("leaf", page=n)) for n in range(5)],
        {"text": "Five pages were read.", **USED},
        turn(call("leaf", page=5)),
        DONE,
        context=Context(window_tokens=2_000, keep_turns=1, compaction="model"),
    ),
    "no-summary": simple(
        *[turn(call("leaf", page=n)) for n in range(5)],
        BUSY,
        turn(call("leaf", page=5)),
        {"text": "Six pages were read.", **USED},
        DONE,
        context=Context(window_tokens=2_000, keep_turns=1, compaction="model"),
    ),
    "overflowed": simple(*[turn(call("leaf", page=n)) for n in range(5)], TOO_LONG, DONE),
    "read-on": simple(
        turn(call("leaf", page=1, size=5_000)),
        turn(call("read_result", result=handle_of(str(leaf(1, 5_000).data)), start=900), call("read_result", result="no such")),
        DONE,
        context=Context(observation_bytes=1_500),
    ),
    "shared-window": simple(turn(*[call("leaf", page=n, size=3_000) for n in range(4)]), DONE, context=Context(window_tokens=2_500, compaction="off")),
    "relevant": simple(*[turn(call("leaf", page=n)) for n in range(5)], DONE, context=Context(relevant_turns=1, keep_turns=1)),
    "window-full": simple(DONE, context=Context(window_tokens=1_000), instructions="Be brief. " * 400),
    "compaction-wanted": wanted,
    "sealed": sealed,
    "forked-request": forked("model_requested", 1, asked=Asked(changes={"instructions": "Be kind.", "budgets.max_turns": 5}, message="Only look.")),
    "forked-results": forked("tool_results_injected", 0, asked=Asked(edits={"t1.1": {"seen": "a dragon"}})),
    "forked-past": forked("model_requested", 2, asked=Asked(edits={"t1.1": {"seen": "a dragon"}, "t2.1": None})),
    "forked-call": forked("tool_started", 1, leave=True),
    "forked-unasked": forked("tool_started", 1, asked=Asked(allow_repeat=True)),
    "forked-again": forked_again,
    "continued": continued,
}


def main() -> None:
    checkpoints.INTERVAL_S = 3_600  # type: ignore[misc]  # how quick this machine is shows in no log
    journal.this_process, stores.USER, stores.HOST = lambda: "me@here:1", "me", "here"  # type: ignore[misc]
    stores.os.getpid = lambda: 1
    FOLDER.mkdir(exist_ok=True)
    for name, make in KINDS.items():
        target = FOLDER / f"{name}.jsonl"
        if target.exists():
            continue
        store = open_store("memory:")
        make(store, name)
        target.write_bytes(b"".join(export_lines(store, name)))
        alone = open_store("memory:")
        import_file(alone, parse(target.read_bytes(), target.name))
        shown = show(alone, name)
        expected = {key: shown[key] for key in ("position", "state", "status", "reason", "detail", "turn", "answer", "messages", "usage", "head")}
        (FOLDER / f"{name}.shown.json").write_text(json.dumps(msgspec.to_builtins(expected), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{name}: {shown['status']} {shown['reason'] or ''}")


if __name__ == "__main__":
    main()
