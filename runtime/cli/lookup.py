"""Which agent a command means: named in the command, in the environment, or in the project's table; else one of the built-in ones.

The log never names code to import. A run's record says only what its agent called itself, and that name is looked up here.
"""

import importlib
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from refold.events import facts as f
from refold.runtime.agent import Agent
from refold.runtime.cli import plain
from refold.runtime.cli.exits import Refused
from refold.runtime.cli.options import Driving
from refold.runtime.consults import describe

RESEARCH: Final = "research"
FILES: Final = ("refold.toml", "pyproject.toml")
HOW: Final = "name it with --agent MODULE:NAME, REFOLD_AGENT, or [tool.refold.agents] in refold.toml or pyproject.toml"


def agent_for_new(options: Driving) -> Agent:
    """The agent of a run that is about to begin. Raises Refused, DocumentsError."""
    _names_one(options)
    if options.docs:
        return _research(options.docs, options.store)
    spec = options.agent or os.environ.get("REFOLD_AGENT")
    return agent_named(spec) if spec else plain.plain_agent()


def agent_for_record(options: Driving, setup: f.Setup) -> Agent:
    """The agent that drives a run on, by the name in its record unless another is given. Raises Refused, DocumentsError."""
    _names_one(options)
    if options.agent:
        return agent_named(options.agent)
    if options.docs or _is_research(setup):
        return _research(options.docs or setup.documents, options.store)
    return plain.plain_agent() if _is_plain(setup) else agent_for_code(setup)


def _names_one(options: Driving) -> None:
    """Raises Refused where two agents are named."""
    if options.docs and options.agent:
        raise Refused("--docs is for the built-in research agent and --agent names another: give one of the two")


def _is_research(setup: f.Setup) -> bool:
    return setup.agent == RESEARCH and bool(setup.documents)


def _is_plain(setup: f.Setup) -> bool:
    return setup.agent == plain.NAME and setup.validators == (plain.says_something.__name__,)


def is_found(setup: f.Setup) -> bool:
    """Whether a run's record alone leads to its agent: a built-in one, or one that the environment or the project's table names."""
    try:
        return _is_research(setup) or _is_plain(setup) or bool(os.environ.get("REFOLD_AGENT")) or setup.agent in _table()
    except Refused:  # a table that cannot be read; who resumes is told so
        return False


def agent_for_code(setup: f.Setup) -> Agent:
    """The agent of a run's record among the project's own. Raises Refused."""
    if spec := os.environ.get("REFOLD_AGENT"):
        return agent_named(spec)
    if setup.agent in _table():
        return agent_named(setup.agent)
    raise Refused(f"the run was begun by the agent {setup.agent!r}, whose code is not known here: {HOW}")


def agent_named(spec: str) -> Agent:
    """The agent at MODULE:NAME, or under a name in the project's table. Raises Refused."""
    file, _, name = spec.partition(":")
    if "/" in file or file.endswith(".py"):
        module = Path(file).stem
        raise Refused(f"the agent {spec}: write its module as Python imports it, such as {module}:{name or 'agent'}, and run where {module}.py lies")
    if ":" not in spec:
        table = _table()
        if spec not in table:
            raise Refused(f"there is no agent {spec!r}: write MODULE:NAME" + (f", or one of {', '.join(table)}" if table else ""))
        spec = table[spec]
    module_name, _, path = spec.partition(":")
    found: Any = _module(module_name, spec)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Refused(f"the module {module_name} has no {path!r}: {_agents_in(found)}") from None
    if not isinstance(found, Agent):
        raise Refused(f"{spec} is no Agent but {_kind(found)}")
    return found


def _module(name: str, spec: str) -> Any:
    """The module, whatever its code does when it is imported. The current folder is searched first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (error.name == name or name.startswith(f"{error.name}.")):
            raise Refused(f"there is no module {error.name} for the agent {spec}: it is looked for in the current folder and on PYTHONPATH") from None
        raise Refused(f"the module {name} of the agent {spec} cannot be imported: {describe(error)}") from None
    except SyntaxError as error:
        raise Refused(f"the module {name} of the agent {spec} cannot be imported: {error.msg} in line {error.lineno} of {error.filename}") from None
    except BaseException as error:  # noqa: BLE001 - code of the user: whatever it raises means that there is no agent
        raise Refused(f"the module {name} of the agent {spec} cannot be imported: {describe(error)}") from None


def _kind(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}; name an instance"
    return f"a function; name what it returns: {found.__name__}()" if callable(found) and hasattr(found, "__name__") else f"of type {type(found).__name__}"


def _agents_in(module: object) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Agent)] if hasattr(module, "__dict__") else []
    return f"its agents are {', '.join(names)}" if names else "it holds no Agent"


def _table() -> dict[str, str]:
    """[tool.refold.agents] of the nearest project file: the current folder's, else of the folders above."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        for name in FILES:
            table = _agents(folder / name)
            if table is not None:
                return table
    return {}


def _agents(path: Path) -> dict[str, str] | None:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError:
        return None
    except UnicodeDecodeError:
        raise Refused(f"{path} is not UTF-8: write it anew as UTF-8") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    for key in ("tool", "refold", "agents"):
        table = table.get(key)  # type: ignore[assignment]
        if not isinstance(table, dict):
            return None
    wrong = next((name for name, spec in table.items() if not isinstance(spec, str) or ":" not in spec), None)
    if wrong is not None:
        raise Refused(f'{path}: the agent {wrong} in [tool.refold.agents] is written as {wrong} = "MODULE:NAME"')
    return table


def _research(folders: Sequence[str], store_url: str) -> Agent:
    from refold.runtime import research

    return research.research_agent([Path(folder) for folder in folders], store_url=store_url)
