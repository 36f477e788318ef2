"""A name server process: core, sockets and signals."""

from __future__ import annotations

from wheelmq.config.changes import Origin
from wheelmq.config.tls import TlsSettings
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.nameserver.nameserver import NameServer
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.limits import Limits, SocketOptions
from wheelmq.net.server import Server
from wheelmq.net.server_tls import ServerTls, open_server_tls
from wheelmq.system.clock import SystemClock
from wheelmq.system.disk import Disk
from wheelmq.system.open_files import connections_possible


class NameServerApp:
    def __init__(
        self,
        settings: NameServerSettings,
        origin: Origin | None = None,
        access_key: AccessKey | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        """`access_key` is that of the processes of one `wheelmq up`.

        Raises ConfigError, also if other machines could reach the name server without users, and OSError.
        """
        self.settings = settings
        self._tls_settings = tls or TlsSettings()
        self._core = NameServer(
            settings,
            disk=Disk(),
            clock=SystemClock(),
            origin=origin,
            access_key=access_key,
            tls=self._tls_settings,
        )
        self._server: Server | None = None
        self._tls: ServerTls | None = None

    @property
    def port(self) -> int:
        return self.settings.listen_port

    async def start(self) -> None:
        """Start to listen. `port` is then the real port. Raises TlsError, OSError."""
        settings = self.settings
        sockets = SocketOptions(settings.listen_backlog, settings.socket_send_bytes, settings.socket_receive_bytes)
        limits = Limits(
            connections_max=connections_possible(settings.connections_max),
            idle_s=settings.server_channel_max_idle_time_seconds,
        )
        chosen = self._tls_settings
        self._tls = open_server_tls(chosen.server_options(), lambda: chosen.mode, clock=SystemClock())
        self._server = Server(self._core, limits=limits, sockets=sockets, tls=self._tls)
        settings.listen_port = await self._server.listen(settings.listen_host, settings.listen_port)

    async def stop(self) -> None:
        if self._tls is not None:
            await self._tls.stop()
        if self._server is not None:
            await self._server.close()
