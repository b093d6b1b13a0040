"""What can be typed: one dataclass of options for each command, and the table of commands.

The one place where an option is named; help, parsing and the commands read it from here.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from refold.runtime.cli.parsing import argument, option, switch, whole_number

DEFAULT_STORE: Final = "sqlite:///.refold/log.db"
NAMED: Final = "a run's id, the beginning of one, or last"
OUTPUT, AGENT, LIMITS, PEOPLE, VERDICT = "Output and store", "What runs", "Limits", "Humans and interruptions", "What became of it (exactly one)"
OTHERWISE: Final = "What would have been otherwise"


def _counted(text: str) -> int:
    """A number that is at least one. Raises ValueError."""
    number = whole_number(text)
    if number < 1:
        raise ValueError("it is 1 or more")
    return number


def _digest(text: str) -> str:
    """Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{43}", text):
        raise ValueError("a digest of 43 characters is wanted, as refold show and refold export print it")
    return text


@dataclass(kw_only=True)
class Common:
    """What every command takes."""

    store: str = field(
        default_factory=lambda: os.environ.get("REFOLD_STORE") or DEFAULT_STORE,
        metadata=option("--store", "URL", "sqlite:///PATH, postgresql://... or memory: (or REFOLD_STORE)", group=OUTPUT).metadata,
    )
    json: bool = switch("--json", "one JSON document on stdout (JSON Lines for log)", group=OUTPUT)


@dataclass(kw_only=True)
class Driving(Common):
    """What every command takes that drives a run."""

    docs: tuple[str, ...] = option("--docs", "DIR", "answer from the documents in this folder; may be given several times", group=AGENT, many=True)
    agent: str | None = option("--agent", "MODULE:NAME", "your own agent (or REFOLD_AGENT, or a name from [tool.refold.agents])", group=AGENT)
    model: str | None = option(
        "--model",
        "SPEC",
        "offline, script:FILE which plays turns from a file, openai:NAME, openai-chat:NAME, deepseek:NAME or anthropic:NAME (or REFOLD_MODEL)",
        group=AGENT,
    )
    base_url: str | None = option("--base-url", "URL", "where the provider is reached", group=AGENT)
    settings: tuple[str, ...] = option(
        "--set", "KEY=VALUE", "a setting, such as budgets.max_turns=6, policy.on_tool_error=stop, model.stream=false", group=AGENT, many=True
    )
    max_turns: str | None = option("--max-turns", "N", "turns of the model", group=LIMITS)
    max_cost: str | None = option("--max-cost", "USD", "money, such as 0.50", group=LIMITS)
    timeout: str | None = option("--timeout", "S", "seconds of work; waiting for people, or before another attempt, does not count", group=LIMITS)
    approve: tuple[str, ...] = option("--approve", "TOOL", "approve every call of this tool", group=PEOPLE, many=True)
    no_input: bool = switch("--no-input", "never ask at the terminal: a run that waits for somebody ends the command with exit code 3", group=PEOPLE)
    on_interrupt: str = option(
        "--on-interrupt",
        "cancel|park",
        "what the first Ctrl-C does: end the run, or leave it for `refold resume`",
        group=PEOPLE,
        read=lambda text: _one_of(text, "cancel", "park"),
        default="cancel",
    )
    quiet: bool = switch("--quiet -q", "no progress and no notes on stderr", group=OUTPUT)


@dataclass(kw_only=True)
class Beginning(Driving):
    """What every command takes that begins a run."""

    run_id: str | None = option("--run-id", "ID", "the id of the new run", group=AGENT)


@dataclass(kw_only=True)
class Run(Beginning):
    """refold run"""

    goal: str = argument("GOAL", "what is to be done; - reads it from standard input, @FILE from a file")


@dataclass(kw_only=True)
class Resume(Driving):
    """refold resume"""

    run: str = argument("RUN", NAMED)


@dataclass(kw_only=True)
class Continue(Beginning):
    """refold continue"""

    run: str = argument("RUN", f"{NAMED}; it has ended")
    message: str = argument("MESSAGE", "what you say now; - reads it from standard input, @FILE from a file", optional=True)


