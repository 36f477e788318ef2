"""The small handlers: offsets, members, locks, topics, runtime info and unsupported requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wheelmq.broker.state.locks import QueueLocks
from wheelmq.delay.listing import END
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.observe.ticks import PROCESSOR_EVERY
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness


def send_heartbeat(
    harness: BrokerHarness,
    connection: FakeConnection,
    client: str = "c",
    group: str = "g",
    *,
    producers: tuple[str, ...] = (),
    **consumer: Any,
) -> Command:
    data = [{"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*"}], **consumer}]
    body = {"clientID": client, "consumerDataSet": data, "producerDataSet": [{"groupName": name} for name in producers]}
    answer = harness.ask(Command(code=RequestCode.HEART_BEAT, body=bodies.write(body)), connection)
    assert answer.code == 0
    return answer


def take_notified_groups(connection: FakeConnection) -> list[str]:
    """Return the groups of the notifications that the connection got since the last call."""
    assert all(request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for request in connection.requests)
    assert all(request.is_oneway for request in connection.requests)
    groups = [request.ext["consumerGroup"] for request in connection.requests]
    connection.requests.clear()
    return groups


class TestConsumerOffsets:
    FIELDS = {"consumerGroup": "g", "topic": "T", "queueId": 0}

    def query(self, harness: BrokerHarness, **fields: object) -> Command:
        return harness.ask_code(RequestCode.QUERY_CONSUMER_OFFSET, **{**self.FIELDS, **fields})

    def update(self, harness: BrokerHarness, **fields: object) -> Command:
        harness.broker.parts.groups.get("g")
        return harness.ask_code(RequestCode.UPDATE_CONSUMER_OFFSET, **{**self.FIELDS, "commitOffset": 5, **fields})

    def test_a_committed_offset_is_returned(self, harness: BrokerHarness) -> None:
        harness.send("T")
        assert self.update(harness).code == 0
        assert self.query(harness).ext == {"offset": "5"}
        assert self.update(harness, commitOffset=3).code == 0  # it may go back
        assert self.query(harness).ext == {"offset": "3"}

    def test_a_new_group_begins_at_the_first_existing_message(self, harness: BrokerHarness) -> None:
        harness.send("T")
        assert self.query(harness).ext == {"offset": "0"}
        assert self.query(harness, setZeroIfNotFound=True).ext == {"offset": "0"}
        answer = self.query(harness, setZeroIfNotFound=False)
        assert (answer.code, answer.remark) == (22, "Not found, do not set to zero, maybe this group boot first")

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"consumerGroup": "no group!"}, 26),
            ({"consumerGroup": "unheardOf"}, 26),
            ({"topic": "nowhere"}, 17),
            ({"queueId": None}, 29),
            ({"commitOffset": None}, 29),
            ({"queueId": -1}, 29),
            ({"queueId": 8192}, 29),
        ],
    )
    def test_an_invalid_commit_is_rejected(self, harness: BrokerHarness, fields: dict[str, object], code: int) -> None:
        harness.send("T")
        assert self.update(harness, **fields).code == code

    def test_a_oneway_commit_is_stored_without_an_answer(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.broker.parts.groups.get("g")
        ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "9"}
        asked = harness.submit(Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext), oneway=True)
        harness.tick()
        assert asked.answer is None
        assert self.query(harness).ext == {"offset": "9"}

    @pytest.mark.parametrize(("clean", "idle_ms", "kept"), [(True, 0, True), (False, 0, False), (False, 5000, True)])
    def test_offsets_survive_a_stop_once_they_are_saved(
        self, harness: BrokerHarness, clean: bool, idle_ms: int, kept: bool
    ) -> None:
        for _ in range(5):
            harness.send("T")
        self.update(harness)
        harness.advance(idle_ms)
        harness.restart(clean=clean)
        assert self.query(harness).ext == {"offset": "5" if kept else "0"}

    def test_an_offset_file_of_apaches_broker_is_read(self, harness: BrokerHarness) -> None:
        for _ in range(7):
            harness.send("T")
        harness.stop()
        path = harness.disk.list(harness._folder / "config")
        assert path
        (harness._folder / "config" / "consumerOffset.json").write_text(
            '{\n\t"dataVersion":{"counter":1},\n\t"offsetTable":{"T@g":{0:7,1:3},"T@g@broadcast":{0:1}}}'
        )
        harness.start()
        assert self.query(harness).ext == {"offset": "7"}


class TestQueueOffsets:
    def ask(self, harness: BrokerHarness, code: RequestCode, **fields: object) -> str:
        answer = harness.ask_code(code, **{"topic": "T", "queueId": 0, **fields})
        assert answer.code == 0
        return answer.ext["offset"]

    def test_the_bounds_of_a_queue_are_returned(self, harness: BrokerHarness) -> None:
        for _ in range(3):
            harness.send("T")
        assert self.ask(harness, RequestCode.GET_MAX_OFFSET) == "3"
        assert self.ask(harness, RequestCode.GET_MIN_OFFSET) == "0"
        for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            assert self.ask(harness, code, topic="nowhere") == self.ask(harness, code, queueId=77) == "0"

    @pytest.mark.parametrize(
        ("at_ms", "lower", "upper"),
        [
            (-1, "0", "0"),
            (0, "0", "1"),
            (5, "2", "1"),
            (10, "2", "2"),
            (15, "3", "2"),
            (20, "3", "3"),
            (99, "4", "3"),
        ],
    )
    def test_a_search_by_time_finds_the_message_at_either_boundary(
        self, harness: BrokerHarness, at_ms: int, lower: str, upper: str
    ) -> None:
        """Messages are stored at 0, 0, 10 and 20 ms.

        LOWER finds the first message at or after a time, and UPPER the last one at or before it.
        """
        start_ms = harness.now_ms
        for wait_ms in (0, 0, 10, 10):
            harness.clock.advance(wait_ms)
            harness.send("T")
        fields = {"timestamp": start_ms + at_ms}
        assert self.ask(harness, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **fields) == lower
        assert self.ask(harness, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, boundaryType="LOWER", **fields) == lower
        assert self.ask(harness, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, boundaryType="UPPER", **fields) == upper

    @pytest.mark.parametrize("at_ms", [0, 99])
    def test_a_search_for_the_upper_boundary_finds_the_last_message(self, harness: BrokerHarness, at_ms: int) -> None:
        for _ in range(3):
            harness.send("T")
        fields = {"timestamp": harness.now_ms + at_ms, "boundaryType": "UPPER"}
        assert self.ask(harness, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **fields) == "2"

    def test_a_search_in_an_unknown_queue_returns_zero(self, harness: BrokerHarness) -> None:
        assert self.ask(harness, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=5) == "0"


class TestLocks:
    def ask(self, harness: BrokerHarness, code: RequestCode, client: str, *queues: int) -> list[int]:
        names = [{"brokerName": "broker-a", "queueId": queue, "topic": "T"} for queue in queues]
        body = bodies.write({"clientId": client, "consumerGroup": "g", "mqSet": names})
        answer = harness.ask(Command(code=code, body=body))
        assert answer.code == 0
        if code == RequestCode.UNLOCK_BATCH_MQ:
            return []
        return [queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]]

    def lock(self, harness: BrokerHarness, client: str, *queues: int) -> list[int]:
        return self.ask(harness, RequestCode.LOCK_BATCH_MQ, client, *queues)

    def test_only_one_client_locks_a_queue(self, harness: BrokerHarness) -> None:
        assert self.lock(harness, "a", 0, 1) == [0, 1]
        assert self.lock(harness, "b", 0, 1, 2) == [2]
        assert self.lock(harness, "a", 1) == [1]

    def test_a_lock_expires_after_a_minute(self, harness: BrokerHarness) -> None:
        self.lock(harness, "a", 0)
        harness.advance(60_000)
        assert self.lock(harness, "b", 0) == []
        harness.advance(1)
        assert self.lock(harness, "b", 0) == [0]
        assert self.lock(harness, "a", 0) == []

    def test_a_repeated_lock_is_renewed(self, harness: BrokerHarness) -> None:
        self.lock(harness, "a", 0)
        harness.advance(40_000)
        self.lock(harness, "a", 0)
        harness.advance(40_000)
        assert self.lock(harness, "b", 0) == []

    def test_only_the_owner_unlocks_a_queue(self, harness: BrokerHarness) -> None:
        self.lock(harness, "a", 0)
        self.ask(harness, RequestCode.UNLOCK_BATCH_MQ, "b", 0)
        assert self.lock(harness, "b", 0) == []
        self.ask(harness, RequestCode.UNLOCK_BATCH_MQ, "a", 0)
        assert self.lock(harness, "b", 0) == [0]

    def test_spent_messages_of_an_ordered_group_become_dead_letters(self, harness: BrokerHarness) -> None:
        self.lock(harness, "a", 0)
        harness.send("%RETRY%g", b"x", j=1)
        assert harness.bodies("%DLQ%g") == [b"x"]

    def test_a_oneway_unlock_gets_no_answer(self, harness: BrokerHarness) -> None:
        self.lock(harness, "a", 0)
        names = [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]
        body = bodies.write({"clientId": "a", "consumerGroup": "g", "mqSet": names})
        asked = harness.submit(Command(code=RequestCode.UNLOCK_BATCH_MQ, body=body), oneway=True)
        assert self.lock(harness, "b", 0) == [0]
        assert asked.answer is None

    def test_expired_locks_are_removed(self, harness: BrokerHarness) -> None:
        self.lock(harness, "a", 0, 1, 2)
        harness.advance(75_000)
        assert len(harness.broker.parts.locks) == 0 and not harness.broker.parts.locks._locks

    def test_the_number_of_locks_is_limited(self) -> None:
        locks = QueueLocks(1000, count_max=3)
        queues = [bodies.QueueName(broker_name="b", queue_id=i, topic="T") for i in range(5)]
        assert locks.lock("g", queues, "a", 0) == queues[:3]
        assert locks.lock("other", queues[:1], "b", 1000) == [] and len(locks._locks) == 1
        assert locks.lock("other", queues, "b", 1001) == queues[:3]
        assert len(locks) == 3


class TestTopics:
    def create(self, harness: BrokerHarness, **fields: object) -> Command:
        given = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 2, "perm": 6}
        return harness.ask_code(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**given, **fields})

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_created_topic_survives_a_restart(self, harness: BrokerHarness, clean: bool) -> None:
        assert self.create(harness, order=True).code == 0
        harness.restart(clean=clean)
        config = harness.broker.parts.topics.get("T")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) == (4, 2, 6, True)

    def test_a_changed_topic_increments_the_version(self, harness: BrokerHarness) -> None:
        self.create(harness)
        version = harness.broker.parts.topics.version.counter
        self.create(harness, perm=4)
        config = harness.broker.parts.topics.get("T")
        assert config is not None and config.perm == 4
        assert harness.broker.parts.topics.version.counter == version + 1

    @pytest.mark.parametrize("topic", ["", "a b", "x" * 128, "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
    def test_invalid_and_reserved_names_are_rejected(self, harness: BrokerHarness, topic: str) -> None:
        assert self.create(harness, topic=topic).code == ResponseCode.INVALID_PARAMETER
        assert harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic).code == ResponseCode.INVALID_PARAMETER

    def test_a_deleted_topic_stays_deleted_after_a_restart(self, harness: BrokerHarness) -> None:
        self.create(harness)
        for _ in range(2):
            assert harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
        harness.restart()
        assert harness.broker.parts.topics.get("T") is None

    def test_an_unreadable_topic_file_prevents_the_start(self, harness: BrokerHarness) -> None:
        self.create(harness)
        harness.stop()
        config = harness._folder / "config"
        (config / "topics.json").write_bytes(b"{")
        (config / "topics.json.bak").unlink(missing_ok=True)
        with pytest.raises(bodies.BodyError, match="repair the file or remove it"):
            harness.start()
        (config / "topics.json").unlink()
        harness.start()

    def test_system_topics_exist(self, harness: BrokerHarness) -> None:
        for topic, queues, perm in (("TBW102", 8, 7), ("SELF_TEST_TOPIC", 1, 6), ("DefaultCluster", 16, 7)):
            config = harness.broker.parts.topics.get(topic)
            assert config is not None and (config.write_queue_nums, config.perm) == (queues, perm)


class TestTimers:
    def test_the_timer_checkpoint_has_56_bytes(self, harness: BrokerHarness) -> None:
        answer = harness.ask_code(RequestCode.GET_TIMER_CHECK_POINT)
        assert (answer.code, len(answer.body)) == (0, 56)

    def test_timer_metrics_count_pending_messages_by_topic(self, harness: BrokerHarness) -> None:
        for topic, count in (("T", 3), ("U", 1)):
            for queue_id in range(count):
                harness.send(topic, delay_ms=5000, queue_id=queue_id)
        counts = json.loads(harness.ask_code(RequestCode.GET_TIMER_METRICS).body)["timingCount"]
        assert {topic: one["count"] for topic, one in counts.items()} == {"T": 3, "U": 1}
        harness.advance(5000)
        counts = json.loads(harness.ask_code(RequestCode.GET_TIMER_METRICS).body)["timingCount"]
        assert {topic: one["count"] for topic, one in counts.items()} == {"T": 0, "U": 0}

    def list(self, harness: BrokerHarness, **fields: object) -> tuple[list[dict[str, Any]], dict[str, str]]:
        answer = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, **fields)
        return [json.loads(line) for line in bytes(answer.body).splitlines()], answer.ext

    def test_pending_timers_are_listed_in_pages(self, harness: BrokerHarness) -> None:
        for i in range(5):
            harness.send("T" if i % 2 else "U", b"%d" % i, delay_ms=1000 * (i + 1), properties={"KEYS": f"k{i}"})
        lines, ext = self.list(harness)
        assert [line["queue_offset"] for line in lines] == [0, 1, 2, 3, 4]
        assert lines[3]["topic"] == "T" and lines[3]["keys"] == "k3" and lines[3]["state"] == "parked"
        assert lines[3]["due_ms"] == harness.now_ms + 4000
        assert ext == {"nextPlace": str(END), "isLast": "true"}
        harness.advance(2000)
        assert [line["queue_offset"] for line in self.list(harness)[0]] == [2, 3, 4]
        assert [line["queue_offset"] for line in self.list(harness, topic="T")[0]] == [3]
        lines, ext = self.list(harness, count=1)
        assert (lines[0]["queue_offset"], ext["nextPlace"]) == (2, str(timer_origin(3)))
        assert [line["queue_offset"] for line in self.list(harness, place=timer_origin(3))[0]] == [3, 4]
        assert self.list(harness, place=timer_origin(99))[0] == []


class TestRuntime:
    def test_the_runtime_info_has_the_figures_that_mqadmin_reads(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=60_000)
        table = json.loads(harness.ask_code(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
        assert all(isinstance(value, str) for value in table.values())
        for key in ("brokerActive", "putTps", "getTransferredTps", "pageCacheLockTimeMills", "commitLogDiskRatio"):
            assert key in table
        for pool in ("send", "pull", "ack"):
            assert table[f"{pool}ThreadPoolQueueSize"] == table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] == "0"
        assert (table["brokerVersionDesc"], table["brokerVersion"]) == ("V5_3_3", "479")
        assert table["timerCongestNum"] == "1" and table["timerOffsetBehind"] == "1"
        assert int(table["commitLogMaxOffset"]) == harness.broker.parts.store.log.end

    def test_the_metrics_request_returns_timers_and_ticks(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=500)
        harness.advance(500)
        for _ in range(PROCESSOR_EVERY):
            harness.send("T")
        found = json.loads(harness.ask_code(RequestCode.WMQ_METRICS).body)
        assert found["timers"]["released"]["released"] == 1
        assert found["timers"]["pending"] == 0
        assert found["takes_sends"] is True
        ticks = found["ticks"]
        assert ticks["wall_ms"]["count"] >= PROCESSOR_EVERY > ticks["processor_ms"]["count"] >= 1
        assert set(ticks["wall_ms"]) == {"count", "mean", "p50", "p99", "max"} and ticks["idle"] >= 0


def test_the_earliest_store_time_of_a_queue_is_returned(harness: BrokerHarness) -> None:
    def earliest(topic: str, queue_id: int) -> str:
        answer = harness.ask_code(RequestCode.GET_EARLIEST_MSG_STORETIME, topic=topic, queueId=queue_id)
        assert answer.code == 0
        return answer.ext["timestamp"]

    assert earliest("T", 0) == "-1"
    harness.send("T")
    first_ms = harness.now_ms
    harness.advance(1000)
    harness.send("T")
    assert (earliest("T", 0), earliest("T", 1)) == (str(first_ms), "-1")
