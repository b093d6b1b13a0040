#!/usr/bin/env python3
"""Checks an exported run of refold with nothing but Python 3.9 or later: no package, no store, no network.

    python verify_export.py FILE [--head DIGEST] [--key PUBLIC.pem]...

FILE may be - for standard input. Prints one line. Exits 0 where the file is whole, 1 where it is not, 2 where it cannot be read.
It shares no code with refold: it was written from the description of the file, events/EXPORT.md, so that the two can be held against each other.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

STATES = {"idle", "streaming_model", "collecting_tool_requests", "executing_tools", "injecting_tool_results", "done"}
FIELDS = {"run": str, "position": int, "batch": int, "type": str, "v": int, "at": int, "driver": str, "from": str, "to": str}
OPTIONAL = {"stepped_back_us": (int,), "turn": (int,), "call": (str, type(None)), "digest": (str,)}
KINDS = {**{name: (kind,) for name, kind in FIELDS.items()}, **OPTIONAL}


class Broken(Exception):
    """The file is not whole: at which position (None where that cannot be said) and why."""

    def __init__(self, why: str, position: int | None = None) -> None:
        super().__init__(why)
        self.why, self.position = why, position


# -- lines


class File:
    """What was read so far: the records, and payloads by digest. `loose` are those that no record has named yet."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.payloads: dict[str, int] = {}
        self.loose: list[str] = []

    def read(self, data: bytes) -> None:
        """Every line of a file. Raises Broken at the first that does not fit."""
        *lines, tail = data.split(b"\n")
        try:
            for line in lines:
                if line.startswith(b'{"payload":"'):
                    self._payload(line)
                else:
                    self._record(line)
            if tail:
                raise Broken("the last line does not end with a line feed")
            if self.loose:
                raise Broken("no record names the payload " + self.loose[0])
            if not self.records:
                raise Broken("there are no records")
        except Broken as broken:
            raise Broken(broken.why, len(self.records) + 1) from None

    def _payload(self, line: bytes) -> None:
        """`{"payload":"DIGEST","value":VALUE}`, where the digest is that of the bytes of the value."""
        digest, mark, rest = line[len(b'{"payload":"') :].partition(b'","value":')
        value = rest[:-1]
        if not mark or rest[-1:] != b"}" or digest_of(value).encode() != digest:
            raise Broken("a payload is not what its digest says")
        name = digest.decode()
        if name in self.payloads:
            raise Broken("the same payload twice")
        self.payloads[name] = len(value)
        self.loose.append(name)

    def _record(self, line: bytes) -> None:
        record = parsed(line)
        before = self.records[-1] if self.records else None
        check_digest(line, record, before)
        if record["position"] != len(self.records) + 1:
            raise Broken("the record calls itself {}".format(record["position"]))
        self._check_payloads(record)
        check_batch(record, before)
        if record["type"] == "sealed" and not all(isinstance(record["data"].get(name), str) for name in ("algorithm", "key", "signature")):
            raise Broken("it is no seal")
        self.records.append(record)

    def _check_payloads(self, record: dict[str, Any]) -> None:
        """New payloads stand directly before the record that names them first, in that order."""
        named: list[str] = []
        for reference in references(record["data"]):
            digest = reference["$payload"]
            if not isinstance(digest, str) or digest not in self.payloads:
                raise Broken("it names a payload that does not stand before it")
            size = reference.get("size")
            if type(size) is not int or size != self.payloads[digest]:
                raise Broken("the payload " + digest + " has another size")
            if digest in self.loose and digest not in named:
                named.append(digest)
        if named != self.loose:
            raise Broken("the payloads before it are not those that it is the first to name")
        self.loose = []


