"""Workers, unique ids, failpoints."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any

from wheelmq.system.unique_ids import UniqueIds
from wheelmq.system.workers import InlineWorker, ThreadWorker, Workers
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.workers import HeldWorker


def fail() -> None:
    raise OSError("no")


class TestInlineWorker:
    def test_a_job_runs_at_once_in_the_same_thread(self) -> None:
        told: list[Any] = []
        worker = InlineWorker()
        worker.submit(lambda: 7, told.append)
        assert told == [7]
        worker.submit(fail, told.append)
        assert isinstance(told[1], OSError)


class TestThreadWorker:
    def test_jobs_run_in_order_in_a_thread_and_notify_on_the_loop(self) -> None:
        loop: list[Callable[[], object]] = []
        worker = ThreadWorker("test", lambda callback: loop.append(callback))
        told: list[Any] = []
        threads: list[int] = []
        for i in range(20):
            worker.submit(lambda i=i: (threads.append(threading.get_ident()), i)[1], told.append)
        worker.submit(fail, told.append)
        worker.submit(lambda: "after a failure", told.append)
        worker.close()
        assert told == []  # no result is delivered off the loop
        for callback in loop:
            callback()
        assert told[:20] == list(range(20))
        assert isinstance(told[20], OSError)
        assert told[21] == "after a failure"
        assert len(set(threads)) == 1 and threads[0] != threading.get_ident()


class TestWorkers:
    def test_each_worker_has_its_name_and_is_closed_with_the_others(self) -> None:
        made: dict[str, HeldWorker] = {}
        workers, told = Workers.of(lambda name: made.setdefault(name, HeldWorker())), list[Any]()
        names = ("flushing", "blocks", "background", "reading", "tables", "timers", "populating")
        assert [made[name] for name in names] == list(workers)
        assert workers.populating is made["populating"] and len(made) == len(names)
        for number, one in enumerate(workers):
            one.submit(lambda number=number: number, told.append)
        workers.close()
        assert told == list(range(len(names)))


class TestHeldWorker:
    def test_a_job_runs_separately_from_its_notification(self) -> None:
        worker, worked, told = HeldWorker(), list[int](), list[Any]()
        for i in range(3):
            worker.submit(lambda i=i: worked.append(i) or i, told.append)
        assert (len(worker), worked, told) == (3, [], [])
        assert worker.work(2) == 2
        assert (len(worker), worked, told) == (3, [0, 1], [])
        assert worker.report(1) == 1
        assert (len(worker), told) == (2, [0])
        worker.run()
        assert (len(worker), worked, told) == (0, [0, 1, 2], [0, 1, 2])

    def test_a_failed_job_passes_its_error_on(self) -> None:
        worker, told = HeldWorker(), list[Any]()
        worker.fail_next(OSError("disk"))
        worker.submit(lambda: told.append("worked"), told.append)
        worker.submit(lambda: "fine", told.append)
        worker.run()
        assert isinstance(told[0], OSError) and told[1:] == ["fine"]

    def test_a_worker_drops_forgotten_jobs_and_finishes_the_rest_at_close(self) -> None:
        worker, told = HeldWorker(), list[Any]()
        worker.submit(lambda: 1, told.append)
        worker.work()
        worker.submit(lambda: 2, told.append)
        worker.forget()
        assert len(worker) == 0
        worker.submit(lambda: 3, lambda result: worker.submit(lambda: 4, told.append))
        worker.close()
        assert told == [4]


class TestUniqueIds:
    def test_an_id_encodes_address_time_and_counter(self) -> None:
        ids = UniqueIds(b"\x7f\0\0\1", ManualClock(1_800_000_000_250), 0x1_2345, Random(0))
        first, second = ids.next(), ids.next()
        assert len(first) == 32 and first[:12] == "7F0000012345"
        assert first == first.upper() and int(first, 16)
        assert (first[-4:], second[-4:]) == ("0001", "0002")
        # 1,800,000,000,250 is 2027-01-15T08:00:00.250. The id has the time since the start of the month.
        assert int(first[20:28], 16) == (14 * 24 + 8) * 3_600_000 + 250

    def test_ids_differ_over_months_and_rounds_of_the_counter(self) -> None:
        clock = ManualClock(1_801_439_999_999)  # the last millisecond of January 2027
        ids = UniqueIds(b"\x7f\0\0\1", clock, 1, Random(0))
        seen = {ids.next() for _ in range(10)}
        clock.advance(1)
        after = ids.next()
        assert len(seen) == 10 and int(after[20:28], 16) == 0
        clock.step(-1)
        assert int(ids.next()[20:28], 16) == 31 * 86_400_000 - 1

    def test_the_same_inputs_give_the_same_ids(self) -> None:
        makers = [UniqueIds(b"\x7f\0\0\1", ManualClock(), 1, Random(7)) for _ in range(2)]
        assert makers[0].next() == makers[1].next()

    def test_ids_of_two_makers_in_one_millisecond_differ(self) -> None:
        randomness = Random(7)
        makers = [UniqueIds(b"\x7f\0\0\1", ManualClock(), 1, randomness) for _ in range(2)]
        assert makers[0].next() != makers[1].next()


FAILPOINT = """
from wheelmq.system import failpoint
for i in range(5):
    print(i, failpoint.bend("value", 1), flush=True)
    failpoint.reach("other")
    failpoint.reach("here")
"""


class TestFailpoints:
    def run(self, **environment: str) -> tuple[int, list[bytes]]:
        done = subprocess.run(
            [sys.executable, "-c", FAILPOINT], env={**os.environ, **environment}, stdout=subprocess.PIPE, check=False
        )
        return done.returncode, done.stdout.splitlines()

    def test_unarmed_failpoints_do_nothing(self) -> None:
        assert self.run(WHEELMQ_FAILPOINTS="") == (0, [b"0 1", b"1 1", b"2 1", b"3 1", b"4 1"])

    def test_the_nth_passage_ends_the_process(self, tmp_path: Any) -> None:
        told = tmp_path / "log"
        code, lines = self.run(WHEELMQ_FAILPOINTS="value=9,here=3", WHEELMQ_FAILPOINT_LOG=str(told))
        assert (code, lines) == (-9, [b"0 9", b"1 9", b"2 9"])
        assert told.read_text().split()[1:] == ["here"]
