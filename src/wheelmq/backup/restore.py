"""Write a store from the objects of a target, and verify it.

The store is written into a folder beside the wanted one, which gets its name at the end. So a folder with the wanted
name is always a whole store.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from wheelmq.backup.capture import folder_of
from wheelmq.backup.index import COMMIT_LOG, Chunk, FileSizes
from wheelmq.backup.objects import TargetDamaged, unpack
from wheelmq.backup.plan import Plan
from wheelmq.backup.scanning import end_by, files_scan, rows_of
from wheelmq.backup.tally import StoreCounts, Tally
from wheelmq.backup.target import Target
from wheelmq.delay.blocks.block import LOG_STEP_BYTES, QUEUE_STEP_BYTES
from wheelmq.delay.blocks.queue import BlockQueue
from wheelmq.delay.refs import is_long
from wheelmq.delay.timer.mark import Mark, MarkFile, check_is_apaches
from wheelmq.delay.timer.snapshot import load_done
from wheelmq.formats.disk.block import BLOCK_CHECKPOINT_SLOT_BYTES, FLAG_LONG, BlockCheckpoint
from wheelmq.formats.disk.checkpoint import CHECKPOINT, CHECKPOINT_FILE_BYTES
from wheelmq.formats.disk.paths import BlockPaths, StorePaths
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.names import topic_problem
from wheelmq.formats.units import Millis, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.queues import STEP_BYTES
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach

RESTORING: Final = ".restoring"
"""The end of the name of the folder that is being written."""

Progress = Callable[[int, int], None]
"""Called with the bytes that are written, and their total."""


class FolderInUse(OSError):
    """The wanted folder is not empty."""


class Restored(NamedTuple):
    """A restored store."""

    counts: StoreCounts
    log_start: int
    log_end: int
    last_ms: int
    """Store time of the last record of the commit log; 0 without one."""
    files: int
    sizes: FileSizes


class Restore:
    """Writes one store."""

    def __init__(self, target: Target, plan: Plan, disk: Disk, progress: Progress) -> None:
        self._target = target
        self._plan = plan
        self._disk = disk
        self._progress = progress
        self._paths = StorePaths(Path())
        self._streams: dict[str, MappedSequence] = {}
        self._ends: dict[str, int] = {}
        """Ends of the written streams."""
        self._last_ms = 0

    def run(self, root: Path) -> Restored:
        """Write the store to `root`, and verify it. Raises FolderInUse, TargetDamaged, OSError."""
        check_folder(self._disk, root)
        staging = root.with_name(root.name + RESTORING)
        if staging.exists():
            raise FolderInUse(
                errno.EEXIST, "an earlier restore did not end: remove this folder and restore again", str(staging)
            )
        self._paths = StorePaths(staging)
        self._disk.make_folder(staging)
        self._write_logs()
        reach("restore.logs")
        self._write_files()
        self._write_queues()
        tally = Tally(load_done(self._disk, self._paths)[1])
        self._verify_log(tally)
        for name in self._plan.blocks():
            self._finish_block(name, tally)
        self._write_checkpoint()
        reach("restore.verified")
        if root.exists():
            self._disk.remove_folder(root)
        staging.rename(root)
        self._disk.sync_folder(root.parent)
        reach("restore.renamed")
        history, end = self._plan.history, self._ends.get(COMMIT_LOG, 0)
        return Restored(tally.counts(), history.log_start, end, self._last_ms, len(history.files), history.sizes)

    # Logs ----------------------------------------------------------------------------------------------------------

    def _write_logs(self) -> None:
        """Write the chunks of all streams, object by object, and sync them."""
        needed = {name: list(self._plan.needed(name)) for name in (COMMIT_LOG, *self._plan.blocks())}
        history = self._plan.history
        if history.sizes.log:  # a store without a record may have no file
            self._open(COMMIT_LOG, history.log_start, history.log_start + 1)
        for name, chunks in needed.items():
            if chunks:
                self._open(name, chunks[0].chunk.start, chunks[-1].chunk.end)
        by_object: dict[str, list[tuple[Chunk, bool]]] = {}
        for chunks in needed.values():
            for one in chunks:
                by_object.setdefault(one.chunk.object, []).append(one)
        total = sum(one.chunk.end - one.chunk.start for chunks in needed.values() for one in chunks)
        done = 0
        for name, mine in by_object.items():
            content = self._target.read(name)
            for chunk, is_partial in mine:
                self._write(chunk, unpack(content, chunk), is_partial=is_partial)
                done += chunk.end - chunk.start
            self._progress(done, total)
            reach("restore.object")
        for name, files in self._streams.items():
            files.sync_job(files.start, self._ends[name])()

    def _open(self, name: str, start: int, end: int) -> None:
        """Create the files of a stream."""
        sizes = self._plan.history.sizes
        if name == COMMIT_LOG:
            files = MappedSequence(self._disk, self._paths.commit_log, sizes.log)
        else:
            folder = self._block_paths(name).log
            files = MappedSequence(self._disk, folder, sizes.block_log, step_bytes=LOG_STEP_BYTES)
        for position in range(start, end, files.file_bytes):
            files.grow(position)
        self._streams[name] = files
        self._ends[name] = start

    def _write(self, chunk: Chunk, raw: bytes, *, is_partial: bool) -> None:
        """Write a chunk; of a partial one, the records up to the wanted time."""
        if len(raw) != chunk.end - chunk.start:
            raise TargetDamaged(f"{chunk.object}: the chunk at {chunk.start} of {chunk.stream} has another length")
        end = chunk.end
        if is_partial:
            assert self._plan.at_ms is not None
            end = end_by(chunk, raw, self._plan.at_ms)
        if end > chunk.start:
            files = self._streams[chunk.stream]
            at, size = chunk.start % files.file_bytes, end - chunk.start
            files.grow(chunk.start, size).view[at : at + size] = raw[:size]
            self._ends[chunk.stream] = max(self._ends[chunk.stream], end)

    def _verify_log(self, tally: Tally) -> None:
        """Scan the written commit log. Raises TargetDamaged."""
        files, end = self._streams.get(COMMIT_LOG), self._ends.get(COMMIT_LOG, 0)
        if files is None:
            return
        for rows in rows_of(files_scan(files, end), end, str(self._paths.commit_log)):
            tally.add_log(rows)
            self._last_ms = max(self._last_ms, int(rows[-1, col.STORE_MS]))

    # Blocks --------------------------------------------------------------------------------------------------------

    def _block_paths(self, name: str) -> BlockPaths:
        return BlockPaths(self._paths.blocks / folder_of(name))

    def _finish_block(self, name: str, tally: Tally) -> None:
        """Verify the log of a block, and write its queue and its checkpoint. Raises TargetDamaged."""
        history, files, end, paths = self._plan.history, self._streams[name], self._ends[name], self._block_paths(name)
        facts, floor = history.facts[name], history.floor_at(history.log_start)
        queue_bytes = history.sizes.block_queue
        queue = BlockQueue(MappedSequence(self._disk, paths.queue, queue_bytes, step_bytes=QUEUE_STEP_BYTES))
        settled = floor.settled.get(facts.number, b"")
        tally.add_settled(facts.number, settled)
        latest_ms = 0
        for rows in rows_of(files_scan(files, end), end, str(paths.log)):
            due_ms = rows[:, col.DUE_MS]
            flags = np.where(is_long(due_ms - rows[:, col.STORE_MS]), FLAG_LONG, 0)
            queue.add_many(rows[:, col.QUEUE_OFFSET], rows[:, col.POSITION], rows[:, col.SIZE], due_ms, flags)
            tally.add_block(facts.number, rows)
            latest_ms = max(latest_ms, int(due_ms.max()))
        tally.end_block()
        queue.flag_done(np.frombuffer(settled, ">i8").astype(np.int64))
        queue.sync_job()()
        end_ms = facts.end_ms or max(facts.start_ms, latest_ms // 1000 * 1000) + 1000
        known = BlockCheckpoint(facts.number, Millis(facts.start_ms), Millis(end_ms), end, queue.end)
        empty = bytes(BLOCK_CHECKPOINT_SLOT_BYTES)
        self._disk.replace(paths.checkpoint, empty + known.pack(1).ljust(BLOCK_CHECKPOINT_SLOT_BYTES, b"\0"))

    # Files ---------------------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        """Write the files of `config`. The timer indexes its messages again, because its log is not shipped."""
        contents: dict[str, bytes] = {}
        for file in self._plan.history.files.values():
            if file.object not in contents:
                contents[file.object] = self._target.read(file.object)
            self._disk.replace(self._paths.config / file.name, unpack(contents[file.object], file))
        if not check_is_apaches(self._disk, self._paths):
            self._disk.remove(self._paths.config_file("timercheck"))
            mark = MarkFile(self._disk, self._paths)
            known = mark.load() or Mark()
            mark.write(Mark(epoch=known.epoch, turn=known.turn))

    def _write_queues(self) -> None:
        """Create the queues whose records are deleted, so that they continue at their ends."""
        history = self._plan.history
        for topic, queues in history.floor_at(history.log_start).queue_ends.items():
            for queue_id, end in queues.items():
                if topic_problem(topic) or not 0 <= queue_id < 1 << 31:
                    continue
                folder = self._paths.consume_queue(topic, queue_id)
                queue = ConsumeQueue(MappedSequence(self._disk, folder, history.sizes.queue, step_bytes=STEP_BYTES))
                queue.write(QueueOffset(end), np.empty(0, QUEUE_UNIT.dtype))
                queue.sync_job()()

    def _write_checkpoint(self) -> None:
        """Write the checkpoint: the log is on disk, and the next start writes all queue units."""
        body = CHECKPOINT.pack(self._last_ms, 0, 0, 0, 0)
        self._disk.replace(self._paths.checkpoint, body.ljust(CHECKPOINT_FILE_BYTES, b"\0"))
        if self._plan.blocks():
            self._disk.replace(self._paths.abort_scheduled, str(self._disk.owner_id).encode())


def check_folder(disk: Disk, root: Path) -> None:
    """Raise FolderInUse unless `root` is empty or does not exist."""
    if disk.list(root):
        raise FolderInUse(
            errno.ENOTEMPTY, "the folder is not empty: move it away, or choose another folder with --to", str(root)
        )
