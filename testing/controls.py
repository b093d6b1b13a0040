"""The negative controls: whatever certifies a good runtime must notice every one that is broken on purpose, as what it is.

Apart from the broken runtimes, which each process of a campaign puts in place and which know of no campaign.

    python -m refold.testing.controls [MODULE:AGENT]     runs them all
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from refold.testing import broken
from refold.testing.certify import Campaign, Certificate, Family, certify
from refold.testing.judging import Finding, Kind

FINDINGS_MAX: Final = 200
"""Findings after which a campaign against a broken runtime ends, when none of them is the one that it is there for."""


@dataclass(frozen=True)
class Control:
    """A broken runtime, as the function of `broken.py` that puts it in place; a campaign over `families` must report `kind`, in words that hold `says`."""

    put_in_place: Callable[[], broken.Logs]
    kind: Kind
    says: str
    families: tuple[Family, ...] = ("once",)
    first: int = 1
    """The step from which on it shows, where it does not show before."""

    def is_seen_in(self, finding: Finding) -> bool:
        """Whether this is what it is there for."""
        return finding.kind == self.kind and self.says in finding.what


CONTROLS: Final[dict[str, Control]] = {
    "the intent is stored after the effect": Control(broken.intent_after_effect, "duplicate", "was performed 2 times"),
    "the outcome is stored before the effect": Control(broken.outcome_before_effect, "loss", "and no handler ran"),
    "a key for each attempt": Control(broken.key_per_process, "duplicate", "ran under 2 keys"),
    "started side effects are run again": Control(broken.started_calls_again, "duplicate", "was performed 2 times"),
    "a call that is in doubt counts as not performed": Control(broken.doubt_told_as_failure, "loss", "was performed, and its result is cancelled"),
    "the whole batch is run again": Control(broken.whole_batch_again, "duplicate", "was performed 2 times"),
    "the script restarts": Control(broken.script_restarts, "divergence", "the twin's"),
    "counters are reset": Control(broken.counters_reset, "divergence", "the last process reported the usage"),
    "a request without the results before it": Control(broken.results_not_sent, "divergence", "was sent without the results of"),
    "reconciling is skipped": Control(broken.reconciling_is_skipped, "duplicate", "book (t3.3) was performed 2 times", first=60),
    "a failed side effect is tried again": Control(broken.failed_side_effects_again, "duplicate", "fax (t3.2) was performed 2 times"),
    "an append is acknowledged too early": Control(broken.acknowledged_too_early, "loss", "acknowledged appends are not in the log any more"),
    "payloads are not in the transaction": Control(broken.payloads_later, "loss", "an acknowledged record cannot be read"),
    "a batch is not one transaction": Control(broken.record_by_record, "divergence", "replay:"),
    "a conflict is taken for success": Control(broken.conflict_is_success, "duplicate", "was performed 2 times", ("spoken to",)),
    "the head is not checked": Control(broken.no_head_check, "loss", "a message that was acknowledged is 0 times in the log", ("spoken to",)),
    "an approval is not bound to arguments": Control(broken.approval_by_name, "divergence", "was allowed"),
    "nobody is asked for approval": Control(broken.nobody_is_asked, "divergence", "nobody had allowed it"),
    "an answer is not validated": Control(broken.unjudged_answers, "divergence", "the answer was accepted by no validator"),
    "calls are left open by a cancellation": Control(broken.orphans_on_cancel, "divergence", "the run has not ended", ("cancelled",)),
    "lost ownership is ignored": Control(broken.lost_ownership_ignored, "divergence", "a driver that had been taken over appended", ("taken over",)),
}
"""By what is wrong with them."""


def noticed(certificate: Certificate, control: Control) -> bool:
    """Whether a campaign found what is wrong with a broken runtime."""
    return any(control.is_seen_in(finding) for told in certificate.told for finding in told.findings)


def run(name: str, agent: str, jobs: int = 2) -> Certificate:
    """A campaign against a broken runtime, until it has found what is wrong."""
    control = CONTROLS[name]
    ordered = control.put_in_place.__name__
    campaign = Campaign(agent=agent, control=ordered, families=control.families, first=control.first, jobs=jobs, stop_after=FINDINGS_MAX)
    return certify(campaign, enough=control.is_seen_in)


def main(agent: str) -> int:
    """Run every broken runtime, and say what noticed it."""
    missed = 0
    for name, control in CONTROLS.items():
        certificate = run(name, agent)
        caught = noticed(certificate, control)
        missed += not caught
        scenarios = sum(certificate.scenarios.values())
        print(f"{'caught' if caught else 'MISSED'}  {name:<50} {control.kind} after {scenarios} scenarios", flush=True)
    print(f"{len(CONTROLS) - missed} of {len(CONTROLS)} broken runtimes are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "examples.crashtest:short"))
