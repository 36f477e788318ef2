"""Bursts of due messages: their order, their shares of a slice, and their references in the ring."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from wheelmq.delay import refs as ref
from wheelmq.delay import ring
from wheelmq.delay.refs import Refs
from wheelmq.delay.release import Releaser
from wheelmq.delay.release_pace import BURST_SLICES
from wheelmq.delay.ring import QUANTUM, RING_MAX
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.units import Millis
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


class TestOrder:
    def test_messages_of_one_millisecond_and_queue_keep_their_order(self, harness: BrokerHarness) -> None:
        for i in range(200):
            harness.submit(harness.send_command("T", b"%d" % i, queue_id=i % 2, deliver_ms=START_MS + 1000))
        harness.advance(1000)
        assert harness.bodies("T", 0) == [b"%d" % i for i in range(0, 200, 2)]
        assert harness.bodies("T", 1) == [b"%d" % i for i in range(1, 200, 2)]

    def test_near_lane_and_pipeline_together_keep_the_order(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        sent = []
        for i in range(60):
            sent.append(b"%d" % i)
            harness.send("T", sent[-1], deliver_ms=START_MS + 7000)
            harness.advance(100, model.work, 100)
        harness.advance(1000)
        assert harness.bodies("T") == sent
        assert min(harness.broker.parts.timer.pending.armed_by[by] for by in ("pipeline", "near_lane")) > 0

    def test_a_burst_does_not_delay_a_message_of_the_next_millisecond(
        self, harness: BrokerHarness, clock: ManualClock
    ) -> None:
        count = 5 * QUANTUM
        for _ in range(count):
            harness.submit(harness.send_command("T", b"burst", deliver_ms=START_MS + 1000))
        harness.submit(harness.send_command("T", b"beside", deliver_ms=START_MS + 1001))
        harness.settle()
        clock.advance(1001)
        clock.creep_ms = 1  # each clock reading takes 1 ms, so a slice of 2 ms has room for one quantum
        harness.tick()
        clock.creep_ms = 0
        assert harness.broker.parts.releaser.counts["released"] < count
        assert timer_origin(count) in harness.broker.parts.timer.pending.done  # that message was parked last
        harness.settle()
        assert len(harness.bodies("T")) == count + 1

    def test_a_burst_leaves_in_larger_quanta_until_it_is_small(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 4)
        monkeypatch.setattr(ring, "BURST", 64)
        monkeypatch.setattr(ring, "BURST_QUANTA", 8)
        for i in range(71):
            harness.submit(harness.send_command("T", b"%d" % i, deliver_ms=START_MS + 1000))
        harness.submit(harness.send_command("T", b"beside", deliver_ms=START_MS + 1001))
        harness.advance(1)  # now the last message is near as well
        clock.advance(1000)
        releaser, sizes = harness.broker.parts.releaser, []
        releaser.take_due(Millis(harness.now_ms))
        while releaser.has_more():
            sizes.append(releaser.release(Millis(harness.now_ms), 0.0))
            assert releaser.in_hand() == 72 - sum(sizes)
        assert sizes == [32, *[4] * 10], "the one beside and all that has room with it; then it is a burst no more"
        harness.settle()
        assert sorted(harness.bodies("T")) == sorted([b"beside", *(b"%d" % i for i in range(71))])

    def test_a_burst_has_a_longer_slice(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 1)
        monkeypatch.setattr(ring, "BURST", 16)
        monkeypatch.setattr(ring, "BURST_QUANTA", 2)
        releaser = with_hundred_in_hand(harness, clock)
        assert BURST_SLICES == 4
        assert releaser.release(Millis(harness.now_ms), 0.0024) == 2 * 10  # 9.6 ms, 1 ms for each quantum
        assert releaser.release(Millis(harness.now_ms), 0.0024, 0.012) == 2 * 12  # a larger share
        assert releaser.release(Millis(harness.now_ms), 0.0024, 0.008) == 2 * 10  # a smaller share
        clock.creep_ms = 0
        harness.settle()
        assert len(harness.bodies("T")) == 100

    def test_messages_of_a_few_of_many_instants_leave_together(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bucket's cost does not depend on its size. If 40 buckets shared 16 places, each would release one."""
        monkeypatch.setattr(ring, "QUANTUM", 16)
        monkeypatch.setattr(ring, "SHARES_MAX", 2)
        for i in range(40 * 8):
            harness.submit(harness.send_command("T", b"%d" % i, deliver_ms=START_MS + 1000 + i // 8))
        harness.advance(40)  # all messages are near
        clock.advance(1000)
        releaser = harness.broker.parts.releaser
        releaser.take_due(Millis(harness.now_ms))
        assert releaser.release(Millis(harness.now_ms), 0.0) == 16
        assert releaser.earliest_in_hand_ms() == START_MS + 1002, "two of them"
        harness.settle()
        assert harness.bodies("T") == [b"%d" % i for i in range(40 * 8)]

    def test_a_share_grows_with_lateness(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 1)
        releaser = with_hundred_in_hand(harness, clock)
        now_ms = START_MS + 1000
        assert releaser.release(Millis(now_ms), 0.001, 0.0024) == 3
        assert releaser.release(Millis(now_ms + 10), 0.001, 0.0024) == 5, "twice as long"
        assert releaser.release(Millis(now_ms + 60_000), 0.001, 0.0024) == 7, "four slices more, and no more"
        clock.creep_ms = 0
        harness.settle()
        assert len(harness.bodies("T")) == 100

    def test_the_quantum_shrinks_if_a_release_takes_long_and_grows_again(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 16)
        releaser = with_hundred_in_hand(harness, clock)
        now_ms = Millis(harness.now_ms)
        assert [releaser.release(now_ms, 0.0002) for _ in range(6)] == [16, 8, 4, 2, 1, 1], "1 ms, not 0.8"
        assert [releaser.release(now_ms, 0.0004) for _ in range(2)] == [1, 1], "just as long as it may be"
        assert [releaser.release(now_ms, 0.002) for _ in range(3)] == [1 + 2, 4 + 8, 16 + 16]
        clock.creep_ms = 0
        harness.settle()
        assert len(harness.bodies("T")) == 100

    def test_a_burst_ends_when_few_of_its_messages_are_in_hand(
        self, harness: BrokerHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "QUANTUM", 30)
        monkeypatch.setattr(ring, "BURST", 64)
        monkeypatch.setattr(ring, "BURST_QUANTA", 1)
        releaser = with_hundred_in_hand(harness, clock)
        clock.creep_ms = 0
        now_ms = Millis(harness.now_ms)
        assert not releaser.is_burst_leaving()
        seen = [(releaser.release(now_ms, 0.0), releaser.is_burst_leaving()) for _ in range(3)]
        assert seen == [(30, True), (30, True), (30, False)]
        harness.settle()
        assert len(harness.bodies("T")) == 100


def with_hundred_in_hand(harness: BrokerHarness, clock: ManualClock) -> Releaser:
    """Return the releaser with 100 messages due at one millisecond. From now on each clock reading takes 1 ms."""
    for _ in range(100):
        harness.submit(harness.send_command("T", deliver_ms=START_MS + 1000))
    harness.settle()
    clock.advance(1000)
    harness.broker.parts.releaser.take_due(Millis(harness.now_ms))
    clock.creep_ms = 1
    return harness.broker.parts.releaser


class TestRing:
    @pytest.mark.plain  # the kernel appends by itself
    def test_a_disk_error_loses_no_message(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        for i in range(5):
            harness.send("T", b"%d" % i, delay_ms=1000)

        def fail(*_: object, **__: object) -> None:
            raise OSError("unforeseen")

        monkeypatch.setattr(harness.broker.parts.store, "append", fail)
        harness.clock.advance(1000)
        harness.broker.tick()
        assert harness.broker.parts.releaser.earliest_in_hand_ms() == START_MS + 1000
        monkeypatch.undo()
        harness.advance(200)
        assert harness.bodies("T") == [b"0", b"1", b"2", b"3", b"4"]
        invariants.check(harness.broker)

    def test_many_overdue_instants_enter_as_the_ring_empties(self, harness: BrokerHarness) -> None:
        refs = overdue(np.arange(1, 100_001))
        broker = harness.broker
        timer, releaser = (
            broker.parts.timer,
            Releaser(broker.parts.store, broker.parts.timer, broker.parts.generations),
        )
        timer.pending.armed.requeue(refs)
        left = []
        for _ in range(5):  # again in each tick
            releaser.take_due(Millis(100_000))
            left.append(timer.pending.armed.count)
        assert left[0] > left[-1] == left[-2] == 100_000 - RING_MAX
        assert releaser.earliest_in_hand_ms() == 1

    def test_a_burst_keeps_no_other_instant_out(self, harness: BrokerHarness) -> None:
        broker = harness.broker
        timer, releaser = (
            broker.parts.timer,
            Releaser(broker.parts.store, broker.parts.timer, broker.parts.generations),
        )
        timer.pending.armed.requeue(overdue(np.repeat([1, 2], [50_000, 10])))
        releaser.take_due(Millis(2))
        assert timer.pending.armed.count == 0


def overdue(fire_ms: npt.NDArray[np.int64]) -> Refs:
    """Make references that fire at these times and name no message."""
    refs = ref.make(len(fire_ms))
    refs[:, ref.FIRE_MS] = fire_ms
    refs[:, ref.ORIGIN] = np.arange(len(fire_ms))
    return refs
