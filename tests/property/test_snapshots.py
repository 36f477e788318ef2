"""Random lives, each start of which comes to the same with the snapshot and without."""

from __future__ import annotations

from .profiles import profile
from .test_timers import Timers
from .twins import TwinHarness


class Starts(Timers):
    """The lives of test_timers, on a harness that starts twice."""

    harness_type = TwinHarness


TestStarts = Starts.TestCase
TestStarts.settings = profile(examples=25, steps=40)
