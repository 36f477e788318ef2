"""Bits by index, in one segment at a time. Twins: `delay.done.IndexBits`, and for origins `delay.done.DoneBits`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.numbers import Bytes
from wheelmq.formats.kernels.topics import Integers


@kernel
def get(segment: Bytes, base: int, floor: int, first: int, indices: Integers, found: npt.NDArray[np.bool_]) -> bool:
    """Read the bits of `indices`, each less `first`, into `found`. A bit below `floor` is 1.

    `segment` begins at index `base`. Returns False if an index is below `first` or in another segment.
    """
    bits = segment.shape[0] << 3
    for i in range(indices.shape[0]):
        index = indices[i] - first
        at = index - base
        if index < 0:
            return False
        if index < floor:
            found[i] = True
        elif at < 0 or at >= bits:
            return False
        else:
            found[i] = (segment[at >> 3] >> (at & 7)) & 1 != 0
    return True


@kernel
def put(segment: Bytes, base: int, floor: int, first: int, indices: Integers) -> int:
    """Set the bits of `indices`, each less `first`, unless below `floor`. Returns the number of bits that were 0.

    Returns -1 and changes nothing if an index is below `first` or in another segment.
    """
    bits = segment.shape[0] << 3
    for i in range(indices.shape[0]):
        index = indices[i] - first
        if index < 0 or (index >= floor and (index < base or index - base >= bits)):
            return -1
    fresh = 0
    for i in range(indices.shape[0]):
        at = indices[i] - first - base
        if at < floor - base:
            continue
        bit = np.uint8(1 << (at & 7))
        if segment[at >> 3] & bit == 0:
            segment[at >> 3] |= bit
            fresh += 1
    return fresh