@dataclass(kw_only=True)
class Fork(Beginning):
    """refold fork"""

    run: str = argument("RUN", NAMED)
    at: int | None = option(
        "--at", "N", "the record behind which it goes its own way; the last one before, where the run does not rest there", read=whole_number
    )
    edits: tuple[str, ...] = option("--edit", "CALL=FILE", "the result of a call as it is in this file (.json: a value, else text)", group=AGENT, many=True)
    say: str | None = option("--say", "TEXT", "what you say to it; - reads it from standard input, @FILE from a file", group=AGENT)
    allow_repeat: bool = switch("--allow-repeat", "do again, without asking, what the parent did later", group=PEOPLE)


@dataclass(kw_only=True)
class Chat(Beginning):
    """refold chat"""


@dataclass(kw_only=True)
class Show(Common):
    """refold show"""

    run: str = argument("RUN", NAMED)
    at: int | None = option("--at", "N", "as it was after record N", read=whole_number)
    prompt: bool = switch("--prompt", "the exact request that was open there")


@dataclass(kw_only=True)
class Log(Common):
    """refold log"""

    run: str = argument("RUN", NAMED)
    follow: bool = switch("--follow -f", "go on with new records until the run ends")
    types: str | None = option("--types", "T,T", "only records of these types")
    full: bool = switch("--full", "with large values in their place")


@dataclass(kw_only=True)
class Runs(Common):
    """refold runs"""

    status: str | None = option("--status", "S", "only runs with this status")


@dataclass(kw_only=True)
class Pending(Common):
    """refold pending"""


@dataclass(kw_only=True)
class Doctor(Common):
    """refold doctor"""


@dataclass(kw_only=True)
class Commanding(Common):
    """What every word from outside takes."""

    command_id: str | None = option("--command-id", "ID", "a name for this command: given again, it does nothing and says so", group=PEOPLE)


@dataclass(kw_only=True)
class Deciding(Commanding, Driving):
    """What a human's word to a waiting run takes."""

    resume: bool = switch("--resume", "drive the run on at once", group=PEOPLE)


@dataclass(kw_only=True)
class Answer(Deciding):
    """refold answer"""

    run: str = argument("RUN", NAMED)
    text: str = argument("[CALL] TEXT", "the answer; - reads it from standard input, @FILE from a file")
    more: str = argument("", "", optional=True)
    call: str | None = option("--call", "CALL", "which question, where there are several", group=PEOPLE)


@dataclass(kw_only=True)
class Approve(Deciding):
    """refold approve"""

    run: str = argument("RUN", NAMED)
    named: str = argument("CALL", "which call, where several wait", optional=True)
    call: str | None = option("--call", "CALL", "the same as CALL in its place", group=PEOPLE)
    all: bool = switch("--all", "every call that waits for approval", group=PEOPLE)
    arguments: str | None = option("--arguments", "JSON|@FILE", "run it with these arguments instead; the agent's code checks them", group=PEOPLE)
    digest: str | None = option("--digest", "D", "only if this is what is approved (see refold pending --json)", group=PEOPLE)


@dataclass(kw_only=True)
class Deny(Deciding):
    """refold deny"""

    run: str = argument("RUN", NAMED)
    named: str = argument("CALL", "which call, where several wait", optional=True)
    call: str | None = option("--call", "CALL", "the same as CALL in its place", group=PEOPLE)
    all: bool = switch("--all", "every call that waits for approval", group=PEOPLE)
    reason: str | None = option("--reason", "TEXT", "why; the model is told", group=PEOPLE)


@dataclass(kw_only=True)
class Resolve(Deciding):
    """refold resolve"""

    run: str = argument("RUN", NAMED)
    named: str = argument("CALL", "which call, where several are in doubt", optional=True)
    call: str | None = option("--call", "CALL", "the same as CALL in its place", group=PEOPLE)
    happened: bool = switch("--happened", "it took place", group=VERDICT)
    result: str | None = option("--result", "JSON|@FILE", "with --happened: what it gave", group=VERDICT)
    did_not_happen: bool = switch("--did-not-happen", "it did not take place", group=VERDICT)
    tell_model: bool = switch("--tell-model", "nobody knows: the model is told so", group=VERDICT)


