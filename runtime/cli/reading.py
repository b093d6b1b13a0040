"""`show`, `log`, `runs`, `pending`: look at runs. Nothing here appends, and a store that is not there is never made."""

import time
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from refold.events.codec import FACTS, Unreadable, full_line
from refold.events.lineage import history
from refold.events.payloads import Load
from refold.events.storage import PayloadMissing, Row, StoreMissing
from refold.events.words import RunId
from refold.projections.run import Run
from refold.projections.view import pending_of
from refold.runtime.cli import options as o, output, viewing
from refold.runtime.cli.exits import COMPLETED, Refused
from refold.runtime.cli.render import Page, clock, cut, day, one_line, since, until
from refold.runtime.cli.stores import has_expired, opened, to_type, waiting_lines
from refold.runtime.cli.telling import words
from refold.runtime.journal import NOT_FOLLOWED, loader, record_in
from refold.runtime.show import Prompt, prompt, show as shown
from refold.runtime.store import Store

FOLLOW_S: Final = 0.1
STATUSES: Final = ("running", "waiting_for_user", "completed", "stopped", "failed", "cancelled")


def show(options: o.Show) -> int:
    """A run at a position."""
    with opened(options) as store:
        run_id = store.find(options.run)
        if options.prompt:
            return _prompt(options, prompt(store, run_id, options.at))
        view = shown(store, run_id, options.at)
        settling = _settling(options, store, run_id) if view["pending"] and options.at is None else {}
    if options.json:
        output.document(view)
    else:
        output.line("\n".join(viewing.lines(view, Page(), settling)))
    return COMPLETED


def _settling(options: o.Show, store: Store, run_id: RunId) -> dict[str, list[str]]:
    """The lines to type for what a run waits for, by call."""
    run = store.journal(run_id).run
    return {asked["call_id"]: to_type(options, run, asked) for asked in pending_of(run)}


def _prompt(options: o.Show, made: Prompt) -> int:
    """A request, made again from the log."""
    if options.json:
        output.document({**msgspec.to_builtins(made.request), "digest": made.digest})
    else:
        output.line("\n".join(viewing.prompt_lines(made.request, Page())))
    return COMPLETED


# -- log


def log(options: o.Log) -> int:
    """The records of a run, as stored or in words."""
    types = _types(options.types)
    with opened(options) as store:
        run_id = store.find(options.run)
        lines, after = _Lines(Page()), 0
        while True:
            seen = store.log.changed()
            after, ended, read_on = _print(options, store, run_id, after, types, lines)
            if not read_on or ended or not options.follow:
                return COMPLETED
            while store.log.changed() == seen:
                time.sleep(FOLLOW_S)


def _print(options: o.Log, store: Store, run_id: RunId, after: int, types: set[str] | None, lines: "_Lines") -> tuple[int, bool, bool]:
    """Print what is new; gives the last position, whether the run has ended, and whether anybody still reads."""
    ended = False
    load = loader(store.log, run_id, many=True)
    for row in history(store.log, run_id, after):
        after = row.position
        if row.type in ("run_completed", "run_stopped", "run_failed", "run_cancelled"):
            ended = True
        if types is not None and row.type not in types:
            continue
        if not options.json:
            data = lines.of(row, load).encode("utf-8", "backslashreplace")
        elif options.full:
            data = full_line(record_in(row, load), load)
        else:
            data = row.state
        if not output.raw(data + b"\n", flush=options.follow):
            return after, ended, False
    return after, ended, True


class _Lines:
    """Records as lines for people: times of day, and the date where another day begins."""

    def __init__(self, page: Page) -> None:
        self._page, self._day = page, ""

    def of(self, row: Row, load: Load) -> str:
        """A record as a line; one that cannot be read says so and stands in its place."""
        page = self._page
        try:
            record = record_in(row, load)
        except (Unreadable, PayloadMissing) as error:
            return page.paint(f"{row.position:>4}  cannot be read: {one_line(str(error), page.room(22))}", "red")
        narrow = page.width is not None and page.width < 70
        head = f"{record.position:>4}  " + ("" if narrow else f"{clock(record.at)}  ")
        title = f"{record.type}  " if narrow else f"{record.type:<23} "
        today = day(record.at)
        text = " ".join(part for part in (today if today != self._day else "", record.call or "", words(record)) if part)
        self._day = today
        moved = record.source != record.target
        return (page.paint(head, "dim") + page.paint(title, "bold" if moved else "") + cut(text, page.room(len(head) + len(title), otherwise=160))).rstrip()


