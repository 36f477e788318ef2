"""The address that a broker registers: `--advertise`, a setting, or an address of the machine (ADR 37)."""

from __future__ import annotations

import socket
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from wheelmq.broker.registration import register_command
from wheelmq.broker.settings import BrokerSettings
from wheelmq.cli import advertise, main
from wheelmq.cli.advertise import Address, AddressType, choose, own_addresses, routes_to, with_own_address
from wheelmq.cli.part import CannotStart
from wheelmq.cli.stack import Stack, StackSettings
from wheelmq.formats.hosts import is_loopback
from wheelmq.system.clock import SystemClock
from wheelmq.testing.harness import BrokerHarness


def settings(**chosen: object) -> BrokerSettings:
    return BrokerSettings.of(store_path=Path("/store"), **chosen)


class TestOption:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [("10.0.0.7", "10.0.0.7", None), ("10.0.0.7:30911", "10.0.0.7", 30911), ("mq.example:1", "mq.example", 1)],
    )
    def test_a_value_is_a_host_with_or_without_a_port(self, text: str, host: str, port: int | None) -> None:
        address = AddressType().convert(text, None, None)
        assert address == Address(host, port)
        assert address.text == text

    @pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a:b", "::1", "[::1]:1"])
    def test_another_value_is_rejected(self, text: str) -> None:
        with pytest.raises(click.BadParameter, match="write HOST or HOST:PORT"):
            AddressType().convert(text, None, None)

    def test_an_address_also_sets_the_ip(self) -> None:
        assert Address("10.0.0.7", 5).settings() == {
            "advertised_host": ("10.0.0.7", "--advertise"),
            "advertised_port": (5, "--advertise"),
            "broker_ip": ("10.0.0.7", "--advertise"),
        }
        assert Address("mq.example", None).settings() == {
            "advertised_host": ("mq.example", "--advertise"),
            "advertised_port": (None, "--advertise"),
        }

    def test_up_gives_the_option_to_its_broker(self, tmp_path: Path) -> None:
        chosen = StackSettings(home=tmp_path, with_pipeline=False, advertise="mq.example:30911")
        stack = Stack(chosen, clock=SystemClock(), tell=lambda text: None)
        command = stack.broker.command
        assert command[command.index("--advertise") + 1] == "mq.example:30911"
        assert "--advertise" not in stack.namesrv.command


class TestChoice:
    def test_the_only_address_is_chosen(self) -> None:
        assert choose(["10.0.0.7"], []) == "10.0.0.7"

    def test_the_route_to_the_name_servers_decides_among_several(self) -> None:
        assert choose(["10.0.0.7", "172.17.0.1"], ["10.0.0.7", "10.0.0.7"]) == "10.0.0.7"

    def test_a_name_server_on_this_machine_decides_nothing(self) -> None:
        assert choose(["10.0.0.7"], ["127.0.0.1"]) == "10.0.0.7"
        with pytest.raises(CannotStart):
            choose(["10.0.0.7", "172.17.0.1"], ["127.0.0.1"])

    @pytest.mark.parametrize("routes", [[], ["10.0.0.7", "172.17.0.1"]])
    def test_several_addresses_end_the_start_with_their_names(self, routes: list[str]) -> None:
        with pytest.raises(CannotStart) as rejected:
            choose(["172.17.0.1", "10.0.0.7"], routes)
        assert "clients need one of them: 10.0.0.7, 172.17.0.1. Name the address" in str(rejected.value)

    def test_a_machine_without_a_network_has_none(self) -> None:
        assert choose([], []) is None

    def test_addresses_of_this_machine_are_those_of_its_network(self) -> None:
        assert not any(map(is_loopback, own_addresses()))
        assert routes_to(["127.0.0.1:9876", "no-such-host.invalid:9876"]) == ["127.0.0.1"]


class TestSettings:
    @pytest.fixture(autouse=True)
    def _two_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(advertise, "own_addresses", lambda: ["10.0.0.7", "172.17.0.1"])
        monkeypatch.setattr(advertise, "routes_to", lambda servers: ["10.0.0.7"] if servers else [])

    def test_a_chosen_ip_counts(self) -> None:
        chosen = settings(broker_ip="10.9.9.9", listen_host="0.0.0.0")
        assert with_own_address(chosen, {"broker_ip": 1}).broker.address == "10.9.9.9:10911"

    def test_a_broker_for_this_machine_keeps_its_address(self) -> None:
        assert with_own_address(settings(), {}).broker.address == "127.0.0.1:10911"

    def test_a_broker_on_one_address_registers_it(self) -> None:
        assert with_own_address(settings(listen_host="10.0.0.8"), {}).broker.ip == "10.0.0.8"

    def test_a_broker_on_all_addresses_registers_that_of_its_route(self) -> None:
        chosen = settings(listen_host="0.0.0.0", namesrv=("10.0.0.1:9876",))
        assert with_own_address(chosen, {}).broker.ip == "10.0.0.7"
        with pytest.raises(CannotStart, match="Name the address that clients connect to"):
            with_own_address(settings(listen_host="0.0.0.0"), {})

    def test_a_name_is_resolved_for_message_ids(self) -> None:
        found = with_own_address(settings(advertised_host="localhost", advertised_port=30911), {}).broker
        assert (found.address, found.ip) == ("localhost:30911", "127.0.0.1")

    def test_a_name_without_an_address_ends_the_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: object) -> object:
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(CannotStart, match=r"mq\.example: .*Name or service not known.*--set broker_ip="):
            with_own_address(settings(advertised_host="mq.example"), {})
        assert with_own_address(settings(advertised_host="mq.example"), {"broker_ip": 1}).broker.host == "mq.example"

    @pytest.mark.parametrize("host", ["a:1", "a..b"])
    def test_a_host_that_is_no_name_is_rejected(self, host: str) -> None:
        with pytest.raises(ValueError, match=r"advertised_host is .*: it must be a name or an address"):
            settings(advertised_host=host).broker.check()


def test_the_registered_address_is_in_routes_and_message_ids(tmp_path: Path) -> None:
    chosen = {"broker_ip": "10.0.0.7", "advertised_host": "mq.example", "advertised_port": 30911}
    with BrokerHarness(tmp_path, **chosen) as harness:
        parts = harness.broker.parts
        parts.replication.ha_port = 10912
        header = register_command(parts.settings, parts.topics, parts.replication).ext
        assert (header["brokerAddr"], header["haServerAddr"]) == ("mq.example:30911", "mq.example:10912")
        answer = harness.send("Orders")
        assert answer.ext["msgId"].startswith(f"0A000007{30911:08X}")


def test_a_start_that_cannot_choose_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertise, "own_addresses", lambda: ["10.0.0.7", "172.17.0.1"])
    words = ["broker", "--home", str(tmp_path), "--port", "0", "--set", "listen_host=0.0.0.0"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 78
    assert "as in --advertise 10.0.0.7" in done.output
