"""The cause that is assigned to a late message."""

from __future__ import annotations

import numpy as np

from tests.crash.figures import IN_HAND_MS, lateness
from tests.crash.killing import Death

COLUMNS = ("due_ms", "store_ms", "parked_ms")
KILLED_MS = 100_000
BACK_MS = KILLED_MS + 7000


def test_lateness_is_assigned_to_the_kill_that_caused_it() -> None:
    """A message that was in release at the kill is late because of the kill.

    A message that was overdue before is not.
    """
    kill = Death("broker", 1, 0, KILLED_MS, 1, 0, of_broker=True, by_failpoint=False, serving_s=7.0)
    well, in_hand, overdue = KILLED_MS - 50_000, KILLED_MS - 5, KILLED_MS - IN_HAND_MS - 1
    rows = [(well, well + 2), (in_hand, BACK_MS), (overdue, BACK_MS)]
    delivered = np.array([(due, store, due - 100) for due, store in rows], [(name, "i8") for name in COLUMNS])
    found = lateness(delivered, [kill])
    assert (found["nothing killed yet"]["count"], found["nothing killed yet"]["max"]) == (2, BACK_MS - overdue)
    assert found["broker away or just back"]["count"] == 2
    assert found["broker up"]["count"] == 1
