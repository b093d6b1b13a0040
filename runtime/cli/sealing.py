"""`seal` and `verify`: sign the head of ended runs, and hold a file or a run against keys and heads that are known from elsewhere."""

from typing import Any, Final

import msgspec

from refold.events.storage import StoreMissing
from refold.runtime import sealing, transfer
from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, FOUND, Refused
from refold.runtime.cli.naming import chosen, exported, is_file, no_folder, some_named
from refold.runtime.cli.render import counted, one_line, thousands
from refold.runtime.cli.stores import opened, typed
from refold.runtime.journal import NOT_FOLLOWED
from refold.runtime.store import Store


def seal(options: o.Seal) -> int:
    """Sign the heads of ended runs, or make the key to do it with."""
    if options.new_key is not None:
        return _new_key(options, options.new_key)
    some_named(options.runs, options.all, "seal")
    if options.key is None:
        raise Refused("refold seal needs --key FILE, an Ed25519 key in PEM; make one with: refold seal --new-key FILE")
    key = sealing.Private(options.key)
    try:
        with opened(options) as store:
            taken, whole = _sealed(store, options, key)
    except StoreMissing:
        if not options.all:
            raise
        taken, whole = [], True
    if options.json:
        output.document([{"run_id": name, "position": position, "key": key.public.id, "again": again} for name, position, again in taken])
    else:
        for name, position, again in taken:
            output.line(f"run {name} was sealed with this key before, at position {position}" if again else f"sealed run {name} at position {position}")
    return COMPLETED if whole else FOUND


def _new_key(options: o.Seal, name: str) -> int:
    if options.runs or options.all or options.key is not None:
        raise Refused("--new-key makes a key and seals nothing: give it alone, then seal with --key")
    public = sealing.new_key(name)
    if options.json:
        output.document({"key": public.id, "private": name, "public": f"{name}.pub"})
    else:
        output.line(f"made key {public.id}: {one_line(name)} signs and is for nobody else, {one_line(name)}.pub is what others check with")
    return COMPLETED


def _sealed(store: Store, options: o.Seal, key: sealing.Private) -> tuple[list[tuple[str, int, bool]], bool]:
    """Seal what was chosen; gives what was done, and whether nothing that is damaged was left out. A run that is named and has not ended stops it all before it begins."""
    names = chosen(store, options.runs, options.all)
    if not options.all:
        for name in names:
            sealing.ended(store.journal(name).run)
    taken, whole = [], True
    for name in names:
        try:
            taken.append((name, *sealing.seal(store.log, name, key)))
        except sealing.NotEnded as error:
            output.note(f"left out: {error}")
        except NOT_FOLLOWED as error:
            output.complain(f"run {name} is damaged and was not sealed ({error}); see what is wrong with: {typed(options, 'audit', name)}")
            whole = False
    return taken, whole


# -- verify


def verify(options: o.Verify) -> int:
    """Check the chain of a file, its place in no store needed, or of a run of the store; with keys and a head also what could be missing at its end."""
    keys = [sealing.public(name) for name in options.keys]
    if options.file == "-" or is_file(options.file):
        export = exported(options.file)
    else:
        with no_folder(options.file), opened(options) as store:
            export = transfer.stored(store, store.find(options.file))
    checked = export.check(keys, options.head)
    if options.json:
        told: dict[str, Any] = msgspec.to_builtins(checked)
        output.document(told)
    else:
        output.line("\n".join(_verified(one_line(export.name), checked)))
    return COMPLETED if checked.ok else FOUND


def _verified(name: str, checked: sealing.Checked) -> list[str]:
    """What was found, on a line each."""
    if checked.broken_at is not None:
        lines = [f"{name}: broken at position {checked.broken_at}: {one_line(checked.why)}"]
    elif not checked.ok:
        lines = [f"{name}: {one_line(checked.why)}"]
    else:
        lines = [f"{name}: {thousands(checked.events)} records, whole; the head is {checked.head}"]
    lines += [f"sealed at {seal.position}, {WORDS[seal.verdict]} (key {one_line(seal.key)})" for seal in checked.seals]
    if checked.head_at is not None:
        since = checked.events - checked.head_at
        place = f"{counted(since, 'record')} came after it" if since else "the last one"
        lines.append(f"the head that was given is that of position {checked.head_at}, {place}")
    return lines


WORDS: Final[dict[sealing.Word, str]] = {
    "ok": "signature ok",
    "bad": "signature bad",
    "unknown key": "by an unknown key",
    "not checked": "which was not checked: name the public key with --key",
}
