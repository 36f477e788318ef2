"""The progress of transactions that a slave takes over from its master."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.unit.broker.test_transactions import COMMIT, ROUND_MS, checks, end, half, producer, progress
from wheelmq.broker.transactions.followed_progress import FollowedProgress
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import SLAVE, copy_log


def test_a_slave_does_not_take_a_progress_that_its_log_does_not_show(tmp_path: Path) -> None:
    """The commit is lost with the master. So the slave must check the transaction once it is the master."""
    with (
        BrokerHarness(tmp_path / "a") as master,
        BrokerHarness(tmp_path / "b", clock=master.clock, **SLAVE) as slave,
    ):
        sent = half(master)
        copy_log(master, slave, Random(1))
        end(master, sent, COMMIT)
        master.advance(10_000)
        assert progress(master)[0] == 1
        offsets, log = slave.broker.parts.consumer_offsets, master.broker.parts.store.log
        followed = FollowedProgress(slave.broker.parts.store, offsets)
        table = master.broker.parts.consumer_offsets.table()
        offsets.follow(table)
        followed.note(table)
        followed.poll(log.end)
        assert progress(slave) == (None, None)
        slave.broker.parts.replication.promote("the test")
        connection = producer(slave)
        slave.advance(ROUND_MS)
        assert len(checks(connection)) == 1


def test_a_slave_takes_a_progress_once_its_log_is_on_disk_up_to_the_end_of_the_master_s(tmp_path: Path) -> None:
    with (
        BrokerHarness(tmp_path / "a") as master,
        BrokerHarness(tmp_path / "b", clock=master.clock, **SLAVE) as slave,
    ):
        end(master, half(master), COMMIT)
        master.advance(10_000)
        offsets, log = slave.broker.parts.consumer_offsets, master.broker.parts.store.log
        followed = FollowedProgress(slave.broker.parts.store, offsets)
        followed.note(master.broker.parts.consumer_offsets.table())
        followed.poll(log.end)
        copy_log(master, slave, Random(1))
        slave.broker.parts.store.flush()
        assert progress(slave) == (None, None)
        followed.poll(log.end)
        assert progress(slave) == progress(master) == (1, 2)
