"""A task uploads the rows of each lease of a batch. The brokers are models with sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext

from tests.modelled_broker import ModelledBroker, serve
from tests.unit.spark.test_query_group import PLAN, TERMS
from wheelmq.client.sync import Loop
from wheelmq.formats.disk.turn_row import INDEX, TURN_ROW, WALK
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.spark.upload import UploadLease, group_uploader

WAIT_S = 0.5


class CountingBroker(ModelledBroker):
    """A model that counts the uploads that it is asked for."""

    def __init__(self) -> None:
        super().__init__(TERMS, PLAN, pace_s=0.0)
        self.asked = 0

    async def answer(self, command: Command) -> Command:
        self.asked += command.code == RequestCode.WMQ_PIPELINE_UPLOAD
        return await super().answer(command)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a task, as a worker is while it runs one."""
    context = TaskContext._getOrCreate()
    monkeypatch.setattr(context, "_partitionId", 0, raising=False)
    monkeypatch.setattr(context, "_taskAttemptId", 7, raising=False)


def lease_of(loop: Loop, broker: ModelledBroker) -> tuple[asyncio.Server, UploadLease]:
    """Open a lease of a model, and get the plan of its first turn."""
    server, address = loop.submit(serve(broker)).result()
    opening = Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext={"holderId": "id"})
    terms = msgspec.json.decode(loop.submit(broker.answer(opening)).result().body)
    ext = {"epoch": str(terms["epoch"]), "token": terms["token"], "timeoutMs": "0"}
    loop.submit(broker.answer(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=ext))).result()
    return server, UploadLease(address, terms["epoch"], terms["token"])


def rows_of(member: int) -> pa.RecordBatch:
    """Return a row of each of two kinds, for the first turn."""
    rows = np.zeros(2, TURN_ROW)
    columns = {name: pa.array(rows[name]) for name in TURN_ROW.names or ()}
    columns["kind"] = pa.array([INDEX, WALK], pa.int32())
    columns["turn"] = pa.array([1, 1], pa.int64())
    columns["member"] = pa.array([member, member], pa.int32())
    columns["problem"] = pa.array([None, None], pa.string())
    return pa.RecordBatch.from_pydict(columns)


def test_a_task_waits_for_a_broker_once_and_not_for_each_kind_of_rows(loop: Loop) -> None:
    """The task has no time left for the second kind, and goes on with the next lease."""
    slow, quick = CountingBroker(), CountingBroker()
    opened = [lease_of(loop, broker) for broker in (slow, quick)]
    slow.delay_s = 60.0
    leases = {number: lease for number, (_, lease) in enumerate(opened)}
    found: list[dict[str, Any]] = []
    for batch in group_uploader(leases, WAIT_S, None)(iter([rows_of(0), rows_of(1)])):
        found += batch.to_pylist()
    assert [(one["member"], one["kind"], one["problem"] is None) for one in found] == [
        (0, "", False),
        (1, "index", True),
        (1, "walk", True),
    ]
    assert (slow.asked, quick.asked) == (1, 2)
    for server, _ in opened:
        loop.submit(_closed(server)).result()


async def _closed(server: asyncio.Server) -> None:
    server.close()
