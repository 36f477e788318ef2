"""Each way to send rejects a wrong due time before it asks any server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from wheelmq.client import Producer, SyncProducer, SyncTransactionProducer, TransactionProducer, TransactionState

NOWHERE = "127.0.0.1:1"
SECONDS: Any = {"deliver_at_ms": 1_800_000_000}
"""A time in seconds, where milliseconds are expected."""

SYNC: dict[str, Callable[[SyncProducer], object]] = {
    "send": lambda producer: producer.send("T", b"x", **SECONDS),
    "send_async": lambda producer: producer.send_async("T", b"x", **SECONDS).result(),
    "send_oneway": lambda producer: producer.send_oneway("T", b"x", **SECONDS),
}


@pytest.mark.parametrize("way", SYNC)
def test_the_sync_producer_rejects_a_time_in_seconds(way: str) -> None:
    with SyncProducer(NOWHERE) as producer, pytest.raises(ValueError, match="it looks like seconds; write 18000000000"):
        SYNC[way](producer)


def test_the_async_producer_rejects_a_time_in_seconds() -> None:
    async def scenario() -> None:
        async with Producer(NOWHERE) as producer:
            for send in (producer.send, producer.send_oneway):
                with pytest.raises(ValueError, match="it looks like seconds"):
                    await send("T", b"x", **SECONDS)
            with pytest.raises(TypeError, match="it must be bytes or a str"):
                await producer.send("T", 5)  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_a_transaction_producer_rejects_a_time_in_seconds() -> None:
    executed: list[object] = []

    def execute(sent: object) -> TransactionState:
        executed.append(sent)
        return TransactionState.COMMIT

    async def scenario() -> None:
        async with TransactionProducer(NOWHERE, lambda message: TransactionState.ROLLBACK) as producer:
            with pytest.raises(ValueError, match="it looks like seconds"):
                await producer.send_in_transaction("T", b"x", execute, **SECONDS)

    asyncio.run(scenario())
    with (
        SyncTransactionProducer(NOWHERE, lambda message: TransactionState.ROLLBACK) as blocking,
        pytest.raises(ValueError, match="it looks like seconds"),
    ):
        blocking.send_in_transaction("T", b"x", execute, **SECONDS)
    assert executed == []
