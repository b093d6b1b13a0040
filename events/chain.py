"""Digests: every record covers its own bytes and the digest of the one before, so that any change, gap or reorder shows.

Apart from the codec, because anybody must be able to check a log with little more than these few lines and SHA-256.
"""

from binascii import b2a_base64
from hashlib import sha256
from typing import Final

import msgspec

from refold.events.words import Digest, RunId

MARK: Final = b',"digest":"'
NOTHING: Final = Digest("")
"""The digest before position 1."""
DIGEST_LENGTH: Final = 43
SEAL: Final = "refold seal 1"
"""The first line of what a seal signs, so that no signature that was made for anything else can pass for a seal."""
_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")
_TAIL: Final = len(MARK) + DIGEST_LENGTH + len('"}')


def digest_of(data: bytes) -> Digest:
    """SHA-256 of some bytes as base64url without padding."""
    return Digest(b2a_base64(sha256(data).digest(), newline=False)[:-1].translate(_URLSAFE).decode("ascii"))


def signature_of(parts: list[str]) -> Digest:
    """The digest of some words in order, whatever is in them."""
    return digest_of(msgspec.json.encode(parts))


def close(body: bytes, before: Digest) -> tuple[bytes, Digest]:
    """Complete a record: `body` is its JSON object without the digest; gives the bytes to store and their digest."""
    head = body[:-1]
    digest = digest_of(before.encode("ascii") + head)
    return head + MARK + digest.encode("ascii") + b'"}', digest


def completes(stored: bytes, body: bytes) -> bool:
    """Whether a stored record is `body` completed, whatever digest it carries."""
    return len(stored) == len(body) - 1 + _TAIL and stored.startswith(body[:-1])


def recompute(stored: bytes, before: Digest) -> Digest | None:
    """The digest that stored bytes ought to carry after `before`, or None where the last field is not a digest at all."""
    if not stored.startswith(MARK, -_TAIL) or not stored.endswith(b'"}'):
        return None
    return digest_of(before.encode("ascii") + stored[:-_TAIL])


def sealed_message(run: RunId, position: int, head: Digest) -> bytes:
    """What a seal signs: four lines that say that `run` has the records 1 to `position` and that the last of them has the digest `head`."""
    return f"{SEAL}\n{run}\n{position}\n{head}\n".encode()
