"""The name server of a cluster: the real one, on a machine of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, cast

from wheelmq.net.server_connection import ServerConnection
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.cluster.event_loop import SimulatedLoop
from wheelmq.testing.cluster.network import MachineNetwork, Network
from wheelmq.testing.cluster.requests_port import PeerConnection, RequestProtocol, host_of
from wheelmq.testing.simulation.names import Names

HOST: Final = "10.1.0.9"
ADDRESS: Final = f"{HOST}:9876"


class ClusterNames(Names):
    """A name server that brokers reach by the network. Clients ask it directly."""

    def __init__(self, home: Path, clock: ManualClock, network: Network) -> None:
        super().__init__(home, clock)
        self.loop = SimulatedLoop(clock, MachineNetwork(network, HOST), lambda: False)
        self._network = network
        self._peer_connections: list[PeerConnection] = []
        network.listen(ADDRESS, HOST, self.loop, self._accept)

    def work(self) -> bool:
        """Serve the requests that have arrived. Returns whether there was something."""
        if not self.loop.run():
            return False
        self.loop.check()
        if self._server is not None:
            self._server.tick()
        for connection in list(self._peer_connections):
            connection.flush()
        return True

    def restart(self) -> None:
        """Lose all routes, as a name server does that starts again."""
        connections, self._peer_connections = self._peer_connections, []
        for connection in connections:
            connection.drop()
        self.start()

    def _accept(self) -> RequestProtocol:
        return RequestProtocol(self._opened, self._received, self._lost)

    def _opened(self, transport: asyncio.Transport) -> PeerConnection:
        self._peer_connections.append(PeerConnection(host_of(transport), transport))
        return self._peer_connections[-1]

    def _received(self, data: bytes, connection: PeerConnection) -> None:
        assert self._server is not None
        connection.unread += data
        buffer = memoryview(bytearray(connection.unread))
        taken = self._server.receive(cast(ServerConnection, connection), buffer, len(buffer))
        del connection.unread[:taken]

    def _lost(self, connection: PeerConnection) -> None:
        if connection in self._peer_connections:
            self._peer_connections.remove(connection)
            assert self._server is not None
            self._server.connection_lost(cast(ServerConnection, connection))
