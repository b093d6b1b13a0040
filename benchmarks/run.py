"""Prints what the claims of speed rest on: `python benchmarks/run.py`. Ratios within one run hold; absolutes move with the machine.

Each figure is the best of several repetitions unless it says otherwise: on a shared machine the others measure the neighbours.
"""

import argparse
import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import refold
from refold.events import facts as f
from refold.events.chain import NOTHING
from refold.events.codec import Edge, Record, Stamp, read as read_record, write
from refold.events.log import open_log
from refold.events.storage import Log, Row
from refold.events.words import CallId, Digest, RunId
from refold.fsm.audit import audit_rows, verify_rows
from refold.fsm.decide import decide
from refold.fsm.fold import fold
from refold.fsm.machine import Cursor, fire, fire_compiled
from refold.fsm.replay import replay_rows
from refold.projections.run import Run, replace
from refold.runtime import ports as p
from refold.runtime.agent import Agent
from refold.runtime.live import Feed
from refold.runtime.redaction import Shown

NO_LIMITS = refold.Budgets(max_turns=None, max_tool_calls=None, max_tokens=None, max_cost_usd=None, timeout_s=None)
KILLED = """
import os, sys, refold
sys.path.insert(0, {here!r})
import run
agent = run.agent({turns}, die_after={turns} - 1)
agent.run_sync("Count.", store=refold.open_store({url!r}), run_id="killed")
"""


@refold.tool(effect="read")
def count(n: int) -> int:
    """Counts."""
    return n


def agent(turns: int, die_after: int | None = None) -> Agent:
    """One small call a turn, then an answer; the model may kill its process at a request."""
    script = [{"calls": [{"name": "count", "arguments": {"n": n}}], "usage": {"input_tokens": 100, "output_tokens": 10}} for n in range(turns)]
    model = refold.ScriptedModel([*script, {"text": "done"}])
    if die_after is not None:
        plain = model.stream

        def stream(request: Any) -> Any:
            if request.number > die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(request)

        model.stream = stream  # type: ignore[method-assign]
    return refold.Agent(model=model, tools=[count], budgets=NO_LIMITS)


