"""Exit codes, and the one line that each foreseeable failure comes to.

Apart from the commands, so that they raise what happened and never print an error.
"""

from typing import Final

from refold.events.words import Status

COMPLETED: Final = 0
FAILED: Final = 1
FOUND: Final = 1
"""Of a check."""
USAGE: Final = 2
WAITING: Final = 3
UNAVAILABLE: Final = 4
STOPPED: Final = 5
CANCELLED: Final = 6
INTERRUPTED: Final = 130

OF_STATUS: Final[dict[Status, int]] = {
    "completed": COMPLETED,
    "failed": FAILED,
    "stopped": STOPPED,
    "cancelled": CANCELLED,
    "waiting_for_user": WAITING,
    "running": INTERRUPTED,
}
"""What a command that drove a run exits with; one that is left running was parked by an interruption."""


class Refused(Exception):
    """A command that is not done: one line that says why, and its exit code."""

    def __init__(self, line: str, code: int = USAGE) -> None:
        super().__init__(line)
        self.code = code


def explain(error: Exception) -> tuple[int, str]:
    """The exit code and the line of an exception that ended a command."""
    from refold.runtime.cli.parsing import Misused

    if isinstance(error, Refused):
        return error.code, str(error)
    if isinstance(error, Misused):
        return USAGE, str(error)
    return _foreseen(error) or (FAILED, f"refold met an error of its own ({type(error).__name__}: {error}); set REFOLD_DEBUG=1 to see where")


def _foreseen(error: Exception) -> tuple[int, str] | None:
    """What the layers below raise. Imported only now: a command that goes well needs none of them."""
    from refold.events.codec import Unreadable
    from refold.events.storage import PayloadMissing, StoreMissing, StoreUnavailable
    from refold.fsm.machine import Illegal
    from refold.runtime.documents import DocumentsError
    from refold.runtime.driver import RunExists
    from refold.runtime.journal import LostOwnership, TooManyConflicts, UnknownRun
    from refold.runtime.models import UnknownModel
    from refold.runtime.providers.script import ScriptError
    from refold.runtime.settings import WrongSetting
    from refold.runtime.show import NoSuchPosition
    from refold.runtime.store import Ambiguous, NotAsked
    from refold.runtime.transfer import DamagedFile, OtherRun

    wrong = (
        UnknownRun,
        Ambiguous,
        NotAsked,
        NoSuchPosition,
        UnknownModel,
        ScriptError,
        WrongSetting,
        DocumentsError,
        DamagedFile,
        OtherRun,
        RunExists,
        StoreMissing,
    )
    if isinstance(error, wrong):
        return USAGE, str(error)
    if isinstance(error, StoreUnavailable | LostOwnership | TooManyConflicts):
        return UNAVAILABLE, str(error)
    if isinstance(error, Illegal | Unreadable | PayloadMissing):
        return FOUND, f"the log of this run cannot be followed ({error}); see what is wrong with: refold audit RUN"
    if isinstance(error, OSError):
        return USAGE, f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
    return None