def _types(given: str | None) -> set[str] | None:
    if given is None:
        return None
    types = {name.strip() for name in given.split(",") if name.strip()}
    unknown = sorted(types - FACTS.keys())
    if unknown or not types:
        near = get_close_matches(unknown[0], FACTS, n=1) if unknown else []
        raise Refused(
            f"--types {given}: there is no record of type {unknown[0] if unknown else given!r}"
            + (f"; did you mean {near[0]}?" if near else "; all types are in: refold diagram --format table")
        )
    return types


# -- lists


def runs(options: o.Runs) -> int:
    """All runs of the store."""
    if options.status is not None and options.status not in STATUSES:
        raise Refused(f"--status {options.status}: it is one of {', '.join(STATUSES)}")
    found = [(row, parked) for row, parked in _listed(options) if options.status is None or row["status"] == options.status]
    if options.json:
        output.document([row for row, _parked in found])
        return COMPLETED
    if not found:
        output.note("no runs" if options.status is None else f"no runs are {options.status}")
        return COMPLETED
    page = Page()
    rows = [
        (
            row["run_id"],
            "parked" if parked else row["status"],
            str(row["turns"]),
            since(row["started_at"]) if row["started_at"] else "",
            one_line(row["goal"]),
        )
        for row, parked in found
    ]
    for line in page.table(("RUN", "STATUS", "TURNS", "STARTED", "GOAL"), rows):
        if not output.line(line):
            break
    return COMPLETED


def _listed(options: o.Common) -> list[tuple[dict[str, Any], bool]]:
    """All runs in the documented shape, and of each whether it could go on and nobody drives it."""
    try:
        with opened(options) as store:
            rows = [_row(store, run_id) for run_id in store.runs()]
            return [(row, row["status"] == "running" and store.log.holder(RunId(row["run_id"])) is None) for row in rows]
    except StoreMissing:
        return []


def _row(store: Store, run_id: str) -> dict[str, Any]:
    """A run in the documented shape; one whose log cannot be followed is listed with the reason."""
    try:
        run = store.journal(run_id).run
    except NOT_FOLLOWED as error:
        return {
            "run_id": run_id,
            "goal": "",
            "status": "damaged",
            "state": None,
            "turns": 0,
            "started_at": None,
            "updated_at": None,
            "driver": None,
            "detail": one_line(str(error)),
        }
    driver = {"host": run.driver.host, "pid": run.driver.pid, "since": run.driver.since} if run.driver is not None else None
    return {
        "run_id": run.id,
        "goal": run.goal,
        "status": run.status,
        "state": run.state,
        "turns": run.turn,
        "started_at": run.started_at,
        "updated_at": run.at,
        "driver": driver,
    }


def pending(options: o.Pending) -> int:
    """What waits for a human, over all runs."""
    if options.json:
        output.document([asked for _run, asked in _waiting(options)])
        return COMPLETED
    page, number = Page(), -1
    for number, (run, asked) in enumerate(_waiting(options)):
        first, *rest = waiting_lines(options, run, asked)
        lines = [*page.paragraphs(first), page.paint(f"    {_asked(asked)}", "dim"), *(page.paint(line, "cyan") for line in rest)]
        output.line("\n".join([""] * (number > 0) + lines))
    if number < 0:
        output.note("nothing waits for anybody")
    return COMPLETED


def _asked(asked: dict[str, Any]) -> str:
    """Since when it waits, and until when."""
    expires = f", {'expired' if has_expired(asked) else 'expires'} {until(asked['expires_at'])}" if asked["expires_at"] is not None else ""
    return f"{'in doubt' if asked['kind'] == 'doubt' else 'asked'} {since(asked['since'])}{expires}"


def _waiting(options: o.Common) -> Iterator[tuple[Run, dict[str, Any]]]:
    try:
        with opened(options) as store:
            for run_id in store.runs():
                try:
                    run: Run = store.journal(run_id).run
                except NOT_FOLLOWED:
                    continue  # `runs` lists it as damaged
                yield from ((run, asked) for asked in pending_of(run))
    except StoreMissing:
        return