@dataclass(kw_only=True)
class Say(Deciding):
    """refold say"""

    run: str = argument("RUN", NAMED)
    text: str = argument("TEXT", "the message; the next turn shows it")


@dataclass(kw_only=True)
class Compact(Deciding):
    """refold compact"""

    run: str = argument("RUN", NAMED)


@dataclass(kw_only=True)
class Cancel(Commanding):
    """refold cancel"""

    run: str = argument("RUN", NAMED)
    reason: str = option("--reason", "TEXT", "why", default="")
    no_wait: bool = switch("--no-wait", "do not wait until it has ended")


@dataclass(kw_only=True)
class Several(Common):
    """What every check takes that goes through many runs."""

    runs: tuple[str, ...] = argument("RUN|FILE", "the runs, or exported files, to check; - is standard input", many=True, optional=True)
    all: bool = switch("--all", "every run of the store")
    jobs: int | None = option("--jobs", "N", "processes at a time, for many runs (as many as there are CPUs)", read=_counted)


@dataclass(kw_only=True)
class Replay(Several):
    """refold replay"""

    settings: tuple[str, ...] = option(
        "--set", "KEY=VALUE", "what would have been decided otherwise under this setting, such as budgets.max_turns=3", group=OTHERWISE, many=True
    )
    agent: str | None = option("--agent", "MODULE:NAME", "ask this agent's schemas, rules and validators again", group=OTHERWISE)
    expect_identical: bool = switch("--expect-identical", "exit code 1 where anything would have been decided otherwise", group=OTHERWISE)


@dataclass(kw_only=True)
class Diff(Common):
    """refold diff"""

    left: str = argument("A", f"{NAMED}, or an exported file")
    right: str = argument("B", "the run, or the file, to compare it with")


@dataclass(kw_only=True)
class Audit(Several):
    """refold audit"""


@dataclass(kw_only=True)
class Verify(Common):
    """refold verify"""

    file: str = argument("FILE|RUN", "an exported run, or one of the store; - is standard input")
    keys: tuple[str, ...] = option("--key", "PUBLIC", "a public key that must have sealed everything; may be given several times", many=True)
    head: str | None = option("--head", "DIGEST", "a head that it must have, known from `refold show` or `refold export`", read=_digest)


@dataclass(kw_only=True)
class Seal(Common):
    """refold seal"""

    runs: tuple[str, ...] = argument("RUN", "ended runs, whose heads are signed", many=True, optional=True)
    all: bool = switch("--all", "every ended run of the store")
    key: str | None = option("--key", "FILE", "the private key, Ed25519 in PEM")
    new_key: str | None = option("--new-key", "FILE", "make a key instead: the private half in FILE, the public one in FILE.pub")


@dataclass(kw_only=True)
class Export(Common):
    """refold export"""

    run: str = argument("RUN", NAMED)


@dataclass(kw_only=True)
class Import(Common):
    """refold import"""

    files: tuple[str, ...] = argument("FILE", "exported runs; - is standard input", many=True)


@dataclass(kw_only=True)
class Diagram(Common):
    """refold diagram"""

    runs: tuple[str, ...] = argument("RUN", "draw these runs over the machine", many=True, optional=True)
    format: str = option("--format", "NAME", "mermaid, dot, svg or table", default="mermaid")


CERTIFY, HUMANS = "How far", "How humans decide"


