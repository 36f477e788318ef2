"""A slave follows a master that has users: both know the credentials that sign the requests between brokers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.broker_group import SLAVE, Group, play
from tests.unit.broker.sample_requests import ROOT
from tests.unit.client.conftest import until
from wheelmq.cli.access_requests import AccessPlace, AccessRequests
from wheelmq.cli.switch import switch
from wheelmq.client import Producer, ProducerSettings
from wheelmq.formats.wire.access import UserInfo
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.net.errors import Refused

INNER = json.dumps({"accessKey": "brokers", "secretKey": "the secret of the brokers"})
SECURED: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": ROOT.name, "password": ROOT.secret}),
}


async def send(group: Group, count: int, **options: Any) -> None:
    async with Producer(group.namesrv, settings=ProducerSettings(access_key=ROOT)) as producer:
        for i in range(count):
            await producer.send("T", b"%d" % i, **options)


def test_a_slave_with_the_credentials_of_brokers_follows(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        master = await group.add(**SECURED, inner_client_authentication_credentials=INNER)
        await send(group, 20)
        slave = await group.add(**SECURED, **SLAVE, inner_client_authentication_credentials=INNER)
        await until(lambda: slave.stored("T") == 20)
        await send(group, 5)
        await until(lambda: slave.log_end == master.log_end)
        assert slave.app.broker is not None and "T" in slave.app.broker.parts.topics

    play(tmp_path, scene)


def test_a_slave_copies_the_blocks_of_a_master_with_users(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        await group.add(**SECURED, inner_client_authentication_credentials=INNER)
        await send(group, 1)
        await send(group, 3, delay_in_seconds=900)
        slave = await group.add(**SECURED, **SLAVE, inner_client_authentication_credentials=INNER)
        await until(lambda: slave.in_blocks == 3)
        await send(group, 2, delay_in_seconds=90_000)
        await until(lambda: slave.in_blocks == 5)

    play(tmp_path, scene)


def test_a_command_changes_the_users_of_slaves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a user that was removed would count again after a failover."""
    monkeypatch.setenv("WHEELMQ_ACCESS_KEY", ROOT.name)
    monkeypatch.setenv("WHEELMQ_SECRET_KEY", ROOT.secret)

    async def scene(group: Group) -> None:
        members = [await group.add(**SECURED, inner_client_authentication_credentials=INNER)]
        members.append(await group.add(**SECURED, **SLAVE, inner_client_authentication_credentials=INNER))

        def users() -> list[set[str]]:
            parts = [member.app.broker.parts for member in members if member.app.broker is not None]
            return [{user.name for user in one.access.tables.users.all()} for one in parts]

        for code, expected in (
            (RequestCode.AUTH_CREATE_USER, {"root", "bob"}),
            (RequestCode.AUTH_DELETE_USER, {"root"}),
        ):
            requests = await asyncio.to_thread(AccessRequests, AccessPlace(group.namesrv))
            body = UserInfo(username="bob", password="the secret of bob")
            await asyncio.to_thread(requests.ask_all, code, body, username="bob")
            assert users() == [expected, expected]

    play(tmp_path, scene)


def test_a_slave_without_credentials_gets_no_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(group: Group) -> None:
        await group.add(**SECURED, inner_client_authentication_credentials=INNER)
        await send(group, 3)
        await send(group, 1, delay_in_seconds=900)
        slave = await group.add(**SLAVE)
        await until(lambda: "username cannot be null" in caplog.text)
        assert slave.log_end == 0 and slave.stored("T") == 0 and slave.in_blocks == 0

    play(tmp_path, scene)


def test_a_switch_needs_the_access_key_of_an_administrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(group: Group) -> None:
        master = await group.add(**SECURED, inner_client_authentication_credentials=INNER)
        slave = await group.add(**SECURED, **SLAVE, inner_client_authentication_credentials=INNER)
        await send(group, 3)
        await until(lambda: slave.log_end == master.log_end)
        with pytest.raises(Refused, match="username cannot be null"):
            await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        monkeypatch.setenv("WHEELMQ_ACCESS_KEY", ROOT.name)
        monkeypatch.setenv("WHEELMQ_SECRET_KEY", ROOT.secret)
        done = await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        assert done.fields["handed_over"]
        await until(lambda: slave.is_master and not master.is_master and master.lives == 2)

    play(tmp_path, scene)
