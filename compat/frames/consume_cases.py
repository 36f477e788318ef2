"""Requests of consumers: pulls by status, offsets by group and by queue, locks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from compat.frames.cases import Case, Part, properties, pull_ext, request, send, waiting_pull
from compat.frames.wire import frame

PULL: Final = 11
LITE_PULL: Final = 361
QUERY_OFFSET: Final = 14
UPDATE_OFFSET: Final = 15
CREATE_TOPIC: Final = 17
SEARCH_OFFSET: Final = 29
MAX_OFFSET: Final = 30
MIN_OFFSET: Final = 31
EARLIEST_STORE_TIME: Final = 32
LOCK: Final = 41
UNLOCK: Final = 42
CONSUME_STATS: Final = 208
RESET_OFFSET: Final = 222
CONSUME_TIME_SPAN: Final = 303
CORRECTION_OFFSET: Final = 308

ONEWAY: Final = 2
LATE_MS: Final = str(1 << 42)
"""A time far in the future, at which no message is stored."""


def ask(code: int, body: bytes = b"", **ext: str | None) -> bytes:
    """Return the frame of a request."""
    return frame(request(code, {name: value for name, value in ext.items() if value is not None}), body)


def _pull(topic: str, code: int = PULL, **changed: str) -> bytes:
    return frame(request(code, pull_ext(topic, **changed)))


def _commit(topic: str, **changed: str | None) -> bytes:
    fields = {"consumerGroup": f"{topic}g", "topic": topic, "queueId": "0", "commitOffset": "1", **changed}
    return ask(UPDATE_OFFSET, **fields)


def _query(topic: str, **changed: str | None) -> bytes:
    return ask(QUERY_OFFSET, **{"consumerGroup": f"{topic}g", "topic": topic, "queueId": "0", **changed})


def _reset(topic: str, **changed: str | None) -> bytes:
    fields = {"group": f"{topic}g", "topic": topic, "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
    return ask(RESET_OFFSET, **{**fields, **changed})


def _of_group(topic: str, **changed: str) -> bytes:
    """Return a pull of the topic's own group, which creates the group."""
    return _pull(topic, consumerGroup=f"{topic}g", **changed)


def case(name: str, parts: Any, last: list[int], ours: list[int] | None = None, /, **says: str) -> Case:
    """Return a case whose parts depend on a topic.

    The codes are those of the last parts; earlier parts are answered with 0. `says` is as in Case.
    """
    before = [0] * (len(parts("T")) - len(last))
    return Case(name, parts, [*before, *last], ours=None if ours is None else [*before, *ours], says=says)


def sent(topic: str, count: int = 2) -> list[Part]:
    """Return parts that send `count` messages and wait until a pull finds them."""
    waits = [waiting_pull(topic, i) for i in range(count)]
    return [*(send(topic, i=properties(TAGS="A")) for _ in range(count)), *waits]


def _lock(code: int, client: str, *queues: int, flag: int = 0) -> Any:
    def made(topic: str) -> bytes:
        named = [{"brokerName": "broker-a", "queueId": queue, "topic": topic} for queue in queues]
        body = json.dumps({"clientId": client, "consumerGroup": f"{topic}g", "mqSet": named}).encode()
        return frame(request(code, flag=flag), body)

    return made


def _locks(name: str, steps: Sequence[Any], **says: str) -> Case:
    return case(name, lambda topic: [step(topic) for step in steps], [0], **says)


def _held(*queues: int) -> str:
    """Return a pattern for an answer with exactly these queues, in any order."""
    each = "".join(rf"(?=.*\"queueId\":{queue}\b)" for queue in queues)
    return rf"^{each}(?!(.*queueId){{{len(queues) + 1}}})"


def _both(first: Any, second: Any) -> Any:
    return lambda topic: first(topic) + second(topic)


_EMPTY: Final = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
_TWO: Final = {"minOffset": "0", "maxOffset": "2", "suggestWhichBrokerId": "0", "topicSysFlag": "0"}

