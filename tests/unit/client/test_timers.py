"""Pending timers by the client: listed, counted, found by a key, and read with their bodies."""

from __future__ import annotations

import asyncio
import datetime

from tests.unit.client.conftest import ARRIVAL_DEADLINE_S, Start
from wheelmq.client import Admin, Producer


def test_pending_timers_are_listed_counted_found_and_read(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Admin(running.namesrv) as admin, Producer(running.namesrv) as producer:
            late = await producer.send("T", "x" * 9000, keys="A-1", delay_ms=datetime.timedelta(minutes=50))
            soon = await producer.send("T", "level", delay_level=18)
            block = await producer.send("U", "block", delay_in_seconds=9000)
            found = await admin.timers()
            assert [one.unique_key for one in found] == [late.unique_key, soon.unique_key, block.unique_key]
            assert [await admin.timer_body(one) for one in found] == [b"x" * 9000, b"level", b"block"]
            assert [one.topic for one in await admin.timers("U")] == ["U"]
            assert late.due_ms is not None
            assert await admin.timers(to_ms=late.due_ms) == []
            assert sum((await admin.count_timers("T")).values()) == 2
            await producer.cancel("T", late.unique_key, late.due_ms)
            async with asyncio.timeout(ARRIVAL_DEADLINE_S):  # the index of keys follows the log
                while [one.end for one in await admin.find_timers("T", "A-1")] != ["cancelled"]:
                    await asyncio.sleep(0.01)
            assert len(await admin.timers()) == 2

    asyncio.run(scenario())
