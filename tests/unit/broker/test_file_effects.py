"""Each supported key of Apache's broker for the files of the store has an effect."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

import pytest

from tests.unit.broker.effects import Effect, Effects
from wheelmq.formats.disk.index import IndexSize
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.store.expiry import HOUR_MS
from wheelmq.store.mapped import ROOM_SHARE
from wheelmq.system.mapped_file import MappedFile
from wheelmq.testing.harness import SMALL, BrokerHarness

FILES: Final = Effects()


@FILES.shows("flushIntervalCommitLog")
def flushes(folder: Path) -> None:
    with BrokerHarness(folder, flush_interval_ms=700) as harness:
        log = harness.broker.parts.store.log
        harness.send("T")
        assert log.synced == log.end  # the last flush was long ago
        harness.advance(1)
        harness.send("T")
        harness.advance(698)
        assert log.synced < log.end
        harness.advance(1)
        assert log.synced == log.end


@FILES.shows("mappedFileSizeTimerLog", "maxHashSlotNum")
def sizes(folder: Path) -> None:
    with BrokerHarness(folder, timer_log_file_bytes=52 * 7 + 16, max_hash_slot_num=33) as harness:
        assert harness.broker.parts.timer.log.files.file_bytes == 52 * 7 + 16
        harness.send("T", properties={"KEYS": "k"})
        harness.advance(3000)
        [index] = harness.broker.parts.paths.index.iterdir()
        assert index.stat().st_size == IndexSize(33, SMALL["max_index_num"]).file_bytes


@FILES.shows("warmMapedFileEnable")
def warm_files(folder: Path) -> None:
    def populated(is_warm: bool) -> int:
        """Return the number of bytes of the next file that its creation populates."""
        seen: list[tuple[str, int]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MappedFile, "populate", lambda file, start, stop: seen.append((file.path.name, stop)))
            chosen = {"log_file_bytes": 9 << 20, "log_files_ahead": 1, "warm_maped_file_enable": is_warm}
            with BrokerHarness(folder / str(is_warm), **chosen) as harness:
                harness.send("T")
                harness.settle()
        return next(stop for name, stop in seen if name == f"{9 << 20:020d}")

    assert (populated(False), populated(True)) == ((9 << 20) // ROOM_SHARE, 9 << 20)


def full_log(folder: Path, **chosen: object) -> BrokerHarness:
    """A broker with about 14 small log files, at an hour at which no file expires."""
    harness = BrokerHarness(folder, log_file_bytes=1 << 14, file_reserved_time=2, **chosen)
    now = time.localtime(harness.now_ms / 1000)
    harness.clock.advance(((12 - now.tm_hour) % 24 * 60 - now.tm_min) * 60_000)
    for _ in range(200):
        assert harness.send("T", bytes(1000)).code == 0
    harness.advance(600)
    return harness


def delete_expired(harness: BrokerHarness) -> int:
    """Delete the files that may be deleted. Returns the new start of the log."""
    harness.broker.parts.file_upkeep.expiry.note()
    harness.advance(600)
    harness.broker.parts.file_upkeep.expiry.note()
    harness.broker.parts.file_upkeep.expiry.poll()
    harness.tick()
    return int(harness.broker.parts.store.log.start)


@FILES.shows("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "deleteFileBatchMax", "cleanFileForciblyEnable")
def expiry_of_files(folder: Path) -> None:
    never = {"clean_resource_interval_ms": 1 << 30, "disk_space_warning_level_ratio": 100}
    ratios = {"disk_max_used_space_ratio": 30, "disk_space_clean_forcibly_ratio": 40, "delete_file_batch_max": 2}
    with full_log(folder / "a", **never, **ratios) as harness:
        harness.disk.used = 0.35
        assert delete_expired(harness) == 0  # the files are too young
        harness.disk.used = 0.41
        assert delete_expired(harness) == 2 << 14
        harness.disk.used = 0.31
        harness.clock.advance(3 * HOUR_MS)
        assert delete_expired(harness) == 4 << 14
        harness.disk.used = 0.29
        assert delete_expired(harness) == 4 << 14
    with full_log(folder / "b", **never, **ratios, clean_file_forcibly_enable=False) as harness:
        harness.disk.used = 0.99
        assert delete_expired(harness) == 0
        harness.clock.advance(3 * HOUR_MS)
        assert delete_expired(harness) == 2 << 14


@FILES.shows("cleanResourceInterval")
def interval_of_expiry(folder: Path) -> None:
    with BrokerHarness(folder, clean_resource_interval_ms=70, disk_space_warning_level_ratio=50) as harness:
        harness.disk.used = 0.6
        harness.advance(70)
        assert harness.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE


@FILES.each()
def test_each_key_has_an_effect(test: Effect, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    test(tmp_path)
