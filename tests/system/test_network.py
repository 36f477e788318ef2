"""`wheelmq up --network` as users run it: the open ports, and the name server for other machines."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.running import START_DEADLINE_S, up

ALLOWED = ("--set", "allow_unauthenticated=true")


@pytest.mark.timeout(START_DEADLINE_S + 60)
def test_up_opens_its_servers_to_a_network_and_lists_them(tmp_path: Path) -> None:
    """The address for clients need not be one of this machine: it may be that of a gateway."""
    with up(tmp_path / "home", "--no-pipeline", "--network=10.0.0.7", *ALLOWED) as running:
        found = running.found
        ports = {one["part"]: one["port"] for one in found["open_ports"]}
        namesrv, broker = (int(found[name].rpartition(":")[2]) for name in ("namesrv", "broker"))
        assert ports["name server"] == namesrv and ports["broker"] == broker
        assert {one["host"] for one in found["open_ports"]} == {"0.0.0.0"}
        assert not {one["port"] for one in found["open_ports"]} & {int(found["dashboard"].split(":")[-1].strip("/"))}
        for port in ports.values():
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        assert found["network_namesrv"] == f"10.0.0.7:{namesrv}"
        assert '"10.0.0.7:' in running.command("admin", "clusterList", "--json")
        assert "other machines can connect to: name server" in running.errors.read_text()
        assert running.stop() == 0


@pytest.mark.timeout(START_DEADLINE_S + 60)
def test_up_without_the_option_opens_nothing(tmp_path: Path) -> None:
    with up(tmp_path / "home", "--no-pipeline") as running:
        assert (running.found["open_ports"], running.found["network_namesrv"]) == ([], None)
        assert running.stop() == 0
