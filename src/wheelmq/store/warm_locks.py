"""Locks the pages of warm log files in memory (RocketMQ: warmMapedFileEnable, MappedFile.mlock, unlockMappedFile).

A file is locked after its creation and unlocked when the log has left it, so the system reclaims no page in use.
"""

from __future__ import annotations

import logging
from typing import Any

from wheelmq.store.mapped import MappedSequence
from wheelmq.system.mapped_file import MappedFile
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)


class WarmLocks:
    """Locks and unlocks the files of one sequence on a worker. `unlock_before` is called in every tick."""

    def __init__(self, files: MappedSequence, worker: Worker, files_ahead: int) -> None:
        self._files = files
        self._worker = worker
        self._needed_bytes = (files_ahead + 1) * files.file_bytes
        self._locked: list[MappedFile] = []
        self._has_failed = False

    def lock(self, made: list[MappedFile]) -> None:
        def job() -> list[MappedFile]:
            for file in made:
                file.lock()
            return made

        if made:
            self._worker.submit(job, self._take)

    def unlock_before(self, position: int) -> None:
        """Unlock the files that end at or before `position`, the log's end."""
        left = [file for file in self._locked if int(file.path.name) + file.size <= position]
        if not left:
            return
        self._locked = [file for file in self._locked if file not in left]

        def job() -> None:
            for file in left:
                file.unlock()

        self._worker.submit(job, lambda result: None)

    def _take(self, result: Any) -> None:
        if not isinstance(result, BaseException):
            self._locked += result
        elif not self._has_failed:
            self._has_failed = True
            log.warning(
                "warm_maped_file_enable: the broker populates log files and does not lock them in memory: %s. The "
                "memory lock limit of the process is too low: allow %d bytes with ulimit -l, or LimitMEMLOCK of "
                "its service",
                result,
                self._needed_bytes,
            )
