"""Pulls that the broker holds until a message comes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.broker.test_pull import numbers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.headers import PULL_SUBSCRIPTION, PULL_SUSPEND
from wheelmq.testing.harness import Ask, BrokerHarness


class TestHolds:
    def hold(self, harness: BrokerHarness, hold_ms: int = 15_000, **fields: Any) -> Ask:
        asked = harness.submit(harness.pull_command("T", hold_ms=hold_ms, **fields), fields.get("connection"))
        harness.tick()
        return asked

    @pytest.fixture(autouse=True)
    def topic(self, harness: BrokerHarness) -> None:
        harness.broker.parts.topics.create_for_group("T", 2)

    def test_a_message_of_its_queue_wakes_a_held_pull(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness)
        harness.advance(1000)
        assert asked.answer is None
        harness.send("T", b"x", queue_id=1)
        assert asked.answer is None  # another queue
        harness.send("T", b"x")
        assert asked.answer is not None and asked.answer.code == 0
        assert len(harness.broker.parts.holds) == 0

    def test_a_release_wakes_a_held_pull(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness)
        harness.send("T", delay_ms=2000)
        harness.advance(1999)
        assert asked.answer is None
        harness.advance(1)
        assert asked.answer is not None and asked.answer.code == 0

    @pytest.mark.parametrize("hold_ms", [1, 20, 15_000])
    def test_a_held_pull_is_answered_at_its_deadline(self, harness: BrokerHarness, hold_ms: int) -> None:
        asked = self.hold(harness, hold_ms)
        harness.advance(hold_ms - 1)
        assert asked.answer is None
        harness.advance(1)
        assert asked.answer is not None
        assert (asked.answer.code, numbers(asked.answer)) == (19, (0, 0, 0))
        assert len(harness.broker.parts.holds) == 0

    def test_a_pull_is_held_briefly_without_long_polling(self, harness: BrokerHarness) -> None:
        harness.restart(long_polling=False)
        asked = self.hold(harness)
        harness.advance(999)
        assert asked.answer is None
        harness.advance(1)
        assert asked.answer is not None and asked.answer.code == 19

    def test_a_pull_is_held_only_at_the_end_of_its_queue(self, harness: BrokerHarness) -> None:
        harness.send("T")
        for offset, code in ((0, 0), (2, 21), (-1, 21)):
            asked = self.hold(harness, queueOffset=offset)
            assert asked.answer is not None and asked.answer.code == code
        assert self.hold(harness, queueOffset=1).answer is None

    def test_messages_that_do_not_match_wake_no_pull(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness, subscription="A")
        for _ in range(3):
            harness.send("T", properties={"TAGS": "B"})
        assert asked.answer is None
        harness.send("T", b"wanted", properties={"TAGS": "A"})
        assert asked.answer is not None and (asked.answer.code, numbers(asked.answer)) == (0, (4, 0, 4))

    def test_an_expired_pull_skips_messages_that_do_not_match(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness, subscription="A")
        for _ in range(2):
            harness.send("T", properties={"TAGS": "B"})
        harness.advance(15_000)
        assert asked.answer is not None and (asked.answer.code, numbers(asked.answer)) == (19, (2, 0, 2))

    def test_the_held_pulls_of_a_lost_connection_are_dropped(self, harness: BrokerHarness) -> None:
        connection = harness.connect()
        asked = self.hold(harness, connection=connection)
        other = self.hold(harness)
        harness.lose(connection)
        assert len(harness.broker.parts.holds) == 1
        harness.send("T")
        assert asked.answer is None and other.answer is not None

    def test_a_pull_on_a_full_connection_is_answered_when_it_drains(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness)
        harness.client.is_full = True
        harness.send("T", connection=harness.connect())
        assert asked.answer is None
        harness.client.is_full = False
        harness.tick()
        assert asked.answer is not None and asked.answer.code == 0

    def test_a_message_wakes_all_pulls_of_its_queue(self, harness: BrokerHarness) -> None:
        asks = [self.hold(harness, connection=harness.connect()) for _ in range(20)]
        harness.send("T")
        assert all(asked.answer is not None and asked.answer.code == 0 for asked in asks)

    def test_oneway_pulls_are_not_held(self, harness: BrokerHarness) -> None:
        asked = harness.submit(harness.pull_command("T", hold_ms=1000), oneway=True)
        harness.advance(2000)
        assert asked.answer is None and len(harness.broker.parts.holds) == 0

    def test_a_lite_pull_is_held_and_woken(self, harness: BrokerHarness) -> None:
        command = harness.pull_command("T", hold_ms=20_000)
        command.code = RequestCode.LITE_PULL_MESSAGE
        asked = harness.submit(command)
        harness.send("T")
        assert asked.answer is not None and asked.answer.code == 0

    def test_a_pull_with_a_negative_timeout_is_not_held(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness, 1, suspendTimeoutMillis=-5, sysFlag=PULL_SUBSCRIPTION | PULL_SUSPEND)
        assert asked.answer is not None and asked.answer.code == 19

    def test_answered_pulls_leave_no_state(self, harness: BrokerHarness) -> None:
        for i in range(200):
            self.hold(harness, 1 << 40, queueOffset=i)
            harness.send("T")
        assert len(harness.broker.parts.holds) == 0
        assert len(harness.broker.parts.holds._deadlines) < 100

    def test_a_failed_pull_does_not_affect_other_pulls(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from wheelmq.broker.handlers import pull as module

        first, second = self.hold(harness, connection=harness.connect()), self.hold(harness)
        really, calls = module.read_queue, list[int]()

        def fails_once(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise AssertionError("a bug of ours")
            return really(*arguments)

        monkeypatch.setattr(module, "read_queue", fails_once)
        harness.send("T")
        assert first.answer is not None and first.answer.code == 1
        assert second.answer is not None and second.answer.code == 0
