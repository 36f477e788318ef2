"""A store goes from Apache RocketMQ to WheelMQ and back, stopped or killed, and nothing is missing.

One fills a store and ends; the other opens it. Every message is found by offset, key and id; groups go on where they
were; what was pending comes once at its time, and what was cancelled does not. `make compat` runs every way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from compat.apache.apache import ApacheBroker, ApacheNameServer
from tests.running import START_DEADLINE_S, STOP_DEADLINE_S, wheelmq
from wheelmq.client import CancelResult, OutgoingMessage, Producer, PushConsumer
from wheelmq.delay.offline import pending_in
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.net.link import Link
from wheelmq.system.clock import SystemClock
from wheelmq.testing.harness import records_in

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

LOG_FILE_BYTES = 1 << 26
DUE_S = 20
"""From the last send to what is pending: the other broker is up by then."""
DEADLINE_S = 60.0
CONSUMING_MS = 5000
"""Until new consumers have their share of the queues."""
APACHE_LATE_MS = 3000
OURS_LATE_MS = 1000
PLAIN = {b"plain", b"b0", b"b1", b"b2", b"large" * 4000}
WAYS = [("apache", "stopped"), ("ours", "killed")]
if os.environ.get("COMPAT") == "whole":
    WAYS += [("apache", "killed"), ("ours", "stopped")]


class Running(NamedTuple):
    """A broker that serves."""

    address: str
    end: Callable[[bool], None]
    """Stop it, or kill it if that is so."""


@contextmanager
def apache(home: Path, store: Path, namesrv: str) -> Iterator[Running]:
    config = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "storePathRootDir": store}
    with ApacheBroker(home, namesrv, config=config) as broker:
        yield Running(broker.address, lambda kill: broker.kill() if kill else bool(broker.stop()))  # type: ignore[arg-type]


@contextmanager
def ours(home: Path, store: Path, namesrv: str) -> Iterator[Running]:
    command = wheelmq(
        "broker", "--home", str(home), "--store", str(store), "--port", "0", "--namesrv", namesrv, "--json"
    )
    command += ["--set", f"log_file_bytes={LOG_FILE_BYTES}"]
    home.mkdir(parents=True, exist_ok=True)
    with (home / "ours.log").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def end(kill: bool) -> None:
        (process.kill if kill else process.terminate)()
        process.wait(STOP_DEADLINE_S)

    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (home / "ours.log").read_text()
        address = json.loads(line)["address"]
        asyncio.run(until(lambda: is_registered(address, namesrv)))
        yield Running(address, end)
    finally:
        process.kill()
        process.communicate(timeout=START_DEADLINE_S)


def is_registered(address: str, namesrv: str) -> bool:
    with closing(Link(namesrv)) as link:
        return address.encode() in bytes(link.ask(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)).body)


BROKERS = {"apache": apache, "ours": ours}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


class Group:
    """A consumer group that notes what comes and how late it is."""

    def __init__(self, namesrv: str, name: str) -> None:
        self.came: Counter[bytes] = Counter()
        self.late_ms: dict[bytes, int | None] = {}
        self.consumer = PushConsumer(namesrv, name)
        self.consumer.subscribe("T", self._take)

    async def _take(self, message: object) -> None:
        body, late_ms = message.body, message.lateness_ms  # type: ignore[attr-defined]
        self.came[body] += 1
        self.late_ms[body] = late_ms


def offset_sum(store: Path) -> int:
    """Messages that the group `old` has consumed, as the store says (Apache's JSON has bare numbers as keys)."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search(r'"T@old":\s*\{([^}]*)\}', (store / "config" / "consumerOffset.json").read_text())
        return sum(map(int, re.findall(r":\s*(\d+)", found[1]))) if found else 0
    return 0


async def fill(namesrv: str, store: Path) -> tuple[str, int]:
    """Send everything, consume what comes at once; of what stays pending the unique key and when it is due."""
    group = Group(namesrv, "old")
    async with Producer(namesrv) as producer:
        await producer.send("T", b"plain", keys=["a", "both"], tags="t")
        async with group.consumer:
            await producer.send_batch("T", [OutgoingMessage(body=b"b%d" % i, keys=[f"k{i}", "both"]) for i in range(3)])
            await producer.send("T", b"large" * 4000, keys="l")
            await until(lambda: set(group.came) == PLAIN)
        due_ms = SystemClock().now_ms() + DUE_S * 1000
        pending = await producer.send("T", b"pending", keys="p", deliver_at_ms=due_ms)
        gone = await producer.send("T", b"gone", deliver_at_ms=due_ms)
        cancelled = await producer.cancel("T", gone.unique_key, due_ms)
        assert cancelled in (CancelResult.ACCEPTED, CancelResult.CANCELLED)  # Apache's, and ours
        await until(lambda: offset_sum(store) == len(PLAIN))
    return pending.unique_key, due_ms


def found_by_key(address: str, key: str) -> set[bytes]:
    """Bodies of the messages with a key, each found once more by its id."""
    ext = headers.texts(topic="T", key=key, maxNum=32, beginTimestamp=0, endTimestamp=1 << 62)
    bodies = set()
    with closing(Link(address)) as link:
        try:
            answer = link.ask(Command(code=RequestCode.QUERY_MESSAGE, ext=ext))
        except Refused:
            return set()
        for record in records_in(bytes(answer.body)):
            view = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext=headers.texts(offset=record.position))
            [again] = records_in(bytes(link.ask(view).body))
            assert again == record and record.body_is_intact
            bodies.add(record.message.body)
    return bodies


async def look(namesrv: str, address: str, due_ms: int, late_max_ms: int) -> None:
    """See that all is there, and goes on; what was due while nobody served may be late by that."""
    late_max_ms += max(0, SystemClock().now_ms() + CONSUMING_MS - due_ms)
    old, new = Group(namesrv, "old"), Group(namesrv, "new")
    async with Producer(namesrv) as producer, old.consumer, new.consumer:
        await until(lambda: set(new.came) >= PLAIN)
        for key, bodies in {"a": {b"plain"}, "k1": {b"b1"}, "both": {b"plain", b"b0", b"b1", b"b2"}}.items():
            await until(lambda key=key, bodies=bodies: found_by_key(address, key) == bodies)  # type: ignore[misc]
        await producer.send("T", b"after", keys="z")
        await until(lambda: b"pending" in old.came and b"pending" in new.came)
        await until(lambda: found_by_key(address, "p") == {b"pending"} and found_by_key(address, "z") == {b"after"})
    assert old.came == Counter({b"pending": 1, b"after": 1})
    assert new.came == Counter([*PLAIN, b"pending", b"after"])
    late_ms = new.late_ms[b"pending"]
    assert late_ms is not None and -1000 < late_ms < late_max_ms


@pytest.mark.parametrize(("first", "end"), WAYS)
def test_a_store_is_handed_over(tmp_path: Path, first: str, end: str) -> None:
    store, second = tmp_path / "store", "ours" if first == "apache" else "apache"
    with ApacheNameServer(tmp_path / "names") as names:
        with BROKERS[first](tmp_path / "first", store, names.address) as broker:
            key, due_ms = asyncio.run(fill(names.address, store))
            broker.end(end == "killed")
        assert [pending.unique_key for pending in pending_in(store)] == [key]
        with BROKERS[second](tmp_path / "second", store, names.address) as broker:
            late_max_ms = OURS_LATE_MS if second == "ours" else APACHE_LATE_MS
            asyncio.run(look(names.address, broker.address, due_ms, late_max_ms))
            broker.end(False)
