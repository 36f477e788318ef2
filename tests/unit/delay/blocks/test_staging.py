"""The rows that tasks read from blocks, from mapped files and over the wire."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from wheelmq.broker.store_sizes import store_sizes
from wheelmq.delay.blocks.staging import read_blocks
from wheelmq.delay.timer.portions import OnDisk, read_portion
from wheelmq.delay.timer.turns import TurnPlan
from wheelmq.delay.timer.view import StoreUnreadable, StoreView
from wheelmq.delay.timer.wire_view import Segment, WireView
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import block_stream, origin_of
from wheelmq.formats.disk.turn_row import BLOCKS
from wheelmq.formats.wire.portions import FileKind, PortionError, Ranges, ranges_of
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


@pytest.fixture
def plan(harness: BrokerHarness) -> TurnPlan:
    """A plan over 120 messages, in files of 50 units each."""
    for i in range(120):
        harness.send("T", properties={props.DELAY_IN_SECONDS: "16" if i % 3 else "17"})
    model = PipelineModel(harness)
    model.open()
    harness.advance(13_800)
    found = model.plan()
    assert found is not None and found.blocks is not None and found.blocks.rows > 0
    return found


def rows_of(view: Any, plan: TurnPlan) -> Any:
    return read_blocks(view, msgspec.to_builtins(plan.blocks), write_ms=plan.write_ms, turn=plan.turn)


def wire_view(harness: BrokerHarness, plan: TurnPlan, bend: Callable[[Segment], Segment]) -> WireView:
    chosen = harness.broker.parts.settings
    files = StoreView(chosen.store.path, store_sizes(chosen))
    assert plan.blocks is not None
    on_disk = OnDisk(files.log.end, plan.timer_log_end, {name: units for _, name, units in plan.blocks.blocks})

    def ask(kind: FileKind, name: str, ranges: Ranges) -> Segment:
        found = read_portion(files, kind, name, ranges, on_disk)
        told = Segment(found.body, found.covered, zlib.crc32(found.body), files.log.start, files.log.end)
        return bend(told) if len(ranges) else told

    return WireView(ask, store_sizes(chosen))


def test_the_rows_are_those_that_the_plan_counts(harness: BrokerHarness, plan: TurnPlan) -> None:
    chosen = harness.broker.parts.settings
    rows = rows_of(StoreView(chosen.store.path, store_sizes(chosen)), plan)
    assert plan.blocks is not None and len(rows) == plan.blocks.rows
    assert (rows["due_ms"] > plan.blocks.after_ms).all() and (rows["due_ms"] <= plan.blocks.through_ms).all()
    [(number, _, _)] = plan.blocks.blocks
    indices = rows["origin"] - origin_of(block_stream(number), 0)
    assert len(set(indices.tolist())) == len(rows) and ((indices % 3 == 0) == (rows["due_ms"] % 16_000 != 0)).any()
    assert (rows["turn"] == plan.turn).all() and (rows["kind"] == BLOCKS).all()


def test_the_wire_gives_the_same_rows_as_mapped_files(harness: BrokerHarness, plan: TurnPlan) -> None:
    chosen = harness.broker.parts.settings
    mapped = rows_of(StoreView(chosen.store.path, store_sizes(chosen)), plan)
    assert np.array_equal(rows_of(wire_view(harness, plan, lambda told: told), plan), mapped)


@pytest.mark.parametrize(
    "bend",
    [
        lambda told: told._replace(crc=told.crc ^ 1),
        lambda told: told._replace(body=told.body[:-1], crc=zlib.crc32(told.body[:-1])),
        lambda told: told._replace(covered=0),
        lambda told: told._replace(covered=told.covered + 1),
    ],
    ids=["another crc", "shorter", "nothing", "more"],
)
def test_an_invalid_answer_raises_store_unreadable(
    harness: BrokerHarness, plan: TurnPlan, bend: Callable[[Segment], Segment]
) -> None:
    with pytest.raises(StoreUnreadable):
        rows_of(wire_view(harness, plan, bend), plan)


def test_the_broker_rejects_invalid_portions_of_a_block(harness: BrokerHarness, plan: TurnPlan) -> None:
    chosen = harness.broker.parts.settings
    files = StoreView(chosen.store.path, store_sizes(chosen))
    assert plan.blocks is not None
    [(_, name, units)] = plan.blocks.blocks
    on_disk = OnDisk(0, 0, {name: 10})
    for block, position, size in ((name, 0, 264), ("2001010100", 0, 24), (name, 1176, 48)):
        with pytest.raises(PortionError):
            read_portion(files, FileKind.BLOCK, block, ranges_of(np.array([position]), np.array([size])), on_disk)
    assert units == 120


def test_a_queue_that_ends_too_soon_raises_store_unreadable(harness: BrokerHarness, plan: TurnPlan) -> None:
    chosen = harness.broker.parts.settings
    assert plan.blocks is not None
    number, name, _ = plan.blocks.blocks[0]
    further = msgspec.structs.replace(plan.blocks, blocks=[(number, name, 10_000)])
    with pytest.raises(StoreUnreadable, match="ends before unit 10000"):
        rows_of(StoreView(chosen.store.path, store_sizes(chosen)), msgspec.structs.replace(plan, blocks=further))
