"""Blocks: units, checkpoints and folder names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.formats.disk.block import (
    BLOCK_CHECKPOINT,
    BLOCK_UNIT,
    FLAG_DONE,
    UNITS_PER_FILE,
    BlockCheckpoint,
    block_name,
    block_start_ms,
)
from wheelmq.formats.units import Millis

NOON_MS = Millis(1_568_116_800_000)  # 2019-09-10 12:00 UTC
CHECKPOINT = BlockCheckpoint(7, NOON_MS, Millis(NOON_MS + 3_600_000), 4711, 12)


def test_a_unit_has_the_24_bytes_of_the_seed() -> None:
    assert BLOCK_UNIT.size == 24 and BLOCK_UNIT.size * UNITS_PER_FILE == 7_200_000
    assert BLOCK_UNIT.pack(1, 2, NOON_MS, FLAG_DONE).hex() == "0000000000000001000000020000016d1b0b7a0000000001"


def test_a_checkpoint_has_its_documented_bytes() -> None:
    assert BLOCK_CHECKPOINT.size == 56
    assert CHECKPOINT.pack(3).hex() == (
        "574d5142"
        "3cbf625b"
        "0000000000000003"
        "0000000000000007"
        "0000016d1b0b7a00"
        "0000016d1b426880"
        "0000000000001267"
        "000000000000000c"
    )


@given(st.integers(1, 1 << 62), st.integers(0, 1 << 40), st.integers(-1, 1 << 40))
def test_a_checkpoint_reads_as_it_was_written(sequence: int, number: int, position: int) -> None:
    checkpoint = CHECKPOINT._replace(number=number, log_position=position)
    assert BlockCheckpoint.unpack(checkpoint.pack(sequence)) == (sequence, checkpoint)


@pytest.mark.parametrize("at", range(BLOCK_CHECKPOINT.size))
def test_any_changed_byte_of_a_checkpoint_is_detected(at: int) -> None:
    raw = bytearray(CHECKPOINT.pack(3))
    raw[at] ^= 0x10
    assert BlockCheckpoint.unpack(raw) is None


@pytest.mark.parametrize(
    ("later_s", "length_s", "name"),
    [
        (12 * 3600, 24 * 3600, "20190911"),
        (0, 3600, "2019091012"),
        (12 * 3600, 3600, "2019091100"),
        (600, 600, "201909101210"),
        (1800, 3600, "201909101230"),
        (5, 5, "20190910120005"),
        (0, 5, "20190910120000"),
    ],
)
def test_a_block_is_named_by_its_start_time(later_s: int, length_s: int, name: str) -> None:
    start_ms = Millis(NOON_MS + later_s * 1000)
    assert block_name(start_ms, length_s * 1000) == name
    assert block_start_ms(name) == start_ms


@pytest.mark.parametrize(
    "name",
    ["", "2019", "201909101", "20191310", "2019091024", "201909101260", "20190910 1", "-2019091", "２０１９０９１０"],
)
def test_an_invalid_block_name_has_no_start_time(name: str) -> None:
    assert block_start_ms(name) is None
