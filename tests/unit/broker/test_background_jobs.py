"""Jobs that no answer waits for."""

from __future__ import annotations

import pytest

from wheelmq.broker.background_jobs import run_at_stop, run_in_background
from wheelmq.testing.workers import HeldWorker


def fail() -> None:
    raise OSError(28, "No space left on device")


def test_a_job_runs_on_the_worker_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    worker, ran = HeldWorker(), []
    run_in_background(lambda: ran.append(1), worker)
    run_in_background(fail, worker)
    assert not ran
    worker.run()
    assert ran == [1]
    [record] = caplog.records
    assert record.levelname == "ERROR" and "No space left on device" in record.getMessage()


def test_a_part_without_work_has_no_job() -> None:
    worker = HeldWorker()
    run_in_background(None, worker)
    run_at_stop(None)
    assert not worker.run()


def test_a_job_at_the_stop_runs_at_once_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []
    run_at_stop(lambda: ran.append(1))
    run_at_stop(fail)
    assert ran == [1] and "No space left on device" in caplog.text
