"""The duration of ticks, and the time of each task in them."""

from __future__ import annotations

import pytest

from wheelmq.broker import index_pacing
from wheelmq.observe.ticks import Ticks
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness


def test_a_tick_begins_with_its_first_frame() -> None:
    clock = ManualClock()
    ticks = Ticks(clock)
    assert ticks.elapsed_s == 0
    ticks.begin()
    clock.advance(7)
    ticks.begin()
    clock.advance(3)
    assert ticks.elapsed_s == pytest.approx(0.01)
    ticks.end(worked=True)
    assert ticks.elapsed_s == 0 and ticks.idle == 0
    ticks.begin()
    ticks.end(worked=False)
    assert ticks.idle == 1


@pytest.mark.parametrize(("read_ms", "slice_s"), [(0, 0.001), (1, 0.001), (9, 0.009)])
def test_releases_may_take_as_long_as_the_reading(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, read_ms: int, slice_s: float
) -> None:
    broker = harness.broker
    slices: list[float] = []
    monkeypatch.setattr(broker.parts.releaser, "release", lambda now_ms, *seconds: slices.append(max(seconds)) or 0)
    broker.parts.ticks.begin()
    harness.clock.advance(read_ms)
    broker.tick()
    assert slices == [pytest.approx(slice_s)]


def test_the_message_index_waits_while_a_burst_is_released(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, index = harness.broker.parts.store, harness.broker.parts.index
    assert index is not None
    is_burst = True
    monkeypatch.setattr(harness.broker.parts.releaser, "has_burst", lambda: is_burst)
    monkeypatch.setattr(index_pacing, "INDEX_WAITS_BYTES", 2000)
    harness.send("T", b"x" * 1000)
    assert index.indexed_to == 0 < store.log.end < 2000
    harness.send("T", b"x" * 1000)
    assert index.indexed_to == store.log.end, "it may lag by this number of bytes, and no more"
    harness.send("T")
    assert index.indexed_to < store.log.end
    is_burst = False
    harness.settle()
    assert index.indexed_to == store.log.end
