"""A failover of a broker with messages in blocks, and the return of the former master."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.unit.broker.block_pairs import Pair, bodies, content, waiting
from tests.unit.broker.test_blocks import blocks, send
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import FLAG_DONE
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.testing import invariants
from wheelmq.testing.replication import SLAVE, BlockCopy, copy_log, rejoin
from wheelmq.testing.stops import Died, Stops


class TestFailover:
    def test_a_promoted_replica_releases_each_message_once_and_on_time(self, pair: Pair) -> None:
        start_ms = pair.master.now_ms
        for seconds in (1, 2, 6, 14, 40):
            send(pair.master, seconds, b"%d" % seconds)
        pair.master.advance(3000)
        pair.copy_all()
        pair.fail_over()
        pair.replica.advance(50_000)
        found = {one.message.body: one.store_ms - start_ms for one in pair.replica.read_queue("T")[1:]}
        assert found.keys() == {b"1", b"2", b"6", b"14", b"40"}
        assert [found[body] for body in (b"6", b"14", b"40")] == [6000, 14_000, 40_000]
        pair.replica.restart(clean=False)
        pair.replica.advance(50_000)
        assert len(bodies(pair.replica)) == 6

    def test_a_release_that_no_replica_got_is_repeated_by_the_new_master(self, pair: Pair) -> None:
        send(pair.master, 2, b"a")
        pair.copy_all()
        pair.master.advance(3000)
        assert bodies(pair.master) == [b"first", b"a"]
        pair.fail_over()
        assert bodies(pair.replica) == [b"first", b"a"]

    def test_a_replica_removes_a_block_of_which_it_lacks_a_message(self, pair: Pair) -> None:
        """Its log settles all messages of the block. Else a later block of the same time could never be copied."""
        send(pair.master, 2, b"copied")
        pair.copy_all()
        send(pair.master, 3, b"not copied")
        pair.master.advance(40_000)
        assert len(blocks(pair.master)) == 0
        pair.copy_log()
        pair.connect_again()
        pair.copy.run()
        pair.replica.advance(40_000)
        assert len(blocks(pair.replica)) == 0

    def test_a_former_master_forgets_all_of_its_own_releases(self, tmp_path: Path) -> None:
        """Else a message looks settled that no record settles, and the former master loses it once it is promoted."""
        pair = Pair(tmp_path, clean_resource_interval_ms=1_000_000)
        for seconds in (14, 14, 15, 2):  # the last one is in another block, and is released first
            send(pair.master, seconds, b"%d" % seconds)
        pair.copy_all()
        pair.master.advance(20_000)
        assert [block.queue.done().tolist() for block in blocks(pair.master)] == [[0], [0, 1, 2]]
        pair.fail_over()
        pair.replica.crash()
        pair.replica.clock.step(-20_000)
        pair.replica.start()
        rejoin(pair.master, pair.replica)
        assert waiting(pair.master) == 4
        invariants.check(pair.master.broker)

    def test_the_new_master_uses_no_index_and_no_number_that_its_log_names(self, pair: Pair) -> None:
        """Its log settles messages that it has not got. A new message with such an index would count as settled."""
        send(pair.master, 5, b"copied")
        pair.copy_all()
        send(pair.master, 1, b"not copied")
        send(pair.master, 15, b"not copied either")
        cancel = {props.TIMER_DEL_UNIQKEY: "T+K", props.TIMER_DELIVER_MS: str(pair.master.now_ms + 1000)}
        send(pair.master, 15, b"cancelled", UNIQ_KEY="K")
        assert pair.master.send("T", b"cancel", properties=cancel).code == ResponseCode.SUCCESS
        pair.master.advance(2000)
        pair.copy_log()
        for _ in range(2):
            pair.replica.restart(clean=False)
        pair.fail_over()
        for seconds in (3, 14):
            send(pair.replica, seconds, b"new %d" % seconds)
        for clean in (False, True):
            pair.replica.restart(clean=clean)
            invariants.check(pair.replica.broker)
        pair.replica.advance(30_000)
        assert sorted(bodies(pair.replica)) == [b"copied", b"first", b"new 14", b"new 3", b"not copied"]

    def test_an_index_stays_used_after_a_start_from_a_snapshot(self, pair: Pair) -> None:
        send(pair.master, 5, b"copied")
        pair.copy_all()
        send(pair.master, 1, b"not copied")
        pair.master.advance(2000)
        pair.copy_log()
        pair.replica.restart(snapshot_ms=1)
        pair.replica.restart()
        pair.fail_over()
        send(pair.replica, 2, b"new")
        pair.replica.restart()
        pair.replica.advance(10_000)
        assert sorted(bodies(pair.replica)) == [b"copied", b"first", b"new", b"not copied"]

    def test_parts_that_wait_for_the_log_are_dropped_by_a_promotion(
        self, pair: Pair, caplog: pytest.LogCaptureFixture
    ) -> None:
        send(pair.master, 1, b"out")
        pair.master.advance(2000)
        pair.copy.run()
        pair.fail_over()
        assert "1 received parts of blocks are dropped" in caplog.text
        send(pair.replica, 1, b"new")
        pair.replica.advance(2000)
        assert bodies(pair.replica) == [b"first", b"new"]


class TestReturn:
    """A former master follows its successor."""

    def test_a_tail_that_the_new_master_lacks_is_cut(self, pair: Pair) -> None:
        send(pair.master, 20, b"both")
        pair.copy_all()
        for i in range(3):
            send(pair.master, 20, b"lost %d" % i)
        send(pair.master, 100, b"lost with its block")
        pair.fail_over()
        send(pair.replica, 20, b"new")
        send(pair.replica, 100, b"new too")
        assert rejoin(pair.master, pair.replica) == (0, 2)
        copy_log(pair.replica, pair.master, Random(1))
        BlockCopy(pair.replica, pair.master).run()
        assert content(pair.master) == content(pair.replica) and waiting(pair.master) == 3
        pair.replica.crash()
        pair.master.broker.parts.replication.promote("the test")
        pair.master.advance(120_000)
        assert sorted(bodies(pair.master)) == [b"both", b"first", b"new", b"new too"]

    def test_a_block_that_the_new_master_lacks_is_cut_once_the_log_has_come(self, pair: Pair) -> None:
        """The log may have records that settle its messages. Until then, the master may hold a request."""
        send(pair.master, 100, b"lost with its block")
        pair.fail_over()
        pair.replica.send("T", b"next")
        pair.master.start(**SLAVE)
        copy = BlockCopy(pair.replica, pair.master)
        must_cut: list[bool] = []
        copy.link.when_cut(lambda: must_cut.append(True))
        copy.run()
        assert not must_cut
        copy_log(pair.replica, pair.master, Random(1))
        assert must_cut and copy.link.cuts is not None

    def test_counts_by_queue_are_right_if_two_masters_gave_one_origin(self, pair: Pair) -> None:
        """The log settles the message of the new master. The former master had counted its own one."""
        pair.copy_all()
        send(pair.master, 2, b"lost")
        pair.fail_over()
        pair.replica.ask(pair.replica.send_command("Other", b"new", properties={props.DELAY_IN_SECONDS: "2"}))
        pair.replica.advance(10_000)
        rejoin(pair.master, pair.replica, log_first=Random(1))
        pair.master.settle()
        counts = pair.master.broker.parts.timer.pending.counts.by_queue
        assert not counts.any()
        invariants.check(pair.master.broker)

    def test_a_message_whose_settling_record_is_truncated_is_pending_again(self, pair: Pair) -> None:
        send(pair.master, 2, b"a")
        pair.copy_all()
        pair.master.advance(5000)  # the flag of the message is on disk
        (block,) = blocks(pair.master)
        assert block.queue.read(0, 1)["flags"][0] & FLAG_DONE
        pair.master.crash()
        pair.replica.broker.parts.replication.promote("the test")
        removed, cut = rejoin(pair.master, pair.replica)
        assert removed > 0 and cut == 0 and waiting(pair.master) == 1
        pair.replica.settle()
        copy_log(pair.replica, pair.master, Random(1))
        assert waiting(pair.master) == 0, "the new master has released it"
        assert bodies(pair.master) == bodies(pair.replica) == [b"first", b"a"]

    def test_a_kill_at_any_point_of_a_cut_leaves_a_store_that_follows(self, tmp_path: Path) -> None:
        ended: list[str] = []
        for die_at in range(60):
            pair = Pair(tmp_path / str(die_at))
            send(pair.master, 20, b"both")
            pair.copy_all()
            send(pair.master, 20, b"lost")
            send(pair.master, 100, b"lost with its block")
            pair.fail_over()
            send(pair.replica, 20, b"new")
            with Stops() as stops:
                first = len(stops.passed)
                stops.arm(die_at)
                try:
                    rejoin(pair.master, pair.replica)
                except Died:
                    ended.append(stops.passed[-1])
                    stops.disarm()
                    if pair.master.is_running:
                        pair.master.crash()
                    else:
                        pair.master.disk.release_locks()
                    rejoin(pair.master, pair.replica)
            assert first == 0
            copy_log(pair.replica, pair.master, Random(1))
            BlockCopy(pair.replica, pair.master).run()
            assert content(pair.master) == content(pair.replica), ended[-1:]
            pair.master.crash()
            pair.replica.crash()
            if len(ended) <= die_at:
                break
        assert {"cut.begun", "cut.checkpoint", "cut.log"} <= set(ended)

    def test_an_unclean_stop_of_a_master_begins_an_epoch_for_its_blocks(self, tmp_path: Path) -> None:
        """A power cut may have removed messages that a replica has. Others take their places."""
        pair = Pair(tmp_path, flush_interval_ms=2000)
        send(pair.master, 20, b"synced")
        send(pair.master, 20, b"lost by the power cut")
        pair.copy_all()
        pair.master.cut_power(keep=0)
        pair.master.start()
        send(pair.master, 20, b"other message, as long")
        assert rejoin(pair.replica, pair.master)[1] == 1
        copy_log(pair.master, pair.replica, Random(1))
        BlockCopy(pair.master, pair.replica).run()
        assert content(pair.replica) == content(pair.master)
