"""The timer wheel and the timer log: slots, chains, file borders, rebuild."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wheelmq.delay.timer.log import BLANK_BYTES, TimerLog, Units
from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.disk.timer import MAGIC_DELETE, TIMER_UNIT
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.disk import DiskFull
from wheelmq.testing.disk import SimulatedDisk

PER_FILE = 4
FILE_BYTES = PER_FILE * TIMER_UNIT.size + BLANK_BYTES + 7  # the last bytes are too few for a unit
T0 = 1_800_000_000_000


@pytest.fixture
def wheel(disk: SimulatedDisk, tmp_path: Path) -> TimerWheel:
    return TimerWheel(disk, tmp_path / "timerwheel", 1000, slots=10)


@pytest.fixture
def log(disk: SimulatedDisk, tmp_path: Path) -> TimerLog:
    return open_log(disk, tmp_path)


def open_log(disk: SimulatedDisk, folder: Path) -> TimerLog:
    return TimerLog(MappedSequence(disk, folder / "timerlog", FILE_BYTES))


def units(
    slots: list[int], first: int = 0, *, deletes: bool = False
) -> tuple[Units, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Make units for slots at these seconds after T0. Their records are numbered from `first`."""
    made = np.zeros(len(slots), TIMER_UNIT.dtype)
    made["size"] = TIMER_UNIT.size
    made["magic"] = 1 | (MAGIC_DELETE if deletes else 0)
    made["write_ms"] = T0
    made["delay_ms"] = 1000 * np.array(slots)
    made["record_position"] = np.arange(first, first + len(slots))
    return made, T0 + 1000 * np.array(slots, np.int64)


def position(i: int) -> int:
    """Return the timer log position of the unit that was appended as the i-th."""
    return i // PER_FILE * FILE_BYTES + i % PER_FILE * TIMER_UNIT.size


def chain(log: TimerLog, wheel: TimerWheel, slot: int) -> list[int]:
    """Return the record positions of a slot's units, newest first."""
    found = []
    at = wheel.last_position(T0 + 1000 * slot)
    while at >= 0:
        unit = TIMER_UNIT.unpack(log.files.file_at(at).view, at % FILE_BYTES)
        assert unit["size"] == TIMER_UNIT.size
        found.append(unit["record_position"])
        at = unit["previous_position"]
    return found


