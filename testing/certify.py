"""The crash campaign: an agent's own run, killed for real at every step of it, taken up by new processes each time, and held against a twin that was left alone.

Steps are the places around everything that counts: each append, each request, each handler, and wherever the agent's own code is asked. For POSIX systems.
"""

import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, Literal

import msgspec

from refold.events.log import open_log
from refold.runtime.agent import Agent
from refold.runtime.cli.lookup import agent_named
from refold.runtime.store import Store
from refold.testing import ledger as l
from refold.testing.judging import Account, Finding, Judgement, judge, output_of
from refold.testing.orders import DONE, LOST, RUN, WAITING, Humans, Order, url_of
from refold.testing.recording import is_repeatable, record
from refold.testing.zygote import Nursery

Family = Literal["once", "in recovery", "in turn", "over and over", "spoken to", "cancelled", "taken over"]
FAMILIES: Final[dict[Family, str]] = {
    "once": "killed at every step",
    "in recovery": "and killed again while it recovers",
    "in turn": "every process killed, each a step later than the one before",
    "over and over": "every process killed at the same step, time after time",
    "spoken to": "a message from outside at every step",
    "cancelled": "cancelled from outside at every step",
    "taken over": "another driver takes over at every step",
}
PROCESSES_MAX: Final = 200
"""Processes after which a run counts as stuck."""
DEATHS_IN_A_ROW: Final = 8
"""How often `over and over` kills a run that makes no progress, before it is left alone."""
OVER_MAX: Final = 40
"""The last step at which `over and over` kills: who comes further makes progress each time, and is killed there by others."""
JUDGED: Final = "judgement.json"

Deeds = tuple[tuple[int, l.Deed], ...]


class NotCertifiable(Exception):
    """The campaign says nothing about this agent: one line that says why."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One way of going wrong: what comes, so many steps after what came before."""

    family: Family
    deeds: Deeds

    @property
    def name(self) -> str:
        """How it is told, and how it is asked for again: `death@17,death@2`."""
        shown = ",".join(f"{deed}@{steps}" for steps, deed in self.deeds[:12])
        return shown + (f",... ({len(self.deeds)})" if len(self.deeds) > 12 else "")


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario with something wrong in it."""

    scenario: Scenario
    places: tuple[str, ...]
    findings: tuple[Finding, ...]
    folder: str
    output: str


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """What is certified, and how far. `recovery` is how many steps of a recovery are killed, `every` takes only each nth step from the `first` on; `stop_after` ends it at so many findings."""

    agent: str
    goal: str = "Do what you are there for."
    humans: Humans = Humans()
    families: tuple[Family, ...] = tuple(FAMILIES)
    recovery: int = 2
    every: int = 1
    first: int = 1
    jobs: int = 2
    only: Deeds = ()
    control: str = ""
    fresh: bool = False
    stop_after: int = 100
    keep: str = ""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign found. `scenarios` and `deaths` are counted by family, findings by kind."""

    agent: str
    twin: Account
    scenarios: dict[str, int]
    deaths: dict[str, int]
    processes: int
    found: dict[str, int]
    told: tuple[Told, ...]

    @property
    def ok(self) -> bool:
        return not self.told


def certify(
    campaign: Campaign, heard: Callable[[int, str], None] = lambda _done, _family: None, enough: Callable[[Finding], bool] = lambda _finding: False
) -> Certificate:
    """Run a campaign. Raises NotCertifiable, Refused.

    `heard` is called with the number of scenarios that are over and the family of the last; a finding that is `enough` ends the campaign.
    """
    if not hasattr(os, "fork"):
        raise NotCertifiable("a campaign kills processes with SIGKILL, which this system does not have: run it on Linux or macOS")
    agent = agent_named(campaign.agent)
    home = Path(campaign.keep).absolute() if campaign.keep else Path(tempfile.mkdtemp(prefix="refold-certify-"))
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise NotCertifiable(f"the folder {campaign.keep} is not empty: name one that is, or a new one")
    try:
        with Nursery(fresh=campaign.fresh) as nursery:
            return _Grid(campaign, agent, home, nursery, heard, enough).certificate()
    finally:
        if not campaign.keep:
            shutil.rmtree(home, ignore_errors=True)


