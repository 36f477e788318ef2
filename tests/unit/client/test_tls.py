"""Every class of the client over TLS, against servers that accept only encrypted connections."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from compat.certificates import Authority, Pair
from tests.unit.client.conftest import SMALL, registered
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.settings import BrokerSettings
from wheelmq.client import (
    Admin,
    NoNameServer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    ServerCheck,
    SyncAdmin,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
    TlsError,
    TlsOptions,
    TransactionProducer,
    TransactionState,
)
from wheelmq.config.tls import TlsSettings
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.system.tls import TlsMode

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue()


@asynccontextmanager
async def strict(folder: Path, authority: Authority, pair: Pair) -> AsyncIterator[str]:
    """Run a name server and a broker that accept only encrypted connections. Yields the name server's address."""
    table = {"mode": TlsMode.ENFORCING, "certificate_file": str(pair.certificate), "key_file": str(pair.key)}
    table |= {"outgoing_ca_file": str(authority.file)}
    chosen = {f"tls_{key}": value for key, value in table.items()}
    names = NameServerApp(NameServerSettings(kv_config_path=folder / "kv", listen_port=0), tls=TlsSettings(**table))
    await names.start()
    address = f"127.0.0.1:{names.port}"
    settings = BrokerSettings.of(store_path=folder / "store", listen_port=0, namesrv=(address,), **SMALL, **chosen)
    app = BrokerApp(settings, owns_process=False)
    await app.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            await registered(app)
            yield address
    finally:
        await app.stop()
        await names.stop()


def test_the_classes_with_a_loop(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def work() -> None:
        tls = ssl.create_default_context(cafile=authority.file)
        async with strict(tmp_path, authority, pair) as names:
            arrived: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: ReceivedMessage) -> None:
                arrived.put_nowait(message.body)

            consumer = PushConsumer(names, "pushed", tls=tls)
            consumer.subscribe("T", take)
            async with (
                Producer(names, tls=tls) as producer,
                TransactionProducer(names, lambda message: TransactionState.COMMIT, tls=tls) as transactions,
            ):
                await producer.send("T", b"plain")
                async with consumer:
                    assert await arrived.get() == b"plain"
                    await transactions.send_in_transaction("T", b"paid", lambda message: TransactionState.COMMIT)
                    assert await arrived.get() == b"paid"
                    await producer.send("T", b"later", delay_ms=300)
                    assert await arrived.get() == b"later"
            puller = PullConsumer(names, "pulled", tls=tls)
            puller.subscribe("T")
            async with puller, Admin(names, tls=tls) as admin:
                found: list[bytes] = []
                while len(found) < 3:
                    found += [message.body for message in await puller.poll(1000)]
                assert sorted(found) == [b"later", b"paid", b"plain"]
                assert "T" in await admin.topics()

    asyncio.run(work())


def test_the_classes_without_a_loop(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    def use(names: str, tls: TlsOptions) -> None:
        arrived = threading.Semaphore(0)
        consumer = SyncPushConsumer(names, "pushed", tls=tls)
        consumer.subscribe("T", lambda message: arrived.release())
        puller = SyncPullConsumer(names, "pulled", tls=tls)
        puller.subscribe("T")
        with (
            SyncProducer(names, tls=tls) as producer,
            SyncTransactionProducer(names, lambda message: TransactionState.COMMIT, tls=tls) as transactions,
            SyncAdmin(names, tls=tls) as admin,
        ):
            producer.send("T", b"one")
            transactions.send_in_transaction("T", b"two", lambda message: TransactionState.COMMIT)
            with consumer:
                assert arrived.acquire(timeout=LIMIT_S) and arrived.acquire(timeout=LIMIT_S)
            with puller:
                found: list[bytes] = []
                while len(found) < 2:
                    found += [message.body for message in puller.poll(1000)]
            assert sorted(found) == [b"one", b"two"]
            assert admin.brokers()

    async def work() -> None:
        async with strict(tmp_path, authority, pair) as names:
            await asyncio.to_thread(use, names, TlsOptions(ca_file=authority.file))

    asyncio.run(work())


@pytest.mark.parametrize(
    ("tls", "text"),
    [
        (None, "closed the connection"),
        (True, "is rejected: .*Give the file of its authority"),
        (TlsOptions(verify=ServerCheck.NONE, server_name="any.example"), None),
    ],
)
def test_clients_with_other_options(tmp_path: Path, authority: Authority, pair: Pair, tls: Any, text: str) -> None:
    async def work() -> None:
        async with strict(tmp_path, authority, pair) as names, Producer(names, tls=tls) as producer:
            if text is None:
                await producer.send("T", b"body")
                return
            with pytest.raises(NoNameServer, match=text):
                await producer.send("T", b"body")

    asyncio.run(work())


@pytest.mark.parametrize("kind", [Producer, SyncProducer, Admin, SyncAdmin])
def test_a_bad_file_is_an_error_of_the_constructor(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(TlsError, match="the CA file /no/such/file cannot be read: No such file or directory"):
        kind("127.0.0.1:9876", tls=TlsOptions(ca_file="/no/such/file"))


def test_words_and_paths_are_accepted(tmp_path: Path) -> None:
    options = TlsOptions(ca_file=tmp_path / "ca.pem", verify="chain", min_version="TLSv1.3")  # type: ignore[arg-type]
    assert options == TlsOptions(
        ca_file=str(tmp_path / "ca.pem"), verify=ServerCheck.CHAIN, min_version=options.min_version
    )
    assert options.verify is ServerCheck.CHAIN
    with pytest.raises(ValueError, match="verify is 'no': allowed are full, chain, none"):
        TlsOptions(verify="no")  # type: ignore[arg-type]
