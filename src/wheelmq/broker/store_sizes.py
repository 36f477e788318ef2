"""The file sizes that tasks of the pipeline need to read a store."""

from __future__ import annotations

from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.timer.view import StoreSizes


def store_sizes(settings: BrokerSettings) -> StoreSizes:
    return StoreSizes(
        settings.store.log_file_bytes,
        settings.store.queue_file_bytes,
        settings.timer.log_file_bytes,
        settings.timer.slots,
        settings.blocks.queue_file_bytes,
    )
