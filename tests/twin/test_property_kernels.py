"""The kernels that scan property blocks find the values of the plain parser, whatever layouts they remember."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import jit

from wheelmq.formats.disk import properties as props
from wheelmq.formats.kernels import layout
from wheelmq.formats.kernels import properties as prop

PLACES = ("TAGS", "KEYS", "UNIQ_KEY", "REAL_TOPIC", "own", "other", "OWN", "long" * 10)
LETTERS = st.sampled_from("aB0=\xe9\x01\x02\x00")
"""Replacement bytes for a block, as Latin-1 characters."""


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    """Successive blocks of a few layouts, some with wrong bytes."""
    layouts = draw(
        st.lists(st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 5)), max_size=5), min_size=1, max_size=3)
    )
    found = []
    for chosen in draw(st.lists(st.sampled_from(layouts), max_size=40)):
        letter = draw(st.sampled_from("abc"))
        block = bytearray("".join(f"{name}\x01{letter * length}\x02" for name, length in chosen).encode())
        if draw(st.booleans()) and block:
            block.pop()
        for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2))) if block else 0):
            block[draw(st.integers(0, len(block) - 1))] = ord(draw(LETTERS))
        found.append(bytes(block))
    return found


@given(found=blocks())
@settings(max_examples=300, deadline=None)
def test_a_known_layout_is_read_like_an_unknown_one(found: list[bytes]) -> None:
    a = np.frombuffer(b"before" + b"".join(found) + b"behind", np.uint8)
    spans, again = np.empty(prop.SPANS, np.int64), np.empty(prop.SPANS, np.int64)
    seen = np.empty(2 * prop.PAIRS_MAX, np.int64)
    texts, facts = np.full(layout.TEXTS, 7, np.uint8), np.zeros(layout.FACTS, np.int64)
    at = len(b"before")
    for block in found:
        end = at + len(block)
        outcome = prop.scan(a, at, end, spans, seen)
        assert layout.scan(a, at, end, again, seen, texts, facts) == outcome
        if outcome == prop.REGULAR:
            assert np.array_equal(again, spans)
            assert values(a, spans) == {k: v for k, v in props.parse(block.decode()).items() if k in prop.NAMES}
        at = end


def values(a: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> dict[str, str]:
    """Return the values at the spans, by name."""
    pairs = zip(prop.NAMES, spans.reshape(-1, 2).tolist(), strict=True)
    return {name: a[start:end].tobytes().decode() for name, (start, end) in pairs if start >= 0}


def test_a_layout_is_known_after_two_blocks() -> None:
    """Otherwise the memory of layouts would never help."""
    a = np.frombuffer(b"".join(b"TAGS\x01tag %d\x02own\x01x\x02" % i for i in range(9)), np.uint8)
    n = len(a) // 9
    spans, seen = np.empty(prop.SPANS, np.int64), np.empty(2 * prop.PAIRS_MAX, np.int64)
    texts, facts = np.zeros(layout.TEXTS, np.uint8), np.zeros(layout.FACTS, np.int64)
    for i in range(9):
        assert layout.scan(a, i * n, i * n + n, spans, seen, texts, facts) == prop.REGULAR
        assert spans[2 * prop.TAGS] == i * n + 5
    assert facts[layout.KNOWN_BYTES] == n and facts[layout.LEARNT] == 1


def test_an_inlined_kernel_counts_no_references() -> None:
    """Two atomic operations for each array at each call would take two fifths of a release."""
    a = np.zeros(8, np.uint8)
    fresh = jit(**prop._same.targetoptions)(prop._same.py_func)  # a cached kernel cannot be inspected
    fresh(a, 0, 4, 4)
    (code,) = fresh.inspect_llvm().values()
    assert "NRT_incref" not in code and "NRT_decref" not in code
