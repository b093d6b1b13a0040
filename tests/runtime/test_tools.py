"""Declaring tools: what a signature becomes, and which declarations are refused."""

import enum
import re
import subprocess
import sys
from typing import Annotated, Literal

import pydantic
import pytest

from refold.runtime.arguments import Valid, validate
from refold.runtime.tools import Tool, ToolContext, ToolResult, tool


class Query(pydantic.BaseModel):
    """What to look for."""

    text: str
    limit: int = 5


def handler(arguments, ctx):
    return arguments


def declared(**more):
    return Tool(**{"name": "t", "description": "", "schema": {"type": "object"}, "handler": handler} | more)


def test_a_function_becomes_a_tool_with_and_without_parentheses():
    @tool
    def plain(a: int) -> int:
        """Doubles."""
        return a * 2

    @tool(effect="read", approval="always", timeout_s=3, retries=2, concurrent=True, repeatable=True, name="other-name", description="Other.")
    def dressed(a: int) -> int:
        return a

    assert (plain.name, plain.description, plain.effect, plain.approval, plain(4)) == ("plain", "Doubles.", "side_effect", "never", 8)
    assert (dressed.name, dressed.description, dressed.effect, dressed.approval) == ("other-name", "Other.", "read", "always")
    assert (dressed.timeout_s, dressed.retries, dressed.concurrent, dressed.repeatable) == (3, 2, True, True)


def test_the_schema_is_that_of_the_parameters_without_titles_or_context():
    @tool
    def find(text: Annotated[str, pydantic.Field(description="What.")], kind: Literal["a", "b"] = "a", *, ctx: ToolContext) -> str:
        """Finds."""
        return text

    assert find.schema == {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What."}, "kind": {"type": "string", "enum": ["a", "b"], "default": "a"}},
        "required": ["text"],
        "additionalProperties": False,
    }
    assert find.spec.schema == find.schema
    assert find.spec.description == "Finds."


def test_a_function_without_parameters_takes_an_empty_object():
    @tool
    def now() -> str:
        return "now"

    assert now.schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_function_of_one_model_takes_its_fields():
    @tool
    def search(query: Query, ctx: ToolContext) -> str:
        return query.text

    valid = validate(search, '{"text": "x"}')
    assert isinstance(valid, Valid)
    assert isinstance(valid.value, Query)
    assert valid.arguments == {"text": "x", "limit": 5}
    assert not isinstance(validate(search, '{"text": "x", "more": 1}'), Valid)


def test_names_that_pydantic_needs_are_ordinary_parameters():
    @tool
    def odd(json: int, copy: str = "c", model_config: int = 1, _hidden: int = 2, schema: bool = False) -> int:
        return json

    assert list(odd.schema["properties"]) == ["json", "copy", "model_config", "_hidden", "schema"]
    valid = validate(odd, '{"json": 1, "_hidden": 3}')
    assert isinstance(valid, Valid)
    assert valid.arguments == {"json": 1, "copy": "c", "model_config": 1, "_hidden": 3, "schema": False}


def test_annotations_that_are_text_are_found_where_they_were_written():
    class Local(enum.Enum):
        ONE = "one"

    def work(a: "Local", ctx: "ToolContext | None" = None) -> "list[Local]":
        return [a]

    made = tool(work)
    assert "ctx" not in made.schema["properties"]
    assert isinstance(validate(made, '{"a": "one"}'), Valid)


def test_a_digest_changes_with_the_schema_alone():
    one, same, other = declared(), declared(description="More."), declared(schema={"type": "object", "properties": {"a": {}}})
    assert one.schema_digest == same.schema_digest != other.schema_digest
    assert len(one.schema_digest) == 43


def test_the_schema_of_a_tool_is_its_own_copy():
    schema = {"type": "object", "properties": {}}
    made = declared(schema=schema)
    schema["properties"]["a"] = {"type": "string"}
    assert made.schema["properties"] == {}


def bounded(a: int):
    return a


def untyped(a):
    return a


def variadic(*a: int):
    return a


