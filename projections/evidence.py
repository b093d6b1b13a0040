"""What an answer stands on: which documents were read, which of them an answer cites, and what is known of their age."""

import re
from typing import Final

from refold.events import facts as f
from refold.projections.run import Run

INLINE: Final = re.compile(r"\[([^\[\]\n]{1,300})\](?![(_])")
"""A citation in the text: `[doc_id]` or `[doc_id#3]`; not the text of a link in Markdown or reStructuredText."""


def inline(text: str) -> list[str]:
    """What stands in brackets, once each, in order."""
    return list(dict.fromkeys(INLINE.findall(text)))


def cited(run: Run, claim: f.ModelOutput) -> tuple[str, ...]:
    """What a claim cites: what it lists, and the documents that were read and are named inline."""
    listed = list(claim.citations or ())
    return tuple(dict.fromkeys([*listed, *(name for name in inline(claim.text) if name in run.sources)]))
