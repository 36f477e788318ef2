"""The file with the offsets of a broadcast consumer, in the format of Apache's client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wheelmq.client.group import GroupMember
from wheelmq.client.offsets import BrokerOffsets, LocalOffsets
from wheelmq.client.session import Session
from wheelmq.client.share import HeldQueue
from wheelmq.formats.wire.bodies import BodyError, QueueName
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused

QUEUE = QueueName(topic="T", broker_name="b", queue_id=3)
APACHES = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"b",
\t\t\t"queueId":3,
\t\t\t"topic":"T"
\t\t}:17,{"brokerName":"b","queueId":1,"topic":"T"}:2
\t}
}"""


def store(folder: Path) -> LocalOffsets:
    session: Any = SimpleNamespace(client_id="10.0.0.1@DEFAULT")
    return LocalOffsets(folder, "G", cast(Session, session))


def write_file(folder: Path, raw: bytes, name: str = "offsets.json") -> None:
    path = folder / "10.0.0.1@DEFAULT" / "G" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)


def test_a_file_of_apaches_client_is_read(tmp_path: Path) -> None:
    write_file(tmp_path, APACHES)
    assert asyncio.run(store(tmp_path).read(QUEUE)) == 17


def test_committed_offsets_survive_a_restart(tmp_path: Path) -> None:
    write_file(tmp_path, APACHES)

    async def scenario() -> None:
        offsets = store(tmp_path)
        assert await offsets.read(QUEUE) == 17
        assert await offsets.commit({QUEUE: 18}) == {}
        again = store(tmp_path)
        assert await again.read(QUEUE) == 18
        assert await again.read(QueueName(topic="T", broker_name="b", queue_id=1)) == 2
        assert await again.read(QueueName(topic="T", broker_name="b", queue_id=0)) is None

    asyncio.run(scenario())
    raw = (tmp_path / "10.0.0.1@DEFAULT" / "G" / "offsets.json").read_bytes()
    assert b'{"brokerName":"b","queueId":3,"topic":"T"}:18' in raw


def test_the_backup_file_replaces_an_unreadable_file(tmp_path: Path) -> None:
    write_file(tmp_path, b"{torn")
    with pytest.raises(BodyError, match="repair the file, or remove it"):
        asyncio.run(store(tmp_path).read(QUEUE))
    write_file(tmp_path, APACHES, "offsets.json.bak")
    assert asyncio.run(store(tmp_path).read(QUEUE)) == 17


def test_a_commit_reports_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "10.0.0.1@DEFAULT").write_bytes(b"no folder")
    problems = asyncio.run(store(tmp_path).commit({QUEUE: 1}))
    assert list(problems) == [QUEUE] and isinstance(problems[QUEUE], OSError)


class RacingBroker:
    """A broker that creates the table of offsets as Apache's does: of tables created at once, the last one stays."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, int]] = {}
        self.asked = 0

    async def ask(self, request: Command, timeout_s: float) -> None:
        self.asked += 1
        topic, queue_id = request.ext["topic"], int(request.ext["queueId"])
        if queue_id == 9:
            raise Refused(Command(code=ResponseCode.SYSTEM_ERROR, remark="no"))
        table = self.tables.get(topic)
        await asyncio.sleep(0)
        if table is None:
            table = self.tables[topic] = {}
        table[queue_id] = int(request.ext["commitOffset"])


def test_a_broker_that_loses_the_first_offsets_of_a_group_has_all_in_the_end() -> None:
    brokers = {"a": RacingBroker(), "b": RacingBroker()}
    session: Any = SimpleNamespace(timeout_s=1.0, caller=lambda name: brokers[name])
    group = member(cast(Session, session))
    for topic in ("T", "U"):
        for broker in ("a", "b"):
            for i in range(4):
                hold(group, QueueName(topic=topic, broker_name=broker, queue_id=i), 10 + i)
    refused = QueueName(topic="T", broker_name="a", queue_id=9)
    hold(group, refused, 1)

    async def scenario() -> None:
        assert list(await group.commit()) == [refused]
        first = [len(broker.tables["T"]) for broker in brokers.values()]
        assert first == [1, 1], "this broker shows what Apache's does"
        assert list(await group.commit()) == [refused]
        sent = [broker.asked for broker in brokers.values()]
        await group.commit()
        assert [broker.asked for broker in brokers.values()] == [sent[0] + 1, sent[1]], "only what was refused"

    asyncio.run(scenario())
    check_complete(brokers)


def test_a_member_that_leaves_at_once_loses_no_offset() -> None:
    brokers = {"a": RacingBroker()}
    session: Any = SimpleNamespace(timeout_s=1.0, caller=lambda name: brokers[name])
    group = member(cast(Session, session))
    for topic in ("T", "U"):
        for i in range(4):
            hold(group, QueueName(topic=topic, broker_name="a", queue_id=i), 10 + i)
    asyncio.run(group.leave())
    check_complete(brokers)


def member(session: Session) -> GroupMember:
    settings: Any = SimpleNamespace()
    return GroupMember("G", session, settings, BrokerOffsets(session, "G"), gained=lambda held: None, lost=lost)


async def lost(held: HeldQueue) -> bool:
    return True


def hold(group: GroupMember, queue: QueueName, consumed: int) -> None:
    """Give the group a queue whose messages before `consumed` are consumed."""
    group.held[queue] = held = HeldQueue(queue, 0, 100)
    held.take([], consumed)


def check_complete(brokers: dict[str, RacingBroker]) -> None:
    for broker in brokers.values():
        assert broker.tables == {topic: {i: 10 + i for i in range(4)} for topic in ("T", "U")}
