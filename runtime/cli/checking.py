"""`replay`, `audit`, `verify`, `export`, `import`: what can be proved about runs, here and elsewhere."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refold.events.storage import StoreMissing
from refold.projections.revisions import UnsupportedEngine
from refold.runtime import replay as proofs, transfer
from refold.runtime.cli import diverging, lookup, options as o, output
from refold.runtime.cli.exits import COMPLETED, FOUND, USAGE, Refused
from refold.runtime.cli.render import Page, one_line, thousands
from refold.runtime.cli.stores import opened
from refold.runtime.store import Store


def replay(options: o.Replay) -> int:
    """Derive runs again and compare."""
    agent = lookup.agent_named(options.agent) if options.agent else None
    _some(options.runs, options.all, "replay")
    found: list[proofs.Replayed] = []
    unknown: dict[str, str] = {}
    try:
        with opened(options) as store:
            for run_id in _chosen(store, options.runs, options.all):
                try:
                    found.append(proofs.replay(store, run_id, agent))
                except UnsupportedEngine as error:  # the others can be told all the same
                    unknown[run_id] = str(error)
    except StoreMissing:
        if not options.all:
            raise
    if options.json:
        undecided = [{"run_id": run_id, "events": None, "identical": None, "divergence": None, "error": why} for run_id, why in unknown.items()]
        output.document([*(one.as_json() for one in found), *undecided])
    else:
        page = Page()
        for one in found:
            for line in _replayed(one, page):
                output.line(line)
    for run_id, why in unknown.items():
        output.complain(f"run {run_id} cannot be replayed: {why}")
    return FOUND if not all(one.identical for one in found) else USAGE if unknown else COMPLETED


def _replayed(replayed: proofs.Replayed, page: Page) -> list[str]:
    head = f"run {replayed.run_id}"
    if replayed.divergence is None:
        return [f"{head}  {page.paint('identical', 'green')}  {thousands(replayed.events)} records"]
    return [f"{head}  {page.paint('diverges', 'red')}", *diverging.lines(replayed.divergence, page)]


# -- audit and verify


def audit(options: o.Audit) -> int:
    """Check runs of the store, or exported files, against every invariant."""
    _some(options.runs, options.all, "audit")
    files = [name for name in options.runs if name == "-" or _is_file(name)]
    runs = [name for name in options.runs if name not in files]
    found: list[dict[str, Any]] = []
    if runs or options.all:
        try:
            with opened(options) as store:
                found += [transfer.audit_json(proofs.audit(store, run_id)) for run_id in _chosen(store, runs, options.all)]
        except StoreMissing:
            if not options.all:
                raise
    found += [transfer.audit_json(_exported(name).audit()) for name in files]
    if options.json:
        output.document(found)
    else:
        page = Page()
        for number, one in enumerate(found):
            output.line("\n".join([""] * (number > 0) + _audited(one, page)))
    return COMPLETED if all(one["ok"] for one in found) else FOUND


def _audited(audited: dict[str, Any], page: Page) -> list[str]:
    verdict = page.paint("ok", "green") if audited["ok"] else page.paint("broken", "red")
    lines = [f"run {audited['run_id']}  {verdict}  {thousands(audited['events'])} records"]
    for name in ("chain", "legal"):
        lines += _verdict(name, audited[name], audited[name].get("why", ""), page)
    for invariant in audited["invariants"]:
        lines += _verdict(invariant["id"], invariant, _evidence(invariant), page)
    return lines


def _evidence(invariant: dict[str, Any]) -> str:
    """What an invariant says, and on how much it rests; all of it where it is broken. The whole evidence is in `--json`."""
    pieces = invariant["evidence"]
    if not invariant["ok"]:
        return f"{invariant['title']}; {', '.join(str(piece) for piece in pieces)}"
    rests = f"{len(pieces)} place{'s' * (len(pieces) != 1)}" if pieces else "nothing to check"
    return f"{invariant['title']} · {rests}"


def _verdict(name: str, verdict: dict[str, Any], text: str, page: Page) -> list[str]:
    """One line of an audit, wrapped under its own text."""
    mark = page.paint("ok    ", "green") if verdict["ok"] else page.paint("BROKEN", "red")
    place = f"at position {verdict['broken_at']}: " if verdict.get("broken_at") is not None else ""
    first, *rest = page.paragraphs(one_line(place + text), " " * 16) or [""]
    return [f"  {name:<6}{mark}  {first.strip()}".rstrip(), *rest]


def verify(options: o.Verify) -> int:
    """Check the chain of a file, its place in no store needed."""
    told = transfer.verified_json(_exported(options.file).verify())
    if options.json:
        output.document(told)
    elif told["ok"]:
        output.line(f"{one_line(options.file)}: {thousands(told['events'])} records, whole; the head is {told['head']}")
    else:
        output.line(f"{one_line(options.file)}: broken at position {told['broken_at']}: {one_line(told.get('why', ''))}")
    return COMPLETED if told["ok"] else FOUND


# -- export and import


def export(options: o.Export) -> int:
    """A run as JSON Lines on standard output."""
    with opened(options) as store:
        for line in transfer.export_lines(store, store.find(options.run)):
            if not output.raw(line):
                break
    return COMPLETED


def import_(options: o.Import) -> int:
    """Take files into the store: all of them are read and checked before there is one."""
    exports = [_exported(name) for name in options.files]
    for export in exports:
        verified = export.verify()
        if not verified.ok:
            raise Refused(f"{export.name} is damaged at position {verified.broken_at} ({verified.why}); nothing was imported")
    with opened(options, create=True) as store:
        names = [transfer.import_file(store, export) for export in exports]
    if options.json:
        output.document([{"run_id": name} for name in names])
    else:
        for name in names:
            output.line(f"imported run {name}")
    return COMPLETED


def _exported(name: str) -> transfer.Export:
    """A file taken apart. Raises Refused where it cannot be read or is something else altogether."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Refused(f"the file {name} cannot be read ({error.strerror})") from None
    return transfer.parse(data, "standard input" if name == "-" else name)


def _is_file(name: str) -> bool:
    """Whether a word is an exported file and not a run: ids have no slash, and files that are looked for have a suffix or are there."""
    return "/" in name or name.endswith(".jsonl") or Path(name).is_file()


def _chosen(store: Store, names: Sequence[str], every: bool) -> list[str]:
    return list(dict.fromkeys([*(store.find(name) for name in names), *(store.runs() if every else ())]))


def _some(names: Sequence[str], every: bool, command: str) -> None:
    if not names and not every:
        raise Refused(f"refold {command} needs a RUN, or --all for every run of the store")
