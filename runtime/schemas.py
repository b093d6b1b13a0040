"""Arguments checked against a JSON Schema, for tools that come with one instead of a typed function.

The only file that names jsonschema-rs, which it loads when the first such tool is declared. It is used because it is one typed wheel without dependencies,
never recurses on Python's stack, bounds its regular expressions and can leave values out of its messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

COMPLAINTS_MAX: Final = 20
VALUE: Final = "the value"
"""Stands in messages where the value itself would."""


@dataclass(frozen=True)
class Complaint:
    """What is wrong, and where: `path` is made of names and indexes."""

    path: tuple[str | int, ...]
    said: str


class Schema:
    """A compiled JSON Schema. A schema that is none raises ValueError with one line."""

    def __init__(self, tool: str, schema: dict[str, Any]) -> None:
        from jsonschema_rs import ReferencingError, ValidationError, validator_for

        try:
            self._validator = validator_for(schema, mask=VALUE, retriever=_refuse)
        except (ValidationError, ReferencingError, ValueError) as error:
            said = getattr(error, "message", None) or str(error)
            raise ValueError(f"tool {tool!r}: the schema is not a valid JSON Schema: {said.splitlines()[0][:300]}") from None

    def complaints(self, value: object) -> Sequence[Complaint]:
        """At most COMPLAINTS_MAX, none where the value fits."""
        return [Complaint(tuple(error.instance_path), _said(error)) for error in islice(self._validator.iter_errors(value), COMPLAINTS_MAX)]


def _refuse(uri: str, /) -> Any:  # never returns
    """A schema must be complete: checking arguments makes no request."""
    raise ValueError(f"references outside the schema are not followed ({uri[:200]})")


def _said(error: "ValidationError") -> str:
    return error.message
