"""Replication with TLS: the HA port by each mode, a slave whose master accepts only TLS, and a switch of the master."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from compat.apache.apache import free_port
from compat.certificates import Authority, Pair
from tests.unit.broker.broker_group import SLAVE, Group, Member, ha_port, play, send
from tests.unit.client.conftest import SMALL, registered, until
from wheelmq.broker.settings import BrokerSettings
from wheelmq.cli import main
from wheelmq.client import Producer
from wheelmq.config.tls import OutgoingTls, TlsSettings
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.replication import HANDSHAKE, REPORT, STATE_HANDSHAKE
from wheelmq.net.replica_port import CONNECTIONS_MAX
from wheelmq.net.stream_client import ByteStream
from wheelmq.system.tls import ClientAuth, TlsMode
from wheelmq.system.tls_client import Tls, TlsOptions, client_tls

FIRST_BYTES = (REPORT.pack(0), HANDSHAKE.pack(STATE_HANDSHAKE, 0, 0, 1))
"""The first bytes of both protocols of plain replicas."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue()


@pytest.fixture(scope="module")
def enforcing(authority: Authority, pair: Pair) -> TlsSettings:
    """Name server and brokers accept only encrypted connections, from holders of a certificate."""
    own = authority.issue("own")
    return TlsSettings(
        mode=TlsMode.ENFORCING,
        certificate_file=str(pair.certificate),
        key_file=str(pair.key),
        client_auth=ClientAuth.REQUIRE,
        ca_file=str(authority.file),
        outgoing_ca_file=str(authority.file),
        outgoing_certificate_file=str(own.certificate),
        outgoing_key_file=str(own.key),
    )


def words_of(tls: TlsSettings) -> dict[str, Any]:
    """Return the settings of a broker that are not the default ones."""
    return {f"tls_{name}": getattr(tls, name) for name in tls.__struct_fields__}


def replicas_are_encrypted(member: Member) -> list[bool]:
    port = member.app._replica_port
    assert port is not None
    found = [one._transport for one in port.connections]
    return [one is not None and one.get_extra_info("ssl_object") is not None for one in found]


async def answers(port: int, first: bytes, tls: Tls | None) -> bool:
    """Return whether a master answers a replica that sends `first`."""
    try:
        stream = await ByteStream.connect("127.0.0.1", port, 5.0, client_tls(tls))
    except ConnectionError:
        return False
    try:
        stream.write(first)
        await until(lambda: bool(stream._received) or not stream.is_open)
        return bool(stream._received)
    finally:
        stream.close()


@pytest.mark.parametrize("mode", TlsMode)
def test_each_mode_accepts_its_replicas(tmp_path: Path, authority: Authority, pair: Pair, mode: TlsMode) -> None:
    trusting = TlsOptions(ca_file=str(authority.file))
    chosen = {
        "tls_mode": mode,
        "tls_certificate_file": str(pair.certificate),
        "tls_key_file": str(pair.key),
        "tls_outgoing": OutgoingTls.NEVER,
        "ha_heartbeat_ms": 50,
    }

    async def scene(group: Group) -> None:
        master = await group.add(**chosen)
        for first in FIRST_BYTES:
            found = [await answers(ha_port(master), first, tls) for tls in (None, trusting)]
            assert found == [mode is not TlsMode.ENFORCING, mode is not TlsMode.DISABLED]

    play(tmp_path, scene)


def test_silent_connections_do_not_pile_up_at_the_ha_port(tmp_path: Path, pair: Pair) -> None:
    chosen = {"tls_certificate_file": str(pair.certificate), "tls_key_file": str(pair.key), "ha_heartbeat_ms": 50}

    async def scene(group: Group) -> None:
        master = await group.add(**chosen)
        port = ha_port(master)
        silent = [await ByteStream.connect("127.0.0.1", port, 5.0) for _ in range(CONNECTIONS_MAX)]
        late = await ByteStream.connect("127.0.0.1", port, 5.0)
        await until(lambda: not late.is_open)
        assert all(stream.is_open for stream in silent)
        silent.pop().close()
        for first in FIRST_BYTES:
            await until_answered(port, first)
        for stream in silent:
            stream.close()

    async def until_answered(port: int, first: bytes) -> None:
        while not await answers(port, first, None):
            await asyncio.sleep(0.01)  # the port has not noticed the closed connection yet

    play(tmp_path, scene)


def test_a_slave_follows_a_master_that_accepts_only_tls(tmp_path: Path, enforcing: TlsSettings) -> None:
    async def scene(group: Group) -> None:
        master = await group.add(**words_of(enforcing), broker_role="SYNC_MASTER")
        slave = await group.add(**words_of(enforcing), **SLAVE)
        await until(lambda: replicas_are_encrypted(master) == [True])
        await send(group, 20)
        await send(group, 5, delay_ms=60_000)
        await until(lambda: slave.stored("T") == 20 and slave.stored("rmq_sys_wheel_timer") == 5)
        assert slave.app.broker is not None and master.app.broker is not None
        mine, theirs = slave.app.broker.parts, master.app.broker.parts
        theirs.consumer_offsets.commit("g", "T", 0, 3)
        await until(lambda: mine.consumer_offsets.get("g", "T", 0) == 3)
        assert slave.log_end == master.log_end

    play(tmp_path, scene, enforcing)


