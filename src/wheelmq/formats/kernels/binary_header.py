"""Read the binary header of SEND_MESSAGE_V2 (RocketMQ: RocketMQSerializable) into the array of the JSON one.

```
| code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark length 4, remark | ext length 4, pairs |
pair: | key length 2, key | value length 4, value |
```

Twin: `formats.wire.frame.decode`. The kernel accepts the requests that the JSON kernel accepts. It requires:

- no remark, and pairs that fill the header to its end;
- ASCII without quotes, backslashes and control characters, except the separators of properties;
- no one-letter field twice.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels.jit import part
from wheelmq.formats.kernels.json_header import (
    CODE,
    ESCAPED,
    FIELDS,
    FLAG,
    LETTERS,
    OPAQUE,
    PROPERTIES_LETTER,
    STOPS,
    VERSION,
)
from wheelmq.formats.kernels.numbers import Bytes, get32

_FIXED_BYTES: Final = 21
"""Bytes from code to flag, and the lengths of an empty remark and of the pairs."""
_INT32_MAX: Final = 2147483647


@part
def _is_plain(a: Bytes, start: int, end: int, separators: bool) -> bool:
    """Return whether a[start:end] has no stop byte of the JSON kernel. `separators` allows those of properties."""
    p = np.uint64(start)  # an unsigned index needs no check for a negative one
    stop = np.uint64(end)
    while p < stop:
        if STOPS[a[p]] != 0 and not (separators and (a[p] == 1 or a[p] == 2)):
            return False
        p += np.uint64(1)
    return True


@part
def read_binary_header(a: Bytes, p: int, end: int, h: npt.NDArray[np.int64]) -> bool:
    """Fill `h` from the header a[p:end]. Returns False if the header has another form."""
    for i in range(LETTERS):
        h[FIELDS + 2 * i] = -1
        h[ESCAPED + i] = 0
    if end - p < _FIXED_BYTES:
        return False
    h[CODE] = (np.int64(a[p]) << 8) | np.int64(a[p + 1])
    h[VERSION] = (np.int64(a[p + 3]) << 8) | np.int64(a[p + 4])
    h[OPAQUE] = get32(a, p + 5)
    h[FLAG] = get32(a, p + 9)
    if h[OPAQUE] > _INT32_MAX or get32(a, p + 13) != 0 or get32(a, p + 17) != end - p - _FIXED_BYTES:
        return False
    p += _FIXED_BYTES
    while p < end:
        if end - p < 2:
            return False
        key = p + 2
        key_end = key + ((np.int64(a[p]) << 8) | np.int64(a[p + 1]))
        if end - key_end < 4:
            return False
        value = key_end + 4
        value_end = value + get32(a, key_end)
        if value_end > end or not _is_plain(a, key, key_end, False):
            return False
        letter = np.int64(-1)
        if key_end - key == 1:
            letter = np.int64(a[key]) - 97
            if letter < 0 or letter >= LETTERS or h[FIELDS + 2 * letter] >= 0:
                return False
            h[FIELDS + 2 * letter] = value
            h[FIELDS + 2 * letter + 1] = value_end
        if not _is_plain(a, value, value_end, letter == PROPERTIES_LETTER):
            return False
        p = value_end
    return True
