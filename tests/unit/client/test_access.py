"""Signed requests."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.conftest import Start
from wheelmq.client import AccessKey, Producer, ProducerSettings
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net import rpc_client as module


def request(body: bytes) -> Command:
    return Command(code=10, ext={"topic": "T", "queueId": "3", "b": "größer", "Zone": "z"}, body=body)


def test_the_signature_equals_that_of_apaches_client() -> None:
    """AclClientRPCHook 5.3.3 computed the expected values from the same fields."""
    command = request(b"body")
    for _ in range(2):  # a request that is sent twice is signed twice
        AccessKey("name", "secret").sign(command)
        assert (command.ext["AccessKey"], command.ext["Signature"]) == ("name", "rG6qaMTkLgukz81/QdWZSaJ7QEc=")
    command = request(b"")
    AccessKey("name", "secret", "token").sign(command)
    assert (command.ext["SecurityToken"], command.ext["Signature"]) == ("token", "jmMV4pX17IG0vJwp0t4EeY1j7Bo=")


def test_the_repr_of_settings_hides_the_secret() -> None:
    assert "secret" not in repr(ProducerSettings(access_key=AccessKey("name", "secret", "secret too")))
    with pytest.raises(ValueError, match="a name and a secret"):
        AccessKey("name", "")


def test_a_producer_signs_every_request(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Command] = []
    encode = module.frame.encode

    def noted(command: Command) -> bytes:
        sent.append(command)
        return encode(command)

    async def scenario() -> None:
        async with servers() as running:
            monkeypatch.setattr(module.frame, "encode", noted)
            settings = ProducerSettings(access_key=AccessKey("name", "secret"))
            async with Producer(running.namesrv, settings) as producer:
                await producer.send("T", b"x")
                await producer.send_oneway("T", b"x")

    asyncio.run(scenario())
    ours = [command for command in sent if not command.is_response and command.ext.get("AccessKey") == "name"]
    assert {command.code for command in ours} >= {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
    }
    assert all("Signature" in command.ext for command in ours)
