"""The file with the offsets of a broadcast consumer, in the format of Apache's client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wheelmq.client.offsets import BrokerOffsets, LocalOffsets
from wheelmq.client.session import Session
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

    async def ask(self, request: Command, timeout_s: float) -> None:
        topic, queue_id = request.ext["topic"], int(request.ext["queueId"])
        if queue_id == 9:
            raise Refused(Command(code=ResponseCode.SYSTEM_ERROR, remark="no"))
        table = self.tables.get(topic)
        await asyncio.sleep(0)
        if table is None:
            table = self.tables[topic] = {}
        table[queue_id] = int(request.ext["commitOffset"])


def test_offsets_of_a_new_group_create_one_table_at_each_broker() -> None:
    brokers = {"a": RacingBroker(), "b": RacingBroker()}
    session: Any = SimpleNamespace(timeout_s=1.0, caller=lambda name: brokers[name])
    wanted = {
        QueueName(topic=topic, broker_name=broker, queue_id=i): 10 + i
        for topic in ("T", "U")
        for broker in ("a", "b")
        for i in range(4)
    }
    refused = QueueName(topic="T", broker_name="a", queue_id=9)
    problems = asyncio.run(BrokerOffsets(cast(Session, session), "G").commit({refused: 1, **wanted}))
    assert list(problems) == [refused]
    for broker in brokers.values():
        assert broker.tables == {topic: {i: 10 + i for i in range(4)} for topic in ("T", "U")}
