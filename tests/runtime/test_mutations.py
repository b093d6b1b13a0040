"""Whatever is done to an exported file, every reader of it gives a verdict, none that differs passes, and the script that knows nothing of refold says the same."""

import importlib.util
import json
import random
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from refold import Agent, ScriptedModel, open_store, tool
from refold.events.chain import close
from refold.events.codec import read_line
from refold.events.payloads import references
from refold.events.words import Digest
from refold.fsm.replay import replay_rows
from refold.projections.revisions import UnsupportedEngine
from refold.runtime.cli import exits
from refold.runtime.cli.main import perform
from refold.runtime.transfer import DamagedFile, Export, export_lines, import_file, parse

LOGS = Path(__file__).parents[1] / "logs"
GOLDEN = ("v1/tools", "v1/recovered", "v2/large-result", "v2/approvals", "v2/question", "v2/broken-stream", "v2/read-on", "v2/relevant", "v2/sealed")
ALPHABET = "Größe 温度 🌡️ שלום e\u0301 \u2028 \x7f \\u0041 \"quoted\" {'$payload'}"


@tool(effect="read")
def look(at: str) -> dict[str, Any]:
    """Looks, and sees a lot."""
    return {"$payload": at, "near": ALPHABET, "far": [at * 2_000, ALPHABET * 200], "nothing": None}


def in_every_script() -> bytes:
    """A run in which everything is hard to write, with several large values in one record."""
    calls = [{"name": "look", "arguments": {"at": at}} for at in ("north", "süd", "東")]
    store = open_store("memory:")
    Agent(model=ScriptedModel([{"calls": calls, "text": ALPHABET}, {"text": ALPHABET * 300}]), tools=[look]).run_sync(ALPHABET, store=store, run_id="script")
    return b"".join(export_lines(store, "script"))


def forked() -> bytes:
    """A fork with the records of its parent in front of its own, and a large value on either side."""
    store = open_store("memory:")
    turns = [{"calls": [{"name": "look", "arguments": {"at": at}}]} for at in ("north", "south")]
    Agent(model=ScriptedModel([*turns, {"text": "Seen."}]), tools=[look]).run_sync("Look.", store=store, run_id="parent")
    begun = next(record.position for record in store.read("parent") if record.type == "tool_results_injected")
    fork = Agent(model=ScriptedModel([turns[1], {"text": "Seen otherwise."}]), tools=[look])
    fork.fork_sync("parent", begun, store=store, new_id="fork")
    return b"".join(export_lines(store, "fork"))


@cache
def sources() -> tuple[bytes, ...]:
    return (*((LOGS / f"{name}.jsonl").read_bytes() for name in GOLDEN), in_every_script(), forked())


