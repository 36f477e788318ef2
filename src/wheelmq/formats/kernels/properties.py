"""Scan a property block for the names that the broker uses. Twin: `formats.disk.properties.parse`.

A block in which the two can differ is IRREGULAR: a pair without name or value, a name twice, a NUL, no ASCII.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk import properties as props
from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.numbers import Bytes, literal

NAMES: Final = tuple(
    sorted(
        (
            props.TAGS, props.KEYS, props.UNIQ_KEY, props.DELAY, props.WAIT, props.TIMER_DELAY_SEC,
            props.TIMER_DELAY_MS,
            props.TIMER_DELIVER_MS, props.TIMER_OUT_MS, props.REAL_TOPIC, props.REAL_QID, props.TIMER_DEL_UNIQKEY,
            props.WMQ_DUE, props.WMQ_ORIGIN, props.TIMER_ENQUEUE_MS, props.TIMER_DEQUEUE_MS, props.TIMER_ROLL_TIMES,
            props.TIMER_DELAY_LEVEL,
            props.MSG_REGION, props.TRACE_ON, props.CLUSTER, props.TRAN_MSG, props.INNER_NUM, props.POP_CK,
            props.DELAY_IN_SECONDS,
        ),
        key=lambda name: (len(name), name),
    )
)  # fmt: skip
"""The names, shortest first."""

TAGS: Final = NAMES.index(props.TAGS)
KEYS: Final = NAMES.index(props.KEYS)
UNIQ_KEY: Final = NAMES.index(props.UNIQ_KEY)
DELAY: Final = NAMES.index(props.DELAY)
WAIT: Final = NAMES.index(props.WAIT)
TIMER_DELAY_SEC: Final = NAMES.index(props.TIMER_DELAY_SEC)
TIMER_DELAY_MS: Final = NAMES.index(props.TIMER_DELAY_MS)
TIMER_DELIVER_MS: Final = NAMES.index(props.TIMER_DELIVER_MS)
TIMER_OUT_MS: Final = NAMES.index(props.TIMER_OUT_MS)
REAL_TOPIC: Final = NAMES.index(props.REAL_TOPIC)
REAL_QID: Final = NAMES.index(props.REAL_QID)
TIMER_DEL_UNIQKEY: Final = NAMES.index(props.TIMER_DEL_UNIQKEY)
WMQ_DUE: Final = NAMES.index(props.WMQ_DUE)
WMQ_ORIGIN: Final = NAMES.index(props.WMQ_ORIGIN)
TIMER_ENQUEUE_MS: Final = NAMES.index(props.TIMER_ENQUEUE_MS)
TIMER_DEQUEUE_MS: Final = NAMES.index(props.TIMER_DEQUEUE_MS)
TIMER_ROLL_TIMES: Final = NAMES.index(props.TIMER_ROLL_TIMES)
TIMER_DELAY_LEVEL: Final = NAMES.index(props.TIMER_DELAY_LEVEL)
MSG_REGION: Final = NAMES.index(props.MSG_REGION)
TRACE_ON: Final = NAMES.index(props.TRACE_ON)
CLUSTER: Final = NAMES.index(props.CLUSTER)
TRAN_MSG: Final = NAMES.index(props.TRAN_MSG)
INNER_NUM: Final = NAMES.index(props.INNER_NUM)
POP_CK: Final = NAMES.index(props.POP_CK)
DELAY_IN_SECONDS: Final = NAMES.index(props.DELAY_IN_SECONDS)

SPANS: Final = 2 * len(NAMES)
"""Entries of the array that `scan` fills: start and end of the value of each name. An absent name starts at -1."""

PAIRS_MAX: Final = 64
"""A block with more pairs is left to the plain code."""

REGULAR: Final = 0
IRREGULAR: Final = 1

_TEXT = literal("".join(NAMES))
_START = np.cumsum([0] + [len(name) for name in NAMES])[:-1].astype(np.int64)
_LENGTH_MAX: Final = max(map(len, NAMES))
_FIRST = np.array(
    [next((i for i, name in enumerate(NAMES) if len(name) >= n), len(NAMES)) for n in range(_LENGTH_MAX + 2)], np.int64
)
"""The first name with at least this length, by length."""


STOPS = np.zeros(256, np.uint8)
"""1 for the bytes at which a name or a value ends, and for NUL and bytes above ASCII, which are for the plain code."""
STOPS[[0, 1, 2]] = 1
STOPS[128:] = 1


@inline
def text_end(a: Bytes, start: int, end: int) -> int:
    """Return the first stop from `start` on, or `end`."""
    p = np.uint64(start)  # an unsigned index needs no check for a negative one
    stop = np.uint64(end)
    while p < stop and STOPS[a[p]] == 0:
        p += np.uint64(1)
    return np.int64(p)


@part
def _known(a: Bytes, start: int, end: int) -> int:
    """Return the index of a[start:end] in NAMES, or -1 if it is not one of them."""
    n = end - start
    if n > _LENGTH_MAX:
        return -1
    for i in range(_FIRST[n], _FIRST[n + 1]):
        p = _START[i]
        same = True
        for k in range(n):
            if a[start + k] != _TEXT[p + k]:
                same = False
                break
        if same:
            return i
    return -1


@part
def scan(a: Bytes, start: int, end: int, spans: npt.NDArray[np.int64], seen: npt.NDArray[np.int64]) -> int:
    """Find the known names in the block a[start:end]. Returns REGULAR, or IRREGULAR for the plain code.

    `seen` is scratch space of 2 * PAIRS_MAX entries. A last pair without its end separator is regular.
    """
    for i in range(SPANS):
        spans[i] = -1
    pairs = others = 0
    p = start
    while p < end:
        name = p
        name_end = text_end(a, p, end)
        if name_end == name or name_end >= end or a[name_end] != 1:
            return IRREGULAR
        value = name_end + 1
        p = text_end(a, value, end)
        while p < end and a[p] == 1:  # a value may hold the byte that ends a name
            p = text_end(a, p + 1, end)
        if p == value or pairs == PAIRS_MAX or (p < end and a[p] != 2):
            return IRREGULAR
        pairs += 1
        known = _known(a, name, name_end)
        if known >= 0:
            if spans[2 * known] >= 0:
                return IRREGULAR
            spans[2 * known] = value
            spans[2 * known + 1] = p
        else:
            for k in range(others):
                if seen[2 * k + 1] == name_end - name and _same(a, seen[2 * k], name, name_end - name):
                    return IRREGULAR
            seen[2 * others] = name
            seen[2 * others + 1] = name_end - name
            others += 1
        p += 1
    return REGULAR


@part
def _same(a: Bytes, p: int, q: int, n: int) -> bool:
    for i in range(n):
        if a[p + i] != a[q + i]:
            return False
    return True
