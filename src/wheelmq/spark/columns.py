"""The columns of the timer source, declared once: NumPy rows to Arrow batches, and Spark's schema for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from wheelmq.formats.disk.turn_row import STAGED_ROW

if TYPE_CHECKING:
    from wheelmq.delay.timer.staging import StagedRows

_ARROW: Final = {"<i8": pa.int64(), "<i4": pa.int32()}
_SPARK: Final = {"<i8": "long", "<i4": "int"}

_TYPES: Final = [(name, STAGED_ROW.fields[name][0].str) for name in STAGED_ROW.names or ()]  # type: ignore[index]

ARROW_SCHEMA: Final = pa.schema([pa.field(name, _ARROW[code]) for name, code in _TYPES])
SPARK_SCHEMA: Final = ", ".join(f"{name} {_SPARK[code]}" for name, code in _TYPES)

PROBLEM_CHARACTERS_MAX: Final = 500
"""The length of a text in the column `problem`, by which a task reports to the driver. Longer texts are cut."""


def to_batch(rows: StagedRows) -> pa.RecordBatch:
    arrays = [pa.array(np.ascontiguousarray(rows[field.name]), type=field.type) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
