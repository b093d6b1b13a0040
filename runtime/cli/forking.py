"""`fork`: a run that goes another way from some position of one that was."""

import json
from pathlib import Path
from typing import Any

from refold.fsm.machine import empty
from refold.runtime import forking
from refold.runtime.cli import configuring, lookup, options as o
from refold.runtime.cli.driving import driven, finished, known_tools, user_code
from refold.runtime.cli.exits import Refused
from refold.runtime.cli.running import checked_message, new_id, refusing
from refold.runtime.cli.stores import opened, text_of, typed
from refold.runtime.values import NotStorable, stored


def fork(options: o.Fork) -> int:
    """Begin a fork and drive it. Everything that can be refused is refused before it is in the store."""
    if options.at is None:
        raise Refused(f"refold fork needs a place: --at N, a position of the run as {typed(options, 'log', options.run)} shows it")
    said = options.say
    message = refusing(lambda: checked_message(text_of(said, "the message"))) if said is not None else ""
    edits = dict(map(_edit, options.edits))
    if len(edits) != len(options.edits):
        raise Refused("--edit: the result of a call is given twice")
    run_id = new_id(options)
    with opened(options) as store:
        parent = store.find(options.run)
        at = forking.rest_at(store.log, parent, options.at).position
        setup = forking.setup_at(store.log, parent, at)
        with user_code():
            agent = configuring.for_continuation(lookup.agent_for_record(options, setup), options, setup)
        known_tools(agent, options)
        moved = f", the last place before {options.at} where it rests" if at != options.at else ""
        result = driven(
            options,
            store,
            agent,
            empty(run_id),
            lambda heard: agent.fork(
                parent,
                at,
                store=store,
                message=message,
                edits=edits,
                allow_repeat=options.allow_repeat,
                with_model=options.model is not None,
                new_id=run_id,
                heard=heard,
            ),
            made=f"run {run_id} is a fork of {parent} at {at}{moved}",
        )
        return finished(options, result)


def _edit(typed: str) -> tuple[str, Any]:
    """CALL=FILE as a call and its other result: a value from a .json file, the text of any other. Raises Refused."""
    call, mark, name = typed.partition("=")
    if not mark or not call or not name:
        raise Refused(f"--edit {typed}: write it as CALL=FILE, such as t2.1=result.txt")
    try:
        text = Path(name).read_bytes().decode("utf-8")
    except OSError as error:
        raise Refused(f"--edit {typed}: the file {name} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise Refused(f"--edit {typed}: the file {name} is not UTF-8") from None
    if not name.endswith(".json"):
        return call, text.removesuffix("\n")
    try:
        return call, stored(json.loads(text))
    except NotStorable as error:
        raise Refused(f"--edit {typed}: the file {name} holds what is not stored: {error}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"--edit {typed}: the file {name} is not JSON: {error}") from None
