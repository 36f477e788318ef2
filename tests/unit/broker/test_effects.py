"""Each supported key of Apache's broker has an effect, shown here or by another test file."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.broker import test_transactions
from tests.unit.broker.effects import Effect, Effects
from tests.unit.broker.test_file_effects import FILES
from tests.unit.broker.test_handlers import send_heartbeat, take_notified_groups
from tests.unit.broker.test_overload import ALL
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.registration import Registrar, register_command
from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings, MetricsExporter
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.bodies import PERM_INHERIT
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.limits import SocketOptions
from wheelmq.net.replica_port import BACKLOG
from wheelmq.testing.harness import SMALL, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

UNIT: Final = Path(__file__).parents[1]
ELSEWHERE: Final = {
    "authenticationEnabled": "broker/test_exposed_broker.py",
    "authenticationWhitelist": "auth/test_gate.py",
    "authorizationEnabled": "auth/test_gate.py",
    "authorizationWhitelist": "auth/test_gate.py",
    "initAuthenticationUser": "broker/test_user_requests.py",
    "metricsGrpcExporterTarget": "broker/test_otlp.py",
    "metricsGrpcExporterHeader": "broker/test_otlp.py",
    "metricGrpcExporterTimeOutInMills": "broker/test_otlp.py",
    "metricGrpcExporterIntervalInMills": "broker/test_otlp.py",
    "innerClientAuthenticationCredentials": "broker/test_user_requests.py",
    "autoCreateSubscriptionGroup": "broker/test_pull.py",
    "autoCreateTopicEnable": "broker/test_send.py",
    "accessMessageInMemoryMaxRatio": "broker/test_pull.py",
    "brokerFastFailureEnable": "broker/test_overload.py",
    "brokerPermission": "broker/test_config.py",
    "deleteWhen": "delay/blocks/test_messages.py",
    "diskSpaceWarningLevelRatio": "broker/test_put_statuses.py",
    "disappearTimeAfterStart": "broker/test_timer_settings.py",
    "enablePropertyFilter": "broker/test_filters.py",
    "fileReservedTime": "store/test_expiry.py",
    "filterDataCleanTimeSpan": "broker/test_filters.py",
    "filterSupportRetry": "broker/test_filters.py",
    "flushCommitLogLeastPages": "broker/test_flush.py",
    "flushCommitLogThoroughInterval": "broker/test_flush.py",
    "flushDiskType": "broker/test_flush.py",
    "litePullMessageEnable": "broker/test_pull.py",
    "longPollingEnable": "broker/test_held_pulls.py",
    "mappedFileSizeCommitLog": "store/test_expiry.py",
    "mappedFileSizeConsumeQueue": "broker/test_pull.py",
    "maxIndexNum": "store/test_index.py",
    "maxFilterMessageSize": "broker/test_pull.py",
    "maxMessageSize": "broker/test_put_statuses.py",
    "messageDelayLevel": "delay/test_level_queues.py",
    "messageIndexEnable": "store/test_index.py",
    "namesrvAddr": "client/conftest.py",
    "osPageCacheBusyTimeOutMills": "broker/test_put_statuses.py",
    "recallMessageEnable": "delay/test_cancel.py",
    "rejectPullConsumerEnable": "broker/test_pull.py",
    "slaveReadEnable": "broker/test_pull.py",
    "serverChannelMaxIdleTimeSeconds": "broker/test_listening.py",
    "startAcceptSendRequestTimeStamp": "broker/test_put_statuses.py",
    "storePathRootDir": "client/conftest.py",
    "storeReplyMessageEnable": "broker/test_replies.py",
    "syncFlushTimeout": "broker/test_flush.py",
    "timerCheckMetricsWhen": "broker/test_count_audit.py",
    "timerCongestNumEachSlot": "broker/test_timer_settings.py",
    "timerEnableCheckMetrics": "broker/test_count_audit.py",
    "timerPrecisionMs": "delay/test_release.py",
    "timerProgressLogIntervalMs": "broker/test_timer_settings.py",
    "timerRollWindowSlot": "delay/timer/test_long_stops.py",
    "timerWarmEnable": "delay/test_prefetch.py",
    "timerWheelEnable": "broker/test_send.py",
    "tls.client.authServer": "broker/test_tls.py",
    "tls.client.certPath": "broker/test_tls.py",
    "tls.client.keyPath": "broker/test_tls.py",
    "tls.client.trustCertPath": "broker/test_tls.py",
    "tls.server.certPath": "broker/test_tls.py",
    "tls.server.keyPath": "broker/test_tls.py",
    "tls.server.mode": "broker/test_tls.py",
    "tls.server.need.client.auth": "broker/test_tls.py",
    "tls.server.trustCertPath": "broker/test_tls.py",
    "transactionCheckMax": "broker/test_transaction_checks.py",
    "transactionOpMsgMaxSize": "broker/test_transactions.py",
    "rejectTransactionMessage": "broker/test_transactions.py",
    "useServerSideResetOffset": "broker/test_resets.py",
    "brokerRole": "broker/test_replicas.py",
    "haFlowControlEnable": "broker/test_replicas.py",
    "haHousekeepingInterval": "broker/test_replicas.py",
    "haListenPort": "broker/test_following.py",
    "haMasterAddress": "broker/test_following.py",
    "haMaxGapNotInSync": "broker/test_replicas.py",
    "haSendHeartbeatInterval": "broker/test_replicas.py",
    "haTransferBatchSize": "broker/test_replicas.py",
    "inSyncReplicas": "broker/test_replicas.py",
    "maxHaTransferByteInSecond": "broker/test_replicas.py",
    "slaveTimeout": "broker/test_replicas.py",
    "useTLS": "broker/test_tls.py",
    "enableControllerMode": "broker/test_elections.py",
    "controllerAddr": "broker/test_elections.py",
    "brokerHeartbeatInterval": "broker/test_elections.py",
    "controllerHeartBeatTimeoutMills": "broker/test_elections.py",
    "syncBrokerMetadataPeriod": "broker/test_elections.py",
    "brokerElectionPriority": "broker/test_elections.py",
    "haMaxTimeSlaveNotCatchup": "broker/test_sync_state_set.py",
    "minInSyncReplicas": "broker/test_sync_state_set.py",
}
"""The test files that set the field of each key."""

HERE: Final = Effects()


@HERE.shows("brokerName", "brokerClusterName", "brokerId", "brokerIP1", "listenPort")
def identity(folder: Path) -> None:
    chosen: dict[str, Any] = {"broker_name": "b", "cluster": "c", "broker_id": 7, "broker_ip": "10.1.2.3"}
    with BrokerHarness(folder, listen_port=777, **chosen) as harness:
        ext = register_command(
            harness.broker.parts.settings, harness.broker.parts.topics, harness.broker.parts.replication
        ).ext
        registered = {name: ext[name] for name in ("brokerName", "clusterName", "brokerId", "brokerAddr")}
        assert registered == {"brokerName": "b", "clusterName": "c", "brokerId": "7", "brokerAddr": "10.1.2.3:777"}
        assert harness.send("T").code == ResponseCode.SYSTEM_BUSY
        harness.restart(broker_id=0)
        assert harness.send("T").ext["msgId"].startswith("0A010203" + f"{777:08X}")


@HERE.shows("regionId", "traceOn")
def marks(folder: Path) -> None:
    with BrokerHarness(folder, region_id="r", trace_on=False) as harness:
        ext = harness.send("T").ext
        assert (ext["MSG_REGION"], ext["TRACE_ON"]) == ("r", "false")


@HERE.shows("defaultTopicQueueNums", "clusterTopicEnable", "brokerTopicEnable", "traceTopicEnable", "msgTraceTopicName")
def topics(folder: Path) -> None:
    with BrokerHarness(folder / "a") as harness:
        known = harness.broker.parts.topics
        assert known.all()["DefaultCluster"].perm == known.all()["broker-a"].perm == 6 | PERM_INHERIT
        assert "RMQ_SYS_TRACE_TOPIC" not in known
    closed = {"cluster_topic_enable": False, "broker_topic_enable": False}
    traced = {"trace_topic_enable": True, "trace_topic": "traces", "default_topic_queues": 5}
    with BrokerHarness(folder / "b", **closed, **traced) as harness:
        known = harness.broker.parts.topics
        assert known.all()["DefaultCluster"].perm == known.all()["broker-a"].perm == PERM_INHERIT
        assert known.all()["traces"].write_queue_nums == 1 and known.all()["TBW102"].write_queue_nums == 5


@HERE.shows("shortPollingTimeMills")
def short_polling(folder: Path) -> None:
    with BrokerHarness(folder, long_polling=False, short_polling_ms=70) as harness:
        harness.send("T")
        asked = harness.submit(harness.pull_command("T", offset=1, hold_ms=10_000))
        harness.advance(69)
        assert asked.answer is None
        harness.advance(1)
        assert asked.answer is not None and asked.answer.code == ResponseCode.PULL_NOT_FOUND


@HERE.shows(
    "transactionTimeOut", "transactionCheckInterval", "transactionOpBatchInterval", "transactionMetricFlushInterval"
)
def transactions(folder: Path) -> None:
    asking = {"transaction_time_out": 500, "transaction_check_interval": 1000}
    with BrokerHarness(folder, **asking, transaction_metric_flush_interval=70) as harness:
        connection = test_transactions.producer(harness)
        test_transactions.half(harness)
        harness.advance(70)
        counts = harness.disk.read(harness.broker.parts.paths.config_file("transactionMetrics")) or b"{}"
        assert json.loads(counts)["transactionCount"]["T"]["count"] == 1
        harness.advance(2000)
        assert test_transactions.checks(connection)
    with BrokerHarness(folder / "ops", transaction_op_batch_interval=70) as harness:
        test_transactions.end(harness, test_transactions.half(harness), test_transactions.COMMIT)
        assert test_transactions.ops(harness) == []
        harness.advance(70)
        assert len(test_transactions.ops(harness)) == 1


@HERE.shows("maxTransferCountOnMessageInMemory", "maxTransferBytesOnMessageInMemory")
def transfers(folder: Path) -> None:
    with BrokerHarness(folder, transfer_count_max=3, transfer_bytes_max=2200) as harness:
        for _ in range(5):
            harness.send("T", b"x")
            harness.send("U", bytes(900))
        assert len(harness.pull("T").records) == 3
        assert len(harness.pull("U").records) == 2


@HERE.shows("maxMsgsNumBatch", "defaultQueryMaxNum")
def queries(folder: Path) -> None:
    with BrokerHarness(folder, query_count_max=3, query_unique_key_count_max=2, flush_interval_ms=1) as harness:
        for _ in range(5):
            harness.send("T", properties={"KEYS": "k"})
        harness.advance(3000)
        span = {"topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": harness.now_ms}
        command = Command(code=RequestCode.QUERY_MESSAGE, ext={name: str(value) for name, value in span.items()})
        size = len(harness.ask(command).body)
        command.ext["_UNIQUE_KEY_QUERY"] = "true"
        assert size and len(harness.ask(command).body) * 3 == size * 2


@HERE.shows("notifyConsumerIdsChangedEnable")
def members(folder: Path) -> None:
    with BrokerHarness(folder, notify_members_changed=False) as harness:
        one, two = harness.connect(), harness.connect()
        send_heartbeat(harness, one, "a")
        send_heartbeat(harness, two, "b")
        assert take_notified_groups(one) == take_notified_groups(two) == []


@HERE.shows("channelExpiredTimeout")
def expiry_of_clients(folder: Path) -> None:
    with BrokerHarness(folder, client_expiry_ms=15_000) as harness:
        connection = harness.connect()
        send_heartbeat(harness, connection, "a")
        harness.advance(14_000)
        assert connection.is_open
        harness.advance(12_000)
        assert not connection.is_open


@HERE.shows("flushConsumerOffsetInterval")
def offsets(folder: Path) -> None:
    with BrokerHarness(folder, offsets_persist_ms=70) as harness:
        harness.send("T")
        harness.broker.parts.groups.get("g")
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
        assert harness.ask_code(RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == 0
        harness.advance(70)
        stored = harness.disk.read(harness.broker.parts.paths.config_file("consumerOffset.json")) or b"{}"
        assert json.loads(stored)["offsetTable"]["T@g"] == {"0": 1}


@HERE.shows("flushDelayOffsetInterval")
def delay_offsets(folder: Path) -> None:
    with BrokerHarness(folder, flush_delay_offset_interval=70) as harness:
        file = harness.broker.parts.paths.config_file("delayOffset.json")
        harness.send("T", properties={"DELAY": "1"})
        harness.advance(1070)
        harness.advance(1070)
        assert json.loads(harness.disk.read(file) or b"{}")["offsetTable"]["1"] == 1


@HERE.shows("timerFlushIntervalMs")
def timer_metrics(folder: Path) -> None:
    with BrokerHarness(folder, timer_flush_interval_ms=70) as harness:
        harness.send("T", delay_ms=50_000)
        harness.advance(70)
        stored = json.loads(harness.disk.read(harness.broker.parts.paths.config_file("timermetrics")) or b"{}")
        assert stored["timingCount"]["T"]["count"] == 1


CHANGEABLE: Final[dict[str, Any]] = {"block_length_seconds": 60}
"""The shortest valid block length. An update at run time checks all settings, not only the changed ones."""


@HERE.shows("timerStopEnqueue")
def enqueue_at_run_time(folder: Path) -> None:
    """On: new messages wait in the timer queue, near or far. Off: they leave when due, or at once if overdue."""
    with BrokerHarness(folder, **CHANGEABLE) as harness:
        model = PipelineModel(harness)
        harness.send("T", b"before", delay_ms=9000)
        harness.advance(4000, model.work, 500)
        update(harness, timerStopEnqueue="true")
        for body, delay_ms in ((b"near", 200), (b"far", 20_000)):
            harness.send("T", body, delay_ms=delay_ms)
        harness.advance(10_000, model.work, 500)
        assert (harness.bodies("T"), harness.broker.parts.timer.indexed_to) == ([b"before"], 1)
        update(harness, timerStopEnqueue="false")
        harness.advance(1)
        assert harness.bodies("T") == [b"before", b"near"]
        harness.advance(11_000, model.work, 500)
        assert harness.bodies("T") == [b"before", b"near", b"far"]
        assert harness.broker.parts.timer.indexed_to == 3
        update(harness, timerStopEnqueue="true")
        harness.send("T", b"again", delay_ms=200)
        harness.advance(2000, model.work, 500)
        assert harness.bodies("T") == [b"before", b"near", b"far"]


@HERE.shows("timerStopDequeue")
def dequeue_at_run_time(folder: Path) -> None:
    """On: armed and new messages wait. Off: overdue messages leave at once. Levels do not wait."""
    with BrokerHarness(folder, **CHANGEABLE) as harness:
        model = PipelineModel(harness)
        for i in range(40):
            harness.send("T", b"armed %d" % i, delay_ms=3000 + i)
        harness.advance(2500, model.work, 500)
        update(harness, timerStopDequeue="true")
        harness.send("T", b"near", delay_ms=200)
        harness.send("T", b"level", properties={"DELAY": "1"})
        harness.advance(3000, model.work, 500)
        assert harness.bodies("T") == [b"level"]
        assert harness.broker.next_tick_ms() > 0  # the loop does not spin over overdue messages
        update(harness, timerStopDequeue="false")
        harness.advance(1)
        assert harness.bodies("T")[0] == b"level"
        assert sorted(harness.bodies("T")[1:]) == sorted([b"near", *(b"armed %d" % i for i in range(40))])
        harness.send("T", b"after", delay_ms=200)
        harness.advance(200)
        assert harness.bodies("T")[-1] == b"after"


def test_the_end_of_a_dequeue_stop_keeps_the_wait_after_a_start(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, disappear_time_after_start=5000, **CHANGEABLE) as harness:
        harness.send("T", delay_ms=200)
        update(harness, timerStopDequeue="true")
        update(harness, timerStopDequeue="false")
        harness.advance(4990)
        assert harness.bodies("T") == []
        harness.advance(10)
        assert harness.bodies("T") == [b"body"]


def update(harness: BrokerHarness, **values: str) -> None:
    """Change settings as mqadmin does."""
    body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
    answer = harness.ask(Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=body))
    assert answer.code == 0, answer.remark


@HERE.shows("timerMaxDelaySec")
def longest_delay(folder: Path) -> None:
    with BrokerHarness(folder, timer_max_delay_seconds=10) as harness:
        assert harness.send("T", delay_ms=10_000).code == 0
        assert harness.send("T", delay_ms=11_000).code == ResponseCode.MESSAGE_ILLEGAL


@HERE.shows("serverSocketSndBufSize", "serverSocketRcvBufSize")
def buffers(folder: Path) -> None:
    plain, chosen = socket.socket(), socket.socket()
    with plain, chosen:
        SocketOptions().apply(plain)
        SocketOptions(send_bytes=20_000, receive_bytes=30_000).apply(chosen)
        for option, size in ((socket.SO_SNDBUF, 20_000), (socket.SO_RCVBUF, 30_000)):
            assert chosen.getsockopt(socket.SOL_SOCKET, option) in (size, 2 * size)  # Linux doubles it
            assert plain.getsockopt(socket.SOL_SOCKET, option) not in (size, 2 * size)


@HERE.shows(
    "bindAddress", "serverSocketBacklog", "metricsExporterType", "metricsPromExporterHost", "metricsPromExporterPort"
)
def listening(folder: Path) -> None:
    async def run() -> None:
        small: dict[str, Any] = {**SMALL, "message_index_enable": False, "store_path": folder}
        small |= {"listen_host": "127.0.0.2", "listen_port": 0, "listen_backlog": 7}
        small |= {"metrics_exporter_type": MetricsExporter.PROM, "metrics_prom_exporter_host": "127.0.0.3"}
        app = BrokerApp(BrokerSettings.of(**small, metrics_prom_exporter_port=0), owns_process=False)
        backlogs = []
        loop = asyncio.get_running_loop()
        make = loop.create_server

        async def create_server(*arguments: Any, **options: Any) -> asyncio.Server:
            backlogs.append(options.get("backlog"))
            return await make(*arguments, **options)

        loop.create_server = create_server  # type: ignore[method-assign]
        await app.start()
        try:
            assert app.exporter is not None and backlogs == [7, 7, BACKLOG]  # the fast port, and the HA port
            for host, port in (("127.0.0.2", app.settings.broker.listen_port), ("127.0.0.3", app.exporter.port)):
                socket.create_connection((host, port), 30).close()
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), 30).close()
        finally:
            await app.stop()

    asyncio.run(run())


@HERE.shows("registerNameServerPeriod", "registerBrokerTimeoutMills")
def registration(folder: Path) -> None:
    async def run(answers: bool, enough: int, **chosen: int) -> None:
        seen = asyncio.Semaphore(0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.read(4):
                raw = await reader.readexactly(int.from_bytes(head, "big"))
                request = frame.decode(memoryview(head + raw), 0, 4 + len(raw))
                seen.release()
                if answers:
                    writer.write(frame.encode(Command(code=0, opaque=request.opaque, flag=frame.FLAG_RESPONSE)))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with BrokerHarness(folder / str(answers), namesrv=(address,)) as harness:
            for name, value in chosen.items():
                BROKER.set_value(harness.broker.parts.settings, name, value)  # below the smallest valid value
            registration = Registrar(
                harness.broker.parts.settings,
                harness.broker.parts.topics,
                harness.broker.parts.replication,
                harness.clock,
            )
            registration.start()
            async with asyncio.timeout(60):
                for _ in range(enough):
                    await seen.acquire()
            await registration.stop()
        server.close()

    asyncio.run(run(answers=True, enough=3, register_period_ms=10))
    asyncio.run(run(answers=False, enough=2, register_timeout_ms=10))


@HERE.each()
def test_each_key_has_an_effect(test: Effect, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    test(tmp_path)


def test_every_supported_key_has_a_test() -> None:
    keys = {key.name: key.ours for key in BROKER.apaches().values()}
    names = BROKER.groups["queues"]
    shown = {names[key] for group in ALL for key in (group.capacity, group.wait_ms) if key is not None}
    queues = {key for key, field in keys.items() if field in shown}
    assert set(keys) == set(HERE.by_key) | set(FILES.by_key) | set(ELSEWHERE) | queues
    for name, file in ELSEWHERE.items():
        text = (UNIT / file).read_text()
        assert keys[name] in text or name in text, f"{name} is not set in {file}"
