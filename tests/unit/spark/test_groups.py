"""The brokers of several groups: the first query serves all of them until the other queries are up.

The brokers are models with sockets. The queries are fake, and the test asks for batches in place of their planners.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.modelled_broker import ModelledBroker, serve
from tests.unit.spark.test_group_query import FakeQuery
from tests.unit.spark.test_query_group import PLAN, TERMS
from wheelmq.client.sync import Loop
from wheelmq.spark import groups as module
from wheelmq.spark import pipeline
from wheelmq.spark.groups import QueryGroups
from wheelmq.spark.pipeline import _Application
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


SESSION: Any = SimpleNamespace(
    dataSource=SimpleNamespace(register=lambda source: None), sparkContext=SimpleNamespace(defaultParallelism=4)
)


@pytest.fixture(autouse=True)
def fake_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GroupQueries", FakeQueries)
    monkeypatch.setattr(FakeQueries, "started", [], raising=False)


@pytest.fixture
def groups() -> Iterator[QueryGroups]:
    numbers = iter(range(10))
    made = QueryGroups(
        SESSION,
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


def test_a_group_waits_for_no_group_without_brokers(groups: QueryGroups, brokers: dict[str, ModelledBroker]) -> None:
    """The broker of the first group leaves, so its query does not start again after a failure."""
    first, second = groups._groups
    one, other = list(brokers)[:2]
    groups.add([one, other])
    turned: set[str] = set()
    while turned != {one, other}:
        turned |= turn(groups, first, brokers)
    groups.remove(one)
    groups._call(first.fail, "it hangs")
    assert not groups._call(groups._is_wanted, first) and groups._call(groups._is_wanted, second)


class HangingQueries(FakeQueries):
    """Starts queries for brokers that are alone. Their `stop` hangs until the test lets them end."""

    may_end: threading.Event

    def __init__(self, session: object, broker: str, *_: object, **__: object) -> None:
        super().__init__(session, broker)

    def start(self, *_: object) -> FakeQuery:
        query = super().start()
        query.while_it_stops = lambda: assert_in_time(self.may_end)
        return query


def assert_in_time(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def test_queries_that_hang_do_not_keep_their_brokers_from_the_groups(
    brokers: dict[str, ModelledBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "TurnQueries", HangingQueries)
    monkeypatch.setattr(pipeline, "END_S", 0.2)
    monkeypatch.setattr(HangingQueries, "may_end", threading.Event(), raising=False)
    options: dict[str, Any] = {"name": "p", "holder_id": "id", "tls": None, "sign": None, "stage": None}
    made = _Application(SESSION, lambda event, **fields: None, over_the_wire=False, groups=2, queries=2, **options)
    *alone, joining = brokers
    made.begin(alone)
    wait_until(lambda: all(brokers[broker].opened == 1 for broker in alone))
    served = made.begin([joining])
    assert set(served) == set(brokers)
    wait_until(lambda: [broker.opened for broker in brokers.values()] == [2, 2, 1])
    ending = list(made._ending)
    assert all(one._thread.is_alive() for one in ending) and len(ending) == 2, "their queries still hang"
    HangingQueries.may_end.set()
    made.stop()
    assert not any(one._thread.is_alive() or one.failure for one in ending)


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