def test_a_slave_gets_the_blocks_by_tls(tmp_path: Path, enforcing: TlsSettings) -> None:
    async def scene(group: Group) -> None:
        await group.add(**words_of(enforcing))
        slave = await group.add(**words_of(enforcing), **SLAVE)
        await send(group, 3, delay_in_seconds=60)
        assert slave.app.broker is not None
        blocks = slave.app.broker.parts.blocks
        await until(lambda: sum(block.queue.end for block in blocks) == 3)

    play(tmp_path, scene, enforcing)


def test_a_slave_gets_a_large_log_by_tls(tmp_path: Path, enforcing: TlsSettings) -> None:
    """The log has more bytes than the buffers of both sides take at once."""

    async def scene(group: Group) -> None:
        master = await group.add(**words_of(enforcing), log_file_bytes=16 << 20)
        async with Producer(group.namesrv, tls=group.tls) as producer:
            for i in range(8):
                await producer.send("T", bytes([i]) * (3 << 20))
        slave = await group.add(**words_of(enforcing), **SLAVE, log_file_bytes=16 << 20)
        await until(lambda: slave.stored("T") == 8 and slave.log_end == master.log_end)
        assert slave.app.broker is not None and master.app.broker is not None
        mine, theirs = (one.app.broker.parts.store.log for one in (slave, master) if one.app.broker is not None)
        at = theirs.start
        while at < theirs.end:
            step = min(1 << 20, theirs.end - at, (16 << 20) - at % (16 << 20))
            assert bytes(mine.read(at, step)) == bytes(theirs.read(at, step))
            at = LogPosition(at + step)

    play(tmp_path, scene, enforcing)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        (
            {"tls_outgoing": OutgoingTls.NEVER},
            ["it speaks no TLS, and tls_mode is enforcing", "closed the connection", ". If it accepts only TLS, set "],
        ),
        ({"tls_outgoing_ca_file": "other"}, ["the certificate of the server is rejected", "ca_file"]),
        (
            {"tls_outgoing_certificate_file": "", "tls_outgoing_key_file": ""},
            ["the slave does not follow its master now", "The server requires a client certificate"],
        ),
    ],
)
def test_a_master_that_accepts_only_tls_rejects_other_slaves(
    tmp_path: Path, enforcing: TlsSettings, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], texts: list[str]
) -> None:
    """The slave knows the master by its address alone, so no name server rejects it."""
    if "tls_outgoing_ca_file" in changes:
        changes = {"tls_outgoing_ca_file": str(Authority(tmp_path / "other", "Another authority").file)}

    async def scene(group: Group) -> None:
        master = await group.add(**words_of(enforcing), listen_port=free_port(beside=(-2, 1)))
        await send(group, 3)
        chosen = words_of(enforcing) | changes | {"ha_master_address": f"127.0.0.1:{ha_port(master)}"}
        slave = Member(BrokerSettings.of(store_path=tmp_path / "alone", listen_port=0, **SMALL, **SLAVE, **chosen))
        group.members.append(slave)
        caplog.clear()
        await slave.start()
        await until(lambda: all(text in caplog.text for text in texts))
        assert slave.log_end == 0 and replicas_are_encrypted(master) == []

    play(tmp_path, scene, enforcing)


def test_a_plain_slave_of_a_name_server_gets_nothing_of_a_master_that_accepts_only_tls(
    tmp_path: Path, enforcing: TlsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """The name server accepts both kinds of connections, so the slave finds its master."""
    both = msgspec.structs.replace(enforcing, mode=TlsMode.PERMISSIVE)

    async def scene(group: Group) -> None:
        master = await group.add(**words_of(enforcing))
        slave = await group.add(**SLAVE)
        await until(lambda: "closed the connection. If it accepts only TLS, set tls_outgoing of " in caplog.text)
        assert slave.log_end == 0 and replicas_are_encrypted(master) == []

    play(tmp_path, scene, both)


def test_a_switch_of_the_master_by_tls(tmp_path: Path, enforcing: TlsSettings) -> None:
    async def scene(group: Group) -> None:
        master = await group.add(**words_of(enforcing))
        slave = await group.add(**words_of(enforcing), **SLAVE)
        await send(group, 10)
        await until(lambda: slave.log_end == master.log_end)
        words = ["promote", slave.address, "--namesrv", group.namesrv, "--json"]
        plain = await asyncio.to_thread(CliRunner().invoke, main, words)
        assert plain.exit_code == 1 and "try --tls" in plain.output and master.is_master
        words += ["--tls-ca", enforcing.outgoing_ca_file, "--tls-certificate", enforcing.outgoing_certificate_file]
        done = await asyncio.to_thread(CliRunner().invoke, main, [*words, "--tls-key", enforcing.outgoing_key_file])
        assert done.exit_code == 0 and json.loads(done.output)["handed_over"], done.output
        await until(lambda: not master.is_master and master.lives == 2)
        await registered(master.app)
        await send(group, 3)
        await until(lambda: master.stored("T") == slave.stored("T") == 13)
        await until(lambda: replicas_are_encrypted(slave) == [True])

    play(tmp_path, scene, enforcing)