def best(action: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the quickest of some repetitions."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def show(what: str, figure: str) -> None:
    print(f"{what:<58} {figure}", flush=True)


# -- folding


def folding(folder: Path) -> None:
    print("\nread + decode + fold, microseconds an event")
    base = None
    for events in (1_000, 10_000, 100_000):
        store = refold.open_store(f"sqlite:///{folder}/fold-{events}.db?synchronous=NORMAL")
        copy_of_turns(store.log, events)
        took = best(lambda store=store: fold(store.read("long")), 3 if events < 100_000 else 2) / events * 1e6  # type: ignore[misc]
        base = base or took
        show(f"  {events:>7} events", f"{took:6.2f}  ratio to the first {took / base:.2f}")
        store.close()


def copy_of_turns(log: Log, events: int) -> None:
    """A legal log of so many records, written without running anything."""
    run = Run(id=RunId("long"))
    setup = agent(1).declared(seed="0")
    run, rows = batch_rows(run, (f.RunStarted(goal="Count.", setup=setup), f.DriverAttached(epoch=1, who="me", host="here")))
    log.append("long", 0, rows, create=True)
    consults = agent(1).consults()
    pending: list[Row] = []
    start = run.position
    while run.position < events:
        turn = run.turn
        call = f.ProposedCall(id=CallId(f"t{turn}.1"), name="count", arguments_text=f'{{"n":{turn}}}')
        asked = f.ToolCallsRequested(calls=(call,), stop_reason="tool_calls", usage=f.Usage(input_tokens=100, output_tokens=10), elapsed_us=5)
        run, rows = batch_rows(run, (asked, consults.calls(asked)))
        pending += rows
        run, rows = batch_rows(run, (f.ToolSucceeded(call=call.id, result=turn, elapsed_us=5),))
        pending += rows
        if len(pending) > 5_000 or run.position >= events:
            log.append("long", start, pending)
            start, pending = run.position, []


def batch_rows(run: Run, inputs: tuple[f.Input, ...]) -> tuple[Run, list[Row]]:
    """Decide and write, without a store."""
    batch = decide(run, inputs, Stamp(at=run.at + 10, driver="me"))
    made: list[Record] = []
    before = run.head
    for position, edge in enumerate(batch.edges, run.position + 1):
        record, _ = write(edge, run=run.id, position=position, batch=run.position + 1, stamp=batch.stamp, before=before)
        made.append(record)
        before = record.digest
    return replace(batch.run, head=before), [Row(r.position, r.type, r.stored) for r in made]


def archive(_: Path) -> None:
    """What can be proved of many runs of a common size, in one process."""
    print("\nan archive: 1,000 runs of 60 records; records a second on one core")
    store = refold.open_store("memory:")
    copy_of_turns(store.log, 60)
    rows = [(row.position, row.state) for row in store.log.read("long")]
    runs = 1_000
    for what, action in (
        ("verify: the chain alone", lambda: verify_rows("long", rows, _nothing)),
        ("fold", lambda: fold(read_record(state, _nothing) for _, state in rows)),
        ("audit: chain, legality, invariants", lambda: audit_rows("long", rows, _nothing)),
        ("replay: every decision again", lambda: replay_rows("long", rows, _nothing)),
    ):
        took = cpu(lambda action=action: [action() for _ in range(runs)])  # type: ignore[misc]
        show(f"  {what}", f"{runs * len(rows) / took:9,.0f}")


def _nothing(digest: Digest) -> bytes:
    raise LookupError(digest)


def transitions() -> None:
    print("\none transition, microseconds")
    setup = agent(1).declared(seed="0")
    stamp = Stamp(at=1, driver="me")
    begun = decide(Run(id=RunId("r")), (f.RunStarted(goal="x", setup=setup), f.DriverAttached(epoch=1, who="me", host="here")), stamp).run
    said = f.UserSaid(text="hello", who="me")
    for name, move in (("  live, on the transitions machine", fire), ("  folded, on the compiled rows", fire_compiled)):
        show(name, f"{best(lambda move=move: [move(Cursor(begun, stamp), said) for _ in range(2_000)]) / 2_000 * 1e6:6.2f}")  # type: ignore[misc]


# -- appending


def appending(folder: Path) -> None:
    print("\nan append, microseconds (median of 300), beside raw sqlite3 doing the same inserts")
    stamp = Stamp(at=1, driver="me")
    edge = Edge(fact=f.ToolStarted(call=CallId("t1.1"), key="k" * 43), source="executing_tools", target="executing_tools", turn=1)
    state = write(edge, run=RunId("r"), position=1, batch=1, stamp=stamp, before=NOTHING)[0].stored
    for synchronous in ("FULL", "NORMAL"):
        for facts in (1, 5):
            ours, raw = [], []
            log = open_log(f"sqlite:///{folder}/a-{synchronous}-{facts}.db?synchronous={synchronous}")
            db = sqlite3.connect(folder / f"raw-{synchronous}-{facts}.db", isolation_level=None)
            db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}")
            db.execute(
                "CREATE TABLE stored_events (originator_id TEXT, originator_version INTEGER, topic TEXT, state BLOB, PRIMARY KEY (originator_id, originator_version))"
            )
            for n in range(300):
                rows = [Row(n * facts + k, "tool_started", state) for k in range(1, facts + 1)]
                began = time.perf_counter()
                log.append("r", n * facts, rows, create=n == 0)
                ours.append(time.perf_counter() - began)
                began = time.perf_counter()
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT INTO stored_events VALUES (?, ?, ?, ?)", [("r", row.position, row.type, row.state) for row in rows])
                db.execute("COMMIT")
                raw.append(time.perf_counter() - began)
            left, right = sorted(ours)[150] * 1e6, sorted(raw)[150] * 1e6
            show(f"  {synchronous:<7} {facts} fact{'s' * (facts > 1)}", f"{left:7.0f}   raw {right:7.0f}   ratio {left / right:.2f}")
            log.close()
            db.close()


# -- whole runs


def whole_runs(folder: Path) -> None:
    print("\nwhole runs with one tool call a turn, a turn")
    for synchronous in ("NORMAL", "FULL"):
        for turns in (10, 200, 1_000):
            path = folder / f"run-{synchronous}-{turns}.db"
            store = refold.open_store(f"sqlite:///{path}?synchronous={synchronous}")
            wall, cpu = time.perf_counter(), time.process_time()
            run = agent(turns).run_sync("Count.", store=store)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            assert run.status == "completed", run
            records = run.records
            size = sum(len(record.stored) for record in records)
            batches = len({record.batch for record in records})
            figures = f"cpu {cpu / turns * 1e6:6.0f} us  wall {wall / turns * 1e6:6.0f} us  {size / turns:6.0f} bytes  {batches / turns:.2f} transactions"
            show(f"  {synchronous:<7} {turns:>5} turns", figures)
            if turns == 1_000 and synchronous == "FULL":
                by_part(records, turns)
            store.close()


def by_part(records: list[Record], turns: int) -> None:
    """Bytes a turn by type of record."""
    parts: dict[str, int] = {}
    for record in records:
        parts[record.type] = parts.get(record.type, 0) + len(record.stored)
    for name, size in sorted(parts.items(), key=lambda part: -part[1])[:8]:
        show(f"          {name}", f"{size / turns:6.0f} bytes")


def after_a_kill(folder: Path) -> None:
    turns = 1_000
    url = f"sqlite:///{folder}/killed.db?synchronous=NORMAL"
    code = KILLED.format(here=str(Path(__file__).parent), turns=turns, url=url)
    subprocess.run([sys.executable, "-P", "-c", code], check=False)
    times: list[float] = []
    for _ in range(3):
        copy = folder / f"copy-{len(times)}.db"
        for suffix in ("", "-wal"):
            source = Path(f"{folder}/killed.db{suffix}")
            if source.exists():
                Path(f"{copy}{suffix}").write_bytes(source.read_bytes())
        resumed = agent(turns)
        asked: list[float] = []
        plain = resumed.model.stream  # type: ignore[union-attr]
        resumed.model.stream = lambda request, plain=plain, asked=asked: (asked.append(time.perf_counter()), plain(request))[1]  # type: ignore[union-attr, method-assign]
        began = time.perf_counter()
        run = resumed.resume_sync("killed", store=refold.open_store(f"sqlite:///{copy}?synchronous=NORMAL"))
        assert run.status == "completed", run
        times.append(asked[0] - began)
    print()
    show("a killed run of 1,000 turns until its next request", f"{min(times) * 1e3:6.1f} ms")


