"""Final validators: `(run, answer, citations)` to complaints; no complaint means that the answer stands."""

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from refold.projections.evidence import inline
from refold.projections.run import Run

NO_EVIDENCE: Final = "The documents do not answer this."
"""The answer of an agent whose documents hold none; it needs no citation."""
NAMED_MAX: Final = 5

Model = TypeVar("Model", bound=BaseModel)


def cites_read_documents(run: Run, answer: str, citations: tuple[str, ...]) -> list[str]:
    """The answer names, inline as `[doc_id]`, documents that were actually read, and no others."""
    if answer.strip() == NO_EVIDENCE:
        return []
    named = [name for name in inline(answer) if name in run.sources or _looks_like_an_id(name)]
    unread = [name for name in dict.fromkeys([*named, *citations]) if name not in run.sources]
    if unread:
        return [f"it cites {', '.join(f'[{name}]' for name in unread[:NAMED_MAX])}, which was not read; read it, or cite what was read"]
    if not named:
        known = ", ".join(f"[{name}]" for name in run.sources.keys()[:NAMED_MAX])
        return [f"it names no document it stands on; cite each inline as [doc_id]{f', such as {known}' if known else ', after reading one'}"]
    return []


def _looks_like_an_id(name: str) -> bool:
    """Not a footnote number, nor an aside in brackets."""
    return not name.isdigit() and not any(character.isspace() for character in name)


class answer_is:  # noqa: N801 - reads as a word: validators=[answer_is(Rate)]
    """The answer is JSON that validates as a pydantic model."""

    def __init__(self, model: type[Model]) -> None:
        self.model: type[BaseModel] = model
        self.__name__ = f"answer_is({model.__name__})"
        self.answer_schema: dict[str, Any] = model.model_json_schema()

    def __call__(self, _run: Run, answer: str, _citations: tuple[str, ...]) -> list[str]:
        try:
            self.model.model_validate_json(answer, strict=True)
        except ValidationError as error:
            return [f"{'.'.join(map(str, wrong['loc'])) or 'the answer'}: {wrong['msg']}" for wrong in error.errors()[:NAMED_MAX]]
        return []
