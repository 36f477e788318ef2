"""Scan property blocks with one layout. One producer's messages often differ only in the values of properties.

Two blocks have one layout if they have the same length, the same names, and each value begins and ends at the same
place. After two blocks of one length in a row, the kernel learns the layout of the second. A block with the known
layout needs no scan. Twin: `properties.scan`.
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
"""Layouts learnt with one array of facts. Layouts that change all the time are no help."""

TEXTS: Final = 2 * BLOCK_BYTES_MAX
"""Entries of an array of texts: first the bytes of names and separators, with 0 for each byte of a value; then a
mask of these bytes."""
_MASK: Final = BLOCK_BYTES_MAX

LAST_BYTES: Final = 0
"""Length of the previous block."""
KNOWN_BYTES: Final = 1
"""Length of the blocks with the known layout, or 0 if none is known."""
LEARNT: Final = 2
_SPANS: Final = 3
"""The spans, relative to the start of a block."""
FACTS: Final = _SPANS + prop.SPANS
"""Entries of an array of facts. All are zero at first."""

Integers = npt.NDArray[np.int64]


@part
def scan(a: Bytes, start: int, end: int, spans: Integers, seen: Integers, texts: Bytes, facts: Integers) -> int:
    """Return the result of `properties.scan`, with the layout remembered in `texts` and `facts`."""
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
    """Return whether the block of `n` bytes at `start` has the known layout, and no value holds a stop.

    The loop has only byte operations and no branch, so that it is compiled to vectors.
    """
    p = np.uint64(start)
    different = np.uint8(0)
    for i in range(np.uint64(n)):
        c = a[p + i]
        mask = texts[i + np.uint64(_MASK)]
        stops = np.uint8(np.uint8(c - np.uint8(3)) | c)  # its highest bit is 1 for bytes below 3 and above 127
        wrong = np.uint8(np.uint8(c & mask) ^ texts[i]) | np.uint8(stops & np.uint8(~mask & np.uint8(128)))
        different = np.uint8(different | wrong)
    return different == 0


@part
def _learn(a: Bytes, start: int, end: int, spans: Integers, texts: Bytes, facts: Integers) -> int:
    """Learn the layout of a regular block, unless a value holds the byte that ends a name."""
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
