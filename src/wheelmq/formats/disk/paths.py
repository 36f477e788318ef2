"""All paths of a store. No other module builds one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


def file_name(start: int) -> str:
    return f"{start:020d}"


def file_start(name: str) -> int | None:
    return int(name) if len(name) == 20 and name.isascii() and name.isdigit() else None


@dataclass(frozen=True, slots=True)
class StorePaths:
    root: Path

    @property
    def abort(self) -> Path:
        """Exists while a broker runs on the store. At a start it shows that the last stop was not clean."""
        return self.root / "abort"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    @property
    def consume_queues(self) -> Path:
        return self.root / "consumequeue"

    @property
    def consume_queues_ext(self) -> Path:
        """The extension of the queue units that Apache RocketMQ writes with enableConsumeQueueExt."""
        return self.root / "consumequeue_ext"

    def consume_queue(self, topic: str, queue_id: int) -> Path:
        return self.consume_queues / topic / str(queue_id)

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def timer_wheel(self) -> Path:
        return self.root / "timerwheel"

    @property
    def timer_log(self) -> Path:
        return self.root / "timerlog"

    @property
    def abort_scheduled(self) -> Path:
        """Ours: exists while no broker runs on the blocks, if the last broker stopped cleanly (unlike `abort`)."""
        return self.root / "abort.scheduled"

    @property
    def blocks(self) -> Path:
        """Ours: a folder for each block (see formats.disk.block)."""
        return self.root / "scheduledtempdata"

    @property
    def batches(self) -> Path:
        """Ours: a folder for each batch that is uploaded and not yet appended (see BatchPaths)."""
        return self.root / "batches"

    @property
    def batch_layouts(self) -> Path:
        """Ours: a file for each job with the layout of its last batch (see BatchLayout)."""
        return self.root / "batchlayouts"

    @property
    def epochs(self) -> Path:
        """The epochs of the log, each with its first position (RocketMQ: epochFileCheckpoint)."""
        return self.root / "epochFileCheckpoint"

    @property
    def broker_identity(self) -> Path:
        """The id that a controller assigned to this store (RocketMQ: brokerIdentity)."""
        return self.root / "brokerIdentity"

    @property
    def broker_identity_temporary(self) -> Path:
        """The application for an id that has no answer yet (RocketMQ: brokerIdentity-temp)."""
        return self.root / "brokerIdentity-temp"

    @property
    def replication_role(self) -> Path:
        """Ours: the role that the broker took after its first start."""
        return self.config / "replicationRole.json"

    @property
    def hidden_tail(self) -> Path:
        """Ours: the log position from which on consumers do not see the log yet (see store.hidden_tail)."""
        return self.config / "hiddenTail"

    @property
    def ship(self) -> Path:
        """Ours: a file for each target of `wheelmq ship` (see store.ship_status)."""
        return self.root / "ship"

    @property
    def apache_master(self) -> Path:
        """Ours: exists while a master of Apache RocketMQ writes the log, and this store follows it."""
        return self.config / "apacheMaster.json"

    @property
    def config(self) -> Path:
        return self.root / "config"

    def config_file(self, name: str) -> Path:
        return self.config / name

    @property
    def timer_mark(self) -> Path:
        """Ours: the durable mark of the timer (see formats.disk.timer.TIMER_MARK)."""
        return self.config / "timermark"

    @property
    def timer_done(self) -> Path:
        """Ours: the messages settled before the store was adopted (see formats.disk.timer.TIMER_DONE)."""
        return self.config / "timerdone"

    @property
    def snapshot(self) -> Path:
        """Ours: the state of the log at one position (see formats.disk.snapshot)."""
        return self.config / "snapshot"


@dataclass(frozen=True, slots=True)
class BatchPaths:
    folder: Path

    @property
    def decision(self) -> Path:
        return self.folder / "decision"

    def chunk(self, part: int, attempt: int, topic: str, number: int) -> Path:
        return self.folder / f"{part}-{attempt}-{number}-{topic}"


@dataclass(frozen=True, slots=True)
class BlockPaths:
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def queue(self) -> Path:
        return self.folder / "queue"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"
