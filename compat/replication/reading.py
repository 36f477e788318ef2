"""Read what a broker of either kind has: the messages of its queues, its log, and its tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from compat.replication.load import Sent
from compat.replication.servers import Broker
from wheelmq.client.message import read_records
from wheelmq.formats.disk.message import Record
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.net.sync_connection import SyncConnection

NO_MORE = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
_BARE_KEY = re.compile(rb"([{,]\s*)(\d+)\s*:")


def read(address: str, topic: str = "T") -> list[Record]:
    """Return all records of queue 0, as a consumer gets them from the broker at `address`. Raises CallError."""
    found: list[Record] = []
    with closing(SyncConnection(address)) as link:
        while True:
            ext = headers.texts(
                consumerGroup="reader",
                topic=topic,
                queueId=0,
                queueOffset=len(found),
                maxMsgNums=32,
                sysFlag=headers.PULL_SUBSCRIPTION,
                commitOffset=0,
                suspendTimeoutMillis=0,
                subscription="*",
                subVersion=0,
            )
            answer = link.call(Command(code=RequestCode.PULL_MESSAGE, ext=ext))
            if answer.code == ResponseCode.SUCCESS:
                found += read_records(bytes(answer.body))
            elif answer.code in NO_MORE:
                return found
            else:
                raise CallError(f"{address} answered a pull with {answer.code}: {answer.remark}")


def check(records: list[Record], sent: Sent, *, may_repeat: bool = False) -> int:
    """Check that each message is there once, and those that must not come are not. Returns the number of repeats.

    Raises AssertionError, which names the bodies.
    """
    bodies = [record.message.body for record in records]
    came = Counter(body for body in bodies if body in {*sent.at_once, *sent.due_ms, *sent.never})
    missing = [body for body in (*sent.at_once, *sent.due_ms) if not came[body]]
    assert not missing, f"{len(missing)} messages are missing, such as {missing[0][:40]!r}"
    unwanted = [body for body in sent.never if came[body]]
    assert not unwanted, f"{len(unwanted)} messages came that must not, such as {unwanted[0][:40]!r}"
    again = [body for body, count in came.items() if count > 1]
    assert may_repeat or not again, f"{len(again)} messages came twice, such as {again[0][:40]!r}"
    in_order = [body for body in bodies if body in set(sent.at_once)]
    assert may_repeat or in_order == sent.at_once, "messages that arrive at once are not in the order of the sends"
    return sum(came[body] - 1 for body in again)


def lateness_ms(records: list[Record], sent: Sent, since_ms: int) -> list[int]:
    """Return how late each delayed message was that a broker delivered after `since_ms`, when it began to serve."""
    return [
        record.store_ms - max(since_ms, sent.due_ms[record.message.body])
        for record in records
        if record.message.body in sent.due_ms and record.store_ms >= since_ms
    ]


def log_difference(one: Path, other: Path, end: int, start: int = 0) -> str | None:
    """Return the first difference of the logs of two stores between `start` and `end`, or None."""
    for path in sorted((one / "commitlog").iterdir()):
        first = int(path.name)
        if first >= end or first + path.stat().st_size <= start:
            continue
        copy = other / "commitlog" / path.name
        if not copy.exists():
            return f"{copy} does not exist"
        mine, theirs = path.read_bytes()[: end - first], copy.read_bytes()[: end - first]
        if mine != theirs:
            at = next(i for i in range(min(len(mine), len(theirs))) if mine[i] != theirs[i])
            return f"{copy} has other bytes than {path}, from log position {first + at} on"
    return None


def same_log(master: Broker, slave: Broker, end: int, start: int = 0) -> None:
    """Check that the log of the slave is that of the master byte for byte up to `end`. Raises AssertionError."""
    found = log_difference(master.store_dir, slave.store_dir, end, start)
    assert found is None, found


def config_of(broker: Broker, name: str) -> dict[str, Any] | None:
    """Return the content of a JSON file in the store's `config` folder. Apache writes bare numbers as keys.

    Returns None without the file, and while the broker writes it.
    """
    try:
        raw = (broker.store_dir / "config" / name).read_bytes()
        found: dict[str, Any] = json.loads(_BARE_KEY.sub(rb'\1"\2":', raw))
    except (FileNotFoundError, ValueError):
        return None
    return found
