"""Users and TLS together: each connection between brokers, and of each command, is both signed and encrypted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from compat.certificates import Authority
from tests.unit.broker.broker_group import SLAVE, Group, play
from tests.unit.broker.sample_requests import ROOT
from tests.unit.broker.test_following_with_users import INNER, SECURED
from tests.unit.broker.test_secure_replication import replicas_are_encrypted, words_of
from tests.unit.client.conftest import until
from wheelmq.cli import main
from wheelmq.client import Producer, ProducerSettings
from wheelmq.config.tls import TlsSettings
from wheelmq.system.tls import TlsMode


def test_a_group_with_users_and_tls_follows_and_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue()
    tls = TlsSettings(
        mode=TlsMode.ENFORCING,
        certificate_file=str(pair.certificate),
        key_file=str(pair.key),
        outgoing_ca_file=str(authority.file),
    )
    chosen = {**words_of(tls), **SECURED, "inner_client_authentication_credentials": INNER}
    monkeypatch.setenv("WHEELMQ_TLS_CA", str(authority.file))

    async def scene(group: Group) -> None:
        async def run(*words: str, secret: str = "") -> Result:
            given = [*words, "--namesrv", group.namesrv]
            return await asyncio.to_thread(CliRunner().invoke, main, given, f"{secret}\n")

        master = await group.add(**chosen)
        async with Producer(group.namesrv, ProducerSettings(access_key=ROOT), tls=group.tls) as producer:
            await producer.send("T", b"1")
            slave = await group.add(**chosen, **SLAVE)
            await until(lambda: slave.stored("T") == 1 and slave.log_end == master.log_end)
        assert replicas_are_encrypted(master) == [True]

        assert "username cannot be null" in (await run("users", "list")).output
        assert "username cannot be null" in (await run("promote", slave.address)).output
        monkeypatch.setenv("WHEELMQ_ACCESS_KEY", ROOT.name)
        monkeypatch.setenv("WHEELMQ_SECRET_KEY", ROOT.secret)
        assert "no name server answers" in (await run("users", "list", "--no-tls")).output
        added = await run("users", "add", "bob", secret="the secret of bob")
        assert added.exit_code == 0, added.output
        for member in group.members:
            listed = await run("users", "list", "--json", "--broker", member.address)
            assert [user["username"] for user in json.loads(listed.output)] == ["bob", "root"]
        assert (await run("acl", "grant", "bob", "Topic:T", "Pub")).exit_code == 0
        for words in (
            *(("send", "T", "2"), ("timers", "--topic", "T"), ("topics",), ("groups",), ("lag",)),
            *(("dead-letters", "list"), ("admin", "clusterList"), ("admin", "topicStatus", "-t", "T")),
        ):
            done = await run(*words)
            assert done.exit_code == 0, done.output

        done = await run("promote", slave.address)
        assert done.exit_code == 0, done.output
        await until(lambda: slave.is_master and not master.is_master and master.lives == 2)
        await until(lambda: replicas_are_encrypted(slave) == [True])

    play(tmp_path, scene, tls)
