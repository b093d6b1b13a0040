"""The invariants of what may be done only when it was allowed (I8), and only once (I15).

Apart from the order of other records, because a grant binds to what a human saw, and a key to what the world outside sees.
"""

import msgspec

from refold.events import facts as f
from refold.events.words import CallId, Digest
from refold.fsm.history import History, Sign, Signs, broken

# -- I8


class Asked(msgspec.Struct):
    """What one call of the open turn needs: the digest of what a human must have seen, and the grant that is not used yet."""

    digest: Digest
    granted: int = 0
    expires_at: int | None = None
    begun: bool = False
    """Whether it was begun with a grant, which stands for its further attempts."""
    running: bool = False


def approvals_come_first(history: History) -> Signs:
    """A call that needs an approval begins only behind one for just these arguments, which was given in time, not taken back, and not used before."""
    needed: dict[CallId, Asked] = {}
    checks: dict[CallId, f.Check] = {}
    while (record := (yield None)) is not None:
        position = record.position
        match record.fact:
            case f.ToolStarted(call=call):
                asked = needed.get(call)
                if asked is None:
                    continue
                if asked.granted:
                    yield Sign(position, f"{call}: approved at {asked.granted}, started at {position}")
                elif not asked.begun:
                    yield broken(position, f"{call}: started at {position} without the approval that it needs")
                asked.granted, asked.begun, asked.running = 0, True, True
            case f.ToolSucceeded(call=call) | f.ToolFailed(call=call):
                if call in needed:
                    needed[call].running = False
            case f.CallsChecked(checks=made):
                checks = {check.call: check for check in made}
                needed = {check.call: Asked(check.digest) for check in made if check.approval and check.digest is not None}
            case f.RunForked(performed=performed, allow_repeat=False):
                for call in performed:
                    asked, check = needed.get(call), checks.get(call)
                    if check is not None and check.effect == "side_effect" and not (asked is not None and asked.running):
                        needed[call] = Asked(check.digest or check.signature)
            case f.ApprovalRequested(call=call, expires_at=expires_at) if call in needed:
                needed[call].expires_at = expires_at
            case f.ApprovalGranted(call=call, digest=digest) if call in needed:
                asked = needed[call]
                if digest != asked.digest:
                    yield broken(position, f"{call}: approved at {position} as something else than what was asked")
                elif asked.expires_at is None or record.at < asked.expires_at:
                    asked.granted = position
            case f.ApprovalDenied(call=call) if call in needed:
                needed[call].granted = 0
            case f.CallSuperseded(call=call, check=check):
                checks[call] = check
                needed[call] = Asked(check.digest or check.signature, granted=position)
            case _:
                pass


# -- I15


class Begun(msgspec.Struct):
    """A side effect of the open turn that was begun: where, under which key, and whether it may have taken place."""

    position: int
    key: str
    may_have_happened: bool = True


def side_effects_keep_their_key(history: History) -> Signs:
    """A side effect is begun again only where it is known not to have taken place, and under the key that it had; no two calls have one key."""
    effects: dict[CallId, str] = {}
    begun: dict[CallId, Begun] = {}
    keys: dict[str, CallId] = {}
    while (record := (yield None)) is not None:
        position = record.position
        match record.fact:
            case f.CallsChecked(checks=checks):
                effects = {check.call: check.effect for check in checks}
                begun, keys = {}, {}
            case f.ToolStarted(call=call, key=key):
                before = begun.get(call)
                if keys.setdefault(key, call) != call:
                    yield broken(position, f"{call}: started at {position} under the key of {keys[key]}")
                elif before is not None and before.key != key:
                    yield broken(position, f"{call}: started at {before.position} and at {position} under another key")
                elif before is not None and before.may_have_happened and effects.get(call) == "side_effect":
                    yield broken(position, f"{call}: started at {before.position}, not known not to have taken place, and again at {position}")
                elif effects.get(call) == "side_effect":
                    yield Sign(position, f"{call}: started at {position} under {key}")
                begun[call] = Begun(position, key)
            case f.ToolSucceeded(call=call) | f.DoubtResolved(call=call, verdict="happened"):
                if effects.get(call) == "side_effect" and call not in begun:
                    yield broken(position, f"{call}: took place by {position}, and nothing says that it was begun")
            case f.ToolFailed(call=call, performed="no") | f.DoubtResolved(call=call, verdict="did_not_happen") if call in begun:
                begun[call].may_have_happened = False
            case _:
                pass
