"""What a typed function says about itself as a tool: the arguments it takes, their JSON Schema, and what it promises to return.

Apart from the declaration, because this is where pydantic and Python's annotations meet, and nowhere else.
"""

import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final, Never, NoReturn, Optional, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema

from refold.runtime.values import NotStorable, to_json

STRICT: Final = ConfigDict(extra="forbid", protected_namespaces=())
KINDS: Final = inspect.Parameter


@dataclass(frozen=True)
class Promise:
    """A return annotation: `said` is how it reads, `may_wrap` whether a ToolResult is promised beside it."""

    said: str
    adapter: TypeAdapter[Any]
    may_wrap: bool

    def complaint(self, value: object) -> str:
        """Empty where the value keeps the promise."""
        try:
            self.adapter.validate_python(value, strict=True)
        except UnicodeEncodeError:
            return self._complaint_as_json(value)
        except ValidationError as broken:
            return self._describe(broken, type(value).__name__)
        return ""

    def _complaint_as_json(self, value: object) -> str:
        # pydantic cannot read half a surrogate pair; stored it is a replacement character, so what will be stored is checked
        try:
            self.adapter.validate_json(to_json(value), strict=True)
        except ValidationError as broken:
            return self._describe(broken, type(value).__name__)
        return ""

    def _describe(self, broken: ValidationError, returned: str) -> str:
        first = broken.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:60]}" for part in first["loc"])
        return f"the tool promised {self.said} and returned {returned}" + (f": at {place[:200]}, {first['msg'][:300]}" if place else "")


@dataclass(frozen=True)
class Taken:
    """One parameter: the model's field that holds its value (empty: the whole model), or the context."""

    parameter: str
    field: str = ""
    positional: bool = False
    is_context: bool = False


@dataclass(frozen=True)
class Signature:
    """A function as a tool. Arguments are validated by `model`, whose JSON Schema the model is shown."""

    model: type[BaseModel]
    schema: dict[str, Any]
    description: str
    takes: tuple[Taken, ...]
    promise: Promise | None

    def bind(self, arguments: BaseModel, context: object) -> tuple[list[Any], dict[str, Any]]:
        """Validated arguments as the function takes them."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for taken in self.takes:
            value = context if taken.is_context else getattr(arguments, taken.field) if taken.field else arguments
            if taken.positional:
                positional.append(value)
            else:
                named[taken.parameter] = value
        return positional, named


def read_signature(function: Callable[..., Any], tool: str, *, context_type: type, result_type: type) -> Signature:
    """Raises ValueError, one line that names the tool, where the signature cannot be a tool's."""
    if not inspect.isroutine(function) or inspect.isbuiltin(function):
        raise ValueError(f"tool {tool!r}: only a function written in Python can be a tool; for anything else use Tool(name=..., schema=..., handler=...)")
    parameters = list(inspect.signature(function).parameters.values())
    hints = _hints(function, tool, [p.name for p in parameters])
    contexts = [p for p in parameters if p.name in hints and context_type in (hints[p.name], *get_args(hints[p.name]))]
    own = [p for p in parameters if p not in contexts]
    _refuse_unusable(own, contexts, hints, tool)
    whole = own[0] if len(own) == 1 and _is_model(hints[own[0].name]) and own[0].default is KINDS.empty else None
    try:
        model, fields = (_strict(hints[whole.name]), {whole.name: ""}) if whole else _model_of(own, hints, tool)
        schema = _schema_of(model)
    except ValueError:
        raise
    except Exception as error:  # pydantic and user types raise what they like here; all of it means this
        raise ValueError(f"tool {tool!r}: its parameters have no JSON Schema: {_first_line(error)}") from error
    if schema.get("type") != "object":
        raise ValueError(f"tool {tool!r}: {model.__name__} is not a JSON object")
    takes = tuple(Taken(p.name, fields.get(p.name, ""), positional=p.kind is KINDS.POSITIONAL_ONLY, is_context=p in contexts) for p in parameters)
    return Signature(model, schema, inspect.cleandoc(function.__doc__ or ""), takes, _promise(hints.get("return", Any), tool, result_type))


def _hints(function: Callable[..., Any], tool: str, parameters: list[str]) -> dict[str, Any]:
    """Annotations with their names resolved, one by one so that an error can name its own."""
    plain = inspect.unwrap(function)
    own_globals = getattr(plain, "__globals__", {})
    own_locals = _locals_around(own_globals)
    hints: dict[str, Any] = {}
    for name, annotation in plain.__annotations__.items():
        if name not in (*parameters, "return"):
            continue
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= get_type_hints(holder, globalns=own_globals, localns=own_locals, include_extras=True)
        except Exception as error:  # an annotation is an expression and may raise anything
            shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
            raise ValueError(f"tool {tool!r}: the annotation of {name!r} ({shown[:200]}) cannot be read: {_first_line(error)}") from error
    return hints


