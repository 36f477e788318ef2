"""The disk of the store, the process of the broker, and the sizes of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.metrics.builder import FamilyBuilder, FamilySteps
from wheelmq.formats.wire.metric_families import MetricFamily
from wheelmq.system.process_figures import process_figures


def machine_families(sources: MetricSources, build: FamilyBuilder, build_of_storage: FamilyBuilder) -> FamilySteps:
    """Yield the families of disk, tables and process."""
    yield from _disk(sources, build_of_storage)
    yield build.gauge(
        "rocketmq_broker_permission",
        "1 is inherit, 2 is write, 4 is read: the sum of what clients may do",
        sources.settings.broker.permission,
    )
    yield build.gauge("rocketmq_topic_number", "Topics, with those of the broker", len(sources.topics.all()))
    yield build.gauge(
        "rocketmq_consumer_group_number", "Consumer groups", len(sources.groups.table().subscription_group_table)
    )
    yield from _process(build)


def _disk(sources: MetricSources, build: FamilyBuilder) -> Iterator[MetricFamily]:
    store = sources.engine.store
    total, free = store.disk.space(store.paths.root)
    used_share = store.disk.used_share(store.paths.root)
    yield build.gauge("rocketmq_storage_size", "Used bytes of the disk that holds the store", round(total * used_share))
    yield build.gauge("wheelmq_disk_bytes", "Bytes of the disk that holds the store", total)
    yield build.gauge("wheelmq_disk_free_bytes", "Free bytes of the disk that holds the store", free)
    yield build.gauge("wheelmq_disk_used_ratio", "Used share of the disk that holds the store", used_share)
    first_ms = store.log.head_store_ms(store.log.start)
    if first_ms is not None:
        age_ms = max(0, sources.clock.now_ms() - first_ms)
        yield build.gauge("rocketmq_storage_message_reserve_time", "Age of the oldest record, milliseconds", age_ms)


def _process(build: FamilyBuilder) -> Iterator[MetricFamily]:
    """Yield the figures of the process, under the names of Prometheus' client libraries."""
    found = process_figures()
    if found is None:
        return
    yield build.total("process_cpu_seconds", "Processor time of the broker", found.processor_s)
    yield build.gauge("process_resident_memory_bytes", "Memory of the broker in RAM", found.resident_bytes)
    yield build.gauge("process_virtual_memory_bytes", "Memory of the broker, with mapped files", found.virtual_bytes)
    yield build.gauge("process_open_fds", "Open files and sockets", found.open_files)
    yield build.gauge("process_max_fds", "Greatest number of open files and sockets", found.open_files_max)
    yield build.gauge("process_threads", "Threads of the broker", found.threads)
    yield build.gauge("process_start_time_seconds", "Start of the broker, in seconds since 1970", found.start_s)
