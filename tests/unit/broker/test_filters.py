"""Consume filters: SQL92 on pulls, the registration by heartbeats, and the file of filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from wheelmq.broker.state.consumer_filters import DIED_BEFORE_START_MS, SQL92
from wheelmq.filter.expression import Condition, Properties
from wheelmq.formats.names import SCHEDULE_TOPIC, retry_topic
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_SUSPEND
from wheelmq.testing.harness import Ask, BrokerHarness, FakeConnection

HOUR_MS = 3_600_000


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    with BrokerHarness(tmp_path / "store", enable_property_filter=True) as made:
        yield made


def sql(text: str, *, version: int = 1, topic: str = "T", **more: Any) -> dict[str, Any]:
    """Return a subscription by an SQL92 expression."""
    return {"topic": topic, "subString": text, "expressionType": SQL92, "subVersion": version, **more}


def send_heartbeat(
    harness: BrokerHarness,
    *subscriptions: dict[str, Any],
    group: str = "consumers",
    connection: FakeConnection | None = None,
) -> None:
    consumer = {"groupName": group, "subscriptionDataSet": list(subscriptions)}
    body = bodies.write({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []})
    assert harness.ask(Command(code=RequestCode.HEART_BEAT, body=body), connection).code == 0


def leave(harness: BrokerHarness, group: str = "consumers") -> None:
    assert harness.ask_code(RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup=group).code == 0


def pull(harness: BrokerHarness, topic: str = "T", *, version: int = 1, **fields: Any) -> tuple[int, list[bytes]]:
    """Pull without a subscription in the request. Returns the code and the bodies."""
    pulled = harness.pull(topic, sysFlag=0, subscription=None, subVersion=version, **fields)
    return pulled.answer.code, [record.message.body for record in pulled.records]


def stored_filters(harness: BrokerHarness) -> dict[str, Any]:
    """Return the filters in consumerFilter.json by topic and group."""
    raw = (harness.broker.parts.paths.config_file("consumerFilter.json")).read_bytes()
    table = msgspec.json.decode(raw)["filterDataByTopic"]
    assert all(one["topic"] == topic for topic, one in table.items())
    return {topic: one["groupFilterData"] for topic, one in table.items()}


class TestPull:
    @pytest.fixture(autouse=True)
    def messages(self, harness: BrokerHarness) -> None:
        for n in ("5", "15", "five", ""):
            harness.send("T", n.encode() or b"-", properties={"n": n, "TAGS": "A"} if n else {})

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("n = 5", [b"5"]),
            ("n > 4", [b"5", b"15"]),
            ("NOT (n > 5)", [b"5"]),
            ("n IS NULL", [b"-"]),
            ("TAGS = 'A' AND n IN ('five', '15')", [b"15", b"five"]),
            ("n CONTAINS '5'", [b"5", b"15"]),
            ("TRUE", [b"5", b"15", b"five", b"-"]),
            ("n > 99", []),
        ],
    )
    def test_a_pull_with_its_own_expression_gets_matching_messages(
        self, harness: BrokerHarness, text: str, found: list[bytes]
    ) -> None:
        pulled = harness.pull("T", subscription=text, expressionType=SQL92)
        assert [record.message.body for record in pulled.records] == found
        assert (pulled.answer.code, pulled.next_offset) == (0 if found else ResponseCode.PULL_RETRY_IMMEDIATELY, 4)

    @pytest.mark.parametrize(
        ("kind", "text"), [(SQL92, "n = "), (SQL92, ""), (SQL92, None), ("SQL99", "n = 5"), ("SQL92 ", "n = 5")]
    )
    def test_a_pull_with_an_invalid_expression_is_rejected(
        self, harness: BrokerHarness, kind: str, text: str | None
    ) -> None:
        answer = harness.pull("T", subscription=text, expressionType=kind).answer
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert (answer.remark or "").startswith("parse the consumer's subscription failed: ")

    @pytest.mark.parametrize("kind", ["", None, "TAG"])
    def test_a_pull_without_an_sql92_type_filters_by_tags(self, harness: BrokerHarness, kind: str | None) -> None:
        assert len(harness.pull("T", subscription="A", expressionType=kind).records) == 3

    def test_a_slow_filter_ends_its_pull_early(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """A long expression over many properties must not block the event loop."""
        real = Condition.matches

        def slow(condition: Condition, properties: Properties) -> bool:
            harness.clock.advance(6)
            return real(condition, properties)

        monkeypatch.setattr(Condition, "matches", slow)
        asked = {"subscription": "n IS NULL", "expressionType": SQL92}
        pulled = harness.pull("T", **asked)
        code, next_offset = pulled.answer.code, int(pulled.answer.ext["nextBeginOffset"])
        assert (code, next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 2)
        pulled = harness.pull("T", offset=next_offset, **asked)
        assert [record.message.body for record in pulled.records] == [b"-"]

    def test_a_filtered_pull_continues_after_its_last_message(self, harness: BrokerHarness) -> None:
        first = harness.pull("T", subscription="n > 4", expressionType=SQL92, maxMsgNums=1)
        assert ([record.message.body for record in first.records], first.next_offset) == ([b"5"], 1)
        second = harness.pull("T", 0, 1, subscription="n > 4", expressionType=SQL92)
        assert [record.message.body for record in second.records] == [b"15"]

    def test_a_pull_uses_the_newest_expression_of_a_heartbeat(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10"))
        assert pull(harness) == (0, [b"15"])
        send_heartbeat(harness, sql("n < 10", version=1))  # the version is not newer
        assert pull(harness) == (0, [b"15"])
        send_heartbeat(harness, sql("n < 10", version=2))
        assert pull(harness, version=2) == (0, [b"5"])
        assert pull(harness, version=3)[0] == ResponseCode.SUBSCRIPTION_NOT_LATEST

    def test_a_heartbeat_with_an_invalid_expression_removes_the_filter(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > "))
        assert pull(harness)[0] == ResponseCode.FILTER_DATA_NOT_EXIST
        send_heartbeat(harness, sql("n > 10", version=2))
        assert pull(harness)[0] == 0
        send_heartbeat(harness, sql("n > > 10", version=3))
        assert pull(harness)[0] == ResponseCode.FILTER_DATA_NOT_EXIST

    def test_a_heartbeat_without_an_expression_leaves_the_filter_outdated(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10", version=5))
        send_heartbeat(harness, sql("", version=6))
        assert pull(harness, version=6)[0] == ResponseCode.FILTER_DATA_NOT_LATEST

    @pytest.mark.parametrize("subscription", [sql("n > 10"), {"topic": "T", "subString": "B", "codeSet": [66]}])
    def test_class_filters_are_left_to_the_client(self, harness: BrokerHarness, subscription: dict[str, Any]) -> None:
        send_heartbeat(harness, {**subscription, "subVersion": 1, "classFilterMode": True})
        assert len(pull(harness)[1]) == 4

    def test_a_subscription_with_empty_tags_matches_no_message(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "T", "subString": " || ", "codeSet": [], "tagsSet": [], "subVersion": 1})
        assert pull(harness) == (ResponseCode.PULL_RETRY_IMMEDIATELY, [])

    def test_units_without_a_tag_code_pass_a_tag_filter(self, harness: BrokerHarness) -> None:
        harness.send("T", b"later", properties={"DELAY": "5", "TAGS": "A"})
        waiting = harness.pull(SCHEDULE_TOPIC, 4, subscription="X")  # its units hold a due time instead of a tag code
        assert [record.message.body for record in waiting.records] == [b"later"]

    def test_a_filtered_pull_skips_a_damaged_message(self, harness: BrokerHarness) -> None:
        log = harness.broker.parts.store.log
        log.damaged = frozenset({log.start})
        assert harness.pull("T", subscription="TRUE", expressionType=SQL92).records[0].message.body == b"15"


class TestSwitchedOff:
    """Filtering by SQL92 is off by default, as in Apache RocketMQ."""

    @pytest.fixture(autouse=True)
    def off(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.restart(enable_property_filter=False)

    def test_pulls_by_sql92_are_rejected(self, harness: BrokerHarness) -> None:
        answer = harness.pull("T", subscription="n = 5", expressionType=SQL92).answer
        assert answer.code == ResponseCode.SYSTEM_ERROR
        remark = (
            "The broker does not support consumer to filter message by SQL92: such filters are off by default, as with "
            "Apache RocketMQ; start the broker with enablePropertyFilter=true"
        )
        assert answer.remark == remark
        assert harness.pull("T", subscription="A", expressionType="TAG").answer.code == 20

    @pytest.mark.parametrize("text", ["n > 10", "n >"])
    def test_pulls_after_a_heartbeat_with_sql92_are_rejected(self, harness: BrokerHarness, text: str) -> None:
        send_heartbeat(harness, sql(text))
        assert pull(harness)[0] == ResponseCode.SYSTEM_ERROR

    def test_stored_filters_stay_unchanged_while_filtering_is_off(self, harness: BrokerHarness) -> None:
        harness.restart(enable_property_filter=True)
        send_heartbeat(harness, sql("n > 10"))
        harness.advance(10_000)
        before = stored_filters(harness)
        harness.restart(clean=False, enable_property_filter=False)
        send_heartbeat(harness, sql("n > 20", version=2))
        harness.restart()
        assert stored_filters(harness) == before

    def test_client_checks_of_sql92_are_rejected(self, harness: BrokerHarness) -> None:
        assert check(harness, sql("n = 5")).code == ResponseCode.SYSTEM_ERROR
        assert check(harness, {"topic": "T", "subString": "A"}).code == 0


def check(harness: BrokerHarness, subscription: dict[str, Any] | None) -> Command:
    body = bodies.write({"clientId": "c", "group": "consumers", "subscriptionData": subscription})
    return harness.ask(Command(code=RequestCode.CHECK_CLIENT_CONFIG, body=body))


class TestCheck:
    @pytest.mark.parametrize(
        ("subscription", "code", "remark"),
        [
            (None, 0, None),
            ({"topic": "T", "subString": "A"}, 0, None),
            ({"topic": "T", "subString": "A", "expressionType": None}, 0, None),
            (sql("n = 5"), 0, None),
            (sql("n = "), 23, "invalid SQL92 expression: it ends too early"),
            (sql(""), 23, "invalid SQL92 expression: it ends too early"),
            ({**sql("n"), "expressionType": "X"}, 23, "invalid X expression: unknown expression type X"),
        ],
    )
    def test_a_client_check_rejects_invalid_expressions(
        self, harness: BrokerHarness, subscription: dict[str, Any] | None, code: int, remark: str | None
    ) -> None:
        answer = check(harness, subscription)
        assert answer.code == code
        assert (answer.remark or "").startswith(remark or "") and (answer.remark is None) is (remark is None)

    def test_an_empty_client_check_succeeds_and_an_unreadable_one_fails(self, harness: BrokerHarness) -> None:
        assert harness.ask(Command(code=RequestCode.CHECK_CLIENT_CONFIG)).code == 0
        assert harness.ask(Command(code=RequestCode.CHECK_CLIENT_CONFIG, body=b"{")).code == ResponseCode.SYSTEM_ERROR


class TestHolds:
    @pytest.fixture(autouse=True)
    def topic(self, harness: BrokerHarness) -> None:
        harness.broker.parts.topics.create_for_group("T", 2)
        send_heartbeat(harness, sql("n > 10"))

    def hold(self, harness: BrokerHarness, offset: int = 0) -> Ask:
        command = harness.pull_command(
            "T", 0, offset, sysFlag=PULL_SUSPEND, subscription=None, subVersion=1, suspendTimeoutMillis=15_000
        )
        asked = harness.submit(command)
        harness.tick()
        return asked

    def test_only_a_matching_message_wakes_a_held_pull(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness)
        for n in ("5", "ten", "10"):
            harness.send("T", properties={"n": n})
        harness.send("T")
        assert asked.answer is None
        harness.send("T", properties={"n": "11"})
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.ext["nextBeginOffset"]) == (0, "5")

    def test_an_expired_pull_returns_the_offset_after_its_scan(self, harness: BrokerHarness) -> None:
        asked = self.hold(harness)
        for _ in range(3):
            harness.send("T", properties={"n": "5"})
        harness.advance(15_000)
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "3")

    def test_a_pull_over_messages_that_do_not_match_is_answered_at_once(self, harness: BrokerHarness) -> None:
        harness.send("T", properties={"n": "5"})
        asked = self.hold(harness)
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")
        assert self.hold(harness, 1).answer is None


class TestRetryTopics:
    """A consumer subscribes to its retry topic by tags, and receives all messages of it."""

    @pytest.fixture(autouse=True)
    def messages(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10"))
        for n in ("5", "15"):
            for origin in ("T", "U"):
                properties = {"n": n, "RETRY_TOPIC": origin}
                harness.send(retry_topic("consumers"), f"{origin}{n}".encode(), properties=properties)
        harness.send(retry_topic("consumers"), b"none", properties={"n": "5"})

    def test_a_pull_by_tags_gets_all_messages_of_the_retry_topic(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10"), {"topic": retry_topic("consumers"), "subString": "*", "subVersion": 1})
        assert len(pull(harness, retry_topic("consumers"))[1]) == 5

    @pytest.mark.parametrize(
        ("supported", "found"), [(False, [b"T5", b"U5", b"none"]), (True, [b"U5", b"T15", b"U15", b"none"])]
    )
    def test_expressions_apply_to_retry_topics_only_if_supported(
        self, harness: BrokerHarness, supported: bool, found: list[bytes]
    ) -> None:
        harness.restart(filter_support_retry=supported)
        send_heartbeat(harness, sql("n > 10"), sql("n = 5", topic=retry_topic("consumers")))
        assert pull(harness, retry_topic("consumers")) == (0, found)


class TestFile:
    def test_the_file_holds_the_expressions_of_heartbeats(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10", version=7), {"topic": "U", "subString": "A"})
        began_ms = harness.now_ms
        harness.advance(10_000)
        bits = {"bitNum": 112, "bitPos": stored_filters(harness)["T"]["consumers"]["bloomFilterData"]["bitPos"]}
        assert len(bits["bitPos"]) == 3
        assert stored_filters(harness) == {
            "T": {
                "consumers": {
                    "consumerGroup": "consumers",
                    "topic": "T",
                    "expression": "n > 10",
                    "expressionType": "SQL92",
                    "bornTime": began_ms,
                    "deadTime": 0,
                    "dead": False,
                    "clientVersion": 7,
                    "bloomFilterData": bits,
                }
            }
        }

    def test_no_file_is_written_without_valid_expressions(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "T", "subString": "A"}, sql("n >"))
        harness.restart()
        assert not harness.broker.parts.paths.config_file("consumerFilter.json").exists()

    def test_the_filter_of_an_unsubscribed_topic_is_marked_dead(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10"), sql("n > 20", topic="U"))
        harness.advance(5)
        send_heartbeat(harness, sql("n > 10"))
        now_ms = harness.now_ms
        harness.advance(10_000)
        assert (
            stored_filters(harness)["U"]["consumers"]["deadTime"],
            stored_filters(harness)["U"]["consumers"]["dead"],
        ) == (now_ms, True)
        assert not stored_filters(harness)["T"]["consumers"]["dead"]

    def test_the_filter_of_an_absent_group_is_deleted_later(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10"), group="other")
        send_heartbeat(harness, sql("n > 10"))
        harness.advance(7)
        leave(harness)
        left_ms = harness.now_ms
        harness.advance(10_000)
        assert stored_filters(harness)["T"]["consumers"]["deadTime"] == left_ms
        harness.restart(filter_data_clean_time_span=HOUR_MS)
        harness.advance(HOUR_MS - 60_000)
        send_heartbeat(harness, sql("n > 10"), group="other")
        assert stored_filters(harness)["T"].keys() == {"consumers", "other"}
        harness.advance(60_000)
        assert stored_filters(harness)["T"].keys() == {"other"}

    def test_a_returning_member_revives_its_filter(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10"))
        harness.advance(60_000)
        alive = stored_filters(harness)
        harness.restart(clean=False)
        known = harness.broker.parts.consumer_filters.find("T", "consumers")
        assert known is not None and known.is_dead
        assert known.data.dead_time == harness.now_ms - DIED_BEFORE_START_MS
        send_heartbeat(harness, sql("n > 10"))
        assert not known.is_dead
        harness.advance(10_000)
        assert stored_filters(harness) == alive

    def test_a_filter_dies_with_the_last_connection_of_its_group(self, harness: BrokerHarness) -> None:
        connections = [harness.connect(), harness.connect()]
        for connection in connections:
            send_heartbeat(harness, sql("n > 10"), connection=connection)
        known = harness.broker.parts.consumer_filters.find("T", "consumers")
        assert known is not None
        harness.lose(connections[0])
        assert not known.is_dead
        harness.lose(connections[1])
        assert known.is_dead

    def test_an_invalid_expression_in_the_file_is_ignored(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, sql("n > 10"), sql("n > 20", topic="U"))
        path = harness.broker.parts.paths.config_file("consumerFilter.json")
        harness.stop()
        path.write_bytes(path.read_bytes().replace(b"n > 20", b"n > > "))
        harness.start()
        assert harness.broker.parts.consumer_filters.find("U", "consumers") is None
        assert harness.broker.parts.consumer_filters.find("T", "consumers") is not None

    def test_a_file_written_by_apaches_broker_is_read(self, harness: BrokerHarness) -> None:
        path = harness.broker.parts.paths.config_file("consumerFilter.json")
        harness.stop()
        path.write_text(
            '{"filterDataByTopic":{"T":{"groupFilterData":{"consumers":{"bloomFilterData":{"bitNum":112,"bitPos":'
            '[1,2,3]},"bornTime":1700000000000,"clientVersion":3,"consumerGroup":"consumers","dead":false,"deadTime":0,'
            '"expression":"n > 10","expressionType":"SQL92","topic":"T"}},"topic":"T"}}}'
        )
        harness.start()
        harness.send("T", b"15", properties={"n": "15"})
        send_heartbeat(harness, sql("n < 10", version=3))  # the broker keeps its expression for a known version
        assert pull(harness, version=3) == (0, [b"15"])
