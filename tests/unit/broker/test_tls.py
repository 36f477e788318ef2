"""A broker and a name server with TLS: each setting has its effect on real connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from compat.certificates import Authority, Pair
from tests.unit.broker.test_listening import send
from tests.unit.net.secure import copy_over, until
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.metric_families import Families
from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings
from wheelmq.config import apache
from wheelmq.config.schema import Given
from wheelmq.config.tls import OutgoingTls, TlsSettings
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NAME_SERVER, NameServerSettings
from wheelmq.net.errors import CallError, Unreachable
from wheelmq.net.rpc_client import RpcClient
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.observe.prometheus import prometheus_family
from wheelmq.system.tls import ClientAuth, ServerCheck, TlsError, TlsMode, TlsVersion
from wheelmq.system.tls_client import Tls, TlsOptions, client_tls
from wheelmq.testing.harness import SMALL

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue()


def files_of(pair: Pair) -> dict[str, Any]:
    """Return the settings of a server with this certificate."""
    return {"tls_certificate_file": str(pair.certificate), "tls_key_file": str(pair.key)}


@asynccontextmanager
async def broker(folder: Path, **chosen: Any) -> AsyncIterator[BrokerApp]:
    settings = {**SMALL, "message_index_enable": False, "listen_port": 0, "fast_port_enable": False, **chosen}
    app = BrokerApp(BrokerSettings.of(store_path=folder, **settings), owns_process=False)
    try:
        await app.start()
        yield app
    finally:
        await app.stop()


@asynccontextmanager
async def name_server(folder: Path, **chosen: Any) -> AsyncIterator[NameServerApp]:
    settings = NameServerSettings(kv_config_path=folder / "kv.json", listen_port=0)
    app = NameServerApp(settings, tls=TlsSettings(**{name.removeprefix("tls_"): one for name, one in chosen.items()}))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


async def code_of(port: int, tls: Tls | None, command: Command | None = None) -> int:
    """Return the answer to a request over one connection. Raises CallError."""
    caller = RpcClient(f"127.0.0.1:{port}", tls=client_tls(tls))
    try:
        return (await caller.call(command or send(), LIMIT_S)).code
    finally:
        await caller.close()


async def is_accepted(port: int, tls: Tls | None) -> bool:
    try:
        return await code_of(port, tls) == ResponseCode.SUCCESS
    except CallError:
        return False


def run(work: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(limited())


@pytest.mark.parametrize("mode", TlsMode)
def test_each_mode_accepts_its_connections(tmp_path: Path, authority: Authority, pair: Pair, mode: TlsMode) -> None:
    trusting = TlsOptions(ca_file=str(authority.file))

    async def work() -> None:
        async with broker(tmp_path, tls_mode=mode, **files_of(pair)) as app:
            port = app.settings.broker.listen_port
            found = [await is_accepted(port, tls) for tls in (None, trusting)]
            assert found == [mode is not TlsMode.ENFORCING, mode is not TlsMode.DISABLED]

    run(work())


def test_a_blocking_connection_works_with_tls(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    """The server closes it in between, as after idle minutes."""
    trusting = client_tls(TlsOptions(ca_file=str(authority.file)))

    async def work() -> None:
        async with broker(tmp_path, tls_mode=TlsMode.ENFORCING, **files_of(pair)) as app:
            assert app._server is not None
            server = app._server
            with closing(SyncConnection(f"127.0.0.1:{app.settings.broker.listen_port}", LIMIT_S, trusting)) as link:
                for _ in range(3):
                    for _ in range(3):
                        assert (await asyncio.to_thread(link.call, send())).code == 0
                    (connection,) = server.connections
                    connection.close()
                    await until(lambda: not server.connections)

    run(work())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "is rejected: .*self.signed certificate.*|is rejected: unable to get local issuer certificate.*"),
        ({"ca_file": "other"}, "is rejected: .*Give the file of its authority"),
        ({"ca_file": "good", "server_name": "mq.example"}, "Hostname mismatch.*Connect by one of its names"),
        ({"ca_file": "good"}, None),
        ({"ca_file": "certificate"}, None),
        ({"ca_file": "good", "server_name": "mq.example", "verify": ServerCheck.CHAIN}, None),
        ({"verify": ServerCheck.NONE}, None),
    ],
)
def test_a_client_accepts_servers_by_its_options(
    tmp_path: Path, authority: Authority, pair: Pair, options: dict[str, Any], text: str | None
) -> None:
    other = Authority(tmp_path / "other", "Another authority")
    files = {"good": authority.file, "other": other.file, "certificate": pair.certificate}
    if "ca_file" in options:
        options = {**options, "ca_file": str(files[options["ca_file"]])}

    async def work() -> None:
        async with broker(tmp_path / "store", **files_of(pair)) as app:
            port = app.settings.broker.listen_port
            with closing(SyncConnection(f"127.0.0.1:{port}", LIMIT_S, client_tls(TlsOptions(**options)))) as link:
                if text is None:
                    assert await code_of(port, TlsOptions(**options)) == 0
                    assert (await asyncio.to_thread(link.call, send())).code == 0
                    return
                with pytest.raises(Unreachable, match=text):
                    await code_of(port, TlsOptions(**options))
                with pytest.raises(CallError, match=text):
                    await asyncio.to_thread(link.call, send())

    run(work())


def test_a_client_of_its_own_context(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def work() -> None:
        async with broker(tmp_path, **files_of(pair)) as app:
            context = ssl.create_default_context(cafile=authority.file)
            assert await code_of(app.settings.broker.listen_port, context) == 0

    run(work())


def test_tls_to_a_server_without_it_names_the_reason(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker(tmp_path) as app:
            port = app.settings.broker.listen_port
            with pytest.raises(CallError, match="cannot be reached: "):
                await code_of(port, True)

    run(work())


def test_a_broker_can_require_certificates_of_clients(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    own = authority.issue("client")
    trusting = TlsOptions(ca_file=str(authority.file))
    certified = TlsOptions(ca_file=str(authority.file), certificate_file=str(own.certificate), key_file=str(own.key))

    async def work() -> None:
        chosen = {
            "tls_mode": TlsMode.ENFORCING,
            "tls_client_auth": ClientAuth.REQUIRE,
            "tls_ca_file": str(authority.file),
        }
        async with broker(tmp_path, **files_of(pair), **chosen) as app:
            port = app.settings.broker.listen_port
            assert await code_of(port, certified) == 0
            with pytest.raises(CallError, match=r"The server requires a client certificate|closed the connection"):
                await code_of(port, trusting)

    run(work())


def test_an_encrypted_key_and_a_minimum_version_and_ciphers(tmp_path: Path, authority: Authority) -> None:
    locked = authority.issue("locked", password="open sesame")
    (tmp_path / "password").write_text("open sesame\n")
    context = ssl.create_default_context(cafile=authority.file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    chosen: dict[str, Any] = {**files_of(locked), "tls_key_password_file": str(tmp_path / "password")}

    async def work() -> None:
        async with broker(tmp_path / "a", tls_min_version=TlsVersion.TLS_1_3, **chosen) as app:
            assert not await is_accepted(app.settings.broker.listen_port, context)
        async with broker(tmp_path / "b", tls_ciphers="ECDHE-ECDSA-AES256-GCM-SHA384", **chosen) as app:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", app.settings.broker.listen_port, ssl=context, server_hostname="localhost"
            )
            assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
            writer.close()

    run(work())


def test_the_mode_changes_at_run_time(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    trusting = TlsOptions(ca_file=str(authority.file))

    async def change(port: int, mode: str) -> int:
        body = f"tls.server.mode={mode}".encode()
        return await code_of(port, trusting, Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=body))

    async def work() -> None:
        async with broker(tmp_path, block_length_seconds=3600, **files_of(pair)) as app:
            port = app.settings.broker.listen_port
            assert await is_accepted(port, None)
            assert await change(port, "enforcing") == ResponseCode.SUCCESS
            assert [await is_accepted(port, tls) for tls in (None, trusting)] == [False, True]
            assert await change(port, "permissive") == ResponseCode.SUCCESS
            assert await is_accepted(port, None)
            assert await change(port, "strict") == ResponseCode.INVALID_PARAMETER
        async with broker(tmp_path / "plain", block_length_seconds=3600) as app:
            port = app.settings.broker.listen_port
            body = b"tls.server.mode=enforcing"
            command = Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=body)
            assert await code_of(port, None, command) == ResponseCode.INVALID_PARAMETER

    run(work())


def test_a_rotation_of_a_running_broker(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheelmq.net.server_tls.RELOAD_S", 0.01)
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    first, second = authority.issue("first"), authority.issue("second")
    for old, new in ((live.certificate, first.certificate), (live.key, first.key)):
        copy_over(new, old)
    context = ssl.create_default_context(cafile=authority.file)

    async def served(port: int) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async def work() -> None:
        async with broker(tmp_path / "store", **files_of(live)) as app:
            port = app.settings.broker.listen_port
            before = await served(port)
            copy_over(second.certificate, live.certificate)
            copy_over(second.key, live.key)
            assert app._tls is not None
            tls = app._tls
            await until(lambda: tls.reloads == 1)
            assert await served(port) != before
            assert app.broker is not None
            assert app.broker.parts.metric_sources.shell_figures()["tls_reloads"] == 1

    run(work())


def test_the_metrics_of_the_certificate(tmp_path: Path, authority: Authority) -> None:
    ending = authority.issue("ending", days=3)
    page = (Path(__file__).parents[3] / "docs/operations/metrics.md").read_text()

    async def work() -> None:
        async with broker(tmp_path, tls_mode=TlsMode.ENFORCING, **files_of(ending)) as app:
            port = app.settings.broker.listen_port
            assert await is_accepted(port, TlsOptions(ca_file=str(authority.file)))
            assert not await is_accepted(port, TlsOptions())
            assert not await is_accepted(port, None)
            assert app.broker is not None
            families = list(Families(app.broker.parts.metric_sources).all())
            found = {
                (sample.name, sample.labels.get("how", "")): sample.value
                for family in families
                if family.name.startswith("wheelmq_tls")
                for sample in prometheus_family(family).samples
            }
            assert 2.99 < found.pop(("wheelmq_tls_certificate_expiry_days", "")) < 3.01
            assert found == {
                ("wheelmq_tls_certificate_reloads_total", ""): 0,
                ("wheelmq_tls_waiting", ""): 0,
                ("wheelmq_tls_connections_total", "tls"): 1,
                ("wheelmq_tls_connections_total", "failed"): 1,
                ("wheelmq_tls_connections_total", "late"): 0,
                ("wheelmq_tls_connections_total", "plain"): 0,
                ("wheelmq_tls_connections_total", "rejected_plain"): 1,
            }
            assert all(f"`{family.name}" in page for family in families)
        async with broker(tmp_path / "plain") as app:
            assert app.broker is not None
            names = [family.name for family in Families(app.broker.parts.metric_sources).all()]
            assert not any(name.startswith("wheelmq_tls") for name in names)

    run(work())


class TestNameServer:
    @pytest.mark.parametrize("mode", TlsMode)
    def test_each_mode_accepts_its_connections(
        self, tmp_path: Path, authority: Authority, pair: Pair, mode: TlsMode
    ) -> None:
        command = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)

        async def work() -> None:
            async with name_server(tmp_path, tls_mode=mode, **files_of(pair)) as app:
                found = []
                for tls in (None, TlsOptions(ca_file=str(authority.file))):
                    try:
                        found.append(await code_of(app.port, tls, command) == 0)
                    except CallError:
                        found.append(False)
                assert found == [mode is not TlsMode.ENFORCING, mode is not TlsMode.DISABLED]

        run(work())

    @pytest.mark.parametrize(
        ("chosen", "registers"),
        [
            ({"tls_outgoing": OutgoingTls.NEVER}, False),
            ({}, False),
            ({"tls_outgoing": OutgoingTls.ALWAYS, "tls_outgoing_ca_file": "authority"}, True),
            ({"tls_outgoing": OutgoingTls.ALWAYS}, False),
            ({"tls_outgoing": OutgoingTls.ALWAYS, "tls_outgoing_verify": ServerCheck.NONE}, True),
            ({"tls_mode": TlsMode.ENFORCING, "tls_outgoing_ca_file": "authority"}, True),
            ({"tls_mode": TlsMode.ENFORCING, "tls_outgoing": OutgoingTls.NEVER}, False),
        ],
    )
    def test_a_broker_registers_with_tls(
        self, tmp_path: Path, authority: Authority, pair: Pair, chosen: dict[str, Any], registers: bool
    ) -> None:
        """The name server accepts only encrypted connections."""
        if "tls_outgoing_ca_file" in chosen:
            chosen = {**chosen, "tls_outgoing_ca_file": str(authority.file)}
        if "tls_mode" in chosen:
            chosen = {**chosen, **files_of(pair)}

        async def work() -> None:
            async with name_server(tmp_path, tls_mode=TlsMode.ENFORCING, **files_of(pair)) as names:
                address = f"127.0.0.1:{names.port}"
                async with broker(tmp_path / "store", namesrv=(address,), **chosen) as app:
                    assert app.registration is not None
                    if registers:
                        await app.registration.registered.wait()
                        return
                    (server,) = app.registration._servers
                    with pytest.raises(CallError):
                        await server._caller.call(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), LIMIT_S)
                    assert not app.registration.registered.is_set()

        run(work())

    def test_a_broker_registers_with_its_certificate(self, tmp_path: Path, authority: Authority, pair: Pair) -> None:
        own = authority.issue("broker", password="open sesame")
        (tmp_path / "password").write_text("open sesame")
        chosen = {
            "tls_outgoing": OutgoingTls.ALWAYS,
            "tls_outgoing_ca_file": str(authority.file),
            "tls_outgoing_certificate_file": str(own.certificate),
            "tls_outgoing_key_file": str(own.key),
            "tls_outgoing_key_password_file": str(tmp_path / "password"),
        }
        strict = {"tls_client_auth": ClientAuth.REQUIRE, "tls_ca_file": str(authority.file), **files_of(pair)}

        async def work() -> None:
            async with (
                name_server(tmp_path, tls_mode=TlsMode.ENFORCING, **strict) as names,
                broker(tmp_path / "store", namesrv=(f"127.0.0.1:{names.port}",), **chosen) as app,
            ):
                assert app.registration is not None
                await app.registration.registered.wait()

        run(work())


class TestSettings:
    @pytest.mark.parametrize(
        ("chosen", "text"),
        [
            ({"tls_mode": "enforcing"}, "tls_mode is enforcing, and there is no certificate: name its files with "),
            (
                {"tls_certificate_file": "/c.pem"},
                "tls_certificate_file is /c.pem, and its key is missing: name it with",
            ),
            ({"tls_key_file": "/c.key"}, "tls_key_file is /c.key, and its certificate is missing: name it with "),
            ({"tls_outgoing_key_file": "/c.key"}, "name it with tls_outgoing_certificate_file"),
            ({"tls_client_auth": "require"}, "tls_client_auth is require, and no authority is known"),
            ({"tls_mode": "strict"}, "found 'strict'; allowed: disabled, permissive, enforcing"),
            ({"tls_min_version": "TLSv1.1"}, "found 'TLSv1.1'; allowed: TLSv1.2, TLSv1.3"),
        ],
    )
    @pytest.mark.parametrize("schema", [BROKER, NAME_SERVER], ids=["broker", "name server"])
    def test_a_wrong_choice_names_the_remedy(self, schema: Any, chosen: dict[str, str], text: str) -> None:
        paths = {name: Given("x", "") for name in ("store_path", "kv_config_path") if name in schema.fields}
        with pytest.raises(ValueError) as caught:
            schema.build(paths | {name: Given(value, "here") for name, value in chosen.items()})
        assert text in str(caught.value)
        assert str(caught.value).startswith("here: ")

    def test_a_bad_file_ends_the_start(self, tmp_path: Path, pair: Pair) -> None:
        missing = tmp_path / "missing.pem"

        async def start(**chosen: Any) -> None:
            with pytest.raises(TlsError, match=f"{missing} cannot be read"):
                async with broker(tmp_path / "store", **chosen):
                    pass

        run(start(**files_of(pair) | {"tls_certificate_file": str(missing)}))
        run(start(tls_outgoing=OutgoingTls.ALWAYS, tls_outgoing_ca_file=str(missing)))
        assert not (tmp_path / "store").exists()

    def test_apache_s_names(self, pair: Pair) -> None:
        text = (
            f"tls.server.mode=enforcing\ntls.server.certPath={pair.certificate}\ntls.server.keyPath={pair.key}\n"
            "tls.server.trustCertPath=/ca.pem\ntls.server.need.client.auth=require\nuseTLS=true\n"
            "tls.client.authServer=true\ntls.client.trustCertPath=/ca2.pem\ntls.client.certPath=/c.pem\n"
            "tls.client.keyPath=/k.pem\ntls.test.mode.enable=false\ntls.server.authClient=true\n"
        )
        reading = apache.read(text.encode(), "broker.conf", BROKER)
        given = {"store_path": Given("x", ""), **reading.given}
        assert BROKER.build(given).tls == TlsSettings(
            mode=TlsMode.ENFORCING,
            certificate_file=str(pair.certificate),
            key_file=str(pair.key),
            ca_file="/ca.pem",
            client_auth=ClientAuth.REQUIRE,
            outgoing=OutgoingTls.ALWAYS,
            outgoing_verify=ServerCheck.CHAIN,
            outgoing_ca_file="/ca2.pem",
            outgoing_certificate_file="/c.pem",
            outgoing_key_file="/k.pem",
        )
        assert [note.partition(": ")[2] for note in reading.notes if "tls." in note] == [
            "tls.test.mode.enable=false has no effect: no server creates a certificate for tests",
            "tls.server.authClient=true has no effect: a certificate of a client is always checked",
        ]

    @pytest.mark.parametrize("side", ["server", "client"])
    def test_a_password_in_the_file_is_rejected_and_not_printed(self, side: str) -> None:
        with pytest.raises(ValueError, match="write it to a file of its own, and name that in tls_") as caught:
            apache.read(f"tls.{side}.keyPassword=hunter2\n".encode(), "broker.conf", BROKER)
        assert "hunter2" not in str(caught.value)
