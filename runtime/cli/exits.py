"""Exit codes, and the one line that each foreseeable failure comes to.

Apart from the commands, so that they raise what happened and never print an error.
"""

import sys
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


WRONG: Final = (
    "events.lineage:OtherHistory",
    "events.storage:StoreMissing",
    "projections.revisions:UnsupportedEngine",
    "runtime.cli.parsing:Misused",
    "runtime.agent:NotEnded",
    "runtime.agent:OtherAgent",
    "runtime.agent:UnknownPrice",
    "runtime.documents:DocumentsError",
    "runtime.driver:RunExists",
    "runtime.forking:NoFork",
    "runtime.journal:UnknownRun",
    "runtime.models:UnknownModel",
    "runtime.providers.script:ScriptError",
    "runtime.settings:WrongSetting",
    "runtime.show:NoPrompt",
    "runtime.show:NoSuchPosition",
    "runtime.store:Ambiguous",
    "runtime.store:NotAsked",
    "runtime.store:OtherCommand",
    "runtime.transfer:DamagedFile",
    "runtime.transfer:OtherRun",
)
BUSY: Final = ("events.storage:StoreUnavailable", "runtime.journal:LostOwnership", "runtime.journal:TooManyConflicts", "runtime.ownership:DrivenElsewhere")
BROKEN: Final = ("events.codec:Unreadable", "events.storage:PayloadMissing", "fsm.machine:Illegal", "runtime.show:OtherPrompt")
"""What the layers below raise, by name: a class that was raised is loaded, and the others need not be."""


def explain(error: Exception) -> tuple[int, str]:
    """The exit code and the line of an exception that ended a command."""
    if isinstance(error, Refused):
        return error.code, str(error)
    if isinstance(error, _loaded(WRONG)):
        return USAGE, str(error)
    if isinstance(error, _loaded(BUSY)):
        return UNAVAILABLE, str(error)
    if isinstance(error, _loaded(BROKEN)):
        return FOUND, f"the log of this run cannot be followed ({error}); see what is wrong with: refold audit RUN"
    if isinstance(error, OSError):
        return USAGE, f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
    return FAILED, f"refold met an error of its own ({type(error).__name__}: {error}); set REFOLD_DEBUG=1 to see where"


def _loaded(names: tuple[str, ...]) -> tuple[type[Exception], ...]:
    pairs = (name.split(":") for name in names)
    return tuple(getattr(sys.modules[f"refold.{module}"], name) for module, name in pairs if f"refold.{module}" in sys.modules)
