"""Seals: the head of an ended run, signed with Ed25519, so that whoever has the public key notices when records are missing at its end.

Apart from the store and the files, because this is the door to `cryptography`, an extra that is loaded when a key is used and not before.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from refold.events import facts as f
from refold.events.chain import NOTHING, digest_of, sealed_message
from refold.events.codec import Unreadable, read, read_line
from refold.events.lineage import history
from refold.events.payloads import Load
from refold.events.storage import Log
from refold.events.words import Digest, RunId
from refold.fsm.audit import Verified, verify_rows
from refold.fsm.replay import Stored
from refold.projections.run import Run
from refold.runtime.journal import Journal, loader

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM: Final = "ed25519"
Key: TypeAlias = str | os.PathLike[str] | bytes
"""The path of a PEM file, or its contents."""
SEALS_MAX: Final = 100
"""How many seals in a row are looked through for that of one key."""
Word = Literal["ok", "bad", "unknown key", "not checked"]


class SealError(ValueError):
    """A seal that cannot be made, or a key that cannot be used: one line."""


class NotEnded(SealError):
    """A run that is going on has no end that could be sealed."""


# -- keys


class Public:
    """Who a seal is held against. `id` is the SHA-256 of the DER form of the key, as base64url without padding."""

    def __init__(self, key: "Ed25519PublicKey") -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self.id = digest_of(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        self._key = key

    def made(self, sealed: f.Sealed, run_id: RunId, position: int, head: Digest) -> bool:
        """Whether this is a seal of this key over the records up to `position`."""
        from cryptography.exceptions import InvalidSignature

        signature = _bytes_of(sealed.signature)
        if sealed.algorithm != ALGORITHM or sealed.key != self.id or signature is None:
            return False
        try:
            self._key.verify(signature, sealed_message(run_id, position, head))
        except InvalidSignature:
            return False
        return True


class Private:
    """Who seals: an unencrypted Ed25519 key in PEM. Raises SealError for anything else. The key itself is never shown, logged or stored."""

    def __init__(self, key: Key) -> None:
        self._key = _private(key)
        self.public = Public(self._key.public_key())

    def seal(self, run_id: RunId, position: int, head: Digest) -> f.Sealed:
        """The seal over the records up to `position`."""
        signature = self._key.sign(sealed_message(run_id, position, head))
        return f.Sealed(algorithm=ALGORITHM, key=self.public.id, signature=_text_of(signature))


def _private(key: Key) -> "Ed25519PrivateKey":
    _installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data, name = _read(key)
    if b"PUBLIC KEY" in data:
        raise SealError(f"{name} is a public key, and it takes the private one to seal")
    try:
        made = load_pem_private_key(data, password=None)
    except TypeError:
        raise SealError(f"{name} is protected by a passphrase: make a key for seals with refold seal --new-key FILE") from None
    except Exception:  # noqa: BLE001 - whatever a library thinks of bytes that are no key, and it may quote them
        raise SealError(f"{name} is no private key in PEM: make one with refold seal --new-key FILE") from None
    if not isinstance(made, Ed25519PrivateKey):
        raise SealError(f"{name} is a key of another kind: seals are made with Ed25519 (refold seal --new-key FILE)")
    return made


def public(key: Key) -> Public:
    """A public key in PEM. Raises SealError."""
    _installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data, name = _read(key)
    if b"PRIVATE KEY" in data:
        raise SealError(f"{name} is a private key: seals are checked with the public one, which refold seal --new-key wrote beside it")
    try:
        made = load_pem_public_key(data)
    except Exception:  # noqa: BLE001 - as above
        raise SealError(f"{name} is no public key in PEM") from None
    if not isinstance(made, Ed25519PublicKey):
        raise SealError(f"{name} is a key of another kind: seals are made with Ed25519")
    return Public(made)


def new_key(path: str | os.PathLike[str]) -> Public:
    """Make a key: the private half in a new file that only its owner may read, the public half beside it, with `.pub` at the end. Raises SealError."""
    _installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    name = os.fspath(path)
    _write(f"{name}.pub", key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
    try:
        _write(name, private, 0o600)
    except SealError:
        Path(f"{name}.pub").unlink()
        raise
    return Public(key.public_key())


def _installed() -> None:
    """Raises SealError where the extra is not."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401 - only whether it can be
    except ImportError:
        raise SealError("seals need the cryptography package: pip install 'refold[seal]'") from None


