"""The parts of a server that its connections share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from wheelmq.net.closed_connections import ClosedConnections
from wheelmq.net.core import Core
from wheelmq.net.limits import Limits, SocketOptions
from wheelmq.net.memory_guard import MemoryGuard
from wheelmq.net.pending_writes import PendingWrites
from wheelmq.net.round_robin import RoundRobin
from wheelmq.net.round_schedule import RoundSchedule
from wheelmq.system.rate_limited_log import RateLimitedLog

C = TypeVar("C")
"""The type of the connections."""


@dataclass(frozen=True, slots=True)
class ServerContext(Generic[C]):
    core: Core[C]
    loop: asyncio.AbstractEventLoop
    limits: Limits
    sockets: SocketOptions
    buffer: memoryview
    """The buffer that all connections read into, one after another."""
    connections: dict[C, None]
    """In the order in which they opened. After a pause for memory they continue in this order."""
    rounds: RoundSchedule
    round_robin: RoundRobin
    memory_guard: MemoryGuard
    pending_writes: PendingWrites
    closed: ClosedConnections
    log: RateLimitedLog
