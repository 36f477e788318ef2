"""The bits of a filter in a bit map of filters (RocketMQ: BloomFilter, BloomFilterData).

Apache RocketMQ ignores config/consumerFilter.json if they differ from its own. WheelMQ has no bit maps.
"""

from __future__ import annotations

from typing import Final

BITS: Final = 112
"""For 32 consumers (expectConsumerNumUseFilter) and an error rate of 20 % (maxErrorRateOfBloomFilter)."""
BITS_EACH: Final = 3

_U32: Final = (1 << 32) - 1
_U64: Final = (1 << 64) - 1
_C1: Final = 0x87C3_7B91_1142_53D5
_C2: Final = 0x4CF5_AD43_2745_937F


def bit_positions(text: str) -> tuple[int, ...]:
    """Return the bit positions of `text`, from the two halves of its hash."""
    whole = murmur3(text.encode())
    positions = []
    for i in range(1, BITS_EACH + 1):
        combined = ((whole & _U32) + i * (whole >> 32)) & _U32
        positions.append((combined if combined < 1 << 31 else combined ^ _U32) % BITS)
    return tuple(positions)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0, as an unsigned number."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        h1 ^= _mix_first(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DC_E729) & _U64
        h2 ^= _mix_second(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x3849_5AB5) & _U64
    h1 ^= _mix_first(int.from_bytes(data[whole : whole + 8], "little"))
    h2 ^= _mix_second(int.from_bytes(data[whole + 8 :], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _U64
    h2 = (h2 + h1) & _U64
    return (_finish(h1) + _finish(h2)) & _U64


def _mix_first(k: int) -> int:
    return _rotate(k * _C1 & _U64, 31) * _C2 & _U64


def _mix_second(k: int) -> int:
    return _rotate(k * _C2 & _U64, 33) * _C1 & _U64


def _rotate(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _U64


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51_AFD7_ED55_8CCD & _U64
    value = (value ^ value >> 33) * 0xC4CE_B9FE_1A85_EC53 & _U64
    return value ^ value >> 33
