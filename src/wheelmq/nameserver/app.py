"""A name server process: core, sockets, signals."""

from __future__ import annotations

from wheelmq.config.changes import Origin
from wheelmq.nameserver.nameserver import NameServer
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.server import Server, SocketOptions
from wheelmq.system.clock import SystemClock
from wheelmq.system.disk import Disk


class NameServerApp:
    """A name server that listens."""

    def __init__(self, settings: NameServerSettings, origin: Origin | None = None) -> None:
        self.settings = settings
        self._core = NameServer(settings, disk=Disk(), clock=SystemClock(), origin=origin)
        self._server: Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, once it is."""
        return self.settings.listen_port

    async def start(self) -> None:
        """Listen; `port` is then the real one."""
        settings = self.settings
        sockets = SocketOptions(settings.listen_backlog, settings.socket_send_bytes, settings.socket_receive_bytes)
        self._server = Server(self._core, sockets=sockets)
        settings.listen_port = await self._server.listen(settings.listen_host, settings.listen_port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
