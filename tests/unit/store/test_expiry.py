"""Expiry deletes old log files and the files that refer to them. Waiting timers keep their log files."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.delay.cancel import Cancelled
from wheelmq.delay.done import SEGMENT_BITS, IndexBits
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store.expiry import HOUR_MS
from wheelmq.store.settings import hours_of
from wheelmq.testing.disk import Call
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker

RESERVED_HOURS = 2
LOG_FILE_BYTES = 1 << 14
BODY = bytes(1000)
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    """A broker at an hour without scheduled deletions. About 14 sends of BODY fill a log file."""
    chosen = {"log_file_bytes": LOG_FILE_BYTES, "max_index_num": 11, "file_reserved_time": RESERVED_HOURS}
    with BrokerHarness(tmp_path, **chosen) as running:
        running.clock.advance(ms_until_hour(running, 12))
        yield running


def ms_until_hour(harness: BrokerHarness, hour: int) -> int:
    now = time.localtime(harness.clock.now_ms() / 1000)
    return ((hour - now.tm_hour) % 24 * 60 - now.tm_min) * 60_000


def fill(harness: BrokerHarness, count: int, topic: str = "T") -> None:
    for _ in range(count):
        assert harness.send(topic, BODY).code == 0
    harness.advance(600)  # so that the log is flushed


def poll_expiry(harness: BrokerHarness) -> None:
    """Poll as two checks in a row do: positions that are needed at the first check count at the second."""
    harness.broker.parts.file_upkeep.expiry.note()
    harness.advance(600)
    harness.broker.parts.file_upkeep.expiry.note()
    harness.broker.parts.file_upkeep.expiry.poll()
    harness.tick()


def log_files(harness: BrokerHarness) -> list[str]:
    return sorted(path.name for path in harness.broker.parts.paths.commit_log.iterdir())


def is_one_file(harness: BrokerHarness) -> bool:
    """Return whether only the last log file and the one made ahead are left."""
    log = harness.broker.parts.store.log
    return log.start == log.end - log.end % LOG_FILE_BYTES == int(log_files(harness)[0]) > 0


class TestExpiryTimes:
    def test_old_files_are_deleted_at_the_hour(self, harness: BrokerHarness) -> None:
        fill(harness, 50)
        before = log_files(harness)
        harness.clock.advance((RESERVED_HOURS + 1) * HOUR_MS)
        poll_expiry(harness)
        assert log_files(harness) == before
        harness.clock.advance(ms_until_hour(harness, 4))
        poll_expiry(harness)
        assert is_one_file(harness)

    def test_young_files_are_kept(self, harness: BrokerHarness) -> None:
        fill(harness, 50)
        harness.clock.advance(DAY_MS)
        harness.clock.advance(ms_until_hour(harness, 4) - HOUR_MS)
        fill(harness, 50)
        harness.clock.advance(HOUR_MS)
        old = log_files(harness)
        poll_expiry(harness)
        kept = log_files(harness)
        assert 0 < len(old) - len(kept) <= 4 and kept == old[len(old) - len(kept) :]
        assert harness.pull("T", 0, 0).answer.code == ResponseCode.PULL_OFFSET_MOVED

    def test_old_files_are_deleted_at_once_when_the_disk_fills(self, harness: BrokerHarness) -> None:
        fill(harness, 50)
        harness.disk.used = 0.8
        poll_expiry(harness)
        assert harness.broker.parts.store.log.start == 0  # the files are young
        harness.clock.advance((RESERVED_HOURS + 1) * HOUR_MS)
        poll_expiry(harness)
        assert is_one_file(harness)

    def test_young_files_are_deleted_when_the_disk_is_nearly_full(self, harness: BrokerHarness) -> None:
        fill(harness, 50)
        harness.disk.used = 0.86
        poll_expiry(harness)
        assert is_one_file(harness)

    def test_at_most_ten_files_are_deleted_at_once(self, harness: BrokerHarness) -> None:
        fill(harness, 200)
        count = len(log_files(harness))
        assert count > 11
        harness.disk.used = 0.9
        poll_expiry(harness)
        assert len(log_files(harness)) == count - 10

    def test_the_hours_of_deletion_are_parsed(self) -> None:
        assert hours_of("delete_when", "04") == {4} and hours_of("delete_when", "04;16") == {4, 16}
        for wrong in ("24", "4", "", "04;", "x4", "-1"):
            with pytest.raises(ValueError, match="write hours from 00 to 23"):
                hours_of("delete_when", wrong)


class TestFilesThatReferToTheLog:
    def expire(self, harness: BrokerHarness) -> None:
        harness.disk.used = 0.9
        for _ in range(10):
            poll_expiry(harness)
        harness.disk.used = 0.0

    def test_queues_begin_with_the_log(self, harness: BrokerHarness) -> None:
        fill(harness, 800)
        self.expire(harness)
        queue = harness.broker.parts.store.queues.find("T", 0)
        assert queue is not None and 0 < queue.start < queue.end == 800
        assert len(list(queue.files.folder.iterdir())) < 3
        answer = harness.ask(Command(code=RequestCode.GET_MIN_OFFSET, ext={"topic": "T", "queueId": "0"}))
        assert int(answer.ext["offset"]) == queue.start
        first = harness.pull("T", 0, queue.start).records[0]
        assert first.queue_offset == queue.start and first.position >= harness.broker.parts.store.log.start

    @pytest.mark.parametrize("stop", ["clean", "crash"])
    def test_a_restart_keeps_the_bounds_of_a_queue(self, harness: BrokerHarness, stop: str) -> None:
        fill(harness, 400)
        self.expire(harness)
        queue = harness.broker.parts.store.queues.find("T", 0)
        assert queue is not None
        harness.restart(clean=stop == "clean")
        again = harness.broker.parts.store.queues.find("T", 0)
        assert again is not None and (again.start, again.end) == (queue.start, queue.end)
        fill(harness, 1)
        assert again.end == 401

    def test_a_queue_without_messages_keeps_its_offset(self, harness: BrokerHarness) -> None:
        fill(harness, 3, "Old")
        fill(harness, 60)
        self.expire(harness)
        queue = harness.broker.parts.store.queues.find("Old", 0)
        assert queue is not None and queue.start == queue.end == 3
        assert harness.pull("Old", 0, 0).answer.code == ResponseCode.PULL_OFFSET_MOVED
        fill(harness, 1, "Old")
        assert harness.pull("Old", 0, 3).records[0].queue_offset == 3

    def test_the_log_is_deleted_from_disk_before_files_that_refer_to_it(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone: list[str] = []
        remove, sync_folder = harness.disk.remove, harness.disk.sync_folder
        monkeypatch.setattr(harness.disk, "remove", lambda path: (gone.append(path.parent.name), remove(path)))
        monkeypatch.setattr(
            harness.disk, "sync_folder", lambda path: (gone.append(f"sync {path.name}"), sync_folder(path))
        )
        fill(harness, 400)
        harness.disk.used = 0.9
        gone.clear()
        poll_expiry(harness)
        log_is_gone = gone.index("sync commitlog")
        assert "commitlog" not in gone[log_is_gone:] and "commitlog" in gone[:log_is_gone]
        assert "index" in gone[log_is_gone:] and not {"0", "index"} & set(gone[:log_is_gone])

    def test_a_failed_deletion_is_repeated_with_the_next_one(self, harness: BrokerHarness) -> None:
        fill(harness, 100)
        harness.disk.fail_call(1, OSError(errno.EIO, "no"), [Call.REMOVE])
        harness.broker.parts.file_upkeep.expiry.drop_before(LogPosition(2 * LOG_FILE_BYTES))
        assert len(log_files(harness)) == harness.broker.parts.store.log.files.end // LOG_FILE_BYTES
        harness.broker.parts.file_upkeep.expiry.drop_before(LogPosition(3 * LOG_FILE_BYTES))
        assert log_files(harness)[0] == f"{3 * LOG_FILE_BYTES:020d}"
        harness.restart(clean=False)
        assert harness.broker.parts.store.log.start == 3 * LOG_FILE_BYTES

    def test_a_record_whose_unit_is_not_on_disk_is_kept(self, tmp_path: Path) -> None:
        """A power cut can remove the file of the queue, and with it the assigned queue offsets."""
        chosen = {"log_file_bytes": LOG_FILE_BYTES, "file_reserved_time": RESERVED_HOURS}
        with BrokerHarness(tmp_path, background=HeldWorker(), **chosen) as harness:
            fill(harness, 100)
            harness.disk.used = 0.9
            poll_expiry(harness)
            poll_expiry(harness)
            assert harness.broker.parts.store.log.start == 0
            harness.advance(10_000)
            for _ in range(4):
                harness.run_jobs()
                harness.advance(10_000)
            assert harness.broker.parts.store.log.start > 0

    def test_old_index_files_are_deleted(self, harness: BrokerHarness) -> None:
        fill(harness, 100)
        before = len(list(harness.broker.parts.paths.index.iterdir()))
        self.expire(harness)
        assert len(list(harness.broker.parts.paths.index.iterdir())) < before

    def test_an_index_job_may_end_after_the_expiry(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index, held = harness.broker.parts.index, HeldWorker()
        assert index is not None
        monkeypatch.setattr(index._flight, "_worker", held)
        fill(harness, 60)
        assert len(held) == 1
        self.expire(harness)
        assert harness.broker.parts.store.log.start > 0
        while len(held):
            held.run()
            harness.tick()
        assert index.indexed_to == harness.broker.parts.store.dispatched_to

    def test_missing_units_at_the_start_of_a_queue_are_rebuilt(self, harness: BrokerHarness) -> None:
        fill(harness, 200)
        self.expire(harness)
        queue = harness.broker.parts.store.queues.find("T", 0)
        assert queue is not None
        start, count = queue.start, queue.end - queue.start
        assert count > 3
        queue.read(start, 2)[:] = 0  # as a power cut may leave it
        harness.restart(clean=False)
        again = harness.broker.parts.store.queues.find("T", 0)
        assert again is not None and again.start == start
        assert len(harness.read_queue("T")) == count


class TestWaitingTimers:
    def test_a_timer_keeps_its_file_and_all_later_files(self, harness: BrokerHarness) -> None:
        fill(harness, 30)
        harness.send("T", b"wait", delay_ms=DAY_MS)
        fill(harness, 60)
        harness.disk.used = 0.9
        poll_expiry(harness)
        store = harness.broker.parts.store
        assert 0 < store.log.start <= harness.broker.parts.timer.needed_from() < store.log.start + LOG_FILE_BYTES

    def test_a_timer_keeps_its_file_until_it_is_delivered_and_indexed(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.send("T", b"soon", delay_ms=3000)
        fill(harness, 60)
        harness.disk.used = 0.9
        poll_expiry(harness)
        assert harness.broker.parts.store.log.start == 0
        harness.advance(5000, model.work)
        assert harness.broker.parts.timer.indexed_to == 1
        poll_expiry(harness)
        assert harness.broker.parts.store.log.start > 0

    def test_a_scan_skips_units_whose_records_have_expired(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.send("T", b"cancelled", delay_ms=16_000, properties={props.UNIQ_KEY: "c"})
        harness.send("T", delay_ms=15_900, properties={props.TIMER_DEL_UNIQKEY: "T+c"})
        harness.advance(4000, model.work)
        assert harness.broker.parts.timer.indexed_to == 2
        fill(harness, 60)
        harness.disk.used = 0.9
        poll_expiry(harness)
        assert harness.broker.parts.store.log.start > 0
        harness.send("T", b"kept", delay_ms=12_000)
        harness.advance(15_000, model.work)
        assert harness.broker.parts.timer.scans.walked_through_ms > harness.clock.now_ms()
        assert harness.bodies("T").count(b"kept") == 1 and b"cancelled" not in harness.bodies("T")

    def test_a_release_that_is_not_on_disk_frees_no_file(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.send("T", b"precious", delay_ms=9000)
        fill(harness, 60, "Other")
        harness.advance(9000 - 600 - 1, model.work)
        assert harness.broker.parts.timer.indexed_to == 1 and not harness.bodies("T")
        harness.disk.used = 0.9
        harness.broker.parts.file_upkeep.expiry.note()
        harness.advance(1)
        assert harness.bodies("T") == [b"precious"]
        harness.broker.parts.file_upkeep.expiry.poll()
        harness.cut_power(keep=0.0)
        harness.start()
        harness.advance(1000)
        assert harness.bodies("T") == [b"precious"]

    def test_a_cancel_of_an_expired_message_is_answered(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        harness.send("T", b"old", delay_ms=3000, properties={props.UNIQ_KEY: "k"})
        fill(harness, 60)
        harness.send("T", b"new", delay_ms=60_000, properties={props.UNIQ_KEY: "k"})
        harness.advance(8000, model.work)
        harness.disk.used = 0.9
        poll_expiry(harness)
        assert harness.broker.parts.timer.queue.start == 1
        answer = harness.send("T", delay_ms=1000, properties={props.TIMER_DEL_UNIQKEY: "T+k"})
        assert (answer.code, answer.ext["cancelResult"]) == (0, Cancelled.CANCELLED)


class TestTimerLog:
    """Each file has 100 units."""

    def park(self, harness: BrokerHarness, count: int, delay_ms: int) -> None:
        for _ in range(count):
            harness.send("T", b"x", delay_ms=delay_ms)

    def test_a_file_is_deleted_once_all_its_messages_are_settled(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)
        files = harness.broker.parts.timer.log.files
        for _ in range(4):
            self.park(harness, 80, 4000)
            harness.advance(8000, model.work)
        assert files.end == 4 * files.file_bytes and files.start == 3 * files.file_bytes
        assert len(list(files.folder.iterdir())) == 1
        harness.restart()
        assert harness.broker.parts.timer.log.end > files.start
        self.park(harness, 1, 3000)
        harness.advance(8000, model.work)
        assert len(harness.bodies("T")) == 321

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_file_with_a_waiting_message_is_kept(self, harness: BrokerHarness, clean: bool) -> None:
        model = PipelineModel(harness)
        files = harness.broker.parts.timer.log.files
        self.park(harness, 120, 4000)
        self.park(harness, 1, 19_000)
        for _ in range(2):
            self.park(harness, 80, 3000)
            harness.advance(7500, model.work)
        assert files.start == files.file_bytes < files.end == 3 * files.file_bytes
        harness.restart(clean=clean)
        harness.advance(10_000, PipelineModel(harness).work)
        assert len(harness.bodies("T")) == 281


class TestFirstUnset:
    def test_the_first_unset_bit_is_found(self) -> None:
        bits = IndexBits()
        assert bits.first_unset(5) == 0 and bits.first_unset(0) == 0
        for index in (0, 1, 2, 4):
            bits.add(index)
        assert bits.first_unset(100) == 3 and bits.first_unset(2) == 2
        bits.raise_floor(SEGMENT_BITS - 3)
        assert bits.first_unset(1 << 30) == SEGMENT_BITS - 3
        for index in range(SEGMENT_BITS - 3, SEGMENT_BITS + 10):
            bits.add(index)
        assert bits.first_unset(1 << 30) == SEGMENT_BITS + 10
