"""The HA port schedules rounds and ticks of its master."""

from __future__ import annotations

import asyncio
from typing import Any

from wheelmq.net.replica_port import ReplicaConnection, ReplicaPort


class Sink:
    """Takes each replica, and ignores its bytes."""

    def open_replica(self, transport: ReplicaConnection, peer: str) -> str:
        return peer

    def receive_of_replica(self, link: Any, data: bytes) -> None:
        """Ignore the bytes."""

    def lose_replica(self, link: Any) -> None:
        """Ignore the end."""


def test_bytes_of_a_replica_end_a_round_and_room_in_its_socket_needs_a_tick() -> None:
    """A report needs no tick: a SYNC_MASTER gets thousands of them in a second."""
    asyncio.run(_serve_one())


async def _serve_one() -> None:
    scheduled: asyncio.Queue[str] = asyncio.Queue()
    port = ReplicaPort(Sink(), lambda: scheduled.put_nowait("round"), lambda: scheduled.put_nowait("tick"))
    number = await port.listen("127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"a report")
        assert await scheduled.get() == "round"
        (connection,) = port.connections
        connection.pause_writing()
        assert connection.is_full and scheduled.empty()
        connection.resume_writing()
        assert not connection.is_full and await scheduled.get() == "tick"
        writer.close()
    finally:
        await port.close()
