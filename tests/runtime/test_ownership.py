"""A driver keeps its run while it lives, is told when it has lost it, and leaves nothing behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from refold import Agent, ScriptedModel, open_store
from refold.events.holds import Hold
from refold.events.memory import MemoryLog
from refold.events.storage import StoreUnavailable
from refold.runtime import ownership as o
from refold.runtime.driver import RunExists
from refold.runtime.ownership import DrivenElsewhere, Ownership, taken

LONG_S = 60.0


class Scripted(MemoryLog):
    """Answers refreshes from a list: held, lost, or a store that fails; what is beyond the list is held."""

    def __init__(self, *answers: bool | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked = 0
        self.released = 0

    def hold(self, run_id: str, who: str, ttl_s: float) -> Hold:
        return Hold(run_id, who, ttl_s, self._answer, self._let_go)

    def _answer(self) -> bool:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _let_go(self) -> None:
        self.released += 1


class Clock:
    """The time of the module, in a test's hands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(o, "_now_s", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def until(true: Callable[[], object], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.002)


def test_a_run_is_refreshed_as_long_as_it_is_driven() -> None:
    async def drive() -> None:
        # given
        log, lost = Scripted(), list[int]()
        ownership = Ownership(lambda: lost.append(1))
        ownership.acquire(log, "r", "me", 0.03)
        # when
        await until(lambda: log.asked >= 4)
        # then
        assert ownership.held
        ownership.release()
        ownership.release()
        asked = log.asked
        await asyncio.sleep(0.05)
        assert (log.asked, log.released, lost, ownership.held) == (asked, 1, [], False)

    asyncio.run(drive())


def test_a_driver_that_lost_its_run_is_told_once() -> None:
    async def drive() -> None:
        log, lost = Scripted(True, False), list[int]()
        ownership = Ownership(lambda: lost.append(1))
        ownership.acquire(log, "r", "me", 0.015)
        await until(lambda: lost)
        assert not ownership.held
        assert not ownership.check()
        ownership.release()
        await asyncio.sleep(0.02)
        assert (log.asked, log.released, lost) == (2, 0, [1])

    asyncio.run(drive())


def test_a_store_that_fails_for_a_while_takes_nothing_away(clock: Clock) -> None:
    async def drive() -> None:
        # given a store that fails twice in the time of a hold
        failing = StoreUnavailable("locked")
        log, lost = Scripted(failing, failing, True), list[int]()
        ownership = Ownership(lambda: lost.append(1))
        ownership.acquire(log, "r", "me", 0.015)
        await until(lambda: log.asked >= 3)
        assert ownership.held
        assert lost == []
        # when it fails beyond that time
        log.answers[:] = [failing] * 100
        clock.now_s += 1
        await until(lambda: lost)
        # then the run is lost: anybody may have it by now
        assert not ownership.held

    asyncio.run(drive())


def test_before_an_effect_the_store_is_asked_only_when_the_time_has_passed(clock: Clock) -> None:
    async def drive() -> None:
        # given
        log, lost = Scripted(True, False), list[int]()
        ownership = Ownership(lambda: lost.append(1))
        ownership.acquire(log, "r", "me", LONG_S)
        assert ownership.check()
        assert log.asked == 0
        # when the process wakes up after its time, and nobody took the run
        clock.now_s += LONG_S
        assert ownership.check()
        assert ownership.check()
        assert log.asked == 1
        # when it does so again, and somebody did
        clock.now_s += LONG_S
        assert not ownership.check()
        assert (log.asked, lost, log.released) == (2, [1], 0)

    asyncio.run(drive())


def test_a_run_that_another_drives_is_named_with_whom_and_since_when() -> None:
    async def drive() -> None:
        log = MemoryLog()
        first, second = Ownership(lambda: None), Ownership(lambda: None)
        first.acquire(log, "r", "ann@mill:17", LONG_S)
        with pytest.raises(DrivenElsewhere) as refused:
            second.acquire(log, "r", "bob@mill:18", LONG_S)
        holder = log.holder("r")
        assert holder is not None
        assert (refused.value.run_id, refused.value.who, refused.value.since_us) == ("r", "ann@mill:17", holder.since_us)
        assert "run r is driven by ann@mill:17 since " in str(refused.value)
        assert str(refused.value).endswith(" UTC; wait for it, or cancel it")
        assert not second.held
        second.release()
        with pytest.raises(DrivenElsewhere), taken(log, "r", "cli"):
            pass
        # and once it is let go, the same one may have it
        first.release()
        second.acquire(log, "r", "bob@mill:18", LONG_S)
        second.release()
        with taken(log, "r", "cli"):
            assert log.holder("r") is not None
        assert log.holder("r") is None

    asyncio.run(drive())


