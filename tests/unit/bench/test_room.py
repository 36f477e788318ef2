"""The check for enough disk space, for a benchmark and for Apache."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable

import pytest

from bench.report import Metric, Report
from bench.room import AHEAD_BYTES, SPARE_BYTES, make_room

GIB = 1 << 30
Disk = Callable[[int, int], None]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return a setter of the used and free GiB of a disk. Root reserves as much space as is free."""

    def set_to(used: int, free: int) -> None:
        usage = shutil._ntuple_diskusage((used + 2 * free) * GIB, used * GIB, free * GIB)  # type: ignore[attr-defined]
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    return set_to


def options(only: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(only=only, home=None)


@pytest.fixture
def report() -> Report:
    return Report("some figures", [Metric("per_s", "sends/s")])


def test_enough_space_keeps_both_brokers(disk: Disk, report: Report) -> None:
    disk(50, 50)
    chosen = options()
    make_room(report, chosen, 39 * GIB)
    assert chosen.only is None and report.notes == []


def test_a_disk_too_full_for_apache_leaves_apache_out(disk: Disk, report: Report) -> None:
    disk(50, 50)
    chosen = options()
    make_room(report, chosen, 40 * GIB)
    assert chosen.only == "WheelMQ" and "90%" in report.notes[0]
    with pytest.raises(SystemExit, match="90%"):
        make_room(report, options("Apache"), 40 * GIB)


def test_a_disk_too_full_for_wheelmq_ends_the_run(disk: Disk, report: Report) -> None:
    disk(50, 50)
    with pytest.raises(SystemExit, match="name another place"):
        make_room(report, options("WheelMQ"), 50 * GIB - SPARE_BYTES - AHEAD_BYTES + 1)
