"""The terms and a plan of a real store, for models of brokers: tasks read its files, and nothing changes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

SECONDS_MAX: Final = 60
DUE_MS: Final = 40_000


class TurnTemplate(NamedTuple):
    terms: dict[str, Any]
    plan: dict[str, Any]


@contextmanager
def turn_template(folder: Path, rows: int) -> Iterator[TurnTemplate]:
    """Create a store with a plan of `rows` messages to index, and as many units to scan.

    The broker of the store makes only the plan of the scan. The model indexes the same messages again.
    """
    with BrokerHarness(folder / "store", clock=ManualClock()) as harness:
        model = PipelineModel(harness)
        model.open()
        for i in range(rows):
            harness.submit(harness.send_command("T", delay_ms=DUE_MS + i % 500))
        harness.settle()
        for _ in range(SECONDS_MAX):
            harness.advance(1000, harness.tick, every_ms=50)
            plan = model.plan()
            if plan is not None and plan.walk_rows:
                break
            model.work()
        assert plan is not None and plan.walk_rows == rows and model.terms is not None
        yield TurnTemplate(model.terms, {**msgspec.to_builtins(plan), "index_from": 0, "index_to": rows})