def test_who_is_slower_with_an_id_is_told_that_it_is_a_run_only_once_it_can_be_resumed() -> None:
    # given an id that somebody has taken, and begun nothing under yet
    store, agent = open_store("memory:"), Agent(model=ScriptedModel([{"text": "done"}]))
    with taken(store.log, "r", "cli"), pytest.raises(DrivenElsewhere):
        # when another begins a run under it, then that one is to wait
        agent.run_sync("Do it.", store=store, run_id="r")
    # and where a run was begun, it is told so, whether or not somebody drives it
    agent.run_sync("Do it.", store=store, run_id="r")
    with taken(store.log, "r", "cli"), pytest.raises(RunExists):
        agent.run_sync("Do it.", store=store, run_id="r")
    with pytest.raises(RunExists):
        agent.run_sync("Do it.", store=store, run_id="r")


@pytest.mark.parametrize(("until_us", "said"), [(1_767_225_630_000_000, "00:00:05 UTC"), (1_767_355_000_000_000, "2026-01-01 00:00:05 UTC")])
def test_the_day_is_named_where_it_is_not_the_present_one(until_us: int, said: str) -> None:
    error = DrivenElsewhere("r", "me@here:1", 1_767_225_605_000_000, until_us)
    assert str(error) == f"run r is driven by me@here:1 since {said}; wait for it, or cancel it"


def test_a_store_that_cannot_write_it_down_lets_go_by_itself() -> None:
    async def drive() -> None:
        log = Scripted()
        log._let_go = _fails  # type: ignore[method-assign]
        ownership = Ownership(lambda: None)
        ownership.acquire(log, "r", "me", LONG_S)
        ownership.release()
        assert not ownership.held

    asyncio.run(drive())


def _fails() -> None:
    raise StoreUnavailable("the disk is full")


def test_an_ownership_that_is_forgotten_is_refreshed_no_more() -> None:
    async def drive() -> None:
        log = Scripted()
        ownership = Ownership(lambda: None)
        ownership.acquire(log, "r", "me", 0.006)
        await until(lambda: log.asked)
        gone = weakref.ref(ownership)
        del ownership
        gc.collect()
        assert gone() is None
        asked = log.asked
        await asyncio.sleep(0.02)
        assert log.asked == asked

    asyncio.run(drive())


def test_a_run_is_let_go_also_when_its_event_loop_is_closed() -> None:
    log = MemoryLog()
    ownership = Ownership(lambda: None)

    async def begin() -> None:
        ownership.acquire(log, "r", "me", LONG_S)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    assert log.holder("r") is not None
    ownership.release()
    assert log.holder("r") is None


def test_what_a_listener_raises_ends_neither_the_loop_nor_the_others() -> None:
    async def drive() -> None:
        # given
        loop, heard = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda _loop, context: heard.append(context.get("exception")))

        def fails() -> None:
            raise KeyError("listener")

        ownership = Ownership(fails)
        ownership.acquire(Scripted(False), "r", "me", 0.006)
        # when, then
        await until(lambda: heard)
        assert isinstance(heard[0], KeyError)
        assert not ownership.held

    asyncio.run(drive())


DRIVER = """
import asyncio, os, sys
from refold.events.log import open_log
from refold.runtime.ownership import Ownership
log = open_log(sys.argv[1])
lost = []

async def main():
    ownership = Ownership(lambda: (lost.append(1), print("lost", flush=True)))
    ownership.acquire(log, "r", "child", float(sys.argv[2]))
    print("held", flush=True)
    await {}

asyncio.run(main())
"""


def child(awaits: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-P", "-c", DRIVER.format(awaits), *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_an_ownership_keeps_no_process_alive(tmp_path: Path) -> None:
    process = child("asyncio.sleep(0)", f"sqlite:///{tmp_path}/log.db", LONG_S)
    assert process.communicate(timeout=20)[0] == "held\n"
    assert process.returncode == 0


def test_a_driver_that_is_stopped_beyond_its_time_is_told_when_it_wakes(tmp_path: Path) -> None:
    # given
    from refold.events.log import open_log

    log = open_log(f"sqlite:///{tmp_path}/log.db")
    process = child("asyncio.sleep(60)", f"sqlite:///{tmp_path}/log.db", 0.3)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGSTOP)

    async def take() -> None:
        await until(lambda: log.holder("r") is None)
        ownership = Ownership(lambda: None)
        ownership.acquire(log, "r", "me", LONG_S)
        # when
        os.kill(process.pid, signal.SIGCONT)
        # then
        assert process.stdout is not None
        assert process.stdout.readline() == "lost\n"
        assert ownership.held
        ownership.release()

    asyncio.run(take())
    process.kill()
    process.communicate()
    log.close()


def test_a_driver_at_work_keeps_its_run_for_longer_than_its_time(tmp_path: Path) -> None:
    from refold.events.log import open_log

    log = open_log(f"sqlite:///{tmp_path}/log.db")
    process = child("asyncio.sleep(60)", f"sqlite:///{tmp_path}/log.db", 1.0)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    first = log.holder("r")
    assert first is not None

    async def refreshed() -> None:
        await until(lambda: (now := log.holder("r")) is not None and now.until_us > first.until_us)

    asyncio.run(refreshed())
    # and its death frees the run
    process.kill()
    process.communicate()
    assert log.holder("r") is None
    log.close()
