"""Integers in bytes, texts of integers, checksums and hashes. Put and copy functions return the byte after.

Twins: `int.to_bytes`, `str(int)`, `zlib.crc32`, `formats.java.java_hash`, `formats.disk.parked.key_hash`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk import parked
from wheelmq.formats.kernels.jit import inline, part
from wheelmq.formats.kernels.words import load_of, store_of

Bytes = npt.NDArray[np.uint8]


def _crc_table() -> npt.NDArray[np.uint32]:
    """Return eight tables of 256 entries, for slicing-by-8 over the reflected polynomial 0xEDB88320."""
    table = np.zeros((8, 256), np.uint32)
    for i in range(256):
        value = i
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        table[0, i] = value
    for i in range(256):
        value = int(table[0, i])
        for k in range(1, 8):
            value = int(table[0, value & 255]) ^ value >> 8
            table[k, i] = value
    return table.reshape(-1)


CRC_TABLE = _crc_table()


def literal(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8).copy()


@load_of(4)
def get32(a: Bytes, p: int) -> int:
    """Return 32 bits, big-endian and unsigned."""
    return (np.int64(a[p]) << 24) | (np.int64(a[p + 1]) << 16) | (np.int64(a[p + 2]) << 8) | np.int64(a[p + 3])


@inline
def signed32(value: int) -> int:
    return value - 4294967296 if value >= 2147483648 else value


@load_of(8)
def get64(a: Bytes, p: int) -> int:
    """Return 64 bits, big-endian and signed."""
    return (get32(a, p) << 32) | get32(a, p + 4)


@store_of(4)
def put32(a: Bytes, p: int, value: int) -> None:
    """Write the low 32 bits, big-endian."""
    a[p] = np.uint8((value >> 24) & 255)
    a[p + 1] = np.uint8((value >> 16) & 255)
    a[p + 2] = np.uint8((value >> 8) & 255)
    a[p + 3] = np.uint8(value & 255)


@store_of(8)
def put64(a: Bytes, p: int, value: int) -> None:
    """Write 64 bits, big-endian."""
    put32(a, p, value >> 32)
    put32(a, p + 4, value & 0xFFFFFFFF)


@part
def crc32(a: Bytes, start: int, end: int) -> int:
    """Return the checksum of a[start:end], unsigned."""
    c = np.uint32(0xFFFFFFFF)
    low = np.uint32(255)
    one = np.uint64(1)
    p = np.uint64(start)  # an unsigned index needs no check for a negative one
    stop = np.uint64(end)
    while stop - p >= np.uint64(8):
        x = (
            np.uint32(a[p])
            | (np.uint32(a[p + one]) << np.uint32(8))
            | (np.uint32(a[p + np.uint64(2)]) << np.uint32(16))
            | (np.uint32(a[p + np.uint64(3)]) << np.uint32(24))
        ) ^ c
        y = (
            np.uint32(a[p + np.uint64(4)])
            | (np.uint32(a[p + np.uint64(5)]) << np.uint32(8))
            | (np.uint32(a[p + np.uint64(6)]) << np.uint32(16))
            | (np.uint32(a[p + np.uint64(7)]) << np.uint32(24))
        )
        c = (
            CRC_TABLE[np.uint32(1792) + (x & low)]
            ^ CRC_TABLE[np.uint32(1536) + ((x >> np.uint32(8)) & low)]
            ^ CRC_TABLE[np.uint32(1280) + ((x >> np.uint32(16)) & low)]
            ^ CRC_TABLE[np.uint32(1024) + (x >> np.uint32(24))]
            ^ CRC_TABLE[np.uint32(768) + (y & low)]
            ^ CRC_TABLE[np.uint32(512) + ((y >> np.uint32(8)) & low)]
            ^ CRC_TABLE[np.uint32(256) + ((y >> np.uint32(16)) & low)]
            ^ CRC_TABLE[y >> np.uint32(24)]
        )
        p += np.uint64(8)
    while p < stop:
        c = CRC_TABLE[(c ^ np.uint32(a[p])) & low] ^ (c >> np.uint32(8))
        p += one
    return np.int64(c ^ np.uint32(0xFFFFFFFF))


@inline
def equals(a: Bytes, start: int, end: int, text: Bytes) -> bool:
    if end - start != text.shape[0]:
        return False
    for i in range(text.shape[0]):
        if a[start + i] != text[i]:
            return False
    return True


@inline
def copy(source: Bytes, start: int, end: int, target: Bytes, at: int) -> int:
    p = np.uint64(start)
    q = np.uint64(at)
    for i in range(np.uint64(end - start)):  # a plain loop is faster for short texts than an assignment of slices
        target[q + i] = source[p + i]
    return at + end - start


@inline
def put_text(target: Bytes, at: int, text: Bytes) -> int:
    return copy(text, 0, text.shape[0], target, at)


@part
def put_decimal(target: Bytes, at: int, value: int) -> int:
    """Write a number that is not negative in decimal digits."""
    digits = 1
    rest = value
    while rest >= 10:
        rest //= 10
        digits += 1
    u = np.uint64(value)
    for i in range(digits):
        q = u // np.uint64(10)
        target[at + digits - 1 - i] = np.uint8(48 + (u - q * np.uint64(10)))
        u = q
    return at + digits


@inline
def put_digits(target: Bytes, at: int, value: int, count: int) -> int:
    """Write a number that is not negative in exactly `count` digits."""
    u = np.uint64(value)
    for i in range(count):
        q = u // np.uint64(10)
        target[at + count - 1 - i] = np.uint8(48 + (u - q * np.uint64(10)))
        u = q
    return at + count


HEX = literal("0123456789ABCDEF")


@inline
def put_hex(target: Bytes, at: int, value: int) -> int:
    """Write 64 bits as 16 upper-case hex digits."""
    u = np.uint64(value)
    for i in range(16):
        target[at + i] = HEX[np.int64((u >> np.uint64(60 - 4 * i)) & np.uint64(15))]
    return at + 16


@part
def decimal(a: Bytes, start: int, end: int) -> int:
    """Return the number in a[start:end], with 1 to 18 digits and no leading zero. Returns -1 if there is none."""
    n = end - start
    if n < 1 or n > 18 or (n > 1 and a[start] == 48):
        return -1
    value = 0
    for p in range(start, end):
        digit = np.int64(a[p]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@part
def hex_value(a: Bytes, start: int) -> int:
    """Return the 64 bits in 16 upper-case hex digits at `start`, or 0, which is no origin."""
    value = np.int64(0)
    for p in range(start, start + 16):
        c = np.int64(a[p])
        if 48 <= c <= 57:
            digit = c - 48
        elif 65 <= c <= 70:
            digit = c - 55
        else:
            return np.int64(0)
        value = (value << 4) | digit
    return value


@part
def java_hash_ascii(a: Bytes, start: int, end: int) -> int:
    """Return String.hashCode of an ASCII text, signed. Returns 2**40 if a byte is not ASCII."""
    h = np.int64(0)
    for p in range(start, end):
        if a[p] >= 128:
            return np.int64(1) << 40
        h = (h * 31 + np.int64(a[p])) & 0xFFFFFFFF
    return h - 4294967296 if h >= 2147483648 else h


FNV_START = np.uint64(parked.FNV_START)
FNV_PRIME = np.uint64(parked.FNV_PRIME)


@inline
def fnv(h: np.uint64, a: Bytes, start: int, end: int) -> np.uint64:
    """Return FNV-1a with 64 bits, continued from `h`."""
    for p in range(start, end):
        h = (h ^ np.uint64(a[p])) * FNV_PRIME
    return h


@inline
def fnv_byte(h: np.uint64, byte: int) -> np.uint64:
    return (h ^ np.uint64(byte)) * FNV_PRIME
