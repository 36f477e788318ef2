"""Held requests: their attempts, their deadlines and their slices."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from tests.unit.broker.test_holds import HOLD_MS, Crowd
from wheelmq.broker.answers import Deferred, Given, PeerError
from wheelmq.broker.handlers import pull as pulls
from wheelmq.broker.holds import WOKEN_MAX, Attempt
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import FLAG_ONEWAY, Command
from wheelmq.testing.harness import BrokerHarness, records_in


@pytest.fixture
def reads() -> Iterator[mock.Mock]:
    """Count the reads of queues for pulls."""
    with mock.patch.object(pulls, "read_queue", wraps=pulls.read_queue) as counted:
        yield counted


class TestAttempts:
    """Requests that are held under a key, without a queue."""

    def wait(self, harness: BrokerHarness, attempt: Attempt) -> list[Given]:
        """Hold a request under the key "key", and return the answers that it gets."""
        given: list[Given] = []
        request = Request(Command(code=RequestCode.QUERY_MESSAGE), harness.client)
        answer = harness.broker.parts.holds.wait(request, "key", HOLD_MS, attempt)
        answer.when_given(given.append)
        assert answer.is_accepted
        return given

    def test_an_exception_of_an_attempt_is_the_answer(self, harness: BrokerHarness) -> None:
        def fail(last: bool) -> Command | None:
            raise PeerError(ResponseCode.NO_PERMISSION, "not you")

        given = self.wait(harness, fail)
        harness.broker.parts.holds.wake("key")
        assert [str(error) for error in given] == ["not you"] and not len(harness.broker.parts.holds)

    def test_the_last_attempt_may_return_no_answer(self, harness: BrokerHarness) -> None:
        calls: list[bool] = []
        given = self.wait(harness, lambda last: calls.append(last))
        harness.broker.parts.holds.wake("key")
        harness.advance(HOLD_MS)
        assert calls == [False, True] and given == [None] and not len(harness.broker.parts.holds)

    def test_a_lost_connection_ends_the_wait(self, harness: BrokerHarness) -> None:
        given = self.wait(harness, lambda last: None)
        harness.lose(harness.client)
        assert given == [None] and not len(harness.broker.parts.holds)


class TestDeadline:
    """Requests whose answer another part gives."""

    LATE = Command(code=ResponseCode.SYSTEM_BUSY)

    def hold(self, harness: BrokerHarness, answer: Deferred, *, oneway: bool = False) -> list[Given]:
        """Hold a request for `answer`. Return the answers that it gets."""
        given: list[Given] = []
        command = Command(code=RequestCode.WMQ_FIND_TIMERS, flag=FLAG_ONEWAY if oneway else 0)
        holds = harness.broker.parts.holds
        holds.with_deadline(Request(command, harness.client), answer, 1000, lambda: self.LATE).when_given(given.append)
        return given

    def test_a_given_answer_ends_the_wait(self, harness: BrokerHarness) -> None:
        answer, found = Deferred(), Command(code=0)
        given = self.hold(harness, answer)
        assert len(harness.broker.parts.holds) == 1
        answer.give(found)
        assert given == [found] and not len(harness.broker.parts.holds)
        harness.advance(1000)
        assert given == [found]

    def test_the_deadline_ends_the_wait(self, harness: BrokerHarness) -> None:
        answer = Deferred()
        given = self.hold(harness, answer)
        harness.advance(1000)
        assert given == [self.LATE] and not len(harness.broker.parts.holds)
        answer.give(Command(code=0))
        assert given == [self.LATE]

    def test_a_lost_connection_ends_the_wait(self, harness: BrokerHarness) -> None:
        answer = Deferred()
        given = self.hold(harness, answer)
        harness.lose(harness.client)
        assert given == [None] and answer.is_over and not len(harness.broker.parts.holds)

    def test_an_answer_that_is_given_already_is_not_held(self, harness: BrokerHarness) -> None:
        answer, found = Deferred(), Command(code=0)
        answer.give(found)
        assert self.hold(harness, answer) == [found] and not len(harness.broker.parts.holds)

    def test_a_oneway_request_is_not_held(self, harness: BrokerHarness) -> None:
        answer = Deferred()
        assert self.hold(harness, answer, oneway=True) == [None] and not len(harness.broker.parts.holds)


class TestSlices:
    """Many held pulls take several ticks, so that the broker serves other work in between."""

    HELD = 3 * WOKEN_MAX

    @pytest.fixture
    def crowd(self, harness: BrokerHarness) -> Crowd:
        harness.send("T", b"old", queue_id=0)
        crowd = Crowd(harness)
        for _ in range(self.HELD):
            crowd.pull("T", 0, 1)
        harness.tick()
        return crowd

    def test_many_woken_pulls_are_answered_in_slices(
        self, harness: BrokerHarness, crowd: Crowd, reads: mock.Mock
    ) -> None:
        harness.submit(harness.send_command("T", b"new", queue_id=0))
        harness.end_round()
        assert reads.call_count <= 2 * WOKEN_MAX and harness.broker.next_tick_ms() == 0
        assert len(crowd.answered()) == self.HELD and not harness.broker.parts.holds.has_more()
        assert reads.call_count == self.HELD

    def test_many_expired_pulls_are_answered_in_slices(
        self, harness: BrokerHarness, crowd: Crowd, reads: mock.Mock
    ) -> None:
        harness.clock.advance(HOLD_MS)
        harness.tick()
        assert reads.call_count == WOKEN_MAX and harness.broker.next_tick_ms() == 0
        assert len(crowd.answered()) == self.HELD

    def test_many_pulls_of_a_lost_connection_are_dropped_in_slices(self, harness: BrokerHarness) -> None:
        harness.send("T", b"old", queue_id=0)
        connection = harness.connect()
        for _ in range(self.HELD):
            harness.submit(harness.pull_command("T", 0, 1, hold_ms=HOLD_MS), connection)
        harness.lose(connection)
        assert len(harness.broker.parts.holds) == self.HELD - WOKEN_MAX
        harness.send("T", b"new", queue_id=0)  # wakes none of them
        harness.settle()
        assert len(harness.broker.parts.holds) == 0 and not harness.broker.parts.holds.has_more()

    def test_a_message_sent_between_slices_hides_no_earlier_message(self, harness: BrokerHarness) -> None:
        """A pull by tags continues at its first match, even if a later match arrived before its check."""
        harness.send("T", b"old", queue_id=0)
        crowd = Crowd(harness)
        for _ in range(self.HELD):
            crowd.pull("T", 0, 1, subscription="A")
        harness.tick()
        for body in (b"first", b"second"):
            harness.submit(harness.send_command("T", body, queue_id=0, properties={"TAGS": "A"}))
            harness.broker.end_round()
        assert len(crowd.answered()) == self.HELD
        firsts = {records_in(bytes(one.answer.body))[0].message.body for one in crowd.asked if one.answer is not None}
        assert firsts == {b"first"}

    def test_pulls_of_another_queue_do_not_wait_for_the_slices(self, harness: BrokerHarness, crowd: Crowd) -> None:
        harness.send("Quiet", b"old", queue_id=0)
        asked = harness.submit(harness.pull_command("Quiet", 0, 1, hold_ms=HOLD_MS), harness.connect())
        harness.submit(harness.send_command("T", b"new", queue_id=0))
        harness.submit(harness.send_command("Quiet", b"new", queue_id=0))
        harness.tick()
        assert asked.answer is not None and len(harness.broker.parts.holds) > self.HELD // 4

    def test_pulls_that_arrive_between_slices_are_woken(self, harness: BrokerHarness, crowd: Crowd) -> None:
        harness.submit(harness.send_command("T", b"new", queue_id=0))
        harness.broker.end_round()
        asked = harness.submit(harness.pull_command("T", 0, 2, hold_ms=HOLD_MS), harness.connect())
        harness.broker.end_round()
        harness.submit(harness.send_command("T", b"newer", queue_id=0))
        harness.settle()
        assert asked.answer is not None and len(harness.broker.parts.holds) == 0
