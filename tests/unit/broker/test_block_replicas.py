"""Copies of blocks: a master and its replica in one process, a failover, and the return of the former master."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.broker.block_pairs import Pair, bodies, content, waiting
from tests.unit.broker.test_blocks import blocks, send
from wheelmq.broker.replication.block_link import BlocksWrong
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import FLAG_DONE
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import SLAVE, BlockCopy
from wheelmq.testing.stops import Died, Stops


class TestCopy:
    def test_a_replica_gets_existing_blocks_and_then_each_new_message(self, pair: Pair) -> None:
        for seconds in (1, 3, 12, 25, 500):
            send(pair.master, seconds, b"%d" % seconds, UNIQ_KEY=f"K{seconds}")
        pair.copy.run()
        assert content(pair.replica) == content(pair.master) and waiting(pair.replica) == 5
        for seconds in (2, 13, 900):
            send(pair.master, seconds, b"later %d" % seconds)
            pair.copy.run()
            assert content(pair.replica) == content(pair.master)
        assert waiting(pair.replica) == 8
        pair.replica.restart(clean=False)
        assert content(pair.replica) == content(pair.master) and waiting(pair.replica) == 8
        invariants.check(pair.replica.broker)

    def test_a_replica_holds_due_messages_ready_and_releases_none(self, pair: Pair) -> None:
        send(pair.master, 2, b"near")
        pair.copy.run()
        assert pair.replica.broker.parts.timer.pending.armed.next_fire_ms() == pair.master.now_ms + 2000
        pair.replica.advance(10_000)
        assert pair.replica.broker.parts.releaser.counts["released"] == 0 and waiting(pair.replica) == 1

    def test_messages_of_many_files_are_copied(self, pair: Pair) -> None:
        """A file of a block has 16 KiB of records, and 50 units."""
        for i in range(180):
            send(pair.master, 30, b"x" * (1 + i * 7 % 900), UNIQ_KEY=f"K{i}")
        pair.copy.run()
        assert content(pair.replica) == content(pair.master)
        (block,) = blocks(pair.replica)
        assert block.log.end > 3 * (16 << 10) and waiting(pair.replica) == 180
        pair.replica.restart(clean=False)
        assert content(pair.replica) == content(pair.master)

    def test_many_blocks_are_checked_and_reported_in_pieces(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        for i in range(7):
            send(pair.master, 20 + 20 * i)
        pair.copy.run()
        for limit in ("PLACES_MAX", "PROGRESS_MAX"):
            monkeypatch.setattr(f"wheelmq.broker.replication.block_link.{limit}", 2)
        for i in range(7):
            send(pair.master, 20 + 20 * i)
        pair.connect_again()
        pair.copy.run()
        assert content(pair.replica) == content(pair.master) and waiting(pair.replica) == 14
        (session,) = pair.master.broker.parts.block_source.sessions
        assert session.acked == {block.number: 2 for block in blocks(pair.master)}

    @pytest.mark.parametrize("log_first", [True, False])
    def test_a_message_that_is_settled_by_now_is_not_pending(self, pair: Pair, log_first: bool) -> None:
        send(pair.master, 1, b"out")
        send(pair.master, 8, b"in")
        pair.master.advance(3000)
        if log_first:
            pair.copy_log()
            assert waiting(pair.replica) == 0, "its block has not come yet, so it was never counted"
        pair.copy_all()
        assert content(pair.replica) == content(pair.master) and waiting(pair.replica) == 1
        pair.fail_over()
        pair.replica.advance(10_000)
        assert bodies(pair.replica) == [b"first", b"out", b"in"]

    def test_flags_of_settled_messages_wait_for_the_log(self, pair: Pair) -> None:
        """Otherwise a truncation would lose the message: its flag is there, and its settling record is not."""
        send(pair.master, 1, b"out")
        pair.master.advance(3000)
        pair.copy.run()
        assert all(block.queue.end == 0 for block in blocks(pair.replica))
        pair.copy_all()
        (block,) = blocks(pair.replica)
        assert block.queue.read(0, 1)["flags"][0] & FLAG_DONE
        assert pair.replica.broker.parts.store.log.synced == pair.replica.broker.parts.store.log.end

    def test_a_block_is_removed_only_when_its_own_log_settles_its_messages(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path, clean_resource_interval_ms=1000)
        send(pair.master, 2, b"a")
        pair.copy_all()
        pair.master.advance(25_000)
        assert len(blocks(pair.master)) == 0
        pair.connect_again()  # the master has forgotten the silent replica
        pair.copy.run()
        pair.replica.advance(25_000)
        assert len(blocks(pair.replica)) == 1 and waiting(pair.replica) == 1, "its log has not come"
        pair.connect_again()
        pair.copy_all()
        pair.replica.advance(2000)
        assert len(blocks(pair.replica)) == 0 and waiting(pair.replica) == 0
        send(pair.master, 5, b"b")
        pair.copy_all()
        assert content(pair.replica) == content(pair.master)
        assert [block.number for block in blocks(pair.replica)] == [2]
        pair.master.crash()
        pair.replica.crash()

    def test_a_cancel_at_the_master_settles_the_copy(self, pair: Pair) -> None:
        send(pair.master, 8, b"gone", UNIQ_KEY="K")
        pair.copy_all()
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K", props.TIMER_DELIVER_MS: str(pair.master.now_ms + 1000)}
        assert pair.master.send("T", b"cancel", properties=cancel).code == ResponseCode.SUCCESS
        pair.copy_all()
        assert waiting(pair.replica) == 0
        pair.fail_over()
        pair.replica.advance(12_000)
        assert bodies(pair.replica) == [b"first"]

    def test_another_file_size_is_an_error_with_the_remedy(self, tmp_path: Path) -> None:
        with (
            BrokerHarness(tmp_path / "master") as master,
            BrokerHarness(tmp_path / "replica", block_log_file_bytes=32 << 10, **SLAVE) as replica,
            pytest.raises(BlocksWrong, match="block_log_file_bytes is 16384, and that of this replica is 32768"),
        ):
            BlockCopy(master, replica).run()

    def test_a_damaged_record_is_set_aside_at_both(self, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
        send(pair.master, 8, b"damaged" * 10)
        send(pair.master, 8, b"good")
        (block,) = blocks(pair.master)
        unit = block.queue.read(0, 1)[0]
        at = int(unit["position"]) + 100  # in its body
        block.log.files.file_at(at).array[at] ^= 0xFF
        pair.copy.run()
        assert waiting(pair.replica) == 1 and "index 0 is set aside" in caplog.text

    def test_a_message_that_only_the_replica_set_aside_is_not_counted(
        self, pair: Pair, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Otherwise its release at the master would subtract another message, and drop the key of that one."""
        send(pair.master, 8, b"damaged" * 10)
        send(pair.master, 15, b"good", UNIQ_KEY="K")
        pair.copy_all()
        pair.replica.advance(2500)  # a checkpoint covers the records
        (block, *_) = blocks(pair.replica)
        block.log.files.file_at(0).array[100] ^= 0xFF  # in the body
        pair.replica.restart(clean=False)
        assert waiting(pair.replica) == 1 and "index 0 is set aside" in caplog.text
        pair.master.advance(7000)
        pair.connect_again()
        pair.copy_all()
        assert waiting(pair.replica) == 1
        pair.fail_over()
        invariants.check(pair.replica.broker)
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K", props.TIMER_DELIVER_MS: str(pair.replica.now_ms + 1000)}
        assert pair.replica.send("T", b"cancel", properties=cancel).code == ResponseCode.SUCCESS
        assert waiting(pair.replica) == 0

    def test_a_kill_at_any_point_of_a_copy_loses_nothing(self, tmp_path: Path) -> None:
        ended: list[str] = []
        for die_at in range(200):
            pair = Pair(tmp_path / str(die_at))
            send(pair.master, 1, b"out")
            for i in range(60):
                send(pair.master, 20, b"%d" % i * 40)
            pair.master.advance(2000)
            with Stops(die_at=die_at) as stops:
                try:
                    pair.copy_all()
                except Died:
                    ended.append(stops.passed[-1])
                    stops.disarm()
                    pair.replica.crash()
                    pair.replica.start()
                    pair.connect_again()
                    pair.copy_all()
            assert content(pair.replica) == content(pair.master), ended[-1:]
            pair.fail_over()
            pair.replica.advance(30_000)
            found = bodies(pair.replica)
            assert len(found) == len(set(found)) == 62, ended[-1:]
            pair.replica.crash()
            if len(ended) <= die_at:
                break
        assert {"copy.flagged", "copy.tail", "copy.written", "copy.appended"} <= set(ended)


def test_units_outside_of_their_block_are_rejected(pair: Pair) -> None:
    send(pair.master, 30)
    (block,) = blocks(pair.master)
    units = block.queue.read(0, 1)
    units["due_ms"] = np.int64(5)
    with pytest.raises(ValueError, match="due outside of the block"):
        pair.copy.run()
    assert waiting(pair.replica) == 0
