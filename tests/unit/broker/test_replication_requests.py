"""WheelMQ's own requests about replication: the state, the filters, a promotion, a hand-over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tests.unit.broker.test_handlers import send_heartbeat
from wheelmq.formats.disk.epochs import Epoch
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replica import FakeReplica

SLAVE: dict[str, Any] = {"broker_id": 1, "broker_role": "SLAVE"}


def state_of(harness: BrokerHarness) -> ReplicationState:
    answer = harness.ask_code(RequestCode.WMQ_REPLICATION_STATE)
    return msgspec.json.decode(bytes(answer.body), type=ReplicationState)


def test_the_state_names_role_epoch_and_ends(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        harness.send("T")
        state, last = state_of(harness), harness.broker.parts.epochs.last
        assert last is not None and (state.is_master, state.broker_id, state.free_id) == (True, 0, 1)
        assert (state.epoch, state.log_start, state.log_end) == (last.number, 0, harness.broker.parts.store.log.end)


def test_the_state_shows_which_tables_have_changed(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, enable_property_filter=True) as harness:
        before = state_of(harness).versions
        harness.send("New")
        topics = state_of(harness).versions
        harness.broker.parts.consumer_offsets.commit("g", "T", 0, 1)
        offsets = state_of(harness).versions
        assert [name for name in before if before[name] != topics[name]] == ["topics"]
        assert [name for name in before if topics[name] != offsets[name]] == ["offsets"]


def test_a_slave_of_apache_gets_an_empty_table_of_request_modes(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        answer = harness.ask_code(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert answer.code == ResponseCode.SUCCESS and json.loads(answer.body) == {"messageRequestModeMap": {}}


def test_filters_are_given_as_consumer_filter_json_has_them(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, enable_property_filter=True) as harness:
        subscription = {"topic": "T", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1}
        send_heartbeat(harness, harness.client, subscriptionDataSet=[subscription])
        answer = harness.ask_code(RequestCode.WMQ_GET_FILTERS)
        found = json.loads(bytes(answer.body))["filterDataByTopic"]["T"]["groupFilterData"]["g"]
        assert found["expression"] == "a > 1"


def test_a_slave_is_promoted_only_with_all_records_that_are_asked_for(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, **SLAVE) as harness:
        harness.broker.parts.epochs.follow([Epoch(1 << 18, LogPosition(0))])
        answer = harness.ask_code(RequestCode.WMQ_PROMOTE, leastLogEnd=1)
        assert answer.code == ResponseCode.INVALID_PARAMETER and "ends at 0, before 1" in (answer.remark or "")
        assert harness.ask_code(RequestCode.WMQ_PROMOTE).code == ResponseCode.SUCCESS
        assert state_of(harness).is_master and harness.send("T").code == ResponseCode.SUCCESS
        again = harness.ask_code(RequestCode.WMQ_PROMOTE)
        assert again.code == ResponseCode.INVALID_PARAMETER and "master already" in (again.remark or "")


def test_a_master_that_hands_over_stores_and_releases_nothing(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        harness.send("T", b"timer", delay_ms=500)
        assert harness.ask_code(RequestCode.WMQ_HAND_OVER, successor="h:1").code == ResponseCode.SLAVE_NOT_AVAILABLE
        replica = FakeReplica(harness)
        replica.report(0)
        answer = harness.ask_code(RequestCode.WMQ_HAND_OVER, successor="h:1")
        end = int(answer.ext["logEnd"])
        assert end == harness.broker.parts.store.log.end
        answer = harness.send("T")
        assert answer.code == ResponseCode.SYSTEM_BUSY and "hands over to the slave at h:1" in (answer.remark or "")
        harness.advance(2000)
        assert harness.broker.parts.store.log.end == end
        assert replica.frames()[-1].position <= end, "the replica still gets the log"
        harness.broker.parts.replication.resume()
        harness.settle()
        assert harness.bodies("T") == [b"timer"]


def test_a_slave_that_has_never_followed_is_not_promoted(tmp_path: Path) -> None:
    """Its epoch would not be later than that of a master which it does not know."""
    with BrokerHarness(tmp_path, **SLAVE) as harness:
        answer = harness.ask_code(RequestCode.WMQ_PROMOTE)
        assert answer.code == ResponseCode.INVALID_PARAMETER and "never followed a master" in (answer.remark or "")
        assert not state_of(harness).is_master
