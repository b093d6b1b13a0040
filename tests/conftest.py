"""How properties are looked for: the same examples every time in CI, new ones at every run of a developer."""

import os

from hypothesis import HealthCheck, Phase, settings

# The explain phase turns a failure that is found and shrunk in seconds into a minute's wait.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)

settings.register_profile("dev", max_examples=50, deadline=None, phases=PHASES, report_multiple_bugs=False)
settings.register_profile(
    "ci",
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    phases=PHASES,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