def _read(key: Key) -> tuple[bytes, str]:
    """What is in a key, and what to call it."""
    if isinstance(key, bytes):
        return key, "what was given"
    try:
        return Path(key).read_bytes(), f"the file {os.fspath(key)}"
    except (OSError, ValueError) as error:
        raise SealError(f"the key {os.fspath(key)} cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _write(name: str, data: bytes, mode: int) -> None:
    """A new file. Raises SealError where there is one."""
    try:
        with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    except FileExistsError:
        raise SealError(f"there is a file {name} already, and a key is never written over: give another name") from None
    except (OSError, ValueError) as error:
        raise SealError(f"the key {name} cannot be written ({getattr(error, 'strerror', None) or error})") from None


def _text_of(signature: bytes) -> str:
    return urlsafe_b64encode(signature).rstrip(b"=").decode("ascii")


def _bytes_of(text: str) -> bytes | None:
    """The signature in a seal, or None where the text is not exactly how one is written."""
    try:
        signature = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return signature if _text_of(signature) == text else None


# -- sealing


def seal(log: Log, run_id: str, private: Private) -> tuple[int, bool]:
    """Sign the head of an ended run; gives the position of the seal, and whether this key had signed that head before, so that nothing was appended.

    Raises NotEnded, UnknownRun, Unreadable where its chain is broken, and StoreUnavailable.
    """
    journal = Journal(log, run_id).load()
    verified = verify_rows(run_id, ((row.position, row.state) for row in history(log, run_id)), loader(log, run_id, many=True))
    if not verified.ok:
        raise Unreadable(f"its chain breaks at position {verified.broken_at}: {verified.why}")
    at: int | None = None

    def inputs(run: Run) -> tuple[f.Input, ...]:
        nonlocal at
        ended(run)
        at = _sealed_at(log, run, private)
        return (private.seal(run.id, run.position, run.head),) if at is None else ()

    journal.command_sync(inputs)
    return at or journal.run.position, at is not None


def ended(run: Run) -> None:
    """Raises NotEnded."""
    if run.ended is None:
        raise NotEnded(f"run {run.id} has not ended ({run.status}): a seal says that nothing is missing at the end")


def _sealed_at(log: Log, run: Run, private: Private) -> int | None:
    """Where this key has sealed the run, if nothing but seals came after it."""
    rows = log.read(run.id, max(0, run.position - SEALS_MAX - 1))
    for before, row in zip(reversed(rows[:-1]), reversed(rows), strict=False):
        if row.type != f.Sealed.TAG:
            return None
        sealed = read(row.state, loader(log, run.id, many=False)).fact
        if isinstance(sealed, f.Sealed) and private.public.made(sealed, run.id, before.position, read_line(before.state).digest):
            return row.position
    return None


# -- what a run is held against, beyond its chain


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """A seal at a position, which covers the records before it; `verdict` is what became of its signature."""

    position: int
    key: str
    verdict: Word


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A chain with its seals, and where a head that was known before is in it (`head_at`). `why` is one line where something is wrong."""

    ok: bool
    events: int
    broken_at: int | None
    head: Digest
    why: str
    seals: tuple[Seal, ...]
    head_at: int | None


def check(verified: Verified, rows: Sequence[Stored], load: Load, keys: Sequence[Public] = (), head: str | None = None) -> Checked:
    """Hold a run against public keys and a head. With keys each of them must have sealed it, and every record must be behind one of those seals."""
    holds = rows if verified.broken_at is None else rows[: verified.broken_at - 1]
    digests = [NOTHING, *(read_line(stored).digest for _, stored in holds)]
    seals = tuple(_seal(holds, digests, load, keys))
    head_at = digests.index(Digest(head)) if head in digests[1:] else None
    broken_at, why = verified.broken_at, verified.why
    if verified.ok:
        broken_at, why = _unsealed(holds, seals, keys)
        if not why and head is not None and head_at is None:
            why = f"no record has the digest {head}: records are missing at the end, or it is another run"
    return Checked(ok=not why, events=verified.events, broken_at=broken_at, head=verified.head, why=why, seals=seals, head_at=head_at)


def _seal(rows: Sequence[Stored], digests: Sequence[Digest], load: Load, keys: Sequence[Public]) -> list[Seal]:
    """Every seal among rows whose chain holds."""
    found: list[Seal] = []
    for position, stored in rows:
        line = read_line(stored)
        if line.type != f.Sealed.TAG:
            continue
        sealed = read(stored, load).fact
        assert isinstance(sealed, f.Sealed)
        word: Word = "not checked"
        if keys:
            key = next((key for key in keys if key.id == sealed.key), None)
            word = "unknown key" if key is None else "ok" if key.made(sealed, line.run, position - 1, digests[position - 1]) else "bad"
        found.append(Seal(position=position, key=sealed.key, verdict=word))
    return found


def _unsealed(rows: Sequence[Stored], seals: Sequence[Seal], keys: Sequence[Public]) -> tuple[int | None, str]:
    """The first thing that is wrong with the seals, and where."""
    bad = next((seal for seal in seals if seal.verdict == "bad"), None)
    if bad is not None:
        return bad.position, f"the seal at {bad.position} is not what key {bad.key} signed"
    good = {seal.key: seal.position for seal in seals if seal.verdict == "ok"}
    for key in keys:
        if key.id not in good:
            return None, f"there is no seal of key {key.id}: records are missing at the end, or it was never sealed with that key"
    last = max(good.values(), default=len(rows))
    behind = next((position for position, stored in rows[last:] if read_line(stored).type != f.Sealed.TAG), None)
    return (None, "") if behind is None else (behind, f"the record at {behind} is behind the last seal, which is at {last}: nobody signed it")
