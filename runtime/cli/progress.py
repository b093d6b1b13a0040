"""What is said while a run is driven: lines on standard error, and in a terminal a live foot with what happens now and what is left.

It hears what the driver hears (parts of the stream, records as they become durable) and changes nothing.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from refold.events import facts as f
from refold.events.codec import Record
from refold.projections.evolve import evolve
from refold.projections.run import Run
from refold.runtime.cli import output
from refold.runtime.cli.render import Page, counted, cut, one_line, short, thousands
from refold.runtime.cli.telling import arguments, proposal, seconds, words
from refold.runtime.ports import Part, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from rich.console import Group
    from rich.spinner import Spinner

LINE: Final = 160
"""Columns that a text takes at most in a line of progress."""
WHY: Final = 1_000
"""And one that says what went wrong."""
BESIDE: Final = 8
"""Columns in which the turn is named."""

Said = tuple[str, str]
"""A style and a text."""


class Progress(Protocol):
    """Somebody who is told what happens."""

    def hear(self, what: Part | Record) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


def progress_for(run: Run, *, quiet: bool) -> Progress:
    """Live in a terminal, lines elsewhere, nothing when quiet. `run` is where the run stands."""
    if quiet:
        return Quiet()
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Live(run)
    return Lines(run)


class Quiet:
    """Says nothing but what must be known."""

    def hear(self, what: Part | Record) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """A line for whatever a person wants to know, without colours or movement."""

    def __init__(self, run: Run) -> None:
        self.story = Story(run)

    def hear(self, what: Part | Record) -> None:
        if isinstance(what, Record):
            for _style, text in self.story.tell(what):
                output.note(text)

    def note(self, text: str) -> None:
        output.note(text)

    def close(self) -> None:
        """Every line is out."""


class Story:
    """A run as it is told: folded from the records that are heard."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._names = _names([call.proposed for call in run.calls])
        self._turn = 0

    def tell(self, record: Record) -> Iterator[Said]:
        """The lines that a record is worth; a turn is named once, in front of its first line."""
        if record.position == self.run.position + 1:
            self.run = evolve(self.run, record.fact, target=record.target, at=record.at, head=record.digest)
        for style, text in self._lines(record):
            named = f"turn {record.turn}" if record.turn != self._turn else ""
            self._turn = record.turn
            yield style, f"{named:<{BESIDE}}{text}"

    def _lines(self, record: Record) -> Iterator[Said]:
        match record.fact:
            case f.ToolCallsRequested(text=text, calls=calls):
                self._names |= _names(calls)
                if text.strip():
                    yield "", one_line(text, LINE)
                for call in calls:
                    yield "bold", f"→ {proposal(call)}"
            case f.ToolSucceeded(call=call_id, result=result, elapsed_us=elapsed):
                yield "green", f"✓ {self._name(call_id)} ({seconds(elapsed)}): {short(result)}"
            case f.ClarificationReceived(call=call_id, text=text):
                yield "green", f"✓ {self._name(call_id)}: {one_line(text, LINE)}"
            case f.ApprovalGranted(call=call_id, who=who):
                yield "green", f"✓ {self._name(call_id)} is approved by {one_line(who, 40)}"
            case f.ToolRejected(call=call_id) | f.ToolClosed(call=call_id) | f.ApprovalDenied(call=call_id) | f.ToolInDoubt(call=call_id):
                yield "red", f"✗ {self._name(call_id)}: {cut(words(record), WHY)}"
            case f.DuplicateActionBlocked(call=call_id, message=message):
                yield "red", f"✗ {self._name(call_id)}: duplicate_action: {one_line(message, WHY)}"
            case f.ContextCompacted(error=error):
                yield ("red" if error else "dim"), f"≡ {cut(words(record), WHY if error else LINE)}"
            case f.RetryScheduled():
                yield "yellow", f"↻ {cut(words(record), WHY)}"
            case f.ModelInterrupted(cause="paused"):
                yield "", "the provider paused, and is asked to go on"
            case f.ModelInterrupted() | f.ModelErrorObserved():
                yield "red", f"✗ {cut(words(record), WHY)}"
            case f.FinalRejected():
                yield "yellow", f"✗ the answer is not accepted: {cut(words(record), WHY)}"
            case f.UserSaid(text=text):
                yield "bold", f"said: {one_line(text, LINE)}"
            case _:
                pass

    def _name(self, call_id: str) -> str:
        return self._names.get(call_id, call_id)

    def left(self) -> str:
        """Everything that has a limit: used of allowed."""
        run = self.run
        if run.setup is None:
            return ""
        spent, budgets = run.spent, run.budgets
        return " · ".join(
            (
                _of("turn", thousands(run.turn), budgets.max_turns),
                _of("calls", thousands(spent.tool_calls), budgets.max_tool_calls),
                _of("tokens", thousands(spent.tokens), budgets.max_tokens),
                _of("$", spent.cost_usd, budgets.max_cost_usd),
                _of("s", str(spent.active_us // 1_000_000), budgets.timeout_s),
            )
        )

    def used(self) -> str:
        """What was used, for the end."""
        run, spent = self.run, self.run.spent
        return f"{counted(run.turn, 'turn')} · {counted(spent.tool_calls, 'call')} · {counted(spent.tokens, 'token')} · ${spent.cost_usd} · {spent.active_us / 1_000_000:.1f} s"

    def doing(self) -> str:
        """What happens now."""
        run = self.run
        running = [call for call in run.calls if call.phase in ("started", "retrying")] if run.state == "executing_tools" else []
        if running:
            return ", ".join(f"{one_line(call.name, 40)} {cut(arguments(call.proposed.arguments_text), 40)}".strip() for call in running)
        if run.past.asked is not None and run.state != "done":
            return "making a summary of older turns"
        if run.state == "streaming_model" and run.setup is not None:
            return f"asking {one_line(run.setup.model, 60)}" + (
                " again" if run.asked == "retrying" or (run.request is not None and run.request.attempt > 1) else ""
            )
        return {"executing_tools": "waiting for a human", "done": "done"}.get(run.state, "beginning")


def _names(calls: Sequence[f.ProposedCall]) -> dict[str, str]:
    """What each call of a turn is called: by its tool, and where that is called several times by its arguments too."""
    times = Counter(call.name for call in calls)
    return {call.id: cut(proposal(call), 48) if times[call.name] > 1 else one_line(call.name, 48) for call in calls}


def _of(unit: str, used: str, allowed: object) -> str:
    limit = "" if allowed is None else f"/{thousands(allowed) if isinstance(allowed, int) else allowed}"
    return f"${used}{limit}" if unit == "$" else f"{used}{limit} s" if unit == "s" else f"{unit} {used}{limit}"


def in_full(text: str, page: Page) -> list[str]:
    """What went wrong, over several lines where it must be: its reason stands at the end."""
    first, *rest = page.paragraphs(text[BESIDE:], " " * BESIDE)
    return [text[:BESIDE] + first[BESIDE:], *rest]


class Live:
    """Lines that stay, and below them a foot that is drawn again and again and leaves nothing behind."""

    def __init__(self, run: Run) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive
        from rich.spinner import Spinner

        self.story = Story(run)
        self._text, self._since = "", time.monotonic()
        self._console = Console(stderr=True, highlight=False, soft_wrap=False)
        self._spinner = Spinner("dots", style="cyan")
        self._live = RichLive(get_renderable=self._foot, console=self._console, refresh_per_second=10, transient=True)
        self._live.start()

    def hear(self, what: Part | Record) -> None:
        if isinstance(what, TextDelta | ReasoningDelta):
            self._text = (self._text + what.text)[-400:]
        elif isinstance(what, Record):
            if not isinstance(what.fact, f.StreamCheckpointed | f.UsageUpdated):  # what streams goes on behind those
                self._text, self._since = "", time.monotonic()
            for style, text in self.story.tell(what):
                self._print(text, style)

    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style="dim"))  # in full, over several lines where it must be

    def close(self) -> None:
        self._live.stop()

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        for line in in_full(text, Page(sys.stderr)) if style in ("red", "yellow") else [cut(text, self._console.width)]:
            self._console.print(Text(line, style=style))

    def _foot(self) -> "Group":
        from rich.console import Group
        from rich.text import Text

        columns = self._console.width
        waited = int(time.monotonic() - self._since)
        doing = self.story.doing() + (f" ({waited} s)" if waited >= 1 else "")
        self._spinner.update(text=Text(cut(doing, columns - 3), style="bold"))
        lines: list[Spinner | Text] = [self._spinner]
        if self._text.strip():
            tail = one_line(self._text)
            lines.append(Text("  " + tail[-(columns - 3) :], no_wrap=True))
        lines.append(Text("  " + cut(self.story.left(), columns - 3), style="dim"))
        return Group(*lines)
