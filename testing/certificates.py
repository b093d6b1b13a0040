"""The command `refold certify`: reads what is to be tried, shows how far it is, and says what came of it.

Apart from the campaign, which is for programs too and prints nothing.
"""

import contextlib
import re
import sys
import time
from typing import Any, Final

from refold.runtime.cli import options as o, output
from refold.runtime.cli.exits import COMPLETED, FOUND, Refused
from refold.runtime.cli.parsing import Misused
from refold.runtime.cli.render import Page, one_line, padded, thousands
from refold.testing import certify as campaigns
from refold.testing.certify import FAMILIES, Campaign, Certificate, Deeds, NotCertifiable, Told
from refold.testing.orders import Humans

SHOWN_MAX: Final = 10
"""Scenarios with something wrong that are shown to people."""


def certify(options: o.Certify) -> int:
    """Kill an agent's run everywhere. Its tools are called for real, thousands of times."""
    campaign = Campaign(
        agent=options.agent,
        goal=options.goal,
        humans=Humans(approve="none" if options.deny else "all", answer=options.answer, doubts="look" if options.look else "tell"),
        recovery=options.recovery,
        every=options.every,
        jobs=options.jobs,
        only=deeds_of(options.only),
        keep=options.keep or "",
    )
    began = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):  # what the agent's own module prints is no result
        try:
            certificate = campaigns.certify(campaign, _Progress().hear)
        except NotCertifiable as error:
            raise Refused(str(error)) from None
    seconds = round(time.monotonic() - began, 1)
    if options.json:
        output.document({**as_json(certificate), "seconds": seconds})
    else:
        page = Page()
        output.line("\n".join([*summary(certificate, seconds, page), *_findings(certificate, page)]))
    return COMPLETED if certificate.ok else FOUND


def deeds_of(text: str | None) -> Deeds:
    """A scenario by its name, such as `death@17,death@2`. Raises Misused."""
    found = [re.fullmatch(r"(death|say|cancel|takeover)@([1-9][0-9]{0,5})", word.strip()) for word in (text or "").split(",") if word.strip()]
    if None in found:
        raise Misused(f"--only {text}: a scenario is written as death@17,death@2; what comes is death, say, cancel or takeover")
    return tuple((int(match[2]), match[1]) for match in found if match is not None)  # type: ignore[misc]  # the pattern says which


class _Progress:
    """How far a campaign is, in a terminal: one line that is written over."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._at = 0.0

    def hear(self, done: int, family: str) -> None:
        now = time.monotonic()
        if self._shown and now - self._at > 0.2:
            self._at = now
            sys.stderr.write(f"\r\x1b[2K{thousands(done)} scenarios · {family}\r")
            sys.stderr.flush()


# -- what is said


def counts(certificate: Certificate) -> dict[str, int]:
    """The five figures."""
    return {
        "scenarios": sum(certificate.scenarios.values()),
        "deaths": sum(certificate.deaths.values()),
        "duplicates": certificate.found["duplicate"],
        "losses": certificate.found["loss"],
        "divergences": certificate.found["divergence"],
    }


def as_json(certificate: Certificate) -> dict[str, Any]:
    """The documented shape."""
    twin = certificate.twin
    return {
        "agent": certificate.agent,
        "ok": certificate.ok,
        **counts(certificate),
        "processes": certificate.processes,
        "twin": {"status": twin.status, "turns": twin.turns, "tool_calls": twin.tool_calls, "steps": twin.steps},
        "families": [{"family": family, "scenarios": certificate.scenarios[family], "deaths": certificate.deaths[family]} for family in certificate.scenarios],
        "findings": [
            {"scenario": told.scenario.name, "family": told.scenario.family, "at": told.places, "kind": finding.kind, "what": finding.what}
            for told in certificate.told
            for finding in told.findings
        ],
    }


def summary(certificate: Certificate, seconds: float, page: Page) -> list[str]:
    """The verdict, and what was tried, in 80 columns."""
    twin = certificate.twin
    verdict = page.paint("certified", "green") if certificate.ok else page.paint("not certified", "red")
    lines = [
        f"agent {one_line(certificate.agent)}  {verdict}",
        page.paint(f"untouched it is {twin.status} after {twin.turns} turns, {twin.tool_calls} calls and {thousands(twin.steps)} steps", "dim"),
        "",
    ]
    width = max(map(len, FAMILIES.values())) + 2
    lines.append(page.paint(f"{'':<{width}}{'SCENARIOS':>9}{'DEATHS':>9}", "dim"))
    for family, meaning in FAMILIES.items():
        if family in certificate.scenarios:
            lines.append(f"{padded(meaning, width)}{thousands(certificate.scenarios[family]):>9}{thousands(certificate.deaths[family]):>9}")
    lines.append("")
    for name, number in counts(certificate).items():
        bad = number and name in ("duplicates", "losses", "divergences")
        lines.append(page.paint(f"{name:<12}{thousands(number):>8}", "red" if bad else ""))
    return [*lines, "", page.paint(f"{thousands(certificate.processes)} processes in {seconds:,} s", "dim")]


def _findings(certificate: Certificate, page: Page) -> list[str]:
    """The first scenarios in which something went wrong, and how to see one of them again."""
    lines: list[str] = []
    for told in certificate.told[:SHOWN_MAX]:
        lines += ["", *_told(told, page)]
    if len(certificate.told) > SHOWN_MAX:
        lines += ["", f"and {thousands(len(certificate.told) - SHOWN_MAX)} more scenarios (--json lists them all)"]
    if certificate.told and certificate.told[0].scenario.deeds:
        again = ",".join(f"{deed}@{steps}" for steps, deed in certificate.told[0].scenario.deeds)
        lines += ["", "see the first one again, and keep its log and what its processes printed:"]
        lines.append(page.paint(f"    refold certify {certificate.agent} --only {again} --keep DIR", "cyan"))
    return lines


def _told(told: Told, page: Page) -> list[str]:
    where = ", ".join(told.places[:12])
    lines = [page.paint(told.scenario.name or "the untouched run", "bold") + (f"  at {where}" if where else "")]
    for finding in told.findings:
        first, *rest = page.paragraphs(one_line(finding.what, 400), " " * 16) or [""]
        lines += [f"    {page.paint(f'{finding.kind:<10}', 'red')}  {first.strip()}", *rest]
    last = [line for line in told.output.splitlines() if line.strip()][-1:]
    lines += [page.paint(f"    printed     {one_line(line, page.room(20, otherwise=300))}", "dim") for line in last]
    return lines
