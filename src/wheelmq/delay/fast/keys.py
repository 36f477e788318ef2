"""Insert pairs into the key index. Twin: the loop in `delay.keys.KeyIndex`."""

from __future__ import annotations

from wheelmq.formats.kernels.jit import kernel
from wheelmq.formats.kernels.topics import Integers


@kernel
def insert(table_hashes: Integers, table_origins: Integers, hashes: Integers, origins: Integers) -> int:
    """Insert each pair with a hash other than 0 at the first free place from its hash. Returns their number."""
    mask = table_hashes.shape[0] - 1
    count = 0
    for i in range(hashes.shape[0]):
        if hashes[i] == 0:
            continue
        at = hashes[i] & mask
        while table_hashes[at] != 0:
            at = (at + 1) & mask
        table_hashes[at] = hashes[i]
        table_origins[at] = origins[i]
        count += 1
    return count
