"""A store that cannot be written for a reason other than a full disk.

The broker rejects sends with the reason and continues its other work. It accepts sends again when writes succeed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from wheelmq.broker.admission.error_text import rejection_text
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.disk import DiskFull
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness

CODES = [errno.EMFILE, errno.EROFS, errno.ENOMEM, errno.EIO]


def breaks(disk: SimulatedDisk, code: int, folder: str) -> None:
    """Let the creation of files in `folder` fail."""

    def asked(path: Path) -> bool:
        if folder in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return False

    disk.is_full = asked


@pytest.mark.parametrize("code", CODES)
def test_sends_are_rejected_while_queue_units_cannot_be_written(
    harness: BrokerHarness, disk: SimulatedDisk, code: int
) -> None:
    breaks(disk, code, "consumequeue")
    missing = harness.broker.parts.paths.root / "consumequeue" / "T" / "0" / f"{0:020d}"
    assert harness.send("T", b"0").code == 0  # the message is stored, but its queue unit is missing
    assert harness.broker.parts.health.rejection == rejection_text(OSError(code, os.strerror(code), str(missing)))
    assert harness.broker.next_tick_ms() > 0  # no busy wait
    assert harness.send("T", b"1").code == ResponseCode.SERVICE_NOT_AVAILABLE
    harness.advance(1000)
    assert harness.broker.parts.store.log.synced == harness.broker.parts.store.log.end  # flushes continue
    disk.is_full = lambda path: False
    harness.advance(200)
    assert harness.bodies("T") == [b"0"]
    assert harness.send("T", b"2").code == 0
    invariants.check(harness.broker)


@pytest.mark.parametrize("code", CODES)
def test_a_due_message_waits_for_the_log_and_is_released_once(
    harness: BrokerHarness, disk: SimulatedDisk, code: int
) -> None:
    disk.gives_room_ahead = True
    for i in range(5):
        harness.send("T", b"%d" % i * 1200, delay_ms=1000)
    breaks(disk, code, "commitlog")
    left = harness.broker.parts.store.log.files.end - harness.broker.parts.store.log.end
    harness.send("U", bytes(left - 1400))
    harness.clock.advance(1000)
    for _ in range(5):
        harness.tick()
        assert harness.broker.parts.health.rejection is not None
        assert harness.broker.next_tick_ms() > 0
        harness.clock.advance(100)
    disk.is_full = lambda path: False
    harness.advance(200)
    assert [body[:1] for body in harness.bodies("T")] == [b"0", b"1", b"2", b"3", b"4"]
    assert harness.send("T").code == 0
    invariants.check(harness.broker)


def test_the_text_names_the_remedy() -> None:
    assert "LimitNOFILE" in rejection_text(OSError(errno.EMFILE, "Too many open files"))
    assert "Too many open files" in rejection_text(OSError(errno.EMFILE, "Too many open files"))
    assert "read-only" in rejection_text(OSError(errno.EROFS, "Read-only file system"))
    assert rejection_text(DiskFull(errno.EDQUOT, "no room for 5 bytes", "x")) == "the disk is full: no room for 5 bytes"
    assert "system's log" in rejection_text(OSError("strange"))


def test_a_disk_that_stays_full_is_not_logged_ten_times_a_second(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(60):
        harness.broker.parts.health.reject_sends("the disk is full")
        harness.advance(200)
        assert harness.broker.parts.health.rejection is None
    lines = [one.getMessage() for one in caplog.records if "the broker rejects sends" in one.message]
    assert len(lines) == 2 and "(and 49 times since the last such line)" in lines[1]
