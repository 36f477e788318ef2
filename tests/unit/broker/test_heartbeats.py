"""Heartbeats of many groups, and the group table that they fill."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from wheelmq.broker.handlers.members import ENTRIES_MAX, EXPRESSION_CHARS_MAX
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store import config_file
from wheelmq.testing.disk import Call
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.offload import HeldOffload


def heartbeat(groups: int, subscriptions: int = 1, **fields: str) -> Command:
    consumer = {"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    of_each: list[dict[str, Any]] = [{"topic": f"t{i}", "subString": "*", **fields} for i in range(subscriptions)]
    consumers = [consumer | {"groupName": f"g{i}", "subscriptionDataSet": of_each} for i in range(groups)]
    body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": consumers}
    return Command(code=RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def test_a_thousand_new_groups_are_one_write_of_each_table(tmp_path: Path) -> None:
    tables = HeldOffload()
    with BrokerHarness(tmp_path, tables=tables) as harness:
        asked = harness.submit(heartbeat(1000))
        harness.settle()
        assert asked.answer is not None and asked.answer.code == 0  # it does not wait for the disk
        assert len(harness.broker.clients.consumers) == 1000 and not tables
        harness.advance(1000)
        with mock.patch.object(config_file, "save", wraps=config_file.save) as saves:
            tables.run()
        assert saves.call_count == 2
        harness.restart(clean=False)
        assert harness.broker.groups.known("g999") is not None and "%RETRY%g999" in harness.broker.topics


def test_a_clean_stop_saves_the_tables(harness: BrokerHarness) -> None:
    harness.ask(heartbeat(3))
    harness.restart()
    assert harness.broker.groups.known("g2") is not None and "%RETRY%g2" in harness.broker.topics


def test_many_groups_are_served_in_slices(harness: BrokerHarness) -> None:
    ticking = harness.clock.monotonic
    harness.clock.monotonic = lambda: ticking() + next(counter)  # type: ignore[method-assign]
    counter = iter(i * 0.001 for i in range(1_000_000))  # each look at the clock takes 1 ms
    asked = harness.submit(heartbeat(1000))
    served = len(harness.broker.clients.consumers)
    assert 0 < served < 10 and asked.answer is None
    harness.tick()
    assert served < len(harness.broker.clients.consumers) < 20
    harness.lose(asked.connection)
    harness.settle()
    assert not harness.broker.slices.has_more() and not harness.broker.clients.consumers


@pytest.mark.parametrize(("groups", "subscriptions"), [(ENTRIES_MAX // 2 + 1, 1), (1, ENTRIES_MAX)])
def test_too_many_are_refused(harness: BrokerHarness, groups: int, subscriptions: int) -> None:
    answer = harness.ask(heartbeat(groups, subscriptions))
    assert answer.code == ResponseCode.INVALID_PARAMETER and str(ENTRIES_MAX) in (answer.remark or "")
    assert not harness.broker.clients.consumers


def test_a_group_that_cannot_be_deleted_stays(harness: BrokerHarness) -> None:
    body = json.dumps({"groupName": "g", "retryMaxTimes": 3}).encode()
    assert harness.ask_code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0
    harness.broker.groups.forbid("g", "T", forbidden=True)
    harness.advance(2000)
    harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE])
    answer = harness.ask_code(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=True)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "subscriptionGroup.json" in (answer.remark or "")
    known = harness.broker.groups.known("g")
    assert known is not None and known.retry_max_times == 3 and harness.broker.groups.is_forbidden("g", "T")


class TestExpressions:
    LONG = " OR ".join(f"a = '{i}'" for i in range(100))

    def test_long_ones_are_parsed_off_the_loop(self, tmp_path: Path) -> None:
        reading = HeldOffload()
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
            assert harness.broker.consumer_filters.find("t0", "g0") is not None
            assert harness.ask(heartbeat(1, subString=self.LONG, expressionType="SQL92")).code == 0  # it is known now

    def test_too_many_characters_are_refused(self, harness: BrokerHarness) -> None:
        answer = harness.ask(heartbeat(40, 10, subString=self.LONG, expressionType="SQL92"))
        assert answer.code == ResponseCode.INVALID_PARAMETER and str(EXPRESSION_CHARS_MAX) in (answer.remark or "")

    def test_the_log_shows_the_beginning_of_a_wrong_one(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with BrokerHarness(tmp_path, enable_property_filter=True) as harness:
            harness.ask(heartbeat(3, subString="(" + self.LONG, expressionType="SQL92"))
        lines = [one.getMessage() for one in caplog.records if "no filter" in one.message]
        assert len(lines) == 1 and len(lines[0]) < 400
