"""The settings of the store: its files, the index of messages, and the expiry of old files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from wheelmq.config.bounds import INT_MAX, Count, Percent, Positive
from wheelmq.config.setting import Setting, SettingsTable
from wheelmq.formats.disk.index import SLOTS as HASH_SLOTS
from wheelmq.formats.disk.index import UNITS as INDEX_UNITS
from wheelmq.formats.disk.index import IndexSize
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT

LOG_FILE_BYTES_MIN: Final = 4096
"""The shortest log file: it holds a small message with everything that delivery adds."""

LogFileBytes = Annotated[int, Meta(ge=LOG_FILE_BYTES_MIN, le=INT_MAX)]
QueueFileBytes = Annotated[int, Meta(ge=QUEUE_UNIT.size, le=INT_MAX, multiple_of=QUEUE_UNIT.size)]


class StoreSettings(SettingsTable, kw_only=True):
    """[store]: the files of the log and of the queues, and what a start finds faster."""

    path: Annotated[Path, Setting("store_path", "storePathRootDir")]
    log_file_bytes: Annotated[LogFileBytes, Setting("log_file_bytes", "mappedFileSizeCommitLog")] = 1 << 30
    log_files_ahead: Annotated[int, Meta(ge=0, le=2), Setting("log_files_ahead")] = 2
    """Number of log files that are created before the log reaches them. Fewer files leave more space on a small disk.
    """
    log_files_warm: Annotated[bool, Setting("warm_maped_file_enable", "warmMapedFileEnable")] = False
    """Populate whole log files when they are created ahead, and lock them in memory until the log has left them.
    Without the permission to lock (ulimit -l) the broker logs a WARNING, and only populates them."""
    queue_file_bytes: Annotated[QueueFileBytes, Setting("queue_file_bytes", "mappedFileSizeConsumeQueue")] = (
        300_000 * 20
    )
    mapped_queue_files_max: Annotated[Positive, Setting("mapped_queue_files_max")] = 4096
    """Number of unused consume queue files that stay mapped."""
    checkpoint_ms: Annotated[Positive, Setting("checkpoint_ms")] = 3000
    snapshot_ms: Annotated[Positive, Setting("snapshot_ms")] = 30_000
    snapshot_log_bytes: Annotated[int, Meta(ge=1, le=1 << 50), Setting("snapshot_log_bytes")] = 16 << 20
    """Growth of the log after which the broker writes a new snapshot for the next start. With less growth it writes
    one after `snapshot_ms`. Two snapshots are at least `checkpoint_ms` apart."""


class IndexSettings(SettingsTable, kw_only=True):
    """[index]: the index of messages by their keys."""

    enable: Annotated[bool, Setting("message_index_enable", "messageIndexEnable")] = True
    slots: Annotated[Positive, Setting("max_hash_slot_num", "maxHashSlotNum")] = HASH_SLOTS
    units: Annotated[int, Meta(ge=2, le=INT_MAX), Setting("max_index_num", "maxIndexNum")] = INDEX_UNITS
    """Number of entries in an index file. With Apache's numbers of slots and entries a file has 420 MB. The maximum
    is 2147483647 bytes."""

    @property
    def size(self) -> IndexSize:
        return IndexSize(self.slots, self.units)

    def check(self) -> None:
        """Check that an index file is not too long."""
        if self.size.file_bytes > INT_MAX:
            raise ValueError(
                f"max_hash_slot_num is {self.slots} and max_index_num is {self.units}: an index file would have "
                f"{self.size.file_bytes} bytes, and the limit is {INT_MAX} bytes; set fewer slots (4 bytes each) or "
                "fewer entries (20 bytes each)"
            )


class ExpirySettings(SettingsTable, kw_only=True):
    """[expiry]: when the broker deletes old files."""

    reserved_hours: Annotated[Count, Setting("file_reserved_time", "fileReservedTime", mutable=True)] = 72
    """Minimum age in hours of a deleted log file, unless the disk is nearly full."""
    delete_when: Annotated[
        str,
        Setting(
            "delete_when", "deleteWhen", mutable=True, narrower="hours from 00 to 23, with semicolons between them"
        ),
    ] = "04"
    """Hours of the day at which the broker deletes old log files."""
    used_percent: Annotated[Percent, Setting("disk_max_used_space_ratio", "diskMaxUsedSpaceRatio", mutable=True)] = 75
    forcibly_percent: Annotated[
        Percent, Setting("disk_space_clean_forcibly_ratio", "diskSpaceCleanForciblyRatio", mutable=True)
    ] = 85
    forcibly_enable: Annotated[bool, Setting("clean_file_forcibly_enable", "cleanFileForciblyEnable", mutable=True)] = (
        True
    )
    """Delete log files of any age from `disk_space_clean_forcibly_ratio` on. Otherwise only old files are deleted."""
    refuse_percent: Annotated[
        Percent, Setting("disk_space_warning_level_ratio", "diskSpaceWarningLevelRatio", mutable=True)
    ] = 90
    """Percent of the disk in use above which sends are rejected. Due messages are still released."""
    files_max: Annotated[Positive, Setting("delete_file_batch_max", "deleteFileBatchMax", mutable=True)] = 10
    interval_ms: Annotated[Positive, Setting("clean_resource_interval_ms", "cleanResourceInterval")] = 10_000

    @property
    def hours(self) -> frozenset[int]:
        """Hours of local time."""
        return hours_of("delete_when", self.delete_when)

    def check(self) -> None:
        hours_of("delete_when", self.delete_when)


def hours_of(name: str, text: str) -> frozenset[int]:
    """Return the hours that the setting `name` has: two digits each, separated by `;`. Raises ValueError."""
    words = text.split(";")
    if not all(len(word) == 2 and word.isdecimal() and int(word) < 24 for word in words):
        raise ValueError(f"{name} is {text!r}: write hours from 00 to 23, such as 04 or 04;16")
    return frozenset(map(int, words))
