"""`wheelmq up --network`: the address for clients, and the ports that are open."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from wheelmq.cli import advertise, main, up
from wheelmq.cli.network import ExposedPort, network_address, network_pairs, open_ports
from wheelmq.cli.stack import Stack, StackSettings
from wheelmq.system.clock import SystemClock


@pytest.mark.parametrize("given", ["10.0.0.7", "192.168.1.2"])
def test_a_given_address_is_used(given: str) -> None:
    assert network_address(given) == given


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("10.0.0", "is no IPv4 address: name an address of this machine, as in --network=10.0.0.7"),
        ("::1", "is no IPv4 address"),
        ("0.0.0.0", "clients on other machines cannot connect to 0.0.0.0"),
        ("127.0.0.1", "cannot connect to 127.0.0.1"),
    ],
)
def test_an_address_that_clients_cannot_use_is_rejected(given: str, text: str) -> None:
    with pytest.raises(click.BadParameter, match=text):
        network_address(given)


class Probe:
    """A socket without a network: it has no route, or one of `address`."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def __call__(self, *_: object) -> Probe:
        return self

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, address: object) -> None:
        if self._address is None:
            raise OSError("network is unreachable")

    def getsockname(self) -> tuple[str | None, int]:
        return self._address, 1


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", None])
def test_the_default_is_the_address_of_the_default_route(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertise.socket, "socket", Probe(address))
    if address == "10.1.2.3":
        assert network_address("auto") == address
        return
    with pytest.raises(click.BadParameter, match="no route to other machines: name an address"):
        network_address("auto")


@pytest.mark.parametrize(
    ("words", "pairs", "host"),
    [
        (["--network=10.0.0.7"], ("listen_host=0.0.0.0", "broker_ip=10.0.0.7"), "0.0.0.0"),
        (
            ["--network", "10.0.0.7", "--set", "broker_ip=10.0.0.8", "--namesrv-host", "10.0.0.9"],
            ("listen_host=0.0.0.0", "broker_ip=10.0.0.7", "broker_ip=10.0.0.8"),
            "10.0.0.9",
        ),
        ([], (), None),
    ],
)
def test_the_option_sets_the_addresses_of_both_servers(
    words: list[str], pairs: tuple[str, ...], host: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[StackSettings] = []

    async def run(settings: StackSettings, **_: Any) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(up, "_run", run)
    result = CliRunner().invoke(main, ["up", "--home", str(tmp_path), *words])
    assert result.exit_code == 0, result.output
    assert (found[0].broker_settings, found[0].namesrv_host) == (pairs, host)


def test_the_open_ports_are_those_of_the_system() -> None:
    with socket.create_server(("0.0.0.0", 0)) as wide, socket.create_server(("127.0.0.1", 0)) as local:
        port = wide.getsockname()[1]
        parts = [("broker", os.getpid()), ("pipeline", None)]
        found = {one.port: one for one in open_ports(parts, port)}
        assert found[port] == ExposedPort("broker", "0.0.0.0", port)
        assert found[port].text.split() == ["broker", f"0.0.0.0:{port}"]
        assert local.getsockname()[1] not in found
        names = [open_ports(parts, port + shift) for shift in (2, -1, 7)]
        assert [one.part for ports in names for one in ports if one.port == port] == [
            "broker, fast port",
            "broker, replicas",
            "broker, other port",
        ]
    assert ExposedPort("name server", "::", 1).text.endswith("[::]:1")


@pytest.mark.parametrize(
    ("namesrv", "broker", "address", "expected"),
    [
        ("0.0.0.0", "0.0.0.0", "10.0.0.7:1", "10.0.0.7"),
        ("127.0.0.1", "0.0.0.0", "10.0.0.7:1", None),
        ("0.0.0.0", "0.0.0.0", "127.0.0.1:1", None),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:1", None),
    ],
)
def test_clients_of_the_network_get_a_name_server(
    namesrv: str, broker: str, address: str, expected: str | None, tmp_path: Path
) -> None:
    stack = Stack(StackSettings(home=tmp_path, with_pipeline=False), clock=SystemClock(), tell=lambda text: None)
    stack.namesrv._on_event({"event": "listening", "address": f"{namesrv}:9876", "listen_host": namesrv})
    stack.broker._on_event({"event": "listening", "address": address, "listen_host": broker})
    port = stack.namesrv_address.rpartition(":")[2]
    assert stack.network_namesrv == (None if expected is None else f"{expected}:{port}")
    assert network_pairs("10.0.0.7") == ("listen_host=0.0.0.0", "broker_ip=10.0.0.7")
