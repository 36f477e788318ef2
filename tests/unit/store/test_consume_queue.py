"""A consume queue, and the table of consume queues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT
from wheelmq.formats.kernels.journal import COLUMNS, POSITION, QUEUE, QUEUE_OFFSET, SIZE, TAG_CODE
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue, Units
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.queues import QueueTable
from wheelmq.system.disk import DiskFull
from wheelmq.testing.disk import SimulatedDisk

PER_FILE = 10
FILE_BYTES = PER_FILE * 20


def units(first: int, count: int) -> Units:
    """Make numbered units: position 100 i, size 100, tag i."""
    made = np.zeros(count, QUEUE_UNIT.dtype)
    numbers = np.arange(first, first + count)
    made["position"], made["size"], made["tag_code"] = 100 * numbers, 100, numbers
    return made


def open_queue(disk: SimulatedDisk, folder: Path) -> ConsumeQueue:
    return ConsumeQueue(MappedSequence(disk, folder, FILE_BYTES))


def tags(queue: ConsumeQueue) -> list[int]:
    """Return the tags from start to end, with -1 for a blank."""
    found: list[int] = []
    while queue.start + len(found) < queue.end:
        read = queue.read(QueueOffset(queue.start + len(found)), 1000)
        found += [-1 if unit["size"] == BLANK_SIZE else int(unit["tag_code"]) for unit in read]
    return found


@pytest.fixture
def queue(disk: SimulatedDisk, tmp_path: Path) -> ConsumeQueue:
    return open_queue(disk, tmp_path)


def test_a_new_queue_is_empty(queue: ConsumeQueue) -> None:
    assert (queue.start, queue.end, queue.unsynced) == (0, 0, 0)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 20, 35])
def test_units_are_read_back_across_files(disk: SimulatedDisk, tmp_path: Path, queue: ConsumeQueue, count: int) -> None:
    queue.write(QueueOffset(0), units(0, count))
    assert tags(queue) == list(range(count))
    assert tags(open_queue(disk, tmp_path)) == list(range(count))


def test_a_read_returns_units_of_one_file(queue: ConsumeQueue) -> None:
    queue.write(QueueOffset(0), units(0, 25))
    assert queue.read(QueueOffset(7), 100)["tag_code"].tolist() == [7, 8, 9]
    assert queue.read(QueueOffset(7), 2)["tag_code"].tolist() == [7, 8]
    assert queue.read(QueueOffset(24), 5)["tag_code"].tolist() == [24]
    for offset in (-1, 25, 26):
        with pytest.raises(AssertionError):
            queue.read(QueueOffset(offset), 1)


@pytest.mark.parametrize("first", [1, 9, 10, 23])
def test_a_queue_may_begin_at_any_offset(disk: SimulatedDisk, tmp_path: Path, queue: ConsumeQueue, first: int) -> None:
    queue.write(QueueOffset(first), units(first, 3))
    start = first // PER_FILE * PER_FILE
    assert queue.start == start
    assert tags(queue) == [-1] * (first - start) + [first, first + 1, first + 2]
    assert tags(open_queue(disk, tmp_path)) == tags(queue)


def test_a_gap_is_filled_with_blanks(queue: ConsumeQueue) -> None:
    queue.write(QueueOffset(0), units(0, 3))
    queue.write(QueueOffset(25), units(25, 1))
    assert tags(queue) == [0, 1, 2] + [-1] * 22 + [25]


def test_repeated_writes_change_nothing(queue: ConsumeQueue) -> None:
    queue.write(QueueOffset(0), units(0, 15))
    queue.write(QueueOffset(3), units(3, 4))
    assert tags(queue) == list(range(15))


def test_a_write_succeeds_once_a_full_disk_has_room(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    queue.write(QueueOffset(0), units(0, 8))
    disk.is_full = lambda path: True
    with pytest.raises(DiskFull):
        queue.write(QueueOffset(8), units(8, 5))
    disk.is_full = lambda path: False
    queue.write(QueueOffset(8), units(8, 5))
    assert tags(queue) == list(range(13))


@pytest.mark.parametrize("end", [0, 1, 9, 10, 11, 20])
def test_a_cut_removes_the_units_after_it(disk: SimulatedDisk, tmp_path: Path, queue: ConsumeQueue, end: int) -> None:
    queue.write(QueueOffset(0), units(0, 25))
    queue.cut(QueueOffset(end))
    assert tags(queue) == list(range(end))
    assert tags(open_queue(disk, tmp_path)) == list(range(end))
    queue.write(QueueOffset(end), units(end, 12))
    assert tags(queue) == list(range(end + 12))


@pytest.mark.parametrize("log_end", [0, 50, 100, 101, 999, 1000, 1001, 1900, 2499, 2500, 9999])
def test_cut_log_removes_units_whose_records_are_missing(queue: ConsumeQueue, log_end: int) -> None:
    queue.write(QueueOffset(0), units(0, 25))
    queue.cut_log(LogPosition(log_end))
    assert tags(queue) == list(range(min(25, log_end // 100)))


def test_cut_log_keeps_the_blanks_before_good_units(queue: ConsumeQueue) -> None:
    queue.write(QueueOffset(13), units(13, 4))
    queue.cut_log(LogPosition(1500))
    assert tags(queue) == [-1, -1, -1, 13, 14]


def test_a_sync_covers_the_units_written_before_it(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    queue.write(QueueOffset(0), units(0, 15))
    job = queue.sync_job()
    queue.write(QueueOffset(15), units(15, 1))
    assert queue.unsynced == 16
    job()
    assert queue.unsynced == 1
    assert [path.name for path in disk.syncs] == [f"{0:020d}", f"{FILE_BYTES:020d}"]
    queue.cut(QueueOffset(3))
    assert queue.unsynced == 0


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 12)),
            st.tuples(st.just("gap"), st.integers(1, 25)),
            st.tuples(st.just("cut"), st.integers(0, 40)),
            st.tuples(st.just("open"), st.just(0)),
        ),
        max_size=12,
    )
)
def test_a_queue_behaves_like_a_list(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("queue")
    disk = SimulatedDisk()
    queue = open_queue(disk, folder)
    model: list[int] = []
    for step, n in steps:
        match step:
            case "write":
                queue.write(QueueOffset(len(model)), units(len(model), n))
                model += range(len(model), len(model) + n)
            case "gap":
                if not model:
                    continue
                offset = len(model) + n
                queue.write(QueueOffset(offset), units(offset, 1))
                model += [-1] * n + [offset]
            case "cut":
                queue.cut(QueueOffset(n))
                model = model[:n]
            case "open":
                queue = open_queue(disk, folder)
        assert tags(queue) == model
        assert queue.end == len(model)


class TestTable:
    @pytest.fixture
    def table(self, disk: SimulatedDisk, tmp_path: Path) -> QueueTable:
        return QueueTable(disk, StorePaths(tmp_path), FILE_BYTES)

    @staticmethod
    def journal(*entries: tuple[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Make journal rows for pairs of queue row and queue offset. Their records are 100 bytes apart in the log."""
        rows = np.zeros((len(entries), COLUMNS), np.int64)
        for i, (queue, offset) in enumerate(entries):
            rows[i, QUEUE], rows[i, QUEUE_OFFSET] = queue, offset
            rows[i, POSITION], rows[i, SIZE], rows[i, TAG_CODE] = 100 * i, 100, i
        return rows

    def test_each_queue_has_one_row(self, table: QueueTable) -> None:
        rows = [table.row("T", 0), table.row("T", 1), table.row("U", 0)]
        assert rows == [0, 1, 2]
        assert table.row("T", 1) == 1
        assert table.key(2) == ("U", 0)
        assert table.find("T", 1) is table[1]
        assert table.find("T", 2) is None
        assert [key for key, _ in table.items()] == [("T", 0), ("T", 1), ("U", 0)]

    def test_the_table_grows_for_more_rows(self, table: QueueTable) -> None:
        for queue_id in range(200):
            assert table.row("T", queue_id) == queue_id
        assert len(table.next_offset) >= 200 and table.next_offset[199] == 0

    def test_write_groups_by_queue(self, table: QueueTable) -> None:
        first, second = table.row("T", 0), table.row("T", 1)
        rows = self.journal((second, 0), (first, 0), (second, 1), (first, 1), (second, 2))
        rows[:, SIZE] = (7, 11, 13, 17, 19)
        assert table.write(rows) == {first: 11 + 17, second: 7 + 13 + 19}
        assert tags(table[first]) == [1, 3]
        assert tags(table[second]) == [0, 2, 4]

    def test_a_write_of_no_rows_changes_nothing(self, table: QueueTable) -> None:
        assert table.write(self.journal()) == {}

    def test_load_finds_every_folder_of_a_queue(self, disk: SimulatedDisk, tmp_path: Path, table: QueueTable) -> None:
        table.write(self.journal((table.row("T", 0), 0), (table.row("U", 7), 0), (table.row("U", 7), 1)))
        (tmp_path / "consumequeue" / "U" / "notes").mkdir()
        again = QueueTable(disk, StorePaths(tmp_path), FILE_BYTES)
        again.load()
        assert {key: queue.end for key, queue in again.items()} == {("T", 0): 1, ("U", 7): 2}
        assert again.next_offset[again.row("U", 7)] == 2

    def test_a_file_size_is_rounded_down_to_whole_units(self, disk: SimulatedDisk, tmp_path: Path) -> None:
        table = QueueTable(disk, StorePaths(tmp_path), FILE_BYTES + 19)
        assert table[table.row("T", 0)].units_per_file == PER_FILE
