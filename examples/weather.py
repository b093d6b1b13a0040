"""A small agent: looks up the weather, converts it to Fahrenheit, answers.

    refold run "How warm is it in Ghent, in Fahrenheit?" --agent examples.weather:agent

The model is a script, so that it runs without a key; `--model SPEC` names another.
"""

from typing import Any

from refold import Agent, ScriptedModel, tool

READINGS = {"Ghent": 20, "Oslo": 4, "Cairo": 35}


@tool(effect="read")
def get_weather(city: str) -> dict[str, int | str]:
    """The temperature in a city, in degrees Celsius."""
    if city not in READINGS:
        raise ValueError(f"there is no reading for {city}; there are readings for {', '.join(READINGS)}")
    return {"city": city, "celsius": READINGS[city]}


@tool(effect="read")
def to_fahrenheit(celsius: int) -> float:
    """Degrees Celsius to degrees Fahrenheit."""
    return celsius * 9 / 5 + 32


SCRIPT: list[dict[str, Any]] = [
    {"calls": [{"name": "get_weather", "arguments": {"city": "Ghent"}}]},
    {"calls": [{"name": "to_fahrenheit", "arguments": {"celsius": 20}}]},
    {"text": "It is 68 degrees Fahrenheit in Ghent."},
]

agent = Agent(model=ScriptedModel(SCRIPT), instructions="Answer in one sentence.", tools=[get_weather, to_fahrenheit], name="weather")
