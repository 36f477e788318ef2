"""The connection over which a slave copies blocks, at its ends."""

from __future__ import annotations

import asyncio

from wheelmq.broker.replication.block_sync import answer_unless
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.rpc_client import RpcClient


def test_a_request_that_the_master_holds_ends_once_blocks_must_be_cut() -> None:
    async def run() -> None:
        is_asked, must_cut = asyncio.Event(), asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            is_asked.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
            requests = RpcClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            command = Command(code=RequestCode.WMQ_READ_BLOCKS)
            waiting = asyncio.create_task(answer_unless(requests, command, must_cut))
            await is_asked.wait()
            must_cut.set()
            assert await waiting is None
            await requests.close()

    asyncio.run(asyncio.wait_for(run(), 20))
