"""Copy the records of consume queue units one after another, as a pull's answer holds them.

Twin: `store.commit_log.CommitLog.gather`, and the loop of `broker.handlers.pull` before it.
"""

from __future__ import annotations

from typing import Final

from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.numbers import Bytes, get32, get64
from wheelmq.formats.kernels.record import has_form
from wheelmq.formats.kernels.topics import Integers

TAKEN: Final = 0
"""Number of units whose records were copied."""
COPIED_BYTES: Final = 1
FOUND: Final = 2

_UNIT: Final = QUEUE_UNIT.size
_POSITION_AT: Final = QUEUE_UNIT.position_of("position")
_SIZE_AT: Final = QUEUE_UNIT.position_of("size")


@kernel
def gather(log: Bytes, base: int, end: int, units: Bytes, count_max: int, out: Bytes, found: Integers) -> None:
    """Copy the records of `units` into `out`, from the log file that begins at `base`, of the log up to `end`.

    `found` gets the numbers of units and bytes copied. The copy stops before the first unit that names another file or
    no record, or whose record does not fit. That can be the first unit.
    """
    taken = copied = 0
    stop = min(log.shape[0], end - base)
    for i in range(min(count_max, units.shape[0] // _UNIT)):
        at = get64(units, i * _UNIT + _POSITION_AT) - base
        size = get32(units, i * _UNIT + _SIZE_AT)
        if size < 0 or at < 0 or at > stop - size or copied + size > out.shape[0]:
            break
        if not has_form(log, at, size, base + at):
            break
        out[copied : copied + size] = log[at : at + size]
        copied += size
        taken += 1
    found[TAKEN] = taken
    found[COPIED_BYTES] = copied
