"""What a campaign and the processes of its runs agree on: the order that each process gets, where its run is, and how it ends.

Apart from both, so that who plans a campaign and who judges a run know nothing of what is done in a process.
"""

from pathlib import Path
from typing import Final, Literal

import msgspec

from refold.events.words import RunId
from refold.testing import ledger as l

RUN: Final = RunId("certified")
SAID: Final = "Do not forget what I said."
DONE, FAILED, WAITING, LOST = 0, 1, 3, 4
"""How a process ends that was not killed: the run has ended, something went wrong, it waits for a human, another driver has taken over."""

Approve = Literal["all", "none"]
Doubts = Literal["tell", "look"]


class Humans(msgspec.Struct, frozen=True, kw_only=True):
    """How whoever the run waits for decides. Of a call in doubt the model is told, or somebody looks whether it happened."""

    approve: Approve = "all"
    answer: str = "Yes."
    doubts: Doubts = "tell"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do: for whom, where, and what comes over it. A deed comes so many steps after the one before it."""

    agent: str
    goal: str
    folder: str
    role: l.Role = "drive"
    deeds: tuple[tuple[int, l.Deed], ...] = ()
    humans: Humans = Humans()
    requests: int = 0
    """After so many requests the model says its last word again; 0 where that is not known."""
    control: str = ""
    """The function of `refold.testing.broken` that puts a broken runtime in the place of the good one."""
    recording: str = ""
    """The file with the model's answers, where it is not to be asked again."""


def url_of(folder: Path) -> str:
    """The store of a run that is certified: a file of its own. Its processes are killed and its machine is not, so that the disk need not be waited for."""
    return f"sqlite:///{folder}/log.db?synchronous=NORMAL"
