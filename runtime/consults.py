"""What user code is asked before a batch is appended: do the arguments validate, is approval needed, does the answer stand.

What it says goes into the log as input facts, so that replay can read it instead of asking; a consult that raises is a verdict too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from refold.events import facts as f
from refold.events.chain import signature_of
from refold.events.words import CallId, Digest
from refold.fsm.guards import ASK_USER
from refold.projections.messages import Message
from refold.projections.run import Call, Run
from refold.runtime.arguments import Invalid, validate
from refold.runtime.redaction import DENIED, Redaction
from refold.runtime.text import whole
from refold.runtime.tools import Tool

Validator = Callable[[Run, str, tuple[str, ...]], Sequence[str]]
"""`(run, answer, citations)` to complaints; none means that the answer stands."""
Builder = Callable[[Run, Mapping[int, Sequence[Message]]], Iterable[int]]
"""`(run, turns)` to the positions of those turns that the next request does not show; `turns` are those it may choose among, oldest first."""
COMPLAINTS_MAX: Final = 20
TEXT_MAX: Final = 2_000
CHANGED: Final = (
    "the rule or the schema of {} changed after a human was asked, so this does not count: where the call is still wanted it must be made, and asked for, again"
)


def ask_user(question: str) -> str:
    """Ask the user a question and wait for the answer. Use it only when the task cannot be done without it."""
    raise NotImplementedError  # no handler stands behind it: a human answers


def _nowhere(_signature: Digest, _business: str) -> str:
    return ""


@dataclass(frozen=True)
class Consults:
    """The agent's code as the driver consults it."""

    tools: Mapping[str, Tool]
    validators: Sequence[tuple[str, Validator]] = ()
    policy_retries: int = 0
    tool_timeout_s: float | None = None
    asks: Tool | None = field(default=None)
    redaction: Redaction = field(default=Redaction())
    context_builder: tuple[str, Builder | None] = ("", None)
    """Its name, and who is asked by it which older turns the next request shows."""
    elsewhere: Callable[[Digest, str], str] = _nowhere
    """Where an action was performed that this run may not repeat unasked, in words: of a fork, by the run that it is a fork of."""

    def of_fork(self, elsewhere: Callable[[Digest, str], str]) -> "Consults":
        """The same for a run that may not do again unasked what it finds there."""
        return replace(self, elsewhere=elsewhere)

    def calls(self, output: f.ModelOutput) -> f.CallsChecked:
        """One check for each call, in call order."""
        return f.CallsChecked(checks=tuple(self.check(call) for call in output.calls))

    def check(self, call: f.ProposedCall) -> f.Check:
        """Name, arguments and policy of one call, the first that fails."""
        tool = self.asks if call.name == ASK_USER and self.asks is not None else self.tools.get(call.name)
        raw = signature_of([call.name, "as written", call.arguments_text])
        if tool is None:
            return f.Check(call=call.id, kind="unknown_tool", message=self._unknown(call.name), signature=raw)
        if self.redaction.denies(call.arguments_text):
            return f.Check(call=call.id, kind="permission_denied", message=DENIED, signature=raw, effect=tool.effect)
        valid = validate(tool, call.arguments_text)
        if isinstance(valid, Invalid):
            return f.Check(call=call.id, kind="invalid_arguments", message=valid.message, signature=raw, effect=tool.effect)
        if tool is self.asks:
            question = str(valid.arguments["question"])
            return f.Check(
                call=call.id, arguments=valid.canonical, signature=signature_of([tool.name, valid.canonical]), effect="read", question=question, repeatable=True
            )
        return self._policy(call.id, tool, valid.canonical, valid.arguments)

    def _unknown(self, name: str) -> str:
        known = ", ".join(sorted(self.tools)) or "none"
        return f"there is no tool {name[:80]!r}; the tools are: {known}"[:TEXT_MAX]

    def void(self, run: Run) -> tuple[f.ApprovalDenied, ...]:
        """Denials of the approvals that are asked for, or given and not used yet, under another rule or schema than today's: what a human saw is not what would run."""
        return tuple(_denied(call, why) for call in run.calls if call.deniable and (why := self._objection(call)))

    def in_vain(self, run: Run) -> tuple[f.ApprovalDenied, ...]:
        """Denials of those whose tool is not there, as in a fork by another agent: nothing would run, whatever a human says."""
        return tuple(_denied(call, self._unknown(call.name)) for call in run.calls if call.deniable and call.name not in self.tools)

    def _objection(self, call: Call) -> str:
        """Why an approval of a call does not count; empty where today's code would ask a human for just that, or for nothing."""
        tool, check = self.tools.get(call.name), call.check
        if tool is None:
            return self._unknown(call.name)
        if check is None:
            return ""
        valid = validate(tool, check.arguments)
        if isinstance(valid, Invalid):
            return CHANGED.format(call.name)
        by_its_rule = check.digest != check.signature  # else the fork asked, for what its parent did later, and no rule of the tool
        today = (self if by_its_rule else self.of_fork(_nowhere))._policy(call.id, tool, valid.canonical, valid.arguments)
        stands = today.kind == "success" and (not today.approval or approval_digest(check.signature, tool) == check.digest)
        return "" if stands else CHANGED.format(call.name)

    def _policy(self, call: CallId, tool: Tool, canonical: str, arguments: dict[str, Any]) -> f.Check:
        """What the tool's policy says of arguments that validate."""
        signature = signature_of([tool.name, canonical])
        try:
            needed = bool(tool.approval(arguments)) if callable(tool.approval) else tool.approval == "always"
            key = str(tool.key(arguments)) if tool.key is not None else ""
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: whatever it raises, SystemExit too, denies the call
            message = f"the policy of {tool.name} failed, so the call is denied: {describe(error)}"
            return f.Check(call=call, kind="permission_denied", message=message, arguments=canonical, signature=signature, effect=tool.effect)
        repeated = self.elsewhere(signature, business_key(tool.name, whole(key)) if key else "") if tool.effect == "side_effect" else ""
        return f.Check(
            call=call,
            arguments=canonical,
            effect=tool.effect,
            signature=signature,
            approval=needed or bool(repeated),
            approval_reason="; ".join(why for why in (_why(tool) if needed else "", repeated) if why),
            digest=approval_digest(signature, tool) if needed or repeated else None,
            key=whole(key),
            repeatable=tool.repeatable,
            concurrent=tool.concurrent,
            reconcilable=tool.reconcile is not None,
            retries=tool.retries if tool.retries is not None else self.policy_retries,
            timeout_s=tool.timeout_s if tool.timeout_s is not None else self.tool_timeout_s,
        )

    def answer(self, run: Run, claim: f.FinalProposed, citations: tuple[str, ...]) -> f.AnswerChecked:
        """What the final validators say of a claim; a refusal or a text that was cut is not asked about."""
        if claim.refusal or claim.stop_reason in ("refusal", "length") or not claim.text.strip():
            return f.AnswerChecked()
        names, complaints = [], []
        for name, validator in self.validators:
            names.append(name)
            try:
                complaints += [whole(str(complaint))[:TEXT_MAX] for complaint in _listed(validator(run, claim.text, citations))]
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - user code: whatever it raises, SystemExit too, rejects the answer
                return f.AnswerChecked(validators=tuple(names), complaints=tuple(complaints), error=f"the validator {name} failed: {describe(error)}")
        return f.AnswerChecked(validators=tuple(names), complaints=tuple(complaints[:COMPLAINTS_MAX]))


def _denied(call: Call, why: str) -> f.ApprovalDenied:
    return f.ApprovalDenied(call=call.id, reason=why, who="the policy of today")


def _listed(said: Sequence[str] | str) -> Sequence[str]:
    """A validator that says one thing as a text means one complaint, not its letters."""
    return [said] if isinstance(said, str) and said else said


def business_key(name: str, key: str) -> str:
    """What a tool's own key names: the same act, whatever the arguments."""
    return f"{name} {key}"


def approval_digest(signature: Digest, tool: Tool) -> Digest:
    """What an approval binds to: the action, the tool's schema and the rule that asked."""
    return signature_of([signature, tool.schema_digest, _why(tool)])


def _why(tool: Tool) -> str:
    return (
        "the tool always needs approval"
        if tool.approval == "always"
        else f"the tool's rule {getattr(tool.approval, '__name__', 'predicate')} asks for approval of these arguments"
    )


def describe(error: BaseException) -> str:
    """An exception in one bounded line, whatever its text does."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ must not end the run
        text = ""
    line = " ".join(whole(text).split())[:500]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
