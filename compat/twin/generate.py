"""Random sequences of valid and invalid requests, from a seed.

A random choice of a broker must not affect later steps. So if the broker picks a queue, its topic is one that no
other step names. No message becomes due within a sequence: delays are absent or long.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from compat.frames.cases import inner
from compat.twin.steps import ONEWAY, Step

TOPICS = ("{T0}", "{T1}", "{T2}")
PICKED = "{T9}"
"""The topic whose queues the broker picks."""
GROUPS = ("{G0}", "{G1}")
STEPS = (4, 16)
NAMES = ("a", "b", "topic", "group", "producerGroup", "consumerGroup")
"""Fields whose values create something. Their names belong to one sequence alone."""

Fields = dict[str, Any]
Made = tuple[Fields | None, str]


class Maker:
    """Generates the steps of one sequence."""

    def __init__(self, randomness: Random, served: frozenset[int]) -> None:
        self._random = randomness
        self._sent: list[int] = []
        """Numbers of the steps with a send."""
        self._makers = [(code, weight, make) for code, (weight, make) in self._table().items() if code in served]

    def sequence(self) -> list[Step]:
        """Return a sequence. It begins with a send, so that other requests find a message."""
        steps = [Step(1, 310, *self._send())]
        self._sent.append(1)
        for number in range(2, self._random.randint(*STEPS) + 2):
            steps.append(self._step(number))
        return steps

    def _step(self, number: int) -> Step:
        codes, weights, makes = zip(*self._makers, strict=True)
        at = self._random.choices(range(len(codes)), weights)[0]
        code: int | str = codes[at]
        ext, body = makes[at]()
        if code in (10, 310, 320):
            self._sent.append(number)
        flag, version = 0, 479
        match self._random.randrange(40):
            case 0 | 1 | 2 | 3 | 4 | 5:
                ext = self._malformed(ext)
            case 6:
                code = self._random.choice((987_654, -1, 0, 13, 22, 23, 27, 47, 209, 211, 214, 301, 302))
            case 7:
                body = self._random.choice(("", "{", "[]", "null", "no json", '{"a":{}}', body[: len(body) // 2]))
            case 8:
                flag = ONEWAY
            case 9:
                ext = {**(ext or {}), "unknown": "field", "x": "1"}
            case 10:
                ext = None
            case 11:
                version = self._random.choice((0, 1, 100, 121, 500))
            case 12:
                code = str(code)
        return Step(number, code, ext, body, flag, version)

    def _malformed(self, ext: Fields | None) -> Fields | None:
        """Return the fields with one missing, or with another value."""
        if not ext:
            return ext
        name = self._random.choice(sorted(ext))
        changed = dict(ext)
        if self._random.random() < 0.3:
            del changed[name]
        elif name in NAMES:
            changed[name] = self._one("", "bad/name", "{T8}", "x" * 300)
        else:
            changed[name] = self._random.choice(
                (
                    "",
                    "x",
                    "-1",
                    "+1",
                    "0",
                    "1",
                    "99",
                    "1.5",
                    " 1",
                    "true",
                    "2147483648",
                    "9223372036854775808",
                    "99999999999",
                    7,
                    True,
                )
            )
        return changed

    def _table(self) -> dict[int, tuple[int, Callable[[], Made]]]:
        """Return weight and generator by code."""
        return {
            310: (16, self._send), 10: (5, self._send_v1), 320: (4, self._batch),
            11: (10, self._pull), 361: (2, self._pull), 12: (4, self._query), 33: (3, self._view),
            14: (5, self._query_offset), 15: (5, self._commit_offset), 29: (3, self._search), 30: (4, self._queue),
            31: (3, self._queue), 17: (4, self._create_topic), 215: (2, self._name_topic),
            34: (5, self._heartbeat), 35: (3, self._unregister), 38: (3, self._name_group), 41: (4, self._lock),
            42: (3, self._lock), 46: (3, self._check_client), 36: (4, self._send_back), 37: (4, self._end),
            323: (1, self._resume), 370: (4, self._recall), 45: (1, self._nothing), 60: (1, self._nothing),
            61: (1, self._nothing), 28: (1, self._nothing), 26: (1, self._nothing),
            200: (4, self._create_group), 207: (2, self._delete_group), 351: (3, self._name_topic),
            352: (3, self._group_config), 202: (2, self._name_topic), 203: (2, self._name_group),
            204: (2, self._producers), 208: (2, self._consume_stats), 300: (2, self._name_topic),
            343: (2, self._topics_of_group), 345: (1, self._subscription), 222: (2, self._reset), 321: (2, self._units),
            32: (2, self._queue), 305: (1, self._nothing), 43: (1, self._nothing), 315: (1, self._nothing),
        }  # fmt: skip

    # Parts of requests ---------------------------------------------------------------------------------------------

    def _one(self, *options: str) -> str:
        return self._random.choice(options)

    def _topic(self) -> str:
        known = TOPICS[: self._random.choice((1, 1, 2, 3))]
        if self._random.random() < 0.06:
            return self._one(
                "bad/name", "", "x" * 128, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
                "NoSuch{T0}",
                "%RETRY%{G0}", "%DLQ%{G0}",
            )  # fmt: skip
        return self._random.choice(known)

    def _group(self) -> str:
        return (
            self._one(*GROUPS, GROUPS[0], "nobody{G1}", "CID_ONSAPI_OWNER")
            if self._random.random() < 0.2
            else GROUPS[0]
        )

    def _queue_id(self) -> str:
        return self._one("0", "0", "0", "0", "1", "3", "77", "-1")

    def _send_of(self) -> int:
        return self._random.choice(self._sent)

    def _properties(self) -> str:
        pairs = [("UNIQ_KEY", f"{self._random.getrandbits(128):032X}")] if self._random.random() < 0.95 else []
        for _ in range(self._random.choice((0, 1, 1, 2, 3))):
            pairs.append(
                self._random.choice(
                    (
                        ("TAGS", self._one("a", "b", "\u00e9")), ("KEYS", self._one("k1", "k1 k2", " ")), ("colour",
                        "red"),
                        ("WAIT", self._one("true", "false", "x")), ("n", self._one("1", "5", "x")),
                        ("TIMER_DELAY_MS", self._one("60000", "90000", "0", "-5", "x", "259200001", "1.5", "")),
                        ("TIMER_DELAY_SEC", self._one("60", "0", "-1", "259201", "259200", "x", "9223372036854775807")),
                        ("TIMER_DELIVER_MS", self._one("{now+60000}", "{now-5}", "1", "x", "{now+259300000}")),
                        ("TIMER_DEL_UNIQKEY", self._one("{T0}+K", "x", "+")), ("DELAY", self._one("5", "6", "0",
                        "-1", "x", "99")),
                        ("TIMER_OUT_MS", "1"), ("REAL_TOPIC", "{T1}"), ("REAL_QID", self._one("0", "x")),
                        ("INNER_NUM", "2"), ("POP_CK", "x"), ("TRAN_MSG", self._one("true", "false")), ("PGROUP",
                        "{G0}"),
                        ("MSG_REGION", "own"), ("CLUSTER", "own"), ("TRACE_ON", "x"), ("RECONSUME_TIME", "1"), ("a",
                        ""), ("", "b"),
                    )
                )
            )  # fmt: skip
        return "".join(f"{name}\x01{value}\x02" for name, value in pairs)

    # The requests --------------------------------------------------------------------------------------------------

    def _send(self) -> Made:
        topic, queue_id = self._topic(), self._queue_id()
        if queue_id == "-1":
            topic = PICKED
        ext = {
            "a": "{G0}", "b": topic, "c": self._one(*["TBW102"] * 9, "SELF_TEST_TOPIC", "{T1}", ""),
            "d": self._one(*["4"] * 8, *["1"] * 4, "0", "-1"), "e": queue_id,
            "f": self._one("0", "0", "0", "0", "1", "4", "8", "12"), "g": "{now}", "h": self._one("0", "7", "-3"),
            "i": self._properties(), "j": self._one("0", "0", "0", "1", "17"), "k": self._one("false", "true"),
            "m": "false",
        }  # fmt: skip
        if self._random.random() < 0.2:
            ext["l"] = self._one("0", "3", "-1")
        if self._random.random() < 0.05:
            ext["n"] = self._one("broker-a", "other")
        return ext, self._one(*["body"] * 6, "b" * 300, "\0", "")

    def _send_v1(self) -> Made:
        ext, body = self._send()
        assert ext is not None
        names = {
            "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
            "f": "sysFlag",
            "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
            "l": "maxReconsumeTimes",
            "m": "batch", "n": "brokerName",
        }  # fmt: skip
        return {names[letter]: value for letter, value in ext.items()}, body

    def _batch(self) -> Made:
        ext, _ = self._send()
        assert ext is not None
        ext |= {"m": "true", "i": self._one("", "shared\x011\x02")}
        bodies = [
            inner(
                self._one("x", "yy", "").encode(),
                self._one(
                    "", "TAGS\x01a\x02", "KEYS\x01k1\x02", f"UNIQ_KEY\x01{self._random.getrandbits(64):016X}\x02"
                ).encode(),
                size=self._random.choice((None, None, None, 0, -1)),
                body_size=self._random.choice((None,) * 12 + (99, -1)),
            )
            for _ in range(self._random.randint(1, 3))
        ]
        return ext, b"".join(bodies).decode("latin-1")

    def _pull(self) -> Made:
        kind = self._one("TAG", "TAG", "TAG", "SQL92", "x")
        text = (
            self._one("a = 1", "n > 2", "colour = 'red'", "n >")
            if kind == "SQL92"
            else self._one("*", "*", "a", "a||b", "c")
        )
        return {
            "consumerGroup": self._group(), "topic": self._topic(), "queueId": self._queue_id(),
            "queueOffset": self._one("0", "0", "0", "1", "2", "50", "-1"), "maxMsgNums": self._one("32", "1", "2",
            "0", "-1"),
            "sysFlag": self._one("4", "4", "4", "5", "0"), "commitOffset": self._one("0", "1", "5"),
            "suspendTimeoutMillis": "0",
            "subscription": text, "subVersion": self._one("0", "1"), "expressionType": kind,
        }, ""  # fmt: skip

    def _query(self) -> Made:
        ext = {
            "topic": self._topic(), "key": self._one("k1", "k2", "none", ""), "maxNum": self._one("32", "1", "0", "-1"),
            "beginTimestamp": self._one("0", "{now-60000}", "{now+60000}"), "endTimestamp": self._one("{now+60000}",
            "1"),
        }  # fmt: skip
        if self._random.random() < 0.4:
            ext |= {"key": f"<{self._send_of()}.transactionId>", "_UNIQUE_KEY_QUERY": self._one("true", "false")}
        return ext, ""

    def _view(self) -> Made:
        return {"offset": self._one(*[f"<{self._send_of()}.position>"] * 4, "-1", "999999999999")}, ""

    def _queue(self) -> Made:
        return {"topic": self._topic(), "queueId": self._queue_id()}, ""

    def _query_offset(self) -> Made:
        ext = {"consumerGroup": self._group(), "topic": self._topic(), "queueId": self._queue_id()}
        if self._random.random() < 0.3:
            ext["setZeroIfNotFound"] = self._one("true", "false")
        return ext, ""

    def _commit_offset(self) -> Made:
        return {
            "consumerGroup": self._group(), "topic": self._topic(), "queueId": self._queue_id(),
            "commitOffset": self._one("0", "1", "7", "-1", "99999999999"),
        }, ""  # fmt: skip

    def _search(self) -> Made:
        ext = {
            "topic": self._topic(), "queueId": self._queue_id(),
            "timestamp": self._one("0", "{now-60000}", "{now+60000}", "-1", "9223372036854775807"),
        }  # fmt: skip
        if self._random.random() < 0.5:
            ext["boundaryType"] = self._one("LOWER", "UPPER", "lower", "x")
        return ext, ""

    def _create_topic(self) -> Made:
        return {
            "topic": self._one(*TOPICS[1:], self._topic()), "defaultTopic": "TBW102", "readQueueNums": self._one("4",
            "1", "8"),
            "writeQueueNums": self._one("4", "1", "8"), "perm": self._one("6", "6", "6", "4", "2", "7", "0"),
            "topicFilterType": self._one("SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG"), "topicSysFlag": self._one("0",
            "0", "1"),
            "order": self._one("false", "false", "true"),
        }, ""  # fmt: skip

    def _name_topic(self) -> Made:
        return {"topic": self._one(TOPICS[2], self._topic())}, ""

    def _heartbeat(self) -> Made:
        kind = self._one("TAG", "TAG", "SQL92")
        subscription = {
            "topic": self._random.choice(TOPICS), "subString": "n > 2" if kind == "SQL92" else self._one("*", "a"),
            "subVersion": self._random.choice((1, 2)), "expressionType": kind, "tagsSet": [], "codeSet": [],
            "classFilterMode": False,
        }  # fmt: skip
        consumer = {
            "groupName": self._random.choice(GROUPS), "consumeType": self._one("CONSUME_PASSIVELY", "CONSUME_ACTIVELY"),
            "messageModel": self._one("CLUSTERING", "BROADCASTING"),
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription], "unitMode": False,
        }  # fmt: skip
        body = {
            "clientID": self._one("{C0}", "{C1}"), "producerDataSet": [{"groupName": "{G0}"}],
            "consumerDataSet": [consumer] * self._random.choice((0, 1, 1)), "heartbeatFingerprint": 0,
            "withoutSub": False,
        }  # fmt: skip
        return {}, json.dumps(body)

    def _unregister(self) -> Made:
        ext = {"clientID": self._one("{C0}", "{C1}", "{C2}")}
        for name in ("producerGroup", "consumerGroup"):
            if self._random.random() < 0.6:
                ext[name] = self._group()
        return ext, ""

    def _name_group(self) -> Made:
        return {"consumerGroup": self._group()}, ""

    def _lock(self) -> Made:
        queues = [
            {"topic": "{T0}", "brokerName": self._one("broker-a", "other"), "queueId": queue}
            for queue in range(self._random.randrange(3))
        ]
        body = {
            "consumerGroup": self._random.choice(GROUPS), "clientId": self._one("{C0}", "{C1}"), "mqSet": queues,
            "onlyThisBroker": self._random.choice((True, False)),
        }  # fmt: skip
        return {}, json.dumps(body)

    def _check_client(self) -> Made:
        kind = self._one("TAG", "SQL92", "SQL92", "x")
        text = self._one("n > 2", "n >", "", "a IN ('x')")
        subscription = {"topic": "{T0}", "subString": text, "expressionType": kind, "subVersion": 1}
        body = {"clientId": "{C0}", "group": "{G0}", "subscriptionData": subscription}
        return {}, json.dumps(body)

    def _send_back(self) -> Made:
        ext = {
            "offset": self._one(*[f"<{self._send_of()}.position>"] * 4, "-1", "999999999999"), "group": self._group(),
            "delayLevel": self._one("5", "6", "-1"), "originMsgId": "x", "originTopic": "{T0}", "unitMode": "false",
        }  # fmt: skip
        if self._random.random() < 0.5:
            ext["maxReconsumeTimes"] = self._one("16", "0", "-1")
        return ext, ""

    def _end(self) -> Made:
        number = self._send_of()
        return {
            "producerGroup": self._one("{G0}", "{G0}", "other"), "tranStateTableOffset": f"<{number}.queueOffset>",
            "commitLogOffset": self._one(f"<{number}.position>", f"<{number}.position>", "999999999999", "-1"),
            "commitOrRollback": self._one("8", "8", "12", "0", "4"), "fromTransactionCheck": self._one("false", "true"),
            "msgId": f"<{number}.transactionId>", "transactionId": f"<{number}.transactionId>", "topic": "{T0}",
        }, ""  # fmt: skip

    def _resume(self) -> Made:
        return {"topic": "{T0}", "msgId": self._one("x", "", f"<{self._send_of()}.msgId>")}, ""

    def _recall(self) -> Made:
        return {
            "topic": self._topic(), "producerGroup": "{G0}",
            "recallHandle": self._one(*[f"<{self._send_of()}.recallHandle>"] * 3, "x", "", "djEgVCBicm9rZXItYSAxIEs="),
        }, ""  # fmt: skip

    def _nothing(self) -> Made:
        return {}, ""

    def _create_group(self) -> Made:
        body = {
            "groupName": self._one(*GROUPS, "bad/name", ""), "consumeEnable": self._random.choice((True, True, False)),
            "consumeFromMinEnable": True, "consumeBroadcastEnable": self._random.choice((True, False)),
            "retryQueueNums": 1,
            "retryMaxTimes": self._random.choice((16, 1, 0)), "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": True,
        }  # fmt: skip
        return {}, json.dumps(body)

    def _delete_group(self) -> Made:
        return {"groupName": self._group(), "cleanOffset": self._one("true", "false")}, ""

    def _group_config(self) -> Made:
        return {"group": self._group()}, ""

    def _producers(self) -> Made:
        return {"producerGroup": self._group()}, ""

    def _consume_stats(self) -> Made:
        return {"consumerGroup": self._group(), "topic": self._one("", self._topic())}, ""

    def _topics_of_group(self) -> Made:
        return {"group": self._group()}, ""

    def _subscription(self) -> Made:
        return {"group": self._group(), "topic": self._topic()}, ""

    def _reset(self) -> Made:
        return {
            "topic": self._topic(), "group": self._group(), "timestamp": self._one("0", "-1", "{now+60000}"),
            "isForce": self._one("true", "false"),
        }, ""  # fmt: skip

    def _units(self) -> Made:
        return {
            "topic": self._topic(), "queueId": self._queue_id(), "index": self._one("0", "1", "50", "-1"),
            "count": self._one("10", "1", "0"), "consumerGroup": "{G0}",
        }, ""  # fmt: skip


def sequence(seed: int, served: frozenset[int]) -> list[Step]:
    """Return the sequence of a seed, with the codes that are served."""
    return Maker(Random(seed), served).sequence()
