"""What comes over a process of a run that is certified, and at which of its steps: it dies, or somebody acts on the run from outside.

Apart from the process itself, which only passes the places that are counted here.
"""

import os
import signal
import time
from pathlib import Path
from threading import Lock

from refold.events.log import open_log
from refold.events.storage import Log
from refold.runtime.journal import Journal
from refold.runtime.store import NotAsked, Store, attach
from refold.testing import ledger as l
from refold.testing.faults import Fate, Fault, Place
from refold.testing.orders import RUN, SAID, Order, url_of


class Doom(Fate):
    """Counts the steps of a run over all its processes, and does what is due at one. A death is a real one: SIGKILL."""

    def __init__(self, ledger: l.Ledger, order: Order) -> None:
        super().__init__()
        self.ledger, self._folder = ledger, Path(order.folder)
        self._passing = Lock()
        self._since, came = 0, 0
        for line in ledger.lines():
            if isinstance(line, l.Came):
                self._since, came = 0, came + 1
            elif isinstance(line, l.Step):
                self._since += 1
        self._left = list(order.deeds[came:])

    def meets(self, place: Place) -> Fault | None:
        """Pass a place. Never returns where the process dies there."""
        if place == "part":
            return None
        with self._passing:
            self.ledger.note(l.Step(process=os.getpid(), place=place))
            self._since += 1
            if self._left and self._since == self._left[0][0]:
                self._since = 0
                self._do(self._left.pop(0)[1], place)
        return None

    def _do(self, deed: l.Deed, place: Place) -> None:
        if deed == "death":
            self.ledger.note(l.Came(process=os.getpid(), deed=deed, place=place))
            os.kill(os.getpid(), signal.SIGKILL)
            while True:
                time.sleep(1)
        done, head = self._from_outside(deed)
        self.ledger.note(l.Came(process=os.getpid(), deed=deed, place=place, done=done, head=head))

    def _from_outside(self, deed: l.Deed) -> tuple[bool, int]:
        """What another process does to the run in this moment, through a log of its own: whether there was anything to do it to, and where that log is then."""
        log = open_log(url_of(self._folder))
        try:
            done = log.head(RUN) is not None and _done(log, deed)
            return done, (log.head(RUN) or (0, b""))[0]
        finally:
            log.close()


def _done(log: Log, deed: l.Deed) -> bool:
    """Speak, cancel, take over; false where the run has no use for it any more."""
    try:
        match deed:
            case "say":
                Store(log, "").say_sync(RUN, SAID, command_id="said")
            case "cancel":
                Store(log, "").cancel_sync(RUN, "enough", command_id="cancelled")
            case _:
                return _take_over(log)
    except NotAsked:
        return False
    return True


def _take_over(log: Log) -> bool:
    """Another driver attaches, as it may once this one has not been heard of for long enough."""
    taken = Journal(log, RUN).load()
    if taken.run.state == "done" or taken.run.driver is None:
        return False
    taken.command_sync(lambda run: (attach(run),) if run.state != "done" else ())
    return True
