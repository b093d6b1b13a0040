"""`audit`, `export`, `import`: what can be proved about runs, here and elsewhere."""

from contextlib import ExitStack
from functools import partial
from typing import Any

from refold.events.codec import read_line
from refold.runtime import transfer
from refold.runtime.auditing import audit as audit_of
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, FOUND
from refold.runtime.cli.naming import exported, some_named
from refold.runtime.cli.render import Page, counted, one_line, thousands
from refold.runtime.cli.several import Check, Named, Told, each, every_named, store_of, there
from refold.runtime.cli.stores import opened
from refold.runtime.store import Store

# -- audit and verify


def audit(options: o.Audit) -> int:
    """Check runs of the store, or exported files, against every invariant."""
    some_named(options.runs, options.all, "audit")
    page, found = Page(), list[Told]()
    with ExitStack() as stack:
        store = store_of(options, stack)
        named = every_named(options, store)
        for told in each(partial(_told, store), _ready, options, named, store):
            found.append(told)
            if not options.json:
                output.line("\n".join(_audited(told, page, whole=len(named) == 1)))
    broken = sum(not told["ok"] for told in found)
    if options.json:
        output.document(found)
    elif len(found) > 1:
        output.line(f"{counted(len(found), 'run')}: {thousands(len(found) - broken)} ok, {thousands(broken)} broken")
    return FOUND if broken else COMPLETED


def _ready(store: Store | None) -> Check:
    """What one of several processes does."""
    return partial(_told, store)


def _told(store: Store | None, named: Named) -> Told:
    """One run in the documented shape."""
    if named.file:
        return {**transfer.audit_json(exported(named.name).audit()), "file": named.name}
    return transfer.audit_json(audit_of(there(store), named.name))


def _audited(audited: Told, page: Page, *, whole: bool) -> list[str]:
    """A run in a line, and every invariant where it is the `whole` answer or something is broken."""
    verdict = page.paint("ok", "green") if audited["ok"] else page.paint("broken", "red")
    lines = [f"run {one_line(audited['run_id'])}  {verdict}  {counted(audited['events'], 'record')}"]
    if audited["ok"] and not whole:
        return lines
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


# -- export and import


def export(options: o.Export) -> int:
    """A run as JSON Lines on standard output."""
    with opened(options) as store:
        run_id = store.find(options.run)
        line = b""
        for line in transfer.export_lines(store, run_id):
            if not output.raw(line):
                return COMPLETED
    last = read_line(line.rstrip(b"\n"))
    output.note(
        f"run {run_id} up to position {last.position}; its head is {last.digest}, with which anybody can check the file: refold verify FILE --head DIGEST"
    )
    return COMPLETED


def import_(options: o.Import) -> int:
    """Take files into the store: all of them are read and checked before there is one."""
    exports = [transfer.whole(exported(name)) for name in options.files]
    transfer.agree(exports)
    with opened(options, create=True) as store:
        there = [transfer.is_there(store, export) for export in exports]
        for export in exports:
            if not transfer.is_there(store, export):  # a file may be named twice
                transfer.take(store, export)
    names = [export.run_id for export in exports]
    if options.json:
        output.document([{"run_id": name, "already_there": known} for name, known in zip(names, there, strict=True)])
    else:
        for name, known in zip(names, there, strict=True):
            output.line(f"run {name} is already there" if known else f"imported run {name}")
    return COMPLETED
