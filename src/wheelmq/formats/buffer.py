"""What the codecs read from."""

from __future__ import annotations

from mmap import mmap
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap
