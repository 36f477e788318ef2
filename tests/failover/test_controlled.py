"""Ten losses with Apache's controller, if COMPAT=whole: on a busy machine an election takes minutes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.failover.controlled import FAILOVER_MS_MAX, ControlledRun
from tests.failover.run import Loss, report

LOSSES = 10
SEED = 5


@pytest.mark.java
@pytest.mark.skipif(
    os.environ.get("COMPAT") != "whole", reason="COMPAT=whole runs it; `make controlled` has 200 losses"
)
@pytest.mark.timeout(420)
def test_an_elected_master_has_each_acknowledged_message(tmp_path: Path) -> None:
    outcome = asyncio.run(ControlledRun(tmp_path, LOSSES, SEED, print).execute(400.0))
    print("\n".join(report(outcome)))
    assert outcome.violations == []
    assert sum(outcome.losses.values()) == LOSSES and set(outcome.losses) == set(Loss)
    counts = outcome.counts
    assert outcome.lost == counts["twice"] == counts["early"] == counts["invented"] == 0
    assert max(outcome.failover_ms) <= FAILOVER_MS_MAX
    assert outcome.read == counts["delivered"] > 50 * LOSSES
