"""The brokers of several groups: the first query serves all of them until the other queries are up.

The brokers are models with sockets. The queries are fake, and the test asks for batches in place of their planners.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.modelled_broker import ModelledBroker, serve
from tests.unit.spark.test_group_query import FakeQuery
from tests.unit.spark.test_query_group import PLAN, TERMS
from wheelmq.client.sync import Loop
from wheelmq.spark import groups as module
from wheelmq.spark.groups import QueryGroups
from wheelmq.spark.query_group import QueryGroup

DEADLINE_S = 20.0


class FakeQueries:
    """Starts queries that do nothing, and lists their titles."""

    started: list[str]

    def __init__(self, session: object, title: str, *_: object, **__: object) -> None:
        self._title = title

    def start(self) -> FakeQuery:
        self.started.append(self._title)
        return FakeQuery()


@pytest.fixture
def brokers() -> Iterator[dict[str, ModelledBroker]]:
    loop = Loop()
    loop.start()
    made = [ModelledBroker(TERMS, PLAN, pace_s=0.0) for _ in range(3)]
    served = [loop.submit(serve(broker)).result() for broker in made]
    yield {address: broker for broker, (_, address) in zip(made, served, strict=True)}
    for server, _ in served:
        loop.submit(_closed(server)).result()
    loop.stop()


async def _closed(server: asyncio.Server) -> None:
    server.close()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueryGroups]:
    monkeypatch.setattr(module, "GroupQueries", FakeQueries)
    monkeypatch.setattr(FakeQueries, "started", [], raising=False)
    session = SimpleNamespace(
        dataSource=SimpleNamespace(register=lambda source: None), sparkContext=SimpleNamespace(defaultParallelism=4)
    )
    numbers = iter(range(10))
    made = QueryGroups(
        cast(Any, session),
        lambda event, **fields: None,
        2,
        name="p",
        holder_id="id",
        over_the_wire=False,
        tls=None,
        sign=None,
        trial_of=None,
        number=lambda: next(numbers),
    )
    try:
        yield made
    finally:
        made.stop(DEADLINE_S)
    assert made.failure is None


def wait_until(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends_s
        threading.Event().wait(0.01)


def ask_batch(groups: QueryGroups, group: QueryGroup) -> Any:
    """Ask for a batch, as the planner of the group does."""
    return groups.on_loop(groups._answer(group, {"ask": "batch"}))


def turn(groups: QueryGroups, group: QueryGroup, brokers: dict[str, ModelledBroker]) -> set[str]:
    """Make the turns of a batch. Returns its brokers."""
    offset = ask_batch(groups, group)
    if offset is None:
        return set()
    batch = group.batch
    assert batch is not None and batch.sequence == offset["sequence"]
    summaries = []
    for number, turning in batch.turns.items():
        brokers[turning.member.broker]._uploads["index", 0, number] = 15
        one = {"member": number, "turn": turning.plan["turn"], "kind": "index", "part": 0, "attempt": number}
        summaries.append({**one, "chunks": 1, "rows": 15, "crc": 0, "problem": None})
    groups.on_loop(group.commit(batch.sequence, summaries))
    return set(offset["plans"])


def test_the_first_query_serves_all_brokers_until_the_others_are_up(
    groups: QueryGroups, brokers: dict[str, ModelledBroker]
) -> None:
    first, second = groups._groups
    groups.add(list(brokers))
    wait_until(lambda: FakeQueries.started == ["timers of group 1"])
    turned: set[str] = set()
    while turned != set(brokers):
        turned |= turn(groups, first, brokers)
    wait_until(lambda: FakeQueries.started == ["timers of group 1", "timers of group 2"])
    assert set(first.members) == set(brokers) and not second.members
    ask_batch(groups, second)
    assert len(first.members) == 2 and len(second.members) == 1
    while not turn(groups, second, brokers):
        assert first.members
    groups._call(second.fail, "it hangs")
    assert set(first.members) == set(brokers) and not second.members, "its broker turns with the other group"
    broker = next(iter(brokers))
    groups.remove(broker)
    assert broker not in first.members and broker not in second.members


def test_the_parts_of_an_old_batch_are_gone(groups: QueryGroups, brokers: dict[str, ModelledBroker]) -> None:
    first = groups._groups[0]
    groups.add(list(brokers))
    offset = None
    while offset is None:
        offset = ask_batch(groups, first)
    asked = {"ask": "parts", "sequence": offset["sequence"]}
    parts = groups.on_loop(groups._answer(first, asked))
    assert {part["broker"] for part in parts} == set(offset["plans"])
    groups._call(first.fail, "it hangs")
    assert groups.on_loop(groups._answer(first, asked)) == []
