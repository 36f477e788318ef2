"""The abort file, by which a start knows a power cut that may have lost acknowledged records."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.store.abort_file import AbortFile
from wheelmq.testing.disk import SimulatedDisk


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths(tmp_path)


def started(disk: SimulatedDisk, paths: StorePaths) -> AbortFile:
    found = AbortFile(disk, paths)
    found.write()
    return found


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_replicated", [False, True])
def test_only_a_power_cut_after_an_acknowledgement_matters(
    paths: StorePaths, is_cut: bool, is_replicated: bool
) -> None:
    disk = SimulatedDisk()
    if is_replicated:
        started(disk, paths).note_replicated()
    assert not started(disk, paths).may_lack_tail, "a kill loses nothing"
    if is_cut:
        disk.cut_power(Random(1))
    assert started(disk, paths).may_lack_tail == (is_cut and is_replicated)


def test_a_start_remembers_the_power_cut_until_the_log_is_accepted(paths: StorePaths) -> None:
    disk = SimulatedDisk()
    started(disk, paths).note_replicated()
    disk.cut_power(Random(1))
    for _ in range(2):
        started(disk, paths).remove()
    found = started(disk, paths)
    assert found.existed and found.may_lack_tail
    found.accept_log()
    assert not found.may_lack_tail and not started(disk, paths).may_lack_tail
    found.remove()
    assert not AbortFile(disk, paths).existed


def test_a_machine_without_a_boot_id_may_have_lost_its_power(paths: StorePaths) -> None:
    disk = SimulatedDisk()
    disk.boot_id = ""
    started(disk, paths).note_replicated()
    assert started(disk, paths).may_lack_tail
