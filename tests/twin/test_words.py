"""Loads and stores of integers of several bytes are one instruction in kernels. Their twins are methods of `int`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.kernels.numbers import get32, get64, put32, put64

SIZE = 20


def load(a: Any, p: Any) -> Any:
    return get32(a, p), get64(a, p)


def store32(a: Any, p: int, value: int) -> None:
    put32(a, p, value)


def store64(a: Any, p: int, value: int) -> None:
    put64(a, p, value)


LOAD = njit(load)
STORES = ((4, njit(store32)), (8, njit(store64)))


@given(raw=st.binary(min_size=SIZE, max_size=SIZE), at=st.integers(0, SIZE - 8))
@settings(deadline=None)
def test_a_load_is_big_endian(raw: bytes, at: int) -> None:
    expected = (int.from_bytes(raw[at : at + 4], "big"), int.from_bytes(raw[at : at + 8], "big", signed=True))
    array = np.frombuffer(bytearray(raw), np.uint8)
    assert LOAD(read_only(array), at) == LOAD(array, np.uint64(at)) == expected


@given(value=st.integers(-(1 << 63), (1 << 63) - 1), at=st.integers(0, SIZE - 8))
@settings(deadline=None)
def test_a_store_writes_the_low_bytes_and_nothing_else(value: int, at: int) -> None:
    for size, store in STORES:
        array = np.full(SIZE, 0xAA, np.uint8)
        store(array, at, value)
        expected = bytearray(b"\xaa" * SIZE)
        expected[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
        assert array.tobytes() == bytes(expected)


@pytest.mark.parametrize("at", [-1, SIZE - 7, SIZE])
def test_the_bounds_run_checks_both_ends(at: int) -> None:
    """Otherwise the bounds run (NUMBA_BOUNDSCHECK=1) would not see a wrong index here."""
    checked = njit(boundscheck=True)
    array = np.zeros(SIZE, np.uint8)
    with pytest.raises(IndexError):
        checked(load)(array, at)
    with pytest.raises(IndexError):
        checked(store64)(array, at, 1)


def test_a_store_into_an_array_for_reading_does_not_compile() -> None:
    with pytest.raises(Exception, match="put64"):
        njit(store64)(read_only(np.zeros(SIZE, np.uint8)), 0, 1)
