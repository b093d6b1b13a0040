"""Budgets, policy and context as users write them: the recorded fields, checked by pydantic when they are made.

The fields live once, in `events/settings.py`; here are their bounds, and the reading of `--set KEY=VALUE`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from refold.events import settings as recorded
from refold.events.money import plain
from refold.projections.excerpts import EXCERPT_MIN


def _money(value: object) -> object:
    """Any way to write an amount to its plain decimal string."""
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        raise ValueError("an amount in USD is wanted, such as 0.50") from None
    if isinstance(value, bool) or not amount.is_finite() or amount < 0 or abs(amount.adjusted()) > 30:
        raise ValueError("an amount in USD is wanted, such as 0.50")
    return plain(amount)


def _moment(text: str) -> str:
    """An RFC 3339 time, kept in UTC so that it means the same on every machine."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time in RFC 3339 is wanted, such as 2030-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("a time with its offset is wanted, such as 2030-01-31T12:00:00Z")
    try:
        return moment.astimezone(UTC).isoformat()
    except OverflowError:
        raise ValueError("a time between the years 1 and 9999 is wanted") from None


def _whole(value: float) -> int | float:
    """A whole number of seconds is an integer, however it was written."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(ge=0, lt=2**53)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**53)]
Seconds = Annotated[int | float, Field(ge=0, le=10**9, allow_inf_nan=False), AfterValidator(_whole)]
Money = Annotated[str, BeforeValidator(_money)]
Moment = Annotated[str, AfterValidator(_moment)]
_CONFIG: Final = ConfigDict(extra="forbid", str_max_length=200, defer_build=True)


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Budgets(recorded.Budgets):
    """What a run may use up; `None` is no limit. Raises a ValueError that names the field."""

    max_turns: AtLeastOne | None = 12
    max_tool_calls: Count | None = 48
    max_tokens: AtLeastOne | None = 200_000
    max_cost_usd: Money | None = "1"
    timeout_s: Seconds | None = 120
    deadline: Moment | None = None
    max_output_tokens: AtLeastOne = 4_096


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Policy(recorded.Policy):
    """How the runtime answers what happens; times in seconds. Raises a ValueError that names the field."""

    max_tool_retries: Count = 1
    max_model_errors: Count = 2
    max_provider_retries: Count = 4
    max_retry_wait_s: Seconds = 120
    max_duplicate_actions: AtLeastOne = 1
    cycle_lengths: tuple[Annotated[int, Field(ge=1, le=20)], ...] = (1, 2, 3)
    cycle_repeats: Annotated[int, Field(ge=2, le=1000)] = 3
    parallel_tools: AtLeastOne = 4
    approval_expiry_s: Seconds | None = None
    tool_timeout_s: Seconds | None = 60
    model_idle_timeout_s: Seconds | None = 60
    max_result_bytes: AtLeastOne = 16_777_216
    max_stuck_threads: AtLeastOne = 4


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Context(recorded.Context):
    """What requests show of a run; `None` is no limit. Raises a ValueError that names the field."""

    window_tokens: Annotated[int, Field(ge=1_000, lt=2**53)] | None = None
    observation_bytes: Annotated[int, Field(ge=EXCERPT_MIN, lt=2**53)] | None = None
    compact_at: Annotated[int, Field(ge=10, le=100)] = 80
    keep_turns: AtLeastOne = 3
    relevant_turns: Count | None = None


class WrongSetting(ValueError):
    """A `KEY=VALUE` that is none: one line that names it."""


SECTIONS: Final = {"budgets": Budgets, "policy": Policy, "context": Context}
T = TypeVar("T", recorded.Budgets, recorded.Policy, recorded.Context)


def recorded_as(settings: T, base: type[T]) -> T:
    """The plain fields, as a log holds them."""
    return base(**asdict(settings))


def apply(
    assignments: Iterable[str], budgets: recorded.Budgets, policy: recorded.Policy, context: recorded.Context | None
) -> tuple[Budgets, Policy, Context, dict[str, Any]]:
    """Budgets, policy, context and the model's settings with every `section.field=value` applied. Raises WrongSetting."""
    values: dict[str, dict[str, Any]] = {"budgets": asdict(budgets), "policy": asdict(policy), "context": asdict(context or recorded.Context())}
    model: dict[str, Any] = {}
    for (section, field), value in _read(assignments).items():
        (model if section == "model" else values[section])[field] = value
    return Budgets(**values["budgets"]), Policy(**values["policy"]), Context(**values["context"]), model


