"""Addresses that other machines reach, as `wheelmq up` reports them."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest

from wheelmq.cli.exposure import Listener, unreachable_text, warnings
from wheelmq.cli.part import _fast_runner
from wheelmq.cli.ports import free_port
from wheelmq.cli.stack import Stack, StackFailed, StackSettings
from wheelmq.formats.hosts import is_loopback
from wheelmq.system.clock import SystemClock


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("::ffff:10.0.0.1", False), ("a.host", False),
    ],
)  # fmt: skip
def test_loopback_addresses_are_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    assert Listener("broker", host, 1).is_exposed is not expected


def test_loopback_listeners_cause_no_warning() -> None:
    assert warnings(Listener("name server", "127.0.0.1", 9876), Listener("broker", "127.0.0.1", 10911)) == []


def test_a_warning_names_a_name_server_that_clients_cannot_reach() -> None:
    first, second = warnings(Listener("name server", "127.0.0.1", 9876), Listener("broker", "0.0.0.0", 10911))
    assert "name server on 127.0.0.1:9876" in first and "--namesrv-host 0.0.0.0" in first
    assert "can connect to: broker 0.0.0.0:10911 (all addresses of this machine). There is no TLS" in second


def test_a_warning_names_all_exposed_listeners() -> None:
    [text] = warnings(Listener("name server", "0.0.0.0", 9876), Listener("broker", "0.0.0.0", 10911))
    assert "name server 0.0.0.0:9876 (all addresses of this machine), broker 0.0.0.0:10911" in text


@pytest.mark.parametrize("host", ["10.0.0.7", "::", "::1"])
def test_a_broker_on_one_other_address_fails_the_start(tmp_path: Path, host: str) -> None:
    assert not Listener("broker", host, 10911).is_local
    stack = Stack(StackSettings(home=tmp_path, with_pipeline=False), clock=SystemClock(), tell=lambda text: None)
    stack.broker._on_event({"event": "listening", "address": f"{host}:10911", "listen_host": host})
    with pytest.raises(StackFailed, match=f"the broker listens on {re.escape(host)} alone"):
        stack.raise_failure()
    assert "set its listen_host to 0.0.0.0" in unreachable_text(Listener("broker", "10.0.0.7", 10911))


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "", "localhost", "::", "::1"])
def test_a_server_is_local_if_a_connection_to_it_succeeds(host: str) -> None:
    """The server listens on an event loop of the broker's kind."""

    async def is_reached() -> bool:
        port = free_port()
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return False
        finally:
            server.close()
        writer.close()
        return True

    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with _fast_runner() as loop:
        found = loop.run(is_reached())
    assert Listener("broker", host, 1).is_local is found


def test_a_warning_of_a_part_is_printed(tmp_path: Path) -> None:
    printed: list[str] = []
    stack = Stack(StackSettings(home=tmp_path, with_pipeline=False), clock=SystemClock(), tell=printed.append)
    stack.broker._on_event({"event": "warning", "warning": "the disk is full"})
    assert printed == ["broker: WARNING: the disk is full"]


def test_the_end_of_the_log_of_a_dead_part_is_printed(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        printed: list[str] = []
        died = asyncio.Event()

        def on_text(text: str) -> None:
            printed.append(text)
            died.set()

        stack = Stack(StackSettings(home=tmp_path, with_pipeline=False), clock=SystemClock(), tell=on_text)
        stack.broker.log_path.parent.mkdir(parents=True)
        stack.broker.log_path.write_text("a line of an earlier process\n")
        script = "echo 'Traceback' >&2; echo 'ModuleNotFoundError: No module named x' >&2; exit 1"
        stack.broker.command = ("/bin/sh", "-c", script)
        stack.broker.start()
        await asyncio.wait_for(died.wait(), 20)
        await stack.broker.stop(5)
        return printed

    first = asyncio.run(scenario())[0].splitlines()
    assert first[0].startswith("broker: DIED (it ended with code 1); it is started again at once")
    assert first[1] == f"    the end of {tmp_path / 'logs' / 'broker.log'}:"
    assert first[2:] == ["    | Traceback", "    | ModuleNotFoundError: No module named x"]


def test_a_broker_that_registers_another_address_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setting broker_ip a broker registers that address, and `up` still connects to 127.0.0.1."""
    settings = StackSettings(home=tmp_path, with_pipeline=False, namesrv_host="0.0.0.0")
    stack = Stack(settings, clock=SystemClock(), tell=lambda text: None)
    assert stack.namesrv.command[-2:] == ("--set", "listen_host=0.0.0.0")

    async def brokers() -> dict[str, str]:
        return {"broker-a": "mq.example:30911"}

    async def metrics() -> dict[str, object]:
        return {"takes_sends": True}

    monkeypatch.setattr(stack._routes, "brokers", brokers)
    monkeypatch.setattr(stack, "metrics", metrics)
    stack.namesrv._on_event({"event": "listening", "address": "0.0.0.0:9876", "listen_host": "0.0.0.0"})
    assert not asyncio.run(stack._is_ready())
    event = {"event": "listening", "address": "10.0.0.7:10911", "listen_host": "0.0.0.0"}
    stack.broker._on_event({**event, "registered": "mq.example:30911"})
    assert asyncio.run(stack._is_ready())
    assert stack._listeners["broker"].port == 10911
    assert stack.broker_address.startswith("127.0.0.1:")


def test_the_end_of_the_log_of_a_dead_pipeline_is_printed(tmp_path: Path) -> None:
    printed: list[str] = []
    stack = Stack(StackSettings(home=tmp_path), clock=SystemClock(), tell=printed.append)
    assert stack.pipeline is not None
    stack.pipeline.child.log_path.parent.mkdir(parents=True)
    stack.pipeline.child.log_path.write_text("JavaNotFound: no Java\n")
    stack.pipeline._on_change("died (it ended with code 1); it is started again at once")
    stack.pipeline._on_change("Spark is up (JVM 1)")
    first, *others, last = printed[0].splitlines() + printed[1:]
    assert first.startswith("pipeline: died (it ended with code 1)") and last == "pipeline: Spark is up (JVM 1)"
    assert others[-1] == "    | JavaNotFound: no Java"
