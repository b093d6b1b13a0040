"""`doctor`: what needs a person, over all runs of a store, and how large the store is by part. Nothing is appended and nothing is made.

Apart from the lists, because it looks at everything: every byte of every chain, who drives, and the agents' code where that is found.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from refold.events import facts as f
from refold.events.lineage import OtherHistory, history
from refold.events.storage import StoreMissing
from refold.events.words import Digest
from refold.fsm.audit import Verified, verify_rows
from refold.projections.revisions import SUPPORTED
from refold.projections.run import Run
from refold.projections.view import pending_of
from refold.runtime.agent import Agent
from refold.runtime.cli import lookup, options as o, output
from refold.runtime.cli.driving import user_code
from refold.runtime.cli.exits import COMPLETED, FOUND, Refused
from refold.runtime.cli.render import Page, bytes_of, counted, one_line, since
from refold.runtime.cli.stores import opened, to_drive, to_type, typed, what_waits
from refold.runtime.journal import NOT_FOLLOWED, Journal, loader
from refold.runtime.store import Store

INDEX_FILES: Final = "index-*.db*"
"""The indexes of documents beside a store that is a file."""


class Finding(NamedTuple):
    """Something about a run: what (`kind`), in words that follow `run X`, since when, and what can be typed."""

    run_id: str
    status: str
    kind: str
    why: str
    since: int | None
    lines: list[str]
    needs_person: bool = True

    def as_json(self) -> dict[str, Any]:
        """The documented shape."""
        return {name: getattr(self, name) for name in ("run_id", "status", "kind", "why", "since", "needs_person")}


class Sizes:
    """Bytes by part, added up while the runs are read."""

    def __init__(self) -> None:
        self.runs = self.records = self.record_bytes = self.payloads = self.payload_bytes = 0


def doctor(options: o.Doctor) -> int:
    """Look at everything; exits 1 where something needs a person."""
    sizes, found, store_there = Sizes(), [], True
    try:
        with opened(options) as store:
            for run_id in store.runs():
                found += list(_examined(options, store, run_id, sizes))
    except StoreMissing:
        store_there = False
    if options.json:
        output.document([finding.as_json() for finding in found])
    else:
        _print(options, found, sizes if store_there else None)
    return FOUND if any(finding.needs_person for finding in found) else COMPLETED


def _examined(options: o.Doctor, store: Store, run_id: str, sizes: Sizes) -> Iterator[Finding]:
    """Everything that is to be said of one run."""
    try:
        verified, unsealed = _verified(store, run_id, sizes)
    except OtherHistory as error:
        yield Finding(run_id, "damaged", "broken_chain", f"cannot be followed: {error}", None, [typed(options, "audit", run_id)])
        return
    try:
        journal = store.journal(run_id)
    except NOT_FOLLOWED as error:
        why = f"cannot be followed: {one_line(str(error))}" if verified.ok else _broken(verified)
        yield Finding(run_id, "damaged", "broken_chain", why, None, [typed(options, "audit", run_id)])
        return
    run = journal.run
    if not verified.ok:
        yield Finding(run_id, run.status, "broken_chain", _broken(verified), None, [typed(options, "audit", run_id)])
    if run.begun.engine not in SUPPORTED:
        why = f"was made under engine {run.begun.engine}, and this version derives only {', '.join(map(str, sorted(SUPPORTED)))}: it can be shown here, and neither resumed nor replayed"
        yield Finding(run_id, run.status, "unsupported_engine", why, None, [], needs_person=run.ended is None)
    if unsealed:
        why = f"has {counted(unsealed, 'record')} behind its last seal, which nobody signed"
        yield Finding(run_id, run.status, "behind_seal", why, run.at, [typed(options, "seal", run_id, "--key", "FILE")])
    if run.ended is not None:
        return
    for asked in pending_of(run):
        yield Finding(run_id, run.status, asked["kind"], what_waits(asked), asked["since"], to_type(options, run, asked))
    if not run.waits:
        yield from _undriven(options, store, journal)
    yield from _changed(options, run)


def _verified(store: Store, run_id: str, sizes: Sizes) -> tuple[Verified, int]:
    """The chain of a run, how many records are behind its last seal, and what it takes up."""
    load, seen = loader(store.log, run_id, many=True), set[Digest]()
    sealed = behind = 0

    def rows() -> Iterator[tuple[int, bytes]]:
        nonlocal sealed, behind
        for row in history(store.log, run_id):
            if row.type == f.Sealed.TAG:
                sealed, behind = row.position, 0
            behind += sealed not in (0, row.position)
            sizes.records += 1
            sizes.record_bytes += len(row.state)
            yield row.position, row.state

    def measured(digest: Digest) -> bytes:
        value = load(digest)
        if digest not in seen:
            seen.add(digest)
            sizes.payloads += 1
            sizes.payload_bytes += len(value)
        return value

    sizes.runs += 1
    return verify_rows(run_id, rows(), measured), behind


def _broken(verified: Verified) -> str:
    return f"has a chain that breaks at position {verified.broken_at}: {one_line(verified.why)}"


# -- who drives


def _undriven(options: o.Doctor, store: Store, journal: Journal) -> Iterator[Finding]:
    """A run that could go on, and that nobody drives. It is looked at twice: a driver takes the run before it attaches, and lets it go after it has detached."""
    before = journal.run
    if store.log.holder(before.id) is not None:
        return
    journal.catch_up()
    run = journal.run
    if run.ended is not None or run.waits or run.position != before.position:
        return
    lines = [typed(options, "cancel", run.id) if run.cancel is not None else to_drive(options, "resume", run)]
    if run.driver is None:
        why = "is to be cancelled, and nobody drives it" if run.cancel is not None else "can go on, and nobody drives it"
        yield Finding(run.id, run.status, "parked", why, run.at, lines)
        return
    driver = run.driver
    yield Finding(
        run.id, run.status, "dead_driver", f"was driven by {driver.who}@{driver.host}, process {driver.pid}, which is gone{_cut_off(run)}", run.at, lines
    )


def _cut_off(run: Run) -> str:
    """The calls whose outcome nobody heard."""
    calls = [f"{one_line(call.name)} ({call.id})" for call in run.calls if call.phase == "started"] if run.state == "executing_tools" else []
    return f", in the middle of {', '.join(calls)}" if calls else ""


# -- what the code says today


def _changed(options: o.Doctor, run: Run) -> Iterator[Finding]:
    """Where the agent of an unfinished run is found and is not what it was: its tools would be checked and run otherwise than the model was told."""
    setup = run.begun
    gone = [folder for folder in setup.documents if not Path(folder).is_dir()]
    if gone:
        why = f"answers from documents that are not there any more: {', '.join(map(one_line, gone))}"
        yield Finding(run.id, run.status, "changed_agent", why, None, [typed(options, "resume", run.id, "--docs", "DIR")])
    agent = _agent_of(setup)
    changes = _differences(agent, setup) if agent is not None else []
    if changes:
        yield Finding(run.id, run.status, "changed_agent", f"was begun by an agent that has changed since: {'; '.join(changes)}", None, [])


def _agent_of(setup: f.Setup) -> Agent | None:
    """The agent of a record, where its code is found. The built-in ones are as this version has them."""
    if setup.documents:
        return None
    try:
        with user_code():
            agent = lookup.agent_for_record(o.Driving(), setup)
    except Refused:
        return None
    return agent if agent.name == setup.agent else None


def _differences(agent: Agent, setup: f.Setup) -> list[str]:
    today = agent.declared_in(setup.context)
    tools = {tool.name: tool for tool in today.tools}
    found: list[str] = []
    for then in setup.tools:
        now = tools.get(then.name)
        if now is None:
            found.append(f"the tool {one_line(then.name)} is gone")
            continue
        what = [name for name in ("schema", "effect", "approval") if _canonical(getattr(then, name)) != _canonical(getattr(now, name))]
        if what:
            found.append(f"the tool {one_line(then.name)} has another {' and '.join(what)}")
    if today.validators != setup.validators:
        found.append("its answers are checked by other validators")
    return found


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


# -- for people


def _print(options: o.Doctor, found: list[Finding], sizes: Sizes | None) -> None:
    page = Page()
    if sizes is None:
        output.note("there is no store yet")
        return
    for run_id, findings in groupby(found, key=lambda finding: finding.run_id):
        output.line("\n".join([*_of_run(run_id, list(findings), page), "", ""]))
    if not any(finding.needs_person for finding in found):
        output.line(page.paint("nothing needs anybody", "green"))
    for part, size, what in _parts(options, sizes):
        output.line(f"{page.paint(part.ljust(9), 'dim')}{bytes_of(size):>9}  {what}")


def _of_run(run_id: str, findings: list[Finding], page: Page) -> list[str]:
    """A run, and everything that is to be said of it."""
    lines = [f"{page.paint('run ' + run_id, 'bold')}  {page.status(findings[0].status)}"]
    for finding in findings:
        age = f" · {since(finding.since)}" if finding.since is not None else ""
        lines += [*page.paragraphs(finding.why + age, "  "), *(page.paint(f"      {line}", "cyan") for line in finding.lines)]
    return lines


def _parts(options: o.Doctor, sizes: Sizes) -> Iterator[tuple[str, int, str]]:
    """The parts of the store: what is in it, and the files that it takes where it is one."""
    yield "records", sizes.record_bytes, f"{counted(sizes.records, 'record')} of {counted(sizes.runs, 'run')}"
    yield "payloads", sizes.payload_bytes, f"{counted(sizes.payloads, 'large value')}"
    path = options.store.removeprefix("sqlite:///").partition("?synchronous=")[0]
    if path == options.store:
        return
    place = Path(path)
    files = [file for file in (place, place.with_name(place.name + "-wal"), place.with_name(place.name + "-shm")) if file.exists()]
    yield "file", sum(file.stat().st_size for file in files), place.name + (" and what SQLite keeps beside it" if len(files) > 1 else "")
    indexes = [file for file in place.parent.glob(INDEX_FILES) if file.is_file()]
    if indexes:
        yield "index", sum(file.stat().st_size for file in indexes), f"of documents, in {counted(len(indexes), 'file')}"
