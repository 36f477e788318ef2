"""TLS between WheelMQ and Apache RocketMQ, in both directions. Where the servers are ours, they accept only TLS."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from compat.apache.apache import ApacheBroker, ApacheNameServer, mqadmin
from compat.certificates import Authority
from compat.java.run import CORE, JavaTls, run_suite
from compat.suite import CONFIG
from tests.compat.test_java_client import LATE_MAX_MS, failures
from tests.running import up
from tests.unit.broker.test_tls import LIMIT_S, broker
from tests.unit.net.secure import until
from wheelmq.broker.replication.settings import BrokerRole
from wheelmq.client import ServerCheck, SyncAdmin, SyncProducer, SyncPullConsumer, TlsOptions
from wheelmq.config.tls import OutgoingTls, TlsSettings
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.system.tls import TlsMode
from wheelmq.system.tls_client import client_tls

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

ANYTHING = TlsOptions(verify=ServerCheck.NONE)
"""Apache's certificate for tests is signed by itself, at each start."""
whole = pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="COMPAT=whole, as `make compat` sets it")


def test_the_java_client_passes_its_core_cases_with_tls(tmp_path: Path) -> None:
    """It checks our certificate, and has one of its own, because the servers require one."""
    authority = Authority(tmp_path / "certificates")
    pair, own = authority.issue(), authority.issue("java")
    chosen = {
        **CONFIG,
        "log_file_bytes": 64 << 20,
        "tls_mode": "enforcing",
        "tls_certificate_file": pair.certificate,
        "tls_key_file": pair.key,
        "tls_client_auth": "require",
        "tls_ca_file": authority.file,
        "tls_outgoing_certificate_file": own.certificate,
        "tls_outgoing_key_file": own.key,
    }
    settings = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    with up(tmp_path / "home", "--no-pipeline", *settings) as running:
        tls = JavaTls(authority.file, own)
        results = run_suite(running.found["namesrv"], True, LATE_MAX_MS, only=CORE, tls=tls)
        assert failures(results) == []
        assert len(results) > 30
        assert running.stop() == 0


@whole
def test_the_python_client_uses_tls_with_apache_s_default_servers(tmp_path: Path) -> None:
    with (
        ApacheNameServer(tmp_path) as names,
        ApacheBroker(tmp_path, names.address) as apache,
        SyncProducer(names.address, tls=ANYTHING) as producer,
        SyncAdmin(names.address, tls=ANYTHING) as admin,
    ):
        consumer = SyncPullConsumer(names.address, "tls", tls=ANYTHING)
        consumer.subscribe("T")
        producer.send("T", b"at once")
        producer.send("T", b"later", delay_ms=1500)
        with consumer:
            found: list[bytes] = []
            while len(found) < 2:
                found += [message.body for message in consumer.poll(5000)]
        assert found == [b"at once", b"later"]
        assert apache.address in admin.brokers().values()


def test_a_broker_registers_with_tls_at_apache_s_name_server(tmp_path: Path) -> None:
    async def work(address: str) -> None:
        chosen = {"tls_outgoing": OutgoingTls.ALWAYS, "tls_outgoing_verify": ServerCheck.NONE}
        async with broker(tmp_path / "store", namesrv=(address,), **chosen) as app:
            assert app.registration is not None
            async with asyncio.timeout(LIMIT_S):
                await app.registration.registered.wait()
            listed = await asyncio.to_thread(clusters, address)
            assert f"127.0.0.1:{app.settings.broker.listen_port}".encode() in listed

    with ApacheNameServer(tmp_path) as names:
        asyncio.run(work(names.address))


def clusters(address: str) -> bytes:
    """Return the brokers that a name server knows, asked with TLS."""
    with closing(SyncConnection(address, LIMIT_S, client_tls(ANYTHING))) as link:
        return bytes(link.ask(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)).body)


@asynccontextmanager
async def strict_names(folder: Path, authority: Authority) -> AsyncIterator[NameServerApp]:
    """Run a name server that accepts only TLS."""
    pair = authority.issue()
    table = TlsSettings(mode=TlsMode.ENFORCING, certificate_file=str(pair.certificate), key_file=str(pair.key))
    app = NameServerApp(NameServerSettings(kv_config_path=folder / "kv.json", listen_port=0), tls=table)
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


@whole
def test_apache_s_broker_and_its_tool_use_tls_with_our_name_server(tmp_path: Path) -> None:
    class Registered(ApacheBroker):
        """Its readiness is asked with TLS."""

        def _ready(self) -> bool:
            return f'"{self.address}"'.encode() in clusters(self.namesrv)

    async def work() -> None:
        async with strict_names(tmp_path, Authority(tmp_path / "certificates")) as names:
            address = f"127.0.0.1:{names.port}"
            apache = Registered(tmp_path, address, config={"useTLS": "true"})
            await asyncio.to_thread(apache.start)
            try:
                done = await asyncio.to_thread(
                    mqadmin, ["clusterList"], address, java_options=("-Dtls.enable=true",), home=tmp_path / "tool"
                )
                assert apache.address in done.stdout, done.stdout + done.stderr
            finally:
                await asyncio.to_thread(apache.kill)

    asyncio.run(work())


@whole
def test_a_slave_with_tls_rejects_a_master_of_apache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Apache's HA port has no TLS: it would read the bytes of a handshake as a position of its log."""

    async def work(names: str) -> None:
        chosen: dict[str, Any] = {"tls_outgoing": OutgoingTls.ALWAYS, "tls_outgoing_verify": ServerCheck.NONE}
        chosen |= {"broker_name": "broker-a", "broker_id": 1, "broker_role": BrokerRole.SLAVE}
        async with broker(tmp_path / "ours", namesrv=(names,), **chosen) as app:
            async with asyncio.timeout(LIMIT_S):
                await until(lambda: "one of Apache RocketMQ, whose HA port has no TLS. Set tls_outgoing" in caplog.text)
            assert app.broker is not None and app.broker.parts.store.log.end == 0

    with ApacheNameServer(tmp_path) as names, ApacheBroker(tmp_path, names.address):
        asyncio.run(work(names.address))
