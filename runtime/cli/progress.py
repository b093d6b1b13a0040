"""What is said while a run is driven: lines on standard error, and in a terminal a live foot with what happens now and what is left.

It hears what the driver hears (parts of the stream, records as they become durable) and changes nothing.
"""

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from refold.events import facts as f
from refold.events.codec import Record
from refold.projections.evolve import evolve
from refold.projections.run import Run
from refold.runtime.cli import output
from refold.runtime.cli.render import cut, one_line, short, thousands
from refold.runtime.cli.telling import arguments, proposal, seconds, words
from refold.runtime.ports import Part, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from rich.console import Group
    from rich.spinner import Spinner

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
        self.names: dict[str, str] = {call.id: call.name for call in run.calls}

    def tell(self, record: Record) -> Iterator[Said]:
        """The lines that a record is worth."""
        if record.position == self.run.position + 1:
            self.run = evolve(self.run, record.fact, target=record.target, at=record.at, head=record.digest)
        turn = f"turn {record.turn}"
        match record.fact:
            case f.ToolCallsRequested(text=text, calls=calls):
                self.names |= {call.id: call.name for call in calls}
                if text.strip():
                    yield "dim", f"{turn}  {one_line(text, 160)}"
                for call in calls:
                    yield "bold", f"{turn}  {proposal(call)}"
            case f.ToolSucceeded(call=call_id, result=result, elapsed_us=elapsed):
                yield "green", f"        {self._name(call_id)}: {short(result)} ({seconds(elapsed)})"
            case (
                f.ToolFailed(call=call_id)
                | f.ToolRejected(call=call_id)
                | f.ToolClosed(call=call_id)
                | f.ApprovalDenied(call=call_id)
                | f.ToolInDoubt(call=call_id)
            ):
                yield "red", f"        {self._name(call_id)}: {cut(words(record), 160)}"
            case f.DuplicateActionBlocked(call=call_id, message=message):
                yield "red", f"        {self._name(call_id)}: duplicate_action: {one_line(message, 160)}"
            case f.RetryScheduled():
                yield "yellow", f"{turn}  trying again, {cut(words(record), 160)}"
            case f.ModelFailed() | f.ModelInterrupted() | f.ModelErrorObserved():
                yield "red", f"{turn}  {cut(words(record), 160)}"
            case f.FinalRejected():
                yield "yellow", f"{turn}  the answer was not accepted: {cut(words(record), 160)}"
            case f.FinalProposed():
                yield "dim", f"{turn}  an answer"
            case f.ApprovalGranted(call=call_id, who=who):
                yield "green", f"        {self._name(call_id)}: approved by {one_line(who, 40)}"
            case f.UserSaid(text=text):
                yield "bold", f"{turn}  said: {one_line(text, 160)}"
            case _:
                pass

    def _name(self, call_id: str) -> str:
        return one_line(self.names.get(call_id, call_id), 64)

    def spent(self) -> str:
        """Everything that has a limit, used and allowed."""
        run = self.run
        if run.setup is None:
            return ""
        spent, budgets = run.spent, run.budgets
        pieces = [
            _of(f"turn {run.turn}", budgets.max_turns),
            _of(f"{spent.tool_calls}", budgets.max_tool_calls, " calls"),
            _of(thousands(spent.tokens), budgets.max_tokens, " tokens"),
        ]
        pieces += [_of(f"${spent.cost_usd}", f"${budgets.max_cost_usd}" if budgets.max_cost_usd is not None else None)]
        pieces += [_of(f"{spent.active_us // 1_000_000}", budgets.timeout_s, " s")]
        return " · ".join(pieces)

    def doing(self) -> str:
        """What happens now."""
        run = self.run
        running = [call for call in run.calls if call.phase in ("started", "retrying")] if run.state == "executing_tools" else []
        if running:
            return ", ".join(f"{one_line(call.name, 40)} {cut(arguments(call.proposed.arguments_text), 40)}".strip() for call in running)
        if run.state == "streaming_model" and run.setup is not None:
            return f"asking {one_line(run.setup.model, 60)}" + (
                " again" if run.asked == "retrying" or (run.request is not None and run.request.attempt > 1) else ""
            )
        return {"executing_tools": "waiting for a human", "done": "done"}.get(run.state, "beginning")


def _of(used: str, allowed: object, unit: str = "") -> str:
    if allowed is None:
        return f"{used}{unit}"
    return f"{used} of {thousands(allowed) if isinstance(allowed, int) else allowed}{unit}"


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
            self._text, self._since = "", time.monotonic()
            for style, text in self.story.tell(what):
                self._print(text, style)

    def note(self, text: str) -> None:
        self._print(text, "dim")

    def close(self) -> None:
        self._live.stop()

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style, no_wrap=True, overflow="ellipsis"), crop=True)

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
        lines.append(Text("  " + cut(self.story.spent(), columns - 3), style="dim"))
        return Group(*lines)
