"""What a run is driven with: an agent with the settings, limits and model of the command line laid over its own."""

import copy
import os
from typing import Any

from refold.events import facts as f
from refold.runtime import models, settings
from refold.runtime.agent import Agent
from refold.runtime.cli.exits import Refused
from refold.runtime.cli.options import Driving
from refold.runtime.ports import Model

SHORT = {"max_turns": "budgets.max_turns", "max_cost": "budgets.max_cost_usd", "timeout": "budgets.timeout_s"}


def for_new(agent: Agent, options: Driving) -> Agent:
    """The agent for a run that is about to begin. Raises WrongSetting, UnknownModel, and what a provider raises for a model that cannot be had."""
    made = copy.copy(agent)
    made.budgets, made.policy, model_settings = settings.apply(options.settings, agent.budgets, agent.policy)
    for field, key in SHORT.items():
        if (value := getattr(options, field)) is not None:
            made.budgets = _limited(made, f"--{field.replace('_', '-')} {value}", f"{key}={value}")
    made.model = _model(agent.model if options.model is None else options.model, options.base_url, model_settings)
    return made


def for_record(agent: Agent, options: Driving, setup: f.Setup) -> Agent:
    """The agent for a run that goes on: its limits and rules are those it began with, its model too unless another is given. Raises as `for_new`."""
    _, _, model_settings = settings.apply(options.settings, setup.budgets, setup.policy)
    fixed = [text for text in options.settings if not text.startswith("model.")] + [
        f"--{field.replace('_', '-')}" for field in SHORT if getattr(options, field) is not None
    ]
    if fixed:
        raise Refused(
            f"{fixed[0]}: budgets and policy of a run are fixed when it begins; once it has ended, go on under others with: refold continue RUN --set KEY=VALUE"
        )
    made = copy.copy(agent)
    base_url, held = (setup.base_url or None, setup.model_settings) if options.model is None else (None, {})
    made.model = _model(_recorded(agent, setup) if options.model is None else options.model, options.base_url or base_url, held | model_settings)
    return made


def _limited(agent: Agent, typed: str, setting: str) -> settings.Budgets:
    try:
        return settings.apply([setting], agent.budgets, agent.policy)[0]
    except settings.WrongSetting as error:
        raise Refused(f"{typed}: {str(error).partition(': ')[2]}") from None


def _recorded(agent: Agent, setup: f.Setup) -> str | Model | None:
    """The model of the record; the agent's own where that is an object, since an object has no SPEC to find it by."""
    return (
        agent.model
        if agent.model is not None and not isinstance(agent.model, str) and getattr(agent.model, "spec", type(agent.model).__name__) == setup.model
        else setup.model or agent.model
    )


def _model(model: str | Model | None, base_url: str | None, model_settings: dict[str, Any]) -> Model:
    if model is not None and not isinstance(model, str):
        if base_url or model_settings:
            raise Refused("the agent brings its own model object, so --base-url and model settings have nothing to reach: give a --model too")
        return model
    return models.resolve(model or os.environ.get("REFOLD_MODEL") or models.DEFAULT, base_url=base_url, settings=model_settings)