def parsed(line: bytes) -> dict[str, Any]:
    """A record as JSON, with fields of the right kinds, each time that one is there."""
    fields: list[tuple[str, Any]] = []

    def kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields[:] = pairs  # those of the record itself come last
        return dict(pairs)

    try:
        record = json.loads(line.decode("utf-8"), parse_constant=refuse, object_pairs_hook=kept)
        if b"\\u" in line:
            json.dumps(record, ensure_ascii=False).encode("utf-8")  # half a character, as JSON can spell it, is none
    except (ValueError, RecursionError) as error:
        raise Broken("it is no record") from error
    if not isinstance(record, dict) or not FIELDS.keys() <= record.keys() or not isinstance(record.get("data"), dict):
        raise Broken("it is no record")
    if not all(type(value) in KINDS.get(name, (type(value),)) and (name not in ("from", "to") or value in STATES) for name, value in fields):
        raise Broken("it is no record")
    return record


def refuse(name: str) -> None:
    raise ValueError(name + " is no JSON")


def references(value: Any) -> list[dict[str, Any]]:
    """Every object with the key `$payload`, in order. One level after the other, so that no depth is too much."""
    found: list[dict[str, Any]] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict) and "$payload" in item:
            found.append(item)
        elif isinstance(item, (dict, list)):
            waiting.extend(reversed(list(item.values()) if isinstance(item, dict) else item))
    return found


# -- the chain


def digest_of(data: bytes) -> str:
    """SHA-256 as base64url without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def check_digest(line: bytes, record: dict[str, Any], before: dict[str, Any] | None) -> None:
    """The digest is the last field and covers the digest of the record before, then this record's bytes up to it."""
    body, mark, rest = line.rpartition(b',"digest":"')
    digest = digest_of((before["digest"] if before else "").encode() + body)
    if not mark or rest != digest.encode() + b'"}' or record.get("digest") != digest:
        raise Broken("its digest does not cover its bytes and the record before")


def check_batch(record: dict[str, Any], before: dict[str, Any] | None) -> None:
    """A batch is some records in a row with one stamp; time does not go back; a run follows on itself or, where it was forked, on its parent."""
    begins = record["batch"] == record["position"]
    if before is None:
        if not begins:
            raise Broken("the first record belongs to another batch")
        return
    if not begins:
        same = ("batch", "run", "at", "driver")
        if any(record[name] != before[name] for name in same) or record.get("stepped_back_us", 0) != before.get("stepped_back_us", 0):
            raise Broken("it is of another batch than the record before, or has another stamp")
    if record["at"] < before["at"]:
        raise Broken("it is earlier than the record before")
    forked = record["type"] == "run_forked" and record["data"].get("parent") == before["run"]
    if record["run"] != before["run"] and not forked:
        raise Broken("it is of another run than the record before")
    if record["run"] == before["run"] and record["type"] == "run_forked":
        raise Broken("a fork begins in the middle of its own stream")


# -- seals


def check_seals(records: list[dict[str, Any]], keys: dict[str, bytes]) -> list[str]:
    """What is to be said of each seal. With keys, each of them must have signed, and only seals may stand behind the last signature."""
    words, good = [], {}
    for place, record in enumerate(records):
        if record["type"] != "sealed":
            continue
        key = record["data"]["key"]
        if key in keys:
            head = records[place - 1]["digest"] if place else ""
            if not signed(record["data"], keys[key], [record["run"], str(place), head]):
                raise Broken("the seal is not what key " + key + " signed", place + 1)
            good[key] = place + 1
        verdict = "which was not checked" if not keys else "signature ok" if key in keys else "by an unknown key"
        words.append(f"sealed at {place + 1}, {verdict}")
    for key in keys:
        if key not in good:
            raise Broken("there is no seal of key " + key)
    behind = [record["position"] for record in records[max(good.values()) :] if record["type"] != "sealed"] if keys else []
    if behind:
        raise Broken("it is behind the last seal: nobody signed it", behind[0])
    return words


def signed(seal: dict[str, Any], key: bytes, covered: list[str]) -> bool:
    """Whether a seal signs these: the run, the position of the record before the seal, and its digest."""
    text = seal["signature"]
    try:
        signature = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return False
    exact = base64.urlsafe_b64encode(signature).rstrip(b"=").decode() == text
    message = "".join(line + "\n" for line in ["refold seal 1", *covered])
    return exact and seal["algorithm"] == "ed25519" and ed25519(key, message.encode(), signature)


