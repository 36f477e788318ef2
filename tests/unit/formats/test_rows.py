"""The columns of rows come from their declarations."""

from __future__ import annotations

from types import ModuleType

import pytest

from wheelmq.formats.kernels import journal, refs, scan
from wheelmq.formats.rows import JOURNAL, PARKED, SCANNED, Row


@pytest.mark.parametrize(("row", "module"), [(JOURNAL, journal), (PARKED, refs), (SCANNED, scan)])
def test_each_field_has_a_constant_with_its_column(row: Row, module: ModuleType) -> None:
    columns = [getattr(module, name.upper()) for name in row.names or ()]
    assert columns == list(range(len(row)))
    assert {type(column) for column in columns} == {int}  # kernels take these as constants
    assert row.itemsize == 8 * len(row)


def test_references_and_queue_units_are_the_front_of_a_parked_message() -> None:
    names = PARKED.names or ()
    assert names[: refs.UNIT_COLUMNS] == ("fire_ms", "origin", "position", "size")
    assert names[refs.UNIT_COLUMNS : refs.COLUMNS] == ("flags", "enqueue_ms")
    assert len(names) == refs.PARKED_COLUMNS
