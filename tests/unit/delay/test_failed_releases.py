"""A release that raises an unexpected error delays its own message alone, and the message stays visible as pending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wheelmq.broker.overdue import overdue
from wheelmq.delay import refs as ref
from wheelmq.delay.failed import RETRY_MS, RETRY_MS_MAX, STEP_MS, FailedReleases
from wheelmq.delay.refs import Refs
from wheelmq.delay.timer.mark import load_check
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.store import store as store_module
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

pytestmark = pytest.mark.plain  # the errors come from functions of the plain code

FailAppends = Callable[..., None]
SECOND_TRY_MS = RETRY_MS * 3 // 2 + STEP_MS
"""The second try comes within this time."""


@pytest.fixture
def fail_appends(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> FailAppends:
    """Make appends of messages with one of some bodies raise an error. Call it without a body to end that."""
    append = harness.broker.parts.store.append

    def set_bodies(*bodies: bytes) -> None:
        def fail(message: Message, **chosen: Any) -> Any:
            if message.body in bodies:
                raise ValueError("unforeseen")
            return append(message, **chosen)

        monkeypatch.setattr(harness.broker.parts.store, "append", fail)

    return set_bodies


def fail(*arguments: Any, **keywords: Any) -> Any:
    raise ValueError("unforeseen")


def last_read_ms(harness: BrokerHarness) -> int:
    """Return the time before which timercheck declares all slots released."""
    return harness.broker.parts.timer.timercheck(harness.broker.parts.releaser.earliest_in_hand_ms()).last_read_ms


def test_an_error_delays_only_its_own_message(
    harness: BrokerHarness, fail_appends: FailAppends, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(5):
        harness.send("T", b"%d" % i, delay_ms=1000)
    fail_appends(b"2")
    harness.advance(1000)
    assert harness.bodies("T") == [b"0", b"1", b"3", b"4"]
    assert harness.broker.parts.releaser.counts["failed"] == 1
    assert [record.levelname for record in caplog.records if "failed" in record.message] == ["CRITICAL"]
    fail_appends()
    harness.advance(RETRY_MS - 1)
    assert len(harness.bodies("T")) == 4
    while len(harness.bodies("T")) < 5:
        harness.advance_to_next()
    assert harness.bodies("T") == [b"0", b"1", b"3", b"4", b"2"]
    assert harness.now_ms <= START_MS + 1000 + SECOND_TRY_MS
    assert harness.broker.parts.releaser.in_hand() == 0
    invariants.check(harness.broker)


def test_the_message_stays_pending_in_timercheck(harness: BrokerHarness, fail_appends: FailAppends) -> None:
    """Apache RocketMQ reads only the slots from lastReadTimeMs on when it gets the store."""
    model, due_ms = PipelineModel(harness), START_MS + 5500
    harness.send("T", b"fails", delay_ms=5500)
    fail_appends(b"fails")
    harness.advance(5500 + 3 * RETRY_MS, model.work, 500)
    assert harness.broker.parts.releaser.counts["failed"] >= 2
    assert last_read_ms(harness) <= (due_ms - 1) // 1000 * 1000
    disk, paths = harness.disk, harness.broker.parts.paths
    harness.stop()
    check = load_check(disk, paths)
    assert check is not None and check.last_read_ms <= (due_ms - 1) // 1000 * 1000


def test_the_message_is_overdue_until_it_leaves(harness: BrokerHarness, fail_appends: FailAppends) -> None:
    harness.send("T", b"fails", delay_ms=1000)
    harness.send("T", b"leaves", delay_ms=1000)
    fail_appends(b"fails")
    harness.advance(6000)
    assert overdue(harness.broker.parts.metric_sources) == (1, 5000)
    lateness_ms = harness.broker.parts.releaser.lateness_ms
    assert (lateness_ms.count, lateness_ms.greatest) == (1, 0)
    fail_appends()
    harness.advance(SECOND_TRY_MS - 5000)
    assert overdue(harness.broker.parts.metric_sources) == (0, 0)
    assert lateness_ms.count == 2 and lateness_ms.greatest >= RETRY_MS


def test_the_wall_clock_does_not_delay_the_next_try(harness: BrokerHarness, fail_appends: FailAppends) -> None:
    harness.send("T", b"fails", delay_ms=100_000)
    harness.clock.step(100_000)
    fail_appends(b"fails")
    harness.settle()
    fail_appends()
    harness.clock.step(3_600_000)
    harness.advance(RETRY_MS - 1)
    assert harness.bodies("T") == []
    harness.advance(SECOND_TRY_MS - RETRY_MS + 1)
    assert harness.bodies("T") == [b"fails"]


class TestAppendedOnce:
    """An error around the append of a message neither loses the message nor appends it twice."""

    def check(self, harness: BrokerHarness) -> None:
        """Check that later tries append the message of the topic exactly once."""
        harness.advance(3 * RETRY_MS)
        assert harness.bodies("T") == [b"body"]
        assert sum(harness.broker.parts.timer.pending.counts.by_queue) == 0
        invariants.check(harness.broker)

    @pytest.mark.parametrize("name", ["delay_facts", "tag_code", "encode_record"])
    def test_a_failed_append_is_repeated(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        harness.send("T", delay_ms=1000)
        end = harness.broker.parts.store.log.end
        with monkeypatch.context() as patch:
            patch.setattr(store_module, name, fail)
            harness.advance(1000)
            assert harness.broker.parts.releaser.counts["failed"] == 1
            assert harness.broker.parts.store.log.end == end
        self.check(harness)

    def test_a_rejected_journal_row_appends_nothing(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=1000)
        store = harness.broker.parts.store
        end = store.log.end
        properties = {props.TIMER_DELAY_SEC: str((1 << 63) - 1)}  # the due time has more than 64 bits
        with pytest.raises(OverflowError):
            store.append(Message(TIMER_TOPIC, 0, b"raw", properties))
        assert store.log.end == end and store.journal.count == 0
        self.check(harness)

    def test_an_error_after_the_append_repeats_no_append(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness.send("T", delay_ms=1000)
        monkeypatch.setattr(harness.broker.parts.timer.pending, "settle", fail)
        harness.advance(1000)
        assert harness.bodies("T") == [b"body"]
        assert "an error occurred after the release" in caplog.text
        self.check(harness)

    def test_an_error_after_a_roll_repeats_no_roll(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = PipelineModel(harness)
        harness.send("T", delay_ms=25_000)  # the window is 20 s
        monkeypatch.setattr(harness.broker.parts.timer.congestion, "roll", fail)
        harness.advance(24_999, model.work, 500)
        assert harness.broker.parts.releaser.counts["rolled"] == harness.broker.parts.releaser.counts["failed"] == 1
        assert len(harness.read_queue(TIMER_TOPIC)) == 2
        self.check(harness)

    def test_an_error_within_a_bulk_append_repeats_no_append(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness.send("T", delay_ms=1000)
        harness.settle()
        harness.allows_failed_steps = True
        store, releaser = harness.broker.parts.store, harness.broker.parts.releaser

        def append_and_fail(refs: Refs, now_ms: Millis) -> int:
            store.append(Message("T", 0, b"body", {}), settles=Origin(int(refs[0, ref.ORIGIN])))
            raise ValueError("unforeseen")

        monkeypatch.setattr(releaser, "_bulk", append_and_fail)
        harness.clock.advance(1000)
        harness.tick()
        monkeypatch.setattr(releaser, "_bulk", None)
        harness.advance(3 * RETRY_MS)
        assert harness.bodies("T") == [b"body"]


def test_failed_references_are_taken_by_fire_time() -> None:
    failed = FailedReleases()
    refs = ref.make(3)
    refs[:, ref.FIRE_MS] = [30, 10, 20]
    refs[:, ref.ORIGIN] = [7, 8, 9]
    waits_ms = [failed.add(one, monotonic_ms) for one, monotonic_ms in zip(refs, (0, 5, 30_000), strict=True)]
    assert all(RETRY_MS <= wait_ms < SECOND_TRY_MS for wait_ms in waits_ms)
    assert failed.count == 3 and failed.earliest_ms() == 10
    assert len(failed.take_due((failed.next_retry_ms or 0) - 1)) == 0
    assert failed.take_due(2 * RETRY_MS)[:, ref.FIRE_MS].tolist() == [10, 30]
    assert failed.count == 1 and failed.earliest_ms() == 20
    assert failed.take_due(30_000 + 2 * RETRY_MS)[:, ref.ORIGIN].tolist() == [9]
    assert (failed.count, failed.earliest_ms(), failed.next_retry_ms) == (0, None, None)


def test_waits_double_up_to_a_limit() -> None:
    failed, one, waits_ms = FailedReleases(), ref.make(1), list[int]()
    one[0, ref.ORIGIN], one[0, ref.FLAGS] = 7, ref.FLAG_ROLL
    for _ in range(10):
        waits_ms.append(failed.add(one[0], 0))
        one = failed.take_due(waits_ms[-1])
        assert one[0, ref.FLAGS] & ref.FLAG_ROLL
    for tries, wait_ms in enumerate(waits_ms):
        nominal_ms = min(RETRY_MS << tries, RETRY_MS_MAX)
        assert nominal_ms <= wait_ms <= nominal_ms * 3 // 2 + STEP_MS


def test_a_burst_of_failures_fills_no_log_and_is_spread(
    harness: BrokerHarness, fail_appends: FailAppends, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(200):
        harness.submit(harness.send_command("T", delay_ms=1000))
    harness.settle()
    fail_appends(b"body")
    harness.advance(1000)
    counts = harness.broker.parts.releaser.counts
    assert counts["failed"] == 200
    lines = [record for record in caplog.records if "failed" in record.message]
    assert len(lines) == 1 and lines[0].exc_info is not None
    failures = []
    while counts["failed"] < 400:
        before = counts["failed"]
        harness.advance_to_next()
        failures.append(counts["failed"] - before)
    assert max(failures) <= 80, "the second tries of a burst must not come at one instant"
    harness.advance(START_MS + 121_000 - harness.now_ms)
    assert counts["failed"] <= 200 * 4
    assert len([record for record in caplog.records if "failed" in record.message]) <= 13
    fail_appends()
    harness.advance(150_000)
    assert len(harness.bodies("T")) == 200
    invariants.check(harness.broker)
