"""`certify`: the door to the testing kit, which stands above the command line and is loaded only when it is asked for."""

from importlib import import_module

from refold.runtime.cli.options import Certify


def certify(options: Certify) -> int:
    """Kill an agent's run at every step, and say what that did to it."""
    code: int = import_module("refold.testing.certificates").certify(options)
    return code
