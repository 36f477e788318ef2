"""A name server process: core, sockets, signals."""

from __future__ import annotations

from pathlib import Path

from wheelmq.nameserver.nameserver import NameServer
from wheelmq.net.server import Server
from wheelmq.system.clock import SystemClock
from wheelmq.system.disk import Disk


class NameServerApp:
    """A name server that listens."""

    def __init__(self, home: Path, *, host: str = "127.0.0.1", port: int = 9876) -> None:
        self._host = host
        self.port = port
        self._core = NameServer(home, disk=Disk(), clock=SystemClock(), port=port)
        self._server: Server | None = None

    async def start(self) -> None:
        """Listen; `port` is then the real one."""
        self._server = Server(self._core)
        self.port = self._core.port = await self._server.listen(self._host, self.port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
