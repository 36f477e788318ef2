"""The files of blocks: their deletion, their listing and their damage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.test_blocks import blocks, released, send
from wheelmq.delay.offline import pending_in
from wheelmq.delay.pending_message import State
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_DONE
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.disk.paths import BlockPaths
from wheelmq.formats.names import DEAD_LETTER_TOPIC
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


class TestDeletion:
    def test_a_block_is_deleted_once_all_its_messages_are_released(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, clean_resource_interval_ms=1000) as harness:
            for seconds in (5, 15, 25):
                send(harness, seconds)
            folders = {block.paths.folder for block in blocks(harness)}
            assert len(folders) == 3 and all(folder.is_dir() for folder in folders)
            harness.advance(40_000)
            assert len(blocks(harness)) == 0 and not any(folder.exists() for folder in folders)
            number = blocks(harness).numbers.last
            harness.restart(clean=False)
            assert send(harness, 5).code == 0
            assert [block.number for block in blocks(harness)] == [number + 1]

    @pytest.mark.parametrize("has_snapshot", [True, False])
    def test_a_block_number_is_not_reused(self, tmp_path: Path, has_snapshot: bool) -> None:
        with BrokerHarness(tmp_path, clean_resource_interval_ms=1000) as harness:
            for _ in range(3):
                send(harness, 1)
                harness.advance(25_000)
            harness.stop()
            if not has_snapshot:
                (tmp_path / "config" / "snapshot").unlink()
            harness.start()
            send(harness, 1, b"last")
            assert [block.number for block in blocks(harness)] == [4]
            harness.advance(2000)
            assert len(released(harness)) == 4

    def test_flags_in_blocks_replace_the_records_of_expired_log_files(self, tmp_path: Path) -> None:
        with BrokerHarness(
            tmp_path, snapshot_ms=1 << 30, snapshot_log_bytes=1 << 40, block_length_seconds=3600
        ) as harness:
            for seconds in (1, 2, 3, 3000):
                send(harness, seconds, b"%d" % seconds, UNIQ_KEY=f"U{seconds}")
            harness.advance(5000)
            assert harness.broker.parts.block_parts.checkpoints.flagged_to > 0
            [block] = blocks(harness)
            assert block.queue.done().tolist() == [0, 1, 2]
            harness.stop()
            for path in (tmp_path / "commitlog").iterdir():
                path.unlink()  # as if these files of the log had expired
            for path in [tmp_path / "config" / "snapshot", *(tmp_path / "consumequeue").rglob("0" * 20)]:
                path.unlink(missing_ok=True)
            harness.start()
            harness.advance(5000)
            assert harness.read_queue("T") == []
            assert int(harness.broker.parts.timer.pending.counts.by_queue.sum()) == 1

    def test_log_expiry_waits_for_the_flags_in_blocks(self, harness: BrokerHarness) -> None:
        send(harness, 1)
        checkpoints = harness.broker.parts.block_parts.checkpoints
        harness.advance(900)
        before = checkpoints.needed_from()
        harness.advance(300)
        assert checkpoints.needed_from() == before
        harness.advance(3000)
        assert checkpoints.needed_from() > before

    def test_a_clock_step_back_and_forth_keeps_the_due_time(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        send(harness, 20)
        harness.advance(1000, model.work)
        harness.clock.step(-3_600_000)
        harness.advance(5000, model.work)
        assert released(harness) == []
        harness.clock.step(3_600_000)
        harness.advance(20_000, model.work)
        assert [left for _, left in released(harness)] == [20_000]


class TestListing:
    def test_pending_messages_of_a_stopped_broker_are_listed(self, harness: BrokerHarness, tmp_path: Path) -> None:
        for seconds in (2, 14, 15):
            send(harness, seconds, b"%d" % seconds, UNIQ_KEY=f"U{seconds}", KEYS="k")
        cancel = {props.TIMER_DEL_UNIQKEY: delete_key("T", "U15")}
        assert harness.send("T", b"x", delay_ms=5000, properties=cancel).ext["cancelResult"] == "cancelled"
        harness.advance(3000)
        for stop in (harness.crash, harness.stop):
            stop()
            [pending] = [one for one in pending_in(tmp_path / "store") if one.state == State.BLOCK]
            assert (pending.topic, pending.queue_id, pending.unique_key) == ("T", 0, "U14")
            assert (pending.due_ms - START_MS, pending.body_bytes, pending.keys) == (14_000, 2, "k")
            harness.start()


class TestDamage:
    """Damage to pending messages, handled as docs/operations/damage.md describes."""

    @pytest.fixture
    def stopped(self, tmp_path: Path) -> Iterator[tuple[BrokerHarness, BlockPaths]]:
        """A stopped broker with three pending messages, and the paths of their block."""
        with BrokerHarness(tmp_path) as harness:
            for i in range(3):
                harness.send("T", b"%d" % i, properties={props.DELAY_IN_SECONDS: "20"})
            harness.restart()
            paths = next(iter(harness.broker.parts.blocks)).paths
            harness.stop()
            yield harness, paths

    def test_a_false_done_flag_hides_a_message_until_the_queue_is_rebuilt(
        self, stopped: tuple[BrokerHarness, BlockPaths]
    ) -> None:
        harness, paths = stopped
        [file] = paths.queue.iterdir()
        units = bytearray(file.read_bytes())
        units[2 * BLOCK_UNIT.size - 1] |= FLAG_DONE
        file.write_bytes(units)
        harness.start()
        assert int(harness.broker.parts.timer.pending.counts.by_queue.sum()) == 2
        snapshot = harness.broker.parts.paths.snapshot
        harness.stop()
        shutil.rmtree(paths.queue)
        snapshot.unlink(missing_ok=True)  # a broker that ran for a short time may have none
        harness.start()
        harness.advance(21_000)
        assert harness.bodies("T") == [b"0", b"1", b"2"]

    def test_a_message_with_torn_properties_becomes_a_dead_letter(
        self, stopped: tuple[BrokerHarness, BlockPaths]
    ) -> None:
        harness, paths = stopped
        [file] = paths.log.iterdir()
        log = bytearray(file.read_bytes())
        size = int.from_bytes(log[:4], "big")
        log[2 * size - 60 : 2 * size] = bytes(60)
        file.write_bytes(log)
        harness.start()
        harness.advance(21_000)
        assert harness.bodies("T") == [b"0", b"2"]
        assert harness.bodies(DEAD_LETTER_TOPIC) == [b"1"]
