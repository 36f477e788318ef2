"""The producer for code that has no event loop: scripts, the command line, tasks of other frameworks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.client.producer import CancelResult, Producer, ProducerSettings, SendResult
from wheelmq.system.clock import Clock


class SyncProducer:
    """`with SyncProducer("127.0.0.1:9876") as producer: producer.send("T", b"...", delay_ms=5000)`

    Its loop runs only while a call does, so heartbeats rest in between: a broker forgets it after two idle minutes,
    and the next call makes a new connection. For one thread.
    """

    def __init__(
        self, namesrv: str | Sequence[str], settings: ProducerSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        self._producer = Producer(namesrv, settings, clock=clock)
        self._runner = asyncio.Runner()

    def start(self) -> None:
        self._runner.run(self._producer.start())

    def stop(self) -> None:
        """Leave the brokers."""
        try:
            self._runner.run(self._producer.stop())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        keys: str | Sequence[str] = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_in_seconds: int | None = None,
    ) -> SendResult:
        """As Producer.send."""
        sending = self._producer.send(
            topic,
            body,
            keys=keys,
            tags=tags,
            properties=properties,
            queue_id=queue_id,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
            delay_in_seconds=delay_in_seconds,
        )
        return self._runner.run(sending)

    def send_batch(
        self, topic: str, messages: Sequence[OutgoingMessage], *, queue_id: int | None = None
    ) -> list[SendResult]:
        """As Producer.send_batch."""
        return self._runner.run(self._producer.send_batch(topic, messages, queue_id=queue_id))

    def cancel(
        self, topic: str, unique_key: str, deliver_at_ms: int, *, broker_name: str | None = None
    ) -> CancelResult:
        """As Producer.cancel."""
        return self._runner.run(self._producer.cancel(topic, unique_key, deliver_at_ms, broker_name=broker_name))
