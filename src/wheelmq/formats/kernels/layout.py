"""Scan property blocks that look alike: in those of one producer's messages only the values differ.

What two blocks of one layout have in common is their length, their names and where each value begins and ends. Once two
blocks of one length came one after another, the layout of the second is known; a block that has it needs no scan.

Twin: `properties.scan`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels import properties as prop
from wheelmq.formats.kernels.jit import part
from wheelmq.formats.kernels.numbers import Bytes

BLOCK_BYTES_MAX: Final = 1024
"""A longer block is scanned each time."""
LEARNT_MAX: Final = 16
"""So many layouts are learnt with one array of facts. Where they change all the time, knowing them is no help."""

TEXTS: Final = 2 * BLOCK_BYTES_MAX
"""Entries of an array of texts: what the bytes of names and signs are, 0 for those of values; then a mask of these."""
_MASK: Final = BLOCK_BYTES_MAX

LAST_BYTES: Final = 0
"""Length of the block before."""
KNOWN_BYTES: Final = 1
"""Length of the blocks whose layout is known; 0 while none is."""
LEARNT: Final = 2
_SPANS: Final = 3
"""The spans, counted from the start of a block."""
FACTS: Final = _SPANS + prop.SPANS
"""Entries of an array of facts; all zero at first."""

Integers = npt.NDArray[np.int64]


@part
def scan(a: Bytes, start: int, end: int, spans: Integers, seen: Integers, texts: Bytes, facts: Integers) -> int:
    """What `properties.scan` gives, with a layout that is remembered in `texts` and `facts`."""
    n = end - start
    if n > 0 and n == facts[KNOWN_BYTES] and _is_alike(a, start, n, texts):
        for i in range(prop.SPANS):
            at = facts[_SPANS + i]
            spans[i] = at + start if at >= 0 else -1
        return prop.REGULAR
    found = prop.scan(a, start, end, spans, seen)
    if found == prop.REGULAR and n == facts[LAST_BYTES] and n <= BLOCK_BYTES_MAX and facts[LEARNT] < LEARNT_MAX:
        _learn(a, start, end, spans, texts, facts)
    facts[LAST_BYTES] = n
    return found


@part
def _is_alike(a: Bytes, start: int, n: int, texts: Bytes) -> bool:
    """Whether the block of `n` bytes at `start` has the known layout: the same names and signs, in values none of the
    bytes at which `properties.scan` stops.

    Bytes stay bytes and there is one way through, so that the loop is compiled to vectors.
    """
    p = np.uint64(start)
    different = np.uint8(0)
    for i in range(np.uint64(n)):
        c = a[p + i]
        mask = texts[i + np.uint64(_MASK)]
        stops = np.uint8(np.uint8(c - np.uint8(3)) | c)  # its highest bit is 1 for those below 3 and above 127
        wrong = np.uint8(np.uint8(c & mask) ^ texts[i]) | np.uint8(stops & np.uint8(~mask & np.uint8(128)))
        different = np.uint8(different | wrong)
    return different == 0


@part
def _learn(a: Bytes, start: int, end: int, spans: Integers, texts: Bytes, facts: Integers) -> int:
    """Take the layout of a regular block, if none of its values holds the sign that ends a name."""
    facts[KNOWN_BYTES] = 0
    facts[LEARNT] += 1
    for i in range(end - start):
        texts[i] = a[start + i]
        texts[_MASK + i] = 255
    p = start
    while p < end:
        value = prop.text_end(a, p, end) + 1
        p = prop.text_end(a, value, end)
        if p < end and a[p] == 1:
            return 0
        for i in range(value - start, p - start):
            texts[i] = 0
            texts[_MASK + i] = 0
        p += 1
    for i in range(prop.SPANS):
        facts[_SPANS + i] = spans[i] - start if spans[i] >= 0 else -1
    facts[KNOWN_BYTES] = end - start
    return 1
