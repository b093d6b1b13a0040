"""`audit`, `export`, `import`: what can be proved about runs, here and elsewhere."""

from typing import Any

from refold.events.codec import read_line
from refold.events.storage import StoreMissing
from refold.runtime import transfer
from refold.runtime.auditing import audit as audit_of
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, FOUND
from refold.runtime.cli.naming import chosen, exported, is_file, some_named
from refold.runtime.cli.render import Page, counted, one_line
from refold.runtime.cli.stores import opened

# -- audit and verify


def audit(options: o.Audit) -> int:
    """Check runs of the store, or exported files, against every invariant."""
    some_named(options.runs, options.all, "audit")
    files = [name for name in options.runs if is_file(name)]
    runs = [name for name in options.runs if name not in files]
    found: list[dict[str, Any]] = []
    if runs or options.all:
        try:
            with opened(options) as store:
                found += [transfer.audit_json(audit_of(store, run_id)) for run_id in chosen(store, runs, options.all)]
        except StoreMissing:
            if not options.all:
                raise
    found += [transfer.audit_json(exported(name).audit()) for name in files]
    if options.json:
        output.document(found)
    else:
        page = Page()
        for number, one in enumerate(found):
            output.line("\n".join([""] * (number > 0) + _audited(one, page)))
    return COMPLETED if all(one["ok"] for one in found) else FOUND


def _audited(audited: dict[str, Any], page: Page) -> list[str]:
    verdict = page.paint("ok", "green") if audited["ok"] else page.paint("broken", "red")
    lines = [f"run {one_line(audited['run_id'])}  {verdict}  {counted(audited['events'], 'record')}"]
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
