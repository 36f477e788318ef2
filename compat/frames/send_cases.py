"""Every branch of a send, and of a message that is sent back, once each, as Apache RocketMQ 5.3.3 answers it."""

from __future__ import annotations

from typing import Any

from compat.frames.cases import Case, batch_frame, inner, properties, request, send, send_ext
from compat.frames.wire import frame

LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
MIB = 1 << 20


def long_named(topic: str, **changed: Any) -> bytes:
    """Return the frame of SEND_MESSAGE, with full field names."""
    fields = send_ext(topic, **changed)
    return frame(request(10, {LONG_NAMES[letter]: value for letter, value in fields.items()}), b"body")


def batch_code(topic: str, body: bytes, **changed: Any) -> bytes:
    """Return the frame of SEND_BATCH_MESSAGE, even if its fields contradict the code."""
    return frame(request(320, send_ext(topic, **changed)), body)


def make_topic(topic: str, *, read: int = 4, write: int = 4, perm: int = 6, kind: str = "SINGLE_TAG") -> bytes:
    numbers = {"readQueueNums": str(read), "writeQueueNums": str(write), "perm": str(perm)}
    fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": kind, "topicSysFlag": "0", "order": "false"}
    return frame(request(17, fields | numbers))


def send_back(group: str, level: str = "3", *, version: int = 479, **changed: str) -> bytes:
    """Return the frame that sends the first message of the log back."""
    fields = {"offset": "0", "group": group, "delayLevel": level, "originTopic": "T", "originMsgId": "x"} | changed
    return frame(request(36, fields, version=version))


