"""The server shell: it listens, and connects sockets to a core.

All connections read into one buffer. The server serves whole frames as soon as they arrive. The first bytes of a round
schedule its end. Answers are queued per connection and leave in one write at the end of the round. Then the tick runs
if it is due. `Limits` bound the resources that peers can take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from wheelmq.net.closed_connections import ClosedConnections
from wheelmq.net.connection_protocol import ConnectionProtocol
from wheelmq.net.core import Core
from wheelmq.net.entrance import Entrance
from wheelmq.net.idle_check import IdleWatch
from wheelmq.net.limits import Limits, SocketOptions
from wheelmq.net.memory_guard import MemoryGuard
from wheelmq.net.pending_writes import PendingWrites
from wheelmq.net.round_robin import RoundRobin
from wheelmq.net.round_schedule import RoundSchedule
from wheelmq.net.server_connection import ServerConnection
from wheelmq.net.server_context import ServerContext
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 << 10


class Server:
    """Listens for connections, and composes the parts that serve them."""

    def __init__(
        self,
        core: Core[ServerConnection],
        *,
        limits: Limits | None = None,
        sockets: SocketOptions | None = None,
        after_tick: Callable[[], None] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Create a server that does not listen yet. It calls `after_tick` after each round and tick."""
        self.loop = loop = asyncio.get_running_loop()
        self.limits = limits = limits or Limits()
        self.connections: dict[ServerConnection, None] = {}
        server_log, pending_writes = RateLimitedLog(log, loop.time), PendingWrites()
        self.closed = ClosedConnections(server_log, limits)
        self.memory_guard = MemoryGuard(loop, limits.bytes_in_flight_max, self.connections, pending_writes.write)
        self.round_robin = RoundRobin(loop.time)
        self.rounds = RoundSchedule(core, loop, self.round_robin, pending_writes.write, after_tick, server_log)
        self._context = ServerContext(
            core,
            loop,
            limits,
            sockets or SocketOptions(),
            memoryview(bytearray(RECEIVE_BYTES)),
            self.connections,
            self.rounds,
            self.round_robin,
            self.memory_guard,
            pending_writes,
            self.closed,
            server_log,
        )
        self._idle_watch = IdleWatch(loop, limits.idle_s, self.connections, self.closed)
        self._entrance = Entrance(tls, self._connect, deadline_s=limits.frame_deadline_s, is_full=self.is_crowded)
        self._listeners: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Listen on one more `host`. Return the port; the system chooses it if `port` is 0."""
        backlog = self._context.sockets.backlog
        listener = await self.loop.create_server(self._entrance.accept, host, port, backlog=backlog)
        self._listeners.append(listener)
        self._idle_watch.start()
        self.rounds.schedule_tick()
        return int(listener.sockets[0].getsockname()[1])

    def _connect(self) -> ConnectionProtocol:
        return ConnectionProtocol(self._context, self.is_crowded)

    def is_crowded(self) -> bool:
        """Return whether there are too many connections for one more. Count and log the rejection."""
        if len(self.connections) + self._entrance.waiting < self.limits.connections_max:
            return False
        self.closed.note_rejected()
        return True

    def figures(self) -> dict[str, int]:
        return {
            "connections": len(self.connections),
            **self.closed.figures(),
            "postponed_turns": self.round_robin.postponed,
            "relieved_connections": self.memory_guard.closed,
            "failed_ticks": self.rounds.failed_ticks,
            **self._entrance.figures(),
        }

    async def close(self) -> None:
        """Close all connections. No tick runs from now on: another broker may open the store in this process."""
        self.rounds.close()
        self._idle_watch.stop()
        for listener in self._listeners:
            listener.close()
        self._entrance.close()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)
