"""WheelMQ's client and its reader of store folders, against Apache RocketMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.apache.apache import ApacheBroker, ApacheNameServer
from wheelmq.client import CancelResult, Consumed, OutgoingMessage, Producer, PushConsumer, ReceivedMessage
from wheelmq.delay.offline import pending_in
from wheelmq.delay.timer.mark import load_check
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.clock import SystemClock
from wheelmq.system.disk import ReadOnlyDisk

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

DEADLINE_S = 60.0
APACHE_LATE_MS = 3000
"""Apache rounds a due time down to the second and scans its wheel in seconds."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def exercise(namesrv: str, store: Path) -> tuple[list[ReceivedMessage], str]:
    """Use all functions of the client. Returns the received messages, and the key of the one left pending."""
    got: list[ReceivedMessage] = []

    async def callback(message: ReceivedMessage) -> Consumed | None:
        got.append(message)
        return Consumed.LATER if message.body == b"retry" and not message.reconsume_times else None

    def bodies() -> set[bytes]:
        return {message.body for message in got}

    async with Producer(namesrv) as producer:
        await producer.send("T", b"plain", keys=["a", "b"], tags="t")
        consumer = PushConsumer(namesrv, "G")
        consumer.subscribe("T", callback, "t || u")
        async with consumer:
            await until(lambda: b"plain" in bodies())
            await producer.send("T", b"other tag", tags="v")
            await producer.send_oneway("T", b"oneway", tags="u")
            batch = await producer.send_batch("T", [OutgoingMessage(body=b"b%d" % i, tags="t") for i in range(3)])
            assert len({result.message_id for result in batch}) == 3
            relative = await producer.send("T", b"relative", tags="t", delay_ms=1500)
            cancelled = await producer.send("T", b"cancelled", tags="t", delay_ms=2500)
            absolute = await producer.send("T", b"absolute", tags="t", deliver_at_ms=SystemClock().now_ms() + 3500)
            left = await producer.send("T", b"left", tags="t", delay_ms=3_600_000)
            gone = await producer.send("T", b"gone", tags="t", delay_ms=3_600_000)
            for one in (cancelled, gone):
                assert one.due_ms is not None
                assert await producer.cancel("T", one.unique_key, one.due_ms) is CancelResult.ACCEPTED
            await producer.send("T", b"retry", tags="t")
            expected = {b"plain", b"oneway", b"b0", b"b1", b"b2", b"relative", b"absolute", b"retry"}
            await until(lambda: bodies() >= expected and max(message.reconsume_times for message in got) == 1)
            last_ms = max(relative.due_ms or 0, absolute.due_ms or 0)
            await until(
                lambda: (
                    (check := load_check(ReadOnlyDisk(), StorePaths(store))) is not None
                    and check.last_read_ms > last_ms
                )
            )
    assert bodies() == expected
    return got, left.unique_key


def test_client_and_store_reader_work_with_apache(tmp_path: Path) -> None:
    namesrv = ApacheNameServer(tmp_path / "home")
    broker = ApacheBroker(tmp_path / "home", namesrv.address, config={"mappedFileSizeCommitLog": 1 << 26})
    with namesrv, broker:
        got, left = asyncio.run(exercise(namesrv.address, broker.store_dir))
        broker.kill()
    plain = next(message for message in got if message.body == b"plain")
    assert (plain.keys, plain.tags, plain.due_ms) == (["a", "b"], "t", None)
    for message in got:
        if message.body in (b"relative", b"absolute"):
            assert message.lateness_ms is not None and -1000 < message.lateness_ms < APACHE_LATE_MS
    assert sorted(m.reconsume_times for m in got if m.body == b"retry") == [0, 1]
    assert {m.topic for m in got} == {"T"}
    assert [pending.unique_key for pending in pending_in(broker.store_dir)] == [left]
