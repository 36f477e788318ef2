"""Clients of groups: their lists, and the broker's requests to them for others.

A case's connection is also the client.
"""

from __future__ import annotations

import json
from typing import Any, Final

from compat.frames.cases import SILENT, Case, properties, request, send, send_ext, waiting_pull
from compat.frames.consume_cases import UPDATE_OFFSET, ask, case
from compat.frames.wire import frame

HEART_BEAT: Final = 34
UNREGISTER: Final = 35
CONSUMER_LIST: Final = 38
NOTIFY: Final = 40
CONSUMERS: Final = 203
PRODUCERS: Final = 204
ASK_STATUS: Final = 223
STATUS: Final = 221
WHO_CONSUMES: Final = 300
RUNNING_INFO: Final = 307
CONSUME_DIRECTLY: Final = 309
REPLY: Final = 324
REPLY_V2: Final = 325
PUSH_REPLY: Final = 326
TOPICS_OF: Final = 343
SUBSCRIPTION_OF: Final = 345


def _beat(topic: str, *, model: str = "BROADCASTING", producer: bool = False, **consumer: Any) -> bytes:
    """Return a heartbeat of the topic's own group. Broadcasting members are not notified of each other."""
    subscription = {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1}
    data = {
        "groupName": f"{topic}g", "consumeType": "CONSUME_PASSIVELY", "messageModel": model, "unitMode": False,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription], **consumer,
    }  # fmt: skip
    body = {
        "clientID": f"{topic}c",
        "consumerDataSet": [] if producer else [data],
        "producerDataSet": [{"groupName": f"{topic}p"}] if producer else [],
    }
    return frame(request(HEART_BEAT), json.dumps(body).encode())


def _answer(code: int = 0, body: bytes = b"", **header: Any) -> Any:
    """Return the client's answer to the broker's request, which came last."""
    return lambda answers: frame(request(code, opaque=answers[-1]["opaque"], flag=1, **header), body)


def _ask_client(topic: str, code: int, /, **ext: str | None) -> bytes:
    return ask(code, **{"consumerGroup": f"{topic}g", "clientId": f"{topic}c", **ext})


def _reply(topic: str, client: str | None, code: int = REPLY_V2, body: bytes = b"reply") -> bytes:
    named = {} if client is None else {"REPLY_TO_CLIENT": client}
    fields = send_ext(topic, i=properties(CORRELATION_ID="1", **named))
    if code == REPLY:
        letters = {
            "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
            "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
            "j": "reconsumeTimes", "k": "unitMode",
        }  # fmt: skip
        fields = {name: fields[letter] for letter, name in letters.items()}
    return frame(request(code, fields), body)


def _directly(topic: str) -> Any:
    return lambda answers: _ask_client(topic, CONSUME_DIRECTLY, topic=topic, msgId=answers[0]["extFields"]["msgId"])


def _status(topic: str) -> bytes:
    table = f'{{"brokerName":"broker-a","queueId":0,"topic":"{topic}"}}:5'
    return f'{{"messageQueueTable":{{{table}}}}}'.encode()


def _commit(topic: str) -> list[bytes]:
    """Return frames that give the topic's own group an offset in it."""
    commit = ask(UPDATE_OFFSET, consumerGroup=f"{topic}g", topic=topic, queueId="0", commitOffset="1")
    return [send(topic), waiting_pull(topic, group=f"{topic}g"), commit]