@cache
def script() -> ModuleType:
    """The checker that shares no code with refold."""
    spec = importlib.util.spec_from_file_location("verify_export", Path(__file__).parents[2] / "examples" / "verify_export.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


# -- what can be done to a file


Mutation = Callable[[random.Random, bytes], bytes]


def at_a_byte(change: Callable[[random.Random, bytes, int], bytes]) -> Mutation:
    return lambda rng, data: change(rng, data, rng.randrange(len(data)))


def of_lines(change: Callable[[random.Random, list[bytes], int], None]) -> Mutation:
    def mutation(rng: random.Random, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        change(rng, lines, rng.randrange(len(lines)))
        return b"".join(lines)

    return mutation


def in_text(old: bytes, new: bytes) -> Mutation:
    """One place where `old` stands, replaced."""

    def mutation(rng: random.Random, data: bytes) -> bytes:
        places = [n for n in range(len(data)) if data.startswith(old, n)]
        place = rng.choice(places) if places else 0
        return data[:place] + new + data[place + len(old) * bool(places) :]

    return mutation


def swap(rng: random.Random, lines: list[bytes], n: int) -> None:
    m = rng.randrange(len(lines))
    lines[n], lines[m] = lines[m], lines[n]


def set_line(change: Callable[[random.Random, bytes], bytes]) -> Mutation:
    return of_lines(lambda rng, lines, n: lines.__setitem__(n, change(rng, lines[n])))


def number(text: bytes) -> Mutation:
    return in_text(b'"position":', b'"position":' + text + b',"was":')


NESTED = b"[" * 100_000
MUTATIONS: dict[str, Mutation] = {
    "a bit": at_a_byte(lambda rng, data, n: data[:n] + bytes([data[n] ^ 1 << rng.randrange(8)]) + data[n + 1 :]),
    "a byte": at_a_byte(lambda rng, data, n: data[:n] + bytes([rng.randrange(256)]) + data[n + 1 :]),
    "a byte less": at_a_byte(lambda rng, data, n: data[:n] + data[n + 1 :]),
    "a byte more": at_a_byte(lambda rng, data, n: data[:n] + rng.choice([b"\0", b" ", b"\n", b'"', b"}", b"\xff", b"0"]) + data[n:]),
    "a slice less": at_a_byte(lambda rng, data, n: data[:n] + data[n + rng.randrange(1, 400) :]),
    "a slice twice": at_a_byte(lambda rng, data, n: data[:n] + data[max(0, n - rng.randrange(1, 400)) :]),
    "cut": at_a_byte(lambda rng, data, n: data[:n]),
    "the beginning cut": at_a_byte(lambda rng, data, n: data[n:]),
    "a line less": of_lines(lambda rng, lines, n: lines.pop(n)),
    "lines less": of_lines(lambda rng, lines, n: lines.__delitem__(slice(n, n + rng.randrange(1, 5)))),
    "the end less": of_lines(lambda rng, lines, n: lines.__delitem__(slice(n, None))),
    "a line twice": of_lines(lambda rng, lines, n: lines.insert(rng.randrange(len(lines)), lines[n])),
    "two lines swapped": of_lines(swap),
    "lines shuffled": of_lines(lambda rng, lines, n: rng.shuffle(lines)),
    "a line reversed": set_line(lambda rng, line: line[::-1]),
    "a line joined to the next": set_line(lambda rng, line: line.rstrip(b"\n")),
    "a blank line": set_line(lambda rng, line: line + b"\n"),
    "a line of null bytes": set_line(lambda rng, line: b"\0" * len(line) + b"\n"),
    "a huge line": set_line(lambda rng, line: b'{"x":"' + b"x" * 1_000_000 + b'"}\n'),
    "a line ended otherwise": set_line(lambda rng, line: line[:-1] + rng.choice([b"\r\n", b"\r", b"\x0b", b"\xe2\x80\xa8", b" \n", b"\0\n"])),
    "all lines ended otherwise": lambda rng, data: data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\n"])),
    "a record written again": set_line(lambda rng, line: json.dumps(json.loads(line), ensure_ascii=rng.random() < 0.5).encode() + b"\n"),
    "a field more": in_text(b',"type":', b',"more":1,"type":'),
    "a field twice": in_text(b',"v":1', b',"v":1,"v":1'),
    "a field of another kind": in_text(b'"v":1', b'"v":"1"'),
    "a field of another case": in_text(b'"data":', b'"Data":'),
    "white space": in_text(b":", b": "),
    "a huge number": number(b"9" * 5_000),
    "a number beyond all": number(b"1e400"),
    "a fraction": number(b"1.0"),
    "no number": number(b"NaN"),
    "a number below": number(b"-1"),
    "deep nesting": in_text(b'"data":{', b'"data":{"deep":' + NESTED + b"]" * 100_000 + b","),
    "nesting without an end": in_text(b'"data":{', b'"data":' + NESTED),
    "a line of nesting": set_line(lambda rng, line: NESTED + b"\n"),
    "half a character": in_text(b'"type":"', b'"type":"\\ud800'),
    "a reference to nothing": in_text(b'"data":{', b'"data":{"more":{"$payload":"' + b"x" * 43 + b'","size":9},'),
    "a reference that is none": in_text(b'"data":{', b'"data":{"more":{"$payload":["x"],"size":{}},'),
    "a payload more": set_line(lambda rng, line: b'{"payload":"' + b"x" * 43 + b'","value":1}\n' + line),
    "another's digest": of_lines(lambda rng, lines, n: lines.__setitem__(n, lines[n][:-46] + lines[rng.randrange(len(lines))][-46:])),
    "UTF-16": lambda rng, data: data.decode().encode(rng.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32"])),
    "a byte order mark": lambda rng, data: b"\xef\xbb\xbf" + data,
    "Latin-1": lambda rng, data: data.decode().encode(rng.choice(["latin-1", "cp437", "ascii"]), rng.choice(["replace", "ignore", "xmlcharrefreplace"])),
    "another file behind it": lambda rng, data: data + rng.choice(sources()),
    "itself behind it": lambda rng, data: data * 2,
    "nothing": lambda rng, data: rng.choice([b"", b"\n", b" ", b"\0", b"null", b"null\n", b"[]\n", b"{}\n", b'{"payload":"\n', b"\xff\xfe"]),
    "noise": lambda rng, data: rng.randbytes(rng.randrange(1, 2_000)),
}


def mutants(count: int) -> list[tuple[str, bytes, bytes]]:
    """So many files that differ from what they were made of: what was done, the file, and the one it was."""
    rng, made = random.Random(count), []
    names = list(MUTATIONS)
    while len(made) < count:
        name, source = names[len(made) % len(names)], rng.choice(sources())
        data = MUTATIONS[name](rng, source)
        while rng.random() < 0.2 and data:
            data = rng.choice([MUTATIONS["a bit"], MUTATIONS["cut"], MUTATIONS["a byte less"]])(rng, data)
        if data == source:
            names[len(made) % len(names)] = "a bit"  # this one cannot be done to every file
        else:
            made.append((name, data, source))
            names = list(MUTATIONS)
    return made


# -- what must come of it


def judged(data: bytes) -> Export:
    """A file as every reader of it sees it. Whatever they raise beyond what they say they raise ends the test."""
    export = parse(data, "mutant.jsonl")
    verified, audit = export.verify(), export.audit()
    assert (audit.chain.ok, audit.chain.broken_at) == (verified.ok, verified.broken_at)
    assert audit.ok <= verified.ok
    assert (verified.broken_at is None) == verified.ok
    msgspec.json.encode((audit, verified, export.check(head="x" * 43)))
    try:
        derived = replay_rows(export.run_id, export.rows, export.load)
    except UnsupportedEngine:
        pass
    else:
        assert derived.divergence is None or msgspec.json.encode(derived.divergence)
    try:
        import_file(open_store("memory:"), export)
        imported = True
    except DamagedFile:
        imported = False
    assert imported == verified.ok
    return export


def the_script_agrees(data: bytes, export: Export) -> None:
    verified, broken_at, said = export.verify(), None, ""
    try:
        said = script().verify(data)
    except script().Broken as broken:
        broken_at, said = broken.position, broken.why
    assert (broken_at is None, broken_at) == (verified.ok, verified.broken_at), (verified.why, said)
    if verified.ok:
        assert said.startswith(f"{verified.events} records, whole; the head is {verified.head}")


def check(mutants: list[tuple[str, bytes, bytes]]) -> int:
    """Judge them all; gives how many passed the chain: those that were cut between two records, and nothing else."""
    passed = 0
    for name, data, source in mutants:
        export = judged(data)
        the_script_agrees(data, export)
        if export.verify().ok:
            passed += 1
            head = read_line(source.splitlines()[-1]).digest
            assert source.startswith(data), name
            assert not export.check(head=head).ok, name
    return passed


def test_what_was_not_changed_passes_everywhere() -> None:
    for source in sources():
        export = judged(source)
        the_script_agrees(source, export)
        assert export.verify().ok


def test_no_file_that_was_changed_passes_and_none_is_too_much() -> None:
    assert check(mutants(2 * len(MUTATIONS))) > 0


@pytest.mark.slow
def test_ten_thousand_changed_files_each_get_a_verdict() -> None:
    assert check(mutants(10_000)) < 1_000


def test_the_command_line_gives_a_verdict_and_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # given one file for each thing that can be done to it
    monkeypatch.chdir(tmp_path)
    for name, data, _ in mutants(len(MUTATIONS)):
        Path("mutant.jsonl").write_bytes(data)
        for words in (["verify"], ["verify", "--json"], ["audit"], ["audit", "--json"], ["replay"], ["replay", "--json"], ["import", "--store", "memory:"]):
            # when it is read, then something is found, or it was cut between two records
            code = perform([words[0], "mutant.jsonl", *words[1:]])
            _, err = capsys.readouterr()
            assert code in ((0, 2) if words[0] == "import" else (0, 1)), (name, words, err)
            assert "error of its own" not in err, (name, words, err)
            assert len(err.splitlines()) <= 1


# -- strangers' files, whose chain is made anew


ODD: list[Any] = [None, True, False, 0, 1, 2, -1, 2**63, 2**70, 10**30, 1.5, 1e300, [], {}, [[]], {"a": 1}, ["x"], ["t1.1", "t1.1"]]
ODD += ["", "x", "\0", "t1.1", "t9.9", "0", "9" * 400, "1e999999999", "-5", "NaN", "idle", "🌡", "x" * 5_000, "2030-13-01", "0001-01-01T00:00:00+14:00"]
ODD += [json.loads("[" * 200 + "]" * 200), "[" * 5_000, '{"at":"north"}', "read", "side_effect", "success", "in_doubt", "max_turns", "cancelled"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inside for found in places(item, (*path, key)))]


def at_place(value: Any, path: Iterable[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def spoil(rng: random.Random, records: list[dict[str, Any]]) -> None:
    """Change, or take away, one value of one record: mostly to one of its kind, of those that are odd or that stand elsewhere."""
    record, other = rng.choice(records), rng.choice(records)
    *inside, last = rng.choice(places(record)[1:])
    holder = at_place(record, inside)
    if rng.random() < 0.1:
        del holder[last]
        return
    found = [*ODD, *(at_place(other, path) for path in places(other))]
    alike = [each for each in found if type(each) is type(holder[last]) and each != holder[last]]
    holder[last] = json.loads(json.dumps(rng.choice(alike if alike and rng.random() < 0.9 else found)))


def forged(rng: random.Random, source: bytes) -> bytes:
    """A file in which something is otherwise, and every digest behind it is right."""
    parsed = [json.loads(line) for line in source.splitlines()]
    records = [each for each in parsed if "payload" not in each]
    payloads = {json.loads(line)["payload"]: line + b"\n" for line in source.splitlines() if line.startswith(b'{"payload"')}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        spoil(rng, records)
    if rng.random() < 0.1:
        records.insert(rng.randrange(len(records)), json.loads(json.dumps(rng.choice(records))))
    if rng.random() < 0.1:
        del records[rng.randrange(len(records))]
    made, before = [], Digest("")
    shift = rng.random() < 0.9
    for position, record in enumerate(records, 1):
        record.pop("digest", None)
        if shift and "position" in record and "batch" in record:
            begins = record["batch"] == record["position"]
            record["position"] = position
            record["batch"] = position if begins or not made else records[position - 2].get("batch", position)
        stored, before = close(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(), before)
        made += [payloads.pop(digest) for digest in _named(record.get("data")) if digest in payloads]
        made.append(stored + b"\n")
    return b"".join(made)


def _named(data: Any) -> list[str]:
    """The payloads that a record names, in order."""
    try:
        return list(dict.fromkeys(references(json.dumps(data).encode())))
    except TypeError:
        return []


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_file_that_was_forged_with_a_right_chain_is_judged_and_never_too_much(count: int) -> None:
    rng = random.Random(count)
    for _ in range(count):
        data = forged(rng, rng.choice(sources()))
        judged(data)


@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_no_command_fails_by_itself_on_a_strangers_run(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(count)
    taken_in = 0
    for n in range(count):
        # given a forged run, where import takes it
        store = open_store(f"sqlite:///{n}.db?synchronous=NORMAL")
        try:
            run_id = import_file(store, parse(forged(rng, rng.choice(sources())), "forged"))
        except (DamagedFile, UnsupportedEngine):
            continue
        finally:
            store.close()
        taken_in += 1
        for words in WORDS:
            # when something is done with it, then that is done, or one line says why not
            code = perform([word.replace("RUN", run_id) for word in words] + ["--store", f"sqlite:///{n}.db"])
            _, err = capsys.readouterr()
            assert code in CODES, (words, err)
            assert "error of its own" not in err, (words, err)
    assert taken_in > count // 10


CODES = (exits.COMPLETED, exits.FOUND, exits.USAGE, exits.WAITING, exits.STOPPED, exits.UNAVAILABLE)
WORDS = [
    ["show", "RUN"],
    ["show", "RUN", "--json"],
    ["show", "RUN", "--at", "6"],
    ["show", "RUN", "--prompt"],
    ["log", "RUN"],
    ["log", "RUN", "--json"],
    ["diff", "RUN", "RUN"],
    ["runs"],
    ["doctor"],
    ["diagram", "RUN"],
    ["export", "RUN"],
    ["verify", "RUN"],
    ["audit", "RUN"],
    ["replay", "RUN"],
    ["replay", "RUN", "--set", "budgets.max_turns=1"],
    ["fork", "RUN", "--at", "6", "--model", "offline", "--no-input"],
    ["say", "RUN", "Hello?"],
    ["approve", "RUN"],
    ["answer", "RUN", "Blue."],
    ["deny", "RUN"],
    ["cancel", "RUN"],
    ["show", "RUN"],
    ["replay", "RUN"],
]
