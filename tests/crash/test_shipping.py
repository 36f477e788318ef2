"""Two lost machines with kills before, in every test run. `make ship` loses many more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.shipping import ShippingRun, report

LOSSES, KILLS = 2, 3
SEED = 5
RATE = 1000.0


@pytest.mark.timeout(300)
def test_a_lost_machine_takes_no_message_with_it_that_was_copied(tmp_path: Path) -> None:
    outcome = asyncio.run(ShippingRun(tmp_path, LOSSES, KILLS, SEED, print, RATE).execute())
    print("\n".join(report(outcome)))
    assert outcome.violations == []
    assert outcome.losses == LOSSES and sum(outcome.killed.values()) >= LOSSES * KILLS
    assert outcome.counts["lost"] == outcome.counts["twice"] == outcome.counts["early"] == 0
    assert outcome.counts["acknowledged"] > 1000 and outcome.backed_up > 100
    # the interval is 200 ms; a test machine may be busy with other things
    assert min(outcome.ages_ms) < 1000