class TestWheel:
    def test_a_slot_counts_only_for_its_own_time(self, wheel: TimerWheel) -> None:
        assert wheel.slots == 20
        assert wheel.last_position(T0) == -1
        assert wheel.put(T0, 100, deletes=False) == -1
        assert wheel.put(T0, 200, deletes=False) == 100
        assert wheel.last_position(T0) == 200
        assert wheel.last_position(T0 + 20_000) == wheel.last_position(T0 - 20_000) == -1

    def test_a_place_is_reused_after_one_round(self, wheel: TimerWheel) -> None:
        wheel.put(T0, 100, deletes=False)
        assert wheel.put(T0 + 20_000, 300, deletes=False) == -1
        assert wheel.last_position(T0) == -1
        assert wheel.units_between(T0 + 19_000, T0 + 20_000).tolist() == [1]

    def test_the_wheel_file_has_the_layout_of_apache(self, wheel: TimerWheel, tmp_path: Path) -> None:
        wheel.put(T0 + 3000, 100, deletes=False)
        wheel.put(T0 + 3000, 152, deletes=False)
        raw = (tmp_path / "timerwheel").read_bytes()
        assert len(raw) == 20 * 32
        at = (T0 + 3000) // 1000 % 20 * 32
        assert struct.unpack_from(">qqqii", raw, at) == ((T0 + 3000) // 1000, 100, 152, 2, 0)

    def test_deletes_are_counted_separately(self, wheel: TimerWheel) -> None:
        wheel.put(T0, 0, deletes=False)
        wheel.put(T0, 52, deletes=True)
        assert wheel.table[wheel.index(T0)]["count"] == 0  # as Apache writes it
        assert wheel.units_between(T0 - 1000, T0).tolist() == [2]  # the units that a scan finds

    def test_units_between_two_times_are_counted_by_slot(self, wheel: TimerWheel) -> None:
        for seconds in (1, 3, 3, 4):
            wheel.put(T0 + 1000 * seconds, 0, deletes=False)
        assert wheel.units_between(T0, T0 + 5000).tolist() == [1, 0, 2, 1, 0]
        assert wheel.units_between(T0 + 3000, T0 + 3000).tolist() == []
        assert wheel.units_between(T0 + 5000, T0).tolist() == []

    @given(filled=st.sets(st.integers(0, 5000), max_size=4), after=st.integers(0, 5000), count=st.integers(-5, 5000))
    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_the_first_filled_slot_is_found(
        self, tmp_path_factory: pytest.TempPathFactory, filled: set[int], after: int, count: int
    ) -> None:
        wheel = TimerWheel(SimulatedDisk(), tmp_path_factory.mktemp("w") / "wheel", 1000, 3000)
        for position, time in enumerate(sorted(filled)):
            wheel.put(1000 * (time + 1), position * 52, deletes=False)
        expected = min((time + 1 for time in filled if after < time + 1 <= after + count), default=None)
        found = wheel.first_filled(1000 * after, 1000 * (after + count))
        assert found == (None if expected is None else 1000 * expected)

    def test_a_delete_decrements_the_count(self, wheel: TimerWheel) -> None:
        wheel.put(T0, 0, deletes=False)
        wheel.put(T0 + 1000, 0, deletes=False)
        wheel.put(T0 + 1000, 0, deletes=True)
        counts = dict(zip(wheel.table["time"].tolist(), wheel.table["count"].tolist(), strict=True))
        assert counts[T0 // 1000] == 1 and counts[T0 // 1000 + 1] == 0

    def test_a_cleared_wheel_is_empty(self, wheel: TimerWheel, tmp_path: Path) -> None:
        wheel.put(T0, 100, deletes=False)
        wheel.clear()
        assert wheel.last_position(T0) == -1
        assert not any((tmp_path / "timerwheel").read_bytes())

    def test_a_wheel_of_another_length_is_rejected(
        self, disk: SimulatedDisk, tmp_path: Path, wheel: TimerWheel
    ) -> None:
        with pytest.raises(OSError, match="another number of slots"):
            TimerWheel(disk, tmp_path / "timerwheel", 1000, slots=11)

    @pytest.mark.parametrize("precision_ms", [100, 200, 500])
    def test_slots_have_the_width_of_the_precision(
        self, disk: SimulatedDisk, tmp_path: Path, precision_ms: int
    ) -> None:
        wheel = TimerWheel(disk, tmp_path / "other", precision_ms, slots=10)
        wheel.put(T0 + precision_ms, 7, deletes=False)
        assert wheel.last_position(T0 + precision_ms) == 7
        assert wheel.last_position(T0) == wheel.last_position(T0 + 2 * precision_ms) == -1
        assert wheel.units_between(T0, T0 + 3 * precision_ms).tolist() == [1, 0, 0]


class TestLog:
    def test_units_are_chained_by_slot(self, log: TimerLog, wheel: TimerWheel) -> None:
        log.append(*units([1, 2, 1]), wheel)
        log.append(*units([1, 5], 3), wheel)
        assert [chain(log, wheel, slot) for slot in (1, 2, 3, 5)] == [[3, 2, 0], [1], [], [4]]
        assert log.end == position(4) + TIMER_UNIT.size

    @pytest.mark.parametrize("count", [1, PER_FILE - 1, PER_FILE, PER_FILE + 1, 3 * PER_FILE, 3 * PER_FILE + 1])
    @pytest.mark.parametrize("at_once", [True, False])
    def test_a_unit_never_crosses_a_file(
        self, log: TimerLog, wheel: TimerWheel, tmp_path: Path, count: int, at_once: bool
    ) -> None:
        if at_once:
            log.append(*units([1] * count), wheel)
        else:
            for i in range(count):
                log.append(*units([1], i), wheel)
        assert chain(log, wheel, 1) == list(range(count))[::-1]
        assert log.end == position(count - 1) + TIMER_UNIT.size
        assert len(list((tmp_path / "timerlog").iterdir())) == -(-count // PER_FILE)

    def test_the_blank_has_the_layout_of_apache(self, log: TimerLog, wheel: TimerWheel, tmp_path: Path) -> None:
        log.append(*units([1] * (PER_FILE + 1)), wheel)
        raw = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
        left = FILE_BYTES - PER_FILE * TIMER_UNIT.size
        at = PER_FILE * TIMER_UNIT.size
        assert struct.unpack_from(">iqI", raw, at) == (left, 0, 0xCBD43194)

    def test_a_unit_has_the_layout_of_apache(self, log: TimerLog, wheel: TimerWheel, tmp_path: Path) -> None:
        log.append(*units([1, 1], 77), wheel)
        raw = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
        assert struct.unpack_from(">iqiqiqiiq", raw, 52) == (52, 0, 1, T0, 1000, 78, 0, 0, 0)
        assert struct.unpack_from(">iqi", raw) == (52, -1, 1)

    def test_a_full_disk_changes_neither_log_nor_wheel(
        self, disk: SimulatedDisk, log: TimerLog, wheel: TimerWheel, tmp_path: Path
    ) -> None:
        log.append(*units([1] * 3), wheel)
        before, slots = log.end, bytes(wheel.bytes)
        disk.is_full = lambda path: True
        with pytest.raises(DiskFull):
            log.append(*units([2] * 6, 3), wheel)
        assert (log.end, bytes(wheel.bytes)) == (before, slots)
        log.append(*units([2], 3), wheel)  # units that fit are still appended
        disk.is_full = lambda path: False
        log.append(*units([2] * 6, 4), wheel)
        assert chain(log, wheel, 2) == list(range(3, 10))[::-1]

    def test_an_append_of_no_units_changes_nothing(self, log: TimerLog, wheel: TimerWheel) -> None:
        log.append(*units([]), wheel)
        assert (log.end, log.files.end) == (0, 0)

    def test_chunks_end_at_file_borders(self, log: TimerLog, wheel: TimerWheel) -> None:
        log.append(*units([1] * 10), wheel)
        found = [(at, part["record_position"].tolist()) for at, part in log.chunks(0, log.end)]
        assert found == [(0, [0, 1, 2, 3]), (FILE_BYTES, [4, 5, 6, 7]), (2 * FILE_BYTES, [8, 9])]
        assert [part["record_position"].tolist() for _, part in log.chunks(52, FILE_BYTES + 52)] == [[1, 2, 3], [4]]

    def test_an_invalid_unit_ends_its_file(self, log: TimerLog, wheel: TimerWheel) -> None:
        log.append(*units([1] * 4), wheel)
        log.files.file_at(0).view[2 * 52 : 2 * 52 + 4] = b"\0\0\0\x07"
        assert [part["record_position"].tolist() for _, part in log.chunks(0, log.end)] == [[0, 1]]

    def test_the_synced_position_advances_only_after_the_sync(
        self, disk: SimulatedDisk, log: TimerLog, wheel: TimerWheel
    ) -> None:
        log.append(*units([1] * 5), wheel)
        upto, sync = log.sync_job()
        log.append(*units([1]), wheel)
        with pytest.raises(AssertionError):
            log.note_synced(upto)
        sync()
        log.note_synced(upto)
        assert log.synced == upto < log.end
        assert len(disk.syncs) == 2


class TestRebuild:
    @settings(max_examples=40, deadline=None)
    @given(
        data=st.data(),
        slots=st.lists(st.integers(0, 9), min_size=1, max_size=14),
    )
    def test_a_rebuild_restores_the_wheel_from_the_log(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, slots: list[int]
    ) -> None:
        folder, disk = tmp_path_factory.mktemp("timer"), SimulatedDisk()
        kept = data.draw(st.integers(0, len(slots)))
        log, wheel = open_log(disk, folder), TimerWheel(disk, folder / "timerwheel", 1000, slots=10)
        for i, slot in enumerate(slots[:kept]):
            log.append(*units([slot], i, deletes=i % 3 == 2), wheel)
        table, counts, end = wheel.table.copy(), wheel.units.copy(), log.end
        for i, slot in enumerate(slots[kept:]):
            log.append(*units([slot], kept + i), wheel)
        again = open_log(disk, folder)
        again.rebuild(wheel, end)
        assert (wheel.table == table).all() and (wheel.units == counts).all()
        assert (again.end, again.synced) == (end, end)
        again.append(*units([3], 99), wheel)
        assert chain(again, wheel, 3)[0] == 99

    def test_a_rebuild_clears_the_log_after_its_end(
        self, disk: SimulatedDisk, tmp_path: Path, log: TimerLog, wheel: TimerWheel
    ) -> None:
        log.append(*units([1] * 7), wheel)
        log.rebuild(wheel, position(1))
        assert sorted(path.name for path in (tmp_path / "timerlog").iterdir()) == [f"{0:020d}"]
        assert not any((tmp_path / "timerlog" / f"{0:020d}").read_bytes()[52:])
        assert chain(log, wheel, 1) == [0]

    def test_a_rebuild_of_an_empty_log_changes_nothing(self, log: TimerLog, wheel: TimerWheel) -> None:
        log.rebuild(wheel, 0)
        assert (log.end, log.synced) == (0, 0)


def test_a_waiting_slot_keeps_its_place(log: TimerLog, wheel: TimerWheel) -> None:
    log.append(*units([15], 0), wheel)
    log.append(*units([-5], 1), wheel)  # long past: no scan will reach it
    assert chain(log, wheel, 15) == [0]
    assert wheel.holds(T0 + 1000 * np.array([15, -5, 35])).tolist() == [True, False, False]
    log.append(*units([35], 2), wheel)
    assert (chain(log, wheel, 15), chain(log, wheel, 35)) == ([], [2])
    log.rebuild(wheel, log.end)
    assert chain(log, wheel, 35) == [2]
