"""`checkpoint`: the parts of log, queues and index that are known to be on disk (RocketMQ: StoreCheckpoint)."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.field import Field, Layout

CHECKPOINT: Final = Layout(
    "checkpoint",
    Field("log_ms", "int64", "store time of the last record known to be on disk"),
    Field("queues_ms", "int64", "store time of the last record whose queue unit is known to be on disk"),
    Field("index_ms", "int64", "store time of the last record whose index entry is known to be on disk"),
    Field("master_flushed_position", "int64", "log position up to which the master has flushed"),
    Field("confirm_position", "int64", "log position confirmed by the replicas in sync"),
)

CHECKPOINT_FILE_BYTES: Final = 4096
