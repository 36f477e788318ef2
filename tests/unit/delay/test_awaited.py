"""A slave releases nothing, so it drops the references of timers that its master has released."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.unit.delay.test_armed import pairs, refs
from wheelmq.broker.overdue import overdue
from wheelmq.delay import refs as ref
from wheelmq.delay.awaited import CHECK_MAX, AwaitedReleases
from wheelmq.delay.pending import PendingTable
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.units import Millis
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import SLAVE, copy_log

ALL = 20_000


@pytest.fixture
def pending(harness: BrokerHarness) -> PendingTable:
    return harness.broker.parts.timer.pending


def arm(pending: PendingTable, fire_ms: int, indices: range) -> None:
    pending.armed.arm(refs(*((fire_ms, index) for index in indices)))


def settle(pending: PendingTable, indices: range) -> None:
    pending.done.update(np.array([timer_origin(index) for index in indices]))


def test_no_reference_of_a_settled_message_stays(pending: PendingTable) -> None:
    awaited = AwaitedReleases(pending)
    for first in range(0, ALL, 20):  # so few enter the heap as single references
        arm(pending, first, range(first, first + 20))
    settle(pending, range(ALL))
    while pending.armed.count:
        before = pending.armed.count
        awaited.check(Millis(ALL))
        assert 0 < before - pending.armed.count < 1000, "each check takes a bounded time"
    assert (awaited.count, pending.armed.bytes, awaited.next_ms(Millis(ALL))) == (0, 0, None)


def test_a_message_settled_after_the_first_check_is_dropped_later(pending: PendingTable) -> None:
    awaited, count = AwaitedReleases(pending), 3 * CHECK_MAX + 5
    indices = np.arange(count)
    many = ref.make(count)
    many[:, ref.FIRE_MS], many[:, ref.ORIGIN] = 7, indices + timer_origin(0)
    pending.armed.arm(many)
    while pending.armed.count:
        awaited.check(Millis(7))
    assert (awaited.count, awaited.earliest_ms()) == (count, 7)
    pending.done.update(many[:, ref.ORIGIN])
    for _ in range(5):
        awaited.check(Millis(8))
    assert (awaited.count, awaited.earliest_ms(), awaited.next_ms(Millis(8))) == (0, None, None)


def test_a_new_master_arms_exactly_the_pending_messages_again(pending: PendingTable) -> None:
    awaited = AwaitedReleases(pending)
    arm(pending, 10, range(100))
    awaited.check(Millis(10))
    settle(pending, range(90))
    arm(pending, 11, range(100, 200))  # no check sees these
    settle(pending, range(100, 195))
    arm(pending, 12, range(200, 210))
    awaited.end(Millis(11))
    assert awaited.count == 0 and pending.armed.count == 25
    expected = [(10, index) for index in range(90, 100)] + [(11, index) for index in range(195, 200)]
    assert pairs(pending.armed.take_due(Millis(11), 1 << 40)) == expected
    awaited.end(Millis(12))
    assert pending.armed.count == 10, "a master takes its references itself"


def test_the_references_stay_after_an_error(pending: PendingTable, monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = AwaitedReleases(pending)
    arm(pending, 10, range(3))
    monkeypatch.setattr("wheelmq.delay.awaited.by_fire_time", lambda refs: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        awaited.check(Millis(10))
    monkeypatch.undo()
    awaited.end(Millis(10))
    assert len(pairs(pending.armed.take_due(Millis(10), 1 << 40))) == 3


def test_a_slave_has_no_overdue_messages_while_its_master_releases_them(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path / "master") as master:
        replica = BrokerHarness(tmp_path / "replica", clock=master.clock, **SLAVE)
        for delay_ms in (500, 1500, 1500, 4000, 9000):
            master.send("T", b"%d" % delay_ms, delay_ms=delay_ms)
        for _ in range(50):
            copy_log(master, replica, Random(1))
            master.advance(100)
        copy_log(master, replica, Random(1))
        pending, sources = replica.broker.parts.timer.pending, replica.broker.parts.metric_sources
        assert pending.armed.count == 0 and overdue(sources) == (0, 0)
        master.advance(4500)  # the slave does not get the last release
        replica.settle()
        assert overdue(sources) == (1, replica.now_ms - START_MS - 9000)
        master.crash()
        replica.broker.parts.replication.promote("the test")
        replica.tick()
        assert replica.bodies("T")[-1:] == [b"9000"] and replica.broker.parts.releaser.counts["released"] == 1
        invariants.check(replica.broker)
        replica.stop()
