"""The cases: bytes to send, and the observed reaction of Apache RocketMQ 5.3.3.

An expectation is a list of answer codes, or `CLOSED`, or both. For an intended difference of WheelMQ, `ours` is its
reaction, and FINDINGS.md gives the reason.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compat.frames.wire import frame

CLOSED = "closed"
SILENT: list[int] = []

Expected = list[int] | str
Part = bytes | Callable[[list[dict[str, Any]]], bytes]


@dataclass(frozen=True)
class Case:
    """One case. `data` is generated for each run, for a topic of its own: bytes, or parts that are each answered.

    A part may depend on the answers so far. A request of the broker counts as an answer, by its code.
    """

    name: str
    data: Callable[[str], bytes | Sequence[Part]]
    expected: Expected
    answers: int = 1
    ours: Expected | None = None
    says: Mapping[str, str] = field(default_factory=dict)
    """Header fields of the last answer.

    `remark` is the beginning of its remark, `body` a pattern found in its body.
    """


def send_ext(topic: str, **changed: Any) -> dict[str, Any]:
    """Return the header fields of a valid send with some changes; None removes a field."""
    fields = {
        "a": "frames", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0",
        "i": f"UNIQ_KEY\x01{int(time.time() * 1e6):032X}\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    fields.update(changed)
    return {name: value for name, value in fields.items() if value is not None}


def request(code: int, ext: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    header: dict[str, Any] = {
        "code": code,
        "language": "JAVA",
        "version": 479,
        "opaque": 7,
        "flag": 0,
        "extFields": ext or {},
    }
    header.update(changed)
    return {name: value for name, value in header.items() if value is not None}


def send(topic: str, body: bytes = b"body", **changed: Any) -> bytes:
    """Return the frame of a send."""
    return frame(request(310, send_ext(topic, **changed)), body)


def properties(**pairs: str) -> str:
    """Return a property block with a unique key."""
    text = f"UNIQ_KEY\x01{int(time.time() * 1e6):032X}\x02"
    return text + "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def batch(*messages: bytes) -> bytes:
    return b"".join(messages)


def inner(
    body: bytes = b"x",
    props: bytes = b"",
    *,
    size: int | None = None,
    body_size: int | None = None,
    props_size: int | None = None,
) -> bytes:
    """Return a message of a batch's body. Its sizes are correct unless they are given."""
    total = 4 * 5 + len(body) + 2 + len(props)
    return (
        struct.pack(">iiiii", total if size is None else size, 0, 0, 0, len(body) if body_size is None else body_size)
        + body
        + struct.pack(">h", len(props) if props_size is None else props_size)
        + props
    )


def batch_frame(topic: str, body: bytes) -> bytes:
    return frame(request(320, send_ext(topic, m="true")), body)


def _raw(data: bytes) -> Callable[[str], bytes]:
    return lambda topic: data


def half(topic: str, **pairs: str) -> bytes:
    """Return the frame of a half message."""
    return send(topic, f="4", i=properties(TRAN_MSG="true", PGROUP="frames", **pairs))


def end(topic: str, **changed: str | None) -> bytes:
    """Return the frame that commits a transaction at a log position without a message."""
    fields: dict[str, str | None] = {
        "topic": topic, "producerGroup": "frames", "tranStateTableOffset": "0", "commitLogOffset": "999999999999",
        "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "K", "transactionId": "K",
    }  # fmt: skip
    fields.update(changed)
    return frame(request(37, {name: value for name, value in fields.items() if value is not None}))


def handle(
    topic: str, *, broker: str = "broker-a", due_ms: int | str | None = None, version: str = "v1", key: str = "K"
) -> str:
    """Return a recall handle as in the answer to the send of a timer."""
    due = int(time.time() * 1000) + 60_000 if due_ms is None else due_ms
    return encoded(f"{version} {topic} {broker} {due} {key}")


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def recall(topic: str, recall_handle: str | None) -> bytes:
    """Return the frame of a recall, without a handle if it is None."""
    fields = {"topic": topic, "recallHandle": recall_handle, "producerGroup": "frames"}
    return frame(request(370, {name: value for name, value in fields.items() if value is not None}))


def _recall_case(what: str, make: Callable[[str], str | None], code: int) -> Case:
    """Return the case of a recall in an existing topic."""
    return Case(f"recall of {what}", lambda topic: [send(topic), recall(topic, make(topic))], [0, code], answers=2)


def _timer(name: str, value: str) -> Callable[[str], bytes]:
    return lambda topic: send(topic, i=properties(**{name: value}))


