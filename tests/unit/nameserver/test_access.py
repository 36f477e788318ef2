"""A name server with the users of a broker."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import pytest

from tests.unit.broker.sample_requests import ROOT
from wheelmq.auth.acls import make_entry
from wheelmq.auth.offline import OfflineAccess
from wheelmq.auth.policies import AccessList
from wheelmq.auth.rules import RULES
from wheelmq.auth.users import UserKind
from wheelmq.broker.registration import Registrar
from wheelmq.config.errors import ConfigError
from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire import bodies, frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.nameserver import NameServer
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.system.clock import SystemClock
from wheelmq.system.disk import Disk
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness

BOB = AccessKey("bob", "the secret of bob")
UP = AccessKey("wheelmq-up", "the secret of wheelmq up")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the super user root and the user bob, who may send to T."""
    store = tmp_path / "store"
    with OfflineAccess(store) as access:
        access.put_user("root", access.users.make("root", ROOT.secret, UserKind.SUPER))
        access.put_user("bob", access.users.make("bob", BOB.secret))
        access.put_acl("bob", AccessList(custom=[make_entry("Topic:T", ["Pub"], "Allow", [])]))
    return store


class Server:
    def __init__(self, folder: Path, store: Path, **settings: object) -> None:
        self.clock = ManualClock()
        self.audit = folder / "audit.log"
        chosen = NameServerSettings(
            kv_config_path=folder / "kv.json",
            authentication_enabled=True,
            authorization_enabled=True,
            auth_folder=str(store / "config"),
            audit_file=str(self.audit),
            **settings,  # type: ignore[arg-type]
        )
        self.core = NameServer(chosen, disk=Disk(), clock=self.clock, access_key=UP)

    def ask(self, code: int, signer: AccessKey | None = None, body: bytes = b"", **fields: object) -> Command:
        connection = FakeConnection(Host(b"\x0a\0\0\1", 1))
        command = Command(code=code, ext=headers.texts(**fields), body=body, opaque=connection.next_opaque())
        if signer is not None:
            signer.sign(command)
        raw = frame.encode(command)
        assert self.core.receive(connection, memoryview(raw), len(raw)) == len(raw)  # type: ignore[arg-type]
        connection.flush()
        return connection.answers[command.opaque]

    def register(self, key: AccessKey | None) -> Command:
        body = bodies.write(bodies.Registration())
        fields = {"brokerName": "broker-a", "brokerAddr": "10.6.6.6:10911", "clusterName": "DefaultCluster"}
        return self.ask(RequestCode.REGISTER_BROKER, key, body, haServerAddr="", brokerId=0, **fields)


@pytest.fixture
def server(tmp_path: Path, store: Path) -> Server:
    return Server(tmp_path, store)


FIELDS = {
    "topic": "T", "namespace": "n", "key": "k", "value": "v", "brokerName": "b", "brokerAddr": "h:1", "brokerId": 0,
    "clusterName": "DefaultCluster", "cluster": "DefaultCluster", "haServerAddr": "",
}  # fmt: skip


def test_each_code_needs_a_signature_and_its_rights(server: Server) -> None:
    for code in sorted(server.core.codes):
        for key in (None, AccessKey("root", "a wrong secret")):
            assert server.ask(code, key, **FIELDS).code == ResponseCode.NO_PERMISSION, code
        answer = server.ask(code, BOB, **FIELDS)
        is_free = not RULES[RequestCode(code)].needs or code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        assert (answer.code == ResponseCode.NO_PERMISSION) is not is_free, code
        assert server.ask(code, ROOT, **FIELDS).code != ResponseCode.NO_PERMISSION, code


def test_a_stranger_cannot_register_a_broker(server: Server) -> None:
    """Clients would send their messages to it."""
    for key in (None, BOB, AccessKey("wheelmq-up", "guessed")):
        assert server.register(key).code == ResponseCode.NO_PERMISSION
    answer = server.ask(RequestCode.GET_BROKER_CLUSTER_INFO, BOB)
    assert b"10.6.6.6" not in bytes(answer.body)
    for key in (ROOT, UP):
        assert server.register(key).code == 0
    assert b"10.6.6.6" in bytes(server.ask(RequestCode.GET_BROKER_CLUSTER_INFO, BOB).body)


def test_forged_requests_have_no_effect(server: Server, tmp_path: Path) -> None:
    """A stranger takes the name of a broker, removes it, moves a file, or sends a body that inflates to 60 MiB."""
    assert server.register(ROOT).code == 0
    before = bytes(server.ask(RequestCode.GET_BROKER_CLUSTER_INFO, ROOT).body)
    broker = {
        "brokerName": "broker-a",
        "brokerAddr": "6.6.6.6:666",
        "clusterName": "DefaultCluster",
        "haServerAddr": "",
    }
    bomb = zlib.compress(bytes(60 << 20), 9)
    crc = str(zlib.crc32(bomb) & 0x7FFF_FFFF)
    for key in (None, BOB, AccessKey("root", "a wrong secret")):
        for code, fields, body in (
            (RequestCode.REGISTER_BROKER, {**broker, "brokerId": 0}, b""),
            (RequestCode.REGISTER_BROKER, {**broker, "brokerId": 0, "compressed": "true", "bodyCrc32": crc}, bomb),
            (RequestCode.UNREGISTER_BROKER, {**broker, "brokerAddr": "10.6.6.6:10911", "brokerId": 0}, b""),
            (RequestCode.WIPE_WRITE_PERM_OF_BROKER, broker, b""),
            (RequestCode.UPDATE_NAMESRV_CONFIG, {}, f"kvConfigPath={tmp_path / 'evil'}\n".encode()),
            (RequestCode.PUT_KV_CONFIG, {"namespace": "../../x", "key": "k", "value": "v" * 1000}, b""),
        ):
            assert server.ask(code, key, body, **fields).code == ResponseCode.NO_PERMISSION, (code, key)
    assert bytes(server.ask(RequestCode.GET_BROKER_CLUSTER_INFO, ROOT).body) == before
    assert not (tmp_path / "evil").exists()


