"""Random runs in which each start has the same result with the snapshot and without."""

from __future__ import annotations

from .profiles import profile
from .test_timers import Timers
from .twins import TwinHarness


class Starts(Timers):
    """Runs the machine of test_timers on a harness that starts twice."""

    harness_type = TwinHarness


TestStartsWithAndWithoutTheSnapshot = Starts.TestCase
TestStartsWithAndWithoutTheSnapshot.settings = profile(examples=10, steps=40)
