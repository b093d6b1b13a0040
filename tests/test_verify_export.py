"""The checker that shares no code with refold: what it says of seals and heads, what it prints, and that old Pythons can read it."""

import ast
import base64
import hashlib
import json
import random
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from refold import Agent, ScriptedModel, open_store, show
from refold.runtime.cli.main import perform
from refold.runtime.sealing import new_key, public
from refold.runtime.transfer import export_lines, parse

SCRIPT = Path(__file__).parents[1] / "examples" / "verify_export.py"
GOLDEN = Path(__file__).parent / "logs" / "v2" / "sealed.jsonl"
KEY = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n"


def verify(folder: Path, *words: str) -> tuple[int, str]:
    """What the script exits with and prints, run by itself in a folder, without anything that is installed."""
    done = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_it_needs_nothing_but_an_old_python() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


def test_it_says_in_one_line_what_is_whole_and_what_is_not(tmp_path: Path) -> None:
    # given a sealed file, one that was cut, one that was changed, and the public key
    lines = GOLDEN.read_bytes().splitlines(keepends=True)
    for name, data in (("whole", lines), ("cut", lines[:-1]), ("changed", [*lines[:4], lines[4].replace(b"1", b"2", 1), *lines[5:]])):
        (tmp_path / name).write_bytes(b"".join(data))
    (tmp_path / "key").write_text(KEY)
    head = parse(GOLDEN.read_bytes(), "sealed").verify().head
    # then each gets its line and its exit code
    code, said = verify(tmp_path, "whole", "--key", "key", "--head", head)
    assert (code, said.count("\n"), "signature ok" in said) == (0, 1, True)
    assert "not checked" in verify(tmp_path, "whole")[1]
    assert verify(tmp_path, "cut")[0] == 0
    for words in (("cut", "--key", "key"), ("cut", "--head", head), ("changed",)):
        code, said = verify(tmp_path, *words)
        assert (code, said.count("\n")) == (1, 1), words
    assert "position 5" in said
    # and what cannot be read is said, too
    assert verify(tmp_path, "nothing") == (2, "")
    assert verify(tmp_path, "whole", "--key", "whole") == (2, "")


# -- the fields of a record

VALUES = ("null", "true", "-1", "1.5", '"x"', "[]", "[[]]", "{}")
"""One of each kind, and what cannot be a key of a table."""
ELSEWHERE = ("type", "v", "data", "call")
"""Fields of which refold knows more than what they are made of: which facts there are, and what is in each."""
FEW = [("forked-call", "run_started"), ("forked-call", "run_forked"), ("forked-call", "tool_started"), ("sealed", "sealed")]


def mutants(line: bytes) -> Iterator[tuple[str, bytes]]:
    """A record with one of its fields of every other kind, missing, or there twice; and with each that it does not have."""
    fields = {name: json.dumps(value, ensure_ascii=False, separators=(",", ":")) for name, value in json.loads(line).items()}

    def written(pairs: Iterable[tuple[str, str]]) -> bytes:
        return ("{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}").encode()

    assert written(fields.items()) == line
    for name in (*fields, *({"stepped_back_us", "turn", "call", "more"} - fields.keys())):
        yield name, written((each, value) for each, value in fields.items() if each != name)
        for other in VALUES:
            yield name, written((({} if name in fields else {name: ""}) | fields | {name: other}).items())
            yield name, written(((name, other), *fields.items()))


def chained(lines: list[bytes]) -> list[bytes]:
    """The same records with digests made anew, as whoever can write the whole file would."""
    made, before = [], b""
    for line in lines:
        body, mark, _ = line.rpartition(b',"digest":"')
        if mark and not line.startswith(b'{"payload"'):
            before = base64.urlsafe_b64encode(hashlib.sha256(before + body).digest()).rstrip(b"=")
            made.append(body + mark + before + b'"}')
        else:
            made.append(line)
    return made


def agree_on_fields(name: str, of_type: str | None) -> None:
    script = runpy.run_path(str(SCRIPT))
    lines = (GOLDEN.parent / f"{name}.jsonl").read_bytes().splitlines()
    places = [place for place, line in enumerate(lines) if not line.startswith(b'{"payload"') and of_type in (None, json.loads(line)["type"])]
    for place in places if of_type is None else places[:1]:
        line = lines[place]
        for field, mutant in mutants(line):
            changed = [*lines[:place], mutant, *lines[place + 1 :]]
            for anew in (False, True):
                data = b"".join(each + b"\n" for each in (chained(changed) if anew else changed))
                verified = parse(data, name).verify()
                try:
                    script["verify"](data)
                    told = (True, None)
                except script["Broken"] as broken:
                    told = (False, broken.position)
                beyond = anew and field in ELSEWHERE and told == (True, None)
                assert beyond or told == (verified.ok, verified.broken_at), (name, place, field, mutant, verified.why)


