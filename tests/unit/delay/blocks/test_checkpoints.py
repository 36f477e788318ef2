"""The flags of settled messages on their way to the disk, and the log that is needed until they are there."""

from __future__ import annotations

import errno

import pytest

from tests.unit.delay.blocks.parts_bench import BLOCK_MS, T0, PartsBench
from wheelmq.delay.blocks.block import Put
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_DONE
from wheelmq.formats.disk.message import Message
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.single_flight import SingleFlight
from wheelmq.testing.disk import Call
from wheelmq.testing.workers import HeldWorker

FAR_MS = T0 + 3 * BLOCK_MS


@pytest.fixture
def worker() -> HeldWorker:
    return HeldWorker()


@pytest.fixture
def flight(worker: HeldWorker) -> SingleFlight:
    return SingleFlight(worker)


def is_flag_on_disk(parts: PartsBench, put: Put) -> bool:
    """Return whether the flag of the first unit of a block survives a power cut."""
    files: MappedSequence = parts.block_of(put).queue.files
    has_flag = bool(parts.block_of(put).queue.read(0, 1)["flags"][0] & FLAG_DONE)
    return has_flag and parts.disk.holds(files.file_at(0).path, 0, BLOCK_UNIT.size)


class TestWrite:
    def test_flags_count_only_once_they_are_on_disk(
        self, parts: PartsBench, worker: HeldWorker, flight: SingleFlight
    ) -> None:
        put = parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(put)
        parts.checkpoints.write(flight)
        assert parts.flagged(put) == [0] and not is_flag_on_disk(parts, put)
        assert parts.checkpoints.flagged_to == 0
        worker.work()
        assert is_flag_on_disk(parts, put) and parts.checkpoints.flagged_to == 0, "the loop was not notified"
        worker.report()
        assert parts.checkpoints.flagged_to == parts.store.log.end

    def test_a_running_job_puts_off_later_flags(
        self, parts: PartsBench, worker: HeldWorker, flight: SingleFlight
    ) -> None:
        first, second = parts.put_on_disk(FAR_MS), parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(first)
        parts.checkpoints.write(flight)
        flagged_to = parts.store.log.end
        parts.settle_on_disk(second)
        parts.checkpoints.write(flight)
        assert len(worker) == 1 and parts.flagged(first) == [0]
        worker.run()
        assert parts.checkpoints.flagged_to == flagged_to
        parts.checkpoints.write(flight)
        worker.run()
        assert parts.flagged(first) == [0, 1] and parts.checkpoints.flagged_to == parts.store.log.end

    def test_the_settling_record_is_on_disk_before_the_flag(self, parts: PartsBench, flight: SingleFlight) -> None:
        put = parts.put_on_disk(FAR_MS)
        parts.settle(put)
        parts.dispatch()
        parts.checkpoints.write(flight)
        assert parts.flagged(put) == []

    def test_a_record_without_a_queue_unit_is_still_needed(
        self, parts: PartsBench, worker: HeldWorker, flight: SingleFlight
    ) -> None:
        put = parts.put_on_disk(FAR_MS)
        (released,) = parts.settle(put)
        parts.store.flush()
        assert parts.store.log.synced > released.position
        parts.checkpoints.write(flight)
        worker.run()
        assert parts.flagged(put) == [] and parts.checkpoints.flagged_to <= released.position

    def test_without_changes_the_position_moves_without_a_job(
        self, parts: PartsBench, worker: HeldWorker, flight: SingleFlight
    ) -> None:
        put = parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(put)
        parts.checkpoints.write(flight)
        worker.run()
        parts.store.append(Message("T", 3, b"", {}))
        parts.settle_on_disk()
        parts.checkpoints.write(flight)
        assert len(worker) == 0 and parts.checkpoints.flagged_to == parts.store.log.end

    def test_after_a_failed_sync_the_settling_records_stay_needed(
        self, parts: PartsBench, worker: HeldWorker, flight: SingleFlight, caplog: pytest.LogCaptureFixture
    ) -> None:
        put = parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(put)
        parts.checkpoints.write(flight)
        parts.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.SYNC})
        worker.run()
        for _ in range(2):
            parts.checkpoints.write(flight)
            worker.run()
        assert parts.checkpoints.flagged_to == 0 == parts.checkpoints.needed_from()
        assert "units of blocks may not be on disk; the next start writes them again" in caplog.text


class TestNeededLog:
    def test_without_blocks_the_dispatched_log_is_not_needed(self, parts: PartsBench) -> None:
        assert parts.checkpoints.needed_from() == parts.store.dispatched_to

    def test_with_blocks_the_log_is_needed_from_the_first_missing_flag(
        self, parts: PartsBench, worker: HeldWorker, flight: SingleFlight
    ) -> None:
        put, other = parts.put_on_disk(FAR_MS), parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(put)
        assert parts.checkpoints.needed_from() == 0 < parts.store.dispatched_to
        parts.checkpoints.write(flight)
        worker.run()
        flagged_to = parts.store.log.end
        parts.settle_on_disk(other)
        assert parts.checkpoints.needed_from() == flagged_to < parts.store.dispatched_to

    def test_the_log_is_needed_from_a_message_that_is_not_on_disk(
        self, parts: PartsBench, worker: HeldWorker, flight: SingleFlight
    ) -> None:
        put, late = parts.put_on_disk(FAR_MS), parts.put(FAR_MS + BLOCK_MS)
        parts.settle_on_disk(put)
        needed_from = parts.store.log.end
        parts.settle_on_disk(late)
        parts.checkpoints.write(flight)
        worker.run()
        assert parts.checkpoints.needed_from() == needed_from > LogPosition(0)
        parts.blocks.flush()
        parts.checkpoints.write(flight)
        worker.run()
        assert parts.checkpoints.needed_from() == parts.store.log.end


class TestClose:
    def test_a_clean_stop_syncs_messages_before_their_flags(self, parts: PartsBench) -> None:
        """Only a message on disk can be flagged, and the mark of the clean stop says that nothing is missing."""
        put = parts.put(FAR_MS)
        parts.settle_on_disk(put)
        parts.checkpoints.close()
        assert is_flag_on_disk(parts, put) and parts.paths.abort_scheduled.exists()

    def test_a_failed_sync_of_messages_leaves_no_mark(self, parts: PartsBench) -> None:
        parts.put(FAR_MS)
        parts.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.SYNC})
        with pytest.raises(OSError, match="gone"):
            parts.checkpoints.close()
        assert not parts.paths.abort_scheduled.exists()

    def test_a_failed_sync_of_flags_leaves_no_mark(self, parts: PartsBench, caplog: pytest.LogCaptureFixture) -> None:
        put = parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(put)
        parts.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.SYNC})
        parts.checkpoints.close()
        assert not parts.paths.abort_scheduled.exists() and "the stop is not clean" in caplog.text
