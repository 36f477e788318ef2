"""The pause of transactions after a failed append."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker.transactions.append_retry import REST_MS, AppendRetry
from wheelmq.testing.harness import BrokerHarness


def fail() -> int:
    raise OSError(28, "full")


def test_appends_run_until_one_fails() -> None:
    retry = AppendRetry()
    assert retry.run(1000, lambda: 3) == 3
    assert retry.next_ms(1000) == 1000
    assert retry.next_ms(None) is None


def test_a_failed_append_is_raised_and_followed_by_a_pause() -> None:
    retry = AppendRetry()
    with pytest.raises(OSError):
        retry.run(1000, fail)
    assert retry.run(1000 + REST_MS - 1, fail) == 0
    assert retry.next_ms(500) == 1000 + REST_MS
    assert retry.next_ms(5000) == 5000
    assert retry.next_ms(None) is None
    assert retry.run(1000 + REST_MS, lambda: 3) == 3


def test_a_failed_append_pauses_checks_and_op_messages(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, transaction_check_interval=10) as harness:
        broker, now_ms = harness.broker, harness.clock.monotonic_ms()
        assert broker.parts.transaction_checks.next_ms() == now_ms + 10
        with pytest.raises(OSError):
            broker.parts.transactions.retry.run(now_ms, fail)
        assert broker.parts.transaction_checks.next_ms() == now_ms + REST_MS


def test_a_slave_checks_no_transactions(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, broker_id=1) as harness:
        assert harness.broker.parts.transaction_checks.next_ms() is None
        assert harness.broker.parts.transaction_checks.tick(harness.clock.monotonic_ms() + 1_000_000) == 0
