"""Opens the log behind a URL: the one door to the stores.

Apart from the stores themselves, so that only the one that is used is loaded and a further one is one more line here.
"""

import re

from refold.events.holds import Held, Hold, Holder
from refold.events.storage import Conflict, Log, PayloadMissing, Row, StoreDamaged, StoreMissing, StoreUnavailable

__all__ = ["Conflict", "Held", "Hold", "Holder", "Log", "PayloadMissing", "Row", "StoreDamaged", "StoreMissing", "StoreUnavailable", "open_log"]


def open_log(url: str, *, create: bool = True, synchronous: str = "FULL", lock_timeout_s: float = 5.0, driver_ttl_s: float = Log.driver_ttl_s) -> Log:
    """Opens `memory:`, `sqlite:///PATH` or `postgresql://...`; what is not there is made, unless `create` is false: then `StoreMissing`.

    PATH is taken literally, whatever characters it has, and is relative to the current folder unless it begins with a slash of its own (`sqlite:////var/x/log.db`).
    `synchronous` is SQLite's: FULL survives a power cut, NORMAL only the death of the process, at a fifth of the price;
    `?synchronous=NORMAL` at the end of the URL says so too. A driver that is silent for `driver_ttl_s` may be taken for lost.
    """
    if not 0 < driver_ttl_s < float("inf"):
        raise ValueError(f"driver_ttl_s is a number of seconds above 0, not {driver_ttl_s!r}")
    log = _opened(url, create=create, synchronous=synchronous, lock_timeout_s=lock_timeout_s)
    log.driver_ttl_s = driver_ttl_s
    return log


def _opened(url: str, *, create: bool, synchronous: str, lock_timeout_s: float) -> Log:
    scheme, _, rest = url.partition(":")
    match scheme:
        case "memory" if not rest:
            from refold.events.memory import MemoryLog

            return MemoryLog()
        case "sqlite":
            from refold.events.sqlite import SqliteLog

            path, synchronous = _sqlite_path(url, synchronous)
            return SqliteLog(path, create=create, synchronous=synchronous, lock_timeout_s=lock_timeout_s)
        case "postgresql" | "postgres":
            try:
                from refold.events.postgres import PostgresLog
            except ImportError as error:
                raise StoreUnavailable("PostgreSQL needs its driver: pip install 'refold[postgres]'") from error
            return PostgresLog(url, create=create, lock_timeout_s=lock_timeout_s)
        case _:
            raise ValueError(f"a store is sqlite:///PATH, postgresql://... or memory:, not {url!r}")


def _sqlite_path(url: str, synchronous: str) -> tuple[str, str]:
    # Only this one option, at the end, is not a part of the path: a question mark may stand in the name of a file.
    parsed = re.fullmatch(r"sqlite:///(.*?)(?:\?synchronous=(\w*))?", url, re.DOTALL)
    if parsed is None or not parsed[1].strip("/") or "\0" in url:
        raise ValueError(f"an SQLite store is sqlite:///PATH, not {url!r}")
    if parsed[1] == ":memory:":
        raise ValueError("a store in memory is memory:, not sqlite:///:memory:")
    mode = (synchronous if parsed[2] is None else parsed[2]).upper()
    if mode not in ("FULL", "NORMAL"):
        raise ValueError(f"synchronous is FULL or NORMAL, not {mode!r}")
    return parsed[1], mode
