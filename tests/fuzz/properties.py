"""Property blocks: `name \\x01 value \\x02`, repeated.

Rules: no input raises an error. Properties that are written and read again are the same. The reader of one name
agrees with the reader of all names. The kernels report a block as regular only if they find the same properties.
"""

from __future__ import annotations

import numpy as np

from tests.fuzz.kernels import runs_kernels
from wheelmq.formats.disk import properties as props
from wheelmq.formats.kernels import layout
from wheelmq.formats.kernels import properties as prop

TOKENS = (
    b"\x01",
    b"\x02",
    b"\x02\x02",
    b"\x01\x02",
    b"\0",
    b"\xc3\xa9",
    b"\xff",
    *(name.encode() for name in prop.NAMES),
)

_SPLIT = b"\n--\n"
"""Separator of blocks in one input. A kernel caches the layout of the previous block."""


def check(data: bytes) -> None:
    """Read the blocks in order and check the rules."""
    texts, facts = np.full(layout.TEXTS, 7, np.uint8), np.zeros(layout.FACTS, np.int64)
    for block in data.split(_SPLIT):
        text = block.decode("utf-8", "replace")
        found = props.parse(text)
        assert props.parse(props.encode(found).decode()) == found
        assert all(name and value for name, value in found.items())
        stored = props.StoredProperties(text)
        for name in {*found, *prop.NAMES}:
            assert stored.get(name) == found.get(name), name
        if runs_kernels():
            _check_kernels(block, texts, facts)


def _check_kernels(block: bytes, texts: prop.Bytes, facts: layout.Integers) -> None:
    a = np.frombuffer(b"before" + block + b"behind", np.uint8)
    start, end = len(b"before"), len(b"before") + len(block)
    spans, again = np.empty(prop.SPANS, np.int64), np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    outcome = prop.scan(a, start, end, spans, seen)
    assert layout.scan(a, start, end, again, seen, texts, facts) == outcome
    if outcome != prop.REGULAR:
        return
    assert np.array_equal(again, spans)
    pairs = zip(prop.NAMES, spans.reshape(-1, 2).tolist(), strict=True)
    said = {name: a[first:last].tobytes().decode() for name, (first, last) in pairs if first >= 0}
    assert said == {name: value for name, value in props.parse(block.decode()).items() if name in prop.NAMES}