def is_dead(group: str) -> bytes:
    """Return the frame of a pull that shows whether a group has a topic of dead letters.

    The answer is 29 if it has, because that topic has one queue; otherwise 17.
    """
    fields = {
        "consumerGroup": group, "topic": f"%DLQ%{group}", "queueId": "1", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return frame(request(11, fields))


def retry(group: str, version: int = 479, **changed: Any) -> bytes:
    """Return the frame of a send to a group's retry topic."""
    return frame(request(310, send_ext(f"%RETRY%{group}", **changed), version=version), b"body")


TOPIC_CASES = [
    Case("send by full names", long_named, [0]),
    Case("send by full names, no group", lambda topic: long_named(topic, a=None), [0]),
    Case("no group", lambda topic: send(topic, a=None), [0]),
    Case("no default topic", lambda topic: send(topic, c=None), [1]),
    Case("default topic that is not there", lambda topic: send(topic, c="NoSuchTopicAtAll"), [17]),
    Case("no queues wanted of a new topic", lambda topic: send(topic, d="0"), [29]),
    Case("fewer than no queues wanted of a new topic", lambda topic: send(topic, d="-1"), [29]),
    Case("more queues wanted than the default topic has", lambda topic: send(topic, d="99", e="7"), [0]),
    Case("queue beyond those of the default topic", lambda topic: send(topic, d="99", e="8"), [29]),
    Case("unit mode", lambda topic: send(topic, k="true"), [0]),
    Case("send to the default topic", lambda topic: send("TBW102"), [0]),
    Case("send to the cluster's topic", lambda topic: send("DefaultCluster"), [0]),
    Case("send to the self-test topic", lambda topic: send("SELF_TEST_TOPIC"), [16]),
    Case("send to the topic of moved offsets", lambda topic: send("OFFSET_MOVED_EVENT"), [16]),
    Case("send to the topic of what was checked too often", lambda topic: send("TRANS_CHECK_MAX_TIME_TOPIC"), [16]),
    Case("send to the benchmark's topic", lambda topic: send("BenchmarkTest"), [0]),
    Case("send to a dead-letter topic", lambda topic: send(f"%DLQ%{topic}"), [0]),
    Case(
        "topic that is only read",
        lambda topic: [make_topic(topic, perm=4), send(topic)],
        [0, 0],
        answers=2,
        ours=[0, 16],
    ),
    Case("topic that is only written", lambda topic: [make_topic(topic, perm=2), send(topic)], [0, 0], answers=2),
    Case(
        "queue that is read and not written",
        lambda topic: [make_topic(topic, read=4, write=2), send(topic, e="3")],
        [0, 0],
        answers=2,
    ),
    Case(
        "queue that is written and not read",
        lambda topic: [make_topic(topic, read=2, write=4), send(topic, e="3")],
        [0, 0],
        answers=2,
    ),
    Case(
        "queue beyond both",
        lambda topic: [make_topic(topic, read=2, write=4), send(topic, e="4")],
        [0, 29],
        answers=2,
    ),
    Case(
        "topic of messages with several tags",
        lambda topic: [make_topic(topic, kind="MULTI_TAG"), send(topic, i=properties(TAGS="a"))],
        [0, 0],
        answers=2,
    ),
]
FIELD_CASES = [
    *(
        Case(f"system flag {flag}", lambda topic, flag=flag: send(topic, f=flag), [0])
        for flag in ("1", "2", "769", "8", "12")
    ),
    Case("system flag no number", lambda topic: send(topic, f="x"), [1]),
    Case("system flag of a half message that is none", lambda topic: send(topic, f="4"), [0]),
    Case("compressed body that is no such", lambda topic: send(topic, b"\x78\x9c junk", f="769"), [0]),
    Case("user flag negative", lambda topic: send(topic, h="-1"), [0]),
    Case("born before 1970", lambda topic: send(topic, g="-1"), [0]),
    Case("born beyond 64 bits", lambda topic: send(topic, g="9223372036854775808"), [1]),
    Case("empty unique key", lambda topic: send(topic, i="UNIQ_KEY\x01\x02"), [0]),
    Case("no unique key", lambda topic: send(topic, i="TAGS\x01a\x02"), [0]),
    Case("forged region and trace", lambda topic: send(topic, i=properties(MSG_REGION="x", TRACE_ON="false")), [0]),
    Case("forged cluster", lambda topic: send(topic, i=properties(CLUSTER="x")), [0]),
    Case("receipt of a POP", lambda topic: send(topic, i=properties(POP_CK="1 2 3 4 5 b 0 7")), [0]),
    Case("count of inner messages", lambda topic: send(topic, i=properties(INNER_NUM="2")), [13]),
    Case("that does not wait for the disk", lambda topic: send(topic, i=properties(WAIT="false")), [0]),
    Case("body of 4 MiB", lambda topic: send(topic, bytes(4 * MIB)), [0]),
    Case("body of a byte more", lambda topic: send(topic, bytes(4 * MIB + 1)), [13]),
]
MORE_BATCH_CASES = [
    Case("batch code without its flag", lambda topic: batch_code(topic, inner(), m=None), [0]),
    Case("batch code that says it is none", lambda topic: batch_code(topic, b"no batch", m="false"), [0]),
    Case("batch by the flag alone", lambda topic: send(topic, inner() + inner(b"yy"), m="true"), [0]),
    Case("batch to any queue", lambda topic: batch_code(topic, inner(), m="true", e="-1"), [0]),
    Case("batch with a level", lambda topic: batch_code(topic, inner(), m="true", i=properties(DELAY="1")), [13]),
    Case(
        "batch with a timer",
        lambda topic: batch_code(topic, inner(), m="true", i=properties(TIMER_DELAY_MS="5000")),
        [0],
    ),
    Case(
        "batch with a level that is no number",
        lambda topic: batch_code(topic, inner(), m="true", i=properties(DELAY="x")),
        [1],
    ),
    Case("batch of a transaction", lambda topic: batch_code(topic, inner(), m="true", f="4"), [13]),
    Case("batch of more than 4 MiB", lambda topic: batch_frame(topic, inner(bytes(MIB)) * 5), [1], ours=[13]),
    Case("batch with an empty message", lambda topic: batch_frame(topic, inner(b"")), [0]),
]
RETRY_CASES = [
    Case("send to a retry topic", lambda topic: [retry(topic), is_dead(topic)], [0, 17], answers=2),
    Case("send to a retry topic of 127", lambda topic: send("%RETRY%" + (topic + "x" * 120)[:120]), [0]),
    Case("send to a retry topic of 255", lambda topic: send("%RETRY%" + (topic + "x" * 248)[:248]), [29], ours=[0]),
    Case("send to a retry topic that is too long", lambda topic: send("%RETRY%" + (topic + "x" * 249)[:249]), [29]),
    Case("as often as allowed", lambda topic: [retry(topic, j="3", l="3"), is_dead(topic)], [0, 17], answers=2),
    Case("more often than allowed", lambda topic: [retry(topic, j="4", l="3"), is_dead(topic)], [0, 29], answers=2),
    Case("more often than the group allows", lambda topic: [retry(topic, j="17"), is_dead(topic)], [0, 29], answers=2),
    Case(
        "more often than an old client may say",
        lambda topic: [retry(topic, version=120, j="4", l="3"), is_dead(topic)],
        [0, 17],
        answers=2,
    ),
    Case("handed back", lambda topic: [send_back(topic), is_dead(topic)], [0, 17], answers=2),
    Case("handed back for good", lambda topic: [send_back(topic, "-1"), is_dead(topic)], [0, 29], answers=2),
    Case("handed back, the level is the broker's", lambda topic: send_back(topic, "0"), [0]),
    Case("handed back beyond the levels", lambda topic: send_back(topic, "99"), [0]),
    Case(
        "handed back as often as allowed",
        lambda topic: [send_back(topic, maxReconsumeTimes="0"), is_dead(topic)],
        [0, 29],
        answers=2,
    ),
    Case(
        "handed back by an old client",
        lambda topic: [send_back(topic, version=120, maxReconsumeTimes="0"), is_dead(topic)],
        [0, 17],
        answers=2,
    ),
    Case(
        "handed back to a retry topic that is only read",
        lambda topic: [make_topic(f"%RETRY%{topic}", perm=4), send_back(topic)],
        [0, 16],
        answers=2,
    ),
    Case("handed back in unit mode", lambda topic: send_back(topic, unitMode="true"), [0]),
    Case("handed back by no group", lambda topic: frame(request(36, {"offset": "0", "delayLevel": "3"})), [1]),
]

MORE_SEND_CASES = [*TOPIC_CASES, *FIELD_CASES, *MORE_BATCH_CASES, *RETRY_CASES]