_LISTS: Final = [
    case("consumers of nobody", lambda t: [ask(CONSUMERS, consumerGroup=f"{t}g")], [206], remark="the consumer group["),
    case(
        "consumers",
        lambda t: [_beat(t), ask(CONSUMERS, consumerGroup=f"{t}g")],
        [0],
        body=r'"connectionSet":\[\{"clientAddr":"127.0.0.1:\d+","clientId":"\w+c","language":"JAVA","version":479\}\],'
        r'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"BROADCASTING",'
        r'"subscriptionTable":\{"\w+":\{',
    ),
    case(
        "consumers of who has left",
        lambda t: [
            _beat(t),
            ask(UNREGISTER, clientID=f"{t}c", consumerGroup=f"{t}g"),
            ask(CONSUMERS, consumerGroup=f"{t}g"),
        ],
        [206],
    ),
    case("producers of nobody", lambda t: [ask(PRODUCERS, producerGroup=f"{t}p")], [1], remark="the producer group["),
    case(
        "producers",
        lambda t: [_beat(t, producer=True), ask(PRODUCERS, producerGroup=f"{t}p")],
        [0],
        body=r'"connectionSet":\[\{"clientAddr":"127.0.0.1:\d+","clientId":"\w+c","language":"JAVA","version":479\}\]',
    ),
    case(
        "ids of a group",
        lambda t: [_beat(t), ask(CONSUMER_LIST, consumerGroup=f"{t}g")],
        [0],
        body=r'^\{"consumerIdList":\["\w+c"\]\}$',
    ),
    case("who consumes what nobody does", lambda t: [ask(WHO_CONSUMES, topic=t)], [0], body=r'"groupList":\[\]'),
    case(
        "who consumes by offsets",
        lambda t: [*_commit(t), ask(WHO_CONSUMES, topic=t)],
        [0],
        body=r'"groupList":\["\w+g"\]',
    ),
    case("topics of nobody", lambda t: [ask(TOPICS_OF, group=f"{t}g")], [0], body=r'"topicList":\[\]'),
    case(
        "topics of a group",
        lambda t: [*_commit(t), ask(TOPICS_OF, group=f"{t}g")],
        [0],
        body=r'"brokerAddr":"127.0.0.1:\d+","topicList":\["\w+"\]',
    ),
    case(
        "subscription of nobody",
        lambda t: [ask(SUBSCRIPTION_OF, group=f"{t}g", topic=t)],
        [0],
        body=r'^\{"group":"\w+g","topic":"\w+"\}$',
    ),
    case(
        "subscription",
        lambda t: [_beat(t), ask(SUBSCRIPTION_OF, group=f"{t}g", topic=t)],
        [0],
        body=r'"subscriptionData":\{[^}]*"subString":"\*"',
    ),
    case("first heartbeat of a group that shares", lambda t: [_beat(t, model="CLUSTERING")], [NOTIFY]),
]
_ASKED: Final = [
    case("running info of nobody", lambda t: [_ask_client(t, RUNNING_INFO)], [1], remark="The Consumer <"),
    case(
        "running info of another client",
        lambda t: [_beat(t), _ask_client(t, RUNNING_INFO, clientId="x")],
        [1],
        remark="The Consumer <",
    ),
    case("running info of no client", lambda t: [_ask_client(t, RUNNING_INFO, clientId=None)], [1]),
    case(
        "running info",
        lambda t: [_beat(t), _ask_client(t, RUNNING_INFO, jstackEnable="true"), _answer(0, b'{"a":1}')],
        [RUNNING_INFO, 0],
        body=r'^\{"a":1\}$',
    ),
    case(
        "running info that is refused",
        lambda t: [_beat(t), _ask_client(t, RUNNING_INFO), _answer(1, remark="no")],
        [RUNNING_INFO, 1],
        remark="no",
    ),
    case(
        "running info as the client is asked",
        lambda t: [_beat(t), _ask_client(t, RUNNING_INFO, jstackEnable="true")],
        [RUNNING_INFO],
        jstackEnable="true",
    ),
    case(
        "message consumed directly",
        lambda t: [send(t), _beat(t), _directly(t), _answer(0, b"done")],
        [CONSUME_DIRECTLY, 0],
        body="^done$",
    ),
    case(
        "message consumed directly as the client is asked",
        lambda t: [send(t), _beat(t), _directly(t)],
        [CONSUME_DIRECTLY],
        brokerName="broker-a",
        topicSysFlag="0",
        groupSysFlag="0",
        body="body",
    ),
    case("message consumed directly by nobody", lambda t: [send(t), _directly(t)], [1], remark="The Consumer <"),
    case(
        "no message consumed directly",
        lambda t: [_beat(t), _ask_client(t, CONSUME_DIRECTLY, msgId="7F00000100002A9F00000000FFFFFFFF")],
        [1],
    ),
    case("message of no id consumed directly", lambda t: [_beat(t), _ask_client(t, CONSUME_DIRECTLY, msgId="x")], [1]),
    case("message without an id consumed directly", lambda t: [_beat(t), _ask_client(t, CONSUME_DIRECTLY)], [1]),
    case("offsets of nobody's clients", lambda t: [ask(ASK_STATUS, topic=t, group=f"{t}g")], [1]),
    case(
        "offsets of clients",
        lambda t: [_beat(t), ask(ASK_STATUS, topic=t, group=f"{t}g"), _answer(0, _status(t))],
        [STATUS, 0],
        body=r'^\{"consumerTable":\{"\w+c":\{\{"brokerName":"broker-a","queueId":0,"topic":"\w+"\}:5\}\}[,}]',
    ),
    case(
        "offsets of a client",
        lambda t: [_beat(t), ask(ASK_STATUS, topic=t, group=f"{t}g", clientAddr=f"{t}c"), _answer(0, _status(t))],
        [STATUS, 0],
        body=r":5\}",
    ),
    case(
        "offsets of a client that is not there",
        lambda t: [_beat(t), ask(ASK_STATUS, topic=t, group=f"{t}g", clientAddr="x")],
        [0],
        body=r'"consumerTable":\{\}',
    ),
    case(
        "offsets that a client does not tell",
        lambda t: [_beat(t), ask(ASK_STATUS, topic=t, group=f"{t}g"), _answer(1)],
        [STATUS, 0],
        body=r'"consumerTable":\{\}',
    ),
]
_REPLIES: Final = [
    case(
        "reply to nobody",
        lambda t: [_reply(t, "nobody")],
        [1],
        remark="push reply message fail, channel of <nobody> not found.",
    ),
    case(
        "reply that names nobody",
        lambda t: [_reply(t, None)],
        [1],
        remark="reply message properties[REPLY_TO_CLIENT] is null",
    ),
    case(
        "reply",
        lambda t: [_beat(t, producer=True), _reply(t, f"{t}c"), _answer()],
        [PUSH_REPLY, 0],
        queueId="0",
        queueOffset="0",
        MSG_REGION="DefaultRegion",
    ),
    case(
        "reply as the client gets it",
        lambda t: [_beat(t, producer=True), _reply(t, f"{t}c")],
        [PUSH_REPLY],
        body="^reply$",
        producerGroup="frames",
        queueId="0",
        defaultTopicQueueNums="4",
        unitMode="false",
    ),
    case(
        "reply in long words",
        lambda t: [_beat(t, producer=True), _reply(t, f"{t}c", REPLY), _answer()],
        [PUSH_REPLY, 0],
    ),
    case(
        "reply that is refused",
        lambda t: [_beat(t, producer=True), _reply(t, f"{t}c"), _answer(1)],
        [PUSH_REPLY, 1],
        remark="push reply message to ",
    ),
    case(
        "reply that is stored",
        lambda t: [
            _beat(t, producer=True),
            _reply(t, f"{t}c"),
            _answer(),
            waiting_pull(t),
        ],
        [PUSH_REPLY, 0, 0],
        body="CORRELATION_ID",
    ),
    case("reply to a forbidden topic", lambda t: [_reply("SCHEDULE_TOPIC_XXXX", "x")], [16]),
    case("reply without a topic", lambda t: [frame(request(REPLY_V2, {"a": "p"}), b"b")], [1]),
    Case("reply that nobody answers", lambda t: frame(request(REPLY_V2, send_ext(t), flag=2), b"b"), SILENT),
]

CLIENT_CASES: Final = [*_LISTS, *_ASKED, *_REPLIES]
