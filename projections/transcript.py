"""What the model may see, folded from the log: the messages of a run in the order in which requests show them.

It stands on the fold of `Run`, which makes every message once; so a live request, a resumed one and a rebuilt one cannot differ.
"""

from refold.events.facts import Fact, ModelRequested
from refold.projections.messages import Message, MessageCall, user
from refold.projections.run import Run

__all__ = ["Message", "MessageCall", "said", "waiting"]


def said(before: Run, fact: Fact, after: Run) -> tuple[Message, ...]:
    """The messages that one fact adds to the transcript."""
    if isinstance(fact, ModelRequested):
        # Another attempt shows what the first did; what was said since waits for the next turn.
        return waiting(before) if before.state != "streaming_model" else ()
    return after.fresh[len(before.fresh) :]


def waiting(run: Run) -> tuple[Message, ...]:
    """Messages of the user that the next request will show, in the order sent."""
    return tuple(user(text) for text in run.unheard)