P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
Point = tuple[int, int, int, int]


def ed25519(key: bytes, message: bytes, signature: bytes) -> bool:
    """Verifies a signature as in RFC 8032, section 5.1.7."""
    s = int.from_bytes(signature[32:], "little")
    a, r = point(key), point(signature[:32])
    base = point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    if len(signature) != 64 or s >= ORDER or a is None or r is None or base is None:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    left, right = times(s, base), add(r, times(h, a))
    return (left[0] * right[2] - right[0] * left[2]) % P == 0 and (left[1] * right[2] - right[1] * left[2]) % P == 0


def point(data: bytes) -> Point | None:
    """The point of the curve that 32 bytes stand for, in extended coordinates."""
    number = int.from_bytes(data, "little")
    y, odd = number & (2**255 - 1), number >> 255
    if len(data) != 32 or y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and odd):
        return None
    x = P - x if x & 1 != odd else x
    return (x, y, 1, x * y % P)


def add(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def times(factor: int, p: Point) -> Point:
    made = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            made = add(made, p)
        p, factor = add(p, p), factor >> 1
    return made


def public_key(name: str) -> tuple[str, bytes]:
    """The id and the 32 bytes of a public key in PEM. Raises ValueError."""
    lines = [line.strip() for line in Path(name).read_text(encoding="ascii").splitlines() if line.strip()]
    if lines[:1] != ["-----BEGIN PUBLIC KEY-----"] or lines[-1:] != ["-----END PUBLIC KEY-----"]:
        raise ValueError(name + " is no public key in PEM")
    der = base64.b64decode("".join(lines[1:-1]), validate=True)
    if len(der) != 44 or der[:12] != binascii.unhexlify("302a300506032b6570032100"):
        raise ValueError(name + " is no Ed25519 key")
    return digest_of(der), der[12:]


# -- the verdict


def verify(data: bytes, head: str | None = None, keys: dict[str, bytes] | None = None) -> str:
    """What is to be said of a file that is whole; `keys` by id. Raises Broken."""
    file = File()
    file.read(data)
    digests = [record["digest"] for record in file.records]
    words = [f"{len(digests)} records, whole; the head is {digests[-1]}", *check_seals(file.records, keys or {})]
    if head is not None:
        if head not in digests:
            raise Broken("no record has the digest " + head)
        words.append(f"{len(digests) - 1 - digests.index(head)} came after the head that was given")
    return "; ".join(words)


def with_values(words: list[str]) -> list[str]:
    """Options and their values in one word each: a digest may begin with a hyphen, and is no option."""
    rest = iter(words)
    return [f"{word}={next(rest, '')}" if word in ("--head", "--key") else word for word in rest]


def main(words: list[str] | None = None) -> int:
    usage = argparse.ArgumentParser(description="Checks an exported run of refold.")
    usage.add_argument("file", help="the file; - is standard input")
    usage.add_argument("--head", help="a digest that must be among its records")
    usage.add_argument("--key", action="append", default=[], help="a public key (Ed25519, PEM) that must have sealed it")
    given = usage.parse_args(with_values(sys.argv[1:] if words is None else words))
    if given.head is not None and not re.fullmatch("[A-Za-z0-9_-]{43}", given.head):
        print(f"--head {given.head}: a digest has 43 characters", file=sys.stderr)
        return 2
    try:
        keys = dict(public_key(name) for name in given.key)
        data = sys.stdin.buffer.read() if given.file == "-" else Path(given.file).read_bytes()
    except (OSError, ValueError) as error:
        print(f"cannot be read: {error}", file=sys.stderr)
        return 2
    try:
        said = verify(data, given.head, keys)
    except Broken as broken:
        place = f"broken at position {broken.position}: " if broken.position else ""
        print(f"{given.file}: {place}{broken.why}")
        return 1
    print(f"{given.file}: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
