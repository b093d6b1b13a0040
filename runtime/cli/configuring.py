"""What a run is driven with: an agent with the settings, limits and model of the command line laid over its own."""

import copy
import os
from typing import Any, Final

from refold.events import facts as f, settings as recorded
from refold.runtime import models, settings
from refold.runtime.agent import Agent
from refold.runtime.cli.exits import Refused
from refold.runtime.cli.options import Driving
from refold.runtime.ports import Model

SHORT: Final = {"max_turns": "budgets.max_turns", "max_cost": "budgets.max_cost_usd", "timeout": "budgets.timeout_s"}
LOCAL: Final = ("offline", "script")
"""Models without an address and without settings."""


def for_new(agent: Agent, options: Driving) -> Agent:
    """The agent for a run that is about to begin. Raises Refused, WrongSetting."""
    made, model_settings = _laid_over(agent, options, agent.budgets, agent.policy, agent.context)
    made.model = _model(agent.model if options.model is None else options.model, options.base_url, model_settings)
    return made


def for_continuation(agent: Agent, options: Driving, setup: f.Setup) -> Agent:
    """The agent for a new run that goes on from an ended one: what is not given is as it was there. Raises as `for_new`."""
    made, model_settings = _laid_over(agent, options, setup.budgets, setup.policy, setup.context)
    made.model = _model_for(agent, options, setup, model_settings)
    return made


def for_record(agent: Agent, options: Driving, setup: f.Setup) -> Agent:
    """The agent for a run that goes on: its limits and rules are those it began with, its model too unless another is given. Raises as `for_new`."""
    *_, model_settings = settings.apply(options.settings, setup.budgets, setup.policy, setup.context)
    fixed = [text for text in options.settings if not text.startswith("model.")] + [
        f"--{field.replace('_', '-')}" for field in SHORT if getattr(options, field) is not None
    ]
    if fixed:
        raise Refused(
            f"{fixed[0]}: budgets, policy and context of a run are fixed when it begins; once it has ended, go on under others with: refold continue RUN --set KEY=VALUE"
        )
    made = copy.copy(agent)
    made.model = _model_for(agent, options, setup, model_settings)
    return made


def _laid_over(
    agent: Agent, options: Driving, budgets: recorded.Budgets, policy: recorded.Policy, context: recorded.Context | None
) -> tuple[Agent, dict[str, Any]]:
    """A copy with these limits and rules under those of the command line, and the settings that are for the model."""
    made = copy.copy(agent)
    made.budgets, made.policy, made.context, model_settings = settings.apply(options.settings, budgets, policy, context)
    for field, key in SHORT.items():
        if (value := getattr(options, field)) is not None:
            typed = f"--{field.replace('_', '-')} {value}"
            limited = _limited(made, typed, f"{key}={value}")
            if limited != made.budgets and (other := [text for text in options.settings if text.partition("=")[0].strip() == key]):
                raise Refused(f"{typed} and --set {other[-1]} say different things: give one of the two")
            made.budgets = limited
    return made, model_settings


def _limited(agent: Agent, typed: str, setting: str) -> settings.Budgets:
    try:
        return settings.apply([setting], agent.budgets, agent.policy, agent.context)[0]
    except settings.WrongSetting as error:
        raise Refused(f"{typed}: {str(error).partition(': ')[2]}") from None


def _model_for(agent: Agent, options: Driving, setup: f.Setup, model_settings: dict[str, Any]) -> Model:
    """The model that is given, else the one of the record with the address and the settings that it had."""
    if options.model is not None:
        return _model(options.model, options.base_url, model_settings)
    return _model(_recorded(agent, setup), options.base_url or setup.base_url or None, setup.model_settings | model_settings)


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
    spec = model or os.environ.get("REFOLD_MODEL") or models.DEFAULT
    if spec.partition(":")[0] in LOCAL and (base_url or model_settings):
        given = "--base-url" if base_url else f"--set model.{next(iter(model_settings))}"
        raise Refused(f"{given}: the model {spec} is on this machine and has nothing to set; give a --model that is reached over the network, or leave it out")
    try:
        return models.resolve(spec, base_url=base_url, settings=model_settings)
    except ValueError as error:
        raise Refused(str(error)) from None
