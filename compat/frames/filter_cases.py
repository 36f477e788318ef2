"""Filters of consumers: in pulls, in heartbeats, and in the check of a client that starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from compat.frames.cases import Case, Expected, properties, pull_ext, request, send, waiting_pull
from compat.frames.wire import frame

PULL: Final = 11
HEART_BEAT: Final = 34
CHECK_CLIENT_CONFIG: Final = 46
NUMBERS: Final = ("5", "15")


def _subscription(topic: str, text: str, kind: str | None, version: int = 1) -> dict[str, Any]:
    return {"topic": topic, "subString": text, "expressionType": kind, "subVersion": version}


def _messages(topic: str) -> list[bytes]:
    """Return parts that send messages and wait until a pull finds the last one."""
    sends = [send(topic, i=properties(n=n, TAGS="A")) for n in NUMBERS]
    return [*sends, waiting_pull(topic, len(NUMBERS) - 1)]


def _brought(name: str, text: str | None, kind: str | None, expected: Expected, ours: Expected | None = None) -> Case:
    """Return the case of a pull with its own subscription."""

    def parts(topic: str) -> list[bytes]:
        ext: dict[str, Any] = {**pull_ext(topic), "subscription": text, "expressionType": kind}
        said = {field: value for field, value in ext.items() if value is not None}
        return [*_messages(topic), frame(request(PULL, said))]

    return _answered(f"pull with {name}", parts, expected, ours)


def _beaten(name: str, beats: list[tuple[str, str, int]], version: int, expected: Expected) -> Case:
    """Return the case of a pull without a subscription, after heartbeats with a text, a type and a version each."""

    def parts(topic: str) -> list[bytes]:
        group = f"{topic}g"
        consumer = {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "BROADCASTING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        }  # fmt: skip
        sent = _messages(topic)
        for beat in beats:
            told = {**consumer, "subscriptionDataSet": [_subscription(topic, *beat)]}
            body = {"clientID": "frames", "consumerDataSet": [told], "producerDataSet": []}
            sent.append(frame(request(HEART_BEAT), json.dumps(body).encode()))
        ext = pull_ext(topic, sysFlag="0", consumerGroup=group, subVersion=str(version))
        return [*sent, frame(request(PULL, ext))]

    return _answered(f"pull behind a heartbeat with {name}", parts, expected, count=len(beats))


def _answered(
    name: str,
    parts: Callable[[str], list[bytes]],
    expected: Expected,
    ours: Expected | None = None,
    *,
    count: int = 0,
) -> Case:
    before = [0] * (len(NUMBERS) + 1 + count)
    return Case(name, parts, [*before, *expected], ours=None if ours is None else [*before, *ours])


def _checked(name: str, subscription: dict[str, Any] | None, expected: Expected) -> Case:
    body = json.dumps({"clientId": "frames", "group": "frames", "subscriptionData": subscription}).encode()
    return Case(f"check of {name}", lambda topic: frame(request(CHECK_CLIENT_CONFIG), body), expected)


FILTER_CASES: Final = [
    _brought("an expression", "n > 10", "SQL92", [0]),
    _brought("an expression that nothing matches", "n > 99", "SQL92", [20]),
    _brought("an expression that compares with a text", "n > 'x' OR n = 5", "SQL92", [0], ours=[23]),
    _brought("an expression that is none", "n >", "SQL92", [0], ours=[23]),
    _brought("no expression", None, "SQL92", [23]),
    _brought("an empty expression", "", "SQL92", [23]),
    _brought("another type", "n > 10", "SQL99", [0], ours=[23]),
    _brought("a type without letters and tags", "A", "", [20], ours=[0]),
    _brought("no type and tags", "A", None, [0]),
    _brought("tags that no message has", "X || Y", "TAG", [20]),
    _brought("tags that are none", "||", "TAG", [23]),
    _brought("tags that are spaces", " || ", "TAG", [20], ours=[23]),
    _brought("a space", " ", "TAG", [20], ours=[23]),
    _brought("a star behind a space", " *", "TAG", [20]),
    _beaten("an expression", [("n > 10", "SQL92", 1)], 1, [0]),
    _beaten("an expression that nothing matches", [("n > 99", "SQL92", 1)], 1, [20]),
    _beaten("an expression that is none", [("n >", "SQL92", 1)], 1, [27]),
    _beaten("an empty expression", [("", "SQL92", 1)], 1, [27]),
    _beaten("another type", [("n > 10", "SQL99", 1)], 1, [27]),
    _beaten("an older version", [("n > 10", "SQL92", 1)], 2, [25]),
    _beaten("a newer one that has none", [("n > 10", "SQL92", 1), ("", "SQL92", 2)], 2, [28]),
    _beaten("a newer one that is none", [("n > 10", "SQL92", 1), ("n >", "SQL92", 2)], 2, [27]),
    _beaten("another one of the same version", [("n > 10", "SQL92", 1), ("n > 99", "SQL92", 1)], 1, [0]),
    _beaten("tags behind an expression", [("n > 99", "SQL92", 1), ("*", "TAG", 2)], 2, [0]),
    _checked("an expression", _subscription("T", "n > 10", "SQL92"), [0]),
    _checked("an expression that is none", _subscription("T", "n >", "SQL92"), [23]),
    _checked("an empty expression", _subscription("T", "", "SQL92"), [23]),
    _checked("another type", _subscription("T", "n > 10", "SQL99"), [23]),
    _checked("tags", _subscription("T", "A", "TAG"), [0]),
    _checked("no subscription", None, [0]),
    Case("check of nothing", lambda topic: frame(request(CHECK_CLIENT_CONFIG)), [0]),
    Case("check of no JSON", lambda topic: frame(request(CHECK_CLIENT_CONFIG), b"{"), [1]),
]
