"""Heartbeats of many groups, and the group table that they fill."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from wheelmq.broker import holds, slices
from wheelmq.broker.handlers.members import ENTRIES_MAX, EXPRESSION_CHARS_MAX
from wheelmq.filter import grammar
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store import config_file
from wheelmq.testing.disk import Call
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.workers import HeldWorker


def heartbeat(groups: int, subscriptions: int = 1, **fields: str) -> Command:
    consumer = {"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    of_each: list[dict[str, Any]] = [{"topic": f"t{i}", "subString": "*", **fields} for i in range(subscriptions)]
    consumers = [consumer | {"groupName": f"g{i}", "subscriptionDataSet": of_each} for i in range(groups)]
    body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": consumers}
    return Command(code=RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def test_a_thousand_new_groups_cause_one_write_of_each_table(tmp_path: Path) -> None:
    tables = HeldWorker()
    with BrokerHarness(tmp_path, tables=tables) as harness:
        asked = harness.submit(heartbeat(1000))
        harness.settle()
        assert asked.answer is not None and asked.answer.code == 0  # the answer does not wait for the disk
        assert len(harness.broker.parts.clients.consumers) == 1000 and not tables
        harness.advance(1000)
        with mock.patch.object(config_file, "save", wraps=config_file.save) as saves:
            tables.run()
        assert saves.call_count == 2
        harness.restart(clean=False)
        assert harness.broker.parts.groups.known("g999") is not None and "%RETRY%g999" in harness.broker.parts.topics


def test_a_clean_stop_saves_the_tables(harness: BrokerHarness) -> None:
    harness.ask(heartbeat(3))
    harness.restart()
    assert harness.broker.parts.groups.known("g2") is not None and "%RETRY%g2" in harness.broker.parts.topics


def test_a_heartbeat_of_many_groups_is_served_in_slices(harness: BrokerHarness) -> None:
    ticking = harness.clock.monotonic
    harness.clock.monotonic = lambda: ticking() + next(counter)  # type: ignore[method-assign]
    counter = iter(i * 0.001 for i in range(1_000_000))  # each read of the clock takes 1 ms
    asked = harness.submit(heartbeat(1000))
    served = len(harness.broker.parts.clients.consumers)
    assert 0 < served < 10 and asked.answer is None
    harness.tick()
    assert served < len(harness.broker.parts.clients.consumers) < 20
    harness.lose(asked.connection)
    harness.settle()
    assert not harness.broker.parts.slices.has_more() and not harness.broker.parts.clients.consumers


@pytest.mark.parametrize(("groups", "subscriptions"), [(ENTRIES_MAX // 2 + 1, 1), (1, ENTRIES_MAX)])
def test_a_heartbeat_with_too_many_groups_or_topics_is_rejected(
    harness: BrokerHarness, groups: int, subscriptions: int
) -> None:
    answer = harness.ask(heartbeat(groups, subscriptions))
    assert answer.code == ResponseCode.INVALID_PARAMETER and str(ENTRIES_MAX) in (answer.remark or "")
    assert not harness.broker.parts.clients.consumers


def test_a_group_stays_if_its_deletion_fails(harness: BrokerHarness) -> None:
    body = json.dumps({"groupName": "g", "retryMaxTimes": 3}).encode()
    assert harness.ask_code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0
    harness.broker.parts.groups.forbid("g", "T", forbidden=True)
    harness.advance(2000)
    harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE])
    answer = harness.ask_code(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=True)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "subscriptionGroup.json" in (answer.remark or "")
    known = harness.broker.parts.groups.known("g")
    assert known is not None and known.retry_max_times == 3 and harness.broker.parts.groups.is_forbidden("g", "T")


class TestExpressions:
    LONG = " OR ".join(f"a = '{i}'" for i in range(100))

    def test_long_expressions_are_parsed_off_the_loop(self, tmp_path: Path) -> None:
        reading = HeldWorker()
        with BrokerHarness(tmp_path, reading=reading, enable_property_filter=True) as harness:
            harness.send("t0", queue_id=0, properties={"a": "7"})
            asked = harness.submit(heartbeat(1, subString=self.LONG, expressionType="SQL92"))
            fields = {"subscription": self.LONG + " OR b = '1'", "expressionType": "SQL92"}
            pulled = harness.submit(harness.pull_command("t0", **fields))
            harness.tick()
            assert asked.answer is pulled.answer is None and len(reading) == 2
            reading.run()
            harness.tick()
            assert asked.answer is not None and asked.answer.code == 0
            assert pulled.answer is not None and pulled.answer.code == 0
            assert harness.broker.parts.consumer_filters.find("t0", "g0") is not None
            assert (
                harness.ask(heartbeat(1, subString=self.LONG, expressionType="SQL92")).code == 0
            )  # the broker knows the expression now

    def test_a_heartbeat_with_too_many_characters_is_rejected(self, harness: BrokerHarness) -> None:
        answer = harness.ask(heartbeat(40, 10, subString=self.LONG, expressionType="SQL92"))
        assert answer.code == ResponseCode.INVALID_PARAMETER and str(EXPRESSION_CHARS_MAX) in (answer.remark or "")

    def test_the_log_shows_the_beginning_of_a_wrong_expression(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with BrokerHarness(tmp_path, enable_property_filter=True) as harness:
            harness.ask(heartbeat(3, subString="(" + self.LONG, expressionType="SQL92"))
        lines = [one.getMessage() for one in caplog.records if "is not a valid filter" in one.message]
        assert len(lines) == 1 and len(lines[0]) < 400


class TestRequestsDuringParsing:
    """Requests and lost connections while a heartbeat or a pull waits for the parsing of its expression."""

    @pytest.fixture
    def reading(self) -> HeldWorker:
        return HeldWorker()

    @pytest.fixture
    def parsing(self, tmp_path: Path, reading: HeldWorker) -> Iterator[BrokerHarness]:
        grammar._outcomes.clear()
        with BrokerHarness(tmp_path, reading=reading, enable_property_filter=True) as harness:
            harness.send("t0", queue_id=0)
            yield harness

    LONG = " OR ".join(f"b = '{i}'" for i in range(100))

    def long_heartbeat(self, groups: int = 1) -> Command:
        return heartbeat(groups, subString=self.LONG, expressionType="SQL92")

    def leave(self, group: str, kind: str = "consumerGroup") -> Command:
        return Command(code=RequestCode.UNREGISTER_CLIENT, ext={"clientID": "c", kind: group})

    def test_a_client_whose_connection_is_lost_does_not_join(self, parsing: BrokerHarness, reading: HeldWorker) -> None:
        asked = parsing.submit(self.long_heartbeat())
        parsing.lose(asked.connection)
        assert reading.run() == 1
        parsing.settle()
        assert not parsing.broker.parts.clients.consumers and not len(parsing.broker.parts.clients.unfinished)

    def test_a_group_that_the_client_left_is_not_registered(self, parsing: BrokerHarness, reading: HeldWorker) -> None:
        asked = parsing.submit(self.long_heartbeat(2))
        assert parsing.ask(self.leave("g0")).code == 0
        reading.run()
        parsing.settle()
        assert asked.answer is not None and asked.answer.code == 0
        assert list(parsing.broker.parts.clients.consumers) == ["g1"] and not len(
            parsing.broker.parts.clients.unfinished
        )

    def test_a_producer_group_that_the_client_left_is_not_registered(
        self, parsing: BrokerHarness, reading: HeldWorker
    ) -> None:
        command = self.long_heartbeat()
        command.body = command.body.replace(b'"producerDataSet": []', b'"producerDataSet": [{"groupName": "p"}]')
        parsing.submit(command)
        assert parsing.ask(self.leave("p", "producerGroup")).code == 0
        reading.run()
        parsing.settle()
        assert list(parsing.broker.parts.clients.consumers) == ["g0"] and not parsing.broker.parts.clients.producers

    def test_a_later_heartbeat_wins(self, parsing: BrokerHarness, reading: HeldWorker) -> None:
        parsing.submit(self.long_heartbeat(2))
        assert parsing.ask(heartbeat(1, subscriptions=2)).code == 0
        reading.run()
        parsing.settle()
        consumers = parsing.broker.parts.clients.consumers
        assert sorted(consumers) == ["g0", "g1"] and sorted(consumers["g0"].subscriptions) == ["t0", "t1"]

    def test_a_group_left_between_slices_is_not_registered(self, harness: BrokerHarness) -> None:
        with mock.patch.object(slices, "SLICE_S", 0.0):  # one group for each slice
            asked = harness.submit(heartbeat(100))
            assert len(harness.broker.parts.clients.consumers) < 10
            harness.ask(self.leave("g50"))
            harness.settle()
        assert asked.answer is not None and asked.answer.code == 0
        assert len(harness.broker.parts.clients.consumers) == 99 and not len(harness.broker.parts.clients.unfinished)

    def test_a_client_with_many_pulls_lost_between_slices_does_not_join(self, harness: BrokerHarness) -> None:
        harness.send("T", queue_id=0)
        with mock.patch.object(slices, "SLICE_S", 0.0), mock.patch.object(holds, "WOKEN_MAX", 1):
            for _ in range(50):
                harness.submit(harness.pull_command("T", offset=1, hold_ms=10_000))
            asked = harness.submit(heartbeat(100))
            harness.lose(asked.connection)
            harness.settle()
        assert not harness.broker.parts.clients.consumers and not len(harness.broker.parts.clients.unfinished)

    def test_a_heartbeat_without_a_free_slice_is_rejected(self, harness: BrokerHarness) -> None:
        with mock.patch.object(slices, "UNDER_WAY_MAX", 0):
            assert harness.ask(heartbeat(100)).code == ResponseCode.SYSTEM_BUSY
        assert not len(harness.broker.parts.clients.unfinished)

    def pull(self, harness: BrokerHarness) -> Ask:
        fields = {"subscription": self.LONG, "expressionType": "SQL92"}
        return harness.submit(harness.pull_command("t0", offset=1, hold_ms=10_000, **fields))

    def test_pulls_of_a_lost_client_are_not_held(self, parsing: BrokerHarness, reading: HeldWorker) -> None:
        asked = [self.pull(parsing) for _ in range(50)]
        parsing.lose(asked[0].connection)
        reading.run()
        parsing.settle()
        assert not len(parsing.broker.parts.holds)

    def test_a_pull_beyond_the_limit_of_holds_is_rejected_after_parsing(
        self, parsing: BrokerHarness, reading: HeldWorker
    ) -> None:
        failed = parsing.broker.dispatch.counts["failed"]
        with mock.patch.object(holds, "HOLDS_OF_ONE_MAX", 1):
            first, second = self.pull(parsing), self.pull(parsing)
            reading.run()
            parsing.settle()
        assert first.answer is None and len(parsing.broker.parts.holds) == 1
        assert second.answer is not None and second.answer.code == ResponseCode.SYSTEM_BUSY
        assert parsing.broker.dispatch.counts["failed"] == failed + 1