@dataclass(kw_only=True)
class Certify(Common):
    """refold certify"""

    store: str = ""  # each run that is killed has a file of its own, so that nobody's store is filled
    agent: str = argument("MODULE:AGENT", "your agent; its tools are called for real, with REFOLD_CERTIFY naming a folder that is the world of one run")
    goal: str = option("--goal", "TEXT", "what the agent is asked to do", default="Do what you are there for.")
    recovery: int = option("--recovery", "N", "how many steps of each recovery are killed again (2)", group=CERTIFY, read=whole_number, default=2)
    every: int = option("--every", "N", "only each nth step: a quicker look", group=CERTIFY, read=_counted, default=1)
    only: str | None = option("--only", "SCENARIO", "one scenario by its name, such as death@17,death@2", group=CERTIFY)
    keep: str | None = option("--keep", "DIR", "keep the logs of scenarios with something wrong in this folder", group=CERTIFY)
    jobs: int = option("--jobs", "N", "runs at a time (2)", group=CERTIFY, read=_counted, default=2)
    deny: bool = switch("--deny", "deny every call that waits for approval, instead of approving it", group=HUMANS)
    answer: str = option("--answer", "TEXT", "the answer to every question", group=HUMANS, default="Yes.")
    look: bool = switch("--look", "of a call in doubt, say what became of it, instead of telling the model that nobody knows", group=HUMANS)


@dataclass(frozen=True)
class Command:
    """A command: its options, the function that performs it (`module:function` of this folder), and a line of help."""

    shape: type[Common]
    performed_by: str
    line: str
    chapter: str


RUNNING, WATCHING, TALKING, CHECKING = "Run", "Look", "Answer", "Prove"
COMMANDS: Final[dict[str, Command]] = {
    "run": Command(Run, "running:run", "start a run for a goal and drive it", RUNNING),
    "resume": Command(Resume, "running:resume", "drive an unfinished run on", RUNNING),
    "continue": Command(Continue, "running:continue_", "a new run that goes on from an ended one", RUNNING),
    "fork": Command(Fork, "forking:fork", "a run that goes another way from some record of one", RUNNING),
    "chat": Command(Chat, "chatting:chat", "run, then continue with every further line", RUNNING),
    "cancel": Command(Cancel, "humans:cancel", "end a run, whoever drives it", RUNNING),
    "runs": Command(Runs, "reading:runs", "list the runs of the store", WATCHING),
    "show": Command(Show, "reading:show", "a run as it is, or as it was after any record", WATCHING),
    "log": Command(Log, "reading:log", "the records of a run", WATCHING),
    "diagram": Command(Diagram, "drawing:diagram", "draw the machine, and the way of a run through it", WATCHING),
    "pending": Command(Pending, "reading:pending", "what waits for a human, in all runs", TALKING),
    "answer": Command(Answer, "humans:answer", "answer a run's question", TALKING),
    "approve": Command(Approve, "humans:approve", "allow a call that waits for approval", TALKING),
    "deny": Command(Deny, "humans:deny", "refuse a call and say why", TALKING),
    "resolve": Command(Resolve, "humans:resolve", "say what became of a call in doubt", TALKING),
    "say": Command(Say, "humans:say", "a message that the next turn shows", TALKING),
    "compact": Command(Compact, "humans:compact", "show older turns as a summary from the next turn on", TALKING),
    "doctor": Command(Doctor, "doctor:doctor", "what needs a person, and how large the store is", WATCHING),
    "diff": Command(Diff, "differing:diff", "compare two runs turn by turn", CHECKING),
    "replay": Command(Replay, "replaying:replay", "derive runs again and compare, or say what would have been decided otherwise", CHECKING),
    "audit": Command(Audit, "checking:audit", "check a run against every invariant, with evidence", CHECKING),
    "certify": Command(Certify, "certifying:certify", "kill an agent's run at every step, resume it, and compare", CHECKING),
    "export": Command(Export, "checking:export", "a run as one JSON Lines file on stdout", CHECKING),
    "verify": Command(Verify, "sealing:verify", "check the chain of an exported run, its seals and its head", CHECKING),
    "seal": Command(Seal, "sealing:seal", "sign the head of ended runs, so that nothing can go missing at their end", CHECKING),
    "import": Command(Import, "checking:import_", "take exported runs into the store", CHECKING),
}


def _one_of(text: str, *choices: str) -> str:
    if text not in choices:
        raise ValueError(f"it is one of {', '.join(choices)}")
    return text


Perform = Callable[[Common], int]
"""A command: options in, exit code out. Raises what `exits.explain` puts into one line."""
