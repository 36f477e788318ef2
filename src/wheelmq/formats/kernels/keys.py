"""Put pairs into the key index.

Twin: the loop in `delay.keys.KeyIndex`.
"""

from __future__ import annotations

from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.topics import Integers


@kernel
def insert(table_hashes: Integers, table_indices: Integers, hashes: Integers, indices: Integers) -> None:
    """Put each pair at the first free place from that of its hash on."""
    mask = table_hashes.shape[0] - 1
    for i in range(hashes.shape[0]):
        at = hashes[i] & mask
        while table_hashes[at] != 0:
            at = (at + 1) & mask
        table_hashes[at] = hashes[i]
        table_indices[at] = indices[i]
