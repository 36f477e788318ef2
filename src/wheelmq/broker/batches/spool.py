"""The uploaded chunks of batches, and the decisions about them, in files of their own. Jobs run on a worker.

An upload and a decision are on disk before their answer. So a decided batch is complete without its sender.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator

import msgspec

from wheelmq.broker.batches.cursor import TopicChunk
from wheelmq.formats.disk.batch import (
    BatchDecision,
    BatchId,
    BatchPart,
    RowsWrong,
    UploadedChunk,
    decode_chunk,
    encode_chunk,
    row_ends,
)
from wheelmq.formats.disk.paths import BatchPaths, StorePaths
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)


class UploadWrong(ValueError):
    """A part that a commit names was not uploaded like this. The text names it."""


class Spool:
    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._disk = disk
        self._paths = paths

    def batch_keys(self) -> list[str]:
        """Return the keys of all batches with files."""
        return self._disk.list(self._paths.batches)

    def decisions(self) -> list[BatchDecision]:
        """Return the decisions of all batches. One that cannot be read is logged and left out."""
        found = []
        for key in self.batch_keys():
            raw = self._disk.read(self._files(key).decision)
            if raw is None:
                continue
            try:
                found.append(msgspec.json.decode(raw, type=BatchDecision))
            except msgspec.DecodeError as error:
                log.error("%s cannot be read: %s", self._files(key).decision, error)
        return found

    def save_job(self, batch: BatchId, part: BatchPart, number: int, chunk: UploadedChunk) -> Callable[[], None]:
        """Return the job that saves chunk `number` of a part."""
        path, data = self._files(batch.key).chunk(part.part, part.attempt, part.topic, number), encode_chunk(chunk)

        def job() -> None:
            self._disk.replace(path, data)
            reach("batch.saved")

        return job

    def decide_job(self, decision: BatchDecision) -> Callable[[], None]:
        """Return the job that checks all uploads of a decision and saves it. It raises UploadWrong, OSError."""

        def job() -> None:
            for part in decision.parts:
                self._check(decision.id, part)
            reach("batch.checked")
            self._disk.replace(self._files(decision.id.key).decision, msgspec.json.encode(decision))
            reach("batch.decided")

        return job

    def remove_job(self, key: str) -> Callable[[], None]:
        """Return the job that removes all files of a batch, and the decision last."""
        files = self._files(key)

        def job() -> None:
            names = self._disk.list(files.folder)
            for name in sorted(names, key=lambda one: one == files.decision.name):
                self._disk.remove(files.folder / name)
                reach("batch.removed")
            self._disk.remove_folder(files.folder)

        return job

    def chunks(self, decision: BatchDecision) -> Iterator[TopicChunk]:
        """Yield the chunks of a decided batch in their order. Raises UploadWrong, OSError."""
        for part in decision.parts:
            for number in range(part.chunks):
                yield TopicChunk(part.topic, self._chunk(decision.id, part, number))

    def _check(self, batch: BatchId, part: BatchPart) -> None:
        crc = count = 0
        for number in range(part.chunks):
            chunk = self._chunk(batch, part, number)
            crc = zlib.crc32(chunk.rows, crc)
            try:
                count += len(row_ends(chunk.rows))
            except RowsWrong as error:
                raise UploadWrong(f"{_name(part)}, chunk {number}: {error}") from None
        if (count, crc) != (part.rows, part.crc):
            raise UploadWrong(
                f"{_name(part)} has {count} rows with crc {crc} here, and the commit names {part.rows} with {part.crc}"
            )

    def _chunk(self, batch: BatchId, part: BatchPart, number: int) -> UploadedChunk:
        raw = self._disk.read(self._files(batch.key).chunk(part.part, part.attempt, part.topic, number))
        if raw is None:
            raise UploadWrong(f"{_name(part)} has no chunk {number} here: upload it again")
        try:
            return decode_chunk(raw)
        except RowsWrong as error:
            raise UploadWrong(f"{_name(part)}, chunk {number}: {error}") from None

    def _files(self, key: str) -> BatchPaths:
        return BatchPaths(self._paths.batches / key)


def _name(part: BatchPart) -> str:
    return f"part {part.part}, attempt {part.attempt}, topic {part.topic}"
