"""Jobs on the broker's files that no answer waits for: writes of tables, checkpoints, and removals of files."""

from __future__ import annotations

import logging
from collections.abc import Callable

from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)


def run_in_background(job: Callable[[], object] | None, worker: Worker) -> None:
    """Run `job` on `worker`, and log its error. The part that created the job creates it again. None is no job."""
    if job is not None:
        worker.submit(job, log_failure)


def run_at_stop(job: Callable[[], object] | None) -> None:
    """Run `job` in the calling thread, for a clean stop, and log its OSError."""
    if job is not None:
        try:
            job()
        except OSError as error:
            log_failure(error)


def log_failure(result: object) -> None:
    if isinstance(result, BaseException):
        log.error("a background task on the broker's files failed: %s", result)