@pytest.mark.parametrize(("name", "of_type"), FEW)
def test_a_field_of_any_kind_gets_the_verdict_that_refold_gives(name: str, of_type: str) -> None:
    agree_on_fields(name, of_type)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forked-call", "large-result", "sealed"])
def test_every_field_of_every_record_gets_the_verdict_that_refold_gives(name: str) -> None:
    agree_on_fields(name, None)


def test_a_digest_may_begin_with_a_hyphen_and_what_is_none_is_refused(tmp_path: Path) -> None:
    # given a file with a record whose digest begins so
    found = {
        json.loads(line)["digest"]: path for path in sorted(GOLDEN.parent.glob("*.jsonl")) for line in path.read_bytes().splitlines() if b'"digest":"-' in line
    }
    head, path = next(iter(found.items()))
    # then it is found, however it is typed, and one that is not there is not
    for words in ((str(path), "--head", head), ("--head", head, str(path)), (str(path), f"--head={head}")):
        code, said = verify(tmp_path, *words)
        assert (code, "came after the head that was given" in said) == (0, True), words
    assert verify(tmp_path, str(path), "--head", "-" * 43)[0] == 1
    # and what is no digest is refused in one line, as refold refuses it
    for words in (("--head=nonsense",), ("--head", "nonsense"), ("--head", "-x"), ("--head",), ("--head=",)):
        assert verify(tmp_path, str(path), *words) == (2, "")
        assert perform(["verify", str(path), *words]) == 2


def test_it_judges_seals_as_refold_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="the cryptography package is not installed")
    script = runpy.run_path(str(SCRIPT))
    # given files that were sealed by one, by two, by nobody, and one whose signature was changed and chained again
    store = open_store("memory:")
    for name in ("ann", "bob"):
        new_key(tmp_path / name)
    for run_id, names in (("none", ""), ("one", "ann"), ("two", "ann bob"), ("back", "bob ann")):
        Agent(model=ScriptedModel([{"text": "Done."}])).run_sync("Do it.", store=store, run_id=run_id)
        for name in names.split():
            store.seal_sync(run_id, key=tmp_path / name)
        (tmp_path / f"{run_id}.jsonl").write_bytes(b"".join(export_lines(store, run_id)))
    # when both check them against either key, both and another head
    for run_id in ("none", "one", "two", "back"):
        for keys in ((), ("ann",), ("bob",), ("ann", "bob")):
            for head in (None, show(store, "one", 3)["head"]):
                words = [word for key in keys for word in ("--key", str(tmp_path / f"{key}.pub"))] + (
                    [f"--head={head}"] if head else []
                )  # a digest may begin with a hyphen
                checked = parse((tmp_path / f"{run_id}.jsonl").read_bytes(), run_id).check([public(tmp_path / f"{key}.pub") for key in keys], head)
                # then they agree
                code, said = script["main"]([str(tmp_path / f"{run_id}.jsonl"), *words]), capsys.readouterr().out
                assert code == (0 if checked.ok else 1), (run_id, words, said)
                assert not checked.ok or said.count("signature ok") == sum(seal.verdict == "ok" for seal in checked.seals)


def test_its_arithmetic_says_what_the_library_says(tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519", reason="the cryptography package is not installed")
    from cryptography.exceptions import InvalidSignature

    # given a signature, and the same with one bit of it, of the message or of the key flipped
    script = runpy.run_path(str(SCRIPT))
    rng, made = random.Random(5), ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    message = b"refold seal 1\nrun\n7\nhead\n"
    honest = (made.public_key().public_bytes_raw(), message, made.sign(message))
    assert script["ed25519"](*honest)
    for _ in range(60):
        parts = [bytearray(part) for part in honest]
        part = rng.choice(parts)
        part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
        key, changed, signature = map(bytes, parts)
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, changed)
            good = True
        except (InvalidSignature, ValueError):
            good = False
        # then both refuse it, as both do what is too short or too long
        assert script["ed25519"](key, changed, signature) == good
    assert not any(script["ed25519"](honest[0], message, signature) for signature in (b"", honest[2][:-1], honest[2] + b"x"))
