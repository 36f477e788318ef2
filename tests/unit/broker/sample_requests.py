"""A request of each code that names the topic T and the group g, for tests of rights."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode as Code
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.testing.harness import BrokerHarness

TOPIC: Final = "T"
GROUP: Final = "g"
SUBSCRIPTION: Final = {"topic": TOPIC, "subString": "*", "subVersion": 1}
QUEUE: Final = {"brokerName": "broker-a", "topic": TOPIC, "queueId": 0}
TOPIC_CONFIG: Final = {"topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
POLICY: Final = {"entries": [{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}]}

BODIES: Final[dict[Code, Any]] = {
    Code.HEART_BEAT: {
        "clientID": "c",
        "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": [SUBSCRIPTION]}],
        "producerDataSet": [{"groupName": "p"}],
    },
    Code.WMQ_BATCH_COMMIT: {
        "parts": [{"part": 0, "attempt": 0, "topic": TOPIC, "chunks": 1, "rows": 1, "crc": 0}],
    },
    Code.WMQ_BATCH_LAYOUT: {"topics": {TOPIC: {"broker-a": 4}}},
    Code.CHECK_CLIENT_CONFIG: {"clientId": "c", "group": GROUP, "subscriptionData": SUBSCRIPTION},
    Code.LOCK_BATCH_MQ: {"clientId": "c", "consumerGroup": GROUP, "mqSet": [QUEUE]},
    Code.UNLOCK_BATCH_MQ: {"clientId": "c", "consumerGroup": GROUP, "mqSet": [QUEUE]},
    Code.QUERY_ASSIGNMENT: {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "c"},
    Code.BATCH_ACK_MESSAGE: {"brokerName": "broker-a", "acks": [{"c": GROUP, "t": TOPIC}]},
    Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [TOPIC_CONFIG]},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": GROUP},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": GROUP}]},
    Code.AUTH_CREATE_USER: {"username": "new", "password": "a password"},
    Code.AUTH_UPDATE_USER: {"username": "eve", "userStatus": "enable"},
    Code.AUTH_CREATE_ACL: {"subject": "User:eve", "policies": [POLICY]},
    Code.AUTH_UPDATE_ACL: {"subject": "User:eve", "policies": [POLICY]},
    Code.WMQ_PIPELINE_COMMIT: [],
}
RAW: Final[dict[Code, bytes]] = {
    Code.UPDATE_BROKER_CONFIG: b"traceOn=true\n",
    **dict.fromkeys(
        (
            *(Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE),
            *(Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2),
        ),
        b"body",
    ),
}


ROOT: Final = AccessKey("root", "the secret of root")


def _position(harness: BrokerHarness) -> int:
    """Return the log position of a message in T."""
    queues = harness.broker.parts.store.queues
    queue = queues.find(TOPIC, 0)
    if TOPIC not in harness.broker.parts.topics or queue is None or queue.end == queue.start:
        send = harness.send_command(TOPIC)
        ROOT.sign(send)
        harness.submit(send)
        harness.settle()
        queue = queues.find(TOPIC, 0)
        assert queue is not None and queue.end > queue.start
    return int(queue.read(queue.start, 1)["position"][0])


def sample(harness: BrokerHarness, code: Code) -> Command:
    """Return a request of `code`, without a signature. If T has no message, root sends one."""
    position = _position(harness)
    fields: dict[str, object] = {
        "topic": TOPIC,
        "consumerGroup": GROUP,
        "group": GROUP,
        "groupName": GROUP,
        "srcGroup": GROUP,
        "destGroup": GROUP,
        "compareGroup": GROUP,
        "producerGroup": "p",
        "clientID": "c",
        "clientId": "c",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 1,
        "sysFlag": 0,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 1,
        "offset": position,
        "commitLogOffset": position,
        "tranStateTableOffset": 0,
        "commitOrRollback": 8,
        "msgId": offset_message_id(harness.broker.parts.host, LogPosition(position)),
        "delayLevel": 0,
        "key": "k",
        "maxNum": 1,
        "beginTimestamp": 0,
        "endTimestamp": 1 << 60,
        "timestamp": 0,
        "index": 0,
        "count": 1,
        "statsName": "TOPIC_PUT_NUMS",
        "statsKey": TOPIC,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "bornTimestamp": harness.now_ms,
        "flag": 0,
        "properties": "UNIQ_KEY\x01K\x02",
        "a": "p",
        "b": TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": harness.now_ms,
        "h": 0,
        "i": "UNIQ_KEY\x01K\x02",
        "recallHandle": "x",
        "username": "new" if code is Code.AUTH_CREATE_USER else "eve",
        "subject": "User:eve",
        "clusterName": "DefaultCluster",
        "cluster": "DefaultCluster",
        "name": "a pipeline",
        "epoch": 1,
        "turn": 1,
        "kind": "queue",
        "part": 0,
        "attempt": 0,
        "chunk": 0,
        "stepMs": 1000,
        "wantsTicket": True,
        "successor": "h:1",
        "replicaId": 1,
        "session": 0,
        "bytesMax": 1 << 20,
        "timeoutMs": 0,
        "job": "a query",
        "batch": 1,
    }
    body = msgspec.json.encode(BODIES[code]) if code in BODIES else RAW.get(code, b"")
    return Command(code=code, ext=headers.texts(**fields), body=body)
