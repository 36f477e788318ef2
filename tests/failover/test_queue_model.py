"""Five faults under the queue model in every test run, and tests of its checks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.failover.history import (
    Dequeue,
    Enqueue,
    FaultSpan,
    History,
    Outcome,
    check_queue,
    failed_without_a_fault,
    keys_out_of_order,
    unavailable_ms,
)
from tests.failover.queue_model import CLIENTS, KEYS, Fault, QueueModelRun, make_faults, report

SEED = 11


@pytest.mark.timeout(300)
def test_faults_lose_no_value_and_keep_the_order_of_each_key(tmp_path: Path) -> None:
    result = asyncio.run(QueueModelRun(tmp_path, len(Fault), SEED, print).execute())
    print("\n".join(report(result)))
    assert result.violations == []
    assert {fault.name for fault in result.history.faults} == {fault.value for fault in Fault}
    assert result.figures.acknowledged > 100
    assert len({enqueue.key for enqueue in result.history.enqueues}) == CLIENTS * KEYS


def test_a_seed_determines_the_faults() -> None:
    assert make_faults(20, 1) == make_faults(20, 1) != make_faults(20, 2)


def history(sent: str, delivered: str) -> History:
    """Return a history: `a+` is an acknowledged value, `a-` one that failed, `a?` one without an answer."""
    outcomes = {"+": Outcome.SUCCESS, "-": Outcome.FAILURE, "?": Outcome.UNKNOWN}
    pairs = zip(sent[::2], sent[1::2], strict=True)
    enqueues = [Enqueue("k", ord(name), 10 * i, 10 * i + 5, outcomes[sign]) for i, (name, sign) in enumerate(pairs)]
    return History(enqueues, [Dequeue("k", ord(name), 1) for name in delivered])


def test_an_acknowledged_value_that_is_never_delivered_is_lost() -> None:
    assert check_queue(history("a+b+c?d-", "a")).lost == (ord("b"),)
    assert not check_queue(history("a+b+", "a")).at_least_once


def test_a_value_that_was_never_sent_or_that_failed_is_unexpected() -> None:
    assert check_queue(history("a+b-", "abx")).unexpected == (ord("b"), ord("x"))


def test_a_value_that_comes_again_is_duplicated_and_not_lost() -> None:
    figures = check_queue(history("a+b+", "abbb"))
    assert (figures.duplicated, figures.lost, figures.unexpected) == (2, (), ())
    assert not figures.at_most_once


def test_a_value_without_an_answer_that_comes_is_recovered() -> None:
    figures = check_queue(history("a?b?", "a"))
    assert (figures.recovered, figures.lost, figures.unexpected, figures.unknown) == (1, (), (), 2)


@pytest.mark.parametrize(
    ("delivered", "is_ordered"), [("abc", True), ("ababc", True), ("acb", False), ("acbc", False), ("cab", False)]
)
def test_a_value_may_come_again_but_not_before_an_earlier_one(delivered: str, is_ordered: bool) -> None:
    assert (keys_out_of_order(history("a+b+c+", delivered)) == []) is is_ordered


def test_a_fault_is_over_at_the_first_success_after_a_failed_send() -> None:
    run = history("a+b-c?d+e+", "")
    run.faults.append(FaultSpan("kill", 8, 40))
    assert unavailable_ms(run) == [35 - 10]
    assert failed_without_a_fault(run) == []


def test_a_fault_that_no_send_notices_has_no_time() -> None:
    run = history("a+b+c-", "")
    run.faults.append(FaultSpan("kill", 0, 12))
    assert unavailable_ms(run) == []
    assert [enqueue.value for enqueue in failed_without_a_fault(run)] == [ord("c")]
