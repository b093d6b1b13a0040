"""Hypothesis strategies: settings, model scripts, what tools do, and where a process dies.

Values come from small sets on purpose: actions must repeat, limits must be met and calls must be refused for anything interesting to happen.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from hypothesis import strategies as st

from refold.events.settings import Budgets, Context, Policy
from refold.runtime.settings import Budgets as AgentBudgets, Policy as AgentPolicy
from refold.runtime.tools import NotPerformed, RetryableToolError, Tool, ToolContext, ToolResult
from refold.testing.faults import Fate, Fault, Place

STRANGE_TEXTS: Final = ("", " ", "a", "naïve", "\N{THUMBS UP SIGN}", "\0", "\u202e", '"$payload"', "x" * 5_000, "a\nb", "\ud83d")
"""Texts that have broken something somewhere, a half of a surrogate pair among them."""


def texts() -> st.SearchStrategy[str]:
    """Short texts, and strange ones."""
    return st.one_of(st.sampled_from(("yes", "no", "the answer", "two\nlines")), st.sampled_from(STRANGE_TEXTS), st.text(max_size=8))


TIGHT: Final[dict[str, tuple[Any, ...]]] = {
    "max_turns": (1, 2, 3, 5),
    "max_tool_calls": (0, 1, 3),
    "max_tokens": (200, 1_000, 2_000),
    "max_cost_usd": ("0", "0.03"),
    "timeout_s": (0, 1),
    "deadline": ("2026-01-01T00:00:05+00:00",),
    "max_output_tokens": (100,),
}
"""Budgets that are met soon, by field."""


def budgets() -> st.SearchStrategy[Budgets]:
    """Budgets: ordinary ones, none at all, or one or two that are met soon."""
    tight = st.lists(st.sampled_from(sorted(TIGHT)), min_size=1, max_size=2, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(TIGHT[name]) for name in names})
    )
    none = st.just(dict.fromkeys(name for name in TIGHT if name != "max_output_tokens"))
    return st.one_of(st.just({}), none, tight).map(lambda fields: Budgets(**fields))


def policies() -> st.SearchStrategy[Policy]:
    """Policies with few attempts, so that they are used up."""
    return st.builds(
        Policy,
        on_doubt=st.sampled_from(("tell_model", "ask")),
        on_tool_error=st.sampled_from(("observe", "observe", "stop")),
        max_tool_retries=st.integers(0, 2),
        max_model_errors=st.integers(0, 2),
        max_provider_retries=st.integers(0, 2),
        max_retry_wait_s=st.sampled_from((120, 1)),
        max_duplicate_actions=st.integers(1, 2),
        cycle_lengths=st.sampled_from(((1, 2, 3), (), (2,))),
        cycle_repeats=st.integers(2, 3),
        on_refusal=st.sampled_from(("stop", "observe")),
        approval_expiry_s=st.sampled_from((None, 5, 1)),
        wrap_up=st.booleans(),
    )


def contexts() -> st.SearchStrategy[Context | None]:
    """Contexts: none, as in old runs, one without limits, or a window that is soon full."""
    tight = st.builds(
        Context,
        window_tokens=st.sampled_from((None, 1_500, 2_000)),
        observation_bytes=st.sampled_from((None, 700)),
        compact_at=st.sampled_from((20, 80)),
        keep_turns=st.sampled_from((1, 1, 2)),
        compaction=st.sampled_from(("extractive", "model", "model", "off")),
        relevant_turns=st.sampled_from((None, 1)),
    )
    return st.one_of(st.none(), st.just(Context()), tight)


# -- model scripts


def arguments_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Arguments for a tool: mostly such as its schema wants, from few values; sometimes without a field, with one too many, or not even an object."""
    properties: dict[str, Any] = schema.get("properties", {})
    fitting = st.fixed_dictionaries({name: _values(wanted) for name, wanted in properties.items()})
    return st.one_of(fitting, fitting, fitting, fitting, st.sampled_from(({}, {"nothing": 1}, "{", "[]", "null", None, 3)))


def _values(wanted: dict[str, Any]) -> st.SearchStrategy[Any]:
    match wanted.get("type"):
        case "integer":
            return st.sampled_from((1, 2, 50))
        case "number":
            return st.sampled_from((1, 0.5))
        case "boolean":
            return st.booleans()
        case "string":
            return st.sampled_from(wanted.get("enum", ("a", "b")))
        case "array":
            return st.lists(_values(wanted.get("items", {})), max_size=2)
        case _:
            return st.sampled_from((None, "a", 1))


def model_calls(tools: list[Tool]) -> st.SearchStrategy[dict[str, Any]]:
    """One call as a script has it: of these tools, or of one that does not exist."""
    known = [st.fixed_dictionaries({"name": st.just(tool.name), "arguments": arguments_of(tool.schema)}) for tool in tools]
    return st.one_of(*known, st.just({"name": "nothing"}))


