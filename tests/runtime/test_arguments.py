"""Arguments that models send: read strictly, never repaired, refused in words that help."""

import datetime
import decimal
import enum
import json
import time
import uuid
from typing import Annotated, Any, Literal

import pydantic
import pytest

from refold.runtime.arguments import Invalid, Valid, revive, validate
from refold.runtime.tools import Tool, tool


class Colour(enum.Enum):
    RED = "red"


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


@tool(effect="read")
def weather(city: str, days: int = 1) -> str:
    return city


@tool(effect="read")
def total(numbers: list[float], exact: bool = False) -> float:
    return sum(numbers)


@tool
def rich(when: datetime.date, colour: Colour, who: uuid.UUID, price: decimal.Decimal, points: set[int], at: Point | None = None) -> None: ...


@tool
def pet(animal: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]) -> None: ...


@tool
def anything(value: Any) -> None: ...


ECHO = Tool(name="echo", description="", schema={"type": "object"}, handler=lambda arguments, ctx: arguments)
DOUBLE = Tool(
    name="double",
    description="",
    schema={
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}, "e": {"enum": ["a", "b"]}},
        "required": ["n"],
        "additionalProperties": False,
    },
    handler=lambda arguments, ctx: arguments,
)


def message(made, text):
    invalid = validate(made, text)
    assert isinstance(invalid, Invalid), invalid
    assert len(invalid.message.encode()) <= 2048
    assert "http" not in invalid.message
    return invalid.message


def canonical(made, text):
    valid = validate(made, text)
    assert isinstance(valid, Valid), valid
    assert json.loads(valid.canonical) == valid.arguments
    return valid.canonical


def test_the_canonical_form_has_defaults_sorted_keys_and_every_script():
    assert canonical(weather, ' {"days" : 2,\n"city":"Łódź 🐢"} ') == '{"city":"Łódź 🐢","days":2}'
    assert canonical(weather, '{"city":"a"}') == canonical(weather, '{"days":1,"city":"\\u0061"}') == '{"city":"a","days":1}'


def test_an_integer_for_a_float_is_that_float_in_the_canonical_form():
    assert canonical(total, '{"numbers":[1,2.5,-0.0]}') == '{"exact":false,"numbers":[1.0,2.5,-0.0]}'


def test_types_that_json_lacks_are_read_from_text():
    text = '{"when":"2024-02-29","colour":"red","who":"00000000-0000-0000-0000-000000000007","price":"0.10","points":[3],"at":{"x":1}}'
    valid = validate(rich, text)
    assert isinstance(valid, Valid)
    assert valid.arguments["price"] == "0.10"
    assert valid.arguments["at"] == {"x": 1, "y": 0}
    assert valid.value.when == datetime.date(2024, 2, 29)
    assert revive(rich, valid.canonical) == valid.value


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_no_text_is_an_empty_object(text):
    assert canonical(ECHO, text) == "{}"


