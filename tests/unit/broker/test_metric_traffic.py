"""Metrics of messages, bytes, dead letters, groups, connections, disk and process, under RocketMQ 5's names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from tests.unit.broker.metric_samples import samples_by, samples_of
from tests.unit.broker.test_send_back import send_back
from wheelmq.broker import group_progress
from wheelmq.broker.metric_families import Families
from wheelmq.broker.metrics import connections, lag
from wheelmq.broker.metrics.builder import FamilyBuilder
from wheelmq.broker.metrics.connections import connection_families
from wheelmq.broker.metrics.lag import lag_families
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire import metric_families
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.metric_families import MetricFamily
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness

IN, OUT = "rocketmq_messages_in_total", "rocketmq_messages_out_total"
BYTES_IN, BYTES_OUT = "rocketmq_throughput_in_total", "rocketmq_throughput_out_total"


def commit(harness: BrokerHarness, topic: str, offset: int, group: str = "consumers", queue_id: int = 0) -> None:
    assert harness.broker.parts.groups.get(group) is not None, "the broker creates groups"
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    answer = harness.ask_code(code, consumerGroup=group, topic=topic, queueId=queue_id, commitOffset=offset)
    assert answer.code == ResponseCode.SUCCESS


def test_messages_and_bytes_are_counted_in_and_out(harness: BrokerHarness) -> None:
    for body in (b"a", b"bb", b"ccc"):
        harness.send("T", body)
    harness.send("U", b"u", delay_ms=500)
    assert samples_of(harness, OUT) == [] == samples_of(harness, BYTES_OUT)
    first = harness.pull("T", maxMsgNums=2).records
    topics = {labels["topic"]: value for labels, value in samples_of(harness, IN)}
    assert topics == {"T": 3, "rmq_sys_wheel_timer": 1}, "a timer counts in its queue until it is due"
    assert ({"topic": "rmq_sys_wheel_timer", "is_system": "true"}, 1) in samples_of(harness, IN)
    labels = {"topic": "T", "consumer_group": "consumers", "is_system": "false"}
    assert samples_of(harness, OUT) == [(labels, 2)]
    assert samples_of(harness, BYTES_OUT) == [(labels, sum(record.size for record in first))]
    harness.advance(500)
    assert samples_by(harness)[IN, "U"] == 1
    size = sum(record.size for record in (*first, *harness.pull("T", offset=2).records))
    assert samples_of(harness, OUT) == [(labels, 3)] and samples_of(harness, BYTES_OUT) == [(labels, size)]
    assert ({"topic": "T", "is_system": "false"}, size) in samples_of(harness, BYTES_IN)


def test_sizes_of_records_are_a_histogram(harness: BrokerHarness) -> None:
    for size in (10, 2000, 5000, 600_000):
        harness.send("T", b"x" * size)
    for _ in range(3):  # in one round
        harness.submit(harness.send_command("T", b"x" * 2000))
    harness.tick()
    found = samples_by(harness, "le")
    name = "rocketmq_message_size_bucket"
    assert [found[name, str(bound)] for bound in (1024, 4096, 524_288, 1_048_576)] == [1, 5, 6, 7]
    assert found[name, "+Inf"] == 7 == found["rocketmq_message_size_count", ""]
    assert found["rocketmq_message_size_sum", ""] == sum(record.size for record in harness.read_queue("T"))


def test_retries_do_not_count_as_incoming_and_dead_letters_count_by_group(harness: BrokerHarness) -> None:
    harness.send("T", b"failed")
    (record,) = harness.read_queue("T")
    assert send_back(harness, record).code == 0
    name = "rocketmq_send_to_dlq_messages_total"
    assert samples_of(harness, name) == []
    harness.advance(11_000)
    assert harness.bodies("%RETRY%g") == [b"failed"]
    assert send_back(harness, record, maxReconsumeTimes=0).code == 0
    labels = {"topic": "T", "consumer_group": "g", "is_system": "false"}
    assert samples_of(harness, name) == [(labels, 1)]
    spent = harness.send("%RETRY%g", b"spent", j=17, l=16, properties={props.RETRY_TOPIC: "T"})
    assert spent.code == 0 and len(harness.bodies("%DLQ%g")) == 2
    assert samples_of(harness, name) == [(labels, 2)]
    assert {one["topic"] for one, _ in samples_of(harness, IN)} == {"T", "SCHEDULE_TOPIC_XXXX"}


def test_the_lag_of_a_group_is_in_messages_and_in_milliseconds(harness: BrokerHarness) -> None:
    for _ in range(3):
        harness.send("T", b"early")
        harness.advance(1000)
    harness.send("T", b"late", queue_id=1)
    harness.pull("T", maxMsgNums=2)
    commit(harness, "T", 1)
    harness.advance(500)
    labels = {"consumer_group": "consumers", "topic": "T", "is_retry": "false", "is_system": "false"}
    for name, value in (
        ("rocketmq_consumer_lag_messages", 3),
        ("rocketmq_consumer_lag_latency", 2500),
        ("rocketmq_consumer_inflight_messages", 1),
        ("rocketmq_consumer_ready_messages", 2),
        ("rocketmq_consumer_queueing_latency", 1500),
    ):
        assert samples_of(harness, name) == [(labels, value)], name
    commit(harness, "T", 3)
    commit(harness, "T", 1, queue_id=1)
    assert [value for name, _ in lag.FAMILIES for _, value in samples_of(harness, name)] == [0] * 5
    harness.restart()
    harness.send("T", b"after the restart")
    assert samples_by(harness)["rocketmq_consumer_lag_messages", "T"] == 1
    assert samples_by(harness)["rocketmq_consumer_inflight_messages", "T"] == 0, "nothing was pulled since the start"


def test_the_lag_of_a_retry_topic_has_a_label(harness: BrokerHarness) -> None:
    harness.send("T", b"failed")
    (record,) = harness.read_queue("T")
    assert send_back(harness, record).code == 0
    harness.advance(11_000)
    commit(harness, "%RETRY%g", 0, "g")
    labels = {"consumer_group": "g", "topic": "%RETRY%g", "is_retry": "true", "is_system": "false"}
    assert samples_of(harness, "rocketmq_consumer_lag_messages") == [(labels, 1)]


def test_too_many_queues_are_reported(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_progress, "QUEUES_MAX", 4)
    harness.send("T")
    commit(harness, "T", 0)
    assert samples_by(harness)["wheelmq_consumer_lag_complete", ""] == 1
    harness.send("U")
    commit(harness, "U", 0)
    assert samples_by(harness)["wheelmq_consumer_lag_complete", ""] == 0
    assert len(samples_of(harness, "rocketmq_consumer_lag_messages")) == 1


def beat(harness: BrokerHarness, connection: FakeConnection, client: str, language: str, version: int) -> None:
    body = {
        "clientID": client,
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [{"groupName": "g", "consumeType": "CONSUME_ACTIVELY", "subscriptionDataSet": []}],
    }
    command = Command(code=RequestCode.HEART_BEAT, body=json.dumps(body).encode(), language=language, version=version)
    assert harness.ask(command, connection).code == ResponseCode.SUCCESS


def test_clients_are_counted_by_language_version_and_group(harness: BrokerHarness) -> None:
    opened = [harness.connect() for _ in range(3)]
    for number, (language, version) in enumerate((("JAVA", 479), ("JAVA", 479), ("GO", 317))):
        beat(harness, opened[number], f"c{number}", language, version)
    java = {"language": "java", "version": "v5_3_3", "protocol_type": "remoting"}
    go = {"language": "go", "version": "v4_5_2", "protocol_type": "remoting"}
    found = samples_of(harness, "rocketmq_producer_connections")
    assert sorted(found, key=str) == sorted([(java, 2.0), (go, 1.0)], key=str)
    more = {"consumer_group": "g", "consume_mode": "pull", "is_system": "false"}
    found = samples_of(harness, "rocketmq_consumer_connections")
    assert sorted(found, key=str) == sorted([({**java, **more}, 2.0), ({**go, **more}, 1.0)], key=str)
    harness.lose(opened[2])
    assert samples_of(harness, "rocketmq_producer_connections") == [(java, 2)]


def test_requests_are_counted_by_outcome(harness: BrokerHarness) -> None:
    before = samples_by(harness, "how")
    assert before["wheelmq_requests_total", "unsupported"] == 0
    harness.ask(Command(code=99_999))
    harness.ask_code(RequestCode.GET_BROKER_RUNTIME_INFO)
    after = samples_by(harness, "how")
    assert after["wheelmq_requests_total", "unsupported"] == 1
    assert after["wheelmq_requests_total", "served"] == before["wheelmq_requests_total", "served"] + 1


def test_the_disk_and_the_oldest_record_are_measured(harness: BrokerHarness) -> None:
    store = harness.broker.parts.store
    assert ("rocketmq_storage_message_reserve_time", "") not in samples_by(harness), "the log is empty"
    harness.send("T")
    harness.advance(3000)
    found = samples_by(harness)
    total, _ = store.disk.space(store.paths.root)
    assert found["wheelmq_disk_bytes", ""] == total > found["wheelmq_disk_free_bytes", ""] > 0
    assert found["rocketmq_storage_size", ""] == round(total * found["wheelmq_disk_used_ratio", ""])
    assert found["wheelmq_log_bytes", ""] == store.log.end - store.log.start > 0
    assert found["rocketmq_storage_message_reserve_time", ""] == 3000
    harness.disk.used = 0.41
    assert samples_by(harness)["wheelmq_disk_used_ratio", ""] == 0.41


def test_the_permission_and_the_sizes_of_tables_are_shown(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, broker_permission=4) as harness:
        before = samples_by(harness)
        assert before["rocketmq_broker_permission", ""] == 4
        harness.broker.parts.topics.create_for_group("%RETRY%g", 1)
        after = samples_by(harness)
        assert after["rocketmq_topic_number", ""] == before["rocketmq_topic_number", ""] + 1
        groups = len(harness.broker.parts.groups.table().subscription_group_table)
        assert after["rocketmq_consumer_group_number", ""] == groups > 0


def test_the_process_is_measured(harness: BrokerHarness) -> None:
    before = samples_by(harness)
    opened = [os.open("/", os.O_RDONLY) for _ in range(10)]
    try:
        after = samples_by(harness)
    finally:
        for one in opened:
            os.close(one)
    assert after["process_open_fds", ""] >= before["process_open_fds", ""] + 10
    assert abs(after["process_start_time_seconds", ""] - psutil.Process().create_time()) < 2
    assert after["process_cpu_seconds_total", ""] >= before["process_cpu_seconds_total", ""] > 0
    assert after["process_virtual_memory_bytes", ""] > after["process_resident_memory_bytes", ""] > 1 << 20


def test_a_request_returns_all_families(harness: BrokerHarness) -> None:
    harness.send("T")
    commit(harness, "T", 0)
    found = metric_families.read(harness.ask_code(RequestCode.WMQ_METRIC_FAMILIES).body)
    assert len(found) == len({family.name for family in found}) > 60
    by_name = {family.name: family for family in found}
    (sample,) = by_name["rocketmq_consumer_lag_messages"].samples
    assert (sample.labels, sample.value) == (("consumers", "T", "false", "false"), 1)
    labels = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    assert by_name["rocketmq_messages_in"].fixed_labels == labels


def test_the_answer_with_many_topics_is_computed_in_slices(harness: BrokerHarness) -> None:
    """Each piece of work takes a slice, as on a slow machine. Other requests are served meanwhile."""
    names = [f"T{number}" for number in range(30)]
    for name in names:
        harness.send(name)
        commit(harness, name, 0)
    harness.clock.creep_ms = 2
    asked = harness.submit(Command(code=RequestCode.WMQ_METRIC_FAMILIES))
    harness.tick()
    assert asked.answer is None
    assert harness.send("T0").code == ResponseCode.SUCCESS and asked.answer is None
    ticks = 0
    while asked.answer is None:
        harness.tick()
        ticks += 1
    assert ticks > 20
    families: list[MetricFamily] = metric_families.read(asked.answer.body)
    (lags,) = [family for family in families if family.name == "rocketmq_consumer_lag_messages"]
    assert sorted(sample.labels[1] for sample in lags.samples) == sorted(names)


def test_a_topic_with_many_queues_and_a_group_with_many_clients_take_several_steps(harness: BrokerHarness) -> None:
    harness.send("T", q=8)
    commit(harness, "T", 0)
    sources = harness.broker.parts.metric_sources
    config = sources.topics.get("T")
    assert config is not None
    queues, clients = 2 * lag.QUEUES_PER_STEP, 2 * connections.CLIENTS_PER_STEP
    config.read_queue_nums = queues
    for number in range(clients):
        beat(harness, harness.connect(), f"c{number}", "JAVA", 479)
    build = FamilyBuilder({})
    assert [*lag_families(sources, build)].count(None) == queues // lag.QUEUES_PER_STEP + 1
    assert [*connection_families(sources, build)].count(None) == 2 * clients // connections.CLIENTS_PER_STEP
    found = samples_of(harness, "rocketmq_producer_connections")
    assert [value for _, value in found] == [clients]


def test_the_slots_of_the_wheel_are_counted_in_several_steps(harness: BrokerHarness) -> None:
    steps = [None if one is None else one.name for one in Families(harness.broker.parts.metric_sources).steps()]
    end = steps.index("rocketmq_timer_message_snapshot")
    assert steps[end - 4 : end] == [None] * 4, "the last range of 57,600 slots takes four"