def test_changed_users_count_within_a_second(server: Server, store: Path) -> None:
    with OfflineAccess(store) as access:
        access.put_user("bob", None)
        access.put_user("eve", access.users.make("eve", "the secret of eve", UserKind.SUPER))
    server.clock.advance(1000)
    server.core.tick()
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, BOB, topic="T").code == ResponseCode.NO_PERMISSION
    eve = AccessKey("eve", "the secret of eve")
    assert server.ask(RequestCode.GET_NAMESRV_CONFIG, eve).code == 0
    assert server.core.next_tick_ms() <= 1000


def test_a_damaged_file_changes_nothing(server: Server, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = store / "config" / "users.json"
    users.unlink()
    users.write_text("{")
    server.clock.advance(1000)
    server.core.tick()
    assert server.ask(RequestCode.GET_NAMESRV_CONFIG, ROOT).code == 0
    assert "keeps its users and access lists" in caplog.text


def test_administration_has_lines_in_the_audit_log(server: Server) -> None:
    server.ask(RequestCode.PUT_KV_CONFIG, ROOT, **FIELDS)
    server.ask(RequestCode.PUT_KV_CONFIG, BOB, **FIELDS)
    server.ask(RequestCode.PUT_KV_CONFIG, None, **FIELDS)
    server.ask(RequestCode.GET_BROKER_CLUSTER_INFO, ROOT)
    lines = [json.loads(line) for line in server.audit.read_text().splitlines()]
    assert [(one["user"], one["outcome"]) for one in lines] == [
        ("root", "done"), ("bob", "rejected"), ("", "rejected")
    ]  # fmt: skip
    assert all(one["request"] == "PUT_KV_CONFIG" and one["address"] == "10.0.0.1:1" for one in lines)


def test_failed_administration_has_lines_too(server: Server, tmp_path: Path) -> None:
    """The header of one request has no key. The file of another one cannot be written."""
    server.ask(RequestCode.DELETE_KV_CONFIG, ROOT, namespace="n")
    (tmp_path / "kv.json").mkdir()
    server.ask(RequestCode.PUT_KV_CONFIG, ROOT, **FIELDS)
    lines = [json.loads(line) for line in server.audit.read_text().splitlines()]
    assert [(one["request"], one["user"], one["outcome"], one["code"]) for one in lines] == [
        (name, "root", "failed", ResponseCode.SYSTEM_ERROR) for name in ("DELETE_KV_CONFIG", "PUT_KV_CONFIG")
    ]
    assert all(one["remark"] for one in lines)


def test_wrong_settings_end_the_start(tmp_path: Path, store: Path) -> None:
    with pytest.raises(ValueError, match="needs auth_folder"):
        NameServerSettings(kv_config_path=tmp_path / "kv", authentication_enabled=True).check()
    with pytest.raises(ValueError, match="needs authentication_enabled"):
        chosen = NameServerSettings(kv_config_path=tmp_path / "kv", authorization_enabled=True)
        NameServer(chosen, disk=Disk(), clock=ManualClock())
    (tmp_path / "store.key").unlink()
    with pytest.raises(ConfigError, match=r"store\.key is missing"):
        Server(tmp_path, store)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_it_listens_for_other_machines_only_with_users(tmp_path: Path, store: Path, host: str) -> None:
    open_settings = NameServerSettings(kv_config_path=tmp_path / "kv", listen_host=host)
    with pytest.raises(ConfigError, match="the name server would listen on"):
        NameServer(open_settings, disk=Disk(), clock=ManualClock())
    open_settings.allow_unauthenticated = True
    NameServer(open_settings, disk=Disk(), clock=ManualClock())
    Server(tmp_path, store, listen_host=host)


def test_a_broker_signs_its_registration(tmp_path: Path, store: Path) -> None:
    async def registered(key: AccessKey | None) -> bool:
        chosen = NameServerSettings(
            kv_config_path=tmp_path / "kv",
            listen_port=0,
            authentication_enabled=True,
            auth_folder=str(store / "config"),
        )
        app = NameServerApp(chosen)
        await app.start()
        with BrokerHarness(tmp_path / "broker", namesrv=(f"127.0.0.1:{app.port}",)) as harness:
            parts = harness.broker.parts
            registrar = Registrar(
                parts.settings, parts.topics, parts.replication, SystemClock(), None if key is None else key.sign
            )
            registrar.start()
            try:
                async with asyncio.timeout(20 if key is not None else 1):
                    await registrar.registered.wait()
                return True
            except TimeoutError:
                return False
            finally:
                await registrar.stop()
                await app.stop()

    assert asyncio.run(registered(ROOT))
    assert not asyncio.run(registered(None))
