"""Compile every kernel for the types of its arguments, or load it from the cache.

The broker does this before it listens, and a Spark worker before its first task. The first process compiles, and the
others wait for it. A file mapped for reading only gives arrays of another type than a writable one. So the kernels
of tasks are compiled for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wheelmq.formats.disk import turn_row
from wheelmq.formats.kernels import (
    binary_header,
    bits,
    congestion,
    gather,
    index,
    jit,
    journal,
    json_header,
    keys,
    pages,
    parked,
    properties,
    record,
    release,
    scan,
    send,
    timer,
    timer_detail,
    topics,
    turn,
    units,
)

_MODULES = (binary_header, json_header, properties, record)  # parts, compiled with the kernels that use them


def _arrays() -> dict[str, Any]:
    """Return arrays of each type and shape that kernels take, as small as possible."""
    written = np.zeros(16, np.uint8)
    read = np.zeros(16, np.uint8)
    read.setflags(write=False)
    return {
        "written": written,
        "read": read,
        "integers": np.zeros(64, np.int64),
        "slots": np.full(2, -1, np.int64),
        "journal": np.zeros((1, journal.COLUMNS), np.int64),
        "topics": np.zeros((1, topics.COLUMNS), np.int64),
        "waiting": np.zeros((1, congestion.COLUMNS), np.int64),
        "names": np.zeros((1, 2), np.int64),
        "rows": np.zeros((1, scan.COLUMNS), np.int64),
        "groups": np.zeros((1, units.GROUP_COLUMNS), np.int64),
        "refs": np.zeros((0, 6), np.int64),
        "counts by queue": np.zeros((0, parked.COUNTS), np.int64),
        "counts": np.zeros(1, np.int32),
    }


def warm(say: Callable[[str], None]) -> None:
    """Compile or load all kernels. `say` gets a message if they must be compiled."""
    if not jit.available():
        return
    with jit.compiling(say):
        a = _arrays()
        written, read, integers, nothing = a["written"], a["read"], a["integers"], np.zeros(0, np.int64)
        send.accept_sends(
            written, 0, written, integers, a["journal"], written, a["slots"], a["topics"], written, integers,
            a["waiting"], read, read, read, integers, np.zeros(send.STATE, np.int64),
        )  # fmt: skip
        release.release(
            a["refs"], written, written, integers, a["journal"], a["slots"], a["topics"], written, integers,
            integers, integers, np.zeros(release.STATE, np.int64),
        )  # fmt: skip
        for log in (written, read):
            state = np.zeros(scan.STATE, np.int64)
            scan.scan_log(log, 0, True, 0, a["slots"], a["names"], written, integers, a["rows"], state)
            scan.read_parked(log, 0, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
            timer.chain_in_file(log, 0, -1, 0, np.zeros(2, np.int64))
        timer_detail.due_times(written, 0, 0, 0, nothing, nothing)
        timer_detail.slots_of(written, 0, 0, nothing, nothing, nothing, nothing)
        timer.append_units(written, a["counts"], 1000, written, 0, 0, written, nothing)
        timer.rebuild(written, a["counts"], 1000, written, 0, 0, 0)
        for rows in (np.zeros(0, turn_row.TURN_ROW), np.frombuffer(b"", turn_row.TURN_ROW)):
            views = turn.views(rows)
            turn.in_queue_order(*views, 0)
            turn.encode_units(*views, 0, 0, written, nothing)
            turn.near_references(*views, 0, 0, written, 1000, 0, a["refs"])
        bits.get(written, 0, 0, 0, nothing, np.zeros(0, np.bool_))
        bits.put(written, 0, 0, 0, nothing)
        for raw in (written, read):
            gather.gather(written, 0, 0, raw, 0, written, integers)
        units.by_queue(a["journal"][:0], integers, a["groups"], written)
        parked.is_any_delayed(a["journal"][:0])
        parked.take(a["journal"][:0], a["counts by queue"], a["refs"], nothing, nothing, 0, integers)
        index.index_log(written, 0, 0, written, 1, 1, np.zeros(index.STATE, np.int64), integers)
        pages.advise_by_pieces(0, 0, 0, 1, 0)
        keys.insert(integers, integers, nothing, nothing)
        topics.intern_topic(a["slots"], a["names"], written, integers, read, 0, 0)
