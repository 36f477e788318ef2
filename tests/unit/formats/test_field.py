"""Every declared layout: its struct and its dtype read and write the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.formats.disk.checkpoint import CHECKPOINT
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.timer import TIMER_CHECK, TIMER_MARK, TIMER_SLOT, TIMER_UNIT
from wheelmq.formats.field import Field, Layout

SIZES = {
    CHECKPOINT: 40,
    QUEUE_UNIT: 20,
    TIMER_SLOT: 32,
    TIMER_UNIT: 52,
    TIMER_CHECK: 56,
    TIMER_MARK: 56,
}
EVERY_TYPE = Layout(
    "all",
    *(Field(kind, kind, f"a {kind}") for kind in ("int16", "int64", "int32", "uint32", "bytes4")),
)
LAYOUTS = [*SIZES, EVERY_TYPE]

VALUES = {
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "uint32": st.integers(0, (1 << 32) - 1),
    "bytes4": st.binary(min_size=4, max_size=4).filter(lambda raw: raw[-1:] != b"\0"),  # NumPy strips zeros at the end
}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


@pytest.mark.parametrize("layout", SIZES, ids=lambda layout: layout.name)
def test_struct_and_dtype_have_the_size_of_the_format(layout: Layout) -> None:
    assert layout.size == SIZES[layout] == layout.dtype.itemsize == layout.struct.size


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_struct_and_dtype_read_and_write_the_same_bytes(layout: Layout, data: st.DataObject) -> None:
    rows = [tuple(data.draw(VALUES[field.type]) for field in layout.fields) for _ in range(2)]
    raw = b"".join(layout.pack(*row) for row in rows)
    read = np.frombuffer(raw, layout.dtype)
    for i, row in enumerate(rows):
        names = [field.name for field in layout.fields]
        assert dict(zip(names, row, strict=True)) == layout.unpack(raw, i * layout.size)
        assert row == tuple(_plain(read[i][name]) for name in names)
    assert np.array(rows, layout.dtype).tobytes() == raw


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_position_of_a_field_is_that_of_the_struct(layout: Layout) -> None:
    for i, field in enumerate(layout.fields):
        zeros = [b"\0\0\0\0" if other.type == "bytes4" else 0 for other in layout.fields]
        marked: list[Any] = list(zeros)
        marked[i] = b"\x01\x01\x01\x01" if field.type == "bytes4" else 0x0101
        changed = np.flatnonzero(
            np.frombuffer(layout.pack(*marked), np.uint8) != np.frombuffer(layout.pack(*zeros), np.uint8)
        )
        at = layout.position_of(field.name)
        size = layout.dtype[field.name].itemsize
        assert at <= changed.min() and changed.max() == at + size - 1


def test_the_table_names_every_byte_once() -> None:
    lines = QUEUE_UNIT.table().splitlines()
    assert lines[0] == "| byte | size | field | meaning |"
    cells = [line.strip("| ").split(" | ") for line in lines[2:]]
    assert [(int(at), int(size), name) for at, size, name, _ in cells] == [
        (0, 8, "position"),
        (8, 4, "size"),
        (12, 8, "tag_code"),
    ]