def runs_a_second(folder: Path) -> None:
    store = refold.open_store(f"sqlite:///{folder}/many.db")

    async def many(number: int) -> None:
        await asyncio.gather(*(agent(10).run(f"goal {n}", store=store) for n in range(number)))

    for number in (1, 16):
        took = best(lambda number=number: asyncio.run(many(number)), 3)  # type: ignore[misc]
        show(f"runs of 10 turns a second, {number} at once, FULL", f"{number / took:6.1f}")


# -- streaming


class Talker:
    """A model that says so many words, and lets the loop go round behind each, as one does that waits for the network."""

    spec = "talker"

    def __init__(self, deltas: int) -> None:
        self.deltas = deltas

    async def stream(self, _: Any) -> AsyncIterator[p.Part]:
        for n in range(self.deltas):
            yield p.TextDelta(text=f"word {n % 100} ")
            await asyncio.sleep(0)
        yield p.UsageUpdated(input_tokens=10, output_tokens=self.deltas)
        yield p.Finished(stop_reason="stop")


async def alone(model: Talker) -> None:
    """The model, and nobody who assembles."""
    async for _ in model.stream(None):
        pass


async def read_by(model: Talker, readers: int) -> None:
    """A run whose stream so many read."""
    store = refold.open_store("memory:")
    running = asyncio.ensure_future(refold.Agent(model=model, budgets=NO_LIMITS).run("Talk.", store=store, run_id="r"))
    await asyncio.sleep(0)
    await asyncio.gather(running, *(read(store) for _ in range(readers)))


async def read(store: refold.Store) -> None:
    async for _ in store.watch("r"):
        pass


def streaming(_: Path) -> None:
    deltas = 2_000
    print(f"\na text delta from the model to a reader, microseconds of CPU beyond the model ({deltas:,} a turn)")

    def each(play: Callable[[Talker], Coroutine[Any, Any, None]]) -> float:
        one, all_ = (min(cpu(lambda n=n: asyncio.run(play(Talker(n)))) for _ in range(7)) for n in (1, deltas))  # type: ignore[misc]
        return (all_ - one) / deltas * 1e6

    model = each(alone)
    for readers in (0, 1, 4):
        show(f"  {readers} reader{'s' * (readers != 1)}", f"{each(lambda talker, readers=readers: read_by(talker, readers)) - model:6.2f}")  # type: ignore[misc]
    for parts in (20_000, 100_000):
        tracemalloc.start()
        feed = Feed()
        shown = Shown(refold.Agent(model=Talker(0)).consults().redaction, feed)
        for n in range(parts):
            shown.take(p.TextDelta(text=f"word {n % 100} "))
        show(f"  kept for readers after {parts:,} deltas", f"{tracemalloc.get_traced_memory()[0] / 1e6:6.2f} MB")
        tracemalloc.stop()


def cpu(action: Callable[[], Any]) -> float:
    """Seconds of CPU that it takes."""
    began = time.process_time()
    action()
    return time.process_time() - began


# -- starting


def starting() -> None:
    print("\nimports and starting, milliseconds beyond a bare interpreter")
    bare = best(lambda: child("pass"), 5)
    for what, code in (
        ("import refold", "import refold"),
        ("from refold import Agent, tool", "from refold import Agent, tool"),
        ("refold --version (whole process)", "import sys; sys.argv = ['refold', '--version']; from refold.runtime.cli.main import main; main()"),
    ):
        took = best(lambda code=code: child(code), 5)  # type: ignore[misc]
        show(f"  {what}", f"{(took - (0 if 'process' in what else bare)) * 1e3:6.1f}")


def child(code: str) -> None:
    subprocess.run([sys.executable, "-P", "-c", code], stdout=subprocess.DEVNULL, check=False)


def main() -> None:
    parts = {"fold": folding, "append": appending, "runs": whole_runs, "kill": after_a_kill, "many": runs_a_second, "stream": streaming, "archive": archive}
    parser = argparse.ArgumentParser(description="What refold costs.")
    parser.add_argument("part", nargs="*", choices=[*parts, "transition", "start", []], help="only these (default: all)")
    wanted = parser.parse_args().part or [*parts, "transition", "start"]
    with tempfile.TemporaryDirectory() as name:
        for part, measure in parts.items():
            if part in wanted:
                measure(Path(name))
            if part == "fold" and "transition" in wanted:
                transitions()
    if "start" in wanted:
        starting()


if __name__ == "__main__":
    main()
