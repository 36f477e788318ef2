"""Compile the kernels of this package for the types of their arguments, or load them from the cache.

A Spark worker does this before its first task. A broker calls its own list (`broker.fast.warm`), which has these too.
A kernel gets each array that it only reads as one for reading (`arrays.read_only`), so it is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels import bits, gather, index, jit, journal, refs, scan, timer, timer_detail, topics, units
from wheelmq.formats.kernels.cache import compiling


class Samples:
    """Arrays of each type and shape that kernels take, as small as possible."""

    def __init__(self) -> None:
        self.written = np.zeros(16, np.uint8)
        self.read = np.zeros(16, np.uint8)
        self.read.setflags(write=False)
        self.integers = np.zeros(64, np.int64)
        self.nothing = np.zeros(0, np.int64)
        self.slots = np.full(2, -1, np.int64)
        self.journal = self.table(journal.COLUMNS)
        self.topics = self.table(topics.COLUMNS)
        self.names = self.table(2)
        self.no_refs = self.table(refs.COLUMNS)[:0]

    @staticmethod
    def table(columns: int) -> npt.NDArray[np.int64]:
        return np.zeros((1, columns), np.int64)


def warm(say: Callable[[str], None]) -> None:
    """Compile or load the kernels of this package. `say` gets a message if they must be compiled."""
    if jit.available():
        with compiling(say, "formats"):
            call_kernels(Samples())


def call_kernels(a: Samples) -> None:
    """Call each kernel of this package with nothing to do."""
    written, read, integers, nothing = a.written, a.read, a.integers, a.nothing
    state, rows = np.zeros(scan.STATE, np.int64), a.table(scan.COLUMNS)
    scan.scan_log(read, 0, True, 0, a.slots, a.names, written, integers, rows, state)
    scan.read_parked(read, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    timer.chain_in_file(read, 0, -1, 0, np.zeros(2, np.int64))
    timer_detail.due_times(written, 0, 0, 0, nothing, nothing)
    timer_detail.slots_of(written, 0, 0, nothing, nothing, nothing, nothing)
    counts = np.zeros(1, np.int32)
    timer.append_units(written, counts, 1000, written, 0, 0, written, nothing)
    timer.rebuild(written, counts, 1000, written, 0, 0, 0)
    bits.get(written, 0, 0, 0, nothing, np.zeros(0, np.bool_))
    bits.put(written, 0, 0, 0, nothing)
    gather.gather(read, 0, 0, read, 0, written, integers)
    units.by_queue(a.journal[:0], integers, a.table(units.GROUP_COLUMNS), written)
    index.index_log(read, 0, 0, written, 1, 1, np.zeros(index.STATE, np.int64), integers)
    topics.intern_topic(a.slots, a.names, written, integers, read, 0, 0)