@pytest.mark.parametrize(
    ("made", "text", "field", "expected"),
    [
        (weather, "{}", "city", "missing"),
        (weather, '{"city":7}', "city", "string"),
        (weather, '{"city":null}', "city", "string"),
        (weather, '{"city":"a","days":"2"}', "days", "integer"),
        (weather, '{"city":"a","days":2.0}', "days", "integer"),
        (weather, '{"city":"a","days":true}', "days", "integer"),
        (weather, '{"City":"a","city":"a"}', "City", "not an argument"),
        (total, '{"numbers":["1"]}', "numbers[0]", "number"),
        (total, '{"numbers":[],"exact":"false"}', "exact", "boolean"),
        (total, '{"numbers":[],"exact":1}', "exact", "boolean"),
        (pet, '{"animal":{"kind":"hush-hush"}}', "animal", "'cat', 'dog'"),
        (DOUBLE, "{}", "n", "required"),
        (DOUBLE, '{"n":"hush-hush"}', "n", "integer"),
        (DOUBLE, '{"n":1,"e":"hush-hush"}', "e", '"a"'),
        (DOUBLE, '{"n":1180591620717411303424}', "n", "9"),
        (DOUBLE, '{"n":1,"z":2}', "z", "unexpected"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(made, text, field, expected):
    said = message(made, text)
    assert field in said
    assert expected in said
    assert "hush-hush" not in said


def test_a_message_lists_the_arguments_of_the_tool():
    assert "city (string, required), days (integer)" in message(weather, "{}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "array"),
        ("null", "null"),
        ("7", "number"),
        ("true", "true or false"),
        ('"hello"', "string"),
        ('"{\\"city\\": \\"a\\"}"', "send an object, not a string"),
    ],
)
def test_json_that_is_no_object_is_told_so(text, says):
    assert says in message(weather, text)


NOT_JSON = [
    "{",
    '{"city":',
    "{'city': 'a'}",
    '{"city":"a",}',
    '{"city":"a"} thanks',
    '```json\n{"city":"a"}\n```',
    '{"city":"a\nb"}',
    "city=a",
    "\ufeff{}",
    '{"city":01}',
    "undefined",
]


@pytest.mark.parametrize("text", NOT_JSON)
def test_text_that_is_not_json_is_never_repaired(text):
    assert "at line" in message(weather, text)


HARDLY = {
    "NaN": '{"value":NaN}',
    "infinity": '{"value":-Infinity}',
    "overflow": '{"value":1e999}',
    "negative overflow": '{"value":[-1e999]}',
    "5000 digits": '{"value":' + "9" * 5000 + "}",
    "million digits": '{"value":-' + "9" * 1_000_000 + "}",
    "deep": '{"value":' + "[" * 3000 + "]" * 3000 + "}",
    "deep and open": '{"a":' * 100_000,
    "escaped lone surrogate": '{"value":"\\ud800"}',
    "escaped low surrogate": '{"value":"\\udc00"}',
    "surrogate key": '{"\\ud800":1}',
    "lone surrogate": '{"value":"\ud800"}',
    "duplicate": '{"value":1,"value":1}',
    "inner duplicate": '{"value":[{"a":1,"a":2}]}',
    "many values": '{"value":[' + "0," * 200_000 + "0]}",
    "very long": '{"value":"' + "x" * 17_000_000 + '"}',
}


@pytest.mark.parametrize("made", [anything, ECHO], ids=lambda made: made.name)
@pytest.mark.parametrize("text", HARDLY.values(), ids=HARDLY)
def test_what_is_hardly_json_is_refused_quickly(made, text):
    began = time.monotonic()
    message(made, text)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("made", [anything, ECHO], ids=lambda made: made.name)
def test_what_is_unusual_but_json_is_kept(made):
    for value in ["😀", "line\u2028separator\0nul", "é", "y" * 100_000, 2**64 + 1, -(10**4000), 5e-324, 1.7976931348623157e308, "\ufffd"]:
        valid = validate(made, json.dumps({"value": value}))
        assert isinstance(valid, Valid)
        assert valid.arguments == {"value": value}
        assert json.loads(valid.canonical) == {"value": value}


@pytest.mark.slow
def test_a_text_of_the_largest_size_is_read():
    text = json.dumps({"value": "x" * 16_000_000})
    for made in (anything, ECHO):
        assert isinstance(validate(made, text), Valid)


@pytest.mark.parametrize(
    "made", [total, Tool(name="t", description="", schema={"properties": {"numbers": {"items": {"type": "number"}}}}, handler=print)], ids=["typed", "schema"]
)
def test_a_message_about_many_wrong_values_is_short_and_says_how_long_they_were(made):
    text = json.dumps({"numbers": ["wrong"] * 50_000})
    assert f"{len(text):,} characters" in message(made, text)


def test_a_message_about_a_long_name_is_short():
    message(weather, json.dumps({"x" * 1_000_000: 1}))
    message(DOUBLE, json.dumps({"n": 1, "ż" * 1_000_000: 1}))


def test_a_validator_that_raises_is_a_verdict():
    def check(value: int) -> int:
        raise OSError("hush-hush")

    @tool
    def checked(a: Annotated[int, pydantic.AfterValidator(check)]) -> None: ...

    said = message(checked, '{"a":1}')
    assert "OSError" in said
    assert "hush-hush" not in said


def test_arguments_that_would_reach_the_handler_changed_are_refused():
    # given one validator that doubles whatever it gets, and one type that hides its value when written
    @tool
    def doubled(a: Annotated[int, pydantic.AfterValidator(lambda a: a * 2)]) -> None: ...

    @tool
    def hidden(a: pydantic.SecretStr) -> None: ...

    assert "rebuilt" in message(doubled, '{"a":1}')
    assert "rebuilt" in message(hidden, '{"a":"x"}')


def test_a_canonical_form_that_no_longer_fits_is_told():
    with pytest.raises(ValueError, match="city"):
        revive(weather, '{"town":"a"}')


def test_an_alias_is_the_name_the_model_uses():
    @tool
    def span(start: Annotated[int, pydantic.Field(alias="from")]) -> None: ...

    assert canonical(span, '{"from":1}') == '{"from":1}'
    assert "from" in message(span, '{"start":1}')


def test_a_recursive_schema_is_checked_all_the_way_down():
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}, "n": {"type": "integer"}}}
    made = Tool(name="tree", description="", schema=tree, handler=print)
    assert isinstance(validate(made, '{"child":' * 190 + '{"n":1}' + "}" * 190), Valid)
    assert "integer" in message(made, '{"child":' * 190 + '{"n":"x"}' + "}" * 190)
