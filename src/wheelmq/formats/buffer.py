"""The types of bytes that the codecs read."""

from __future__ import annotations

from mmap import mmap
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap
