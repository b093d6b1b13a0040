"""Replays every exported run of a folder with nothing at hand but its bytes: `python -m refold.testing.anywhere FOLDER [MODULE:AGENT]`.

Sockets, processes, clocks, random sources, models and tools raise when they are touched, and the interpreter's own settings are odd.
Prints a line of JSON for each file, in the order of their names: what the audit says, and the digests of the audit and of the log as it was derived.
Two outputs that differ, made under any Python, hash seed, time zone or locale, name a file that does not replay everywhere. Exit code 1 where one could not be judged.
"""

import datetime
import decimal
import hashlib
import locale
import os
import random
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from refold.fsm.audit import Audit
from refold.fsm.replay import replay_rows
from refold.projections.revisions import UnsupportedEngine
from refold.runtime.agent import Agent
from refold.runtime.cli.lookup import agent_named
from refold.runtime.replay import Replayed, in_file, replayed
from refold.runtime.transfer import Export, audit_json, parse

CLOCKS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime", "gmtime", "ctime", "strftime", "sleep")
RANDOM: Final = ("random", "getrandbits")
"""What everything of a `random.Random` is drawn from."""
AUDITED: Final = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system")
"""How the interpreter's own events are called that nothing may cause, however it is reached."""


class Touched(BaseException):
    """Something reached for the world."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one file. `why` is the first fault that the audit finds, `cause` that of the divergence; `audit` and `derived` are digests."""

    file: str
    run_id: str
    events: int
    ok: bool
    why: str
    cause: str
    audit: str
    derived: str
    verdict: str = ""
    """What would have been decided otherwise by the agent, where one is given."""


def judge(data: bytes, name: str, agent: Agent | None = None) -> Judged:
    """Audit the bytes of a file and derive its run again; with an agent its code is asked again, too."""
    export = parse(data, name)
    audit = export.audit()
    again: Replayed | None = None
    cause = ""
    try:
        again = replayed(in_file(export), agent)
        cause = again.divergence.cause if again.divergence is not None else ""
    except UnsupportedEngine as error:
        cause = str(error)
    return Judged(
        file=name,
        run_id=export.run_id,
        events=audit.events,
        ok=audit.ok,
        why=_first_fault(audit),
        cause=cause,
        audit=_digest(msgspec.json.encode(audit_json(audit))),
        derived=_derived(export) if again is not None else "",
        verdict=again.verdict if again is not None and agent is not None else "",
    )


def _derived(export: Export) -> str:
    """The digest of the log as it is derived again."""
    return _digest(b"\n".join(record.stored for record in replay_rows(export.run_id, export.rows, export.load).records))


def _first_fault(audit: Audit) -> str:
    """The first of: where the chain breaks, which move is illegal, which invariant does not hold."""
    for verdict in (audit.chain, audit.legal):
        if not verdict.ok:
            return f"position {verdict.broken_at}: {verdict.why}"
    return next((f"{each.id}: {'; '.join(map(str, each.evidence))}" for each in audit.invariants if not each.ok), "")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


# -- a world that is not there


def leave_the_world() -> None:
    """From here on this process cannot reach for anything: whatever tries raises Touched. There is no way back."""
    locale.setlocale(locale.LC_ALL, "")  # the environment's, which a program of Python has for itself only where it asks
    decimal.setcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP))
    sys.addaudithook(_refused)
    for name in RANDOM:
        setattr(random.Random, name, _raising(f"random.{name}"))
    forbidden = {id(taken): stand_in for taken, stand_in in _forbidden()}
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if id(value) in forbidden:
                setattr(module, name, forbidden[id(value)])


def _forbidden() -> Iterator[tuple[object, object]]:
    """What is taken away in every module that has it under any name, and what stands there instead."""
    yield datetime.datetime, _Datetime
    yield datetime.date, _Date
    for name in CLOCKS:
        yield getattr(time, name), _raising(f"time.{name}")
    for name in ("urandom", "getrandom"):
        if hasattr(os, name):  # the second is Linux's
            yield getattr(os, name), _raising(f"os.{name}")
    for name in random.__all__:
        if callable(value := getattr(random, name)) and not isinstance(value, type):
            yield value, _raising(f"random.{name}")
    for name in ("socket", "create_connection", "getaddrinfo", "gethostname"):
        yield getattr(socket, name), _raising(f"socket.{name}")
    yield uuid.uuid1, _raising("uuid.uuid1")


def _raising(name: str) -> Callable[..., NoReturn]:
    def touch(*_: Any, **__: Any) -> NoReturn:
        raise Touched(f"{name} was called")

    return touch


class _Date(datetime.date):
    today = _raising("date.today")


class _Datetime(datetime.datetime):
    now = utcnow = today = _raising("datetime.now")


def _refused(event: str, _: object) -> None:
    if event.startswith(AUDITED):
        raise Touched(f"{event} was caused")


def without_hands(agent: Agent) -> Agent:
    """The same agent, whose tools and model raise. It is changed in place, and of no use for anything but a replay."""
    for name, tool in agent.tools.items():
        object.__setattr__(tool, "handler", _raising(f"the tool {name}"))
        object.__setattr__(tool, "reconcile", tool.reconcile and _raising(f"the reconciliation of {name}"))
    if agent.model is not None and not isinstance(agent.model, str):
        agent.model.stream = _raising("the model")  # type: ignore[method-assign]
    return agent


def main() -> int:
    """What `python -m refold.testing.anywhere` does."""
    folder, *agents = sys.argv[1:]
    agent = without_hands(agent_named(agents[0])) if agents else None
    files = [(path.name, path.read_bytes()) for path in sorted(Path(folder).glob("*.jsonl"))]
    leave_the_world()
    failed = 0
    for name, data in files:
        try:
            told = msgspec.json.encode(judge(data, name, agent))
        except (Exception, Touched):  # noqa: BLE001 - whatever it is, it is the finding, and the other files are judged all the same
            failed += 1
            told = msgspec.json.encode({"file": name, "failed": traceback.format_exc()})
        sys.stdout.buffer.write(told + b"\n")
    print(f"{len(files)} runs were replayed, {failed} could not be judged", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