def named_variadic(**a: int):
    return a


def unknown(a: "Nowhere") -> str:  # noqa: F821
    return ""


def wrong_default(a: int = "x"):
    return a


def infinite(a: float = float("inf")):
    return a


def no_schema(a: object = object()):
    return a


def function_argument(a: type(print)):
    return a


def bounded_default(a: Annotated[int, pydantic.Field(ge=1)] = 0):
    return a


UNUSABLE = {
    untyped: "'a' needs a type annotation",
    variadic: r"\*a: int cannot be described",
    named_variadic: r"\*\*a: int cannot be described",
    unknown: r"annotation of 'a' \(Nowhere\)",
    wrong_default: "default of 'a'",
    infinite: "default of 'a' cannot be written",
    no_schema: "default of 'a' cannot be written",
    function_argument: "no JSON Schema",
    bounded_default: "default of 'a' is not valid",
    print: "only a function written in Python",
}


@pytest.mark.parametrize("function", UNUSABLE, ids=lambda f: f.__name__)
def test_a_function_that_cannot_be_a_tool_is_refused_in_one_line(function):
    with pytest.raises(ValueError, match=UNUSABLE[function]) as refused:
        tool(function)
    assert str(refused.value).startswith(f"tool '{function.__name__}': ")
    assert "\n" not in str(refused.value)


WRONG = [
    {"name": "a b"},
    {"name": ""},
    {"name": "x" * 65},
    {"name": 3},
    {"effect": "maybe"},
    {"approval": "sometimes"},
    {"timeout_s": 0},
    {"timeout_s": float("nan")},
    {"timeout_s": True},
    {"retries": -1},
    {"retries": 1.5},
    {"concurrent": "yes"},
    {"key": "order"},
    {"reconcile": 3},
    {"isolation": "fiber"},
    {"handler": None},
    {"description": None},
    {"schema": []},
    {"schema": {"type": "array"}},
    {"schema": {"type": "object", "properties": {"a": {"type": "strin"}}}},
    {"schema": {"type": "object", "properties": {"a": {"pattern": "("}}}},
    {"schema": {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}},
    {"schema": {"type": "object", "default": object()}},
]


@pytest.mark.parametrize("options", WRONG, ids=lambda options: re.sub(r" at 0x[0-9a-f]+", "", str(options)))
def test_a_wrong_declaration_is_refused_in_one_line(options):
    with pytest.raises(ValueError, match=r".{10}") as refused:
        declared(**options)
    assert "\n" not in str(refused.value)


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(TypeError):
        tool(colour="red")(bounded)


def test_a_return_annotation_of_a_result_promises_nothing_else():
    @tool
    def read() -> ToolResult:
        return ToolResult(data=1)

    assert read.signature.promise is None


class Shelf:
    def __init__(self, books):
        self.books = books

    def find(self, title: str) -> bool:
        """Finds a book."""
        return title in self.books


def test_a_method_of_an_object_is_a_tool_too():
    made = tool(effect="read")(Shelf(["a"]).find)
    assert (made.name, made.description, list(made.schema["properties"])) == ("find", "Finds a book.", ["title"])
    assert made("a") is True


def test_a_schema_without_a_type_describes_an_object():
    assert declared(schema={"properties": {"a": {}}}).schema == {"type": "object", "properties": {"a": {}}}


def test_declaring_typed_tools_loads_no_schema_library():
    code = "import sys\nfrom refold.runtime.tools import tool\n@tool\ndef f(a: int) -> int: return a\nsys.exit('jsonschema_rs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd="/", timeout=60).returncode == 0


def test_the_handler_of_a_schema_tool_takes_arguments_and_context():
    # given a handler that takes the fields of its schema as if it were a typed function
    def tag(priority):
        return priority

    # then it is refused when it is declared, with what it must take
    with pytest.raises(ValueError, match=r"tool 'tag': the handler of a tool with a schema must take \(arguments, ctx\)"):
        Tool(name="tag", description="Tags.", schema={"type": "object"}, handler=tag)