def changes_of(assignments: Iterable[str]) -> dict[str, Any]:
    """Settings by path, such as `budgets.max_turns`, from `section.field=value`; those of the model are none that a recording can be asked about. Raises WrongSetting."""
    return {_askable(section, field): value for (section, field), value in _read(assignments).items()}


def checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by path, each as its field takes it. Raises WrongSetting."""
    made: dict[str, Any] = {}
    for name, value in changes.items():
        section, field = _known(name)
        path = _askable(section, field)
        made[path] = _checked(section, field, value, "none" if value is None else str(value))
    return made


def _askable(section: str, field: str) -> str:
    """The path of a setting that a recording can be asked about. Raises WrongSetting."""
    path = f"{section}.{field}"
    if section == "model":
        raise WrongSetting(
            f"--set {path}: no recording tells what a model would say under other settings; ask it with: refold fork RUN --at N --set {path}=..."
        )
    return path


def _read(assignments: Iterable[str]) -> dict[tuple[str, str], Any]:
    """Values by section and field. Raises WrongSetting, also where one is given twice with different values."""
    made: dict[tuple[str, str], tuple[Any, str]] = {}
    for assignment in assignments:
        section, field, text = _assigned(assignment)
        value = _value(text) if section == "model" else _checked(section, field, _written(field, text), text)
        first, typed = made.setdefault((section, field), (value, assignment))
        if (type(first), first) != (type(value), value):  # 1 is not true
            raise WrongSetting(f"--set {typed} and --set {assignment} say different things: give one of the two")
    return {name: value for name, (value, _) in made.items()}


def _assigned(assignment: str) -> tuple[str, str, str]:
    """Section, field and value of `section.field=value`. Raises WrongSetting."""
    key, mark, text = assignment.partition("=")
    if not mark or not key.strip().partition(".")[2]:
        raise WrongSetting(f"--set {assignment}: write it as SECTION.FIELD=VALUE, such as budgets.max_turns=6")
    return *_known(key.strip()), text


def _known(path: str) -> tuple[str, str]:
    """Section and field of a setting that there is; those of a model are free. Raises WrongSetting."""
    section, _, field = path.partition(".")
    if section != "model" and (section not in SECTIONS or field not in (item.name for item in fields(SECTIONS[section]))):
        raise WrongSetting(f"--set {path}: there is no such setting{_nearest(section, field)}")
    return section, field


def _written(field: str, text: str) -> Any:
    """A value as it is typed: `none` lifts a limit, commas make a sequence, `true` and `false` are what they say."""
    value = None if text.strip().lower() in ("none", "null", "") else text.strip()
    if field == "cycle_lengths":
        return tuple(part.strip() for part in (value or "").strip("[]()").split(",") if part.strip())
    return value


def _checked(section: str, field: str, value: Any, text: str) -> Any:
    """One value as its field takes it."""
    try:
        made: Any = TypeAdapter(SECTIONS[section]).validate_python({field: value})
    except ValidationError as error:
        raise WrongSetting(f"--set {section}.{field}={text}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    return getattr(made, field)


def _value(text: str) -> Any:
    """A free setting: what looks like a number or a truth value is one."""
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case "none" | "null":
            return None
    try:
        return int(text)
    except ValueError:
        return text


def _nearest(section: str, field: str) -> str:
    """The setting that was meant, where a name is near; else those there are."""
    from difflib import get_close_matches

    paths = {item.name: f"{name}.{item.name}" for name, kind in SECTIONS.items() for item in fields(kind)}
    if near := get_close_matches(field, paths, n=1):
        return f"; did you mean {paths[near[0]]}?"
    if section in SECTIONS:
        return f"; those of {section} are {', '.join(item.name for item in fields(SECTIONS[section]))}"
    return f"; the sections are {', '.join(SECTIONS)} and model"
