"""The comparable part of an answer; the ignored part, and the reasons."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from compat.twin.steps import Answer, Filling, Step
from wheelmq.formats.disk.message import Record, RecordError, decode_record

NOT_COMPARED: dict[str, str] = {
    "msgId": "address and log position of a broker: that it is 32 hexadecimal digits, and how many there are, is",
    "transactionId": "is made by the broker where the sender gave no unique key; where it did, it is compared",
    "recallHandle": "holds the time to which a relative delay counts; the words beside it are compared",
    "cancelResult": "WheelMQ's own: what became of a cancel (docs/adr/0006)",
    "queueId, queueOffset": "where the sender leaves the queue to the broker, which picks one by chance",
    "queueOffset of halves and of delayed messages": "they lie in queues that all topics share, and all sequences",
    "IS_SUPPORT_HEART_BEAT_V2": "Apache's compares fingerprints of heartbeats; WheelMQ takes each as a whole",
    "indexLastUpdateTimestamp": "a time",
    "indexLastUpdatePhyoffset": "a log position",
    "timestamp": "of a message, by the broker's clock",
    "version": "of settings: counts changes, and names a time",
    "remark of code 1": "the text of a Java exception, or ours",
    "what a remark has in brackets at its end": "WheelMQ says there what is wrong with the value",
    "how long a topic may be, in a remark": "WheelMQ says it",
    "fields of an answer with code 1": "where Java threw, there are none",
    "remark of code 23": "says what the parser of expressions met, in its words",
    "forbiddenType": "which of Apache's reasons a rejection with code 16 has",
    "remark of code 0": "a pull's says its status, which the code says; of other answers there is none",
    "body of 26, 28, 43, 45, 60, 61, 305, 315": "settings, figures and times of a broker, and what other sequences "
    "left: that there is a body is compared",
    "body of 204": "of several clients over one connection, as sequences have them and clients do not, Apache keeps "
    "the first, WheelMQ all",
    "store time, log position, hosts, size, checksum of a record": "times and addresses",
    "UNIQ_KEY of a record": "as transactionId",
    "TIMER_OUT_MS, TIMER_ENQUEUE_MS, __WMQ_DUE of a record": "times; the last is WheelMQ's own",
    "times and addresses in JSON bodies": "by their names: see _VOLATILE",
}
"""The ignored parts, with the reasons."""

NOT_LOOKED_AT = "told"
"""A field in the result of `normal` that is not compared. The table of intended differences uses it."""
_FIGURES = frozenset((26, 28, 43, 45, 60, 61, 204, 305, 315))
_RECORDS = frozenset((11, 12, 33, 361))
_SENDS = frozenset((10, 310, 320))
_ASIDE = ("TRAN_MSG", "TIMER_", "DELAY")
"""Parts of properties that may park a message in a queue that all topics share."""
SHARED = ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
_OURS = frozenset(("cancelResult",))
_NOT_COMPARED_FIELDS = frozenset(
    (
        "indexLastUpdateTimestamp",
        "indexLastUpdatePhyoffset",
        "version",
        "IS_SUPPORT_HEART_BEAT_V2",
        "forbiddenType",
        "timestamp",
    )
)
_BROKERS = frozenset(("UNIQ_KEY", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "__WMQ_DUE", "ORIGIN_MESSAGE_ID"))
_VOLATILE = frozenset(
    (
        "brokerAddr", "lastUpdateTimestamp", "lastTimestamp", "timestamp", "clientAddr", "dataVersion", "consumeTps",
        "lastUpdateTimestampMillis", "physicOffset", "physicPosition", "physicSize", "msg", "version", "versionDesc",
        "bitMap", "timeStamp",
    )
)  # fmt: skip
_URL = re.compile(
    r"\s*(?:For more information, please visit the url, |See )https?://\S+( for further details\.)?|\n.*$", re.DOTALL
)
_ADDED = re.compile(r" \([^()]*\)$")
_NUMBERS = re.compile(r"\d+")


def normal(step: Step, answer: Answer | None, filling: Filling) -> Any:
    """Return the comparable part of an answer; None for no answer."""
    if answer is None:
        return None
    if "closed" in answer:
        return "closed"
    code = answer["code"]
    said: dict[str, Any] = {"code": code}
    if code == 1:
        said[NOT_LOOKED_AT] = answer.get("remark") or ""
    if code not in (0, 1, 23):
        said["remark"] = _remark(answer.get("remark"), filling.prefix)
    if code != 1:
        said["fields"] = _fields(step, answer.get("extFields") or {}, filling)
    said["body"] = _body(step, code, answer["body"], filling)
    return said


def alike(apaches: Any, ours: Any) -> bool:
    """Return whether two results of `normal` are equal."""
    return _compared(apaches) == _compared(ours)


def _compared(said: Any) -> Any:
    return {name: value for name, value in said.items() if name != NOT_LOOKED_AT} if isinstance(said, dict) else said


def _remark(remark: str | None, prefix: str) -> str | None:
    """Return the text without links to a manual, numbers and addresses."""
    if remark is None:
        return None
    text = _ADDED.sub("", _URL.sub("", remark.replace(prefix, "")).strip())
    return _NUMBERS.sub("#", text).replace("topic max length #.", "topic max length.")


def _fields(step: Step, fields: dict[str, Any], filling: Filling) -> dict[str, Any]:
    asked = step.ext or {}
    found = {name: value for name, value in fields.items() if name not in _OURS | _NOT_COMPARED_FIELDS}
    for name, shape in _SHAPES.items():
        if name in found:
            found[name] = shape(str(found[name]), filling.prefix)
    block = str(asked.get("i", asked.get("properties", "")))
    if "UNIQ_KEY" not in block:
        found.pop("transactionId", None)
    if "queueOffset" in found and any(name in block for name in _ASIDE):
        found["queueOffset"] = str(found["queueOffset"]).isdigit()
    if step.code_number in _SENDS and str(asked.get("e", asked.get("queueId"))).startswith("-"):
        for name in ("queueId", "queueOffset"):
            if name in found:
                found[name] = str(found[name]).isdigit()
    return found


def _ids(text: str, prefix: str) -> list[bool]:
    return [re.fullmatch("[0-9A-F]{32}", one) is not None for one in text.split(",")]


def _handle(text: str, prefix: str) -> list[str]:
    words = base64.urlsafe_b64decode(text).decode().split(" ")
    return [word.replace(prefix, "") for word in words if not (word.isdigit() and len(word) == 13)]


_SHAPES: dict[str, Callable[[str, str], Any]] = {"msgId": _ids, "recallHandle": _handle}


def _body(step: Step, code: int, body: bytes, filling: Filling) -> Any:
    if step.code_number in _FIGURES or not body:
        return bool(body)
    if code == 0 and step.code_number in _RECORDS:
        return _records(body, filling.prefix)
    try:
        return _plain(json.loads(_quoted(body.decode())), filling.prefix)
    except ValueError:
        return body.decode("latin-1")


def _records(body: bytes, prefix: str) -> list[Any]:
    found: list[Any] = []
    at = 0
    while at < len(body):
        try:
            record = decode_record(body, at)
        except RecordError as error:
            return [*found, f"no record: {error}"]
        found.append(_record(record, prefix))
        at += record.size
    return found


def _record(record: Record, prefix: str) -> Any:
    message = record.message
    topic = message.topic.replace(prefix, "")
    properties = {name: value.replace(prefix, "") for name, value in message.properties.items() if name not in _BROKERS}
    return {
        "topic": topic, "queue": topic != "T9" and (message.queue_id, topic not in SHARED and record.queue_offset),
        "flag": message.flag, "sysFlag": message.sys_flag, "reconsumeTimes": message.reconsume_times,
        "body": message.body.decode("latin-1"), "properties": properties,
    }  # fmt: skip


_OBJECT_KEY = re.compile(r"([{,]\s*)(\{[^{}]*\})(\s*:)")
_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(\s*:)')


def _quoted(text: str) -> str:
    """Return Java's JSON with quotes around number keys, and with object keys as texts."""
    text = _OBJECT_KEY.sub(lambda found: f"{found[1]}{json.dumps(found[2])}{found[3]}", text)
    return _BARE_KEY.sub(lambda found: found[1] or f'{found[2]}"{found[3]}"{found[4]}', text)


def _plain(value: Any, prefix: str) -> Any:
    """Return JSON without volatile and null fields, and with sorted lists."""
    if isinstance(value, dict):
        return {
            key.replace(prefix, ""): _plain(inner, prefix)
            for key, inner in value.items()
            if key not in _VOLATILE and inner is not None
        }
    if isinstance(value, list):
        return sorted((_plain(one, prefix) for one in value), key=json.dumps)
    return value.replace(prefix, "") if isinstance(value, str) else value