FRAME_CASES = [
    Case("length negative", _raw(struct.pack(">i", -5) + b"xxxxxxxx"), CLOSED),
    Case("length 2^31-1", _raw(struct.pack(">i", 2**31 - 1) + b"x" * 100), CLOSED),
    Case("length over 16 MiB", _raw(struct.pack(">i", 16_777_217) + b"x" * 100), CLOSED),
    Case("header length beyond the frame", _raw(struct.pack(">ii", 20, 1000) + b"x" * 16), CLOSED),
    Case("header length 2^24-1", _raw(struct.pack(">ii", 20, 0xFFFFFF) + b"x" * 16), CLOSED),
    Case("length 0, then a good send", lambda topic: struct.pack(">i", 0) + send(topic), CLOSED),
    Case("length 3, then a good send", lambda topic: struct.pack(">i", 3) + b"xxx" + send(topic), CLOSED),
    Case("header length 0, then a good send", lambda topic: struct.pack(">ii", 4, 0) + send(topic), CLOSED),
    Case("empty JSON", lambda topic: frame(b"{}"), [], ours=[3]),
    Case("JSON null, then a good send", lambda topic: frame(b"null") + send(topic), CLOSED),
    *(
        Case(
            f"serialize type {kind}",
            lambda topic, kind=kind: frame(request(310, send_ext(topic)), b"b", serialize=kind),
            CLOSED,
        )
        for kind in (2, 3, 127, 128, 255)
    ),
    Case("JSON that does not end", _raw(frame(b'{"code":310')), CLOSED),
    Case("JSON array", _raw(frame(b"[1,2]")), CLOSED),
    Case("no JSON at all", _raw(frame(b"hello")), CLOSED),
    Case("code missing", _raw(frame(b'{"opaque":7,"flag":0}')), [3]),
    Case("code as a string", _raw(frame(b'{"code":"310","opaque":7,"flag":0}')), [1]),
    Case("opaque missing", lambda topic: frame(request(310, send_ext(topic), opaque=None), b"b"), [0]),
    Case("unknown code", _raw(frame(request(987654))), [3]),
    Case("negative code", _raw(frame(request(-1))), [3]),
    Case("unknown code, oneway", _raw(frame(request(987654, flag=2))), SILENT),
    Case("response flag on a request", lambda topic: frame(request(310, send_ext(topic), flag=1), b"b"), SILENT),
    Case("oneway send", lambda topic: frame(request(310, send_ext(topic), flag=2), b"b"), SILENT),
    Case("the same opaque twice", lambda topic: send(topic) + send(topic), [0, 0], answers=2),
    Case(
        "numbers and booleans in extFields",
        lambda topic: frame(request(310, send_ext(topic, d=4, e=0, f=0, h=0, j=0, k=False, m=False)), b"b"),
        [0],
    ),
    Case("null in extFields", lambda topic: frame(request(310, {**send_ext(topic), "l": None}), b"b"), [0]),
    Case("extFields missing", _raw(frame(request(310, None, extFields=None))), [1]),
    Case("binary header cut", _raw(frame(b"\x01\x36\x00\x01\xdf", serialize=1)), CLOSED),
]
SEND_CASES = [
    Case("good send", lambda topic: send(topic), [0]),
    Case("topic missing", lambda topic: send(topic, b=None), [1]),
    Case("queue id missing", lambda topic: send(topic, e=None), [1]),
    Case("queue id no number", lambda topic: send(topic, e="x"), [1]),
    Case("queue id negative", lambda topic: send(topic, e="-1"), [0]),
    Case("queue id beyond the queues", lambda topic: send(topic, e="99"), [29]),
    Case("topic with a slash", lambda topic: send("bad/name"), [29]),
    Case("topic with dots", lambda topic: send("../../up"), [29]),
    Case("topic empty", lambda topic: send(""), [29]),
    Case("topic of 127 characters", lambda topic: send((topic + "x" * 127)[:127]), [0]),
    Case("topic of 128 characters", lambda topic: send((topic + "x" * 128)[:128]), [29]),
    Case("schedule topic", lambda topic: send("SCHEDULE_TOPIC_XXXX"), [16]),
    Case("default topic that may not be inherited from", lambda topic: send(topic, c="SELF_TEST_TOPIC"), [17]),
    Case("body empty", lambda topic: send(topic, body=b""), [1]),
    Case("properties missing", lambda topic: send(topic, i=None), [0]),
    Case("properties without separators", lambda topic: send(topic, i="just some text"), [0]),
    Case("properties of separators only", lambda topic: send(topic, i="\x01\x02\x01\x01\x02\x02"), [0]),
    Case("properties of 32,700 bytes", lambda topic: send(topic, i=properties(k="v" * 32_500)), [0]),
    Case("properties over 32,767 bytes", lambda topic: send(topic, i=properties(k="v" * 32_767)), [13]),
    Case(
        "timer with properties of 32,600 bytes",
        lambda topic: send(topic, i=properties(k="v" * 32_450, TIMER_DELAY_MS="60000")),
        [0],
        ours=[13],
    ),
    Case("send to the timer queue itself", lambda topic: send("rmq_sys_wheel_timer"), [0], ours=[16]),
    Case("property with a NUL", lambda topic: send(topic, i=properties(k="a\0b")), [0], ours=[13]),
    Case("forged TIMER_OUT_MS", lambda topic: send(topic, i=properties(TIMER_OUT_MS="1", TIMER_DELAY_MS="60000")), [0]),
    Case(
        "forged REAL_TOPIC and REAL_QID",
        lambda topic: send(topic, i=properties(REAL_TOPIC="Other", REAL_QID="77")),
        [0],
    ),
    Case(
        "forged REAL_TOPIC on a timer",
        lambda topic: send(topic, i=properties(REAL_TOPIC="Other", REAL_QID="77", TIMER_DELAY_MS="300")),
        [0],
    ),
    Case("forged origin", lambda topic: send(topic, i=properties(__WMQ_ORIGIN="3000000000000000")), [0]),
    Case("DELAY no number", lambda topic: send(topic, i=properties(DELAY="x")), [1]),
    Case("DELAY 99", lambda topic: send(topic, i=properties(DELAY="99")), [0]),
    Case("DELAY negative", lambda topic: send(topic, i=properties(DELAY="-1")), [0]),
    Case("DELAY and TIMER_DELAY_SEC", lambda topic: send(topic, i=properties(DELAY="1", TIMER_DELAY_SEC="3")), [0]),
    *(
        Case(f"{name} {what}", _timer(name, value), [expected])
        for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
        for what, value, expected in (
            ("of 20 digits", "12345678901234567890", 13),
            ("negative", "-5", 0),
            ("with a plus", "+1", 0),
            ("in full-width digits", "\uff11\uff12", 0),
            ("a fraction", "1.5", 13),
            ("text", "abc", 13),
            ("with a blank", " 1", 13),
            ("zero", "0", 0),
        )
    ),
    Case("delay of three days", _timer("TIMER_DELAY_SEC", "259200"), [0]),
    Case("delay of three days and a second", _timer("TIMER_DELAY_SEC", "259201"), [13]),
    Case("delay in seconds that overflows", _timer("TIMER_DELAY_SEC", "9223372036854775807"), [0]),
    Case("delay in milliseconds that overflows", _timer("TIMER_DELAY_MS", "9223372036854775807"), [0]),
    Case(
        "cancel of the past",
        lambda topic: send(topic, i=properties(TIMER_DEL_UNIQKEY=f"{topic}+x", TIMER_DELIVER_MS="1")),
        [13],
    ),
    Case(
        "cancel of what is not there",
        lambda topic: send(topic, i=properties(TIMER_DEL_UNIQKEY=f"{topic}+x", TIMER_DELAY_MS="5000")),
        [0],
    ),
]
BATCH_CASES = [
    Case("good batch", lambda topic: batch_frame(topic, inner() + inner(b"yy")), [0]),
    Case("batch of nothing", lambda topic: batch_frame(topic, b""), [1]),
    Case("batch whose size lies high", lambda topic: batch_frame(topic, inner(size=1000)), [0]),
    Case("batch whose size is 0", lambda topic: batch_frame(topic, inner(size=0)), [0]),
    Case("batch whose size is negative", lambda topic: batch_frame(topic, inner(size=-1)), [0]),
    Case("batch whose body size lies high", lambda topic: batch_frame(topic, inner(body_size=1000)), [1]),
    Case("batch whose body size is negative", lambda topic: batch_frame(topic, inner(body_size=-1)), [1]),
    Case("batch whose properties size lies high", lambda topic: batch_frame(topic, inner(props_size=1000)), [1]),
    Case("batch whose properties size is negative", lambda topic: batch_frame(topic, inner(props_size=-1)), [1]),
    Case("batch cut in a header", lambda topic: batch_frame(topic, inner() + b"\0\0\0\x16"), [1]),
    Case("batch flag with a plain body", lambda topic: send(topic, m="true"), [1]),
    Case("batch to a retry topic", lambda topic: batch_frame("%RETRY%frames", inner()), [13]),
    Case("batch with a delay inside", lambda topic: batch_frame(topic, inner(props=b"DELAY\x013\x02")), [0]),
]
TRANSACTION_CASES = [
    Case("half message", lambda topic: half(topic), [0]),
    Case("half message of no group", lambda topic: send(topic, i=properties(TRAN_MSG="true")), [0]),
    Case("half message with a level", lambda topic: half(topic, DELAY="1"), [0]),
    Case("half message with a level that is no number", lambda topic: half(topic, DELAY="x"), [1]),
    Case("half message with a timer", lambda topic: half(topic, TIMER_DELAY_MS="60000"), [0]),
    Case("half message with a timer that is no number", lambda topic: half(topic, TIMER_DELAY_MS="x"), [13]),
    Case("half message too far off", lambda topic: half(topic, TIMER_DELAY_SEC="259201"), [13]),
    Case("send to the half topic", lambda topic: send("RMQ_SYS_TRANS_HALF_TOPIC"), [16]),
    Case("send to the op topic", lambda topic: send("RMQ_SYS_TRANS_OP_HALF_TOPIC"), [16]),
    Case("end of no record", lambda topic: end(topic), [1]),
    Case("end at a negative position", lambda topic: end(topic, commitLogOffset="-1"), [1]),
    Case("end at no position", lambda topic: end(topic, commitLogOffset=None), [1]),
    Case("end that is not known", lambda topic: end(topic, commitOrRollback="0"), SILENT),
    Case("end of another kind", lambda topic: end(topic, commitOrRollback="4"), [1]),
    Case("end of no kind", lambda topic: end(topic, commitOrRollback=None), [1]),
    Case("resumed check of no id", _raw(frame(request(323, {"topic": "T", "msgId": "x"}))), [1]),
]
OTHER_CASES = [
    Case("pull of an unknown topic", lambda topic: frame(request(11, pull_ext("NoSuchTopicAtAll"))), [17]),
    Case(
        "pull of a queue beyond the queues",
        lambda topic: [send(topic), frame(request(11, pull_ext(topic, queueId="77")))],
        [0, 29],
        answers=2,
    ),
    Case(
        "pull without a subscription",
        lambda topic: [send(topic), frame(request(11, pull_ext(topic, sysFlag="0", consumerGroup="nobody")))],
        [0, 24],
        answers=2,
    ),
    Case(
        "pull beyond the end",
        lambda topic: [send(topic), frame(request(11, pull_ext(topic, queueOffset="50", queueId="3")))],
        [0, 21],
        answers=2,
    ),
    Case("pull with a missing field", _raw(frame(request(11, {"topic": "T"}))), [1]),
    Case(
        "send back of no record",
        _raw(frame(request(36, {"offset": "999999999999", "group": "frames", "delayLevel": "1"}))),
        [1],
    ),
    Case(
        "send back of a negative position",
        _raw(frame(request(36, {"offset": "-1", "group": "frames", "delayLevel": "1"}))),
        [1],
    ),
    Case("heartbeat of no JSON", _raw(frame(request(34), b"no json")), [1]),
    Case("heartbeat of nothing", _raw(frame(request(34))), [1]),
    Case("consumer list of nobody", _raw(frame(request(38, {"consumerGroup": "nobodyAtAll"}))), [1]),
    Case("offset of an unknown topic", _raw(frame(request(30, {"topic": "NoSuchTopicAtAll", "queueId": "0"}))), [0]),
    Case("recall of an unknown topic", _raw(recall("NoSuchTopicAtAll", handle("NoSuchTopicAtAll"))), [17]),
    _recall_case("what is not there", handle, 0),
    _recall_case("another topic", lambda topic: handle("Other"), 604),
    _recall_case("another broker", lambda topic: handle(topic, broker="broker-z"), 604),
    _recall_case("another version", lambda topic: handle(topic, version="v2"), 604),
    _recall_case("what was due", lambda topic: handle(topic, due_ms=1), 604),
    _recall_case("what is due now", lambda topic: handle(topic, due_ms=int(time.time() * 1000)), 604),
    _recall_case("what is due too far off", lambda topic: handle(topic, due_ms=1 << 60), 604),
    _recall_case("a time that is none", lambda topic: handle(topic, due_ms="soon"), 604),
    _recall_case("nothing", lambda topic: "", 604),
    _recall_case("no base64", lambda topic: "!?!", 604),
    _recall_case("too few words", lambda topic: encoded("v1 T"), 604),
    _recall_case("no handle", lambda topic: None, 604),
    Case(
        "lock of nothing",
        _raw(frame(request(41), json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": []}).encode())),
        [0],
    ),
    Case(
        "commit of an offset of an unknown topic",
        _raw(
            frame(
                request(
                    15, {"consumerGroup": "frames", "topic": "NoSuchTopicAtAll", "queueId": "0", "commitOffset": "1"}
                )
            )
        ),
        [17],
    ),
]


def pull_ext(topic: str, **changed: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "frames", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return {**fields, **changed}


def waiting_pull(topic: str, offset: int = 0, group: str = "frames") -> bytes:
    """Return a pull that waits for the message at `offset`.

    Apache's broker answers a send before it adds the message to the queue.
    """
    ext = {"queueOffset": str(offset), "maxMsgNums": "1", "sysFlag": "6", "suspendTimeoutMillis": "4000"}
    return frame(request(11, pull_ext(topic, consumerGroup=group, **ext)))


CASES = [*FRAME_CASES, *SEND_CASES, *BATCH_CASES, *TRANSACTION_CASES, *OTHER_CASES]