_PULLS: Final = [
    case("pull of what is there", lambda t: [*sent(t), _pull(t)], [0], remark="FOUND", nextBeginOffset="2", **_TWO),
    case("pull of one", lambda t: [*sent(t), _pull(t, maxMsgNums="1")], [0], nextBeginOffset="1", **_TWO),
    case(
        "pull at the end",
        lambda t: [*sent(t), _pull(t, queueOffset="2")],
        [19],
        remark="OFFSET_OVERFLOW_ONE",
        nextBeginOffset="2",
        **_TWO,
    ),
    case(
        "pull behind the end",
        lambda t: [*sent(t), _pull(t, queueOffset="3")],
        [21],
        remark="OFFSET_OVERFLOW_BADLY",
        nextBeginOffset="2",
        **_TWO,
    ),
    case(
        "pull before the beginning",
        lambda t: [*sent(t), _pull(t, queueOffset="-1")],
        [21],
        remark="OFFSET_TOO_SMALL",
        nextBeginOffset="0",
        **_TWO,
    ),
    case(
        "pull of tags that nothing has",
        lambda t: [*sent(t), _pull(t, subscription="B")],
        [20],
        remark="NO_MATCHED_MESSAGE",
        nextBeginOffset="2",
        **_TWO,
    ),
    case("pull of an empty queue", lambda t: [*sent(t), _pull(t, queueId="3")], [19], **_EMPTY),
    case(
        "pull of an empty queue from further on",
        lambda t: [*sent(t), _pull(t, queueId="3", queueOffset="7")],
        [21],
        **_EMPTY,
    ),
    case(
        "pull that may wait, and does",
        lambda t: [*sent(t), _pull(t, queueOffset="2", sysFlag="6", suspendTimeoutMillis="50")],
        [19],
        None,
        remark="OFFSET_OVERFLOW_ONE",
    ),
    case("lite pull", lambda t: [*sent(t), _pull(t, LITE_PULL, sysFlag="22")], [0], remark="FOUND", **_TWO),
    case("lite pull of no topic", lambda t: [_pull(t, LITE_PULL)], [17]),
    case(
        "pull of a topic that may not be read",
        lambda t: [
            ask(
                CREATE_TOPIC,
                topic=t,
                defaultTopic="TBW102",
                readQueueNums="1",
                writeQueueNums="1",
                perm="2",
                topicFilterType="SINGLE_TAG",
                topicSysFlag="0",
                order="false",
            ),
            _pull(t),
        ],
        [16],
        forbiddenType="3",
        remark="the topic[",
    ),
    case(
        "pull that says how far the group is",
        lambda t: [*sent(t), _of_group(t, sysFlag="5", commitOffset="2"), _query(t)],
        [0],
        offset="2",
    ),
]
_OFFSETS: Final = [
    case("offset of a new group", lambda t: [*sent(t), _query(t)], [0], offset="0"),
    case(
        "offset of a new group, none if none",
        lambda t: [*sent(t), _query(t, setZeroIfNotFound="false")],
        [22],
        remark="Not found, do not set to zero",
    ),
    case(
        "offset of a new group, zero if none",
        lambda t: [*sent(t), _query(t, setZeroIfNotFound="true")],
        [0],
        offset="0",
    ),
    case("offset in a queue of no message", lambda t: [*sent(t), _query(t, queueId="3")], [22], [0]),
    case("commit of a group that nobody knows", lambda t: [*sent(t), _commit(t)], [26]),
    case("commit", lambda t: [*sent(t), _of_group(t), _commit(t), _query(t)], [0], offset="1"),
    case(
        "commit beyond the end",
        lambda t: [*sent(t), _of_group(t), _commit(t, commitOffset="99"), _query(t)],
        [0],
        offset="99",
    ),
    case(
        "commit in a queue beyond the queues",
        lambda t: [*sent(t), _of_group(t), _commit(t, queueId="77")],
        [0],
    ),
    case(
        "commit in a queue that no topic has",
        lambda t: [*sent(t), _of_group(t), _commit(t, queueId="99999")],
        [0],
        [29],
    ),
    case("commit without a queue", lambda t: [*sent(t), _of_group(t), _commit(t, queueId=None)], [29]),
    case(
        "search before all",
        lambda t: [*sent(t), ask(SEARCH_OFFSET, topic=t, queueId="0", timestamp="0")],
        [0],
        offset="0",
    ),
    case(
        "search behind all",
        lambda t: [*sent(t), ask(SEARCH_OFFSET, topic=t, queueId="0", timestamp=LATE_MS)],
        [0],
        offset="2",
    ),
    case(
        "search behind all for the last",
        lambda t: [*sent(t), ask(SEARCH_OFFSET, topic=t, queueId="0", timestamp=LATE_MS, boundaryType="UPPER")],
        [0],
        offset="1",
    ),
    case(
        "search behind all for the last, in small letters",
        lambda t: [*sent(t), ask(SEARCH_OFFSET, topic=t, queueId="0", timestamp=LATE_MS, boundaryType="upper")],
        [0],
        offset="1",
    ),
    case(
        "search of another boundary",
        lambda t: [*sent(t), ask(SEARCH_OFFSET, topic=t, queueId="0", timestamp=LATE_MS, boundaryType="MIDDLE")],
        [0],
        offset="2",
    ),
    case(
        "search of an unknown topic",
        lambda t: [ask(SEARCH_OFFSET, topic=t, queueId="0", timestamp="1")],
        [0],
        offset="0",
    ),
    case("end of a queue", lambda t: [*sent(t), ask(MAX_OFFSET, topic=t, queueId="0")], [0], offset="2"),
    case(
        "end of a queue that is not there",
        lambda t: [*sent(t), ask(MAX_OFFSET, topic=t, queueId="77")],
        [0],
        offset="0",
    ),
    case("beginning of a queue", lambda t: [*sent(t), ask(MIN_OFFSET, topic=t, queueId="0")], [0], offset="0"),
    case("beginning of a queue that is not there", lambda t: [ask(MIN_OFFSET, topic=t, queueId="0")], [0], offset="0"),
    case("earliest store time", lambda t: [*sent(t), ask(EARLIEST_STORE_TIME, topic=t, queueId="0")], [0]),
    case(
        "earliest store time of an empty queue",
        lambda t: [*sent(t), ask(EARLIEST_STORE_TIME, topic=t, queueId="3")],
        [0],
        timestamp="-1",
    ),
    case(
        "earliest store time of an unknown topic",
        lambda t: [ask(EARLIEST_STORE_TIME, topic=t, queueId="0")],
        [0],
        timestamp="-1",
    ),
]
_RESETS: Final = [
    case(
        "pull behind a reset",
        lambda t: [*sent(t, 3), _of_group(t), _reset(t), _of_group(t, queueOffset="3")],
        [21],
        remark="OFFSET_RESET",
        nextBeginOffset="1",
        minOffset="0",
        maxOffset="3",
    ),
    case(
        "second pull behind a reset",
        lambda t: [*sent(t, 3), _of_group(t), _reset(t), _of_group(t), _of_group(t, queueOffset="1")],
        [21, 0],
        remark="FOUND",
        nextBeginOffset="3",
    ),
    case(
        "pull of another group behind a reset",
        lambda t: [*sent(t, 3), _of_group(t), _reset(t), _pull(t)],
        [0],
        nextBeginOffset="3",
    ),
    case(
        "commit behind a reset",
        lambda t: [*sent(t, 3), _of_group(t), _reset(t), _commit(t, commitOffset="3")],
        [0],
        remark="Offset has been previously reset",
    ),
    case(
        "offset behind a reset and a commit",
        lambda t: [*sent(t, 3), _of_group(t), _reset(t), _commit(t, commitOffset="3"), _query(t)],
        [0],
        offset="1",
    ),
    case(
        "offset behind a reset, a pull and a commit",
        lambda t: [*sent(t, 3), _of_group(t), _reset(t), _of_group(t), _commit(t, commitOffset="3"), _query(t)],
        [21, 0, 0],
        offset="3",
    ),
    case(
        "reset of all queues to a time",
        lambda t: [*sent(t), _of_group(t), _reset(t, queueId=None, offset=None)],
        [0],
        body=r'"offsetTable":\{(\{[^}]*\}:0,?){4}\}',
    ),
    case(
        "reset of all queues to their ends",
        lambda t: [*sent(t), _of_group(t), _reset(t, queueId="-1", offset=None, timestamp="-1")],
        [0],
        body=r'\{"brokerName":"broker-a","queueId":0,"topic":"\w+"\}:2',
    ),
    case("reset of a group that nobody knows", lambda t: [*sent(t), _reset(t)], [26], remark="Group "),
    case("reset in an unknown topic", lambda t: [_reset(t)], [17], remark="Topic "),
    case(
        "reset beyond the end",
        lambda t: [*sent(t), _of_group(t), _reset(t, offset="9")],
        [1],
        remark="Target offset 9",
    ),
    case(
        "reset one beyond the end",
        lambda t: [*sent(t), _of_group(t), _reset(t, offset="3")],
        [0],
        [1],
    ),
    case(
        "reset in a queue that is not there",
        lambda t: [*sent(t), _of_group(t), _reset(t, queueId="77", offset="0")],
        [0],
        [29],
    ),
    case("reset without a time", lambda t: [*sent(t), _of_group(t), _reset(t, timestamp=None)], [0], [1]),
    case(
        "correction of offsets",
        lambda t: [
            *sent(t, 3),
            _of_group(t),
            _pull(t),
            _commit(t, commitOffset="2"),
            _commit(t, consumerGroup="frames", commitOffset="1"),
            ask(CORRECTION_OFFSET, topic=t, compareGroup=f"{t}g"),
        ],
        [0],
        body=r'"correctionOffsets":\{"?0"?:1\}',
    ),
    case(
        "correction of offsets of who is behind",
        lambda t: [
            *sent(t, 3),
            _of_group(t),
            _pull(t),
            _commit(t, commitOffset="2"),
            _commit(t, consumerGroup="frames", commitOffset="1"),
            ask(CORRECTION_OFFSET, topic=t, compareGroup="frames"),
        ],
        [0],
        body=r'"correctionOffsets":\{"?0"?:1\}',
    ),
    case(
        "correction of offsets of nobody",
        lambda t: [*sent(t), ask(CORRECTION_OFFSET, topic=t, compareGroup=f"{t}g")],
        [0],
        body=r'"correctionOffsets":\{\}',
    ),
    case(
        "how far a group is",
        lambda t: [
            *sent(t, 3),
            _of_group(t, maxMsgNums="2"),
            _commit(t),
            ask(CONSUME_STATS, consumerGroup=f"{t}g", topic=t),
        ],
        [0],
        body=r'"topic":"\w+"\}:\{"brokerOffset":3,"consumerOffset":1,"lastTimestamp":[1-9]\d+,"pullOffset":2\}',
    ),
    case(
        "how far a group is that nobody knows",
        lambda t: [ask(CONSUME_STATS, consumerGroup=f"{t}g")],
        [0],
        body=r'"offsetTable":\{\}',
    ),
    case(
        "when a group consumed what",
        lambda t: [*sent(t, 3), _of_group(t), _commit(t), ask(CONSUME_TIME_SPAN, topic=t, group=f"{t}g")],
        [0],
        body=r'"consumeTimeSpanSet":\[',
    ),
    case(
        "when a group consumed what of an unknown topic",
        lambda t: [ask(CONSUME_TIME_SPAN, topic=t, group=f"{t}g")],
        [17],
    ),
]
_LOCKS: Final = [
    _locks("lock", [_lock(LOCK, "one", 0, 1)], body=_held(0, 1)),
    _locks("lock of what another has", [_lock(LOCK, "one", 0), _lock(LOCK, "two", 0, 1)], body=_held(1)),
    _locks("lock again", [_lock(LOCK, "one", 0), _lock(LOCK, "one", 0, 1)], body=_held(0, 1)),
    _locks(
        "lock behind an unlock",
        [_lock(LOCK, "one", 0), _lock(UNLOCK, "one", 0), _lock(LOCK, "two", 0)],
        body=_held(0),
    ),
    _locks(
        "lock behind another's unlock",
        [_lock(LOCK, "one", 0), _lock(UNLOCK, "two", 0), _lock(LOCK, "two", 0)],
        body=_held(),
    ),
    _locks(
        "lock behind an unlock that nobody answers",
        [
            _lock(LOCK, "one", 0),
            _both(_lock(UNLOCK, "one", 0, flag=ONEWAY), lambda t: ask(MAX_OFFSET, topic=t, queueId="0")),
            _lock(LOCK, "two", 0),
        ],
        body=_held(0),
    ),
    _locks("unlock of what is not locked", [_lock(UNLOCK, "one", 0)]),
    case("lock of no JSON", lambda t: [frame(request(LOCK), b"{")], [1]),
]

CONSUME_CASES: Final = [*_PULLS, *_OFFSETS, *_RESETS, *_LOCKS]