def _locals_around(module: dict[str, Any]) -> dict[str, Any]:
    """Names that the functions now running in that module can see, the innermost winning: types declared inside a function are found there."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is module and frame.f_locals is not module:
            names = frame.f_locals | names
        frame = frame.f_back
    return names


def _refuse_unusable(own: list[inspect.Parameter], contexts: list[inspect.Parameter], hints: dict[str, Any], tool: str) -> None:
    for parameter in own:
        if parameter.kind in (KINDS.VAR_POSITIONAL, KINDS.VAR_KEYWORD):
            raise ValueError(f"tool {tool!r}: {parameter} cannot be described to a model; name every parameter")
        if parameter.name not in hints:
            raise ValueError(f"tool {tool!r}: the parameter {parameter.name!r} needs a type annotation")
    if len(contexts) > 1:
        raise ValueError(f"tool {tool!r}: only one parameter can be the context")


def _is_model(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _strict(model: type[BaseModel]) -> type[BaseModel]:
    """The same model, without room for arguments it does not name, unless it says otherwise itself."""
    if model.model_config.get("extra") is not None:
        return model
    return type(model.__name__, (model,), {"__doc__": model.__doc__, "__module__": model.__module__, "model_config": ConfigDict(extra="forbid")})


def _model_of(parameters: list[inspect.Parameter], hints: dict[str, Any], tool: str) -> tuple[type[BaseModel], dict[str, str]]:
    """A model with a field for each parameter. A name that pydantic needs for itself gets another, with the parameter's as its alias."""
    fields = {p.name: f"field_{number}" if hasattr(BaseModel, p.name) or p.name.startswith("_") else p.name for number, p in enumerate(parameters)}
    definitions: dict[str, Any] = {}
    for parameter in parameters:
        hint, default = hints[parameter.name], ... if parameter.default is KINDS.empty else parameter.default
        if default is None:
            hint = Optional[hint]  # noqa: UP045 - `x: int = None` means this, and `|` does not take every annotation
        if fields[parameter.name] != parameter.name:
            hint = Annotated[hint, Field(alias=parameter.name)]
        definitions[fields[parameter.name]] = (hint, default)
    model: type[BaseModel] = create_model(tool, __config__=STRICT, **definitions)
    _check_defaults(model, tool)
    return model, fields


def _check_defaults(model: type[BaseModel], tool: str) -> None:
    """A default goes into the log like any argument, so it must be of its type and survive being JSON."""
    defaults = model.model_construct()
    for name, field in model.model_fields.items():
        if field.is_required():
            continue
        shown = field.alias or name
        try:
            text = to_json(defaults.model_dump(mode="json", include={name}, by_alias=True, warnings="error"))
            model.model_validate_json(text, strict=True)
        except ValidationError as error:
            wrong = [each for each in error.errors(include_url=False) if each["loc"][:1] == (shown,)]
            if wrong:
                raise ValueError(f"tool {tool!r}: the default of {shown!r} is not valid: {wrong[0]['msg'][:200]}") from None
        except (NotStorable, TypeError, ValueError) as error:
            raise ValueError(f"tool {tool!r}: the default of {shown!r} cannot be written as JSON: {_first_line(error)}") from None


class _Untitled(GenerateJsonSchema):
    """Titles only repeat the names, and every one is sent with every request."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - overridden
        return False


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_Untitled)
    schema.pop("title", None)
    return {"type": schema.pop("type", None), "properties": schema.pop("properties", {})} | schema


def _promise(hint: Any, tool: str, result_type: type) -> Promise | None:
    if get_origin(hint) in (Awaitable, Coroutine):
        hint = get_args(hint)[-1]
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    rest = tuple(member for member in members if member is not result_type)
    if not rest or any(member in (Any, object, Never, NoReturn) for member in rest):
        return None
    narrowed: Any = Union.__getitem__(rest)
    said = "None" if hint is type(None) else inspect.formatannotation(hint)[:200]
    try:
        return Promise(said, _adapter(narrowed), result_type in members)
    except Exception as error:  # see above: pydantic and user types
        raise ValueError(f"tool {tool!r}: the return annotation {said} cannot be checked: {_first_line(error)}") from error


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))  # a type pydantic does not know: an instance of it is asked for


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
