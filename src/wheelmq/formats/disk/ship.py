"""Objects of a shipped store (ours): compressed chunks of its logs, then an index.

    +------+--------+--------+-----+-----------------------+------+
    | head | chunk  | chunk  | ... | index, JSON with zstd | foot |
    +------+--------+--------+-----+-----------------------+------+

A target holds whole objects only, and an object never changes. A reader begins at the foot.

Version rule: a change of a layout or of the meaning of the index takes another version.
"""

from __future__ import annotations

from typing import Final

from wheelmq.formats.field import Field, Layout

SHIP_HEAD: Final = Layout(
    "head of a shipped object",
    Field("magic", "int32", "0x574D5153, WMQS"),
    Field("version", "int32", "1"),
)
SHIP_FOOT: Final = Layout(
    "foot of a shipped object",
    Field("index_position", "int64", "byte at which the index begins"),
    Field("index_bytes", "int32", "length of the compressed index"),
    Field("index_crc", "uint32", "crc32 of the compressed index"),
    Field("magic", "int32", "0x574D5146, WMQF"),
)
SHIP_MAGIC: Final = 0x574D5153
SHIP_END_MAGIC: Final = 0x574D5146
SHIP_VERSION: Final = 1
