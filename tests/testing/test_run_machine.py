"""Whatever the world tells a run, in whatever order: the log is legal, folds to the run, and can be derived again."""

from hypothesis import settings

from refold.testing.machine import RunMachine


class Quick(RunMachine):
    """As many examples as the profile says."""


TestQuick = Quick.TestCase
TestQuick.settings = settings(stateful_step_count=40)