class _Trial:
    """One run under one scenario, from process to process."""

    def __init__(self, campaign: Campaign, scenario: Scenario, folder: Path, requests: int, recording: str) -> None:
        self.scenario, self.folder = scenario, folder
        self.processes = 0
        self.stuck = ""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._order = Order(
            agent=campaign.agent,
            goal=campaign.goal,
            folder=str(folder),
            deeds=scenario.deeds,
            humans=campaign.humans,
            requests=requests if any(deed == "say" for _, deed in scenario.deeds) else 0,
            control=campaign.control,
            recording=recording,
        )

    def begin(self) -> Order:
        self.processes += 1
        return self._order

    def after(self, code: int) -> Order | None:
        """What the next process is to do, after one that ended so; None where the run is over, or given up."""
        if code == DONE and self._order.role == "drive":
            return None
        if code not in (DONE, LOST, WAITING, -9):
            self.stuck = f"a process ended with {code}" if code > 0 else f"a process was ended by signal {-code}"
            return None
        if self.processes >= PROCESSES_MAX:
            self.stuck = f"the run has not ended after {self.processes} processes"
            return None
        self._order = msgspec.structs.replace(self._order, role="human" if code == WAITING else "drive")
        return self.begin()


class _Grid:
    """The campaign under way."""

    def __init__(
        self, campaign: Campaign, agent: Agent, home: Path, nursery: Nursery, heard: Callable[[int, str], None], enough: Callable[[Finding], bool]
    ) -> None:
        self.campaign, self.agent, self.home, self.nursery, self.heard, self.enough = campaign, agent, home, nursery, heard, enough
        self.scenarios: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self.processes = 0
        self.told: list[Told] = []
        self.untouched: set[Family] = set()
        """Families whose last deed came too late: the run was over."""
        self.twin: Account | None = None
        self.recording = ""

    def certificate(self) -> Certificate:
        """Two runs that nothing happens to, then everything else. A model that is not known to say the same each time is asked for one more run, and never again."""
        if not is_repeatable(self.agent):
            self.recording = self._recorded()
        first, second = (self._alone(name) for name in ("twin", "other-twin"))
        self.twin = first.account
        if self.twin is None or self.twin.status == "running":
            raise NotCertifiable(f"the run does not even end when nothing happens to it: {_why(first)}")
        if not first.findings and (difference := _difference(self.twin, second.account)):
            raise NotCertifiable(f"two runs that nothing happened to differ, so that a third can be held against none: {difference}")
        if first.findings:
            self.told.append(self._tell(Scenario(family="once", deeds=()), self.home / "twin", first))
        gc.collect()
        gc.freeze()  # what is here now is shared by every process to come, and a collection in one of them would copy it
        self._all(self._planned(self.twin.steps))
        found = Counter(finding.kind for told in self.told for finding in told.findings)
        return Certificate(
            agent=self.campaign.agent,
            twin=self.twin,
            scenarios={family: self.scenarios[family] for family in FAMILIES if family in self.scenarios},
            deaths={family: self.deaths[family] for family in FAMILIES if family in self.scenarios},
            processes=self.processes,
            found={kind: found[kind] for kind in ("duplicate", "loss", "divergence")},
            told=tuple(self.told),
        )

    def _recorded(self) -> str:
        """The file with what the model says in a run that is left alone."""
        recorded = self._alone("recording")
        if recorded.account is None or recorded.account.status == "running":
            raise NotCertifiable(f"the run does not even end when nothing happens to it: {_why(recorded)}")
        log = open_log(url_of(self.home / "recording"), create=False)
        try:
            record(Store(log, "").read(RUN), self.home / "recording.json")
        finally:
            log.close()
        return str(self.home / "recording.json")

    def _alone(self, name: str) -> Judgement:
        """A run that is left alone, and its judgement."""
        trial = _Trial(self.campaign, Scenario(family="once", deeds=()), self.home / name, 0, self.recording)
        order: Order | None = trial.begin()
        while order is not None:
            self.nursery.start(order)
            order = trial.after(self.nursery.ended()[1])
        return judge(trial.folder, self.agent, None, stuck=trial.stuck)

    # -- what is tried

    def _planned(self, steps: int) -> Iterator[Scenario]:
        """Every scenario, lazily: where a family goes on `until the run is over`, it is asked each time whether it was."""
        if self.campaign.only:
            yield Scenario(family="once", deeds=self.campaign.only)
            return
        for family in self.campaign.families:
            for deeds in self._deeds(family, steps):
                if self._stops():
                    return
                if family in self.untouched:
                    break
                yield Scenario(family=family, deeds=deeds)

    def _stops(self) -> bool:
        findings = [finding for told in self.told for finding in told.findings]
        return len(findings) >= self.campaign.stop_after or any(map(self.enough, findings))

    def _deeds(self, family: Family, steps: int) -> Iterator[Deeds]:
        first, every = self.campaign.first, self.campaign.every
        known = range(first, steps + 1, every)
        match family:
            case "once":
                yield from (((n, "death"),) for n in count(first, every))
            case "in recovery":
                yield from (((n, "death"), (m, "death")) for n in known for m in range(1, self.campaign.recovery + 1))
            case "in turn":
                yield tuple((n, "death") for n in range(1, PROCESSES_MAX // 2))
            case "over and over":
                yield from (((n, "death"),) * DEATHS_IN_A_ROW for n in known if n <= OVER_MAX)
            case "spoken to":
                yield from (((n, "say"),) for n in count(first, every))
            case "cancelled":
                yield from (((n, "cancel"), *after) for n in known for after in ((), ((1, "death"),)))
            case "taken over":
                yield from (((n, "takeover"),) for n in count(first, every))

    # -- how it is tried

    def _all(self, scenarios: Iterator[Scenario]) -> None:
        """Several at a time, each from process to process; the last process of each is its judge."""
        running: dict[int, _Trial] = {}
        judging: dict[int, _Trial] = {}
        number = 0
        while True:
            while len(running) + len(judging) < self.campaign.jobs and (scenario := next(scenarios, None)) is not None:
                number += 1
                assert self.twin is not None
                trial = _Trial(self.campaign, scenario, self.home / f"{number}", len(self.twin.requests), self.recording)
                running[self.nursery.start(trial.begin())] = trial
            if not running and not judging:
                return
            child, code = self.nursery.ended()
            if child in judging:
                trial = judging.pop(child)
                if code:
                    raise ChildProcessError(f"the judge of {trial.scenario.name} ended with {code}")
                self._over(trial, msgspec.json.decode((trial.folder / JUDGED).read_bytes(), type=Judgement))
                continue
            trial = running.pop(child)
            order = trial.after(code)
            if order is not None:
                running[self.nursery.start(order)] = trial
            elif self.nursery.fresh:
                self._over(trial, judge(trial.folder, self.agent, self.twin, stuck=trial.stuck))
            else:
                judging[self.nursery.work(self._judge(trial))] = trial

    def _judge(self, trial: _Trial) -> Callable[[], int]:
        def work() -> int:
            judged = judge(trial.folder, self.agent, self.twin, stuck=trial.stuck)
            (trial.folder / JUDGED).write_bytes(msgspec.json.encode(msgspec.structs.replace(judged, account=None)))
            return 0

        return work

    def _over(self, trial: _Trial, judged: Judgement) -> None:
        family = trial.scenario.family
        self.processes += trial.processes
        if not judged.reached:
            self.untouched.add(family)
        self.scenarios[family] += 1
        self.deaths[family] += judged.came.count("death")
        if judged.findings:
            self.told.append(self._tell(trial.scenario, trial.folder, judged))
        if not judged.findings or not self.campaign.keep:
            shutil.rmtree(trial.folder, ignore_errors=True)
        self.heard(sum(self.scenarios.values()), family)

    def _tell(self, scenario: Scenario, folder: Path, judged: Judgement) -> Told:
        kept = str(folder) if self.campaign.keep else ""
        return Told(scenario=scenario, places=judged.places, findings=judged.findings, folder=kept, output=output_of(folder))


def _why(judged: Judgement) -> str:
    return "; ".join(finding.what for finding in judged.findings) or "it was left running"


def _difference(one: Account, other: Account | None) -> str:
    if other is None:
        return "one of them cannot be read"
    names = [name for name in one.__struct_fields__ if name != "steps"]
    return "; ".join(
        f"{name} is {str(getattr(one, name))[:200]} and {str(getattr(other, name))[:200]}" for name in names if getattr(one, name) != getattr(other, name)
    )
