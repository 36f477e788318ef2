"""Sizes and times of a shipper."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class ShipSettings:
    """The limits that keep objects neither many nor long.

    A busy broker makes a capture every interval. A small capture is one object, so that one request stores it. The
    captures of some minutes are merged. A large capture goes into objects of its own, and is never stored twice.
    """

    step_bytes_max: int = 32 * MIB
    """Bytes of records per capture. A shipper with a backlog makes one capture after another."""
    piece_bytes: int = 4 * MIB
    """Bytes of records per chunk of a capture, up to the end of a record."""
    small_bytes_max: int = 2 * MIB
    """Compressed bytes of a capture that is stored as one object."""
    merged_count: int = 512
    """Small captures that are merged."""
    merged_bytes: int = 16 * MIB
    """Compressed bytes of small captures that are merged."""
    merged_ms: int = 300_000
    """Age of the oldest small capture at which they are merged."""
    chunk_bytes: int = MIB
    """Consecutive chunks are joined up to this size when captures are merged."""
    objects_of_points: int = 128
    """Number of objects with points that are merged into one."""
    expiry_interval_ms: int = 3_600_000
    """Time between two removals of expired chunks."""
    keep_ms: int | None = None
    """The time for which each moment can be restored; None for all time."""