def script_entries(tools: list[Tool]) -> st.SearchStrategy[dict[str, Any]]:
    """One entry of a script: calls, an answer, a failure of the provider, or a turn that comes to nothing; some with usage, a price, an odd end."""
    calls = st.lists(model_calls(tools), min_size=1, max_size=3)
    more = {
        "usage": st.fixed_dictionaries({"input_tokens": st.integers(0, 200), "output_tokens": st.integers(0, 50)}),
        "cost_usd": st.sampled_from(("0", "0.01", "0.000001")),
        "chunks": st.integers(1, 4),
    }
    asking = st.fixed_dictionaries({"calls": calls}, optional={**more, "text": texts(), "stop_reason": st.sampled_from(("tool_calls", "length"))})
    ends = st.sampled_from(("stop", "stop", "length", "refusal", "content_filter", "context_overflow"))
    saying = st.fixed_dictionaries({"text": texts()}, optional={**more, "stop_reason": ends, "reasoning": texts()})
    error = st.fixed_dictionaries(
        {"type": st.just("overloaded"), "message": texts(), "retryable": st.sampled_from((True, True, False)), "retry_after_s": st.just(0)}
    )
    return st.one_of(asking, asking, asking, saying, st.fixed_dictionaries({"error": error}), st.just({"refusal": "I will not"}))


def model_scripts(tools: list[Tool], max_size: int = 8) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Scripts for a `ScriptedModel`; most end with an answer."""
    answer = st.just([{"text": "the answer\nin two lines"}])
    return st.tuples(st.lists(script_entries(tools), max_size=max_size), st.one_of(answer, answer, st.just([]))).map(lambda parts: parts[0] + parts[1])


# -- what tools do

Deed = Literal["returns", "returns much", "returns sources", "returns odd things", "fails", "fails at first", "knows nothing happened", "exits", "is late"]
DEEDS: Final[tuple[Deed, ...]] = (
    "returns",
    "returns much",
    "returns sources",
    "returns odd things",
    "fails",
    "fails at first",
    "knows nothing happened",
    "exits",
    "is late",
)


@dataclass(frozen=True)
class Behaviour:
    """What a handler does, the same in every attempt and in every process but for `fails at first`. Only a coroutine can be late, since a thread cannot be stopped."""

    deed: Deed
    retryable: bool = False

    def act(self, ctx: ToolContext) -> object:
        """The deed. Raises whatever belongs to it."""
        match self.deed:
            case "returns" | "is late":
                return {"done": True}
            case "returns much":
                return "much " * 2_000
            case "returns sources":
                return ToolResult(data=[1, 2.5, None], source_ids=["a", "b"], notes=["worth keeping"])
            case "returns odd things":
                return {"when": object()}
            case "fails":
                raise (RetryableToolError if self.retryable else ValueError)("it does not work")
            case "fails at first":
                if ctx.attempt < 2:
                    raise (_Nothing if self.retryable else RetryableToolError)("not yet")
                return "at last"
            case "knows nothing happened":
                raise NotPerformed("it was closed")
            case "exits":
                raise SystemExit(3)


class _Nothing(RetryableToolError, NotPerformed):
    """May be tried again, because nothing happened."""


def behaviours() -> st.SearchStrategy[Behaviour]:
    """What a handler does; mostly it works."""
    return st.builds(Behaviour, deed=st.one_of(st.just("returns"), st.sampled_from(DEEDS)), retryable=st.booleans())


def agent_budgets() -> st.SearchStrategy[AgentBudgets]:
    """The same budgets as an `Agent` takes them; none that depends on how quick the machine is."""
    timeless = budgets().map(lambda drawn: {name: getattr(drawn, name) for name in drawn.__dataclass_fields__} | {"timeout_s": None, "deadline": None})
    return timeless.map(lambda fields: AgentBudgets(**fields))


def agent_policies() -> st.SearchStrategy[AgentPolicy]:
    """The same policies as an `Agent` takes them."""
    return policies().map(lambda drawn: AgentPolicy(**{name: getattr(drawn, name) for name in drawn.__dataclass_fields__}))


# -- crash points


def crash_points() -> st.SearchStrategy[Fate]:
    """A death, a failure of the store or a conflict somewhere in the first steps of a run."""
    appends: tuple[Place, ...] = ("append", "appended")
    deaths: tuple[Place, ...] = (*appends, "request", "part", "answered", "tool", "acted", "validator", "policy")
    of_stores: tuple[tuple[Place, Fault], ...] = (("append", "unavailable"), ("appended", "unavailable"), ("append", "conflict"))
    chosen = st.one_of(st.sampled_from(deaths).map(lambda place: (place, "death")), st.sampled_from(of_stores))
    return st.builds(lambda where, nth: Fate(where[0], nth, where[1]), chosen, st.integers(1, 12))
