"""At most one job of a component is on its worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wheelmq.system.single_flight import SingleFlight, ignore
from wheelmq.system.workers import InlineWorker, ThreadWorker
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.workers import HeldWorker

ERROR = OSError("no")


def fail() -> int:
    raise ERROR


def unexpected(result: object) -> None:
    pytest.fail(f"called with {result!r}")


class TestOneJob:
    def test_no_job_runs_at_the_start(self) -> None:
        flight = SingleFlight(HeldWorker())
        assert not flight.is_running and flight.next_s == 0

    def test_a_job_runs_until_the_loop_gets_its_result(self) -> None:
        worker = HeldWorker()
        flight = SingleFlight(worker)
        flight.submit(lambda: 7, failed=unexpected)
        assert flight.is_running and flight.next_s is None
        worker.work()
        assert flight.is_running and flight.next_s is None
        worker.report()
        assert not flight.is_running and flight.next_s == 0

    def test_a_second_job_is_rejected_while_one_runs(self) -> None:
        worker = HeldWorker()
        flight = SingleFlight(worker)
        flight.submit(lambda: 7, failed=unexpected)
        with pytest.raises(AssertionError, match="a job runs already"):
            flight.submit(lambda: 8, failed=unexpected)
        assert len(worker) == 1, "the worker did not get the second job"

    def test_two_components_share_a_worker(self) -> None:
        worker, results = HeldWorker(), list[int]()
        first, second = SingleFlight(worker), SingleFlight(worker)
        first.submit(lambda: 1, done=results.append, failed=unexpected)
        second.submit(lambda: 2, done=results.append, failed=unexpected)
        worker.run(1)
        assert (first.is_running, second.is_running, results) == (False, True, [1])


class TestResults:
    def test_done_gets_the_result(self) -> None:
        results: list[int] = []
        SingleFlight(InlineWorker()).submit(lambda: 7, done=results.append, failed=unexpected)
        assert results == [7]

    def test_failed_gets_the_exception(self) -> None:
        errors: list[Exception] = []
        SingleFlight(InlineWorker()).submit(fail, done=unexpected, failed=errors.append)
        assert errors == [ERROR]

    @pytest.mark.parametrize("job", [lambda: 7, fail])
    def test_a_component_may_ignore_both(self, job: Callable[[], int]) -> None:
        flight = SingleFlight(InlineWorker())
        flight.submit(job, failed=ignore)
        assert not flight.is_running

    def test_a_thread_reports_on_the_loop(self) -> None:
        loop: list[Callable[[], None]] = []
        worker, results, errors = ThreadWorker("test", loop.append), list[int](), list[Exception]()
        good, bad = SingleFlight(worker), SingleFlight(worker)
        good.submit(lambda: 7, done=results.append, failed=unexpected)
        bad.submit(fail, done=unexpected, failed=errors.append)
        worker.close()
        assert good.is_running and bad.is_running and not results and not errors
        for callback in loop:
            callback()
        assert not good.is_running and not bad.is_running and (results, errors) == ([7], [ERROR])


class TestNextJob:
    """The flag falls before the callback runs."""

    @pytest.mark.parametrize("worker", [InlineWorker(), HeldWorker()])
    def test_done_may_submit_the_next_job(self, worker: InlineWorker | HeldWorker) -> None:
        flight, results = SingleFlight(worker), list[int]()

        def go_on(result: int) -> None:
            assert not flight.is_running
            results.append(result)
            if result < 3:
                flight.submit(lambda: result + 1, done=go_on, failed=unexpected)

        flight.submit(lambda: 1, done=go_on, failed=unexpected)
        worker.close()
        assert results == [1, 2, 3] and not flight.is_running

    def test_failed_may_submit_the_next_job(self) -> None:
        flight, results = SingleFlight(InlineWorker()), list[int]()

        def again(error: Exception) -> None:
            assert error is ERROR and not flight.is_running
            flight.submit(lambda: 7, done=results.append, failed=unexpected)

        flight.submit(fail, done=unexpected, failed=again)
        assert results == [7] and not flight.is_running

    def test_an_error_of_a_callback_leaves_no_job_running(self) -> None:
        flight = SingleFlight(InlineWorker())
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                flight.submit(lambda: 7, done=lambda result: print(result / 0), failed=unexpected)
        assert not flight.is_running


class TestDelay:
    def test_a_failed_job_delays_the_next_one(self) -> None:
        worker, clock = HeldWorker(), ManualClock()
        flight = SingleFlight(worker, clock, retry_s=1.5)
        flight.submit(fail, failed=ignore)
        clock.advance(2000)
        assert flight.next_s is None, "the job still runs"
        worker.work()
        clock.advance(300)
        worker.report()
        assert flight.next_s == pytest.approx(clock.monotonic() + 1.5), "the loop knows the failure only now"

    def test_the_callback_knows_the_delay(self) -> None:
        clock = ManualClock()
        flight, seen = SingleFlight(InlineWorker(), clock, retry_s=1.5), list[float | None]()
        flight.submit(fail, failed=lambda error: seen.append(flight.next_s))
        assert seen == [clock.monotonic() + 1.5]

    def test_a_result_ends_the_delay(self) -> None:
        flight = SingleFlight(InlineWorker(), ManualClock(), retry_s=1.5)
        flight.submit(fail, failed=ignore)
        flight.submit(lambda: 7, failed=unexpected)
        assert flight.next_s == 0

    def test_without_a_clock_nothing_delays_the_next_job(self) -> None:
        flight = SingleFlight(InlineWorker())
        flight.submit(fail, failed=ignore)
        assert flight.next_s == 0
        with pytest.raises(AssertionError, match="a delay needs a clock"):
            SingleFlight(InlineWorker(), retry_s=1.5)
