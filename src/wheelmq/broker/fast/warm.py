"""Compile all kernels of a broker for the types of their arguments, or load them from the cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wheelmq.broker.fast import batch_rows, send
from wheelmq.delay.fast import congestion, keys, parked, release, turn
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels.cache import ALL_LISTS, compiling, loading
from wheelmq.formats.kernels.warm import Samples, call_kernels
from wheelmq.system import pages


def warm(say: Callable[[str], None]) -> None:
    """Compile or load all kernels. `say` gets a message if they must be compiled."""
    if jit.available():
        with compiling(say, *ALL_LISTS):
            _call_all(Samples())


def load() -> None:
    """Load all kernels from the cache, and compile none. Raises CacheUnusable."""
    with loading(*ALL_LISTS):
        _call_all(Samples())


def _call_all(a: Samples) -> None:
    """Call each kernel with nothing to do."""
    written, read, integers, nothing = a.written, a.read, a.integers, a.nothing
    call_kernels(a)
    send.accept_sends(
        read, 0, written, integers, a.journal, written, a.slots, a.topics, written, integers,
        a.table(congestion.COLUMNS), read, read, read, integers, np.zeros(send.STATE, np.int64),
    )  # fmt: skip
    batch_rows.measure_rows(
        read, read, np.zeros(batch_rows.LIMITS, np.int64), a.table(batch_rows.COLUMNS), np.zeros(
            batch_rows.MEASURED, np.int64
        ),
    )  # fmt: skip
    batch_rows.append_rows(
        read, a.table(batch_rows.COLUMNS)[:0], written, integers, a.journal, read, integers, integers, integers
    )
    release.release(
        a.no_refs, read, written, integers, a.journal, a.slots, a.topics, written, integers,
        integers, integers, np.zeros(release.STATE, np.int64),
    )  # fmt: skip
    views = turn.views(np.zeros(0, TURN_ROW))
    turn.in_queue_order(*views, 0)
    turn.encode_units(*views, 0, written, nothing)
    turn.near_references(*views, 0, 0, written, 1000, a.no_refs)
    parked.is_any_delayed(a.journal[:0])
    parked.take(a.journal[:0], a.table(parked.COUNTS)[:0], a.no_refs, nothing, nothing, integers)
    pages.advise_by_pieces(0, 0, 0, 1, 0)
    keys.insert(integers, integers, nothing, nothing)
