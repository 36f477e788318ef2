"""Checks of the settings that are sizes of files and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheelmq.formats.disk.message import BLANK_BYTES, TOPIC_BYTES_MAX, record_bytes
from wheelmq.formats.disk.properties import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings


def body_size_warning(settings: BrokerSettings) -> str | None:
    """Return why a body of `body_bytes_max` bytes may not fit into a log file; None when it always fits."""
    needed = record_bytes(TOPIC_BYTES_MAX, settings.body_bytes_max, PROPERTIES_BYTES_MAX) + BLANK_BYTES
    if needed <= settings.log_file_bytes:
        return None
    return (
        f"body_bytes_max is {settings.body_bytes_max}, and a log file has {settings.log_file_bytes} bytes "
        f"(log_file_bytes). A body of that length with topic and properties needs up to {needed} bytes. The broker "
        "refuses messages that are longer than a log file. Set a smaller body_bytes_max, or begin a new store with a "
        "larger log_file_bytes"
    )
