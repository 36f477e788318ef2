"""Peers of another protocol, at the broker and at the name server."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.unit.client.conftest import Start


@pytest.mark.parametrize("is_broker", [True, False], ids=["broker", "name server"])
def test_the_log_names_the_protocol_of_a_grpc_client(
    servers: Start, is_broker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with servers() as running:
            host, port = (running.address if is_broker else running.namesrv).split(":")
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert await reader.read() == b""
            own_port = writer.get_extra_info("sockname")[1]
            writer.close()
            expected = f"closing 127.0.0.1:{own_port}: the peer speaks HTTP/2, as gRPC clients do"
            assert [text for text in caplog.messages if text.startswith(expected)]

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
